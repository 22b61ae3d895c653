// Package weak holds files that take the place of those with the same path from the root of the repository, in the builds against which
// drills show that their attacks work; and tests of what a package is without its guard. deploy/e2e/programs puts them there.
package weak

import "embed"

// Files are they, in testdata: compiled in, so that Go's test cache takes what they hold as an input, and not the folder they lie in.
//
//go:embed testdata
var Files embed.FS
