package policy

import (
	"fmt"
	"unicode/utf8"
)

// Bounds of what is read. They stand before any parser, so that no file can make one run long or deep.
const (
	maxFileBytes = 256 << 10
	maxAllBytes  = 1 << 20
	maxSources   = 1024
	maxRules     = 5000
	// Within one rule.
	maxNesting = 32
	maxTokens  = 4096
	maxSigns   = 8  // "!!!!"
	maxIfs     = 32 // "if a then b else if …"
	maxChain   = 16 // "a.b.c.d"
)

// bounded reads Cedar text as a scanner does, and refuses what is nested or chained beyond the bounds.
func bounded(text []byte) *Problem {
	switch {
	case len(text) > maxFileBytes:
		return &Problem{Text: fmt.Sprintf("larger than %d KiB", maxFileBytes>>10)}
	case !utf8.Valid(text):
		return &Problem{Text: "not UTF-8 text"}
	}
	var s scan
	s.line, s.column = 1, 1
	for i := 0; i < len(text); {
		n := s.token(text[i:])
		if problem := s.over(); problem != "" {
			return &Problem{Line: s.line, Column: s.column, Text: problem}
		}
		s.move(text[i : i+n])
		i += n
	}
	return nil
}

// scan counts within one rule.
type scan struct {
	line, column                      int
	depth, tokens, signs, ifs, chains int
}

// token counts the token, comment or space that text begins with, and returns its length.
func (s *scan) token(text []byte) int {
	c := text[0]
	switch {
	case c == ' ' || c == '\t' || c == '\r' || c == '\n':
		return 1
	case c == '/' && len(text) > 1 && text[1] == '/':
		for i, c := range text {
			if c == '\n' {
				return i
			}
		}
		return len(text)
	}
	s.tokens++
	if c != '!' && c != '-' {
		s.signs = 0
	}
	switch {
	case c == '"':
		s.chains = 0
		for i := 1; i < len(text); i++ {
			switch text[i] {
			case '\\':
				i++
			case '"':
				return i + 1
			}
		}
		return len(text)
	case word(c):
		i := 1
		for i < len(text) && word(text[i]) {
			i++
		}
		switch string(text[:i]) {
		case "if":
			s.ifs, s.chains = s.ifs+1, 0
		case "then", "else", "in", "is", "like", "when", "unless":
			s.chains = 0
		}
		return i
	case c == '.':
		s.chains++
		return 1
	case c == '[':
		// An index continues a chain; a set begins none. Both nest.
		s.chains++
		s.depth++
		return 1
	case c == ']':
		s.depth--
		return 1
	}
	switch c {
	case '(', '{':
		s.depth++
	case ')', '}':
		s.depth--
	case '!', '-':
		s.signs++
	case ';':
		s.depth, s.tokens, s.ifs = 0, 0, 0
	}
	s.chains = 0
	return 1
}

func (s *scan) over() string {
	switch {
	case s.depth > maxNesting:
		return fmt.Sprintf("nested deeper than %d levels", maxNesting)
	case s.tokens > maxTokens:
		return fmt.Sprintf("a rule of more than %d words and signs", maxTokens)
	case s.signs > maxSigns:
		return fmt.Sprintf("more than %d signs in a row", maxSigns)
	case s.ifs > maxIfs:
		return fmt.Sprintf(`more than %d times "if" in a rule`, maxIfs)
	case s.chains > maxChain:
		return fmt.Sprintf("a chain of more than %d names", maxChain)
	}
	return ""
}

// move counts lines, and columns in characters.
func (s *scan) move(text []byte) {
	for _, c := range text {
		switch {
		case c == '\n':
			s.line, s.column = s.line+1, 1
		case utf8.RuneStart(c):
			s.column++
		}
	}
}

func word(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c >= utf8.RuneSelf
}
