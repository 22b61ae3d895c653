package importer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
)

// TestModelsOfOneName: a model is another one where its file or source is, whatever it is called; estimates are made of the file.
func TestModelsOfOneName(t *testing.T) {
	t.Parallel()
	present, err := catalog.Parse("x", []byte("version: 1\nmodels: [{id: a/b, file: /srv/q4.gguf, source: \"hf:a/b\"}, {id: known}]\n"), host())
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string) proposal.Fields {
		return proposal.Fields{{Key: "file", Value: name}, {Key: "source", Value: "hf:a/b"}}
	}
	source := proposal.Fields{{Key: "source", Value: "hf:a/b"}}
	for _, c := range []struct {
		name    string
		present *proposal.Present
		put     []proposal.Fields
		want    string
	}{
		{"the same file", nil, []proposal.Fields{file("/srv/q4.gguf"), file("/srv/q4.gguf")}, "a/b a/b"},
		{"the same source", nil, []proposal.Fields{source, source}, "a/b a/b"},
		{"two files", nil, []proposal.Fields{file("/srv/q4.gguf"), file("/srv/q8.gguf"), file("/srv/q4.gguf"), file("/srv/q8.gguf")}, "a/b a/b-2 a/b a/b-2"},
		{"a file of a source", nil, []proposal.Fields{file("/srv/q4.gguf"), source}, "a/b a/b-2"},
		{"a source and a file of it", nil, []proposal.Fields{source, file("/srv/q4.gguf")}, "a/b a/b-2"},
		{"nothing is known", nil, []proposal.Fields{nil, nil}, "a/b a/b"},
		{"the catalogue's file", present, []proposal.Fields{file("/srv/q4.gguf")}, "a/b"},
		{"not the catalogue's file", present, []proposal.Fields{file("/srv/q8.gguf"), nil}, "a/b-2 a/b-3"},
	} {
		p := proposal.New("x", c.present, "x")
		var got []string
		for _, fields := range c.put {
			got = append(got, p.Model("a/b", fields))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	p := proposal.New("x", present, "x")
	if got := p.Model("known", file("/srv/x.gguf")); got != "known-2" {
		t.Errorf("a model of which the catalogue knows no file is %q", got)
	}
	long := strings.Repeat("m", 200)
	first, second := p.Model(long, file("/1")), p.Model(long, file("/2"))
	if first == second || len(second) > proposal.MaxModelID || proposal.ModelID(second) != second {
		t.Errorf("%q %q", first, second)
	}
}

// TestModelsAlike: services of two quantizations of one model name two models, whichever tool they come from.
func TestModelsAlike(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, quant := range map[string]string{"a": "q4", "d": "q8"} {
		text := fmt.Sprintf("id: %s\ndriver: llamacpp\nmodel_id: Qwen/Qwen3-32B\nmodel_path: /srv/%s.gguf\n", name, quant)
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	swap := filepath.Join(dir, "swap.yml.txt")
	text := "models:\n  \"qwen:Q4\": {cmd: /x/llama-server --port 81 -m /srv/q4.gguf}\n  \"qwen-Q4\": {cmd: /x/llama-server --port 82 -m /srv/q8.gguf}\n"
	if err := os.WriteFile(swap, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for kind, from := range map[string]string{"gpumod": filepath.Join(dir, "a.yaml"), "llama-swap": swap} {
		p := proposal.New(kind, nil, "x")
		if err := read(p, kind, from); err != nil {
			t.Fatal(err)
		}
		out, err := p.Settle(context.Background(), nil, host())
		if err != nil {
			t.Fatal(err)
		}
		c, err := catalog.Parse("x", out, host())
		if err != nil {
			t.Fatal(err)
		}
		files := map[string]bool{}
		for _, s := range c.Services {
			files[s.Model.File] = true
		}
		if len(files) != 2 || !files["/srv/q4.gguf"] || !files["/srv/q8.gguf"] {
			t.Errorf("%s: files %v\n%s", kind, files, out)
		}
	}
}

func TestFreeID(t *testing.T) {
	t.Parallel()
	taken := map[string]bool{}
	for n := range 1100 {
		id := proposal.FreeID("a b", taken)
		if want := "a-b"; n == 0 && id != want || n == 1 && id != want+"-2" || n >= 999 && id != "" {
			t.Fatalf("number %d is %q", n, id)
		}
	}
}

// TestPortsGivenBack: what is left out has no port.
func TestPortsGivenBack(t *testing.T) {
	t.Parallel()
	text := "services:\n  a: {image: x, gpus: all, ports: [\"9000:80\"], volumes: [\"/etc:/x\"]}\n  b: {image: x, gpus: all, ports: [\"9000:80\"]}\n"
	p := proposal.New("compose", nil, "x")
	if err := composeFile(context.Background(), newBuilder(p, Given{}), map[string]bool{}, "x", "/base", []byte(text)); err != nil {
		t.Fatal(err)
	}
	out, err := p.Settle(context.Background(), nil, host())
	if err != nil || !strings.Contains(string(out), "\n    port: 9000\n") || strings.Contains(string(out), "another service") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestServiceWithoutItsModel: a model that cannot be written leaves its service, without it.
func TestServiceWithoutItsModel(t *testing.T) {
	t.Parallel()
	p := proposal.New("x", nil, "x")
	model := p.Model("m", proposal.Fields{{Key: "served_name", Value: "sk-abcdefgh"}})
	p.Service("s", proposal.Fields{{Key: "driver", Value: "null"}}, model, nil)
	out, err := p.Settle(context.Background(), nil, host())
	if err != nil || len(p.Services()) != 1 || len(p.Models()) != 0 || strings.Contains(string(out), "model: m") {
		t.Errorf("%v %v\n%s", err, p.LeftOut(), out)
	}
}

// TestHomeOfMounts: ~ is the HOME that a human gave, and nobody else's.
func TestHomeOfMounts(t *testing.T) {
	t.Parallel()
	for home, want := range map[string]string{"/home/ai": "source: /home/ai/models", "": "write out which folder"} {
		p := proposal.New("compose", nil, "x")
		b := newBuilder(p, Given{Variables: map[string]string{"HOME": home}})
		if err := composeFile(context.Background(), b, map[string]bool{}, "x", "/base", []byte(composeOf("volumes: [\"~/models:/m\"]"))); err != nil {
			t.Fatal(err)
		}
		if out, err := p.Settle(context.Background(), nil, host()); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v\n%s", home, err, out)
		}
	}
}

// TestWhatSetIsOfferedFor: a hint that would be refused is none.
func TestWhatSetIsOfferedFor(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"$MODELS/x": true, "${A}": true, "${}": false, "${1}$B": true, "${HF_TOKEN}": false, "${HF_TOKEN} $A": true} {
		why := unusable(expand(text, nil))
		if strings.Contains(why, "--set") != want || !strings.Contains(why, "no variable of the environment is read") || strings.Contains(why, "--set $") {
			t.Errorf("%s: %q", text, why)
		}
	}
}
