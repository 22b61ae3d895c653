package catalogue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/canonical"
)

// host is a made-up one: programs in dir, users demo, root and the executor's own.
func host(t testing.TB) Options {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "serve"), []byte("#!/bin/true\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return Options{ProgramsDir: dir, UID: 1000, Users: func(name string) (*user.User, error) {
		if uid, ok := map[string]string{"demo": "2000", "root": "0", "self": "1000"}[name]; ok {
			return &user.User{Username: name, Uid: uid, Gid: uid}, nil
		}
		return nil, user.UnknownUserError(name)
	}}
}

const good = `version: 1
gpus:
  - {index: 0, name: One, memory_mib: 1000, simulated: true}
models:
  - {id: org/one, served_name: one}
services:
  - id: chat
    name: "Chat\e[31m"
    driver: process
    argv: [serve, --port, "8001", "; rm -rf /"]
    environment: {TOKENIZERS_PARALLELISM: "false"}
    run_as: demo
    port: 8001
    model: org/one
    gpus: [0]
    vram_mib: 500
  - id: idle
    driver: "null"
`

func TestAGoodCatalogue(t *testing.T) {
	opts := host(t)
	c, err := Parse("c.yaml", []byte(good), opts)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := c.Lookup("chat")
	want := &Service{
		ID: "chat", Name: "Chat", Driver: "process", Argv: []string{filepath.Join(opts.ProgramsDir, "serve"), "--port", "8001", "; rm -rf /"},
		Environment: map[string]string{"TOKENIZERS_PARALLELISM": "false"}, RunAs: "demo", Port: 8001, BaseURL: "http://127.0.0.1:8001/v1",
		Health: &Health{Path: "/health", TimeoutS: 2}, Model: &Model{ID: "org/one", ServedName: "one"}, VRAMMiB: 500, GPUs: []uint32{0},
		StartTimeoutS: 60, StopTimeoutS: 10, LogMaxBytes: 10 << 20,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entry (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"chat"}, c.Suggest("chta")); diff != "" {
		t.Errorf("suggestions (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(c.Digest, "sha256:") {
		t.Errorf("digest is %q", c.Digest)
	}
}

func TestBadCataloguesAreRefusedWithTheirPlace(t *testing.T) {
	entry := func(lines string) string {
		return "version: 1\ngpus:\n  - {index: 0, name: G, memory_mib: 9, simulated: true}\nservices:\n  - id: chat\n    driver: process\n    argv: [serve]\n    run_as: demo\n    port: 8001\n" + lines
	}
	with := func(old, new string) string { return strings.Replace(entry(""), old, new, 1) }
	tests := []struct {
		name, text string
		at         string
		what       string
	}{
		{name: "empty", text: "", what: "empty"},
		{name: "not YAML", text: "version: [", what: ""},
		{name: "no version", text: "services: []\n", at: "1:1", what: "version must be 1"},
		{name: "newer version", text: "version: 2\n", at: "1:10", what: "version must be 1"},
		{name: "unknown key", text: "version: 1\nservcies: []\n", at: "2:1", what: `did you mean "services"`},
		{name: "unknown key of a service", text: entry("    shell: true\n"), at: "10:5", what: "unknown key"},
		{name: "duplicate key", text: "version: 1\nversion: 1\n", at: "2:1", what: "already defined"},
		{name: "second document", text: "version: 1\n---\nversion: 1\n", what: "second document"},
		{name: "wrong type", text: with("port: 8001", "port: \"8001\""), at: "9:11", what: "whole number"},
		{name: "argv as text", text: with("argv: [serve]", "argv: serve --all"), at: "7:11", what: "a list"},
		{name: "duplicate service", text: entry("  - {id: chat, driver: \"null\"}\n"), at: "10:10", what: "twice"},
		{name: "port clash", text: entry("  - {id: two, driver: process, argv: [serve], run_as: demo, port: 8001}\n"), at: "10:67", what: `service "chat"`},
		{name: "no port", text: with("    port: 8001\n", ""), what: "needs a port"},
		{name: "port out of range", text: with("8001", "70000"), what: "needs a port"},
		{name: "bad id", text: with("id: chat", `id: "-chat"`), at: "5:9", what: "service id"},
		{name: "id with newline", text: with("id: chat", `id: "chat\n"`), at: "5:9", what: "service id"},
		{name: "id of 65", text: with("id: chat", "id: "+strings.Repeat("a", 65)), at: "5:9", what: "service id"},
		{name: "unknown driver", text: with("driver: process", "driver: docker"), at: "6:13", what: "driver must be"},
		{name: "unknown model", text: entry("    model: none\n"), at: "10:12", what: "not defined"},
		{name: "unknown GPU", text: entry("    gpus: [3]\n"), at: "10:12", what: "not defined"},
		{name: "GPU named twice", text: entry("    gpus: [0, 0]\n"), at: "10:15", what: "twice"},
		{name: "a GPU that is not simulated", text: with("simulated: true", "simulated: false"), at: "3:5", what: "simulated: true"},
		{name: "two GPUs of an index", text: with("services:", "  - {index: 0, name: H, memory_mib: 9, simulated: true}\nservices:"), at: "4:13", what: "twice"},
		{name: "model above its folder", text: "version: 1\nmodels: [{id: a/../../etc}]\n", at: "2:15", what: "model id"},
		{name: "no argv", text: with("    argv: [serve]\n", ""), what: "needs argv"},
		{name: "no such program", text: with("[serve]", "[nowhere-to-be-found]"), at: "7:12", what: "not found"},
		{name: "relative program", text: with("[serve]", "[./serve]"), at: "7:12", what: "absolute path"},
		{name: "shell", text: with("[serve]", "[/bin/sh, -c, ls]"), at: "7:12", what: "shell"},
		{name: "shell by name", text: with("[serve]", "[bash, -c, ls]"), at: "7:12", what: "shell"},
		{name: "program with dots", text: with("[serve]", "[/usr/bin/../bin/true]"), at: "7:12", what: "shortest form"},
		{name: "zero byte", text: with("[serve]", `[serve, "a\0b"]`), at: "7:19", what: "zero byte"},
		{name: "environment key", text: entry("    environment: {\"A=B\": c}\n"), at: "10:18", what: "environment key"},
		{name: "loader", text: entry("    environment: {LD_PRELOAD: /tmp/x.so}\n"), at: "10:31", what: "which code"},
		{name: "secret", text: entry("    environment: {HF_TOKEN: abc}\n"), at: "10:29", what: "secret"},
		{name: "secret key", text: entry("    environment: {OPENAI_API_KEY: abc}\n"), at: "10:35", what: "secret"},
		{name: "relative working folder", text: entry("    working_dir: srv\n"), at: "10:18", what: "absolute"},
		{name: "no user", text: with("    run_as: demo\n", ""), what: "needs run_as"},
		{name: "root", text: with("demo", "root"), at: "8:13", what: "neither root"},
		{name: "the executor's user", text: with("demo", "self"), at: "8:13", what: "neither root"},
		{name: "unknown user", text: with("demo", "ghost"), at: "8:13", what: "does not exist"},
		{name: "user as number", text: with("demo", `"0"`), at: "8:13", what: "name of a user"},
		{name: "base URL elsewhere", text: entry("    base_url: http://192.0.2.1:8001/v1\n"), at: "10:15", what: "loopback"},
		{name: "base URL by name", text: entry("    base_url: http://localhost:8001/v1\n"), at: "10:15", what: "loopback"},
		{name: "base URL with user", text: entry("    base_url: http://a@127.0.0.1:8001/v1\n"), at: "10:15", what: "nothing more"},
		{name: "base URL with another port", text: entry("    base_url: http://127.0.0.1:80/v1\n"), at: "10:15", what: "own port"},
		{name: "https", text: entry("    base_url: https://127.0.0.1:8001/v1\n"), at: "10:15", what: "http://"},
		{name: "health elsewhere", text: entry("    health: {path: \"http://example.com/\"}\n"), at: "10:20", what: "health path"},
		{name: "health with dots", text: entry("    health: {path: /../x}\n"), at: "10:20", what: "health path"},
		{name: "health too patient", text: entry("    health: {timeout_s: 31}\n"), at: "10:25", what: "1 to 30"},
		{name: "start timeout", text: entry("    start_timeout_s: 3601\n"), at: "10:22", what: "1 to 3600"},
		{name: "stop timeout", text: entry("    stop_timeout_s: 601\n"), at: "10:21", what: "1 to 600"},
		{name: "tiny log", text: entry("    log_max_bytes: 10\n"), at: "10:20", what: "log_max_bytes"},
		{name: "null with a program", text: "version: 1\nservices:\n  - {id: a, driver: \"null\", argv: [serve]}\n", what: "runs nothing"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("c.yaml", []byte(tc.text), host(t))
			if err == nil {
				t.Fatal("it was accepted")
			}
			if !strings.HasPrefix(err.Error(), "c.yaml:"+tc.at) || !strings.Contains(err.Error(), tc.what) {
				t.Errorf("error is %q, want c.yaml:%s … %s", err, tc.at, tc.what)
			}
		})
	}
}

