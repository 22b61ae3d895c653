package bridge

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/proof"
)

// Members of _meta that client and gateway agree on.
const (
	metaProof   = "durward/proof"
	metaSession = "durward/session"
	metaNeeded  = "durward/proof_needed"
)

// Names of the purposes in _meta["durward/proof_needed"].
const (
	needOpen  = "open"
	needRenew = "renew"
	needCall  = "call"
)

// Permits live 60 s, and the gateway renews one that has less than 15 s left with the proof of the request at hand. From
// the 40th second on reads carry one; after the 46th it was certainly used.
const (
	renewFrom = 40 * time.Second
	renewed   = 46 * time.Second
)

// prover signs what the client asks for. Without a key it signs nothing. It is safe for concurrent use.
type prover struct {
	client string
	key    ed25519.PrivateKey
	now    func() time.Time

	mu      sync.Mutex
	session string
	counter uint64
	// permits is when the session's permits were probably issued.
	permits time.Time
}

func newProver(client string, key ed25519.PrivateKey, now func() time.Time) *prover {
	return &prover{client: client, key: key, now: now}
}

// open signs an opening and puts it into an initialize message.
func (p *prover) open(line []byte) ([]byte, error) {
	if p.key == nil {
		return line, nil
	}
	signed, err := p.opening()
	if err != nil {
		return nil, err
	}
	return withProof(line, signed)
}

func (p *prover) opening() (*callv1.Proof, error) {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return proof.Sign(p.key, proof.Claim{
		Purpose: callv1.Proof_PURPOSE_OPEN, Client: p.client, Time: p.now().Unix(),
		// Random, never 0, and small enough for any JSON number.
		Counter: binary.BigEndian.Uint64(b[:])>>12 | 1,
	})
}

// opened takes up a session from _meta.
func (p *prover) opened(meta json.RawMessage) {
	var m struct {
		Session string `json:"durward/session"`
	}
	if json.Unmarshal(meta, &m) != nil || m.Session == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session != m.Session {
		p.session, p.counter, p.permits = m.Session, 0, p.now()
	}
}

// answer takes up what an answer's _meta says, and returns which proof the request lacked, or "".
func (p *prover) answer(payload []byte) (needed string) {
	var reply struct {
		Result struct {
			Meta json.RawMessage `json:"_meta"`
		} `json:"result"`
	}
	if p.key == nil || json.Unmarshal(payload, &reply) != nil || len(reply.Result.Meta) == 0 {
		return ""
	}
	p.opened(reply.Result.Meta)
	var m map[string]json.RawMessage
	if json.Unmarshal(reply.Result.Meta, &m) != nil || json.Unmarshal(m[metaNeeded], &needed) != nil {
		return ""
	}
	switch needed {
	case needOpen, needRenew, needCall:
		return needed
	default:
		return ""
	}
}

// request signs a request as it needs: a call of a tool that changes something always, a read now and then, anything when
// an answer asked for it.
func (p *prover) request(line []byte, m message, needed string) ([]byte, error) {
	if p.key == nil {
		return line, nil
	}
	if m.Method != "tools/call" {
		if needed == "" {
			return withoutProof(line, m)
		}
	}
	var params struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if json.Unmarshal(m.Params, &params) != nil {
		return withoutProof(line, m) // the gateway says what is wrong with it
	}
	tool, known := contract.Lookup(params.Name)
	if needed == "" {
		switch {
		case !known:
		case tool.Tier != optionsv1.Tier_TIER_READ:
			needed = needCall
		case p.renewalDue():
			needed = needRenew
		}
	}
	var signed *callv1.Proof
	var err error
	switch needed {
	case needOpen:
		signed, err = p.opening()
	case needRenew:
		signed, err = p.sign(proof.Claim{Purpose: callv1.Proof_PURPOSE_RENEW})
	case needCall:
		var digest []byte
		if digest, err = argumentsDigest(tool, params.Arguments); err != nil {
			return withoutProof(line, m) // invalid arguments: the gateway says what is wrong with them
		}
		signed, err = p.sign(proof.Claim{Purpose: callv1.Proof_PURPOSE_CALL, Tool: tool.Name, ArgumentsDigest: digest})
	default:
		return withoutProof(line, m)
	}
	if err != nil {
		return nil, fmt.Errorf("sign the request: %w", err)
	}
	return withProof(line, signed)
}

// renewalDue reports whether the session's permits are about to end.
func (p *prover) renewalDue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	age := p.now().Sub(p.permits)
	if age < renewFrom {
		return false
	}
	if age >= renewed {
		p.permits = p.now()
	}
	return true
}

func (p *prover) sign(c proof.Claim) (*callv1.Proof, error) {
	p.mu.Lock()
	p.counter++
	c.Client, c.Session, c.Counter = p.client, p.session, p.counter
	p.mu.Unlock()
	return proof.Sign(p.key, c)
}

// argReason is the argument in which an agent says what it wants; it is not part of what is decided on.
const argReason = "reason"

// argumentsDigest is SHA-256 of the arguments' RFC 8785 form, as the vault computes it.
func argumentsDigest(tool contract.Tool, raw json.RawMessage) ([]byte, error) {
	arguments := map[string]json.RawMessage{}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &arguments); err != nil {
			return nil, fmt.Errorf("arguments: %w", err)
		}
	}
	delete(arguments, argReason)
	rest, err := json.Marshal(arguments)
	if err != nil {
		return nil, fmt.Errorf("arguments: %w", err)
	}
	decoded, err := tool.Decode(rest)
	if err != nil {
		return nil, err
	}
	canonical, err := contract.Canonical(decoded)
	if err != nil {
		return nil, err
	}
	digest := contract.Digest(canonical)
	return digest[:], nil
}

// withProof puts a proof into a message's params._meta, and withoutProof takes away one that the client made up.
func withProof(line []byte, signed *callv1.Proof) ([]byte, error) {
	raw, err := protojson.Marshal(signed)
	if err != nil {
		return nil, fmt.Errorf("encode the proof: %w", err)
	}
	return setMeta(line, raw)
}

func withoutProof(line []byte, m message) ([]byte, error) {
	var params struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	if json.Unmarshal(m.Params, &params) != nil || params.Meta[metaProof] == nil {
		return line, nil
	}
	return setMeta(line, nil)
}

// setMeta sets params._meta["durward/proof"], or removes it when value is nil. Everything else keeps its bytes.
func setMeta(line []byte, value json.RawMessage) ([]byte, error) {
	var m, params, meta map[string]json.RawMessage
	if err := json.Unmarshal(line, &m); err != nil {
		return nil, fmt.Errorf("message: %w", err)
	}
	for _, part := range []struct {
		raw  json.RawMessage
		into *map[string]json.RawMessage
	}{{m["params"], &params}, {nil, &meta}} {
		raw := part.raw
		if part.into == &meta {
			raw = params["_meta"]
		}
		if len(raw) > 0 {
			if err := json.Unmarshal(raw, part.into); err != nil {
				return nil, fmt.Errorf("the message's params are not an object")
			}
		}
		if *part.into == nil {
			*part.into = map[string]json.RawMessage{}
		}
	}
	delete(meta, metaProof)
	if value != nil {
		meta[metaProof] = value
	}
	var err error
	if params["_meta"], err = json.Marshal(meta); err != nil {
		return nil, fmt.Errorf("message: %w", err)
	}
	if m["params"], err = json.Marshal(params); err != nil {
		return nil, fmt.Errorf("message: %w", err)
	}
	return json.Marshal(m)
}
