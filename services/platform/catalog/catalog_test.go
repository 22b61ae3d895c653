package catalog

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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/model"
)

// host is a made-up one: programs in dir, users demo, root and the executor's own.
func host(t testing.TB) Options {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "serve"), []byte("#!/bin/true\n"), 0o700))
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

func TestAGoodCatalog(t *testing.T) {
	opts := host(t)
	c, err := Parse("c.yaml", []byte(good), opts)
	must(t, err)
	got, _ := c.Lookup("chat")
	want := &Service{
		ID: "chat", Name: "Chat", Driver: "process", Argv: []string{filepath.Join(opts.ProgramsDir, "serve"), "--port", "8001", "; rm -rf /"},
		Environment: map[string]string{"TOKENIZERS_PARALLELISM": "false"}, RunAs: "demo", Port: 8001, BaseURL: "http://127.0.0.1:8001/v1",
		Health: &Health{Path: "/health", TimeoutS: 2, IntervalS: 2, UnhealthyAfter: 3, HealthyAfter: 1}, Sleep: SleepNone, Model: &Model{ID: "org/one", ServedName: "one"}, VRAMMiB: 500, GPUs: []uint32{0},
		StartTimeoutS: 60, StallTimeoutS: 60, StopTimeoutS: 10, LogMaxBytes: 10 << 20,
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

func TestBadCatalogsAreRefusedWithTheirPlace(t *testing.T) {
	entry := func(lines string) string {
		return "version: 1\ngpus:\n  - {index: 0, name: G, memory_mib: 9, simulated: true}\nservices:\n  - id: chat\n    driver: process\n    argv: [serve]\n    run_as: demo\n    port: 8001\n" + lines
	}
	with := func(old, new string) string { return strings.Replace(entry(""), old, new, 1) }
	null := func(lines string) string {
		return "version: 1\nservices:\n  - {id: a, driver: \"null\"}\n  - {id: b, driver: \"null\"}\n" + lines
	}
	card := func(text string) string {
		return "version: 1\nmodels:\n  - id: a\n    served_name: a\n    card: " + text + "\n"
	}
	unit := func(name string) string {
		return "version: 1\nservices:\n  - {id: u, driver: systemd, unit: " + name + "}\n"
	}
	container := func(lines string) string {
		return "version: 1\ncontainers: {mounts: [/srv/models]}\nservices:\n  - id: box\n    driver: docker\n    port: 8002\n    container:\n      image: example/vllm@sha256:" +
			strings.Repeat("a", 64) + "\n      user: \"1000\"\n      port: 8000\n" + lines
	}
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
		{name: "port clash in a mode", text: entry("  - {id: two, driver: process, argv: [serve], run_as: demo, port: 8001}\nmodes: [{id: m, services: [chat, two]}]\n"),
			at: "11:34", what: `service "chat"`},
		{name: "port of what it depends on", text: entry("  - {id: mid, driver: \"null\", depends_on: [chat]}\n" +
			"  - {id: two, driver: process, argv: [serve], run_as: demo, port: 8001, depends_on: [mid]}\n"), at: "11:67", what: `service "chat", which it depends on`},
		{name: "no port", text: with("    port: 8001\n", ""), what: "needs a port"},
		{name: "port out of range", text: with("8001", "70000"), at: "9:11", what: "1 to 65535"},
		{name: "bad id", text: with("id: chat", `id: "-chat"`), at: "5:9", what: "service id"},
		{name: "id with newline", text: with("id: chat", `id: "chat\n"`), at: "5:9", what: "service id"},
		{name: "id of 65", text: with("id: chat", "id: "+strings.Repeat("a", 65)), at: "5:9", what: "service id"},
		{name: "unknown driver", text: with("driver: process", "driver: podman"), at: "6:13", what: "driver must be"},
		{name: "unknown model", text: entry("    model: none\n"), at: "10:12", what: "not defined"},
		{name: "unknown GPU", text: entry("    gpus: [3]\n"), at: "10:12", what: "not defined"},
		{name: "GPU named twice", text: entry("    gpus: [0, 0]\n"), at: "10:15", what: "twice"},
		{name: "a real GPU with declared memory", text: with("simulated: true", "simulated: false"), at: "3:37", what: "simulated: true"},
		{name: "a simulated GPU with a uuid", text: with("name: G", "name: G, uuid: GPU-1"), at: "3:31", what: "no uuid"},
		{name: "a uuid that is none", text: "version: 1\ngpus: [{index: 0, uuid: GPU-1}]\n", at: "2:25", what: "nvidia-smi -L"},
		{name: "real and simulated GPUs", text: with("services:", "  - {index: 1}\nservices:"), at: "4:5", what: "all simulated or all real"},
		{name: "memory beyond all bounds", text: entry("    gpus: [0]\n    vram_mib: 16777217\n"), at: "11:15", what: "at most 16777216"},
		{name: "memory beyond 32 bits", text: entry("    gpus: [0]\n    vram_mib: 4294967297\n"), at: "11:15", what: "out of range"},
		{name: "negative memory", text: entry("    gpus: [0]\n    vram_mib: -1\n"), at: "11:15", what: "out of range"},
		{name: "half a MiB", text: entry("    gpus: [0]\n    vram_mib: 0.5\n"), at: "11:15", what: "whole number"},
		{name: "negative memory asleep", text: entry("    gpus: [0]\n    vram_mib: 9\n    sleep: vllm-l1\n    sleep_mib: -1\n"), at: "13:16", what: "out of range"},
		{name: "a GPU with negative memory", text: with("memory_mib: 9", "memory_mib: -9"), at: "3:37", what: "out of range"},
		{name: "an unknown key of a model", text: "version: 1\nmodels: [{id: a, weights: 1}]\n", at: "2:18", what: "unknown key"},
		{name: "an unknown key of a card", text: card("{weights_mib: 1, layrs: []}"), at: "5:28", what: `did you mean "layers"`},
		{name: "an unknown key of a layer", text: card("{weights_mib: 1, layers: [{count: 1, kind: full, kv_heads: 8, key_dim: 9, dim: 5}]}"), at: "5:85", what: "unknown key"},
		{name: "an unknown key of a GPU", text: "version: 1\ngpus: [{index: 0, memory: 1}]\n", at: "2:19", what: "unknown key"},
		{name: "an unknown key of a mode", text: "version: 1\nmodes: [{id: a, include: 1}]\n", at: "2:17", what: "unknown key"},
		{name: "a card without weights", text: card("{hidden: 1}"), at: "5:11", what: "weights_mib must be"},
		{name: "a card of too much", text: card("{weights_mib: 16777217}"), at: "5:25", what: "weights_mib must be"},
		{name: "a card with negative weights", text: card("{weights_mib: -1}"), at: "5:25", what: "out of range"},
		{name: "a card with layers of no kind", text: card("{weights_mib: 1, layers: [{count: 1, kind: dense}]}"), at: "5:54", what: "kind must be"},
		{name: "a card with a million layers", text: card("{weights_mib: 1, layers: [{count: 1000000, kind: full, kv_heads: 8, key_dim: 8}]}"), at: "5:45", what: "at most 4096 layers"},
		{name: "a card of a window that is missing", text: card("{weights_mib: 1, layers: [{count: 1, kind: sliding, kv_heads: 8, key_dim: 8}]}"), at: "5:37", what: "need window"},
		{name: "memory on no GPU", text: entry("    vram_mib: 9\n"), at: "10:15", what: "needs gpus"},
		{name: "a model's file with dots", text: "version: 1\nmodels: [{id: a, file: /srv/../etc/shadow}]\n", at: "2:24", what: "absolute path"},
		{name: "everybody's address", text: with("[serve]", "[serve, --host, 0.0.0.0]"), at: "7:27", what: "not loopback"},
		{name: "everybody's address, joined", text: with("[serve]", "[serve, --host=0.0.0.0]"), at: "7:19", what: "not loopback"},
		{name: "everybody's address of IPv6", text: with("[serve]", "[serve, --bind, '[::]:80']"), at: "7:27", what: "not loopback"},
		{name: "an address without a host", text: with("[serve]", "[serve, -listen, ':80']"), at: "7:28", what: "not loopback"},
		{name: "every address, unsaid", text: with("[serve]", "[/opt/vllm, serve, m]"), at: "7:11", what: "listens on every address unless"},
		{name: "every address by the environment", text: entry("    environment: {OLLAMA_HOST: 0.0.0.0}\n"), at: "10:32", what: "not loopback"},
		{name: "a shell as entrypoint", text: container("      entrypoint: [/bin/bash, /app/init.sh]\n"), at: "11:19", what: "is run by a shell, bash"},
		{name: "a server's own option", text: with("[serve]", "[/usr/bin/gunicorn, -b, '192.168.1.4:80', app]"), at: "7:35", what: "not loopback"},
		{name: "another server's own option", text: with("[serve]", "[/usr/bin/nice, -n, '5', /usr/bin/sd-server, -l=192.168.1.4]"), at: "7:56", what: "not loopback"},
		{name: "a host's name", text: with("[serve]", "[serve, --host, gpu-host]"), at: "7:27", what: "not loopback"},
		{name: "Durward's own user", text: with("demo", "durward-vault"), at: "8:13", what: "Durward's own users"},
		{name: "a neighbour's address", text: with("[serve]", "[serve, --host, 192.168.1.4]"), at: "7:27", what: "not loopback"},
		{name: "a unit for a process", text: entry("    unit: a.service\n"), at: "10:11", what: "systemd driver alone"},
		{name: "a container for a process", text: entry("    container: {image: a}\n"), what: "docker driver alone"},
		{name: "unit with a dash in front", text: unit("-M.service"), at: "3:36", what: "whole name of one unit"},
		{name: "unit with a path", text: unit("../a.service"), at: "3:36", what: "whole name of one unit"},
		{name: "unit with a newline", text: unit("\"a.service\\n\""), at: "3:36", what: "whole name of one unit"},
		{name: "a template without its instance", text: unit("vllm@.service"), at: "3:36", what: "whole name of one unit"},
		{name: "a unit that is no service", text: unit("poweroff.target"), at: "3:36", what: "whole name of one unit"},
		{name: "a unit with a wildcard", text: unit("'*.service'"), at: "3:36", what: "whole name of one unit"},
		{name: "a unit with argv", text: unit("a.service, argv: [serve]"), what: "argv is for the process driver"},
		{name: "a unit with limits", text: unit("a.service, limits: {pids: 1}"), what: "a unit says its own"},
		{name: "image by tag", text: strings.Replace(container(""), "@sha256:"+strings.Repeat("a", 64), ":latest", 1), at: "8:14", what: "a tag can change"},
		{name: "image with an option", text: strings.Replace(container(""), "example/vllm", "\"--privileged", 1), what: ""},
		{name: "image with capitals", text: strings.Replace(container(""), "example", "Example", 1), at: "8:14", what: "image is a reference"},
		{name: "container as root", text: strings.Replace(container(""), "\"1000\"", "\"0\"", 1), at: "9:13", what: "not 0"},
		{name: "container by name", text: strings.Replace(container(""), "\"1000\"", "root", 1), at: "9:13", what: "not 0"},
		{name: "container without user", text: strings.Replace(container(""), "      user: \"1000\"\n", "", 1), what: "needs user"},
		{name: "container without its port", text: strings.Replace(container(""), "      port: 8000\n", "", 1), what: "both or not at all"},
		{name: "mount of anything", text: container("      mounts: [{source: /srv/secret, target: /m}]\n"), at: "11:25", what: "containers.mounts"},
		{name: "mount that begins alike", text: container("      mounts: [{source: /srv/modelsfoo, target: /m}]\n"), at: "11:25", what: "containers.mounts"},
		{name: "mount with dots", text: container("      mounts: [{source: /srv/models/../secret, target: /m}]\n"), at: "11:25", what: "containers.mounts"},
		{name: "mount over /proc", text: container("      mounts: [{source: /srv/models, target: /proc/1}]\n"), at: "11:46", what: "place in the container"},
		{name: "mount twice", text: container("      mounts: [{source: /srv/models, target: /m}]\n      tmpfs: [/m]\n"), at: "12:15", what: "used twice"},
		{name: "adopted and told what to run", text: container("      adopt: true\n      command: [a]\n"), what: "as it was made"},
		{name: "GPU access without GPUs", text: container("      gpu_access: cdi\n"), at: "11:19", what: "needs gpus"},
		{name: "mounts from /", text: "version: 1\ncontainers: {mounts: [/]}\n", at: "2:23", what: "not /"},
		{name: "mounts from /etc", text: "version: 1\ncontainers: {mounts: [/etc/ssl]}\n", at: "2:23", what: "no container may"},
		{name: "mounts from the socket's folder", text: "version: 1\ncontainers: {mounts: [/var/run]}\n", at: "2:23", what: "no container may"},
		{name: "environment of containers", text: "version: 1\ncontainers: {environment: [LD_PRELOAD]}\n", at: "2:28", what: "which code"},
		{name: "sleep of an unknown kind", text: entry("    sleep: l1\n"), at: "10:12", what: "sleep must be"},
		{name: "sleep without memory", text: entry("    sleep: vllm-l1\n"), at: "10:12", what: "seen by its memory"},
		{name: "sleep that keeps it all", text: entry("    gpus: [0]\n    vram_mib: 9\n    sleep: vllm-l1\n    sleep_mib: 9\n"), at: "13:16", what: "less than vram_mib"},
		{name: "idle that cannot sleep", text: entry("    idle: {action: sleep, after_s: 60}\n"), at: "10:20", what: "cannot sleep"},
		{name: "idle of an unknown kind", text: entry("    idle: {action: kill, after_s: 60}\n"), at: "10:20", what: "idle.action"},
		{name: "idle at once", text: entry("    idle: {action: stop}\n"), what: "idle.after_s"},
		{name: "idle without a port", text: strings.Replace(unit("u.service"), "}\n", ", idle: {action: stop, after_s: 60}}\n", 1), what: "without a port"},
		{name: "idle and pinned", text: entry("    pin: true\n    idle: {action: stop, after_s: 60}\n"), what: "never goes idle"},
		{name: "restart for ever", text: entry("    restart: {max: 1000}\n"), at: "10:20", what: "at most 10"},
		{name: "stall beyond the start", text: entry("    stall_timeout_s: 61\n"), at: "10:22", what: "at most start_timeout_s"},
		{name: "network of an unknown kind", text: entry("    network: internet\n"), at: "10:14", what: "network must be"},
		{name: "a credential's value", text: entry("    credentials: [\"sk-abc DEF\"]\n"), at: "10:19", what: "never written here"},
		{name: "extra_config with an unknown key", text: entry("    extra_config: {extra_args: --trust-remote-code}\n"), at: "10:32", what: "extra_config knows"},
		{name: "extra_config with an option", text: entry("    extra_config: {context_size: --help}\n"), at: "10:34", what: "does not look like"},
		{name: "extra_config with a switch in YAML's words", text: entry("    extra_config: {fit: true}\n"), at: "10:25", what: "does not look like"},
		{name: "extra_config with a type that is an option", text: entry("    extra_config: {kv_cache_dtype_v: --help}\n"), at: "10:38", what: "does not look like"},
		{name: "extra_config with shares that are an option", text: entry("    extra_config: {tensor_split: --rpc}\n"), at: "10:34", what: "does not look like"},
		{name: "extra_config with a split of tomorrow", text: entry("    extra_config: {split_mode: all}\n"), at: "10:32", what: "does not look like"},
		{name: "extra_config with negative layers", text: entry("    extra_config: {gpu_layers: -1}\n"), at: "10:32", what: "does not look like"},
		{name: "extra_config with more bytes than memory", text: entry("    extra_config: {kv_cache_memory_bytes: 1000000000000000}\n"), at: "10:43", what: "does not look like"},
		{name: "extra_config with a list", text: entry("    extra_config: {context_size: [1]}\n"), what: "does not look like"},
		{name: "depends on a stranger", text: entry("    depends_on: [chta]\n"), at: "10:18", what: "did you mean \"chat\""},
		{name: "depends on itself", text: entry("    depends_on: [chat]\n"), at: "10:18", what: "on itself"},
		{name: "a circle", text: "version: 1\nservices:\n  - {id: a, driver: \"null\", depends_on: [b]}\n  - {id: b, driver: \"null\", depends_on: [c]}\n  - {id: c, driver: \"null\", depends_on: [a]}\n", at: "3:41", what: "a → b → c → a"},
		{name: "mode without services", text: null("modes: [{id: m}]\n"), what: "needs services"},
		{name: "mode of a stranger", text: null("modes: [{id: m, services: [a, x]}]\n"), at: "5:31", what: "not defined"},
		{name: "mode with a service twice", text: null("modes: [{id: m, services: [a, a]}]\n"), at: "5:31", what: "twice"},
		{name: "two modes of an id", text: null("modes: [{id: m, services: [a]}, {id: m, services: [b]}]\n"), at: "5:38", what: "twice"},
		{name: "mode id", text: null("modes: [{id: a/b, services: [a]}]\n"), at: "5:14", what: "mode id"},
		{name: "mode called last", text: null("modes: [{id: last, services: [a]}]\n"), at: "5:14", what: "meaning of its own"},
		{name: "mode that leaves out what it needs", text: "version: 1\nservices:\n  - {id: a, driver: \"null\"}\n  - {id: b, driver: \"null\", depends_on: [a]}\nmodes: [{id: m, services: [b]}]\n", at: "5:28", what: "must stand before it"},
		{name: "mode in the wrong order", text: "version: 1\nservices:\n  - {id: a, driver: \"null\"}\n  - {id: b, driver: \"null\", depends_on: [a]}\nmodes: [{id: m, services: [b, a]}]\n", at: "5:28", what: "must stand before it"},
		{name: "boot into nowhere", text: null("boot: nightly\n"), at: "5:7", what: "is not defined"},
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
		{name: "a digest of what is no path", text: entry("    digests: [weights]\n"), at: "10:14", what: "digests is up to"},
		{name: "a digest of what is written", text: entry("    writes: [/a]\n    digests: [/a]\n"), at: "11:14", what: "none of which the service writes"},
		{name: "a file to write that is no path", text: entry("    writes: [log]\n"), at: "10:13", what: "writes is up to"},
		{name: "tiny log", text: entry("    log_max_bytes: 10\n"), at: "10:20", what: "log_max_bytes"},
		{name: "two things", text: with("id: chat", `id: "-chat"`) + "  - {id: x, driver: nul}\n", at: "5:9", what: "c.yaml:10:21: driver must be"},
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

// TestAWrongGPUIsToldOnce: the services that use it are not said to name one that is not there.
func TestAWrongGPUIsToldOnce(t *testing.T) {
	text := "version: 1\ngpus: [{index: 0, uuid: GPU-1}]\nservices:\n"
	for _, id := range []string{"a", "b", "c"} {
		text += "  - {id: " + id + ", driver: systemd, unit: " + id + ".service, gpus: [0]}\n"
	}
	text += "  - {id: d, driver: systemd, unit: d.service, gpus: [1]}\n"
	_, err := Parse("c.yaml", []byte(text), host(t))
	problems := AsProblems(err)
	if len(problems) != 2 || !strings.Contains(problems[0].What, "nvidia-smi -L") || problems[1].What != "GPU 1 is not defined under gpus" {
		t.Errorf("%v", err)
	}
}

// TestEverythingThatAnEntryCanSay reads one entry of each driver with every key, and modes.
func TestEverythingThatAnEntryCanSay(t *testing.T) {
	digest := strings.Repeat("a", 64)
	c, err := Parse("c.yaml", []byte(`version: 1
boot: night
gpus:
  - {index: 0, uuid: GPU-00000000-1111-2222-3333-444444444444, name: "One"}
  - {index: 1}
models:
  - id: org/big
    served_name: big
    file: /srv/models/big
    source: "hf:org/big"
    card:
      architecture: Gemma3ForCausalLM
      weights_mib: 52325
      host_weights_mib: 2688
      context: 131072
      hidden: 5376
      feed_forward: 21504
      heads: 32
      vocabulary: 262208
      layers:
        - {count: 52, kind: sliding, kv_heads: 16, key_dim: 128, value_dim: 128, window: 1024}
        - {count: 10, kind: full, kv_heads: 16, key_dim: 128, value_dim: 128}
        - {count: 1, kind: recurrent, state_bytes: 2195456}
        - {count: 1, kind: latent, kv_heads: 1, key_dim: 576}
        - {count: 1, kind: full, shared: true}
containers: {mounts: [/srv/models], environment: [VLLM_USE_V1]}
services:
  - id: chat
    driver: systemd
    unit: vllm@chat.service
    port: 8001
    openai: true
    health: {path: /ping, interval_s: 5, unhealthy_after: 2, healthy_after: 2, content_type: application/json}
    model: org/big
    gpus: [0, 1]
    vram_mib: 40000
    sleep: vllm-l2
    sleep_mib: 2000
    min_residence_s: 600
    idle: {action: sleep, after_s: 900}
    restart: {max: 3}
    network: loopback
    credentials: [hf-token]
    extra_config:
      engine: vllm
      context_size: 32768
      gpu_memory_utilization: 0.92
      kv_cache_dtype_k: fp8
      kv_cache_dtype_v: q8_0
      kv_cache_memory_bytes: 17179869184
      kv_unified: on
      batch_size: 8192
      micro_batch_size: 512
      gpu_layers: 0
      flash_attention: off
      fit: "on"
      fit_target_mib: 1024
      split_mode: row
      tensor_split: 3,1.5
      main_gpu: 1
    start_timeout_s: 1800
  - id: embed
    driver: docker
    port: 8002
    container:
      image: registry.example:5000/org/tei@sha256:`+digest+`
      user: "1000:1000"
      port: 80
      command: [--host, 0.0.0.0]
      mounts: [{source: /srv/models/embed, target: /data}]
      tmpfs: [/tmp]
    gpus: [1]
    vram_mib: 3000
    limits: {memory_mib: 8000, cpu_percent: 200, pids: 512}
    depends_on: [chat]
    pin: true
modes:
  - {id: night, name: Night, description: Both., services: [chat, embed]}
`), host(t))
	must(t, err)
	chat, _ := c.Lookup("chat")
	if diff := cmp.Diff(&Service{
		ID: "chat", Name: "chat", Driver: "systemd", Unit: "vllm@chat.service", Port: 8001, BaseURL: "http://127.0.0.1:8001/v1", OpenAI: true,
		Health: &Health{Path: "/ping", TimeoutS: 2, IntervalS: 5, UnhealthyAfter: 2, HealthyAfter: 2, ContentType: "application/json"},
		Model: &Model{ID: "org/big", ServedName: "big", File: "/srv/models/big", Source: "hf:org/big", Card: &model.Card{
			Architecture: "Gemma3ForCausalLM", WeightsMiB: 52325, HostWeightsMiB: 2688, Context: 131072, Hidden: 5376, FeedForward: 21504, Heads: 32, Vocabulary: 262208,
			Layers: []model.Layers{
				{Count: 52, Kind: model.Sliding, KVHeads: 16, KeyDim: 128, ValueDim: 128, Window: 1024},
				{Count: 10, Kind: model.Full, KVHeads: 16, KeyDim: 128, ValueDim: 128},
				{Count: 1, Kind: model.Recurrent, StateBytes: 2195456},
				{Count: 1, Kind: model.Latent, KVHeads: 1, KeyDim: 576},
				{Count: 1, Kind: model.Full, Shared: true},
			}}}, VRAMMiB: 40000, GPUs: []uint32{0, 1},
		Sleep: SleepVLLM2, SleepMiB: 2000, MinResidenceS: 600, Idle: &Idle{Action: "sleep", AfterS: 900}, Restart: Restart{Max: 3, WithinS: 600},
		Network: NetworkLoopback, Credentials: []string{"hf-token"},
		ExtraConfig: map[string]string{"engine": "vllm", "context_size": "32768", "gpu_memory_utilization": "0.92", "kv_cache_dtype_k": "fp8", "kv_cache_dtype_v": "q8_0",
			"kv_cache_memory_bytes": "17179869184", "kv_unified": "on", "batch_size": "8192", "micro_batch_size": "512", "gpu_layers": "0", "flash_attention": "off",
			"fit": "on", "fit_target_mib": "1024", "split_mode": "row", "tensor_split": "3,1.5", "main_gpu": "1"},
		StartTimeoutS: 1800, StallTimeoutS: 300, StopTimeoutS: 10, LogMaxBytes: 10 << 20,
	}, chat); diff != "" {
		t.Errorf("chat (-want +got):\n%s", diff)
	}
	embed, _ := c.Lookup("embed")
	// What an approver signs says the card as well, and is read as it was written.
	raw, err := chat.Subject("sha256:aa")
	must(t, err)
	again, err := ReadSubject(raw)
	if diff := cmp.Diff(chat, again); err != nil || diff != "" {
		t.Errorf("read again: %v\n%s", err, diff)
	}
	if line := again.Describe(c.GPUs); line != "unit vllm@chat.service, port 8001, GPU 0, GPU 1, 40000 MiB declared" {
		t.Errorf("it is described as %s", line)
	}
	if diff := cmp.Diff(&Container{
		Image: "registry.example:5000/org/tei@sha256:" + digest, User: "1000:1000", Port: 80, Command: []string{"--host", "0.0.0.0"},
		Mounts: []Mount{{Source: "/srv/models/embed", Target: "/data"}}, Tmpfs: []string{"/tmp"}, GPUAccess: "device-request",
	}, embed.Container); diff != "" {
		t.Errorf("container (-want +got):\n%s", diff)
	}
	night, _ := c.Mode("night")
	if diff := cmp.Diff(&Mode{ID: "night", Name: "Night", Description: "Both.", Services: []string{"chat", "embed"}}, night); diff != "" {
		t.Errorf("mode (-want +got):\n%s", diff)
	}
	if c.Boot != "night" || len(c.GPUs) != 2 || c.GPUs[0].Simulated {
		t.Errorf("boot %q, GPUs %+v", c.Boot, c.GPUs)
	}
}

// TestAddress: a service is reached where its base_url says, and a container where it is published.
func TestAddress(t *testing.T) {
	for s, want := range map[*Service]string{
		{Driver: "process", Port: 80}:                                             "127.0.0.1:80",
		{Driver: "process", Port: 80, BaseURL: "http://127.0.0.1:80/v1"}:          "127.0.0.1:80",
		{Driver: "systemd", Port: 80, BaseURL: "http://[::1]:80/v1"}:              "[::1]:80",
		{Driver: "systemd", Port: 80, BaseURL: "http://[::ffff:127.0.0.2]:80/v1"}: "127.0.0.2:80",
		{Driver: "docker", Port: 80, BaseURL: "http://[::1]:80/v1"}:               "127.0.0.1:80",
	} {
		if got := s.Address().String(); got != want {
			t.Errorf("%+v: %s", s, got)
		}
	}
}

// TestGpumodD16NoMemoryIsInvented: what an entry does not declare stays undeclared; nothing is guessed from names or files.
func TestGpumodD16NoMemoryIsInvented(t *testing.T) {
	c, err := Parse("c.yaml", []byte("version: 1\ngpus: [{index: 0}]\nmodels: [{id: org/llama-70b-q4.gguf, file: /srv/llama-70b-q4.gguf}]\nservices:\n"+
		"  - {id: a, driver: process, argv: [serve, -m, /srv/llama-70b-q4.gguf], run_as: demo, port: 8001, model: org/llama-70b-q4.gguf, gpus: [0]}\n"), host(t))
	must(t, err)
	if s, _ := c.Lookup("a"); s.VRAMMiB != 0 || s.SleepMiB != 0 {
		t.Errorf("declared %d and %d MiB out of nothing", s.VRAMMiB, s.SleepMiB)
	}
}

// TestAFolder: files are one catalog, whatever stands where, and each problem names its own file.
func TestAFolder(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	if _, err := Load(dir, host(t)); err == nil {
		t.Error("an empty folder is a catalogue")
	}
	put("10-modes.yaml", "version: 1\nmodes: [{id: m, services: [a, b]}]\n")
	put("20-a.yaml", "version: 1\nservices: [{id: a, driver: \"null\"}]\n")
	put("30-b.yaml", "version: 1\nservices: [{id: b, driver: \"null\", depends_on: [a]}]\n")
	put(".30-b.yaml", "not: [good")
	put("notes.txt", "not: [good")
	first, err := Load(dir, host(t))
	must(t, err)
	if len(first.Services) != 2 || len(first.Modes) != 1 {
		t.Errorf("%d services, %d modes", len(first.Services), len(first.Modes))
	}
	source, err := Open(dir, host(t), slog.New(slog.DiscardHandler))
	must(t, err)
	defer source.Close()
	put("40-c.yaml", "version: 1\nservices: [{id: c, driver: \"null\"}]\n")
	must(t, source.Reload())
	if source.Current().Digest == first.Digest {
		t.Error("another file, and the same digest")
	}
	put("40-c.yaml", "version: 1\nservices: [{id: a, driver: \"null\"}]\n")
	put("50-d.yaml", "version: 1\nservices: [{id: d, driver: nul}]\n")
	_, err = Load(dir, host(t))
	problems := AsProblems(err)
	if len(problems) != 2 || filepath.Base(problems[0].File) != "40-c.yaml" || filepath.Base(problems[1].File) != "50-d.yaml" {
		t.Errorf("problems: %v", err)
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
	must(t, err)
	s, _ := c.Lookup("chat")
	subject, err := s.Subject("sha256:aa")
	must(t, err)
	if err := canonical.Check(subject); err != nil {
		t.Errorf("not canonical: %v", err)
	}
	var got map[string]any
	must(t, json.Unmarshal(subject, &got))
	for _, key := range []string{"id", "argv", "environment", "run_as", "port", "health", "model", "gpus", "vram_mib", "definition_sha256"} {
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
		must(t, os.WriteFile(file, fmt.Append(nil, i), 0o700))
		must(t, os.Chtimes(file, stamp, stamp))
		time.Sleep(20 * time.Millisecond) // the kernel's clock of file times is coarse, and nothing tells of its tick
		d, err := p.Digest(file)
		must(t, err)
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

func TestTheLastGoodCatalogStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "c.yaml")
		put := func(text string) {
			t.Helper()
			must(t, os.WriteFile(file, []byte(text), 0o600))
		}
		put("version: 3\n")
		if _, err := Open(file, host(t), slog.New(slog.DiscardHandler)); err == nil {
			t.Fatal("a bad catalogue was enough to start")
		}
		put("version: 1\nservices: [{id: a, driver: \"null\"}]\n")
		var said bytes.Buffer
		s, err := Open(file, host(t), slog.New(slog.NewTextHandler(&said, nil)))
		must(t, err)
		put("version: 1\nservices: [{id: a, driver: nul}]\n")
		if err := s.Reload(); err == nil {
			t.Error("a bad change was adopted")
		}
		if _, ok := s.Current().Lookup("a"); !ok {
			t.Error("the last good catalogue is gone")
		}
		put("version: 1\nservices: [{id: b, driver: \"null\"}]\n")
		time.Sleep(time.Second)
		synctest.Wait()
		if _, ok := s.Current().Lookup("b"); !ok {
			t.Fatal("a good change was not seen")
		}
		s.Close()
		if !strings.Contains(said.String(), "read again") {
			t.Errorf("the log says %q", said.String())
		}
	})
}

// TestWhatAnEntryLackedMayCome: a user who is made later puts the entry in force that names him, without a change of the file; what is as
// it was is not put in force again.
func TestWhatAnEntryLackedMayCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "c.yaml")
		must(t, os.WriteFile(file, []byte(good), 0o600))
		opts := host(t)
		opts.Lenient = true
		var missing atomic.Bool
		missing.Store(true)
		users := opts.Users
		opts.Users = func(name string) (*user.User, error) {
			if missing.Load() {
				return nil, user.UnknownUserError(name)
			}
			return users(name)
		}
		s, err := Open(file, opts, slog.New(slog.DiscardHandler))
		must(t, err)
		defer s.Close()
		later := func() *Catalog {
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			return s.Current()
		}
		without := s.Current()
		if without.WhyDisabled("service", "chat") == "" || later() != without {
			t.Fatal("an entry without its user is not disabled, or was put in force again as it was")
		}
		missing.Store(false)
		with := later()
		if _, ok := with.Lookup("chat"); !ok || with.WhyDisabled("service", "chat") != "" {
			t.Error("its user is there, and the entry is disabled all the same")
		}
		missing.Store(true)
		if later() != with {
			t.Error("a user who is looked for in vain takes an entry out of force that the file has as before")
		}
	})
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
			if !idPattern().MatchString(s.ID) || s.Name == "" || strings.ContainsAny(s.Name, "\x1b\n\x07") {
				t.Errorf("id %q, name %q", s.ID, s.Name)
			}
			if s.Driver == DriverProcess && (len(s.Argv) == 0 || !filepath.IsAbs(s.Argv[0]) || s.RunAs == "") {
				t.Errorf("accepted: %+v", s)
			}
		}
	})
}

