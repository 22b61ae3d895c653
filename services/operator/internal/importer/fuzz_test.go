package importer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest/testfile"
)

// settles holds what every import promises: what comes out is accepted by the catalog and shows nothing but text, whatever came in.
func settles(t *testing.T, p *proposal.Proposal) {
	t.Helper()
	out, err := p.Settle(context.Background(), nil, host())
	for _, l := range p.LeftOut() {
		shows(t, l.What)
		shows(t, l.Why)
	}
	if errors.Is(err, proposal.ErrNothing) {
		return
	}
	if err != nil {
		t.Fatalf("it does not settle: %v", err)
	}
	shows(t, string(out))
	c, err := catalog.Parse("x", out, host())
	if err != nil {
		t.Fatalf("the catalogue refuses it: %v\n%s", err, out)
	}
	for _, s := range c.Services {
		if s.Driver == catalog.DriverProcess && len(s.Argv) == 0 || s.Driver == catalog.DriverDocker && s.Container.User == "" {
			t.Errorf("an entry that nothing could run: %+v", s)
		}
		// A list of its own, so that what the importers' list misses can be found.
		for key, value := range s.Environment {
			for _, part := range []string{"PASSW", "SECRET", "APIKEY", "API_KEY", "HF_TOKEN", "CREDENTIAL", "PRIVATE_KEY", "AUTH_TOKEN"} {
				if name := strings.ToUpper(key); strings.Contains(name, part) && !strings.HasSuffix(name, "_FILE") {
					t.Errorf("a secret: %s", key)
				}
			}
			if strings.Contains(value, "hunter2") || strings.Contains(value, "sk-000000") {
				t.Errorf("a secret: %s=%s", key, value)
			}
		}
	}
}

// shows holds that every line of a text is what it looks like.
func shows(t *testing.T, text string) {
	t.Helper()
	for line := range strings.SplitSeq(text, "\n") {
		// What was made visible holds backslashes, which Visible would show as well.
		if !proposal.Shown(strings.ReplaceAll(line, `\`, "/")) {
			t.Errorf("not clean: %q", line)
		}
	}
}

func seed(f *testing.F, names ...string) {
	f.Helper()
	for _, name := range names {
		data, err := testdata.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
}

func FuzzLlamaSwap(f *testing.F) {
	seed(f, "testdata/llama-swap/full.yaml", "testdata/llama-swap/matrix.yaml")
	f.Add([]byte("models: {a: {cmd: \"/x ${a} --port ${PORT}\", macros: {a: \"${MODEL_ID}\"}}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		root, err := boundedyaml.Decode("x", data)
		if err != nil {
			return
		}
		p := proposal.New("llama-swap", nil, "x")
		if llamaSwap(context.Background(), p, root, "/base", Given{}) == nil {
			settles(t, p)
		}
	})
}

func FuzzCompose(f *testing.F) {
	seed(f, "testdata/compose/gpu.yaml")
	f.Add([]byte("services: {a: {image: \"x:1\", gpus: all, ports: [\"80:80\"], volumes: [\"/a:/b\"]}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := proposal.New("compose", nil, "x")
		if composeData(context.Background(), newBuilder(p, Given{}), map[string]bool{}, "x", "/base", data) == nil {
			settles(t, p)
		}
	})
}

func FuzzGpumod(f *testing.F) {
	seed(f, "testdata/gpumod/presets/llm/coder.yaml", "testdata/gpumod/presets/boxed.yaml", "testdata/gpumod/modes/code.yaml")
	f.Fuzz(func(t *testing.T, data []byte) {
		root, err := boundedyaml.Decode("x", data)
		if err != nil {
			return
		}
		p := proposal.New("gpumod", nil, "x")
		g := &gpumod{builder: newBuilder(p, Given{})}
		g.preset(presetFile{"presets/x.yaml", root})
		g.mode(presetFile{"modes/x.yaml", root})
		settles(t, p)
	})
}

// TestGpumodFolder: what is no regular file is not read, and nothing outside the folder is.
func TestGpumodFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside.yaml")
	preset := "id: %\nname: x\ndriver: vllm\nvram_mb: 1\nport: 8000\n"
	for name, text := range map[string]string{
		outside: strings.ReplaceAll(preset, "%", "outside"), filepath.Join(dir, "presets", "a.yaml"): strings.ReplaceAll(preset, "%", "a"),
		filepath.Join(dir, "presets", ".git", "b.yaml"): strings.ReplaceAll(preset, "%", "b"), filepath.Join(dir, "presets", "c.txt"): strings.ReplaceAll(preset, "%", "c"),
		filepath.Join(dir, "presets", "large.yaml"): "# " + strings.Repeat("x", maxPresetBytes),
	} {
		must(t, os.MkdirAll(filepath.Dir(name), 0o700))
		testfile.Write(t, name, text)
	}
	for link, target := range map[string]string{"link.yaml": outside, "folder": filepath.Dir(outside)} {
		must(t, os.Symlink(target, filepath.Join(dir, "presets", link)))
	}
	p := proposal.New("gpumod", nil, "x")
	must(t, Gpumod(context.Background(), p, dir, Given{}))
	if got := p.Services(); len(got) != 1 || got[0] != "a" {
		t.Errorf("services %q", got)
	}
	if err := Gpumod(context.Background(), proposal.New("gpumod", nil, "x"), t.TempDir(), Given{}); err == nil {
		t.Error("an empty folder is an import")
	}
}
