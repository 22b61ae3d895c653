package discover

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/containerpolicy"
	"durward.internal/services/platform/containerpolicy/containertest"
	"durward.internal/services/platform/platformtest/testfile"
)

var update = flag.Bool("update", false, "write the golden proposals anew")

// The GPUs of the host that the tests make up.
const (
	first  = "GPU-11111111-2222-3333-4444-555555555555"
	second = "GPU-22222222-2222-3333-4444-555555555555"
)

var hostGPUs = []GPU{{0, first, "NVIDIA RTX 4090", 24564, 20000}, {1, second, "NVIDIA RTX 4090", 24564, 24000}}

// proc makes a folder like /proc with these processes: control group and argument vector by number.
func proc(t *testing.T, all map[int][2]string) string {
	t.Helper()
	root := t.TempDir()
	for pid, one := range all {
		dir := filepath.Join(root, strconv.Itoa(pid))
		must(t, os.Mkdir(dir, 0o700))
		for name, text := range map[string]string{"cgroup": "0::" + one[0] + "\n", "cmdline": strings.ReplaceAll(one[1], " ", "\x00") + "\x00"} {
			testfile.Write(t, filepath.Join(dir, name), text)
		}
	}
	return root
}

// fakeUnit is a unit as busctl shows it.
type fakeUnit struct {
	load, active           string
	argv, environment      []string
	user, group, restart   string
	dynamic, files, broken bool
	pid                    int
}

// busctl answers as the program does, and fails the test for any question but the two that are asked.
func busctl(t *testing.T, units map[string]fakeUnit) Runner {
	t.Helper()
	paths := map[string]string{}
	var rows [][]any
	n := 0
	for _, name := range slices.Sorted(maps(units)) {
		u := units[name]
		path := fmt.Sprintf("%s/unit/u%d", busPath, n)
		n++
		paths[path] = name
		rows = append(rows, []any{name, "d", orElse(u.load, "loaded"), orElse(u.active, "active"), "running", "", path, 0, "", "/"})
	}
	line := func(v any) string {
		raw, err := json.Marshal(map[string]any{"type": "x", "data": v})
		must(t, err)
		return string(raw) + "\n"
	}
	return func(_ context.Context, program string, args ...string) ([]byte, error) {
		if program != "/usr/bin/busctl" || len(args) < 4 || args[1] != "--json=short" || args[2] != "--no-pager" {
			t.Errorf("%s %q", program, args)
		}
		switch {
		case args[3] == "call" && args[6] == busName+".Manager" && args[7] == "ListUnitsByPatterns":
			return []byte(line([]any{rows})), nil
		case args[3] == "get-property" && args[4] == busName && args[6] == serviceFace:
			u, ok := units[paths[args[5]]]
			if !ok || u.broken {
				return nil, errors.New("exit status 1")
			}
			start := [][]any{}
			if len(u.argv) > 0 {
				start = append(start, []any{u.argv[0], u.argv, false, 0, 0, 0, 0, 0, 0, 0})
			}
			files := [][]any{}
			if u.files {
				files = append(files, []any{"/etc/secret.env", false})
			}
			return []byte(line(start) + line(u.environment) + line(u.user) + line(u.dynamic) + line(u.pid) + line(u.group) + line(orElse(u.restart, "no")) + line(files)), nil
		}
		t.Errorf("busctl was asked %q", args)
		return nil, errors.New("no")
	}
}

func maps[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
}

const presentCatalog = `version: 1
gpus:
  - {index: 0, uuid: ` + first + `, name: first}
  - {index: 1, uuid: ` + second + `, name: second}
containers:
  mounts: [/srv/models]
  environment: [EXTRA_SETTING]
services:
  - {id: old, driver: systemd, unit: known.service, port: 9999}
`

// settled is the proposal's text, which the catalog accepts beside the present one; ports that were free when the test was written
// are named in their places.
func settled(t *testing.T, p *proposal.Proposal, golden string, ports map[uint32]string) {
	t.Helper()
	text, err := p.Settle(context.Background(), []catalog.File{{Name: "present.yaml", Data: []byte(presentCatalog)}}, catalog.Options{Development: true})
	if err != nil {
		t.Fatalf("%v\nleft out: %+v", err, p.LeftOut())
	}
	got := string(text)
	for port, name := range ports {
		got = strings.ReplaceAll(got, strconv.FormatUint(uint64(port), 10), name)
	}
	file := filepath.Join("testdata", golden)
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	want, err := goldens.ReadFile(file)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); -update writes it anew\n%s", golden, diff)
	}
}

