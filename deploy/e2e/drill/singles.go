package drill

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/proof"
	"durward.internal/services/platform/rpc"
)

// singleLines are attacks each of which one guard stands against.
func singleLines() []Line {
	vault := func(guard string) map[string]string { return map[string]string{harness.Vault: guard} }
	return []Line{
		{"evidence-spelling", vault("spelling"), otherSpellings},
		{"padded-card", nil, paddedCard}, // a drill build's durward folds nothing, and has no gutter
		{"four-eyes-by-key", vault("four-eyes"), fourEyesByKey},
		{"tokenise-used-up", vault("turns"), tokeniseUsedUp},
		{"opening-replayed", vault("opening"), openingReplayed},
		{"progress-made-up-ids", map[string]string{harness.Executor: "begun"}, madeUpIDs},
		{"refusals-untold", map[string]string{harness.Vault: "unseen", harness.Executor: "unseen", harness.Audit: "unseen"}, untoldRefusals},
		{"log-unlinked", map[string]string{harness.Audit: "place"}, logUnlinked},
	}
}

// spellings are ways to write a signature that ssh-keygen refuses, of which a lenient reader makes the same.
var spellings = []func(signature string) string{
	func(s string) string { return "somebody's words\n" + s },
	func(s string) string { return s + "somebody's words\n" },
	func(s string) string {
		return strings.Replace(s, "SIGNATURE-----\n", "SIGNATURE-----\nComment: x\n\n", 1)
	},
	func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
	func(s string) string { return strings.ReplaceAll(s, "\n", " \n") },
	func(s string) string { return rearmour(s, 76, func(blob []byte) []byte { return blob }) },
	func(s string) string { return rearmour(s, 64, func(blob []byte) []byte { return append(blob, 0) }) },
}

// rearmour writes a signature anew, with lines of a width, after a change of its bytes.
func rearmour(signature string, width int, change func([]byte) []byte) string {
	lines := strings.Split(strings.TrimSpace(signature), "\n")
	blob, err := base64.StdEncoding.DecodeString(strings.Join(lines[1:len(lines)-1], ""))
	if err != nil {
		panic(err) // it was signed a moment ago
	}
	text := base64.StdEncoding.EncodeToString(change(blob))
	out := lines[0] + "\n"
	for ; len(text) > width; text = text[width:] {
		out += text[:width] + "\n"
	}
	return out + text + "\n" + lines[len(lines)-1] + "\n"
}

// otherSpellings brings the operator's own signature in spellings that would let the operator deny it later. Its effects are approvals.
func otherSpellings(w *world) (trials, effects int) {
	id := w.ask(w.open(), "start_service", idle)
	approved := func(spell func(string) string) int {
		h := w.sign(w.statementFor(w.operation(id)), w.signer)
		h.Signature = []byte(spell(string(h.GetSignature())))
		return w.approvedBy(id, h)
	}
	for _, spell := range spellings {
		trials++
		if effects = approved(spell); w.caught(effects) {
			return trials, effects
		}
	}
	if effects == 0 && approved(func(s string) string { return s }) == 0 {
		w.t.Fatal("not even the signature itself counts, so that its spellings prove nothing")
	}
	return trials, effects
}

// approvedBy brings a statement for an operation, and returns 1 where the operation does not wait any more.
func (w *world) approvedBy(id string, h *callv1.HumanStatement) int {
	w.t.Helper()
	// What it answers counts for nothing: the store is asked.
	_, _ = unary(w, vaultv1.NewApprovalServiceClient(w.operatorVault).ApproveOperation, &vaultv1.ApproveOperationRequest{OperationId: id, Statement: h})
	return w.query(harness.Vault, `SELECT count(*) FROM operations WHERE operation_id = ? AND state != 1`, id)
}

// escapes are what a terminal draws with.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

