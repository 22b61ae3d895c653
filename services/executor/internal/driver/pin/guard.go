package pin

import "slices"

// held returns the files that are part of a definition. A drill shows what happens without them.
func held(files []File) []File {
	return slices.DeleteFunc(slices.Clone(files), func(f File) bool { return f.why != "" })
}
