package history

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest/full"
)

// exported is a log as `durward audit export` wrote it, with what its verifier goes by.
type exported struct {
	keys    []note.Verifier
	signer  note.Signer // the log's own: it is stolen
	head    []byte
	lines   [][]byte
	entries []*auditv1.Entry
	// expect is the newest checkpoint that a witness cosigned, of the whole log; zero: there is no witness.
	expect logproof.Checkpoint
	// states are the verifier's after each stride entries.
	states []*logproof.Replay
}

// stride is how many entries lie between two of the verifier's states that are kept.
const stride = 256

// copied is an altered log: what is before entry from is as it was.
type copied struct {
	head []byte
	from int
	rest [][]byte
}

// alterations are what is done to a log, by name. Each returns nil where it changed nothing of what the log says.
var alterations = []struct {
	name  string
	alter func(x *exported, random *rand.Rand, at int) *copied
}{
	{"a bit flipped", func(x *exported, random *rand.Rand, at int) *copied {
		line := bytes.Clone(x.lines[at])
		line[random.IntN(len(line))] ^= 1 << random.IntN(8)
		e := &auditv1.Entry{}
		if protojson.Unmarshal(line, e) == nil && proto.Equal(e, x.entries[at]) {
			return nil
		}
		return x.with(at, append(bytes.Split(line, []byte("\n")), x.lines[at+1:]...))
	}},
	{"an entry edited", func(x *exported, random *rand.Rand, at int) *copied {
		e := x.edited(random, at)
		e.Leaf, e.LeafHash, e.BodyCommitment = x.entries[at].GetLeaf(), x.entries[at].GetLeafHash(), x.entries[at].GetBodyCommitment()
		return x.with(at, append([][]byte{encode(e)}, x.lines[at+1:]...))
	}},
	{"an entry edited and sealed", func(x *exported, random *rand.Rand, at int) *copied {
		return x.with(at, append([][]byte{encode(x.edited(random, at))}, x.lines[at+1:]...))
	}},
	{"an entry dropped", func(x *exported, _ *rand.Rand, at int) *copied { return x.with(at, x.lines[at+1:]) }},
	{"two entries swapped", func(x *exported, random *rand.Rand, at int) *copied {
		other := random.IntN(len(x.lines))
		if other == at {
			return nil
		}
		first, second := min(at, other), max(at, other)
		rest := slices.Clone(x.lines[first:])
		rest[0], rest[second-first] = rest[second-first], rest[0]
		return x.with(first, rest)
	}},
	{"an entry inserted", func(x *exported, random *rand.Rand, at int) *copied {
		made := x.edited(random, at)
		return x.with(at, append([][]byte{encode(made)}, x.lines[at:]...))
	}},
	{"the tail cut", func(x *exported, _ *rand.Rand, at int) *copied { return x.with(at, nil) }},
	{"an old copy", func(x *exported, _ *rand.Rand, at int) *copied {
		return &copied{head: x.sign(x.hashes()[:at]), from: at}
	}},
	{"a rewrite with the stolen key", func(x *exported, random *rand.Rand, at int) *copied {
		e, hashes := x.edited(random, at), x.hashes()
		hashes[at] = tlog.Hash(e.GetLeafHash())
		return &copied{head: x.sign(hashes), from: at, rest: append([][]byte{encode(e)}, x.lines[at+1:]...)}
	}},
}

// place is which entry is altered: more often a late one, because what follows it has to be gone through.
func (x *exported) place(random *rand.Rand) int {
	return len(x.lines) - 1 - int(float64(len(x.lines))*math.Pow(random.Float64(), 5))
}

func (x *exported) with(from int, rest [][]byte) *copied {
	return &copied{head: x.head, from: from, rest: rest}
}

// edited is an entry that says something else, and is sealed.
func (x *exported) edited(random *rand.Rand, at int) *auditv1.Entry {
	e := proto.CloneOf(x.entries[at])
	switch r := e.GetRecord(); random.IntN(4) {
	case 0:
		r.Body.Summary += " not"
	case 1:
		r.Status = auditv1.Status_STATUS_DENIED
	case 2:
		r.Time = timestamppb.New(r.GetTime().AsTime().Add(-time.Hour))
	default:
		r.Kind = auditv1.Kind_KIND_OUTCOME
	}
	if err := logproof.Seal(e); err != nil {
		panic(err) // every entry here is whole
	}
	return e
}

