package downstream

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
)

// Pinned is one server as a human accepted it: what is signed in servers.lock. Nothing that a server or egress says at run time is in
// force beside it.
type Pinned struct {
	// Entry is the one of servers.yaml whose digest EntryDigest is; ReadLock knows its ID alone, and Join fills it in.
	Entry Entry
	// EntryDigest is SHA-256 of the entry's canonical form, and ProgramDigest of the program's bytes, or of the package's tree; of a
	// remote server's none.
	EntryDigest, ProgramDigest [32]byte
	// Instructions are the server's own, cleaned.
	Instructions string
	Tools        []Tool
}

// Tool is a whole definition as it was cleaned, shown and signed.
type Tool struct {
	// Name is the server's own; the agent sees ID + separator + Name.
	Name, Title, Description string
	// Input and Output are JSON Schemas in RFC 8785 form; Output may be empty.
	Input, Output json.RawMessage
	// Annotations are the server's hints. They are shown, and lower no tier.
	Annotations json.RawMessage
	Tier        optionsv1.Tier
	Roles       map[string]Role
	// Instructions are the server's: a part of each definition that is accepted and compared. Agents do not get them.
	Instructions string
}

// How contract names things. The programs that list and start servers do not link it, since it brings gRPC; a test holds these to it.
const separator = "__"

func called(server, tool string) string { return server + separator + tool }

func source(server string) string { return "mcp:" + server }

func tierName(t optionsv1.Tier) string { return strings.TrimPrefix(t.String(), "TIER_") }

// MaxLock bounds servers.lock, in bytes. Without its blanks it is bounded as any JSON.
const MaxLock = 4 * canonical.MaxBytes

// Lock is servers.lock.
type Lock struct {
	// Servers are sorted by id, and their tools by name.
	Servers []Pinned
	// Signed is what an operator said of them.
	Signed *callv1.HumanStatement
}

// Verifier verifies that an operator signed a list of servers, and returns the digest that the statement names. Package statement has it.
type Verifier func(signed *callv1.HumanStatement) (digest string, err error)

// What the file holds, in this order and in the indented form of RFC 8785 alone.
type (
	lockFile struct {
		Servers   []lockServer    `json:"servers"`
		Signature string          `json:"signature"`
		Statement json.RawMessage `json:"statement"`
	}
	lockServer struct {
		ID           string     `json:"id"`
		Entry        string     `json:"entry"`
		Program      string     `json:"program"`
		Instructions string     `json:"instructions"`
		Tools        []lockTool `json:"tools"`
	}
	lockTool struct {
		Name        string          `json:"name"`
		Title       string          `json:"title"`
		Description string          `json:"description"`
		Input       json.RawMessage `json:"input"`
		Output      json.RawMessage `json:"output,omitempty"`
		Annotations json.RawMessage `json:"annotations,omitempty"`
		Tier        string          `json:"tier"`
		Roles       map[string]Role `json:"roles,omitempty"`
	}
)

// tiers by their names in the lock.
var tiers = map[string]optionsv1.Tier{"READ": optionsv1.Tier_TIER_READ, "WRITE": optionsv1.Tier_TIER_WRITE, "DESTRUCTIVE": optionsv1.Tier_TIER_DESTRUCTIVE}

func (t Tool) lock() lockTool {
	return lockTool{t.Name, t.Title, t.Description, t.Input, t.Output, t.Annotations, tierName(t.Tier), t.Roles}
}

// Digest is SHA-256 of the whole definition as agents and humans get to see it, of that server's tool: what grants are for.
func (t Tool) Digest(server string) [32]byte {
	raw, err := canonical.Marshal(struct {
		lockTool
		Server       string `json:"server"`
		Source       string `json:"source"`
		Instructions string `json:"instructions"`
	}{t.lock(), server, source(server), t.Instructions})
	if err != nil {
		// ReadLock and Clean let no such tool through; what nobody signed is covered by nothing.
		return [32]byte{}
	}
	return canonical.Digest(raw)
}

func (l *Lock) file() lockFile {
	f := lockFile{Servers: []lockServer{}, Signature: string(l.Signed.GetSignature()), Statement: l.Signed.GetStatement()}
	for _, p := range l.Servers {
		s := lockServer{ID: p.Entry.ID, Entry: canonical.FormatDigest(p.EntryDigest[:]), Program: canonical.FormatDigest(p.ProgramDigest[:]),
			Instructions: p.Instructions, Tools: []lockTool{}}
		for _, t := range p.Tools {
			s.Tools = append(s.Tools, t.lock())
		}
		f.Servers = append(f.Servers, s)
	}
	return f
}

// Digest is what an operator signs: of everything that is pinned.
func (l *Lock) Digest() (string, error) { return digestOf(l.file().Servers) }

func digestOf(servers []lockServer) (string, error) {
	raw, err := canonical.Marshal(servers)
	if err != nil {
		return "", err
	}
	return canonical.DigestText(raw), nil
}

// Sort puts servers and tools into the lock's order.
func (l *Lock) Sort() {
	slices.SortFunc(l.Servers, func(a, b Pinned) int { return strings.Compare(a.Entry.ID, b.Entry.ID) })
	for _, p := range l.Servers {
		slices.SortFunc(p.Tools, func(a, b Tool) int { return strings.Compare(a.Name, b.Name) })
	}
}

