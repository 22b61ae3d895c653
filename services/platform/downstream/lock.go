package downstream

import (
	"encoding/json"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// Pinned is one server as a human accepted it: what is signed in servers.lock. Nothing that a server or egress says at run time is in
// force beside it.
type Pinned struct {
	Entry Entry
	// EntryDigest is SHA-256 of the entry's canonical form, and ProgramDigest of the program's bytes, or of the package's tree.
	EntryDigest, ProgramDigest [32]byte
	// Instructions are the server's own, cleaned.
	Instructions string
	Tools        []Tool
}

// Tool is a whole definition as it was cleaned, shown and signed.
type Tool struct {
	// Name is the server's own; the agent sees ID + Separator + Name.
	Name, Title, Description string
	// Input and Output are JSON Schemas in RFC 8785 form; Output may be empty.
	Input, Output json.RawMessage
	// Annotations are the server's hints. They are shown, and lower no tier.
	Annotations json.RawMessage
	Tier        optionsv1.Tier
	Roles       map[string]Role
}