//go:embed testdata/*.yaml
var goldens embed.FS

func present(t *testing.T) *catalog.Catalog {
	t.Helper()
	c, err := catalog.ParseFiles([]catalog.File{{Name: "present.yaml", Data: []byte(presentCatalog)}}, catalog.Options{Development: true})
	must(t, err)
	return c
}

func TestUnits(t *testing.T) {
	t.Parallel()
	vllm := engine(t, map[string]string{
		"/v1/models": `{"data":[{"id":"qwen3","owned_by":"vllm","max_model_len":32768}]}`, "/version": `{"version":"0.11.0"}`, "/health": "",
	})
	ollama := engine(t, map[string]string{
		"/v1/models": `{"data":[{"id":"qwen3:8b","owned_by":"library"},{"id":"gemma3:27b","owned_by":"library"}]}`, "/api/version": `{"version":"0.13.1"}`,
	})
	// Listens on 127.0.0.1 at the port that elsewhere.service has on another address.
	stranger := engine(t, map[string]string{"/v1/models": `{"data":[{"id":"strangers-model","owned_by":"llamacpp"}]}`, "/health": ""})
	text := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	units := map[string]fakeUnit{
		"vllm@chat.service": {
			argv: []string{"/opt/vllm/bin/vllm", "serve", "Qwen/Qwen3-32B", "--port", "$PORT"}, group: "/system.slice/vllm.slice/vllm@chat.service", pid: 100, user: "ai",
			environment: []string{"PORT=" + text(vllm), "VLLM_API_KEY=topsecret", "CUDA_VISIBLE_DEVICES=0", "VLLM_SERVER_DEV_MODE=1"}, files: true,
		},
		"ollama.service": {argv: []string{"/usr/local/bin/ollama", "serve"}, group: "/system.slice/ollama.service", pid: 200, restart: "always",
			environment: []string{"OLLAMA_HOST=127.0.0.1:" + text(ollama), "OLLAMA_KEEP_ALIVE=https://user:pass@host"}},
		"llama.service": {active: "inactive", argv: []string{"/usr/bin/llama-server", "-m", "/srv/models/gemma-3-27b-Q4_K_M.gguf", "--port", "9082", "-c", "16384", "--host", "0.0.0.0"},
			user: "ai", environment: []string{"CUDA_VISIBLE_DEVICES=1"}},
		"wrapped.service":   {argv: []string{"/usr/local/bin/start-it.sh"}, group: "/system.slice/wrapped.service", pid: 300, dynamic: true},
		"trainer.service":   {argv: []string{"/usr/bin/python3", "/srv/train.py"}, group: "/system.slice/trainer.service", pid: 400, user: "ai"},
		"sshd.service":      {argv: []string{"/usr/sbin/sshd", "-D"}, group: "/system.slice/sshd.service", pid: 500},
		"known.service":     {argv: []string{"/usr/bin/llama-server", "--port", "9999"}, user: "ai"},
		"busy.service":      {active: "inactive", argv: []string{"/usr/bin/llama-server", "--port", "9999"}, user: "ai"},
		"durward-x.service": {argv: []string{"/usr/bin/llama-server", "--port", "9998"}, user: "ai"},
		// An engine in a terminal, and one that a table of cron started: stopping the unit would end all that its user runs.
		"user@1000.service": {argv: []string{"/usr/lib/systemd/systemd", "--user"}, group: "/user.slice/user-1000.slice/user@1000.service", pid: 700, user: "1000"},
		"cron.service":      {argv: []string{"/usr/sbin/cron", "-f"}, group: "/system.slice/cron.service", pid: 800},
		`esc\x2d.service`:   {argv: []string{"/usr/bin/llama-server", "--port", "9997"}, user: "ai"},
		"elsewhere.service": {argv: []string{"/opt/vllm/bin/vllm", "serve", "m/m", "--host", "10.0.0.5", "--port", text(stranger)}, user: "ai",
			group: "/system.slice/elsewhere.service", pid: 600},
		"gone.service": {load: "not-found", argv: []string{"/usr/bin/llama-server"}},
		"mute.service": {broken: true},
		"once.service": {argv: nil, group: "/system.slice/once.service"},
	}
	holders := []Holder{{first, 101, 18000}, {second, 101, 18000}, {first, 200, 512}, {second, 301, 5000}, {second, 400, 700}, {first, 99999, 50}}
	s := Systemd{
		Program: "/usr/bin/busctl", Run: busctl(t, units), Holders: holders, Prober: NewProber(),
		Proc: proc(t, map[int][2]string{
			100: {"/system.slice/vllm.slice/vllm@chat.service", "/opt/vllm/bin/python /opt/vllm/bin/vllm serve Qwen/Qwen3-32B --port " + text(vllm) + " --enable-sleep-mode --gpu-memory-utilization 0.85 --tensor-parallel-size 2"},
			101: {"/system.slice/vllm.slice/vllm@chat.service/worker", "VLLM::Worker"},
			200: {"/system.slice/ollama.service", "/usr/local/bin/ollama serve"},
			300: {"/system.slice/wrapped.service", "/bin/sh /usr/local/bin/start-it.sh"},
			301: {"/system.slice/wrapped.service", "/usr/bin/llama-server -m /srv/models/embed.gguf --port 9083 --embedding"},
			400: {"/system.slice/trainer.service", "/usr/bin/python3 /srv/train.py"},
			600: {"/system.slice/elsewhere.service", "vllm serve m/m --host 10.0.0.5 --port " + text(stranger)},
			500: {"/system.slice/sshd.service", "sshd"},
			700: {"/user.slice/user-1000.slice/user@1000.service/init.scope", "/usr/lib/systemd/systemd --user"},
			701: {"/user.slice/user-1000.slice/user@1000.service/app.slice/terminal.scope", "/usr/bin/llama-server -m /srv/models/x.gguf --port 9084"},
			800: {"/system.slice/cron.service", "/usr/sbin/cron -f"},
			801: {"/system.slice/cron.service", "/usr/bin/llama-server -m /srv/models/y.gguf --port 9085"},
		}),
	}
	servers, passed, err := s.Servers(t.Context())
	must(t, err)
	p := proposal.New("systemd", present(t), "the units of this host's systemd (system)")
	Host{Present: present(t), GPUs: hostGPUs}.Units(p, servers, passed)
	settled(t, p, "units.yaml", map[uint32]string{vllm: "7001", ollama: "7002", stranger: "7003"})
}

