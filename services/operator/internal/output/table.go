package output

import (
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// gap is what stands between columns.
const gap = 2

// Table writes rows under a header in aligned columns, two spaces apart. Where the terminal is narrower, cells go on below themselves,
// between words; a table that is too wide even so is written as a list of each row's cells. No word is broken. Where there is no terminal
// a row is a line.
func (p *Printer) Table(header []string, rows [][]string) {
	limit := 0
	if width, _, ok := p.Size(); ok && !p.Wide {
		limit = width
	}
	for _, line := range table(header, rows, limit, p.Dim) {
		p.Printf("%s\n", line)
	}
}

// table lays a table out within so many columns; 0: in any number.
func table(header []string, rows [][]string, limit int, dim func(string) string) []string {
	widths, fits := columns(header, rows, limit)
	if !fits {
		return cards(header, rows, dim)
	}
	var out []string
	for i, row := range append([][]string{header}, rows...) {
		cells, height := make([][]string, len(row)), 0
		for j, cell := range row {
			cells[j] = []string{cell}
			if Columns(cell) > widths[j] {
				cells[j] = strings.Split(ansi.WordwrapWc(strings.TrimSpace(cell), widths[j], " "), "\n")
			}
			height = max(height, len(cells[j]))
		}
		for line := range height {
			var b strings.Builder
			for j := range row {
				cell := ""
				if line < len(cells[j]) {
					cell = strings.TrimRight(cells[j][line], " ")
				}
				if j < len(row)-1 {
					cell = Pad(cell, widths[j]+gap)
				}
				b.WriteString(cell)
			}
			text := strings.TrimRight(b.String(), " ")
			if i == 0 {
				text = dim(text)
			}
			out = append(out, text)
		}
	}
	return out
}

// columns are how wide each column is: as its widest cell, or narrower, but not than its longest word. fits is false where that is not
// enough.
func columns(header []string, rows [][]string, limit int) (widths []int, fits bool) {
	widths, least := make([]int, len(header)), make([]int, len(header))
	total := gap * (len(header) - 1)
	for j := range header {
		for _, row := range append([][]string{header}, rows...) {
			widths[j] = max(widths[j], Columns(row[j]))
			for _, word := range strings.Fields(row[j]) {
				least[j] = max(least[j], Columns(word))
			}
		}
		total += widths[j]
	}
	for limit > 0 && total > limit {
		widest := -1
		for j := range widths {
			if widths[j] > least[j] && (widest < 0 || widths[j] > widths[widest]) {
				widest = j
			}
		}
		if widest < 0 {
			return nil, false
		}
		widths[widest]--
		total--
	}
	return widths, true
}

// cards writes each row as names and cells.
func cards(header []string, rows [][]string, dim func(string) string) []string {
	longest := Columns(slices.MaxFunc(header, func(a, b string) int { return Columns(a) - Columns(b) }))
	var out []string
	for i, row := range rows {
		if i > 0 {
			out = append(out, "")
		}
		for j, cell := range row {
			if cell != "" {
				out = append(out, dim(Pad(header[j], longest+gap))+cell)
			}
		}
	}
	return out
}
