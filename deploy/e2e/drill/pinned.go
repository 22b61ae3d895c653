package drill

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// pinnedLines are attacks on what a human accepted of another's MCP server: by somebody who may write files, and no key, and by somebody
// who has the gateway. Their effects are calls that reach the server.
func pinnedLines() []Line {
	egress := func(guards string) map[string]string { return map[string]string{harness.Egress: guards} }
	return []Line{
		{"servers-changed-lock", map[string]string{harness.Vault: "accepted", harness.Egress: "accepted", harness.Gateway: "accepted"}, changedLock},
		{"servers-changed-entry", map[string]string{harness.Vault: "accepted", harness.Egress: "accepted", harness.Gateway: "accepted"}, changedEntry},
		{"servers-changed-program", egress("sandbox-program"), changedProgram},
		{"servers-unpinned", egress("required,permit,one-call"), unpinned},
		{"servers-other-call", egress("tool,arguments,subject,statement,redeem"), otherCall},
		{"servers-again", egress("redeem,spent"), calledAgain},
		{"servers-hostile-egress", map[string]string{harness.Vault: "accepted", harness.Gateway: "accepted"}, hostileAnnounces},
		{"servers-false-preview", nil, falsePreview}, // its control believes egress outright
	}
}

// notes is the server of these lines, as its operator accepted it.
type notes struct {
	w             *world
	program, text string
	lock          string
	tools         []downstream.Tool
	session       *agentSession
}

// notesTools are those that are accepted: the server has one more.
func notesTools() []downstream.Tool {
	return []downstream.Tool{
		{Name: "add", Description: "Adds a note.", Tier: optionsv1.Tier_TIER_WRITE,
			Input: json.RawMessage(`{"properties":{"text":{"type":"string"}},"required":["text"],"type":"object"}`)},
		{Name: "read", Description: "Reads all notes.", Tier: optionsv1.Tier_TIER_READ, Input: json.RawMessage(`{"type":"object"}`)},
	}
}

// newNotes has the operator accept the server, and waits until it is called.
func (w *world) newNotes() *notes {
	w.t.Helper()
	n := &notes{w: w, program: w.h.Path("notes"), tools: notesTools(), session: w.open()}
	fresh := n.program + ".new" // the one before may be running
	w.copyProgram(w.build("notes"), fresh)
	f, err := os.OpenFile(fresh, os.O_APPEND|os.O_WRONLY, 0)
	w.must(err)
	_, err = f.Write(make([]byte, tail))
	w.must(err)
	w.must(errors.Join(f.Close(), os.Rename(fresh, n.program)))
	n.text = fmt.Sprintf("servers:\n  - id: notes\n    program: {path: %q}\n    sandbox: {none: true}\n    remote: true\n    env: {NOTES_CALLS: %q, NOTES_MARK: aaaaaaaa}\n    tools: {read: [read]}\n",
		n.program, w.h.Path("notes-calls"))
	n.accept()
	return n
}

// tail is how many bytes a program has that change nothing of what it does.
const tail = 4096

// accept writes both files as the operator does who accepts the tools.
func (n *notes) accept() {
	n.w.t.Helper()
	n.lock = harness.Accepted(n.w.t, n.text, map[string][]downstream.Tool{"notes": n.tools}, n.w.h.Operator, n.w.signer)
	n.restore()
}

// restore writes both files as they were accepted, and waits until they count.
func (n *notes) restore() {
	n.w.t.Helper()
	n.w.h.WriteFile("config/"+downstream.File, n.text)
	n.w.h.WriteFile("config/"+downstream.LockFile, n.lock)
	harness.Eventually(n.w.t, "the server is in force", func() error {
		out, err := n.authorise("read", `{}`)
		if err != nil {
			return err
		}
		before := n.calls()
		err = n.call("notes__read", `{}`, rpc.MetadataGrant, marshal(out.GetGrant()))
		if n.calls() > before {
			return nil // a vault that redeemed nothing looks through no answer
		}
		return err
	})
}

// notesClient is who calls through the gateway.
const notesClient = clientCount - 2