// TestWhatAUnitIsTold: an engine's variables count, and a unit that starts one by a shell is named although it does not run.
func TestWhatAUnitIsTold(t *testing.T) {
	t.Parallel()
	units := map[string]fakeUnit{
		"a.service": {active: "inactive", argv: []string{"/usr/bin/llama-server"}, user: "ai", environment: []string{"LLAMA_ARG_HF_REPO=org/m:Q4", "LLAMA_ARG_PORT=9001",
			"LLAMA_ARG_CACHE_TYPE_K=q8_0", "LLAMA_ARG_API_KEY=x", "LLAMA_ARG_MODEL_URL=https://user:pass@host/x", "LLAMA_API_KEY=y"}},
		"b.service": {active: "inactive", argv: []string{"/usr/bin/ollama", "serve"}, user: "ai", environment: []string{"OLLAMA_HOST=http://127.0.0.1:11500"}},
		"c.service": {active: "inactive", argv: []string{"/bin/bash", "-lc", "source /opt/v/bin/activate && exec vllm serve a/b --port 8000"}, user: "ai"},
		"d.service": {active: "inactive", argv: []string{"/bin/bash", "-c", "exec /usr/bin/backup /home/ollamas"}, user: "ai"},
		"e.service": {active: "inactive", argv: []string{"/usr/bin/backup", "/usr/lib/ollama"}, user: "ai"},
	}
	s := Systemd{Program: "/usr/bin/busctl", Run: busctl(t, units), Proc: t.TempDir()}
	servers, passed, err := s.Servers(t.Context())
	if err != nil || len(servers) != 2 {
		t.Fatalf("%v: %+v", err, servers)
	}
	a, b := servers[0], servers[1]
	if a.Command.Model != "org/m:Q4" || a.Command.Router || a.Port != 9001 || a.Command.CacheK != "q8_0" || len(a.Environment) != 3 || len(a.Withheld) != 3 {
		t.Errorf("%+v", a)
	}
	if b.Port != 11500 || b.Command.Host != "127.0.0.1" {
		t.Errorf("%+v", b)
	}
	want := []Passed{{"c.service", "its command is run by a shell, bash, and names an engine: what it runs is seen while it runs"}}
	if diff := cmp.Diff(want, passed); diff != "" {
		t.Error(diff)
	}
}

