package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/platformtest/installed"
)

// TestServerOfASession: each session of a client has a process of its own, with nothing of another's. When the client ends its session, that
// process is gone at once, and the other session's goes on.
func TestServerOfASession(t *testing.T) {
	t.Parallel()
	installed.Program(t, "bwrap")
	h := harness.New(t, harness.Options{Egress: true})
	program, err := os.Executable()
	must(t, err)
	mark := fmt.Sprintf("/data/notes-%d", os.Getpid())
	text := fmt.Sprintf("servers:\n  - id: notes\n    program: {path: %q}\n    per_session: true\n    env: {%s: %q}\n    tools: {read: [add, read]}\n", program, notesVariable, mark)
	tool := func(name, description, input string) downstream.Tool {
		return downstream.Tool{Name: name, Description: description, Tier: optionsv1.Tier_TIER_READ, Input: []byte(input)}
	}
	h.Accept(text, map[string][]downstream.Tool{"notes": {
		tool("add", "", `{"additionalProperties":false,"properties":{"text":{"type":"string"}},"required":["text"],"type":"object"}`),
		tool("read", "Reads all notes.", `{"additionalProperties":false,"type":"object"}`),
	}})
	token := h.AddClient("agent")
	h.StartAll()
	// processes are those of the server on this host: it and its sandbox's have its environment.
	processes := func() (n int) {
		all, err := filepath.Glob("/proc/[0-9]*/environ")
		must(t, err)
		for _, one := range all {
			if raw, err := os.ReadFile(one); err == nil && strings.Contains(string(raw), notesVariable+"="+mark) {
				n++
			}
		}
		return n
	}
	ask := func(s *harness.RawSession, tool, arguments, says string) {
		t.Helper()
		if a := s.CallTool("notes__"+tool, arguments); !strings.Contains(a.Body, says) {
			t.Fatalf("%s says %s, want %s", tool, a.Body, says)
		}
	}
	first, second := h.ConnectRaw(token), h.ConnectRaw(token)
	ask(first, "add", `{"text":"of the first"}`, "noted")
	alone := processes()
	ask(second, "add", `{"text":"of the second"}`, "noted")
	ask(first, "read", "{}", `fetched_content\u003eof the first`)
	ask(second, "read", "{}", `fetched_content\u003eof the second`)
	if both := processes(); alone == 0 || both != 2*alone {
		t.Fatalf("%d processes run for one session and %d for two", alone, both)
	}
	end := first.Request(nil)
	end.Method = http.MethodDelete
	if a, err := h.Raw(t.Context(), end); err != nil || a.HTTPStatus >= 300 {
		t.Fatalf("the end of a session: %v, %+v", err, a)
	}
	harness.Eventually(t, "one session's processes are gone, and its end is in the log", func() error {
		if n := processes(); n != alone {
			return fmt.Errorf("%d processes run, want %d", n, alone)
		}
		for _, r := range h.Records(&auditv1.SearchRecordsRequest{Writer: harness.Egress, Kinds: []auditv1.Kind{auditv1.Kind_KIND_RULE}, Limit: 100}) {
			if b := r.GetRecord().GetBody(); b.GetDetails()["server"] == "notes" && b.GetReason() == "its session ended" && b.GetPrincipal() == "agent" && b.GetSession() != "" {
				return nil
			}
		}
		return errors.New("the log has no record of it")
	})
	ask(second, "read", "{}", `fetched_content\u003eof the second`)
	var status struct {
		Servers []struct{ ID, State, For string }
	}
	if h.DurwardJSON(&status, "server", "status"); len(status.Servers) != 1 || !strings.HasPrefix(status.Servers[0].For, "agent/") {
		t.Errorf("server status says %+v", status)
	}
}