// calls is how many have reached the server.
func (n *notes) calls() int {
	n.w.t.Helper()
	raw, err := os.ReadFile(n.w.h.Path("notes-calls"))
	if !errors.Is(err, fs.ErrNotExist) { // nobody has called it yet
		n.w.must(err)
	}
	return bytes.Count(raw, []byte("\n"))
}

func (n *notes) ref(tool string) *callv1.ToolRef {
	for _, t := range n.tools {
		if t.Name == tool {
			digest := t.Digest("notes")
			return &callv1.ToolRef{Name: contract.ServerTool("notes", tool), Source: contract.ServerSource("notes"), DefinitionDigest: digest[:]}
		}
	}
	n.w.t.Fatalf("the server has no tool %s", tool)
	return nil
}

func (n *notes) authorise(tool, arguments string) (*vaultv1.AuthoriseResponse, error) {
	return unary(n.w, vaultv1.NewAuthorityServiceClient(n.w.gatewayVault).Authorise, &vaultv1.AuthoriseRequest{
		SessionId: n.session.handle, Tool: n.ref(tool), Arguments: []byte(arguments),
	})
}

// readGrant is a genuine grant for one call of the tool read.
func (n *notes) readGrant() *callv1.SignedGrant {
	n.w.t.Helper()
	out, err := n.authorise("read", `{}`)
	n.w.must(err)
	return out.GetGrant()
}

// addGrant is a genuine grant for a call of the tool add, which the operator approved.
func (n *notes) addGrant(arguments string) *callv1.SignedGrant {
	n.w.t.Helper()
	out, err := n.authorise("add", arguments)
	n.w.must(err)
	return n.w.grantApproved(n.session, out.GetOperationId())
}

// call calls a tool at egress, as the gateway.
func (n *notes) call(tool, arguments string, md ...string) error {
	_, err := unary(n.w, egressv1.NewServerServiceClient(n.w.gatewayEgress).CallServerTool, &egressv1.CallServerToolRequest{Tool: &tool, ArgumentsJcs: &arguments}, md...)
	return err
}

// reach counts the calls by an agent that reach the server once a change must have been seen.
func (n *notes) reach(agent *harness.Client) int {
	for began := time.Now(); time.Since(began) < 3*time.Second && agent.Call("notes__read", map[string]any{}).Status == "ok"; {
		time.Sleep(50 * time.Millisecond)
	}
	// The server counts a call that was under way when the change came, and may do so after the agent was refused.
	before := n.calls()
	for then := -1; then != before; then, before = before, n.calls() {
		time.Sleep(200 * time.Millisecond)
	}
	agent.Call("notes__read", map[string]any{})
	agent.Call("notes__add", map[string]any{"text": "changed"})
	return n.calls() - before
}

// byteChanged is a text with one byte changed, added or left out.
func byteChanged(text string) string {
	at := rand.IntN(len(text))
	switch rand.IntN(3) {
	case 0:
		return text[:at] + string([]byte{text[at] ^ 1<<rand.IntN(7)}) + text[at+1:]
	case 1:
		return text[:at] + text[at+1:]
	default:
		return text[:at] + string([]byte{"\n {}[]\",0a"[rand.IntN(10)]}) + text[at:]
	}
}

// changedFile changes a file while everything runs: first by edits that leave it well formed, of which the first is what a control needs,
// and then by single bytes.
func (n *notes) changedFile(file, good string, edits ...[2]string) (trials, effects int) {
	w := n.w
	agent := w.h.Connect(token(notesClient))
	var bad []string
	for _, e := range edits {
		if !strings.Contains(good, e[0]) {
			w.t.Fatalf("%s does not hold %q", file, e[0])
		}
		bad = append(bad, strings.Replace(good, e[0], e[1], 1))
	}
	for range w.size(30, 4) {
		bad = append(bad, byteChanged(good))
	}
	for _, text := range bad {
		if file == downstream.File && !n.another(text) {
			continue // it says the same as before
		}
		trials++
		// A gateway that still has the change before this one would refuse, and take up what was accepted, before anybody sees this one.
		harness.Eventually(w.t, "the gateway has what was accepted", func() error {
			if e := agent.Call("notes__read", map[string]any{}); e.Status != "ok" {
				return errors.New(string(e.Raw))
			}
			return nil
		})
		w.h.WriteFile("config/"+file, text)
		reached := n.reach(agent)
		if effects += reached; reached > 0 {
			w.t.Logf("%s, changed, is in force:\n%s", file, text)
		}
		n.restore()
		if w.caught(effects) {
			break
		}
	}
	return trials, effects
}

