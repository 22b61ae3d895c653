package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/protobuf/encoding/protojson"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/logproof"
)

// Proved is a receipt that holds.
type Proved struct {
	Receipt    *callv1.Receipt
	Checkpoint logproof.Checkpoint
	// SignedBy is the log key, as NAME+HASH.
	SignedBy string
	// Witnessed is the checkpoint with a quorum's cosignatures; zero for one without.
	Witnessed logproof.Witnessed
	// Entry is the record itself, proved too; nil for a receipt that comes without it.
	Entry *auditv1.Entry
}

// ProveReceipt proves the receipt in a file, offline, with the log's keys and the witnesses whose word the caller takes; a receipt that
// fewer than a quorum of them cosigned proves what the log's own signature does. The file is one of: the receipt alone; a tool's result or a JSON-RPC answer with
// the receipt in _meta; what the operator's commands write with --json; and a record with its receipt, as "audit show INDEX
// --json" writes it. Errors wrap logproof.ErrReceipt, ErrEntry, ErrInclusion, ErrSignature or ErrFormat.
func ProveReceipt(file []byte, keys []note.Verifier, witnesses logproof.Witnesses, now time.Time) (Proved, error) {
	receipt, entry, err := readReceipt(file)
	if err != nil {
		return Proved{}, err
	}
	at, err := logproof.VerifyReceipt(receipt, keys)
	if err != nil {
		return Proved{}, err
	}
	if entry != nil {
		if err := logproof.VerifyEntry(entry); err != nil {
			return Proved{}, fmt.Errorf("%w: %w", logproof.ErrEntry, err)
		}
		if entry.GetIndex() != receipt.GetIndex() || string(entry.GetLeafHash()) != string(receipt.GetLeafHash()) {
			return Proved{}, fmt.Errorf("%w: the receipt is another record's", logproof.ErrInclusion)
		}
	}
	by, err := signedBy(receipt.GetCheckpoint(), keys)
	if err != nil {
		return Proved{}, err
	}
	witnessed, err := witnesses.OpenWitnessed(receipt.GetCheckpoint(), keys, now)
	if err != nil && !errors.Is(err, logproof.ErrQuorum) {
		return Proved{}, err
	}
	return Proved{Receipt: receipt, Checkpoint: at, SignedBy: by, Witnessed: witnessed, Entry: entry}, nil
}

func readReceipt(file []byte) (*callv1.Receipt, *auditv1.Entry, error) {
	if err := canonical.Strict(file); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", logproof.ErrReceipt, err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(file, &members); err != nil || members == nil {
		return nil, nil, fmt.Errorf("%w: it is no JSON object", logproof.ErrReceipt)
	}
	if _, ok := members["entry"]; ok {
		var whole auditv1.GetRecordResponse
		file, err := contract.Names(whole.ProtoReflect().Descriptor(), file)
		if err == nil {
			err = protojson.Unmarshal(file, &whole)
		}
		if err != nil || whole.GetEntry() == nil || whole.GetReceipt() == nil {
			return nil, nil, fmt.Errorf("%w: it is no record with its receipt", logproof.ErrReceipt)
		}
		return whole.GetReceipt(), whole.GetEntry(), nil
	}
	raw, err := within(file, members)
	if err != nil {
		return nil, nil, err
	}
	receipt, err := logproof.ParseReceipt(raw)
	return receipt, nil, err
}

// within finds a receipt in what carries it: the file itself, unless it has a member that says otherwise.
func within(file json.RawMessage, members map[string]json.RawMessage) (json.RawMessage, error) {
	if receipt, ok := members["receipt"]; ok {
		return receipt, nil
	}
	meta, carried := members["_meta"]
	if result, ok := members["result"]; ok && !carried {
		var inner struct {
			Meta json.RawMessage `json:"_meta"`
		}
		if err := json.Unmarshal(result, &inner); err != nil {
			return nil, fmt.Errorf("%w: its result is no JSON object", logproof.ErrReceipt)
		}
		meta, carried = inner.Meta, true
	}
	if !carried {
		return file, nil
	}
	var keyed map[string]json.RawMessage
	if err := json.Unmarshal(meta, &keyed); err != nil || keyed[logproof.MetaReceipt] == nil {
		return nil, fmt.Errorf("%w: its _meta carries no %q: nothing was recorded under it", logproof.ErrReceipt, logproof.MetaReceipt)
	}
	return keyed[logproof.MetaReceipt], nil
}
