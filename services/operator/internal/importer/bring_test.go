package importer

import (
	"context"
	"embed"
	"flag"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
)

var update = flag.Bool("update", false, "write the golden proposals anew")

// testdata makes the fixtures part of the test's binary, by which Go's test cache knows their content wherever the tree lies. What
// reads files by name finds the same ones below fixtures, at which the cache does not look.
//
//go:embed testdata/golden testdata/llama-swap testdata/compose testdata/gpumod
var testdata embed.FS

const fixtures = "/proc/self/cwd/testdata/"

// host is how the catalog is read in tests: no program is looked for, and one user exists.
func host() catalog.Options {
	return catalog.Options{Development: true, UID: 990, Users: func(name string) (*user.User, error) {
		if name != "ai" {
			return nil, user.UnknownUserError(name)
		}
		return &user.User{Uid: "1000", Username: "ai"}, nil
	}}
}

// present is a catalog that stands already.
const present = `version: 1
gpus:
  - index: 0
    uuid: GPU-11111111-2222-3333-4444-555555555555
  - index: 1
services:
  - id: taken
    driver: systemd
    unit: taken.service
    port: 6002
`

func presentFiles() []catalog.File {
	return []catalog.File{{Name: "present.yaml", Data: []byte(present)}}
}

func presentCatalog(t testing.TB) *catalog.Catalog {
	t.Helper()
	c, err := catalog.ParseFiles(presentFiles(), host())
	must(t, err)
	return c
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *update {
		must(t, os.WriteFile(path, got, 0o644))
		return
	}
	want, err := testdata.ReadFile(path)
	must(t, err)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got)\n%s", name, diff)
	}
}

var imports = []struct {
	name, kind string
	read       func(*proposal.Proposal) error
}{
	{"llama-swap", "llama-swap", func(p *proposal.Proposal) error {
		return LlamaSwap(context.Background(), p, fixtures+"llama-swap/full.yaml", Given{})
	}},
	{"llama-swap-set", "llama-swap", func(p *proposal.Proposal) error {
		return LlamaSwap(context.Background(), p, fixtures+"llama-swap/full.yaml", Given{RunAs: "ai", Variables: map[string]string{"MODELS": "/srv/models"}})
	}},
	{"llama-swap-matrix", "llama-swap", func(p *proposal.Proposal) error {
		return LlamaSwap(context.Background(), p, fixtures+"llama-swap/matrix.yaml", Given{})
	}},
	{"compose", "compose", func(p *proposal.Proposal) error {
		data, err := boundedyaml.ReadFile(fixtures + "compose/gpu.yaml")
		if err != nil {
			return err
		}
		return composeData(context.Background(), newBuilder(p, Given{}), map[string]bool{}, "gpu.yaml", "/home/ai/box", data)
	}},
	{"llama-swap-containers", "llama-swap", func(p *proposal.Proposal) error {
		return LlamaSwap(context.Background(), p, fixtures+"llama-swap/containers.yaml", Given{})
	}},
	{"compose-more", "compose", func(p *proposal.Proposal) error {
		data, err := boundedyaml.ReadFile(fixtures + "compose/more.yaml")
		if err != nil {
			return err
		}
		return composeData(context.Background(), newBuilder(p, Given{ContainerUser: "2000:2000"}), map[string]bool{}, "more.yaml", "/home/ai/more", data)
	}},
	{"gpumod", "gpumod", func(p *proposal.Proposal) error { return Gpumod(context.Background(), p, fixtures+"gpumod", Given{}) }},
	{"gpumod-set", "gpumod", func(p *proposal.Proposal) error {
		return Gpumod(context.Background(), p, fixtures+"gpumod", Given{Variables: map[string]string{"HOME": "/home/ai"}})
	}},
}

// TestGolden: every feature of the formats, with a catalog that is there and without one. The catalog accepts what comes out,
// and no secret of the fixtures is in it.
func TestGolden(t *testing.T) {
	// The environment is never read.
	for _, key := range []string{"MODELS", "HF_TOKEN", "IMAGE", "VLLM_TAG", "HOME"} {
		t.Setenv(key, "/from/the/environment")
	}
	for _, c := range imports {
		for _, beside := range []bool{false, true} {
			name := c.name + ".yaml"
			var files []catalog.File
			var there *catalog.Catalog
			if beside {
				name, files, there = c.name+"-beside.yaml", presentFiles(), presentCatalog(t)
			}
			t.Run(name, func(t *testing.T) {
				p := proposal.New(c.kind, there, "a fixture")
				must(t, c.read(p))
				text, err := p.Settle(context.Background(), files, host())
				must(t, err)
				golden(t, name, text)
				if _, err := catalog.ParseFiles(append(files, catalog.File{Name: "~", Data: text}), host()); err != nil {
					t.Errorf("the catalogue refuses it: %v", err)
				}
				if strings.Contains(string(text), "not-a-real") || strings.Contains(string(text), "notareal") {
					t.Errorf("a secret is in it")
				}
			})
		}
	}
}

// composeData is composeFile of what a file holds.
func composeData(ctx context.Context, b *builder, modes map[string]bool, file, base string, data []byte) error {
	root, err := boundedyaml.Decode(file, data)
	if err != nil {
		return err
	}
	return composeFile(ctx, b, modes, file, base, root)
}
