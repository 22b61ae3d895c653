// Command credentials makes the list of public shapes of credentials from the rules that the gitleaks project publishes
// with its Go module, and writes it to standard output as JSON. scripts/credentials.sh calls it.
//
// Rules that are about a file's name are left out, since a text has none, and exceptions for single files and documents are:
// a text that looks like a credential is hidden, whatever it is.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/BurntSushi/toml"
)

// published is gitleaks.toml, as far as it is used.
type published struct {
	Allowlist exceptions `toml:"allowlist"`
	Rules     []struct {
		ID          string       `toml:"id"`
		Regex       string       `toml:"regex"`
		Path        string       `toml:"path"`
		Entropy     float64      `toml:"entropy"`
		SecretGroup int          `toml:"secretGroup"`
		Keywords    []string     `toml:"keywords"`
		Allowlists  []exceptions `toml:"allowlists"`
	} `toml:"rules"`
}

type exceptions struct {
	RegexTarget string   `toml:"regexTarget"`
	Regexes     []string `toml:"regexes"`
	StopWords   []string `toml:"stopwords"`
}

// list is what the vault reads.
type list struct {
	Source  string   `json:"source"`
	Licence string   `json:"licence"`
	Allow   []string `json:"allow"`
	Rules   []rule   `json:"rules"`
}

type rule struct {
	ID       string   `json:"id"`
	Keywords []string `json:"keywords"`
	Regex    string   `json:"regex"`
	Entropy  float64  `json:"entropy,omitempty"`
	Group    int      `json:"group,omitempty"`
	Allow    *allow   `json:"allow,omitempty"`
}

type allow struct {
	Value []string `json:"value,omitempty"`
	Match []string `json:"match,omitempty"`
	Line  []string `json:"line,omitempty"`
	Words []string `json:"words,omitempty"`
}

// ordinary is the one rule that finds any setting whose name sounds secret, and needs its exceptions.
const ordinary = "generic-api-key"

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: credentials gitleaks.toml VERSION")
		os.Exit(2)
	}
	var in published
	if _, err := toml.DecodeFile(os.Args[1], &in); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	out := list{
		Source: "gitleaks " + os.Args[2] + ", config/gitleaks.toml", Licence: "MIT, Copyright (c) 2019 Zachary Rice; see gitleaks.LICENCE",
		Allow: in.Allowlist.Regexes,
	}
	for _, r := range in.Rules {
		if r.Path != "" || r.Regex == "" {
			continue
		}
		made := rule{ID: r.ID, Keywords: r.Keywords, Regex: r.Regex, Entropy: r.Entropy, Group: r.SecretGroup}
		if r.ID == ordinary {
			made.Allow = &allow{}
			for _, e := range r.Allowlists {
				switch e.RegexTarget {
				case "match":
					made.Allow.Match = append(made.Allow.Match, e.Regexes...)
				case "line":
					made.Allow.Line = append(made.Allow.Line, e.Regexes...)
				default:
					made.Allow.Value = append(made.Allow.Value, e.Regexes...)
				}
				made.Allow.Words = append(made.Allow.Words, e.StopWords...)
			}
		}
		out.Rules = append(out.Rules, made)
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
