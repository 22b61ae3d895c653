package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"durward.internal/services/audit/internal/witness"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/platformtest/input"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/process"
)

// replace writes a changed copy of the shipped configuration, with a key for a log in it, and returns its path and the log's key.
func replace(t *testing.T, old, changed string) (string, string) {
	t.Helper()
	input.Outside(t)
	shipped := testfile.Read(t, filepath.Join("..", "..", "..", "..", "deploy", "config", "auditwitness.yaml"))
	secret, public, err := note.GenerateKey(nil, "durward.local/audit/main")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var key, vkey bytes.Buffer
	if err := newKey("witness.example/one", &key, &vkey); err != nil {
		t.Fatal(err)
	}
	if w, err := logproof.ParseWitness(strings.TrimSpace(vkey.String())); err != nil || w.Name() != "witness.example/one" {
		t.Fatalf("-new-key printed %q: %v", vkey.String(), err)
	}
	testfile.Write(t, filepath.Join(dir, "witness.key"), key.Bytes())
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	text := strings.NewReplacer(
		"/etc/durward-witness", dir, "/var/lib/durward-witness", filepath.Join(dir, "state"), "127.0.0.1:7461", lis.Addr().String(),
		"durward.local/audit/main+7f3a1b2c+REPLACE-WITH-THE-LINE-IN-LOG-KEYS", public,
	).Replace(strings.Replace(string(shipped), old, changed, 1))
	path := filepath.Join(dir, "auditwitness.yaml")
	testfile.Write(t, path, text)
	return path, secret
}

// TestCheck runs the program's -check on the shipped configuration and on broken ones.
func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		name, old, new string
		code           int
		want           string
	}{
		{"an unknown key", "logs:", "log:", 2, "log"},
		{"no logs", "logs:\n  - durward.local/audit/main+7f3a1b2c+REPLACE-WITH-THE-LINE-IN-LOG-KEYS", "logs: []", 2, "names no log"},
		{"a key that is none", "REPLACE-WITH-THE-LINE-IN-LOG-KEYS", "nonsense", 2, "logs[0]"},
		{"another machine's address", "127.0.0.1:7461", "0.0.0.0:7461", 2, "loopback"},
		{"a relative key file", "/etc/durward-witness/witness.key", "witness.key", 2, "key: must be an absolute path"},
		{"no key file", "witness.key", "absent.key", 2, "no such file"},
		{"a relative state folder", "/var/lib/durward-witness", "state", 2, "state_dir: must be an absolute path"},
		{"as shipped, with a log's key", "", "", 0, "ok"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path, _ := replace(t, tc.old, tc.new)
			s := &settings{}
			var out bytes.Buffer
			code := process.Main(process.Program{
				Name: "auditwitness", Version: version, Settings: s, Check: func() error { _, err := witness.LoadKey(s.Key); return err },
			}, []string{"-config", path, "-check"}, &out, &out)
			if code != tc.code || !strings.Contains(out.String(), tc.want) {
				t.Errorf("exit code %d, %q; want %d with %q", code, out.String(), tc.code, tc.want)
			}
		})
	}
}

// TestLife starts the process twice on the same state: what it cosigned in its first life binds it in the second.
func TestLife(t *testing.T) {
	path, secret := replace(t, "", "")
	signer, err := note.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	request := func(root byte) []byte {
		signed, err := logproof.SignCheckpoint(logproof.Checkpoint{Origin: signer.Name(), Size: 1, Root: [32]byte{root}}, signer)
		if err != nil {
			t.Fatal(err)
		}
		return witness.FormatRequest(0, nil, signed)
	}
	for life, want := range []int{http.StatusOK, http.StatusConflict} {
		s := &settings{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		var out bytes.Buffer
		if code := process.Main(process.Program{Name: "auditwitness", Settings: s}, []string{"-config", path, "-check"}, &out, &out); code != 0 {
			t.Fatal(out.String())
		}
		go func() { ended <- run(ctx, s, platformtest.Logger()) }()
		code := post(t, s.Listen, request(byte(life)))
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if code != want {
			t.Errorf("life %d: status %d, want %d", life, code, want)
		}
	}
}

// post posts once the process listens.
func post(t *testing.T, to string, body []byte) int {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		answer, err := http.Post(fmt.Sprintf("http://%s/add-checkpoint", to), "text/plain", bytes.NewReader(body))
		if err == nil {
			_ = answer.Body.Close()
			return answer.StatusCode
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond) // until it listens
	}
}