func encode(e *auditv1.Entry) []byte {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(e)
	if err != nil {
		panic(err) // every entry here is well formed
	}
	return b
}

func (x *exported) hashes() []tlog.Hash {
	out := make([]tlog.Hash, len(x.entries))
	for i, e := range x.entries {
		out[i] = tlog.Hash(e.GetLeafHash())
	}
	return out
}

// sign makes a checkpoint of the tree of these leaves, with the log's key.
func (x *exported) sign(leaves []tlog.Hash) []byte {
	c := logproof.Checkpoint{Origin: x.signer.Name()}
	c.Size, c.Root = uint64(len(leaves)), root(leaves)
	signed, err := logproof.SignCheckpoint(c, x.signer)
	if err != nil {
		panic(err) // the key is the log's
	}
	return signed
}

// root is RFC 6962's hash of a tree.
func root(leaves []tlog.Hash) tlog.Hash {
	switch len(leaves) {
	case 0:
		empty, _ := tlog.TreeHash(0, nil) // it reads nothing
		return empty
	case 1:
		return leaves[0]
	}
	left := 1
	for 2*left < len(leaves) {
		left *= 2
	}
	return tlog.NodeHash(root(leaves[:left]), root(leaves[left:]))
}

// verify is what an offline verifier does with the copy, from the state on that it has before the first altered entry.
func (x *exported) verify(c *copied) error {
	head, err := logproof.OpenCheckpoint(c.head, x.keys)
	if err != nil {
		return err
	}
	add := func(replay *logproof.Replay, e *auditv1.Entry) error {
		if logproof.BodyMissing(e) {
			return errors.New("its body is missing")
		}
		return replay.Add(e)
	}
	replay := x.states[c.from/stride].Clone()
	for _, e := range x.entries[c.from/stride*stride : c.from] {
		if err := add(replay, e); err != nil {
			return err
		}
	}
	for i, line := range c.rest {
		e := &auditv1.Entry{}
		if at := len(x.lines) - len(c.rest) + i; at < len(x.lines) && at >= 0 && sameLine(line, x.lines[at]) {
			e = x.entries[at]
		} else if err := protojson.Unmarshal(line, e); err != nil {
			return err
		}
		if err := add(replay, e); err != nil {
			return err
		}
	}
	return replay.Finish(head)
}

// sameLine reports whether two lines are one in memory.
func sameLine(a, b []byte) bool { return len(a) > 0 && len(a) == len(b) && &a[0] == &b[0] }

// mutated alters copies of a log in every way, by seeds, and has each verified offline by somebody who has the log's public key and the
// newest checkpoint that a witness cosigned. Its effects are altered logs that prove themselves; its control has no witness. A sample of
// each kind goes through `durward audit verify --offline` too.
func mutated(w *world) (trials, effects int) {
	x := w.export(w.size(100_000, 3_000))
	seed, n := full.Sample(w.t, 10_000, 450)
	if w.weak {
		n = min(n, 450)
	}
	var mu sync.Mutex
	passed := map[string]int{}
	found := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		passed[name]++
	}
	var next, tried atomic.Int64
	var working sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		working.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				kind, random := alterations[int(i)%len(alterations)], rand.New(rand.NewPCG(seed, uint64(i)))
				var c *copied
				for c == nil {
					c = kind.alter(x, random, x.place(random))
				}
				tried.Add(1)
				if x.verify(c) == nil {
					found(kind.name)
				}
			}
		})
	}
	working.Wait()
	trials = int(tried.Load())
	for i, kind := range alterations {
		random := rand.New(rand.NewPCG(seed, uint64(n+i)))
		var c *copied
		for c == nil {
			c = kind.alter(x, random, random.IntN(len(x.lines)))
		}
		trials++
		if out := w.verifies(x, c); out.Code == 0 {
			found(kind.name + ", by the program")
		}
	}
	for name, n := range passed {
		w.t.Logf("%s: %d pass", name, n)
		effects += n
	}
	if w.weak && passed["a rewrite with the stolen key, by the program"] == 0 {
		return trials, 0 // nothing is shown
	}
	return trials, effects
}

