package bridge

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/proof"
)

// Members of _meta, and of an error's data, that client and gateway agree on.
const (
	metaProof    = "durward/proof"
	metaInstance = "durward/instance"
	metaAgent    = "durward/agent"
	metaSender   = "durward/sender"
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

// idleFrom is after how long without a request the session of a stateless client is taken to be gone: a gateway ends it after
// some time, and an opening that was not needed harms nothing.
const idleFrom = 10 * time.Minute

// prover signs what the client asks for, in one session at the vault. Without a key it signs nothing. It is safe for
// concurrent use.
type prover struct {
	client string
	keys   atomic.Pointer[ed25519.PrivateKey]
	now    func() time.Time
	// instance names this process in every request of the stateless era, whose first one opens the session at the vault; it is
	// empty in the era of sessions, which initialize opens.
	instance string

	mu      sync.Mutex
	session string
	// initial is in whose name initialize opened the session, in the era of sessions: in no other it is opened again.
	initial speaker
	// used is when a request was last signed, in the stateless era.
	used    time.Time
	counter uint64
	// permits is when the session's permits were issued, or earlier.
	permits time.Time
	// early: a renewal that was not due was signed since then, because an answer asked for it.
	early bool
}

func newProver(client string, key ed25519.PrivateKey, now func() time.Time, instance string) *prover {
	p := &prover{client: client, now: now, instance: instance}
	p.keys.Store(&key)
	return p
}

// key is the client's, or nil.
func (p *prover) key() ed25519.PrivateKey { return *p.keys.Load() }

// rekeyed takes a new key, with which the session has to be opened again.
func (p *prover) rekeyed(key ed25519.PrivateKey) {
	p.keys.Store(&key)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session, p.used = "", time.Time{}
}

// newInstance names a process: 32 hex digits.
func newInstance() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// open signs an opening and puts it into an initialize message.
func (p *prover) open(line []byte) ([]byte, error) {
	if p.key() == nil {
		return line, nil
	}
	by := speakerOf(line)
	p.mu.Lock()
	p.initial = by
	p.mu.Unlock()
	signed, err := p.opening(by)
	if err != nil {
		return nil, err
	}
	return p.with(line, signed)
}

// speaker is in whose name a message says that it comes: which of the client's agents, and for whom a messaging client speaks.
type speaker struct {
	agent, user, room string
}

// speakerOf reads what a message says of that in params._meta. What no gateway would take is empty, and so is half a sender.
func speakerOf(line []byte) speaker {
	var m struct {
		Params struct {
			Meta map[string]json.RawMessage `json:"_meta"`
		} `json:"params"`
	}
	var by speaker
	var sender struct {
		User string `json:"user"`
		Room string `json:"room"`
	}
	if json.Unmarshal(line, &m) != nil {
		return by
	}
	if json.Unmarshal(m.Params.Meta[metaAgent], &by.agent) != nil {
		by.agent = ""
	}
	if json.Unmarshal(m.Params.Meta[metaSender], &sender) == nil && sender.User != "" && sender.Room != "" {
		by.user, by.room = sender.User, sender.Room
	}
	return by
}

// opening signs an opening in somebody's name, which is under the signature: who carries it opens no session in another's.
func (p *prover) opening(by speaker) (*callv1.Proof, error) {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return proof.Sign(p.key(), proof.Claim{
		Purpose: callv1.Proof_PURPOSE_OPEN, Client: p.client, Time: p.now().Unix(),
		Agent: by.agent, SenderUser: by.user, SenderRoom: by.room,
		// Random, never 0, and small enough for any JSON number.
		Counter: binary.BigEndian.Uint64(b[:])>>12 | 1,
	})
}

// facts are what an answer's _meta, or its error's data, says to the bridge.
type facts struct {
	Session string `json:"durward/session"`
	Needed  string `json:"durward/proof_needed"`
	// Code is an error's.
	Code string `json:"code"`
}

// heard takes up the session that an answer names, and reports whether it is the one that this process opened. Only the answer to
// an opening can name another than before: else a gateway could have anything signed in any session's name.
func (p *prover) heard(session string, opening bool) (ours bool) {
	if session == "" {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.session == session:
	case p.session != "" && !opening:
		return false
	default:
		p.session, p.counter, p.permits, p.early = session, 0, p.now(), false
	}
	return true
}

// answer takes up what an answer to the signed request says, and returns which proof the request lacked, or "". One that was
// not refused for want of a proof lacks none, whatever else its answer says.
func (p *prover) answer(payload []byte, to request) (needed string) {
	var reply struct {
		Result struct {
			Meta     facts `json:"_meta"`
			IsError  bool  `json:"isError"`
			Envelope struct {
				Error struct {
					Code string `json:"code"`
				} `json:"error"`
			} `json:"structuredContent"`
		} `json:"result"`
		Error *struct {
			Data facts `json:"data"`
		} `json:"error"`
	}
	if p.key() == nil || json.Unmarshal(payload, &reply) != nil {
		return ""
	}
	said, refusal := reply.Result.Meta, ""
	switch {
	case reply.Error != nil:
		said = reply.Error.Data
		refusal = said.Code
	case reply.Result.IsError:
		refusal = reply.Result.Envelope.Error.Code
	default:
		p.renewed(to)
	}
	ours := p.heard(said.Session, to.opening)
	switch {
	case refusal == codeUnauthenticated && p.instance != "" && !to.opening:
		return needOpen // a gateway that lost a session looks like one that never had it
	case refusal != codeProofRequired:
		return ""
	case !ours, said.Needed == "":
		// The gateway has another session than this process opened, or refused before there was one.
		return needOpen
	}
	switch said.Needed {
	case needOpen, needRenew, needCall:
		return said.Needed
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
	// opening and calling: it carries a proof of that purpose.
	opening, calling bool
}

// asksPermit reports whether the gateway answers a method with the help of the session's permits, as it does a tool that
// looks, or renews them where it is asked to.
func asksPermit(method string) bool {
	switch method {
	case methodCall, methodRead, methodSubscribe, "completion/complete", methodListen, "tasks/get", methodListTools, methodPing:
		return true
	default:
		return false
	}
}

// request signs a request as it needs: a call of a tool that changes something always, what looks when a renewal is due, the
// first of a stateless client with an opening; or as an answer asked for it, which the caller has checked with may.
func (p *prover) request(line []byte, m message, needed string) (request, error) {
	if p.key() == nil || p.instance == "" && needed != needOpen && p.unopened() {
		return p.unsigned(line) // before a handshake the gateway says what is wrong with it: there is no session to sign for
	}
	var params struct {
		Name      string          `json:"name"`
		URI       string          `json:"uri"`
		Arguments json.RawMessage `json:"arguments"`
	}
	var tool contract.Tool
	known := false
	switch m.Method {
	case methodCall, methodRead, methodPrompt:
		if json.Unmarshal(m.Params, &params) != nil {
			return p.unsigned(line) // the gateway says what is wrong with it
		}
	}
	switch m.Method {
	case methodCall:
		tool, known = contract.Lookup(params.Name)
	case methodRead: // of another's server, it is a call
		tool, params.Arguments, known = contract.ResourceCall(params.URI)
	case methodPrompt:
		var given map[string]string
		if len(params.Arguments) == 0 || json.Unmarshal(params.Arguments, &given) == nil {
			tool, params.Arguments, known = contract.PromptCall(params.Name, given)
		}
	}
	now := p.now()
	demanded, age := needed != "", p.age()
	if !demanded {
		switch {
		case p.instance != "" && p.lapsed(now):
			needed = needOpen
		case known && !tool.ByPermit():
			needed = needCall
		case age >= renewFrom && asksPermit(m.Method) && (known || m.Method != methodCall):
			needed = needRenew
		}
	}
	out := request{}
	var signed *callv1.Proof
	var err error
	switch needed {
	case needOpen:
		out.opening = true
		signed, err = p.opening(p.speaker(line))
	case needRenew:
		claim := p.claim(callv1.Proof_PURPOSE_RENEW)
		if demanded || known && age >= usedFrom {
			out.session, out.renewal = claim.Session, time.Unix(claim.Time, 0)
		}
		signed, err = proof.Sign(p.key(), claim)
	case needCall:
		var digest []byte
		// A tool that looks needs none by this side's own lights; one is signed where an answer asks for it, since a human's rules
		// can count a tool, or have a human asked about it. The gateway gains one call with the client's own arguments.
		if !known {
			return p.unsigned(line)
		}
		if digest, err = argumentsDigest(tool, params.Arguments); err != nil {
			return p.unsigned(line) // invalid arguments: the gateway says what is wrong with them
		}
		out.calling = true
		claim := p.claim(callv1.Proof_PURPOSE_CALL)
		claim.Tool, claim.ArgumentsDigest = tool.Name, digest
		signed, err = proof.Sign(p.key(), claim)
	default:
		return p.unsigned(line)
	}
	if err != nil {
		return request{}, fmt.Errorf("sign the request: %w", err)
	}
	out.body, err = p.with(line, signed)
	return out, err
}

// answersDemands reports whether a method's request is signed and sent again when its answer asks for a proof.
func (p *prover) answersDemands(method string) bool { return p.instance != "" || asksPermit(method) }

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

// speaker is in whose name a session is opened for a request: the request's own where requests stand for themselves, else that of
// the handshake, since a session is its opener's for good.
func (p *prover) speaker(line []byte) speaker {
	if p.instance != "" {
		return speakerOf(line)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.initial
}

// unopened reports whether no session was opened yet.
func (p *prover) unopened() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.session == ""
}

// age is how old the session's permits are at most.
func (p *prover) age() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now().Sub(p.permits)
}

// lapsed reports whether there is no session, or one that the gateway has likely ended, and takes now for its last use.
func (p *prover) lapsed(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := now.Sub(p.used)
	p.used = now
	return p.session == "" || idle >= idleFrom
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

// argumentsDigest is SHA-256 of the arguments' RFC 8785 form, as the vault computes it.
func argumentsDigest(tool contract.Tool, raw json.RawMessage) ([]byte, error) {
	arguments := map[string]json.RawMessage{}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &arguments); err != nil {
			return nil, fmt.Errorf("arguments: %w", err)
		}
	}
	if tool.IsTool() && tool.TakesReason() {
		delete(arguments, contract.ReasonArgument) // it is not part of what is decided on
	}
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

// with puts a proof, and the instance's name where there is one, into a message's params._meta.
func (p *prover) with(line []byte, signed *callv1.Proof) ([]byte, error) {
	raw, err := protojson.Marshal(signed)
	if err != nil {
		return nil, fmt.Errorf("encode the proof: %w", err)
	}
	return setMeta(line, map[string]json.RawMessage{metaProof: raw, metaInstance: p.name()})
}

// unsigned takes away what the client made up.
func (p *prover) unsigned(line []byte) (request, error) {
	body, err := setMeta(line, map[string]json.RawMessage{metaProof: nil, metaInstance: p.name()})
	return request{body: body}, err
}

// name is the instance's as JSON, nil where there is none.
func (p *prover) name() json.RawMessage {
	if p.instance == "" {
		return nil
	}
	return json.RawMessage(`"` + p.instance + `"`)
}
