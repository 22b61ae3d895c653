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
// the 40th second on reads carry one; after the 46th a gateway that answers has used it.
const (
	renewFrom = 40 * time.Second
	usedFrom  = 46 * time.Second
)

// prover signs what the client asks for. Without a key it signs nothing. It is safe for concurrent use.
type prover struct {
	client string
	key    ed25519.PrivateKey
	now    func() time.Time

	mu      sync.Mutex
	session string
	counter uint64
	// permits is when the session's permits were issued, or earlier.
	permits time.Time
	// early: a renewal that was not due was signed since then, because an answer asked for it.
	early bool
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
		p.session, p.counter, p.permits, p.early = m.Session, 0, p.now(), false
	}
}

// answer takes up what an answer to the signed request says, and returns which proof the request lacked, or "".
func (p *prover) answer(payload []byte, to request) (needed string) {
	var reply struct {
		Result struct {
			Meta    json.RawMessage `json:"_meta"`
			IsError bool            `json:"isError"`
		} `json:"result"`
		Error json.RawMessage `json:"error"`
	}
	if p.key == nil || json.Unmarshal(payload, &reply) != nil {
		return ""
	}
	if len(reply.Error) == 0 && !reply.Result.IsError {
		p.renewed(to)
	}
	if len(reply.Result.Meta) == 0 {
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

// request is a client's request as it goes to the gateway.
type request struct {
	body []byte
	// session and renewal are set when it carries a renewal that a gateway that answers has used: for which session, and
	// when it was signed.
	session string
	renewal time.Time
}

// request signs a request as it needs: a call of a tool that changes something always, a read when a renewal is due, either
// as an answer asked for it, which the caller has checked with may.
func (p *prover) request(line []byte, m message, needed string) (request, error) {
	if p.key == nil {
		return request{body: line}, nil
	}
	if m.Method != methodCall {
		return unsigned(line, m)
	}
	var params struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if json.Unmarshal(m.Params, &params) != nil {
		return unsigned(line, m) // the gateway says what is wrong with it
	}
	tool, known := contract.Lookup(params.Name)
	demanded, age := needed != "", p.age()
	if !demanded {
		switch {
		case !known:
		case tool.Tier != optionsv1.Tier_TIER_READ:
			needed = needCall
		case age >= renewFrom:
			needed = needRenew
		}
	}
	out := request{}
	var signed *callv1.Proof
	var err error
	switch needed {
	case needOpen:
		signed, err = p.opening()
	case needRenew:
		claim := p.claim(callv1.Proof_PURPOSE_RENEW)
		if demanded || age >= usedFrom {
			out.session, out.renewal = claim.Session, time.Unix(claim.Time, 0)
		}
		signed, err = proof.Sign(p.key, claim)
	case needCall:
		var digest []byte
		if !known || tool.Tier == optionsv1.Tier_TIER_READ {
			return unsigned(line, m)
		}
		if digest, err = argumentsDigest(tool, params.Arguments); err != nil {
			return unsigned(line, m) // invalid arguments: the gateway says what is wrong with them
		}
		claim := p.claim(callv1.Proof_PURPOSE_CALL)
		claim.Tool, claim.ArgumentsDigest = tool.Name, digest
		signed, err = proof.Sign(p.key, claim)
	default:
		return unsigned(line, m)
	}
	if err != nil {
		return request{}, fmt.Errorf("sign the request: %w", err)
	}
	out.body, err = withProof(line, signed)
	return out, err
}

// may reports whether a proof that an answer asked for may be signed. An answer is the gateway's word, which nobody has to
// believe: a renewal is signed when it is due by this side's own clock, and once before, since a halt ends permits early.
func (p *prover) may(needed string) bool {
	if needed != needRenew || p.age() >= renewFrom {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.early {
		return false
	}
	p.early = true
	return true
}

// age is how old the session's permits are at most.
func (p *prover) age() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now().Sub(p.permits)
}

// renewed takes up that a renewal was used: the permits are no older than its signature.
func (p *prover) renewed(by request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if by.session != "" && by.session == p.session && by.renewal.After(p.permits) {
		p.permits, p.early = by.renewal, false
	}
}

// claim begins a claim about the session, with a counter of its own.
func (p *prover) claim(purpose callv1.Proof_Purpose) proof.Claim {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counter++
	return proof.Claim{Purpose: purpose, Client: p.client, Session: p.session, Counter: p.counter, Time: p.now().Unix()}
}

// untilNextSecond is how long to wait for an opening to be dated after everything that happened before now: a vault takes
// none from before its start, and proofs are dated in whole seconds.
func (p *prover) untilNextSecond() time.Duration {
	now := p.now()
	return now.Truncate(time.Second).Add(time.Second).Sub(now)
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

func unsigned(line []byte, m message) (request, error) {
	body, err := withoutProof(line, m)
	return request{body: body}, err
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