// What busctl may answer that is no answer.
func TestUnitsRefuse(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"nothing": "", "not JSON": "x", "another shape": `{"data":[[["a"]]]}`, "no list": `{"data":{}}`, "two": `{"data":[[],[]]}`,
	} {
		s := Systemd{Program: "/usr/bin/busctl", Proc: t.TempDir(), Run: func(context.Context, string, ...string) ([]byte, error) { return []byte(answer), nil }}
		if _, _, err := s.Servers(t.Context()); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	s := Systemd{Program: "/usr/bin/busctl", Run: func(context.Context, string, ...string) ([]byte, error) { return nil, errors.New("no bus") }}
	if _, _, err := s.Servers(t.Context()); err == nil || !strings.Contains(err.Error(), "D-Bus") {
		t.Errorf("%v", err)
	}
	// An object path that is none of a unit's is not asked about.
	s.Run = func(_ context.Context, _ string, args ...string) ([]byte, error) {
		if args[3] != "call" {
			t.Errorf("asked %q", args)
		}
		return []byte(`{"data":[[["x.service","d","loaded","active","running","","--address=tcp:host=evil",0,"","/"]]]}`), nil
	}
	if servers, _, err := s.Servers(t.Context()); err != nil || len(servers) > 0 {
		t.Errorf("%v, %v", servers, err)
	}
}

// fakeDocker serves containers and images on a socket, and fails the test for anything but a GET of them.
func fakeDocker(t *testing.T, containers, images map[string]string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "d") // a socket's path is short
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "docker.sock")
	l, err := net.Listen("unix", socket)
	must(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		kind, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		id := strings.TrimSuffix(rest, "/json")
		body, ok := "", false
		switch {
		case r.URL.Path == "/containers/json" && r.URL.RawQuery == "all=1":
			var list []map[string]string
			for _, id := range slices.Sorted(maps(containers)) {
				list = append(list, map[string]string{"Id": id})
			}
			raw, _ := json.Marshal(list)
			body, ok = string(raw), true
		case kind == "containers":
			body, ok = containers[id]
		case kind == "images":
			body, ok = images[id]
		default:
			t.Errorf("GET %s", r.URL)
		}
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, body)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return socket
}

