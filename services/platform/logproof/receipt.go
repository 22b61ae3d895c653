package logproof

import (
	"errors"
	"fmt"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
)

// MetaReceipt is the key of a reply's _meta under which the receipt of what the call did stands.
const MetaReceipt = "durward/receipt"

// Receipt is a receipt as people and clients keep it: JSON with hashes in base64 and the checkpoint as the signed note that it is.
// With the log's public key it can be verified years later, without Durward.
type Receipt struct {
	Index      uint64   `json:"index"`
	LeafHash   []byte   `json:"leaf_hash"`
	Inclusion  [][]byte `json:"inclusion"`
	Checkpoint string   `json:"checkpoint"`
}

// ErrReceipt means that a text is no receipt, or that another text would read the same.
var ErrReceipt = errors.New("this is not a receipt")

// NewReceipt returns a receipt in its JSON form.
func NewReceipt(r *callv1.Receipt) Receipt {
	out := Receipt{Index: r.GetIndex(), LeafHash: r.GetLeafHash(), Inclusion: r.GetInclusion(), Checkpoint: string(r.GetCheckpoint())}
	if out.Inclusion == nil {
		out.Inclusion = [][]byte{} // the only record of a log needs no path
	}
	return out
}

// ParseReceipt reads the JSON of a Receipt. White space and the order of the members do not matter; everything else has one spelling.
func ParseReceipt(raw []byte) (*callv1.Receipt, error) {
	form, err := canonical.Transform(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReceipt, err)
	}
	var r Receipt
	if err := canonical.Unmarshal(form, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReceipt, err)
	}
	return &callv1.Receipt{Index: r.Index, LeafHash: r.LeafHash, Inclusion: r.Inclusion, Checkpoint: []byte(r.Checkpoint)}, nil
}