// verifies has the program verify a copy.
func (w *world) verifies(x *exported, c *copied) harness.Output {
	w.t.Helper()
	head, err := json.Marshal(map[string]string{"checkpoint": string(c.head)})
	w.must(err)
	path := w.h.Path("altered.jsonl")
	w.must(os.WriteFile(path, append(bytes.Join(slices.Concat([][]byte{head}, x.lines[:c.from], c.rest), []byte("\n")), '\n'), 0o600))
	return w.h.Run("", "audit", "verify", "--offline", path)
}

// export has audit write a log of so many records, exports it, and puts the witness's word beside it.
func (w *world) export(records int) *exported {
	w.t.Helper()
	w.h.StartProcess(harness.Audit)
	w.fill(records)
	path := w.h.Path("log.jsonl")
	w.h.Durward("audit", "export", path)
	raw, err := os.ReadFile(path)
	w.must(err)
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	var head struct{ Checkpoint string }
	w.must(json.Unmarshal(lines[0], &head))
	x := &exported{keys: w.h.Trust().Current().LogKeys, head: []byte(head.Checkpoint), lines: lines[1:]}
	x.signer, err = note.NewSigner(strings.TrimSpace(w.h.ReadFile("keys/log.key")))
	w.must(err)
	for _, line := range x.lines {
		e := &auditv1.Entry{}
		w.must(protojson.Unmarshal(line, e))
		x.entries = append(x.entries, e)
	}
	// Nothing but what a witness cosigned is known of the log.
	w.must(os.Remove(w.h.Path("state", "operator", "checkpoint")))
	c, err := logproof.OpenCheckpoint(x.head, x.keys)
	w.must(err)
	if !w.weak {
		x.expect = c
		w.witness(x)
	}
	replay := &logproof.Replay{}
	if !x.expect.IsZero() {
		replay.Expect(x.expect)
	}
	for i, e := range x.entries {
		if i%stride == 0 {
			x.states = append(x.states, replay.Clone())
		}
		w.must(replay.Add(e))
	}
	w.must(replay.Finish(c))
	whole := &copied{head: x.head, rest: x.lines}
	if out := w.verifies(x, whole); out.Code != 0 || x.verify(whole) != nil {
		w.t.Fatalf("the log as it is: %v\n%s%s", x.verify(whole), out.Stdout, out.Stderr)
	}
	return x
}

// witness keeps the log's checkpoint, cosigned, as the operator's program does.
func (w *world) witness(x *exported) {
	w.t.Helper()
	signer, err := logproof.NewCosigner("witness.example/one", ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), time.Now)
	w.must(err)
	n, err := note.Open(x.head, note.VerifierList(x.keys...))
	w.must(err)
	cosigned, err := note.Sign(n, signer)
	w.must(err)
	w.h.WriteFile("trust/witnesses.yaml", fmt.Sprintf("quorum: 1\nwitnesses: [%q]\n", signer.String()))
	w.h.WriteFile("state/operator/witnessed", string(cosigned))
}

// fill appends records as an executor writes them, in large batches.
func (w *world) fill(records int) {
	w.t.Helper()
	client := auditv1.NewLogServiceClient(w.h.DialAs(w.h.Identity(harness.Executor), harness.Audit))
	kinds := []auditv1.Kind{auditv1.Kind_KIND_READ, auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_SINK_REFUSED, auditv1.Kind_KIND_RULE}
	const batch = 512
	for sequence := 1; sequence <= records; {
		var list []*auditv1.Record
		for ; sequence <= records && len(list) < batch; sequence++ {
			list = append(list, &auditv1.Record{
				Sequence: uint64(sequence), Kind: kinds[sequence%len(kinds)], Status: auditv1.Status_STATUS_OK, Time: timestamppb.Now(),
				RequestId: fmt.Sprintf("r-%d", sequence), Tool: "service_info",
				Body: &auditv1.Body{Principal: "agent-1", Session: "s-1", Arguments: `{"service_id":"demo"}`, Summary: fmt.Sprintf("record %d", sequence)},
			})
		}
		ctx, cancel := context.WithTimeout(w.t.Context(), harness.Patience)
		_, err := client.Append(ctx, &auditv1.AppendRequest{Records: list})
		cancel()
		w.must(err)
	}
}