// paddedCard has an agent give reasons that are padded so that, on a screen of 80 columns, a line of its own begins where cards do: in
// what durward approvals prints, and on the screen of durward tui. Its effects are such lines.
func paddedCard(w *world) (trials, effects int) {
	const columns, forged = 80, "ZZZZ  READ  list_services {}  on executor/local"
	before := len(`      agent says (untrusted): "`)
	shown := []func() string{func() string {
		at := w.h.AtTerminal(w.t, columns, "approvals")
		defer at.Close()
		at.Code()
		return escapes.ReplaceAllString(at.Text(), "")
	}}
	if harness.HasScreens(w.t) {
		shown = append(shown, func() string {
			s := harness.OpenScreen(w.t, columns, 60, filepath.Join(w.h.Bin, "durward"), "--home", w.h.Dir, "tui")
			defer s.Close()
			s.Sees("start_service")
			s.Keys("Enter")
			return s.Sees("agent says", "Arguments, whole")
		})
	} else {
		w.note = "without durward tui: tmux is not installed"
	}
	for _, off := range []int{0, -1, 1} {
		s := w.open()
		_, err := unary(w, vaultv1.NewAuthorityServiceClient(w.gatewayVault).Authorise, &vaultv1.AuthoriseRequest{
			SessionId: s.handle, Tool: w.tool("start_service").Ref(), Arguments: arguments(idle),
			Reason: strings.Repeat(" ", columns-before+off) + fmt.Sprintf("%-*s", columns, forged) + "      asked by your colleague",
		})
		w.must(err)
		for _, show := range shown {
			text := show()
			trials++
			if !strings.Contains(text, "ZZZZ") {
				w.t.Fatalf("the reason is not shown, so that nothing is proved:\n%s", text)
			}
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, "ZZZZ") {
					effects++
				}
			}
		}
		w.denyAll()
	}
	return trials, effects
}

// fourEyesByKey has a human, whose client asks and who must not be the one who agrees, agree under other names, which the trust folder
// has for the same key. Its effects are approvals.
func fourEyesByKey(w *world) (trials, effects int) {
	const clients, rules = "config/clients.yaml", rulesFolder + "/security.yaml"
	n := w.nextClient
	w.nextClient++
	signers, entries := w.h.ReadFile(signersFile), w.h.ReadFile(clients)
	security, there := w.fileOr(rules)
	entry := fmt.Sprintf("{id: agent-%d,", n)
	w.adopted(harness.Vault, func() {
		w.h.WriteFile(clients, strings.Replace(entries, entry, entry+" user: "+w.h.Operator+",", 1))
	})
	w.adopted(harness.Vault, func() { w.h.WriteFile(rules, "approvals: {four_eyes: true}\n") })
	defer w.adopted(harness.Vault, func() { w.restoreFile(rules, security, there) })
	defer w.adopted(harness.Vault, func() { w.h.WriteFile(clients, entries) })
	defer w.h.WriteFile(signersFile, signers)
	id := w.ask(w.openAs(n, ""), "start_service", idle)
	second, _ := newKey(w.t)
	for _, name := range []string{w.h.Operator, "twin", strings.ToUpper(w.h.Operator)} {
		if name != w.h.Operator {
			w.h.WriteFile(signersFile, allowed(name, w.signer)+signers+allowed("second", second))
			w.pause(w.t.Context(), trustPatience)
		}
		trials++
		st := w.statementFor(w.operation(id))
		st.Operator = name
		if effects = w.approvedBy(id, w.sign(st, w.signer)); w.caught(effects) {
			return trials, effects
		}
	}
	st := w.statementFor(w.operation(id))
	st.Operator = "second"
	if effects == 0 && w.approvedBy(id, w.sign(st, second)) == 0 {
		w.t.Fatal("nobody else can agree either, so that nothing is proved")
	}
	return trials, effects
}

// tokeniseUsedUp has the sink look through as much for one principal as goes, in many calls at once, and a line for another. Its effects
// are refusals of the line.
func tokeniseUsedUp(w *world) (trials, effects int) {
	sink := func() vaultv1.TokeniseServiceClient {
		return vaultv1.NewTokeniseServiceClient(w.dial(w.source(harness.Executor), harness.Vault, w.h.Identity(harness.Vault)))
	}
	modest := sink()
	under := func(s *agentSession, texts []string) *vaultv1.TokeniseRequest {
		permit := &callv1.SignedPermit{}
		w.must(proto.Unmarshal([]byte(s.permits["executor"]), permit))
		return &vaultv1.TokeniseRequest{Under: &vaultv1.TokeniseRequest_Permit{Permit: permit}, Texts: texts}
	}
	// What might be addresses takes the detectors longest. A text may have 256 KiB. Four, not eight: calls that take all the time that the
	// vault has for one would end all at once, and leave a gap. There are callers enough for whoever waits behind
	// them to wait too long, and no more: what they send is read by the processor that the modest one needs.
	texts := slices.Repeat([]string{strings.Repeat("Aa 12, Bb, Cc, ", 250<<10/15)}, 4)
	much, little := under(w.open(), texts), under(w.open(), []string{"a line"})
	if _, err := modest.Tokenise(w.t.Context(), little); err != nil {
		w.t.Fatalf("nothing can be looked through, so that nothing is proved: %v", err)
	}
	ctx, cancel := context.WithCancel(w.t.Context()) // they ask as long as the modest one does
	defer cancel()
	var greedy sync.WaitGroup
	var answered atomic.Int64
	for range 64 {
		own := sink()
		greedy.Go(func() {
			for ctx.Err() == nil {
				_, _ = own.Tokenise(ctx, much)
				answered.Add(1)
			}
		})
	}
	w.until("the greedy one is answered", func() bool { return answered.Load() != 0 })
	for range w.tries(40, 20) {
		trials++
		w.pause(ctx, 50*time.Millisecond)
		err := errors.New("not asked yet")
		for asked := 0; err != nil && asked < 3; asked++ { // a busy machine may be late
			_, err = modest.Tokenise(w.t.Context(), little)
		}
		if err != nil {
			effects++
		}
		if w.caught(effects) {
			break
		}
	}
	cancel()
	greedy.Wait()
	return trials, effects
}

