// Package security is the security configuration: the settings, the short cuts for tools and the policies that bind who calls
// what, in layers, as files of one folder that a human owns. The vault watches the folder; the operator's program reads it to
// show it and to try a change before it is made.
//
// Nothing here writes: the rules are changed by a human, in the files (CFG-1). A file that a human cannot vouch for, because the
// gateway's user owns it or may write it, is refused, and so is one that does not parse; what was last good stays in force,
// loudly. Nothing that an agent, a client or a process says is an input.
//
//	security.yaml  tools.yaml  domains.yaml  policy/*.cedar              the system's layer
//	users/USER/{security.yaml,tools.yaml,domains.yaml,policy/*.cedar}    a user's: it binds clients with that user in clients.yaml
//	projects.yaml  projects/<sha256>.yaml                                projects that a human trusted, by copies of their files
//
// Egress reads the files called domains.yaml too, where agents' tools may reach, and the domains that projects block.
package security

import (
	"strings"

	"durward.internal/services/platform/security/ownership"
)

// FourEyes is the setting by which a client's own user does not approve what it asks.
const FourEyes = "approvals.four_eyes"

// Names of layers, as settings and files tell where they come from.
const (
	LayerBuiltIn = "built-in"
	LayerSystem  = "system"
	LayerUser    = "user"
)

// Foreign is the Unix user, the gateway's, who may neither own nor write any of the configuration, nor a folder above it.
type Foreign = ownership.Foreign

// Effective is one setting as it binds, and where that comes from.
type Effective struct {
	// Name is dotted, "approvals.wait_s"; Value as the file writes it.
	Name, Value string
	// Layer is "built-in", "system", "user" or "project".
	Layer string
	// File and Line are where it stands; empty and 0 for what is built in.
	File string
	Line int
}

// File is one file of the configuration.
type File struct {
	// Name is below the folder, "users/alice/tools.yaml", or a name of Options.Also; with a slash at its end it is a folder.
	Name  string
	Layer string
	// Digest is "sha256:…" of what is in force of it; "" if nothing is.
	Digest string
	// Problem says why the file as it is now is not in force; "" if it is.
	Problem string
}

// String is the file's problem, with its name once.
func (f File) String() string {
	if strings.HasPrefix(f.Problem, f.Name) {
		return f.Problem
	}
	return f.Name + ": " + f.Problem
}

// Change is a file that is not what it was.
type Change struct {
	File, Layer string
	// Before and After are digests, "sha256:…", and "" for none. With a Problem, Before stays in force, and After is what was
	// refused, "" if it could not be read.
	Before, After string
	Problem       string
}
