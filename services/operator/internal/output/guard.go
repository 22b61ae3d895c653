package output

import "strings"

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// gutter stands before what goes on of a line, at the line's own indent.
const gutter = "│ "

// before is what stands before what goes on of a line with that indent.
func before(indent int) string { return strings.Repeat(" ", indent) + gutter }
