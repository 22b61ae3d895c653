package notify

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/platformtest/testfile"
)

func waiting(number, principal, tool string, tier optionsv1.Tier) []*vaultv1.Waiting {
	return []*vaultv1.Waiting{{
		Number: number, Principal: principal, Tool: tool, Tier: tier,
		AskedAt: timestamppb.New(time.Unix(1000, 0)), ExpiresAt: timestamppb.New(time.Unix(2800, 0)),
	}}
}

// sample is a message about one request.
func sample(tier optionsv1.Tier) message {
	cfg := &Config{Command: "durward"}
	return newMessage(cfg.notices(waiting("K7F3ABCDEFGHJKMNPQRSTVWXYZ", "claude-code", "start_service", tier)), false)
}

const line = "K7F3: start_service (WRITE) by claude-code. durward approve K7F3"

// received is what a stand-in for a receiver saw.
type received struct {
	method, path, body string
	header             http.Header
}

// standIn is a receiver on loopback, and the configuration of the destination that reaches it.
func standIn(t *testing.T, kind string, answer http.HandlerFunc) (*Config, Destination, chan received) {
	t.Helper()
	got := make(chan received, 10)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- received{r.Method, r.URL.Path, string(body), r.Header}
		if answer != nil {
			answer(w, r)
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	must(t, err)
	return &Config{}, Destination{Name: "x", Kind: kind, URLFile: write(t, "url", s.URL+"/hidden\n"), Local: u.Host}, got
}

func send(t *testing.T, cfg *Config, d Destination, m message) error {
	t.Helper()
	to, err := cfg.sender(d)
	must(t, err)
	return to.send(t.Context(), m)
}

// TestWebReceivers: each kind of receiver gets what it takes, and nothing in it is markup or a mention.
func TestWebReceivers(t *testing.T) {
	for kind, member := range map[string]string{KindSlack: "text", KindMattermost: "text", KindDiscord: "content"} {
		cfg, d, got := standIn(t, kind, nil)
		if err := send(t, cfg, d, sample(optionsv1.Tier_TIER_WRITE)); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		r := <-got
		var document map[string]any
		must(t, json.Unmarshal([]byte(r.body), &document))
		if r.method != http.MethodPost || r.path != "/hidden" || r.header.Get("Content-Type") != "application/json" ||
			document[member] != "Durward: a request waits for you\n```\n"+line+"\n```" {
			t.Errorf("%s got %+v", kind, r)
		}
		if _, none := document["allowed_mentions"]; none != (kind == KindDiscord) {
			t.Errorf("%s got %s", kind, r.body)
		}
	}
	cfg, d, got := standIn(t, KindNtfy, nil)
	d.TokenFile = write(t, "token", "tk_secret\n")
	must(t, send(t, cfg, d, sample(optionsv1.Tier_TIER_WRITE)))
	r := <-got
	if r.body != line || r.header.Get("Title") != "Durward: a request waits for you" || r.header.Get("Authorization") != "Bearer tk_secret" || r.header.Get("Priority") != "" {
		t.Errorf("ntfy got %+v", r)
	}
	must(t, send(t, cfg, d, sample(optionsv1.Tier_TIER_DESTRUCTIVE)))
	if r := <-got; r.header.Get("Priority") != "high" || !strings.Contains(r.body, "(DESTRUCTIVE)") {
		t.Errorf("ntfy got %+v", r)
	}
}

// TestWebFailures: a receiver's failing is one sentence, with no secret in it and nothing that the receiver wrote; it leads nowhere
// else.
func TestWebFailures(t *testing.T) {
	elsewhere := make(chan struct{}, 1)
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere <- struct{}{} }))
	t.Cleanup(other.Close)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"not found": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "EVIL", http.StatusNotFound) }, "status 404"},
		"limited":   {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }, "status 429"},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}, "redirect"},
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			for err := error(nil); err == nil; _, err = w.Write(make([]byte, 1<<16)) {
			}
		}, "larger"},
		"broken": {func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }, "ended"},
	} {
		cfg, d, _ := standIn(t, KindSlack, c.answer)
		err := send(t, cfg, d, sample(optionsv1.Tier_TIER_WRITE))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hidden") || strings.Contains(err.Error(), "EVIL") {
			t.Errorf("%s: %v", name, err)
		}
	}
	select {
	case <-elsewhere:
		t.Error("a redirect is followed")
	default:
	}
}

// TestCommand: an operator's command gets its own arguments, the requests on its standard input, and ENV-1's environment.
func TestCommand(t *testing.T) {
	t.Setenv("SSH_AUTH_SOCK", "/secret")
	folder := t.TempDir()
	script := filepath.Join(folder, "tell")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\ncat > "+folder+"/in\nenv > "+folder+"/env\nprintf '%s\\n' \"$@\" > "+folder+"/args\necho said\n"), 0o700))
	d := Destination{Name: "own", Kind: KindCommand, Program: []string{script, "--a b", "$(id)"}}
	must(t, send(t, &Config{}, d, sample(optionsv1.Tier_TIER_WRITE)))
	read := func(name string) string {
		t.Helper()
		return string(testfile.Read(t, filepath.Join(folder, name)))
	}
	if got := read("in"); got != `{"waiting":[{"number":"K7F3","client":"claude-code","tool":"start_service","tier":"WRITE","asked_at":"1970-01-01T00:16:40Z","expires_at":"1970-01-01T00:46:40Z","approve":"durward approve K7F3"}],"more":0,"test":false}`+"\n" {
		t.Errorf("its input: %s", got)
	}
	if got := read("args"); got != "--a b\n$(id)\n" {
		t.Errorf("its arguments: %q", got)
	}
	for variable := range strings.Lines(read("env")) {
		name, _, _ := strings.Cut(variable, "=")
		switch name {
		case "PATH", "HOME", "TERM", "TZ", "LANG", "USER", "PWD", "SHLVL", "_", "OLDPWD": // the latter are the shell's
		default:
			t.Errorf("its environment has %s", variable)
		}
	}
}

func TestCommandFailures(t *testing.T) {
	for name, c := range map[string]struct {
		program []string
		want    string
	}{
		"it fails":        {[]string{"/bin/sh", "-c", "echo EVIL >&2; exit 3"}, "exit status 3"},
		"there is none":   {[]string{"/nonexistent/program"}, "cannot be started"},
		"a folder":        {[]string{"/tmp"}, "cannot be started"},
		"it never reads":  {[]string{"/bin/sh", "-c", "exit 0"}, ""},
		"it writes a lot": {[]string{"/bin/sh", "-c", "head -c 5000000 /dev/zero"}, ""},
	} {
		err := send(t, &Config{}, Destination{Name: "own", Kind: KindCommand, Program: c.program}, sample(optionsv1.Tier_TIER_WRITE))
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "EVIL")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// One that hangs is ended, with what it started.
	pipe := filepath.Join(t.TempDir(), "pipe")
	must(t, syscall.Mkfifo(pipe, 0o600))
	to, err := newCommand([]string{"/bin/sh", "-c", "sleep 600 & echo $! > " + pipe + "; wait"})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- to.send(ctx, sample(optionsv1.Tier_TIER_WRITE)) }()
	written, err := os.ReadFile(pipe) // until the other side has written
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(written)))
	must(t, err)
	process, err := unix.PidfdOpen(pid, 0)
	must(t, err)
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "does not end") {
		t.Errorf("it is not ended: %v", err)
	}
	n, err := 0, error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, 60_000)
	}
	if n != 1 {
		t.Errorf("what it started lives on: %v", err)
	}
	if err := unix.Close(process); err != nil {
		t.Error(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
