package signedchange

import (
	"fmt"
	"strings"
)

const (
	// around is how many lines that stay are shown about each difference.
	around = 3
	// maxCells bounds the work of comparing; beyond it the files' differing middles are shown as one exchange.
	maxCells = 4 << 20
)

// Diff is the difference of two texts line by line: lines begin with " ", "-" or "+", and before each group stands its place,
// " @ 12" for line 12 of what was. A last line without an end is marked. What is nil has no lines.
func Diff(before, after []byte) []string {
	a, b := lines(before), lines(after)
	ops := compare(a, b)
	out := []string{}
	for i := 0; i < len(ops); {
		if ops[i].mark == ' ' {
			i++
			continue
		}
		from := max(0, i-around)
		to, quiet := i, 0
		for to < len(ops) && quiet <= 2*around {
			if ops[to].mark == ' ' {
				quiet++
			} else {
				quiet = 0
			}
			to++
		}
		end := to - max(0, quiet-around)
		out = append(out, fmt.Sprintf(" @ %d", ops[from].line))
		for _, op := range ops[from:end] {
			out = append(out, string(op.mark)+op.text)
		}
		i = end
	}
	return out
}

// op is one line of a comparison; line is where it stands, or would stand, in what was.
type op struct {
	mark byte
	text string
	line int
}

// compare is a longest common subsequence over the lines that differ in the middle.
func compare(a, b []string) []op {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	var out []op
	for i := range head {
		out = append(out, op{' ', a[i], i + 1})
	}
	x, y := a[head:len(a)-tail], b[head:len(b)-tail]
	out = append(out, middle(x, y, head+1)...)
	for i := len(a) - tail; i < len(a); i++ {
		out = append(out, op{' ', a[i], i + 1})
	}
	return out
}

func middle(x, y []string, line int) []op {
	var out []op
	i, j := 0, 0
	if (len(x)+1)*(len(y)+1) <= maxCells {
		common := make([][]int32, len(x)+1)
		for i := range common {
			common[i] = make([]int32, len(y)+1)
		}
		for i := len(x) - 1; i >= 0; i-- {
			for j := len(y) - 1; j >= 0; j-- {
				if x[i] == y[j] {
					common[i][j] = common[i+1][j+1] + 1
				} else {
					common[i][j] = max(common[i+1][j], common[i][j+1])
				}
			}
		}
		for i < len(x) && j < len(y) {
			switch {
			case x[i] == y[j]:
				out = append(out, op{' ', x[i], line + i})
				i, j = i+1, j+1
			case common[i+1][j] >= common[i][j+1]:
				out = append(out, op{'-', x[i], line + i})
				i++
			default:
				out = append(out, op{'+', y[j], line + i})
				j++
			}
		}
	}
	for ; i < len(x); i++ {
		out = append(out, op{'-', x[i], line + i})
	}
	for ; j < len(y); j++ {
		out = append(out, op{'+', y[j], line + i})
	}
	return out
}

// lines splits a text; a last line without an end says so, since that is a difference too.
func lines(data []byte) []string {
	if len(data) == 0 {
		return nil
	}
	text, ended := strings.CutSuffix(string(data), "\n")
	out := strings.Split(text, "\n")
	if !ended {
		out[len(out)-1] += " (no end of line)"
	}
	return out
}
