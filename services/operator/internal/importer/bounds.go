package importer

import (
	"fmt"

	"durward.internal/services/operator/internal/importer/proposal"
)

// Bounds of one import. What is longer than the catalog takes is left out where it is read, before anything is made of it: in a
// file with aliases, a list of a hundred thousand texts can stand in every service.
const (
	maxArguments = 128
	maxVariables = 64
	maxMounts    = 32
	maxTmpfs     = 16
	// maxList is for everything else of an entry that is a list.
	maxList = 64
	// maxEntries bounds how many entries a file may have, whatever becomes of them.
	maxEntries = 4096
	// maxRead bounds the bytes of all texts that an import reads, aliases followed.
	maxRead = 8 << 20
)

var errRead = fmt.Errorf("with its aliases and variables the text is longer than %d MB", maxRead>>20)

// put puts variables into a text, as expand does, and counts what it reads. Over the bound there is nothing to read any more, and
// the import ends (spent).
func (b *builder) put(text string) string {
	if b.spent() != nil {
		return ""
	}
	out := expand(text, b.given.Variables)
	b.read += len(text) + len(out) + 16
	return out
}

// more counts an entry that is tried, and reports whether there may be another one.
func (b *builder) more() bool {
	b.tried++
	return b.tried <= proposal.MaxServices
}

// spent is the error of an import that has read more than it may.
func (b *builder) spent() error {
	if b.read > maxRead {
		return errRead
	}
	return nil
}
