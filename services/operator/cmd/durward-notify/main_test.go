package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/platformtest/testfile"
)

// notices is a vault in which one request waits.
type notices struct {
	vaultv1.UnimplementedNoticeServiceServer
}

func (notices) WatchWaiting(_ *vaultv1.WatchWaitingRequest, stream grpc.ServerStreamingServer[vaultv1.WatchWaitingResponse]) error {
	if err := stream.Send(&vaultv1.WatchWaitingResponse{Waiting: []*vaultv1.Waiting{{
		Number: "K7F3ABCDEFGHJKMNPQRSTVWXYZ", Principal: "claude-code", Tool: "start_service", Tier: optionsv1.Tier_TIER_WRITE,
		AskedAt: timestamppb.Now(), ExpiresAt: timestamppb.New(time.Now().Add(time.Hour)),
	}}}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// TestRun: the program tells a receiver of what waits at the vault, over mutual TLS as a notifier; with -test of what does not.
func TestRun(t *testing.T) {
	kit := platformtest.New(t)
	address := kit.Serve(t, optionsv1.Role_ROLE_VAULT, "main", func(r grpc.ServiceRegistrar) { vaultv1.RegisterNoticeServiceServer(r, notices{}) })
	got := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- string(body)
	}))
	t.Cleanup(receiver.Close)
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(kit.Dir, name)
		testfile.Write(t, path, text)
		return path
	}
	config := func(as optionsv1.Role, local string) string {
		files := kit.Files(as, "alice")
		return write("notify.yaml", fmt.Sprintf(`trust_dir: %s
tls: {certificate: %s, key: %s}
vault: {address: %q, identity: %s}
gather: 1ms
destinations: [{name: phone, kind: ntfy, url_file: %s, local: %q}]
`, kit.TrustDir, files.Certificate, files.Key, address, kit.ID(optionsv1.Role_ROLE_VAULT, "main"), write("url", receiver.URL+"/hidden\n"), local))
	}
	local := strings.TrimPrefix(receiver.URL, "http://")
	start := func(args ...string) (int, string) {
		t.Helper()
		var out bytes.Buffer
		code := run(t.Context(), args, &out, &out)
		return code, out.String()
	}
	file := config(optionsv1.Role_ROLE_NOTIFIER, local)
	for _, args := range [][]string{nil, {"-config", "/nonexistent"}, {"-config", file, "more"}, {"-unknown"}, {"-config", write("bad.yaml", "x: 1\n")}} {
		if code, out := start(args...); code != 2 || out == "" {
			t.Errorf("%q ends with %d: %s", args, code, out)
		}
	}
	if code, out := start("-config", file, "-check"); code != 0 || out != "" {
		t.Errorf("-check ends with %d: %s", code, out)
	}
	if code, out := start("-config", file, "-test"); code != 0 || out != "✓ phone (ntfy)\n" {
		t.Errorf("-test ends with %d: %s", code, out)
	}
	if body := <-got; !strings.HasPrefix(body, "TEST: start_service (WRITE) by nobody.") {
		t.Errorf("the test's: %s", body)
	}
	if code, out := start("-config", file, "-test", "-json"); code != 0 || out != `{"destinations":[{"name":"phone","kind":"ntfy","reached":true}]}`+"\n" {
		t.Errorf("-test -json ends with %d: %s", code, out)
	}
	<-got

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() { done <- run(ctx, []string{"-config", file}, io.Discard, io.Discard) }()
	if body := <-got; body != "K7F3: start_service (WRITE) by claude-code. durward approve K7F3" {
		t.Errorf("told: %s", body)
	}
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("it ends with %d", code)
	}

	api, notifier := platformtest.NewWorkloadAPI(t), kit.ID(optionsv1.Role_ROLE_NOTIFIER, "alice")
	chain, key, err := kit.CA.Issue(notifier, 0)
	if err != nil {
		t.Fatal(err)
	}
	api.Send(notifier.String(), chain, key)
	files := kit.Files(optionsv1.Role_ROLE_NOTIFIER, "alice")
	text := testfile.Read(t, file)
	supplied := write("supplied.yaml", strings.Replace(string(text), fmt.Sprintf("{certificate: %s, key: %s}", files.Certificate, files.Key),
		fmt.Sprintf("{workload_api: %q}", api.Address()), 1))
	ctx, cancel = context.WithCancel(t.Context())
	go func() { done <- run(ctx, []string{"-config", supplied}, io.Discard, io.Discard) }()
	if body := <-got; body != "K7F3: start_service (WRITE) by claude-code. durward approve K7F3" {
		t.Errorf("told with a certificate of a Workload API: %s", body)
	}
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("with a certificate of a Workload API it ends with %d", code)
	}

	receiver.Close()
	if code, out := start("-config", file, "-test"); code != 1 || !strings.HasPrefix(out, "✗ phone (ntfy): "+local) || strings.Contains(out, "hidden") {
		t.Errorf("-test of a receiver that is away ends with %d: %s", code, out)
	}
	if code, out := start("-config", file, "-test", "-json"); code != 1 || !strings.Contains(out, `"reached":false,"problem":"`) || strings.Contains(out, "hidden") {
		t.Errorf("-test -json of a receiver that is away ends with %d: %s", code, out)
	}
}
