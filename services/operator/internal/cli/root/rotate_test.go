package root

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/client"
)

// TestRotateAtOnce: where the old credential ends at once, the new one is in its place before that, since a bridge that is refused
// looks there; and where nothing is written the old one is back.
func TestRotateAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	clients := filepath.Join(w.withClients(t), "clients.yaml")
	if r := w.run("client", "add", "desk", "--yes"); r.code != cli.ExitOK {
		t.Fatalf("%+v", r)
	}
	folder := w.home.Client("desk")
	digest := func() string {
		sum := sha256.Sum256([]byte(strings.TrimSpace(read(t, filepath.Join(folder, client.FileToken)))))
		return hex.EncodeToString(sum[:])
	}
	old, written := digest(), read(t, clients)

	// Whoever sees the new clients.yaml, as early as can be, finds the token that it lets in.
	seen := make(chan bool, 1)
	w.announced = func(string) {
		go func() {
			for now := ""; ; time.Sleep(100 * time.Microsecond) { // the file as early as can be seen
				raw, err := os.ReadFile(clients)
				if now = string(raw); err == nil && now != written {
					seen <- strings.Contains(now, digest())
					return
				}
			}
		}()
	}
	if r := w.run("client", "rotate", "desk", "--overlap", "0", "--yes"); r.code != cli.ExitOK || digest() == old {
		t.Fatalf("%+v", r)
	}
	if !<-seen {
		t.Error("the old token had ended, and the new one was not in its place")
	}

	// Somebody else writes the file meanwhile: nothing is written, and the client's programs keep what is let in.
	old = digest()
	w.announced = func(string) {
		if err := os.WriteFile(clients, []byte(read(t, clients)+"# by hand\n"), 0o600); err != nil {
			t.Error(err)
		}
	}
	if r := w.run("client", "rotate", "desk", "--overlap", "0", "--yes"); r.code == cli.ExitOK || digest() != old || !strings.Contains(read(t, clients), old) {
		t.Errorf("%+v", r)
	}
	if list, err := os.ReadDir(filepath.Dir(folder)); err != nil || len(list) != 1 {
		t.Errorf("left over: %v, %v", list, err)
	}
}

// TestConnectLowersNothing: a client that is let in keeps its ceiling, so whoever connects it with another one is told so, and nothing
// is changed.
func TestConnectLowersNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	clients := filepath.Join(w.withClients(t), "clients.yaml")
	if r := w.run("client", "add", "desk", "--yes"); r.code != cli.ExitOK {
		t.Fatalf("%+v", r)
	}
	written := read(t, clients)
	for _, c := range []struct {
		extra []string
		code  int
		want  string
	}{
		{[]string{"--tier", "READ"}, cli.ExitUsage, "the client desk is let in already, up to WRITE: --tier is for a new one\n  Change its tier_ceiling in " + clients},
		{[]string{"--tier", "DESTRUCTIVE"}, cli.ExitUsage, "up to WRITE"},
		{[]string{"--tier", "READ", "--ssh", "gpu1"}, cli.ExitUsage, "up to WRITE"},
		{[]string{"--ssh", "gpu1"}, cli.ExitUsage, "the client desk is of this host"},
		{[]string{"--tier", "WRITE"}, cli.ExitOK, ""},
		{nil, cli.ExitOK, ""},
	} {
		r := w.run(append([]string{"client", "connect", "cursor", "--name", "desk", "--dry-run"}, c.extra...)...)
		if r.code != c.code || !strings.Contains(r.err, c.want) || c.code != cli.ExitOK && r.out != "" {
			t.Errorf("%v: %+v", c.extra, r)
		}
	}
	if read(t, clients) != written {
		t.Error("clients.yaml was changed")
	}
}

// TestRotateNobody: what the file says of a client comes before what its folder lacks.
func TestRotateNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withClients(t)
	if r := w.run("client", "rotate", "nobody", "--yes"); r.code != cli.ExitUsage || !strings.Contains(r.err, "there is no client nobody") {
		t.Errorf("%+v", r)
	}
}
