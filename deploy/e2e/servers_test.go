package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/downstream"
)

// notesVariable makes of this test's program another's MCP server: one that keeps notes in a file.
const notesVariable = "DURWARD_TEST_NOTES"

func init() {
	file, is := os.LookupEnv(notesVariable)
	if !is {
		return
	}
	fmt.Fprintln(os.Stderr, "the notes are open")
	type note struct {
		Text string `json:"text"`
	}
	add := func(_ context.Context, _ *mcp.CallToolRequest, in note) (*mcp.CallToolResult, any, error) {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, nil, err
		}
		defer f.Close()
		_, err = fmt.Fprintln(f, in.Text)
		err = errors.Join(err, os.WriteFile(file+".token", []byte(os.Getenv("NOTES_TOKEN")), 0o600))
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "noted"}}}, nil, err
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "notes", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "add", Description: os.Getenv("DURWARD_TEST_DESCRIPTION")}, add)
	// Other tools that add, as a file defines them.
	var more []*mcp.Tool
	if raw, err := os.ReadFile(file + ".tools"); err == nil && json.Unmarshal(raw, &more) != nil {
		os.Exit(1)
	}
	for _, tool := range more {
		mcp.AddTool(server, tool, add)
	}
	mcp.AddTool(server, &mcp.Tool{Name: "read", Description: "Reads all notes."}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		all, err := os.ReadFile(file)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(all)}}}, nil, err
	})
	_ = server.Run(context.Background(), &mcp.StdioTransport{}) // it ends with its input
	os.Exit(0)
}

// pinNotes writes servers.yaml and servers.lock into a home, as its operator accepts them: the tools as they are, or with another
// description of one, and others that are cleaned as those of any server. It returns them all.
func pinNotes(t *testing.T, h *harness.Host, file, description string, more ...*mcp.Tool) []downstream.Tool {
	t.Helper()
	var listed []downstream.Listed
	for _, tool := range more {
		one := downstream.Listed{Name: tool.Name, Title: tool.Title, Description: tool.Description}
		var err error
		one.Input, err = json.Marshal(tool.InputSchema)
		if err == nil {
			one.Annotations, err = json.Marshal(tool.Annotations)
		}
		must(t, err)
		listed = append(listed, one)
	}
	accepted, findings := downstream.Clean("notes", listed)
	if len(accepted) != len(more) {
		t.Fatalf("of %d tools %d can be accepted: %+v", len(more), len(accepted), findings)
	}
	for i := range accepted {
		accepted[i].Tier = optionsv1.Tier_TIER_WRITE
	}
	if raw, err := json.Marshal(more); err != nil {
		t.Fatal(err)
	} else if more != nil {
		h.WriteFile(filepath.Base(file)+".tools", string(raw))
	}
	program, err := os.Executable()
	must(t, err)
	text := fmt.Sprintf("servers:\n  - id: notes\n    program: {path: %q}\n    sandbox: {none: true}\n    env: {%s: %q, DURWARD_TEST_DESCRIPTION: Adds a note.}\n    credentials: {NOTES_TOKEN: notes-token}\n    tools: {read: [read]}\n",
		program, notesVariable, file)
	schema := func(s string) json.RawMessage {
		form, err := canonical.Transform([]byte(s))
		must(t, err)
		return form
	}
	accepted = append(accepted,
		downstream.Tool{Name: "add", Description: description, Tier: optionsv1.Tier_TIER_WRITE,
			Input: schema(`{"type":"object","required":["text"],"properties":{"text":{"type":"string"}},"additionalProperties":false}`)},
		downstream.Tool{Name: "read", Description: "Reads all notes.", Tier: optionsv1.Tier_TIER_READ, Input: schema(`{"type":"object","additionalProperties":false}`)},
	)
	h.Accept(text, map[string][]downstream.Tool{"notes": accepted})
	return accepted
}

