package pin

import "slices"

// This file makes a negative control of deploy/e2e: an executor that holds a service to its program alone.

var programsAlone bool

// WeakenFiles holds a service to its program alone.
func WeakenFiles() { programsAlone = true }

func held(files []File) []File {
	return slices.DeleteFunc(slices.Clone(files), func(f File) bool { return programsAlone || f.why != "" })
}
