package importer

import (
	"context"
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest/testfile"
)

// importText imports a text as from a file.
func importText(t *testing.T, p *proposal.Proposal, kind, text string, given Given) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.yaml")
	testfile.Write(t, file, text)
	if kind == "compose" {
		return Compose(t.Context(), p, []string{file}, given)
	}
	return LlamaSwap(t.Context(), p, file, given)
}

// TestCorpus measures files that others published, CORPUS=DIR with folders llama-swap and compose: how many of their models and GPU services
// come over, and that each proposal is one that the catalog takes on a host that has none of it.
func TestCorpus(t *testing.T) {
	dir := os.Getenv("CORPUS")
	if dir == "" {
		t.Skip("CORPUS names no folder of public files")
	}
	installed := catalog.Options{UID: 990, Users: func(string) (*user.User, error) { return &user.User{Uid: "65534"}, nil }}
	for _, kind := range []string{"llama-swap", "compose"} {
		wanted, came := 0, 0
		files, _ := filepath.Glob(filepath.Join(dir, kind, "*.y*ml"))
		for _, file := range files {
			data, err := boundedyaml.ReadFile(file)
			must(t, err)
			root, err := boundedyaml.Decode(filepath.Base(file), data)
			if err != nil {
				t.Errorf("%v", err)
				continue
			}
			n := len(root.Get("models").Keys)
			if kind == "compose" {
				n = 0
				for _, name := range root.Get("services").Keys {
					if (&box{v: root.At("services", name), plain: true}).wants() {
						n++
					}
				}
			}
			p := proposal.New(kind, nil, filepath.Base(file))
			p.Host(nil)
			given := Given{RunAs: "nobody", Find: func(string) error { return errors.New("not here") }}
			if kind == "compose" {
				err = Compose(context.Background(), p, []string{file}, given)
			} else {
				err = LlamaSwap(context.Background(), p, file, given)
			}
			if err != nil {
				t.Errorf("%s: %v", filepath.Base(file), err)
				continue
			}
			text, err := p.Settle(context.Background(), nil, installed)
			if err != nil && !errors.Is(err, proposal.ErrNothing) {
				t.Errorf("%s: %v", filepath.Base(file), err)
			} else if err == nil {
				if _, err := catalog.Parse("x", text, installed); err != nil {
					t.Errorf("%s: %v", filepath.Base(file), err)
				}
			}
			wanted, came = wanted+n, came+len(p.Services())
			t.Logf("%s %s: %d of %d", kind, strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), len(p.Services()), n)
			for _, l := range p.LeftOut() {
				t.Logf("  %s: %s", l.What, l.Why)
			}
		}
		t.Logf("%s: %d of %d", kind, came, wanted)
	}
}
