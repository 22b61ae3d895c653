// Package backup is how parts of a backup look to who carries them: a line in the clear, and behind it what only the holders of a key read;
// and how what belongs to one is handed to the program that puts it back. The programs that keep state and the operator's program link it.
package backup

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"filippo.io/age"
)

// Format begins every part.
const Format = "durward-backup-part/1"

// EpochJump is by how much a restored epoch is above every one that was found: as much as anybody but a human's statement may raise it
// at once, and more halts than there were since.
const EpochJump = 1_000_000

// Reason is why a restored process is halted.
const Reason = "a backup was restored"

// MaxLine bounds a line of what is in the clear.
const MaxLine = 64 << 10

// Head is what a part says in the clear.
type Head struct {
	Format  string `json:"format"`
	Service string `json:"service"`
	Version string `json:"version"`
	// Epoch is the copied state's; absent where it has none.
	Epoch uint64 `json:"epoch,omitempty"`
	// Origin, Size and Root (hex) are the copied log's.
	Origin string `json:"origin,omitempty"`
	Size   uint64 `json:"size,omitempty"`
	Root   string `json:"root,omitempty"`
}

// ReadHead reads a part's first line.
func ReadHead(in *bufio.Reader) (Head, error) {
	var h Head
	line, err := in.ReadSlice('\n')
	if err != nil || json.Unmarshal(line, &h) != nil || h.Format != Format {
		return Head{}, errors.New("it is no part of a backup, or one that this version does not know")
	}
	return h, nil
}

// Decrypt reads what follows a part's first line.
func Decrypt(in *bufio.Reader, identities []age.Identity) (io.Reader, error) {
	opened, err := age.Decrypt(in, identities...)
	if err != nil {
		return nil, errors.New("the identity does not open this backup: it was encrypted to other recipients")
	}
	return opened, nil
}

// Given is what comes before a part that is to be restored.
type Given struct {
	Identities []age.Identity
	// Statement and Signature are what a human signed.
	Statement, Signature []byte
	// Judge: the part is unpacked and verified as if it were restored, and changes nothing.
	Judge bool
	// At is when the restore began: unpacking may take longer than a statement lasts.
	At time.Time
}

// Words of the lines before a part.
const (
	wordIdentity  = "identity"
	wordStatement = "statement"
	wordSignature = "signature"
	wordJudge     = "judge"
)

// Judge comes before a Preface whose part is to be judged alone.
const Judge = wordJudge + " \n"

// Preface is what a program reads before the part that it restores: a word and its value on each line, and an empty one.
func Preface(identities []string, statement, signature []byte) string {
	var b strings.Builder
	for _, identity := range identities {
		fmt.Fprintf(&b, "%s %s\n", wordIdentity, identity)
	}
	if len(statement) > 0 {
		fmt.Fprintf(&b, "%s %s\n%s %s\n", wordStatement, base64.StdEncoding.EncodeToString(statement), wordSignature, base64.StdEncoding.EncodeToString(signature))
	}
	b.WriteByte('\n')
	return b.String()
}

// ReadGiven reads what Preface writes.
func ReadGiven(in *bufio.Reader) (g Given, err error) {
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return Given{}, errors.New("-restore reads from durward restore")
		}
		text := strings.TrimSuffix(string(line), "\n")
		if text == "" {
			return g, nil
		}
		word, value, _ := strings.Cut(text, " ")
		switch word {
		case wordIdentity:
			var identities []age.Identity
			if identities, err = age.ParseIdentities(strings.NewReader(value)); err == nil {
				g.Identities = append(g.Identities, identities...)
			}
		case wordStatement:
			g.Statement, err = base64.StdEncoding.DecodeString(value)
		case wordSignature:
			g.Signature, err = base64.StdEncoding.DecodeString(value)
		case wordJudge:
			g.Judge = true
		default:
			err = errors.New("-restore reads from durward restore")
		}
		if err != nil {
			return Given{}, err
		}
	}
}
