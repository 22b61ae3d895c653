package clean_test

import (
	"strings"
	"testing"

	"durward.internal/services/platform/clean"
)

func TestSentenceHidesWhatIsInside(t *testing.T) {
	for name, texts := range map[string][]string{
		"Unix paths": {
			"open /etc/passwd: no such file", "/home/ada/.durward/keys/grant.key", "cannot read '/var/lib/x'", "at=/usr/bin/env", "(/opt/a)",
			"in ~/.durward/logs", "reading:/tmp/x/y", "path \"/srv\"", "a\n/root", "in ../../etc/x", "//etc//passwd", "x /data/models/y.gguf", "/дом/алиса/x", "cc -L/home/alice/lib", "weights:/home/alice/m",
		},
		"Windows paths": {`C:\Users\ada`, "c:/windows/system32", `\\host\share\x`, `open D:\x`},
		"file URLs":     {"file:///etc/hosts", "FILE:/x", "see file://host/x"},
		"stacks": {
			"goroutine 12 [running]:", "main.main()\n\t/x/main.go:12 +0x1d", "server.go:204", "at foo (app.js:1:2)", `File "a.py", line 3`,
			"Traceback (most recent call last):", "created by net/http", "panic: runtime error: index out of range [3]", "App.java:12",
			"in handler.go", "address 0xc0000b2000", "line 12 of the file", "SIGSEGV", "goroutine 7", "main +0x1d",
		},
		"SQL": {
			"SELECT id FROM sessions", "select * from x", "insert into operations values", "UPDATE clients SET a = 1", "delete from t where 1", "DROP TABLE x",
			"SQL logic error: no such table: spent", "UNIQUE constraint failed: spent.key", "SQLSTATE 23505", "database is locked", "sqlite: busy",
			"1 union select 2", "select a from b where c",
		},
		"Go": {
			"json: cannot unmarshal string into Go value of type int", "got *fault.Error", "proto: unknown field", "a map[string]any", "[]byte{1}",
			"interface {} is nil", "<nil>", "%!d(string=x)", "unexpected executorv1.StartServiceRequest", "durward.internal/services/vault",
			"github.com/modelcontextprotocol/go-sdk", "google.golang.org/grpc", "runtime error: x", "nil pointer dereference",
		},
		"the words of libraries": {
			"rpc error: code = Unavailable desc = x", "dial tcp 127.0.0.1:7431: connect: connection refused", "context deadline exceeded",
			"read tcp 1.2.3.4:5: reset", "dial tcp failed", "x509: certificate signed by unknown authority", "permission denied",
		},
	} {
		for _, text := range texts {
			for _, variant := range []string{text, "it failed: " + text, strings.ReplaceAll(text, " ", " \u200b")} {
				if got := clean.Sentence(variant, 500); got != clean.Internal {
					t.Errorf("%s: %q came out as %q", name, variant, got)
				}
				if got := clean.Name(variant, 500); got != "" {
					t.Errorf("%s: %q is a name", name, variant)
				}
			}
		}
	}
	// What hides in a control string, or comes together when something between is removed, is found all the same.
	for _, text := range []string{"/et\u200bc/passwd", "SEL\x1b[0mECT id FROM x", "main.g\x00o:12"} {
		if got := clean.Sentence(text, 500); got != clean.Internal {
			t.Errorf("%q came out as %q", text, got)
		}
	}
	if got := clean.Sentence("open /etc/passwd", 4); got != "int…" {
		t.Errorf("cut to %q", got)
	}
}

func TestSentenceLeavesPlainWords(t *testing.T) {
	for _, text := range []string{
		"there is no such service", "service_id must be a string", "MCP is served at /mcp.", "Rate limit exceeded",
		"The client must accept application/json and text/event-stream.", "a read/write tool, and/or 1/2 of 24/7",
		"The resource durward://services/demo-chat is not there.", "send it as \"Authorization: Bearer TOKEN\"", "operation_id: does not match its pattern",
		"select a service from the list", "Update the list, then set a limit.", "use http://127.0.0.1:8000/v1/models",
		"context_overrides.demo-chat must be a whole number", "The message is nested more than 50 levels deep.", "a vault's table of sessions",
		"the tool is not what it was when the human was asked; ask again", "Ask the operator to run: durward status", "100 % of 3.5 GB, e.g. now",
		"东京/大阪/京都, и/или/нет", "panic stops every change", "it reaches from A to B", "the audit log cannot be reached",
	} {
		if got := clean.Sentence(text, 500); got != text {
			t.Errorf("%q came out as %q", text, got)
		}
	}
	for _, name := range []string{"service_id", "demo-chat", "params.arguments", "org/model-7b.Q4"} {
		if got := clean.Name(name, 128); got != name {
			t.Errorf("%q came out as %q", name, got)
		}
	}
}

func TestCount(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{clean.Count(0, "file"), "0 files"}, {clean.Count(1, "file"), "1 file"}, {clean.Count(uint64(2), "file"), "2 files"},
		{clean.Count(uint32(1), "record waits", "records wait"), "1 record waits"}, {clean.Count(2, "record waits", "records wait"), "2 records wait"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}
