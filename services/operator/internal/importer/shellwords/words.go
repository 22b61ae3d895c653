// Package shellwords splits command lines as a shell would and runs none: what would need one is refused. It trusts nothing in them.
package shellwords

import (
	"errors"
	"fmt"
	"strings"
)

// maxWords bounds a command.
const maxWords = 1024

// Split splits a command line into arguments as llama-swap and a shell would, as far as no shell is needed: spaces part, quotes
// hold together, a backslash takes the next character as it is, and in lines of their own what follows # is a comment. A character
// that makes a shell do something (a pipe, a redirection, a substitution, a pattern of paths) is refused, unless it is quoted. A
// pattern in a word that is no path, as llama-server's -ot takes one, and JSON are what they are: llama-swap starts no shell.
func Split(command string) ([]string, error) {
	var words []string
	var word strings.Builder
	begun, bare := false, true
	end := func() error {
		if begun {
			if len(words) >= maxWords {
				return fmt.Errorf("more than %d arguments", maxWords)
			}
			words = append(words, word.String())
			word.Reset()
			begun = false
		}
		return nil
	}
	command = strings.ReplaceAll(command, "\r\n", "\n")
	for i := 0; i < len(command); i++ {
		c := command[i]
		switch {
		case c == '\n' || c == ' ' || c == '\t':
			if err := end(); err != nil {
				return nil, err
			}
			bare = bare || c == '\n'
			continue
		case c == '#' && !begun && bare:
			for i+1 < len(command) && command[i+1] != '\n' {
				i++
			}
			continue
		case c == '\\' && i+1 < len(command):
			i++
			if command[i] == '\n' {
				if err := end(); err != nil {
					return nil, err
				}
				bare = true
				continue
			}
			word.WriteByte(command[i])
			begun = true
		case c == '\'':
			shut := strings.IndexByte(command[i+1:], '\'')
			if shut < 0 {
				return nil, errors.New("a quote is never closed")
			}
			word.WriteString(command[i+1 : i+1+shut])
			i += 1 + shut
			begun = true
		case c == '"':
			n, err := quoted(command[i+1:], &word)
			if err != nil {
				return nil, err
			}
			i += 1 + n
			begun = true
		case strings.IndexByte("|&;<>()`$*?[]{}!", c) >= 0 && metacharacter(c, begun, word.String()):
			return nil, fmt.Errorf("it needs a shell: %q has a meaning there", string(c))
		case c == '~' && !begun:
			return nil, errors.New(`it needs a shell: "~" stands for a folder there`)
		default:
			word.WriteByte(c)
			begun = true
		}
		bare = false
	}
	return words, end()
}

// WithoutComments leaves out the lines that begin with #.
func WithoutComments(command string) string {
	var out strings.Builder
	for line := range strings.Lines(command) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// metacharacter reports whether a shell would act on a character behind the beginning of a word, so that somebody may have meant it to.
func metacharacter(c byte, begun bool, word string) bool {
	switch c {
	case '!':
		return !begun
	case ']', '}':
		return false
	case '*', '?', '[', '{':
		path := strings.TrimLeft(word, ".")
		return begun && strings.HasPrefix(path, "/") || !begun && c != '{' && c != '['
	}
	return true
}

// quoted reads up to the closing double quote and returns how many bytes stand before it.
func quoted(s string, word *strings.Builder) (int, error) {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return i, nil
		case c == '\\' && i+1 < len(s) && strings.IndexByte("\"\\$`\n", s[i+1]) >= 0:
			if i++; s[i] != '\n' {
				word.WriteByte(s[i])
			}
		case c == '$' || c == '`':
			return 0, fmt.Errorf("it needs a shell: %q has a meaning there", string(c))
		default:
			word.WriteByte(c)
		}
	}
	return 0, errors.New("a quote is never closed")
}