// openingReplayed opens a session again with the opening of a client whose clock is ahead, once the vault has started anew. Its effects
// are sessions.
func openingReplayed(w *world) (trials, effects int) {
	const ahead = 4 * time.Second
	w.openKeyed()
	n := w.nextKeyed - 1
	open := func(p *callv1.Proof) error {
		_, err := unary(w, vaultv1.NewSessionServiceClient(w.gatewayVault).OpenSession, &vaultv1.OpenSessionRequest{Credential: keyedToken(n), ClientName: "drill", Proof: p})
		return err
	}
	for range w.tries(5, 2) {
		p, err := proof.Sign(w.keyed[n], proof.Claim{
			Purpose: callv1.Proof_PURPOSE_OPEN, Client: keyedClient(n), Counter: mathrand.Uint64N(1<<50) + 1, Time: time.Now().Add(ahead).Unix(),
		})
		w.must(err)
		w.must(open(p))
		w.restart(harness.Vault, w.guards(harness.Vault)...)
		for until := time.Unix(p.GetTime(), 0).Add(time.Second); ; w.pause(w.t.Context(), 200*time.Millisecond) {
			trials++
			if open(p) == nil {
				effects++
			}
			if w.caught(effects) {
				return trials, effects
			}
			if time.Now().After(until) {
				break
			}
		}
	}
	return trials, effects
}

// madeUpIDs is a gateway that watches operations which nobody was given, more than an executor remembers. Its effects are an operation
// of before of which nothing is told any more.
func madeUpIDs(w *world) (trials, effects int) {
	s := w.open()
	g := w.approved(s, "start_service", idle)
	w.present(g, "start_service", idle)
	defer w.kill(idle)
	watch := func(id string, limit time.Duration) (ended bool) {
		ctx, cancel := w.ctx(limit)
		defer cancel()
		stream, err := executorv1.NewEventServiceClient(w.gatewayExecutor).WatchProgress(
			metadata.AppendToOutgoingContext(ctx, rpc.MetadataPermit, s.permits["executor"]), &executorv1.WatchProgressRequest{OperationId: id})
		for told := 0; err == nil; told++ {
			if _, err = stream.Recv(); errors.Is(err, io.EOF) {
				return told > 0
			}
		}
		return false
	}
	id := operationOf(w, g)
	if !watch(id, callTime) {
		w.t.Fatal("nothing is told of an operation that ended, so that nothing is proved")
	}
	for range 3 {
		inParallel(40, 40, func(int) { watch(grant.NewID(), 300*time.Millisecond) })
		trials += 40
	}
	// A busy machine may take its time to answer, and to let go of the watches before; what was forgotten never comes back.
	for limit := time.Now().Add(callTime); !watch(id, 3*time.Second); {
		if time.Now().After(limit) {
			return trials, 1
		}
	}
	return trials, 0
}

// logUnlinked takes the log's files away while audit runs. Its effects are changes that are carried out a second later, of which nobody
// would ever know.
func logUnlinked(w *world) (trials, effects int) {
	path := w.stateFiles(harness.Audit)[0]
	aside := w.h.Path("aside")
	m := w.arrange()
	for _, file := range []string{path, path + "-wal"} {
		w.must(os.Rename(file, aside))
		w.pause(w.t.Context(), 1100*time.Millisecond)
		for range 3 {
			trials++
			_ = w.command("start_service", idle) // effects are counted
		}
		effects += w.effects(m)
		w.must(os.Rename(aside, file))
		w.settle()
		m = w.arrange()
		if w.caught(effects) {
			break
		}
	}
	return trials, effects
}
