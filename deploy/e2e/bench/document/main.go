// Command document writes the tables of a Markdown document from the result of one run of the benchmarks, as `make bench` leaves it in
// .cache/bench/result.json. A table stands between the lines "<!-- bench NAME -->" and "<!-- end -->"; the words around it are a
// human's and stay as they are.
//
//	document RESULT.json DOCUMENT.md
//
// It reads two files of the repository, and trusts both.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// A result is what one run measured.
type result struct {
	Tables []table `json:"tables"`
}

// A table has the same number of cells in each row as it has columns.
type table struct {
	Name    string     `json:"name"`
	Columns []string   `json:"columns"`
	Rows    [][]string `json:"rows"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "document:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("name a result and a document: document RESULT.json DOCUMENT.md")
	}
	measured, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	text, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	text, err = fill(text, measured)
	if err != nil {
		return err
	}
	return os.WriteFile(args[1], text, 0o644) // #nosec G306 -- a document
}

// place is a table's in a document, with the table's name.
var place = regexp.MustCompile(`(?ms)^<!-- bench ([a-z]+) -->\n.*?^<!-- end -->$`)

// fill returns the document with the result's tables in their places. A place without a table and a table without a place are errors.
func fill(document, measured []byte) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(measured))
	decoder.DisallowUnknownFields()
	var r result
	if err := decoder.Decode(&r); err != nil {
		return nil, fmt.Errorf("the result: %w", err)
	}
	tables := map[string]string{}
	for _, t := range r.Tables {
		text, err := t.markdown()
		if err != nil {
			return nil, err
		}
		tables[t.Name] = text
	}
	var missing []string
	filled := place.ReplaceAllFunc(document, func(found []byte) []byte {
		name := string(place.FindSubmatch(found)[1])
		text, ok := tables[name]
		if !ok {
			missing = append(missing, name)
			return found
		}
		delete(tables, name)
		return []byte("<!-- bench " + name + " -->\n" + text + "<!-- end -->")
	})
	if len(missing) > 0 {
		return nil, fmt.Errorf("the result has no table %s, which the document has a place for (or has it twice)", strings.Join(missing, ", "))
	}
	for name := range tables {
		return nil, fmt.Errorf("the document has no place for the result's table %q: write the lines <!-- bench %s --> and <!-- end --> into it", name, name)
	}
	return filled, nil
}

func (t *table) markdown() (string, error) {
	if len(t.Columns) == 0 {
		return "", fmt.Errorf("the table %q has no columns", t.Name)
	}
	var out strings.Builder
	line := func(cells []string) {
		out.WriteString("|")
		for _, cell := range cells {
			if cell != "" {
				out.WriteString(" " + strings.ReplaceAll(cell, "|", `\|`))
			}
			out.WriteString(" |")
		}
		out.WriteString("\n")
	}
	line(t.Columns)
	out.WriteString(strings.Repeat("|---", len(t.Columns)) + "|\n")
	for _, row := range t.Rows {
		if len(row) != len(t.Columns) {
			return "", fmt.Errorf("the table %q has %d columns, and a row of %d cells: %q", t.Name, len(t.Columns), len(row), row)
		}
		line(row)
	}
	return out.String(), nil
}