func TestContainers(t *testing.T) {
	t.Parallel()
	cases := containertest.Adopt(t)
	port := engine(t, map[string]string{"/v1/models": `{"data":[{"id":"qwen3","owned_by":"vllm","max_model_len":32768}]}`, "/health": ""})
	own := strconv.FormatUint(uint64(port), 10)
	stranger := engine(t, map[string]string{"/v1/models": `{"data":[{"id":"strangers-model","owned_by":"llamacpp"}]}`, "/health": ""})
	strangers := strconv.FormatUint(uint64(stranger), 10)
	id := func(n int) string { return fmt.Sprintf("%064x", 0xc0ffee+n) }
	containers := map[string]string{}
	add := func(n int, patches ...any) {
		value := containertest.Merge(cases.Base, map[string]any{"Id": id(n), "Config": map[string]any{"Labels": nil}, "HostConfig": map[string]any{"Mounts": nil}, "Mounts": nil})
		for _, one := range patches {
			value = containertest.Merge(value, one)
		}
		raw, err := json.Marshal(value)
		must(t, err)
		containers[id(n)] = string(raw)
	}
	type m = map[string]any
	bound := func(address, port string) m {
		b := m{"8000/tcp": []any{m{"HostIp": address, "HostPort": port}}}
		return m{"HostConfig": m{"PortBindings": b}, "NetworkSettings": m{"Ports": b}}
	}
	label := func(id string) m { return m{"Config": m{"Labels": m{"durward.service": id}}} }
	add(1, m{"Name": "/chat"}, label("chat"), bound("127.0.0.1", own))
	add(2, m{"Name": "/wide"}, label("wide"), bound("0.0.0.0", "9102"), m{"HostConfig": m{"Privileged": true, "RestartPolicy": m{"Name": "always"}}})
	add(3, m{"Name": "/mine"}, m{"Config": m{"Labels": m{"durward.service": "mine", "durward.made": "true"}}})
	add(4, m{"Name": "/old-chat"}, label("old"), bound("127.0.0.1", "9104"))
	// As people start vLLM: root, all GPUs, the host's shared memory apart, a published port, a token.
	add(5, m{"Name": "/vllm_coder", "State": m{"Running": false}}, bound("", "9105"), m{
		"Path": "vllm", "Args": []any{"serve", "--model", "/models/coder", "--port", "8000"},
		"Config": m{
			"User": "", "Image": "registry.example/vllm:v1", "Entrypoint": []any{"vllm", "serve"}, "Cmd": []any{"--model", "/models/coder", "--port", "8000"},
			"Env": []any{"PATH=/usr/local/bin:/usr/bin:/bin", "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345", "HF_HUB_OFFLINE=1", "EXTRA_SETTING=yes", "MY_OWN=1", "API_TOKEN=of-the-image"},
		},
		"HostConfig": m{"RestartPolicy": m{"Name": "always"}, "CapDrop": nil, "ReadonlyRootfs": false, "SecurityOpt": nil, "PidsLimit": nil, "IpcMode": "private",
			"DeviceRequests": []any{m{"Driver": "", "Count": -1, "Capabilities": []any{[]any{"gpu"}}}}, "ShmSize": 17179869184},
		"Mounts": []any{m{"Type": "bind", "Source": "/srv/models", "Destination": "/models", "RW": false, "Propagation": "rprivate"}},
	})
	add(6, m{"Name": "/evil"}, bound("127.0.0.1", "9106"), m{
		"Config":     m{"Entrypoint": []any{"vllm", "serve"}, "Cmd": []any{"--model", "x", "--api-key", "hunter2hunter2"}},
		"HostConfig": m{"Privileged": true, "PidMode": "host", "NetworkMode": "host", "CapAdd": []any{"SYS_ADMIN"}, "SecurityOpt": []any{"seccomp=unconfined"}, "Devices": []any{m{"PathOnHost": "/dev/mem"}}},
		"Mounts": []any{
			m{"Type": "bind", "Source": "/var/run/docker.sock", "Destination": "/var/run/docker.sock"}, m{"Type": "bind", "Source": "/", "Destination": "/host"},
			m{"Type": "volume", "Name": "v", "Source": "/var/lib/docker/volumes/v/_data", "Destination": "/data"},
		},
	})
	add(7, m{"Name": "/web", "Path": "nginx", "Args": []any{"-g", "daemon off;"}}, m{"Config": m{"Image": "nginx:1", "Cmd": []any{"nginx"}}, "HostConfig": m{"DeviceRequests": nil}})
	add(10, m{"Name": "/hidden"}, bound("127.0.0.1", "9110"), m{"Config": m{"Entrypoint": []any{"vllm", "serve"}, "Cmd": []any{"--model", "a\u202eb"}},
		"Mounts": []any{m{"Type": "bind", "Source": "/srv/models/\u200b", "Destination": "/m"}}})
	// On another address than the one that answers at this port.
	add(11, m{"Name": "/elsewhere", "Path": "vllm", "Args": []any{"serve", "m/m"}}, bound("10.0.0.5", strangers), m{
		"Config":     m{"Entrypoint": []any{"vllm", "serve"}, "Cmd": []any{"m/m"}, "WorkingDir": "/work", "Env": nil},
		"HostConfig": m{"Memory": 17179869184, "NanoCpus": 2500000000, "PidsLimit": 300, "Tmpfs": m{"/run/x": "rw", "/tmp": ""}, "GroupAdd": []any{"44"}, "Sysctls": m{"net.core.somaxconn": "1"}},
	})
	add(12, m{"Name": "/gvisor", "Path": "vllm", "Args": []any{"serve", "m/m"}}, bound("127.0.0.1", "9112"), m{"HostConfig": m{"Runtime": "runsc"}})
	add(13, m{"Name": "/shelled", "Path": "sh", "Args": []any{"-c", "vllm serve x | tee"}}, bound("127.0.0.1", "9113"), m{"Config": m{"Cmd": []any{"sh", "-c", "vllm serve x | tee"}}})
	add(8, m{"Name": "/bad\u202e\u001b[31mname"}, label("../etc"))
	containers[id(9)] = "nonsense"
	image, err := json.Marshal(cases.Image)
	must(t, err)
	socket := fakeDocker(t, containers, map[string]string{"sha256:" + strings.Repeat("b", 64): string(image)})
	d := Docker{Socket: socket, Prober: NewProber(), Holders: []Holder{{first, 4242, 9000}}, Proc: proc(t, map[int][2]string{
		4242: {"/system.slice/docker-" + id(1) + ".scope", "vllm serve"},
	})}
	rules := containerpolicy.Rules{Mounts: []string{"/srv/models"}, Environment: []string{"EXTRA_SETTING"}, GPUs: []string{first, second}}
	all, passed, err := d.Containers(t.Context(), rules)
	must(t, err)
	p := proposal.New("docker", present(t), "the containers of Docker at /run/docker.sock")
	Host{Present: present(t), GPUs: hostGPUs}.Containers(p, all, passed)
	for _, l := range p.LeftOut() {
		if strings.Contains(l.What+l.Why, "hunter2") {
			t.Errorf("a secret is told: %+v", l)
		}
	}
	settled(t, p, "containers.yaml", map[uint32]string{port: "7001", stranger: "7004"})
}