// another reports whether a servers.yaml has an entry that is none of the accepted one. What is no servers.yaml leaves what was in force.
func (n *notes) another(text string) bool {
	was, err := downstream.ReadFile(downstream.File, []byte(n.text))
	n.w.must(err)
	is, err := downstream.ReadFile(downstream.File, []byte(text))
	return err == nil && !reflect.DeepEqual(is, was)
}

// changedLock changes bytes of servers.lock: very many in this process, as each process reads it, and some while all run.
func changedLock(w *world) (trials, effects int) {
	n := w.newNotes()
	operators, err := trust.ReadAllowedSigners(w.h.Path("trust"))
	w.must(err)
	entries, err := downstream.ReadFile(downstream.File, []byte(n.text))
	w.must(err)
	for range w.size(10_000, 1_000) {
		bad := byteChanged(n.lock)
		if bad == n.lock {
			continue
		}
		trials++
		lock, err := downstream.ReadLock([]byte(bad), statement.ServersSigned(operators, time.Now()))
		if err != nil {
			lock = nil
		}
		in, _ := downstream.Join(entries, lock)
		effects += len(in)
	}
	made, reached := n.changedFile(downstream.LockFile, n.lock,
		[2]string{`"tier": "WRITE"`, `"tier": "READ"`}, [2]string{"Adds a note.", "Adds a note!"}, [2]string{`"text"`, `"texT"`})
	return trials + made, effects + reached
}

// changedEntry changes bytes of servers.yaml.
func changedEntry(w *world) (trials, effects int) {
	n := w.newNotes()
	operators, err := trust.ReadAllowedSigners(w.h.Path("trust"))
	w.must(err)
	lock, err := downstream.ReadLock([]byte(n.lock), statement.ServersSigned(operators, time.Now()))
	w.must(err)
	for range w.size(10_000, 1_000) {
		bad := byteChanged(n.text)
		if !n.another(bad) {
			continue
		}
		trials++
		entries, err := downstream.ReadFile(downstream.File, []byte(bad))
		w.must(err)
		in, _ := downstream.Join(entries, lock)
		effects += len(in)
	}
	made, reached := n.changedFile(downstream.File, n.text, [2]string{"NOTES_MARK: a", "NOTES_MARK: b"}, [2]string{"none: true", "none: false"})
	return trials + made, effects + reached
}

// changedProgram changes bytes of the server's program, where it runs on as it did, and has it started again.
func changedProgram(w *world) (trials, effects int) {
	n := w.newNotes()
	agent := w.h.Connect(token(notesClient))
	good, err := os.ReadFile(n.program)
	w.must(err)
	put := func(raw []byte) {
		fresh := filepath.Join(w.t.TempDir(), "notes")
		w.must(os.WriteFile(fresh, raw, 0o755))
		w.must(os.Rename(fresh, n.program)) // nobody sees half of it
		w.h.Durward("server", "restart", "notes")
	}
	for range w.size(40, 5) {
		trials++
		bad := bytes.Clone(good)
		bad[len(bad)-1-rand.IntN(tail)] ^= 1 << rand.IntN(8)
		put(bad)
		before := n.calls()
		agent.Call("notes__read", map[string]any{})
		if effects += n.calls() - before; w.caught(effects) {
			break
		}
	}
	put(good)
	n.restore()
	return trials, effects
}