// TestBatchSizeIsNoAddress: what -b means is the program's own business.
func TestBatchSizeIsNoAddress(t *testing.T) {
	for _, argv := range [][]string{
		{"/opt/llama-server", "-b", "2048", "-ub", "2048"}, {"/opt/ik-llama-server", "-b", "1024"}, {"/opt/serve", "-b", "32"},
		{"/usr/bin/gunicorn", "-b", "127.0.0.1:80"}, {"/usr/bin/env", "X=y", "/opt/llama-server", "--batch-size", "8"},
	} {
		if at, err := Loopback(argv, nil); err != nil {
			t.Errorf("%q: %s: %v", argv, at, err)
		}
	}
}

// TestAWrongEntryDisablesItselfAlone: what is good stays in force, and what needs a wrong entry goes with it.
func TestAWrongEntryDisablesItselfAlone(t *testing.T) {
	service := func(id, more string) string { return "  - {id: " + id + ", driver: \"null\"" + more + "}\n" }
	for _, test := range []struct{ name, text, services, modes, disabled string }{
		{"nothing wrong", "services:\n" + service("a", ""), "a", "", ""},
		{"an unknown driver", "services:\n" + service("a", "") + "  - {id: b, driver: magic}\n", "a", "", "service b"},
		{"a driver that is not given", "services:\n" + service("a", "") + "  - {id: b, driver: docker, container: {image: x@sha256:" + strings.Repeat("0", 64) + "}}\n",
			"a", "", "service b"},
		{"what depends on it", "services:\n" + service("a", ", depends_on: [b]") + service("b", ", depends_on: [c]") + service("c", ", sleep: deep") + service("d", ""),
			"d", "", "service c, service b, service a"},
		{"a circle", "services:\n" + service("a", ", depends_on: [b]") + service("b", ", depends_on: [a]") + service("c", ""), "c", "", "service a, service b"},
		{"two of one id", "services:\n" + service("a", "") + service("b", "") + service("a", ", name: x") + service("a", ", name: y"), "b", "", "service a"},
		{"a wrong and a good one of one id", "services:\n" + service("a", ", sleep: deep") + service("a", "") + service("b", ""), "b", "", "service a"},
		{"an id that is none", "services:\n" + service("\"a b\"", "") + service("b", ""), "b", "", "service "},
		{"its mode", "services:\n" + service("a", "") + service("b", ", sleep: deep") + "modes: [{id: m, services: [a, b]}, {id: n, services: [a]}]\nboot: m\n",
			"a", "n", "service b, mode m, boot "},
		{"two modes of one id", "services:\n" + service("a", "") + "modes: [{id: m, services: [a]}, {id: m, services: [a], name: x}, {id: n, services: [a]}]\n",
			"a", "n", "mode m"},
		{"its model", "models: [{id: x, file: relative}, {id: y}]\nservices:\n" + service("a", ", model: x") + service("b", ", model: y"), "b", "", "model x, service a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			opts := host(t)
			opts.Lenient, opts.Drivers = true, []string{DriverProcess, DriverNull}
			c, err := Parse("c.yaml", []byte("version: 1\n"+test.text), opts)
			must(t, err)
			var services, modes, off []string
			for _, s := range c.Services {
				services = append(services, s.ID)
				if found, ok := c.Lookup(s.ID); !ok || found != s {
					t.Errorf("%s is listed and not found", s.ID)
				}
			}
			for _, m := range c.Modes {
				modes = append(modes, m.ID)
			}
			for _, d := range c.Disabled {
				off = append(off, d.Kind+" "+d.ID)
				if _, ok := c.Lookup(d.ID); ok && d.Kind == "service" {
					t.Errorf("%s is disabled and found", d.ID)
				}
				if d.Problem.Line == 0 || d.Problem.What == "" || d.ID != "" && c.WhyDisabled(d.Kind, d.ID) != d.Problem.Error() {
					t.Errorf("%+v", d)
				}
			}
			if got := strings.Join(services, ", "); got != test.services {
				t.Errorf("services %s, want %s", got, test.services)
			}
			if got := strings.Join(modes, ", "); got != test.modes {
				t.Errorf("modes %s, want %s", got, test.modes)
			}
			if got := strings.Join(off, ", "); got != test.disabled {
				t.Errorf("disabled: %s, want %s", got, test.disabled)
			}
			if strict := host(t); len(c.Disabled) > 0 && test.name != "a driver that is not given" {
				if _, err := Parse("c.yaml", []byte("version: 1\n"+test.text), strict); err == nil {
					t.Error("a strict reader takes it")
				}
			}
		})
	}
	for _, text := range []string{"version: 2\n", "version: 1\ngpus: [{index: 0, memory_mib: 9}]\n", "version: 1\nservice: []\n", "{"} {
		opts := host(t)
		opts.Lenient = true
		if _, err := Parse("c.yaml", []byte(text), opts); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// TestInContainer: what an executor in a container cannot reach is refused with what to use instead.
func TestInContainer(t *testing.T) {
	opts := host(t)
	opts.InContainer, opts.Drivers = true, []string{DriverNull}
	for entry, want := range map[string]string{
		"{id: a, driver: process, argv: [durward-demo], port: 7450, run_as: demo}":                           "use the driver docker",
		"{id: a, driver: systemd, unit: a.service, port: 7450}":                                              "use the driver docker",
		"{id: a, driver: docker, container: {image: x@sha256:" + strings.Repeat("0", 64) + ", user: \"1\"}}": "does not give it the docker driver",
	} {
		if _, err := Parse("c.yaml", []byte("version: 1\nservices: ["+entry+"]\n"), opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: says %v, not %q", entry, err, want)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
