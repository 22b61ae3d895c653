package resource

import (
	"strings"

	"durward.internal/services/platform/clean"
)

// document is Markdown as it is written: short, for a model.
type document struct{ strings.Builder }

func (d *document) title(s string) { d.WriteString("# " + cell(s) + "\n") }

func (d *document) heading(s string) { d.WriteString("\n## " + s + "\n") }

// line writes a paragraph of our own.
func (d *document) line(s string) { d.WriteString("\n" + s + "\n") }

func (d *document) list(items []string) {
	d.WriteString("\n")
	for _, item := range items {
		d.WriteString("- " + item + "\n")
	}
}

// table writes rows, the first of which is the head. Cells are texts of elsewhere.
func (d *document) table(rows [][]string) {
	d.WriteString("\n")
	for i, row := range rows {
		for _, c := range row {
			d.WriteString("| " + cell(c) + " ")
		}
		d.WriteString("|\n")
		if i == 0 {
			d.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
}

// maxCell is the longest text of a cell, in characters.
const maxCell = 1000

// marks are what Markdown would take for a mark of its own.
var marks = strings.NewReplacer(`\`, `\\`, "|", `\|`, "`", "\\`", "<", `\<`, "[", `\[`)

// cell is a text of elsewhere as the text of a cell: it can neither end its cell nor begin a link or a tag.
func cell(s string) string { return marks.Replace(clean.Line(s, maxCell)) }
