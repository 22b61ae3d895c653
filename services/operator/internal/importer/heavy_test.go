package importer

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest/testfile"
)

// many joins n texts that format makes of their numbers.
func many(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// heavy are files of less than 1 MB that would keep a reader busy for minutes to hours, or fill the memory, if each list and text
// were read as often as it is named; and what is said of them, as an error or as what was left out.
func heavy() []struct{ name, kind, text, want string } {
	const image = "image: x@sha256:1111111111111111111111111111111111111111111111111111111111111111, gpus: all"
	list := "x-l: &l [" + strings.Repeat("a,", 90_000) + "]\n"
	mapping := "x-m: &m {" + many(40_000, "k%d: a,") + "}\n"
	all := func(key string) string { return "services:\n" + many(900, "  s%d: {"+image+", "+key+"}\n") }
	models := func(n int, fields string) string { return "models:\n" + many(n, "  m%d: {"+fields+"}\n") }
	return []struct{ name, kind, text, want string }{
		{"dollars", "compose", "x-d: &d \"" + strings.Repeat("$!", 30_000) + "\"\n" + all("command: [*d]"), "the text is longer than 8 MB"},
		{"dollars in a default", "compose", "x-d: &d \"" + strings.Repeat("${A:-x}", 9_000) + "\"\n" + all("command: [*d]"), "the text is longer than 8 MB"},
		{"a long command", "compose", list + all("command: *l"), "command has more than 128 entries"},
		{"a long environment", "compose", mapping + all("environment: *m"), "environment has more than 64 entries"},
		{"many mounts", "compose", list + all("volumes: *l"), "volumes has more than 32 entries"},
		{"many ports", "compose", list + all("ports: *l"), "ports has more than 64 entries"},
		{"many dependencies", "compose", list + all("depends_on: *l"), "depends_on has more than 64 entries"},
		{"many devices", "compose", list + all("devices: *l"), "devices has more than 64 entries"},
		{"many tmpfs", "compose", list + all("tmpfs: *l"), "tmpfs has more than 16 entries"},
		{"many ids of devices", "compose", list + "services:\n" + many(900, "  s%d: {image: x, deploy: {resources: {reservations: {devices: [{capabilities: [gpu], device_ids: *l}]}}}}\n"), "it asks for no GPU"},
		{"many files of variables", "compose", list + all("env_file: *l"), "env_file has more than 64 entries"},
		{"many profiles", "compose", list + all("profiles: *l"), "profiles has more than 64 entries"},
		{"many keys", "compose", "x-m: &m {" + image + ", " + many(40_000, "k%d: a,") + "}\nservices:\n" + many(900, "  s%d: *m\n"), "more than 256 keys"},
		{"one name in many spellings", "compose", "services:\n" + many(4_000, "  \"a\\x01%d\": {gpus: all}\n"), "more than 256 services"},
		{"too many services", "compose", "services: {" + many(20_000, "s%d: {},") + "}", "more than 4096 services"},
		{"too many models", "llama-swap", "models: {" + many(20_000, "s%d: {},") + "}", "more than 4096 models"},
		{"models of one name", "llama-swap", "models: {" + strings.Join(spellings(4_000), ": {cmd: x}, ") + ": {cmd: x}}", "more than 256 services"},
		{"macros that are looked through", "llama-swap", "macros: {" + many(15, "a%d: \""+strings.Repeat("x", 25_000)+"\",") + "}\n" + models(1_500, "cmd: \"/x "+many(15, "${a%d}")+"\""),
			"expand to more than 4 MB together"},
		{"half a macro", "llama-swap", "x-t: &t \"" + strings.Repeat("${"+strings.Repeat("a", 85)+"}", 700) + "\"\n" + models(400, "cmd: *t, proxy: *t"), "expand to more than 4 MB together"},
		{"a long env", "llama-swap", list + models(900, "cmd: x, env: *l"), "env has more than 64 entries"},
		{"macros of models", "llama-swap", mapping + models(900, "cmd: x, macros: *m"), "macros has more than 256 entries"},
		{"aliases of models", "llama-swap", list + models(900, "cmd: x, aliases: *l"), "aliases has more than 64 entries"},
		{"members of groups", "llama-swap", list + models(250, "cmd: /x/y%%d") + "groups:\n" + many(900, "  g%d: {persistent: true, members: *l}\n"), "more than 256 members"},
		{"a matrix of one set", "llama-swap", models(900, "cmd: /x/y") + "matrix:\n  sets:\n    b: m0" + many(899, " & m%d") + "\n" + many(20_000, "    s%d: +b\n"), "names more than 256 models"},
		{"a matrix of many sets", "llama-swap", models(250, "cmd: /x/y") + "matrix:\n  sets:\n    b: m0" + many(249, " & m%d") + "\n" + many(20_000, "    s%d: +b\n"), "stand for too much together"},
		{"a matrix of many variables", "llama-swap", mapping + models(1, "cmd: /x/y") + "matrix:\n  vars: *m\n  sets:\n" + many(20_000, "    s%d: m0\n"), "nothing says at which port"},
	}
}

// spellings are n texts of which the same id is made.
func spellings(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("\"a%s\"", strings.Repeat("\\t", i%50+1)+strings.Repeat(" ", i/50)))
	}
	return out
}

// TestHeavyFiles: each ends, with a sentence, long before somebody would give up. The minute is there for a machine that is busy; without the
// bounds most of these run for hours.
func TestHeavyFiles(t *testing.T) {
	t.Parallel()
	for _, c := range heavy() {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "x.yaml")
			testfile.Write(t, file, c.text)
			if len(c.text) > boundedyaml.MaxBytes {
				t.Fatalf("%d bytes: it would not be read at all", len(c.text))
			}
			p, done := proposal.New(c.kind, nil, "x"), make(chan error, 1)
			go func() {
				err := read(p, c.kind, file)
				if err == nil {
					_, err = p.Settle(context.Background(), nil, host())
				}
				done <- err
			}()
			select {
			case err := <-done:
				all := fmt.Sprint(err)
				for _, l := range p.LeftOut() {
					all += "\n" + l.What + ": " + l.Why
				}
				if !strings.Contains(all, c.want) {
					t.Errorf("said %.600s, want %q", all, c.want)
				}
			case <-time.After(5 * time.Minute):
				t.Fatal("it does not end")
			}
		})
	}
}

// TestInterrupted: who takes back the context ends an import, whichever part of it is at work.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for name, read := range map[string]func(*proposal.Proposal) error{
		"llama-swap": func(p *proposal.Proposal) error { return LlamaSwap(ctx, p, fixtures+"llama-swap/full.yaml", Given{}) },
		"compose": func(p *proposal.Proposal) error {
			return Compose(ctx, p, []string{fixtures + "compose/gpu.yaml"}, Given{})
		},
		"gpumod": func(p *proposal.Proposal) error { return Gpumod(ctx, p, fixtures+"gpumod", Given{}) },
		"settling": func(p *proposal.Proposal) error {
			p.Service("a", proposal.Fields{{Key: "driver", Value: "null"}}, "", nil)
			_, err := p.Settle(ctx, nil, catalog.Options{Development: true})
			return err
		},
	} {
		if err := read(proposal.New("x", nil, "x")); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
