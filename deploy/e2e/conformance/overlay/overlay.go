// Package overlay holds what a gateway is compiled with that has what the official conformance suite looks for: files that take the place
// of those with the same path from the root of the repository, and files beside them. deploy/e2e/programs puts them there.
package overlay

import "embed"

// Files are they, in testdata.
//
//go:embed testdata
var Files embed.FS