// TestAnothersServer: a server that a human accepted is called through the whole pipeline. What it changes a human approves, by the very
// arguments; what is not as it was accepted is called by nobody.
func TestAnothersServer(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{Egress: true})
	file := h.Path("notes.txt")
	pinned := pinNotes(t, h, file, "Adds a note.")
	token := h.AddClient("agent")
	h.StartAll()
	agent := h.Connect(token)
	notes := func() string {
		raw, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(raw)
	}
	found := agent.Ask("find_tools", map[string]any{"words": "add a note"})
	if !strings.Contains(string(found.Raw), `"tool":"notes__add"`) {
		t.Fatalf("find_tools says %s", found.Raw)
	}
	if e := agent.Ask("describe_tool", map[string]any{"tool": "notes__add"}); !strings.Contains(string(e.Raw), "By the server notes: Adds a note.") || !strings.Contains(string(e.Raw), `"tier":"WRITE"`) {
		t.Errorf("describe_tool says %s", e.Raw)
	}
	if e := agent.Ask("notes__read", map[string]any{}); e.Status != "error" || !strings.Contains(string(e.Raw), "durward credential grant notes-token --server notes") {
		t.Errorf("without its credential: %s", e.Raw)
	}
	secret := canary("notes")
	if out := h.Run(secret, "credential", "add", "notes-token", "--variable", "NOTES_TOKEN", "--stdin", "--yes"); out.Code != 0 {
		t.Fatalf("add: %+v", out)
	}
	h.Durward("credential", "grant", "notes-token", "--server", "notes", "--yes")
	asked := agent.Ask("notes__add", map[string]any{"text": "first", "reason": "to remember it"})
	if asked.Status != "pending_approval" || notes() != "" {
		t.Fatalf("it was added without a human: %s, notes %q", asked.Raw, notes())
	}
	if card := h.Approve(asked.OperationID); !strings.Contains(card, "notes__add") || !strings.Contains(card, "first") || !strings.Contains(card, "NO SANDBOX") {
		t.Errorf("the card says %s", card)
	}
	if e := agent.Ask("wait_operation", map[string]any{"operation_id": asked.OperationID}); e.Status != "ok" || !strings.Contains(string(e.Raw), "noted") || notes() != "first\n" {
		t.Fatalf("approved: %s, notes %q", e.Raw, notes())
	}
	if got := h.ReadFile("notes.txt.token"); got != secret {
		t.Errorf("the server's credential is %q", got)
	}
	if e := agent.Ask("notes__read", map[string]any{}); e.Status != "ok" || !strings.Contains(string(e.Raw), `\u003cfetched_content\u003efirst`) {
		t.Errorf("read: %s", e.Raw)
	}
	var now struct {
		Servers []struct{ ID, State, For string }
	}
	if h.DurwardJSON(&now, "server", "status"); len(now.Servers) != 1 || now.Servers[0].State != "running" || now.Servers[0].For != "agent" {
		t.Errorf("server status says %+v", now)
	}
	if text := h.Durward("server", "logs", "notes"); !strings.Contains(text, "the notes are open") {
		t.Errorf("server logs says %q", text)
	}
	if text := h.Durward("credential", "revoke", "notes-token"); !strings.Contains(text, "may hold it still: durward server restart notes") {
		t.Errorf("credential revoke says %q", text)
	}
	h.Durward("credential", "grant", "notes-token", "--server", "notes", "--yes")
	if text := h.Durward("server", "restart", "notes"); !strings.Contains(text, "1 ended") {
		t.Errorf("server restart says %q", text)
	}
	if e := agent.Ask("notes__read", map[string]any{}); e.Status != "ok" {
		t.Errorf("after a restart: %s", e.Raw)
	}
	harness.Eventually(t, "the log tells of its end", func() error {
		for _, r := range h.Records(&auditv1.SearchRecordsRequest{Writer: harness.Egress, Kinds: []auditv1.Kind{auditv1.Kind_KIND_RULE}, Limit: 100}) {
			b := r.GetRecord().GetBody()
			if b.GetDetails()["server"] == "notes" && b.GetReason() == "a human restarted it" && b.GetPrincipal() == "agent" && strings.Contains(b.GetDetails()["stderr"], "the notes are open") {
				return nil
			}
		}
		return errors.New("it has no record of it")
	})
	h.Durward("panic")
	if h.DurwardJSON(&now, "server", "status"); len(now.Servers) != 1 || now.Servers[0].State != "frozen" {
		t.Errorf("after a panic: %+v", now)
	}
	if e := agent.Ask("notes__add", map[string]any{"text": "while halted"}); e.Status == "ok" || notes() != "first\n" {
		t.Errorf("after a panic: %s", e.Raw)
	}
	if e := agent.Ask("notes__read", map[string]any{}); e.Status != "error" || e.Error.Code != "HALTED" {
		t.Errorf("a read after a panic: %s", e.Raw)
	}
	h.Durward("resume", "--yes")
	if e := agent.Ask("notes__read", map[string]any{}); e.Status != "ok" {
		t.Errorf("after the end of a panic: %s", e.Raw)
	}
	for name, arguments := range map[string]map[string]any{"notes__add": {"text": 3}, "notes__read": {"more": "x"}} {
		if e := agent.Ask(name, arguments); e.Status != "error" || e.Error.Code != "INVALID_ARGUMENT" {
			t.Errorf("%s with what it does not take: %s", name, e.Raw)
		}
	}
	eachHolds(t, h, token, pinned[1])
	kinds := map[auditv1.Kind]int{}
	for _, r := range h.Records(&auditv1.SearchRecordsRequest{Tool: "notes__add", Limit: 100}) {
		kinds[r.GetRecord().GetKind()]++
	}
	for _, kind := range []auditv1.Kind{auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_REDEEMED, auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME} {
		if kinds[kind] == 0 {
			t.Errorf("the log has no %v of the call: %v", kind, kinds)
		}
	}
	// Another definition than what the server has: the call is refused and nothing is added. A grant for the old one is worth nothing.
	before := agent.Ask("notes__add", map[string]any{"text": "second"})
	pinNotes(t, h, file, "Deletes everything.")
	harness.Eventually(t, "the new lock counts", func() error {
		if e := agent.Ask("describe_tool", map[string]any{"tool": "notes__add"}); !strings.Contains(string(e.Raw), "Deletes everything") {
			return fmt.Errorf("%s", e.Raw)
		}
		return nil
	})
	if out := h.Ask("approve", before.OperationID, "--yes"); out.Code == 0 || !strings.Contains(out.Stderr, "accepted anew") {
		t.Errorf("what was asked of the old definition: %s%s", out.Stdout, out.Stderr)
	}
	changed := agent.Ask("notes__add", map[string]any{"text": "third"})
	h.Approve(changed.OperationID)
	if e := agent.Ask("wait_operation", map[string]any{"operation_id": changed.OperationID}); e.Status != "error" || !strings.Contains(string(e.Raw), "server notes") || notes() != "first\n" {
		t.Errorf("a tool that is not as it was accepted: %s, notes %q", e.Raw, notes())
	}
	if out := h.Ask("approvals"); !strings.Contains(out.Stdout, "! the server notes is not as you accepted it") {
		t.Errorf("approvals say nothing of it: %s", out.Stdout)
	}
	// One changed byte of the lock, and there is no such tool.
	lock := h.ReadFile("config/servers.lock")
	h.WriteFile("config/servers.lock", strings.Replace(lock, "Reads all notes.", "Reads all notes!", 1))
	harness.Eventually(t, "an unsigned lock pins nothing", func() error {
		if e := agent.Ask("notes__read", map[string]any{}); e.Status != "denied" || e.Reason != "not_available" {
			return fmt.Errorf("%s", e.Raw)
		}
		return nil
	})
}