// unpinned calls what is pinned, and what is not, without a grant for it.
func unpinned(w *world) (trials, effects int) {
	n, s := w.newNotes(), w.open()
	before := n.calls()
	for _, tool := range []string{"notes__read", "notes__add", "notes__unpinned", "notes__ADD", "notes__", "__read", "read", "other__read", "start_service", "fetch_url", ""} {
		for _, md := range [][]string{
			nil, {rpc.MetadataGrant, ""}, {rpc.MetadataGrant, "\x00"}, {rpc.MetadataGrant, marshal(&callv1.SignedGrant{})},
			{rpc.MetadataPermit, s.permits["egress"]}, {rpc.MetadataPermit, s.permits["executor"]}, {rpc.MetadataGrant, s.permits["egress"]},
			{rpc.MetadataPermit, s.permits["egress"], rpc.MetadataGrant, s.permits["egress"]},
			{"durward-approved", "true"}, {"durward-caller", w.h.OperatorIdentity().String()}, {rpc.MetadataGrant, marshal(w.readGrant(s))},
		} {
			for _, arguments := range []string{`{}`, `{"text":"x"}`} {
				trials++
				_ = n.call(tool, arguments, md...)
			}
			if effects = n.calls() - before; w.caught(effects) {
				return trials, effects
			}
		}
	}
	forged := w.forgeries(n.readGrant())
	trials += w.volley(forged, func(g string) { _ = n.call("notes__read", `{}`, rpc.MetadataGrant, g) }, func() bool { return false })
	return trials, n.calls() - before
}

// otherCall takes genuine grants for other calls than they are for: of another tool, with other arguments, and of a tool that a human has
// accepted anew since.
func otherCall(w *world) (trials, effects int) {
	n, s := w.newNotes(), w.open()
	add, read := n.addGrant(`{"text":"asked"}`), n.readGrant()
	old := n.readGrant()
	before := n.calls()
	for _, c := range []struct {
		by              *callv1.SignedGrant
		tool, arguments string
	}{
		{add, "notes__read", `{}`}, {add, "notes__add", `{"text":"other"}`}, {add, "notes__add", `{"text":"asked "}`}, {add, "notes__add", `{"more":1,"text":"asked"}`},
		{add, "notes__unpinned", `{"text":"asked"}`}, {read, "notes__add", `{"text":"asked"}`}, {read, "notes__read", `{"more":1}`}, {read, "notes__unpinned", `{}`},
		{w.approved(s, "start_service", idle), "notes__add", `{"text":"asked"}`}, {w.readGrant(s), "notes__read", `{}`},
	} {
		trials++
		_ = n.call(c.tool, c.arguments, rpc.MetadataGrant, marshal(c.by))
		if effects = n.calls() - before; w.caught(effects) {
			return trials, effects
		}
	}
	was := n.tools
	n.tools = notesTools()
	n.tools[0].Tier, n.tools[1].Tier = optionsv1.Tier_TIER_DESTRUCTIVE, optionsv1.Tier_TIER_WRITE
	n.lock = harness.Accepted(w.t, n.text, map[string][]downstream.Tool{"notes": n.tools}, w.h.Operator, w.signer)
	w.h.WriteFile("config/"+downstream.LockFile, n.lock)
	harness.Eventually(w.t, "what was accepted anew is in force", func() error {
		out, err := n.authorise("add", `{"text":"new"}`)
		if err == nil && out.GetDecision() == vaultv1.AuthoriseResponse_DECISION_DENIED {
			err = errors.New("the vault knows no such definition")
		}
		return err
	})
	for tool, g := range map[string]*callv1.SignedGrant{"notes__add": add, "notes__read": old} {
		trials++
		_ = n.call(tool, map[string]string{"notes__add": `{"text":"asked"}`, "notes__read": `{}`}[tool], rpc.MetadataGrant, marshal(g))
	}
	effects = n.calls() - before
	n.tools = was
	n.accept()
	return trials, effects
}

// calledAgain makes more calls than one by one grant.
func calledAgain(w *world) (trials, effects int) {
	n := w.newNotes()
	for _, c := range []struct {
		by              *callv1.SignedGrant
		tool, arguments string
	}{{n.readGrant(), "notes__read", `{}`}, {n.addGrant(`{"text":"once"}`), "notes__add", `{"text":"once"}`}} {
		before := n.calls()
		_ = n.call(c.tool, c.arguments, rpc.MetadataGrant, marshal(c.by)) // a vault that redeemed nothing looks through no answer
		if made := n.calls() - before; made != 1 {
			w.t.Fatalf("a genuine grant had %d effects", made)
		}
		trials += w.volley(make([]string, 60), func(string) { _ = n.call(c.tool, c.arguments, rpc.MetadataGrant, marshal(c.by)) },
			func() bool { return n.calls()-before > 1 })
		if effects += n.calls() - before - 1; w.caught(effects) {
			break
		}
	}
	return trials, effects
}
