// Package logproof holds the formats of the audit log and verifies what audit answers: leaves, body commitments, signed
// checkpoints, inclusion and consistency proofs, and a Keeper that remembers the newest checkpoint it has seen.
//
// It is linked by audit, which writes these formats, and by everybody who checks it: sinks, the vault, the operator's
// program. It trusts the log keys of the trust folder and its caller's own earlier checkpoint; it does not trust audit,
// which may be down, restored from an old copy, or hostile.
//
// # Formats
//
// A leaf is the RFC 8785 JSON of one object. These members are always there:
//
//	version          1
//	index            decimal string: the entry's place in the log, from 0
//	writer           the writer's SPIFFE ID
//	sequence         decimal string: the writer's own counter, from 1
//	kind             the enum's proto name, "KIND_INTENT"
//	time, logged_at  RFC 3339 in UTC with exactly nine fractional digits, "2026-01-02T03:04:05.000000006Z"
//	body_commitment  "sha256:" + 64 hex digits
//
// request_id, operation_id, tool, tier and status are left out when unset. 64-bit numbers are strings because RFC 8785
// numbers are doubles. The leaf's hash is RFC 6962's, SHA-256(0x00 + leaf).
//
// A body's commitment is SHA-256("durward.body.v1\0" + 32 bytes of salt + RFC 8785 of its protobuf JSON with proto names
// and unset fields left out); an absent body counts as an empty one, "{}".
//
// A checkpoint is a C2SP tlog-checkpoint without extension lines: origin, size and base64 root hash, a line each, in a
// signed note whose key is named like the origin (https://c2sp.org/tlog-checkpoint, https://c2sp.org/signed-note).
package logproof

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
)

// SaltSize is the length of a body's salt in bytes.
const SaltSize = 32

const (
	leafVersion = "1"
	bodyDomain  = "durward.body.v1\x00"
	// textSize is about what a leaf takes with its commitment and its hash, and a body.
	textSize = 640
)

// Reasons why an entry does not stand.
var (
	// ErrIncomplete means that an entry or answer lacks a part that a leaf needs.
	ErrIncomplete = errors.New("the log entry is incomplete")
	// ErrEntry means that an entry's parts do not belong together.
	ErrEntry = errors.New("the log entry does not match its leaf")
)

// Leaf builds the leaf's bytes from the entry's index, writer, logged_at, body_commitment and its record's header. It reads
// neither the body nor the entry's own leaf.
func Leaf(entry *auditv1.Entry) ([]byte, error) { return appendLeaf(make([]byte, 0, textSize), entry) }

// appendLeaf is Leaf behind what b holds.
func appendLeaf(b []byte, entry *auditv1.Entry) ([]byte, error) {
	r := entry.GetRecord()
	if entry.GetWriter() == "" || r.GetSequence() == 0 || r.GetKind() == auditv1.Kind_KIND_UNSPECIFIED ||
		len(entry.GetBodyCommitment()) != sha256.Size {
		return nil, ErrIncomplete
	}
	o := object{b: b}
	o.name("body_commitment")
	o.b = append(canonical.AppendDigest(append(o.b, '"'), entry.GetBodyCommitment()), '"')
	o.number("index", entry.GetIndex())
	o.enum("kind", auditv1.Kind_name, int32(r.GetKind()))
	o.time("logged_at", entry.GetLoggedAt())
	o.text("operation_id", r.GetOperationId())
	o.text("request_id", r.GetRequestId())
	o.number("sequence", r.GetSequence())
	if r.GetStatus() != auditv1.Status_STATUS_UNSPECIFIED {
		o.enum("status", auditv1.Status_name, int32(r.GetStatus()))
	}
	if r.GetTier() != optionsv1.Tier_TIER_UNSPECIFIED {
		o.enum("tier", optionsv1.Tier_name, int32(r.GetTier()))
	}
	o.time("time", r.GetTime())
	o.text("tool", r.GetTool())
	o.plain(true, "version", leafVersion)
	o.always("writer", entry.GetWriter())
	out, err := o.end()
	if err != nil {
		return nil, fmt.Errorf("leaf: %w", err)
	}
	return out, nil
}

// time writes a time with nine fractional digits. Only for the layout's first part has the library a way that does not read it anew.
func (o *object) time(name string, ts *timestamppb.Timestamp) {
	if err := ts.CheckValid(); err != nil { // nil is none either
		o.err = cmp.Or(o.err, fmt.Errorf("%w: %w", ErrIncomplete, err))
		return
	}
	o.name(name)
	o.b = ts.AsTime().AppendFormat(append(o.b, '"'), time.RFC3339)
	point := len(o.b) - len("Z")
	o.b = strconv.AppendInt(o.b[:point], 1_000_000_000+int64(ts.GetNanos()), 10)
	o.b[point] = '.' // in the place of the digit that keeps zeros
	o.b = append(o.b, 'Z', '"')
}