// A daemon that is not there, or is none.
func TestContainersRefuse(t *testing.T) {
	t.Parallel()
	for _, socket := range []string{"", "docker.sock", "/run/../run/docker.sock", filepath.Join(t.TempDir(), "none.sock")} {
		if _, _, err := (Docker{Socket: socket, Proc: t.TempDir()}).Containers(t.Context(), containerpolicy.Rules{}); err == nil {
			t.Errorf("%q was taken", socket)
		}
	}
	socket := fakeDocker(t, map[string]string{"../../images/json": "{}"}, nil)
	if _, _, err := (Docker{Socket: socket, Proc: t.TempDir()}).Containers(t.Context(), containerpolicy.Rules{}); err == nil {
		t.Error("an id that is a path was taken")
	}
}

func TestGPUs(t *testing.T) {
	t.Parallel()
	answers := func(gpu, apps string) Runner {
		return func(_ context.Context, program string, args ...string) ([]byte, error) {
			switch {
			case program == "/smi" && strings.HasPrefix(args[0], "--query-gpu="):
				return []byte(gpu), nil
			case program == "/smi" && strings.HasPrefix(args[0], "--query-compute-apps="):
				return []byte(apps), nil
			}
			t.Errorf("%s %q", program, args)
			return nil, errors.New("no")
		}
	}
	list, held, err := gpus(t.Context(), answers(
		"0, "+first+", NVIDIA RTX 4090, 24564, 20000\n1, "+second+", NVIDIA \x1b[31mRTX, [N/A], 24000\n",
		first+", 101, 18000\n"+second+", 102, [N/A]\n[Not Found], 103, 5\n"), "/smi")
	must(t, err)
	if diff := cmp.Diff([]GPU{{0, first, "NVIDIA RTX 4090", 24564, 20000}, {1, second, "NVIDIA RTX", 0, 24000}}, list); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]Holder{{first, 101, 18000}, {second, 102, 0}}, held); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for name, text := range map[string]string{
		"an error in words": "NVIDIA-SMI has failed", "too few cells": "0, " + first, "no uuid": "0, x, y, 1, 1", "a far index": "99, " + first + ", x, 1, 1",
	} {
		if _, _, err := gpus(t.Context(), answers(text, ""), "/smi"); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
