// Package importer turns what people run already into a proposal for the catalog: gpumod's presets and modes, llama-swap's
// configuration, the GPU services of Compose files.
//
// It runs in the operator's process, on files that strangers may have written, and trusts none of them: every file is bounded
// before and while it is decoded, macros and aliases cannot grow, nothing is run, no variable of the environment is read, and no
// secret is copied. What cannot be brought safely is left out by name, with the reason. The proposal is a whole catalog file
// which stands beside the present one; it decides nothing, a human reads it and puts it in its place, and package catalog judges
// every entry of it as it will judge it there.
package importer

// Given is what a human says beside the files.
type Given struct {
	// RunAs is the user that programs run as, "" for none.
	RunAs string
	// ContainerUser is whom containers run as that name nobody or root, UID or UID:GID.
	ContainerUser string
	// Variables stand for what files name and do not hold: ${env.X}, $X, ${X}. The environment is never read.
	Variables map[string]string
	// Find looks for a program of this host by its bare name; nil: none is looked for.
	Find func(name string) error
}