// eachHolds has a gateway that checks nothing ask for a tool that takes no arguments: the vault and egress each hold a call to the schema by
// themselves.
func eachHolds(t *testing.T, h *harness.Host, token string, read downstream.Tool) {
	t.Helper()
	vault, egress := h.DialAs(h.Identity(harness.Gateway), harness.Vault), h.DialAs(h.Identity(harness.Gateway), harness.Egress)
	session, err := vaultv1.NewSessionServiceClient(vault).OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: token, ClientName: "test"})
	must(t, err)
	name, digest := "notes__read", read.Digest("notes")
	ref := &callv1.ToolRef{Name: name, Source: "mcp:notes", DefinitionDigest: digest[:]}
	for arguments, fits := range map[string]bool{`{}`: true, `{"more":"x"}`: false} {
		_, byVault := vaultv1.NewAuthorityServiceClient(vault).Authorise(t.Context(), &vaultv1.AuthoriseRequest{SessionId: session.GetSessionId(), Tool: ref, Arguments: []byte(arguments)})
		_, byEgress := egressv1.NewServerServiceClient(egress).CallServerTool(t.Context(), &egressv1.CallServerToolRequest{Tool: &name, ArgumentsJcs: &arguments})
		if status.Code(byVault) == codes.InvalidArgument == fits || status.Code(byEgress) == codes.InvalidArgument == fits {
			t.Errorf("%s: the vault says %v, egress %v", arguments, byVault, byEgress)
		}
	}
}

// TestWhatOnlyLooksAsksForPersonalData: a READ tool of another's server runs unasked until its arguments hold personal data, which a human lets
// go to that server in this very call.
func TestWhatOnlyLooksAsksForPersonalData(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{Egress: true})
	program, err := os.Executable()
	must(t, err)
	const found = "Finds notes."
	pinned, findings := downstream.Clean("notes", []downstream.Listed{{Name: "add", Description: found,
		Input: json.RawMessage(`{"type":"object","required":["text"],"properties":{"text":{"type":"string"}},"additionalProperties":false}`)}})
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	pinned[0].Tier = optionsv1.Tier_TIER_READ
	h.Accept(fmt.Sprintf("servers:\n  - id: notes\n    program: {path: %q}\n    sandbox: {none: true}\n    env: {%s: %q, DURWARD_TEST_DESCRIPTION: %s}\n    tools: {read: [add]}\n",
		program, notesVariable, h.Path("notes.txt"), found), map[string][]downstream.Tool{"notes": pinned})
	token := h.AddClient("agent")
	h.StartAll()
	agent := h.Connect(token)
	if e := agent.Ask("notes__add", map[string]any{"text": "plain"}); e.Status != "ok" {
		t.Fatalf("without personal data: %s", e.Raw)
	}
	for _, who := range []string{"mary.gonzalez@example.org", "carol@example.org"} { // what a human agreed to is one call alone
		asked := agent.Ask("notes__add", map[string]any{"text": who})
		if asked.Status != "pending_approval" {
			t.Fatalf("with personal data: %s", asked.Raw)
		}
		if card := h.Approve(asked.OperationID); !strings.Contains(card, who[:1]+"•••@example.org") {
			t.Errorf("the card says %s", card)
		}
		if e := agent.Ask("wait_operation", map[string]any{"operation_id": asked.OperationID}); e.Status != "ok" || !strings.Contains(string(e.Raw), "noted") {
			t.Fatalf("approved: %s", e.Raw)
		}
	}
	if got := h.ReadFile("notes.txt"); got != "plain\nmary.gonzalez@example.org\ncarol@example.org\n" {
		t.Errorf("the server got %q", got)
	}
}
