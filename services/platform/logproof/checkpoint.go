package logproof

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// maxCheckpoint bounds a signed checkpoint: three lines and a handful of signatures.
const maxCheckpoint = 16 << 10

// Checkpoint is the head of a log: how many entries it holds and the root of their Merkle tree.
type Checkpoint struct {
	Origin string
	Size   uint64
	Root   [32]byte
}

// IsZero reports whether c is no checkpoint at all.
func (c Checkpoint) IsZero() bool { return c == Checkpoint{} }

// Text is the signed part.
func (c Checkpoint) Text() string {
	return c.Origin + "\n" + strconv.FormatUint(c.Size, 10) + "\n" + base64.StdEncoding.EncodeToString(c.Root[:]) + "\n"
}

// Reasons to refuse a checkpoint.
var (
	// ErrSignature means that no trusted key of that log signed it.
	ErrSignature = errors.New("the checkpoint is not signed by a trusted log key")
	// ErrFormat means that it is not a checkpoint, or that another text would read the same.
	ErrFormat = errors.New("the checkpoint is malformed")
	// ErrOrigin means that it is another log's.
	ErrOrigin = errors.New("the checkpoint is another log's")
)

// Origin names the log of an audit identity: "spiffe://durward.local/audit/main" keeps the log "durward.local/audit/main".
func Origin(identity string) string { return strings.TrimPrefix(identity, "spiffe://") }

// SignCheckpoint returns the signed note. The signer must be named like the origin, or nobody would accept it.
func SignCheckpoint(c Checkpoint, signer note.Signer) ([]byte, error) {
	return sign("", c, signer)
}

// sign signs the checkpoint below a header, which may be empty.
func sign(header string, c Checkpoint, signer note.Signer) ([]byte, error) {
	if signer.Name() != c.Origin {
		return nil, fmt.Errorf("the log key is named %q, the log %q", signer.Name(), c.Origin)
	}
	if _, err := parseCheckpoint(c.Text()); err != nil {
		return nil, err
	}
	return note.Sign(&note.Note{Text: header + c.Text()}, signer)
}

// OpenCheckpoint returns the checkpoint if a key among keys that is named like its origin signed it. Signatures by other
// keys (witnesses) are allowed and ignored.
func OpenCheckpoint(b []byte, keys []note.Verifier) (Checkpoint, error) {
	if len(b) > maxCheckpoint {
		return Checkpoint{}, ErrFormat
	}
	n, err := note.Open(b, note.VerifierList(keys...))
	if err != nil {
		_, unverified := errors.AsType[*note.UnverifiedNoteError](err)
		if _, invalid := errors.AsType[*note.InvalidSignatureError](err); unverified || invalid {
			return Checkpoint{}, fmt.Errorf("%w: %w", ErrSignature, err)
		}
		return Checkpoint{}, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return signedByOrigin(n.Text, n.Sigs)
}

// signedByOrigin reads a checkpoint's text, of which sigs were verified: one of them must be its origin's.
func signedByOrigin(text string, sigs []note.Signature) (Checkpoint, error) {
	c, err := parseCheckpoint(text)
	if err != nil {
		return Checkpoint{}, err
	}
	if !slices.ContainsFunc(sigs, func(sig note.Signature) bool { return sig.Name == c.Origin }) {
		return Checkpoint{}, ErrSignature
	}
	return c, nil
}

// ReadCheckpoint reads a checkpoint that the caller signed, or whose signatures it has verified: it verifies none.
func ReadCheckpoint(signed []byte) (Checkpoint, error) {
	text, _, found := strings.Cut(string(signed), "\n\n")
	if !found || len(signed) > maxCheckpoint {
		return Checkpoint{}, ErrFormat
	}
	return parseCheckpoint(text + "\n")
}

// parseCheckpoint accepts exactly what Text writes.
func parseCheckpoint(text string) (Checkpoint, error) {
	lines := strings.Split(text, "\n")
	if len(lines) != 4 || lines[0] == "" {
		return Checkpoint{}, ErrFormat
	}
	size, err := strconv.ParseUint(lines[1], 10, 64)
	if err != nil || size > math.MaxInt64 {
		return Checkpoint{}, ErrFormat
	}
	root, err := tlog.ParseHash(lines[2])
	if err != nil {
		return Checkpoint{}, ErrFormat
	}
	c := Checkpoint{Origin: lines[0], Size: size, Root: root}
	if c.Text() != text {
		return Checkpoint{}, ErrFormat
	}
	return c, nil
}

// What a human agreed to stands in the records of those who verified it. Audit refuses it in any other record, and whoever
// reads the log believes it in no other: a process that may write may not thereby speak of a human.

// CarriesStatement reports whether a role's records of that kind carry what a human signed.
func CarriesStatement(role optionsv1.Role, kind auditv1.Kind) bool {
	switch role {
	case optionsv1.Role_ROLE_VAULT:
		return kind == auditv1.Kind_KIND_APPROVED || kind == auditv1.Kind_KIND_RESUMED ||
			kind == auditv1.Kind_KIND_STANDING_GRANTED || kind == auditv1.Kind_KIND_CONFIG_ADOPTED || kind == auditv1.Kind_KIND_CREDENTIAL_CHANGED
	case optionsv1.Role_ROLE_EXECUTOR, optionsv1.Role_ROLE_EGRESS:
		return kind == auditv1.Kind_KIND_INTENT || kind == auditv1.Kind_KIND_RESUMED
	case optionsv1.Role_ROLE_AUDIT:
		return kind == auditv1.Kind_KIND_PRUNED || kind == auditv1.Kind_KIND_HELD || kind == auditv1.Kind_KIND_RELEASED ||
			kind == auditv1.Kind_KIND_RESTORED
	default:
		return false
	}
}

// CarriesConsent reports whether a role's records of that kind say that a human confirmed a call, or let calls run without
// asking (the body's confirmed and dangerous).
func CarriesConsent(role optionsv1.Role, kind auditv1.Kind) bool {
	switch role {
	case optionsv1.Role_ROLE_VAULT:
		switch kind {
		case auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_REDEEMED, auditv1.Kind_KIND_RESUMED,
			auditv1.Kind_KIND_STANDING_GRANTED, auditv1.Kind_KIND_STANDING_ENDED, auditv1.Kind_KIND_CONFIG_ADOPTED,
			auditv1.Kind_KIND_CREDENTIAL_CHANGED,
			// What nobody came for says in whose name it would have run.
			auditv1.Kind_KIND_EXPIRED,
			// A redemption that was given up says what its grant was.
			auditv1.Kind_KIND_DENIED,
			// What asks and looks in dangerous mode says so, though nobody had to agree to it (DNG-1).
			auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_READ, auditv1.Kind_KIND_WITHDRAWN:
			return true
		default:
			return false
		}
	case optionsv1.Role_ROLE_EXECUTOR, optionsv1.Role_ROLE_EGRESS:
		// Every record about a call says what its grant was: none may be lost because a vault made a strange one.
		switch kind {
		case auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_READ, auditv1.Kind_KIND_SINK_REFUSED,
			auditv1.Kind_KIND_RECOVERED:
			return true
		default:
			return false
		}
	default:
		return false
	}
}