// Marshal writes servers.lock. It refuses what ReadLock would, but for the signature and the order, which are the caller's.
func (l *Lock) Marshal() ([]byte, error) {
	f := l.file()
	for _, s := range f.Servers {
		if _, err := s.pinned(); err != nil {
			return nil, err
		}
	}
	if len(l.Servers) > MaxServers {
		return nil, fmt.Errorf("servers.lock would have more than %d servers", MaxServers)
	}
	text, err := f.text()
	if len(text) > MaxLock {
		return nil, fmt.Errorf("servers.lock would be longer than %d MB: take another server away first", MaxLock>>20)
	}
	if errors.Is(err, canonical.ErrTooLarge) {
		return nil, errors.New("the definitions in servers.lock would be longer than 1 MB: take another server away first")
	}
	return text, err
}

func (f lockFile) text() ([]byte, error) {
	raw, err := canonical.Marshal(f)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = json.Indent(&out, raw, "", "  ")
	return append(out.Bytes(), '\n'), err
}

// ReadLock reads servers.lock, in the one spelling that Marshal writes, and verifies it. An empty text pins nothing.
func ReadLock(text []byte, verify Verifier) (*Lock, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return &Lock{}, nil
	}
	var compact bytes.Buffer
	if len(text) > MaxLock {
		return nil, canonical.ErrTooLarge
	}
	if err := json.Compact(&compact, text); err != nil {
		return nil, canonical.ErrMalformed
	}
	var f lockFile
	if err := canonical.Unmarshal(compact.Bytes(), &f); err != nil {
		return nil, err
	}
	if again, err := f.text(); err != nil || !bytes.Equal(again, text) {
		return nil, cmp.Or(err, canonical.ErrNotCanonical)
	}
	l := &Lock{Signed: &callv1.HumanStatement{Statement: f.Statement, Signature: []byte(f.Signature)}}
	signed, err := verify(l.Signed)
	if err != nil {
		return nil, err
	}
	digest, err := digestOf(f.Servers)
	if err != nil {
		return nil, err
	}
	if !accepted(digest, signed) {
		return nil, errors.New("the servers are not those that were signed")
	}
	for _, s := range f.Servers {
		p, err := s.pinned()
		if err != nil {
			return nil, err
		}
		l.Servers = append(l.Servers, p)
	}
	if !increasing(l.Servers, func(p Pinned) string { return p.Entry.ID }) || len(l.Servers) > MaxServers {
		return nil, errors.New("its servers are too many, not in order, or not single")
	}
	return l, nil
}

func increasing[T any](list []T, name func(T) string) bool {
	for i := 1; i < len(list); i++ {
		if name(list[i-1]) >= name(list[i]) {
			return false
		}
	}
	return true
}

// pinned checks what stands in the file, as if the key that signed it were another's.
func (s lockServer) pinned() (p Pinned, err error) {
	if err := CheckID(s.ID); err != nil {
		return p, err
	}
	p.Entry.ID, p.Instructions = s.ID, s.Instructions
	entry, errEntry := canonical.ParseDigest(s.Entry)
	program, errProgram := canonical.ParseDigest(s.Program)
	if err := errors.Join(errEntry, errProgram); err != nil {
		return p, err
	}
	copy(p.EntryDigest[:], entry)
	copy(p.ProgramDigest[:], program)
	for _, t := range s.Tools {
		tool := Tool{t.Name, t.Title, t.Description, t.Input, t.Output, t.Annotations, tiers[t.Tier], t.Roles, s.Instructions}
		if err := tool.check(s.ID); err != nil {
			return p, fmt.Errorf("%s: %w", called(s.ID, t.Name), err)
		}
		p.Tools = append(p.Tools, tool)
	}
	if !increasing(p.Tools, func(t Tool) string { return t.Name }) {
		return p, fmt.Errorf("%s: its tools are not in order, or not single", s.ID)
	}
	return p, nil
}

func (t Tool) check(server string) error {
	if err := checkPinned(server, t.Name); err != nil {
		return err
	}
	if t.Tier == 0 {
		return errors.New("it has no tier")
	}
	if err := LintSchema(t.Input); err != nil {
		return err
	}
	if len(t.Output) > 0 {
		if err := LintSchema(t.Output); err != nil {
			return err
		}
	}
	for pointer, role := range t.Roles {
		if role != RoleURL && role != RolePath || !strings.HasPrefix(pointer, "/") {
			return errors.New("a role is unknown")
		}
	}
	return nil
}

// Left is a server that is not in force, and why: a sentence for the operator.
type Left struct{ ID, Why string }

// Join is what is in force: the servers whose entry is the one that was accepted, with the tools that it allows. What stands beside tools
// was pinned because the entry says so.
func Join(entries []Entry, lock *Lock) (in []Pinned, left []Left) {
	pinned := map[string]Pinned{}
	if lock != nil {
		for _, p := range lock.Servers {
			pinned[p.Entry.ID] = p
		}
	}
	for _, e := range entries {
		p, known := pinned[e.ID]
		delete(pinned, e.ID)
		digest, err := e.Digest()
		switch {
		case !known:
			left = append(left, Left{e.ID, "its tools were never accepted: durward server accept " + e.ID})
		case err != nil || !accepted(digest, p.EntryDigest):
			left = append(left, Left{e.ID, "servers.yaml says something else of it than what was accepted: durward server accept " + e.ID})
		default:
			p.Entry, p.Tools = e, slices.Clone(p.Tools)
			if len(e.Allow) > 0 {
				p.Tools = slices.DeleteFunc(p.Tools, func(t Tool) bool { return isTool(t.Name) && !slices.Contains(e.Allow, t.Name) && !e.Answers(t.Name) })
			}
			in = append(in, p)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(pinned)) {
		left = append(left, Left{id, "servers.lock holds it, and servers.yaml does not"})
	}
	return in, left
}
