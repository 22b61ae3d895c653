package importer

// Given is what a human says beside the files.
type Given struct {
	// RunAs is the user that programs run as, "" for none.
	RunAs string
	// ContainerUser is whom containers run as that name nobody or root, UID or UID:GID.
	ContainerUser string
	// Variables stand for what files name and do not hold: ${env.X}, $X, ${X}. The environment is never read.
	Variables map[string]string
}
