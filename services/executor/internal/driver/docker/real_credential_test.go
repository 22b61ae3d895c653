//go:build real

package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/handover"
)

// TestRealCredentials: a container reads its credential from a file that has no name on the host any more, that is on no disk, and that
// nothing which Docker tells of it holds.
func TestRealCredentials(t *testing.T) {
	b := newBench(t)
	memory, err := os.MkdirTemp("/dev/shm", "real-docker")
	must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(memory); err != nil {
			t.Error(err)
		}
	})
	canary := "canary-" + strings.Repeat("5e", 12) + filepath.Base(memory)
	given := []handover.Value{{Name: "hf", File: true, Variable: "HF_TOKEN_PATH", Value: []byte(canary)}}
	b.d, err = New(Config{
		Socket: b.socket, Catalog: func() *catalog.Catalog { return b.c }, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Credentials: filepath.Join(memory, "credentials"),
		Release: func(_ context.Context, service string, _ []string, public []byte) ([]byte, error) {
			return handover.Seal(public, service, given)
		},
	})
	must(t, err)
	t.Cleanup(func() {
		if err := b.d.Close(); err != nil {
			t.Error(err)
		}
	})
	s := b.service(func(s *catalog.Service) {
		withPort(t)(s)
		s.Credentials = []string{"hf"}
	})
	b.start(s)
	b.await(b.d, s, driver.Running)
	if got := b.ask(s, "/environment"); !strings.Contains(got, "HF_TOKEN_PATH=/run/credentials/hf") || strings.Contains(got, canary) {
		t.Errorf("its environment: %s", got)
	}
	if got := b.ask(s, "/file?name=/run/credentials/hf"); got != "200 "+canary {
		t.Errorf("what it reads: %s", got)
	}
	if got := b.ask(s, "/write?name=/run/credentials/hf"); !strings.HasPrefix(got, "403") {
		t.Errorf("it can change it: %s", got)
	}
	if left, err := os.ReadDir(filepath.Join(memory, "credentials")); err != nil || len(left) != 0 {
		t.Errorf("names are left on the host: %v, %v", left, err)
	}
	told, err := b.api.ContainerInspect(t.Context(), name(s), client.ContainerInspectOptions{})
	must(t, err)
	if raw, err := json.Marshal(told); err != nil || bytes.Contains(raw, []byte(canary)) || len(raw) < 1000 {
		t.Errorf("Docker tells of it: %s, %v", raw, err)
	}
	// The daemon's own folder, which holds containers' layers, configurations and logs.
	root, seen := filepath.Dir(b.socket), 0
	if err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil // containers' layers come and go
		}
		raw, err := os.ReadFile(path)
		if seen++; err == nil && bytes.Contains(raw, []byte(canary)) {
			t.Errorf("%s holds it", path)
		}
		return nil
	}); err != nil || seen < 10 {
		t.Errorf("searched %d files, %v", seen, err)
	}
	// What the daemon would start again by itself finds no file.
	if _, err := b.api.ContainerStop(t.Context(), name(s), client.ContainerStopOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.api.ContainerStart(t.Context(), name(s), client.ContainerStartOptions{}); err == nil {
		t.Error("the container starts again without its executor")
	}

	// As a variable it would stand in the container's configuration, on the daemon's disk: refused, and nothing is left.
	given[0].File = false
	other := b.service(func(s *catalog.Service) { s.Credentials = []string{"hf"} })
	if err := begin(t.Context(), b.d, other); !errors.Is(err, driver.ErrNotTaken) {
		t.Errorf("as a variable: %v", err)
	}
	if all, err := b.d.list(t.Context(), other.ID); err != nil || len(all) != 0 {
		t.Errorf("a container was made: %v, %v", all, err)
	}
	if left, err := os.ReadDir(filepath.Join(memory, "credentials")); err != nil || len(left) != 0 {
		t.Errorf("names are left on the host: %v, %v", left, err)
	}
}
