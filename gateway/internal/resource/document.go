package resource

import (
	"strings"

	"durward.internal/services/platform/clean"
)

// document is Markdown as it is written: short, for a model.
type document struct{ text strings.Builder }

func (d *document) String() string { return d.text.String() }

// write appends texts. A strings.Builder never fails.
func (d *document) write(texts ...string) {
	for _, t := range texts {
		_, _ = d.text.WriteString(t)
	}
}

func (d *document) title(s string) { d.write("# ", cell(s), "\n") }

func (d *document) heading(s string) { d.write("\n## ", s, "\n") }

// line writes a paragraph of our own.
func (d *document) line(s string) { d.write("\n", s, "\n") }

func (d *document) list(items []string) {
	d.write("\n")
	for _, item := range items {
		d.write("- ", item, "\n")
	}
}

// table writes rows, the first of which is the head. Cells are texts of elsewhere.
func (d *document) table(rows [][]string) {
	d.write("\n")
	for i, row := range rows {
		for _, c := range row {
			d.write("| ", cell(c), " ")
		}
		d.write("|\n")
		if i == 0 {
			d.write(strings.Repeat("|---", len(row)), "|\n")
		}
	}
}

// maxCell is the longest text of a cell, in characters.
const maxCell = 1000

// marks are what Markdown would take for a mark of its own.
var marks = strings.NewReplacer(`\`, `\\`, "|", `\|`, "`", "\\`", "<", `\<`, "[", `\[`)

// cell is a text of elsewhere as the text of a cell: it can neither end its cell nor give a link another name,
// show a picture or begin a tag. A bare URL stays one.
func cell(s string) string { return marks.Replace(clean.Line(s, maxCell)) }