// TestDevelopment: the same entry without a user is refused in production and accepted in development.
func TestDevelopment(t *testing.T) {
	text := []byte("version: 1\nservices: [{id: a, driver: process, argv: [serve], port: 8001}]\n")
	opts := host(t)
	if _, err := Parse("c.yaml", text, opts); err == nil {
		t.Error("production runs a service as the executor")
	}
	opts.Development = true
	if _, err := Parse("c.yaml", text, opts); err != nil {
		t.Errorf("development: %v", err)
	}
}

func TestSubjectHoldsTheWholeEntry(t *testing.T) {
	c, err := Parse("c.yaml", []byte(good), host(t))
	if err != nil {
		t.Fatal(err)
	}
	s, _ := c.Lookup("chat")
	subject, err := s.Subject("sha256:aa")
	if err != nil {
		t.Fatal(err)
	}
	if err := canonical.Check(subject); err != nil {
		t.Errorf("not canonical: %v", err)
	}
	var got map[string]any
	if err := json.Unmarshal(subject, &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"id", "argv", "environment", "run_as", "port", "health", "model", "gpus", "vram_mib", "program_sha256"} {
		if _, ok := got[key]; !ok {
			t.Errorf("an approver does not see %s", key)
		}
	}
	other, err := s.Subject("sha256:bb")
	if err != nil || bytes.Equal(other, subject) {
		t.Errorf("another program has the same subject (%v)", err)
	}
}

func TestProgramDigestFollowsTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "program")
	var p Programs
	if _, err := p.Digest(file); !errors.Is(err, ErrNoProgram) {
		t.Errorf("missing: %v", err)
	}
	if _, err := p.Digest(filepath.Dir(file)); !errors.Is(err, ErrNoProgram) {
		t.Errorf("a folder: %v", err)
	}
	digests := map[string]bool{}
	stamp := time.Now().Add(-time.Hour)
	for i := range 3 {
		// The same size and time: the change time alone tells.
		if err := os.WriteFile(file, fmt.Append(nil, i), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, stamp, stamp); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // the clock of file times is coarse
		d, err := p.Digest(file)
		if err != nil {
			t.Fatal(err)
		}
		again, err := p.Digest(file)
		if err != nil || again != d {
			t.Errorf("not stable: %s, %s, %v", d, again, err)
		}
		digests[d] = true
	}
	if len(digests) != 3 {
		t.Errorf("%d digests of three programs", len(digests))
	}
}

func TestTheLastGoodCatalogueStays(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("version: 3\n")
	if _, err := Open(file, host(t), slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("a bad catalogue was enough to start")
	}
	put("version: 1\nservices: [{id: a, driver: \"null\"}]\n")
	var said bytes.Buffer
	s, err := Open(file, host(t), slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	put("version: 1\nservices: [{id: a, driver: nul}]\n")
	if err := s.Reload(); err == nil {
		t.Error("a bad change was adopted")
	}
	if _, ok := s.Current().Lookup("a"); !ok {
		t.Error("the last good catalogue is gone")
	}
	put("version: 1\nservices: [{id: b, driver: \"null\"}]\n")
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, ok := s.Current().Lookup("b"); ok {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a good change was not seen")
		}
	}
	s.Close()
	if !strings.Contains(said.String(), "read again") {
		t.Errorf("the log says %q", said.String())
	}
}

// FuzzParse: whatever is in the file, there is no panic, and what is accepted can be shown and digested.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("version: 1\nservices: [{id: a, driver: \"null\"}]\n"))
	f.Add([]byte("version: 1\nservices:\n  - {id: a, driver: process, argv: [serve, \"\\u202e\"], port: 1, run_as: demo}\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("version: 1\ngpus: [{index: 63, name: \"\\e]0;x\\a\", memory_mib: 1, simulated: true}]\n"))
	opts := host(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := Parse("c.yaml", raw, opts)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "c.yaml:") {
				t.Errorf("an error without its file: %q", err)
			}
			return
		}
		for _, s := range c.Services {
			subject, err := s.Subject("")
			if err != nil {
				t.Fatalf("no subject for %q: %v", s.ID, err)
			}
			if err := canonical.Check(subject); err != nil {
				t.Fatalf("subject of %q: %v", s.ID, err)
			}
			if !idPattern.MatchString(s.ID) || s.Name == "" || strings.ContainsAny(s.Name, "\x1b\n\x07") {
				t.Errorf("id %q, name %q", s.ID, s.Name)
			}
			if s.Driver == DriverProcess && (len(s.Argv) == 0 || !filepath.IsAbs(s.Argv[0]) || s.RunAs == "") {
				t.Errorf("accepted: %+v", s)
			}
		}
	})
}
