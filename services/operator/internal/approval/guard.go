package approval

import "strings"

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// folded is text of somebody else's without the padding that would lay out a text of its own.
func folded(text string) string { return strings.Join(strings.Fields(text), " ") }
