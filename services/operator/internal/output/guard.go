package output

import "strings"

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// before is what stands before what goes on of a line with that indent.
func before(indent int) string { return strings.Repeat(" ", indent) + gutter }
