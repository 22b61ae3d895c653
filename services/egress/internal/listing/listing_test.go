package listing

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/platformtest/installed"
)

// serve is a server in a shell: it answers each request by the words of its method.
const serve = `while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case $line in
  *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"notes","version":"1"},"instructions":"Be kind."}}\n' "$id" ;;
  *'"tools/list"'*) TOOLS ;;
  *'"id":'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}\n' "$id" ;;
  esac
done`

func asked(t *testing.T, script string) downstream.ListRequest {
	t.Helper()
	installed.Program(t, "bwrap")
	digest, err := downstream.FileDigest("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	return downstream.ListRequest{ProgramDigest: digest, Entry: downstream.Entry{
		ID: "notes", Program: &downstream.Program{Path: "/bin/sh", Args: []string{"-c", script}}, Sandbox: downstream.Sandbox{MemoryMiB: 128, CPU: 1, Processes: 16},
		Credentials: map[string]string{"TOKEN": "secret"},
	}}
}

func answer(t *testing.T, ctx context.Context, r downstream.ListRequest) downstream.ListAnswer {
	t.Helper()
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Run(ctx, bytes.NewReader(raw), &out); err != nil {
		t.Fatal(err)
	}
	var a downstream.ListAnswer
	if err := json.Unmarshal(out.Bytes(), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAServerIsListed(t *testing.T) {
	const tools = `printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"find","description":"of %s","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}}\n' "$id" "$TOKEN$(ls /home /root 2>&1 | wc -l)"`
	got := answer(t, t.Context(), asked(t, strings.Replace(serve, "TOOLS", tools, 1)))
	if got.Listing == nil || got.Listing.Name != "notes" || got.Listing.Instructions != "Be kind." || len(got.Listing.Tools) != 1 {
		t.Fatalf("%+v", got)
	}
	tool := got.Listing.Tools[0]
	if tool.Name != "find" || string(tool.Input) != `{"type":"object"}` || !strings.HasPrefix(tool.Description, "of not-given") {
		t.Errorf("%+v", tool)
	}
	if pinned, findings := downstream.Pin("notes", got.Listing.Instructions, got.Listing.Tools); len(pinned.Tools) != 1 || len(findings) != 0 {
		t.Errorf("it is not pinned: %+v", findings)
	}
}

// TestHostileServersAreListedByNobody: each ends with a sentence, and soon.
func TestHostileServersAreListedByNobody(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"says nothing":                {"exec sleep 60", "did not list its tools"},
		"ends at once":                {"echo 'no token' >&2; exit 3", "no token"},
		"says other things":           {"while :; do echo hello; done", "did not list its tools"},
		"a line without end":          {"tr '\\0' a </dev/zero", "did not list its tools"},
		"pages without end":           {strings.Replace(serve, "TOOLS", `printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[],"nextCursor":"x"}}\n' "$id"`, 1), "did not list its tools"},
		"tools without end":           {strings.Replace(serve, "TOOLS", `printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[' "$id"; while :; do printf '{"name":"x","inputSchema":{}},'; done`, 1), "did not list its tools"},
		"another's answer":            {strings.Replace(serve, "TOOLS", `printf '{"jsonrpc":"2.0","id":999999,"result":{"tools":[]}}\n'`, 1), "did not list its tools"},
		"a schema that is one":        {strings.Replace(serve, "TOOLS", `printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"x","inputSchema":"all"}]}}\n' "$id"`, 1), ""},
		"an unknown type":             {strings.Replace(serve, "TOOLS", `printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"x","inputSchema":{"type":"object","properties":{"a":{"type":"strin"}}}}]}}\n' "$id"`, 1), ""},
		"results of a broken pattern": {strings.Replace(serve, "TOOLS", `printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"x","inputSchema":{"type":"object"},"outputSchema":{"type":"object","properties":{"a":{"pattern":"("}}}}]}}\n' "$id"`, 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := asked(t, c.script)
			ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Second, errLate)
			defer cancel()
			begun := time.Now()
			got := answer(t, ctx, r)
			if took := time.Since(begun); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
			switch {
			case c.want == "" && got.Listing != nil:
				if pinned, findings := downstream.Pin("notes", "", got.Listing.Tools); len(pinned.Tools) != 0 || len(findings) != 1 {
					t.Errorf("it is pinned: %+v", pinned)
				}
			case c.want == "" || got.Listing != nil || !strings.Contains(got.Problem, c.want):
				t.Errorf("%+v", got)
			}
		})
	}
}

type late struct{}

func (late) Error() string { return "it did not list its tools in the test's time" }

var errLate error = late{}

// TestAnotherProgramIsNotStarted: what runs is what the digest is of.
func TestAnotherProgramIsNotStarted(t *testing.T) {
	r := asked(t, "exit")
	r.ProgramDigest[0]++
	if got := answer(t, t.Context(), r); got.Listing != nil || !strings.Contains(got.Problem, "not the one that was accepted") {
		t.Errorf("%+v", got)
	}
}

// TestNoServerIsListedWithDurwardsOwn: as it would not be started with it.
func TestNoServerIsListedWithDurwardsOwn(t *testing.T) {
	r := asked(t, "exit")
	folder, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r.Entry.Sandbox.Read, r.Own = []string{folder}, []string{filepath.Join(folder, "key")}
	if got := answer(t, t.Context(), r); got.Listing != nil || !strings.Contains(got.Problem, "what Durward keeps") {
		t.Errorf("%+v", got)
	}
}

// TestRemote: a server at the very address that a human named; nothing that it points to is followed.
func TestRemote(t *testing.T) {
	s := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
	s.AddTool(&mcp.Tool{Name: "look", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return nil, errLate
	})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if shown := r.Header.Get("Authorization"); shown != "" {
			t.Errorf("a listing shows %q", shown)
		}
		handler.ServeHTTP(w, r)
	}))
	defer server.Close()
	closed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "", http.StatusUnauthorized)
	}))
	defer closed.Close()
	elsewhere := httptest.NewServer(http.RedirectHandler(server.URL, http.StatusTemporaryRedirect))
	defer elsewhere.Close()
	for _, bearer := range []string{"", "x"} { // one that lists to everybody is added with what its calls need
		if got := answer(t, t.Context(), downstream.ListRequest{Entry: downstream.Entry{ID: "far", URL: server.URL, Bearer: bearer}}); got.Listing == nil || len(got.Listing.Tools) != 1 {
			t.Errorf("with the credential %q: %+v", bearer, got)
		}
	}
	if got := answer(t, t.Context(), downstream.ListRequest{Entry: downstream.Entry{ID: "far", URL: closed.URL, Bearer: "x"}}); got.Listing != nil || !strings.Contains(got.Problem, "without its credential") {
		t.Errorf("%+v", got)
	}
	if got := answer(t, t.Context(), downstream.ListRequest{Entry: downstream.Entry{ID: "far", URL: closed.URL}}); got.Listing != nil || !strings.HasSuffix(got.Problem, "--bearer NAME") {
		t.Errorf("a closed door: %+v", got)
	}
	for name, e := range map[string]downstream.Entry{
		"a redirect":         {ID: "far", URL: elsewhere.URL},
		"a private address":  {ID: "far", URL: "https://10.0.0.1/mcp"},
		"a cloud's metadata": {ID: "far", URL: "http://169.254.169.254/mcp"},
	} {
		if got := answer(t, t.Context(), downstream.ListRequest{Entry: e}); got.Listing != nil || got.Problem == "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