// LeafHash is the leaf's hash in the tree.
func LeafHash(leaf []byte) [32]byte { return tlog.RecordHash(leaf) }

// BodyCommitment hides body behind salt, which must be SaltSize random bytes; nil counts as an empty body.
func BodyCommitment(salt []byte, body *auditv1.Body) ([32]byte, error) {
	text, err := appendCommitted(make([]byte, 0, textSize), body)
	if err != nil {
		return [32]byte{}, err
	}
	return commit(text, salt)
}

// appendCommitted appends what a body's commitment is the digest of, with room for the salt.
func appendCommitted(b []byte, body *auditv1.Body) ([]byte, error) {
	at := len(b)
	b = append(append(b, bodyDomain...), make([]byte, SaltSize)...)
	b, err := appendBody(b, body)
	if err == nil && len(b)-at > len(bodyDomain)+SaltSize+canonical.MaxBytes {
		err = canonical.ErrTooLarge
	}
	if err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	return b, nil
}

// commit puts the salt into what appendCommitted wrote, and returns its digest.
func commit(text, salt []byte) ([32]byte, error) {
	if len(salt) != SaltSize {
		return [32]byte{}, fmt.Errorf("%w: the salt is not %d bytes", ErrIncomplete, SaltSize)
	}
	copy(text[len(bodyDomain):], salt)
	return sha256.Sum256(text), nil
}

// Seal fills the entry's body_commitment, leaf and leaf_hash from its other fields.
func Seal(entry *auditv1.Entry) error {
	b, hash, err := seal(make([]byte, 0, textSize), entry, nil)
	if err == nil {
		entry.LeafHash = append(b, hash[:]...)[len(b):]
	}
	return err
}

// SealHashes fills the entry's body_commitment and leaf_hash from its other fields, and leaves out its leaf. It works in what b has room
// for, and returns that for the next entry.
func SealHashes(b []byte, entry *auditv1.Entry) ([]byte, error) {
	b, hash, err := seal(b[:0], entry, nil)
	if err != nil {
		return b, err
	}
	both := append(append(make([]byte, 0, 2*sha256.Size), entry.BodyCommitment...), hash[:]...)
	entry.BodyCommitment, entry.LeafHash, entry.Leaf = both[:sha256.Size:sha256.Size], both[sha256.Size:], nil
	return b, nil
}

// seal fills the entry's body_commitment and leaf, both of which it writes behind what b holds, and returns the leaf's hash. text is what
// appendCommitted wrote of the entry's body, if somebody called it.
func seal(b []byte, entry *auditv1.Entry, text []byte) (_ []byte, hash [32]byte, err error) {
	if text == nil {
		if text, err = appendCommitted(b, entry.GetRecord().GetBody()); err != nil {
			return b, hash, err
		}
		// The commitment takes its place.
		b, text = text[:len(b)], text[len(b):]
	}
	commitment, err := commit(text, entry.GetSalt())
	if err != nil {
		return b, hash, err
	}
	at := len(b)
	b = append(b, commitment[:]...)
	entry.BodyCommitment = b[at:len(b):len(b)]
	at = len(b)
	leaf, err := appendLeaf(b, entry)
	if err != nil {
		return b, hash, err
	}
	entry.Leaf = leaf[at:len(leaf):len(leaf)]
	return leaf, LeafHash(entry.Leaf), nil
}

// BodyMissing reports whether an entry comes without its body, of which the log holds the commitment alone. A record that never
// said anything has an empty body, and its salt.
func BodyMissing(entry *auditv1.Entry) bool { return len(entry.GetSalt()) == 0 }

// VerifyEntry checks that an entry's parts belong together: header and leaf, leaf and hash, and, unless it is BodyMissing, body and
// commitment. That the entry is in the log is for a proof to show.
func VerifyEntry(entry *auditv1.Entry) error {
	_, err := verifyEntry(entry)
	return err
}

// verifyEntry is VerifyEntry and returns the leaf's hash.
func verifyEntry(entry *auditv1.Entry) (hash [32]byte, err error) {
	if BodyMissing(entry) {
		if entry.GetRecord().GetBody() != nil {
			return hash, fmt.Errorf("%w: a body without its salt", ErrEntry)
		}
	} else {
		commitment, err := BodyCommitment(entry.GetSalt(), entry.GetRecord().GetBody())
		if err != nil {
			return hash, err
		}
		if !bytes.Equal(commitment[:], entry.GetBodyCommitment()) {
			return hash, fmt.Errorf("%w: the body is not what was committed to", ErrEntry)
		}
	}
	want, err := Leaf(entry)
	if err != nil {
		return hash, err
	}
	if !bytes.Equal(want, entry.GetLeaf()) {
		return hash, fmt.Errorf("%w: the header is not the leaf's", ErrEntry)
	}
	if hash = LeafHash(want); !bytes.Equal(hash[:], entry.GetLeafHash()) {
		return hash, fmt.Errorf("%w: the hash is not the leaf's", ErrEntry)
	}
	return hash, nil
}
