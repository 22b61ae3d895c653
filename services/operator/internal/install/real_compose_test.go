//go:build real

package install_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// composed is Durward in containers on a Docker Engine of its own, inside scripts/own-dockerd.sh.
type composed struct {
	*testing.T
	files, work string
	env         []string
	over        []string // what -f adds
}

// operatorUser is the person's user in the images (deploy/compose/passwd).
const operatorUser = 60737

// containers are those that run for good.
var containers = []string{"audit", "vault", "executor", "egress", "gateway", "renew"}

// TestRealCompose lives with deploy/compose: set up, up, a first approval, each container killed, one replaced by another version, a project
// started twice, down and up again with what was there before, and with what a backup has of it.
func TestRealCompose(t *testing.T) {
	if os.Getenv("COMPOSE") == "" || os.Getenv("DOCKER_HOST") == "" {
		t.Fatal("run scripts/real-compose.sh, which makes images and engine")
	}
	work := os.Getenv("WORK")
	h := &composed{T: t, files: os.Getenv("COMPOSE_FILES"), work: work, env: append(os.Environ(), "DURWARD_ETC="+work+"/etc", "DURWARD_PORT="+port)}
	h.must(os.Mkdir(work+"/etc", 0o755))
	h.key()
	for _, part := range []struct {
		name string
		do   func(*composed)
	}{
		{"before the set-up", (*composed).early},
		{"set up and up", (*composed).up},
		{"what each may", (*composed).confined},
		{"the first approval", (*composed).approval},
		{"drivers", (*composed).drivers},
		{"each container killed", (*composed).killed},
		{"another version of one", (*composed).upgraded},
		{"started twice", (*composed).twice},
		{"down and up", (*composed).again},
		{"a backup put back", (*composed).restored},
		{"with Docker and with GPUs", (*composed).overlays},
		{"services as containers", (*composed).services},
		{"with PostgreSQL and Prometheus", (*composed).profiles},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.do(&composed{T: t, files: h.files, work: h.work, env: h.env}) }) {
			out, _ := h.compose("logs", "--no-color", "--tail", "20")
			t.Fatalf("the containers' last lines:\n%s", out)
		}
	}
}

func (h *composed) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// run runs a program and returns what it said and how it ended.
func (h *composed) run(argv ...string) (string, int) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = h.env
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		h.Fatalf("%v: %v", argv, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func (h *composed) compose(args ...string) (string, int) {
	h.Helper()
	argv := []string{os.Getenv("COMPOSE"), "--progress", "plain"}
	for _, file := range append([]string{"compose.yaml"}, h.over...) {
		argv = append(argv, "--file", filepath.Join(h.files, file))
	}
	return h.run(append(argv, args...)...)
}

// ok is compose for what must go well.
func (h *composed) ok(args ...string) string {
	h.Helper()
	out, code := h.compose(args...)
	if code != 0 {
		h.Fatalf("compose %v ended with %d:\n%s", args, code, out)
	}
	return out
}

// once runs one of the services for people, with the operator's key within reach.
func (h *composed) once(service string, args ...string) (string, int) {
	h.Helper()
	return h.compose(append([]string{"run", "--rm", "--no-deps", "--no-TTY", "--volume", h.work + "/agent:/home/agent", "--volume", h.work + "/key.pub:/home/key.pub:ro", "--env", "SSH_AUTH_SOCK=/home/agent/socket", service}, args...)...)
}

// inspect is what the engine says of a container.
func (h *composed) inspect(container, template string) string {
	h.Helper()
	out, code := h.run("docker", "inspect", "--format", template, container)
	if code != 0 {
		h.Fatalf("inspect %s: %s", container, out)
	}
	return strings.TrimSpace(out)
}

func (h *composed) eventually(what string, f func() error) {
	h.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) { // no event: the engine does it in its own time
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			h.Fatalf("%s: %v", what, err)
		}
	}
}

// key makes the operator's key, with a passphrase, and an agent of the operator's user that holds it.
func (h *composed) key() {
	h.Helper()
	h.must(os.Mkdir(h.work+"/agent", 0o700))
	h.must(os.Chown(h.work+"/agent", operatorUser, operatorUser))
	h.must(os.Chmod(h.work, 0o711))
	for _, argv := range [][]string{{"ssh-keygen", "-q", "-t", "ed25519", "-N", "correct horse", "-C", "operator", "-f", h.work + "/key"},
		{"chown", fmt.Sprint(operatorUser), h.work + "/key", h.work + "/key.pub"}} {
		if out, code := h.run(argv...); code != 0 {
			h.Fatalf("%v: %s", argv, out)
		}
	}
	askpass := h.work + "/askpass"
	h.must(os.WriteFile(askpass, []byte("#!/bin/sh\necho correct horse\n"), 0o755))
	for _, argv := range [][]string{{"ssh-agent", "-a", h.work + "/agent/socket"}, {"ssh-add", h.work + "/key"}} {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "SSH_AUTH_SOCK="+h.work+"/agent/socket", "SSH_ASKPASS="+askpass, "SSH_ASKPASS_REQUIRE=force", "HOME="+h.work)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: operatorUser, Gid: operatorUser}, Setsid: true}
		if out, err := cmd.CombinedOutput(); err != nil {
			h.Fatalf("%v: %v: %s", argv, err, out)
		}
	}
}

// early is up before anybody made the keys.
func (h *composed) early() {
	if out, code := h.compose("up", "--detach"); code == 0 || !strings.Contains(out, "log.key") && !strings.Contains(out, "grant.key") {
		h.Errorf("up without keys ended with %d:\n%s", code, out)
	}
	h.ok("down")
}

func (h *composed) up() {
	began := time.Now()
	out, code := h.once("setup", "install", "--apply", "--containers", "--egress", "--port", port, "--signing-key", "/home/key.pub")
	if code != 0 || !strings.Contains(out, "operator may approve with SHA256:") {
		h.Fatalf("set-up ended with %d:\n%s", code, out)
	}
	laid := time.Since(began)
	h.ok("up", "--detach", "--wait")
	h.Logf("seconds: set up %.1f, up and well %.1f", laid.Seconds(), time.Since(began).Seconds())
	if out, code := h.once("durward", "status"); code != 0 {
		h.Errorf("status ended with %d:\n%s", code, out)
	}
	if out, code := h.once("setup", "install", "--apply", "--json"); code != 0 || !strings.Contains(out, `"effects":0`) && !strings.Contains(out, `"effects": 0`) {
		h.Errorf("a second set-up does something: %d\n%s", code, out)
	}
}

// confined looks at what the kernel says of each process: its user, no capability, a root that it cannot write to, and no network but what it needs.
func (h *composed) confined() {
	for _, name := range containers {
		pid := h.inspect("durward-"+name, "{{.State.Pid}}")
		status, err := os.ReadFile("/proc/" + pid + "/status")
		h.must(err)
		want := []string{"NoNewPrivs:\t1\n", "Seccomp:\t2\n"}
		if name != "renew" {
			want = append(want, "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n")
			if strings.Contains(string(status), "Uid:\t0\t") {
				h.Errorf("%s runs as root", name)
			}
		}
		for _, line := range want {
			if !strings.Contains(string(status), line) {
				h.Errorf("%s has not %q:\n%s", name, line, status)
			}
		}
		if got := h.inspect("durward-"+name, "{{.HostConfig.ReadonlyRootfs}} {{.HostConfig.Memory}} {{.HostConfig.PidsLimit}}"); !strings.HasPrefix(got, "true ") || strings.Contains(got, " 0") || strings.Contains(got, "<nil>") {
			h.Errorf("%s: %s", name, got)
		}
		mode := map[string]string{"executor": "host", "gateway": "host", "egress": "durward_outside"}[name]
		if got := h.inspect("durward-"+name, "{{.HostConfig.NetworkMode}}"); got != mode && (mode != "" || got != "none") {
			h.Errorf("%s has the network %s", name, got)
		}
		// As the process sees it.
		for _, path := range []string{"/etc/durward/pki/ca.key", "/etc/durward/keys/grant.key", "/etc/durward/keys/log.key"} {
			if _, err := os.Stat("/proc/" + pid + "/root" + path); err == nil && (name != "renew" || !strings.HasPrefix(path, "/etc/durward/pki/")) {
				h.Errorf("%s has %s before it", name, path)
			}
		}
		if err := os.WriteFile("/proc/"+pid+"/root/etc/durward/trust/x", nil, 0o600); err == nil {
			h.Errorf("%s may write to the trust folder", name)
		}
		if got := h.inspect("durward-"+name, "{{.HostConfig.LogConfig.Type}}"); got != "local" {
			h.Errorf("the log of %s has no bound: %s", name, got)
		}
		if err := os.WriteFile("/proc/"+pid+"/root/x", nil, 0o600); err == nil {
			h.Errorf("the root of %s can be written to", name)
		}
	}
	if out, code := h.run("docker", "exec", "durward-renew", "/usr/lib/durward/durward", "renew", "--all"); code != 0 {
		h.Errorf("renew ended with %d:\n%s", code, out)
	}
	if out, code := h.once("setup", "cert", "status"); code != 0 {
		h.Errorf("root is told of sound certificates: %d\n%s", code, out)
	}
	for _, service := range []string{"durward", "setup"} {
		if out, code := h.once(service, "doctor"); code != 0 {
			h.Errorf("doctor of %s finds fault with a sound installation: %d\n%s", service, code, out)
		}
	}
}

// approval is an agent's request and the person's answer.
func (h *composed) approval() {
	began := time.Now()
	h.must(os.WriteFile(h.work+"/etc/catalogue.yaml", []byte("version: 1\nservices:\n  - {id: demo, name: Demo, driver: \"null\", port: 18941}\n"), 0o644))
	if out, code := h.once("setup", "client", "add", "robot", "--bearer", "--channel", "api", "--yes"); code != 0 {
		h.Fatalf("client add ended with %d:\n%s", code, out)
	}
	h.ok("cp", "setup:/home/root/.durward/clients/robot/token", h.work+"/token")
	h.ask("start_service")
	h.Logf("seconds: client, request and approval %.1f", time.Since(began).Seconds())
}

var operationID = regexp.MustCompile(`"operation_id": ?"([0-9a-f]{32})"`)

// ask has the agent ask for a change of the demo service, and the operator approve it.
func (h *composed) ask(tool string) {
	h.Helper()
	raw, err := os.ReadFile(h.work + "/token")
	h.must(err)
	a := &agent{token: strings.TrimSpace(string(raw))}
	h.eventually("the agent connects", func() error { return a.open(h.Context()) })
	answered := make(chan string, 1)
	go func() {
		text, err := a.call(h.Context(), tool, map[string]any{"service_id": "demo"})
		answered <- fmt.Sprint(text, err)
	}()
	var id string
	h.eventually("the request is pending", func() error {
		select {
		case text := <-answered:
			h.Fatalf("the agent is answered at once: %s", text)
		default:
		}
		out, code := h.once("durward", "approvals", "--json")
		found := operationID.FindAllStringSubmatch(out, -1)
		if code != 0 || len(found) != 1 {
			return fmt.Errorf("%d: %s", code, out)
		}
		id = found[0][1]
		return nil
	})
	if out, code := h.once("durward", "approve", id, "--yes"); code != 0 {
		h.Fatalf("approve ended with %d:\n%s", code, out)
	}
	select {
	case text := <-answered:
		if !strings.Contains(text, `"status":"ok"`) {
			h.Fatalf("the agent is answered: %s", text)
		}
	case <-time.After(patience):
		h.Fatal("the agent is not answered")
	}
}

// drivers: a service that would be a program or a unit of the host is refused in one sentence; the others stay.
func (h *composed) drivers() {
	file := h.work + "/etc/catalogue.yaml"
	before, err := os.ReadFile(file)
	h.must(err)
	for _, entry := range []string{"{id: other, driver: process, argv: [/bin/true], run_as: root, port: 18942}", "{id: other, driver: systemd, unit: other.service, port: 18942}"} {
		h.must(os.WriteFile(file, append(bytes.Clone(before), "  - "+entry+"\n"...), 0o644))
		h.eventually("it is refused", func() error {
			if out, code := h.once("durward", "services"); code != 0 || !strings.Contains(out, "wrong: other") || !strings.Contains(out, "demo ") {
				return fmt.Errorf("%d: %s", code, out)
			}
			return nil
		})
		if out, code := h.once("durward", "catalog", "check"); code == 0 || !strings.Contains(out, "the executor runs in a container, from which it starts no program and no unit of the host: use the driver docker") {
			h.Errorf("%s: %d\n%s", entry, code, out)
		}
	}
	h.must(os.WriteFile(file, before, 0o644))
}

// killed ends each process from outside, as a fault of its own would: the engine starts it again, and all goes on.
func (h *composed) killed() {
	for _, name := range containers {
		pid := h.inspect("durward-"+name, "{{.State.Pid}}")
		if out, code := h.run("kill", "-KILL", pid); code != 0 {
			h.Fatalf("kill: %s", out)
		}
		h.eventually(name+" is back", func() error {
			if got := h.inspect("durward-"+name, "{{.State.Running}} {{.State.Pid}} {{.RestartCount}}"); !strings.HasPrefix(got, "true ") || strings.Contains(got, " "+pid+" ") {
				return fmt.Errorf("%s", got)
			}
			return nil
		})
	}
	h.well()
	h.ok("stop", "gateway")
	if out, code := h.once("durward", "status"); code == 0 || !strings.Contains(out, "docker compose restart gateway. Why: docker compose logs --tail 50 gateway") {
		h.Errorf("what mends a gateway that is stopped: %d\n%s", code, out)
	}
	h.ok("start", "gateway")
	h.well()
	h.ask("stop_service")
}

// well waits until every process says that it is.
func (h *composed) well() {
	h.Helper()
	h.eventually("all are well", func() error {
		if out, code := h.once("durward", "status"); code != 0 {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
}

// upgraded puts another version of the vault in the place of the one that runs.
func (h *composed) upgraded() {
	before := map[string]string{}
	for _, name := range containers {
		before[name] = h.inspect("durward-"+name, "{{.Id}}")
	}
	if out, code := h.run("docker", "load", "--quiet", "--input", os.Getenv("IMAGES_NEXT")); code != 0 {
		h.Fatalf("load: %s", out)
	}
	h.ok("up", "--detach", "--wait")
	for _, name := range containers {
		if same := h.inspect("durward-"+name, "{{.Id}}") == before[name]; same == (name == "vault" || name == "renew") { // renew's image has every program that keeps state
			h.Errorf("%s was replaced: %v", name, !same)
		}
	}
	h.well()
	if out, code := h.once("durward", "status", "--json"); code != 0 || !strings.Contains(out, os.Getenv("NEXT_VERSION")) {
		h.Errorf("the new version does not run: %d\n%s", code, out)
	}
	h.ask("start_service")
}

// twice is the same file as another project: nothing of the first one is touched.
func (h *composed) twice() {
	out, code := h.compose("--project-name", "other", "up", "--detach", "--wait")
	if code == 0 || !strings.Contains(out, `is already in use by container`) {
		h.Errorf("a second project ended with %d:\n%s", code, out)
	}
	h.compose("--project-name", "other", "down")
	h.well()
}

// again: down keeps what up needs.
func (h *composed) again() {
	began := time.Now()
	h.ok("down")
	if out, code := h.run("docker", "ps", "--all", "--quiet"); code != 0 || strings.TrimSpace(out) != "" {
		h.Errorf("left after down: %s", out)
	}
	down := time.Since(began)
	h.ok("up", "--detach", "--wait")
	h.Logf("seconds: down %.1f, up again %.1f", down.Seconds(), time.Since(began).Seconds())
	h.well()
	if out, code := h.once("durward", "audit", "verify"); code != 0 {
		h.Errorf("verify ended with %d:\n%s", code, out)
	}
	if out, code := h.once("durward", "audit", "search", "--tool", "start_service", "--json"); code != 0 || !strings.Contains(out, "approved") {
		h.Errorf("the approval of before is not found: %d\n%s", code, out)
	}
	h.ask("stop_service")
	for _, name := range containers {
		rss, err := os.ReadFile("/proc/" + h.inspect("durward-"+name, "{{.State.Pid}}") + "/smaps_rollup")
		h.must(err)
		for line := range strings.Lines(string(rss)) {
			if strings.HasPrefix(line, "Rss:") || strings.HasPrefix(line, "Pss:") {
				h.Logf("memory of %s: %s", name, strings.Join(strings.Fields(line), " "))
			}
		}
	}
}

// restored makes a backup while all run, changes something, and puts the backup back: nothing begins before a person resumes, and then
// all goes on, with the operator's statement of what is lost in the log.
func (h *composed) restored() {
	said := func(service string, args ...string) string {
		h.Helper()
		out, code := h.once(service, args...)
		if code != 0 {
			h.Fatalf("%s %v ended with %d:\n%s", service, args, code, out)
		}
		return out
	}
	began := time.Now()
	recipient := regexp.MustCompile(`age1[0-9a-z]+`).FindString(said("setup", "backup", "--new-key", "/home/root/backup.key"))
	said("setup", "backup", "/home/root/backup", "--to", recipient)
	made := time.Since(began)
	h.ask("start_service")
	restore := []string{"restore", "/home/root/backup", "--key", "/home/root/backup.key", "--yes"}
	if out, code := h.once("setup", restore...); code == 0 || !strings.Contains(out, "is running") {
		h.Errorf("a restore while all run ended with %d:\n%s", code, out)
	}
	h.ok("down")
	began = time.Now()
	said("setup", restore...)
	h.ok("up", "--detach", "--wait")
	h.Logf("seconds: a backup %.1f, put back and up %.1f", made.Seconds(), time.Since(began).Seconds())
	if out, code := h.once("durward", "stop", "demo", "--yes"); code == 0 {
		h.Errorf("a change before anybody resumed:\n%s", out)
	}
	said("durward", "resume", "--yes")
	h.well()
	h.ask("start_service")
	said("durward", "audit", "verify")
	if out := said("durward", "audit", "search", "--kind", "restored", "--json"); !strings.Contains(out, "lost") {
		h.Errorf("the log does not say what is lost:\n%s", out)
	}
}

// profiles begins anew at the default ports, with log and state in PostgreSQL and Prometheus beside them, as install.md has it.
func (h *composed) profiles() {
	h.ok("down", "--volumes")
	etc := h.work + "/anew"
	h.must(os.Mkdir(etc, 0o755))
	h.env = append(slices.Clone(h.env), "DURWARD_ETC="+etc, "DURWARD_PORT=7430", "DURWARD_OPERATOR_NETWORK=host")
	if out, code := h.once("setup", "install", "--apply", "--containers", "--egress", "--signing-key", "/home/key.pub"); code != 0 {
		h.Fatalf("set-up ended with %d:\n%s", code, out)
	}
	for _, name := range []string{"audit", "vault"} {
		file, err := os.OpenFile(etc+"/"+name+".yaml", os.O_WRONLY|os.O_APPEND, 0)
		h.must(err)
		_, err = fmt.Fprintf(file, "\ndatabase:\n  engine: postgres\n  addresses: [\"unix:/run/postgresql/.s.PGSQL.5432,user=postgres\"]\n  name: durward_%s\n  user: durward-%[1]s\n", name)
		h.must(err)
		h.must(file.Close())
	}
	h.ok("--profile", "postgres", "up", "--detach", "--wait")
	h.must(os.WriteFile(etc+"/catalogue.yaml", []byte("version: 1\nservices:\n  - {id: demo, name: Demo, driver: \"null\", port: 18941}\n"), 0o644))
	h.eventually("a change is made", func() error {
		if out, code := h.once("durward", "start", "demo", "--yes"); code != 0 {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
	if out, code := h.once("durward", "audit", "verify"); code != 0 {
		h.Errorf("verify ended with %d:\n%s", code, out)
	}
	for table, database := range map[string]string{"spent": "durward_vault", "writers": "durward_audit"} {
		if out, code := h.run("docker", "exec", "durward-postgres", "psql", "-X", "-t", "-A", "-d", database, "-c", "SELECT count(*) > 0 FROM "+table); code != 0 || strings.TrimSpace(out) != "t" {
			h.Errorf("%s has nothing in %s: %d, %s", database, table, code, out)
		}
	}
	if out, code := h.once("setup", "install", "--apply", "--health-on-loopback"); code != 0 {
		h.Fatalf("health on ports ended with %d:\n%s", code, out)
	}
	h.ok("restart", "gateway", "executor")
	h.ok("--profile", "postgres", "--profile", "prometheus", "up", "--detach", "--wait")
	h.eventually("Prometheus has the rules of alerts", func() error { // whose container has no health to wait for
		if out, code := h.run("curl", "-fsS", "http://127.0.0.1:9090/api/v1/rules"); code != 0 || !strings.Contains(out, `"name":"DurwardProcessDown"`) {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
	h.eventually("Prometheus has asked the gateway and the executor", func() error {
		out, code := h.run("curl", "-fsS", "http://127.0.0.1:9090/api/v1/query?query=sum(up)")
		if code != 0 || !strings.Contains(out, `"2"]`) {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
}

// services: with the Docker Engine's socket the executor starts a service as a container that may nothing, and refuses one that would
// reach the engine itself.
func (h *composed) services() {
	socket := strings.TrimPrefix(os.Getenv("DOCKER_HOST"), "unix://")
	info, err := os.Stat(socket)
	h.must(err)
	h.env = append(slices.Clone(h.env), fmt.Sprint("DOCKER_GID=", info.Sys().(*syscall.Stat_t).Gid), "DOCKER_SOCKET="+socket)
	h.over = []string{"compose.docker.yaml"}
	h.ok("up", "--detach", "--wait")
	file := h.work + "/etc/catalogue.yaml"
	before, err := os.ReadFile(file)
	h.must(err)
	h.must(os.WriteFile(file, append(bytes.Clone(before), `  - {id: boxed, driver: docker, container: {image: "test/demo:1", allow_tag: true, user: "4242:4242"}}
  - {id: open, driver: docker, container: {image: "test/demo:1", allow_tag: true, user: "4242:4242", mounts: [{source: /run/docker.sock, target: /run/docker.sock}]}}
`...), 0o644))
	h.eventually("the service is started", func() error {
		if out, code := h.once("durward", "start", "boxed", "--yes"); code != 0 {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
	if got := h.inspect("durward-boxed", "{{.State.Running}} {{.Config.User}} {{.HostConfig.Privileged}} {{.HostConfig.CapDrop}} {{.HostConfig.ReadonlyRootfs}} {{len .Mounts}}"); got != "true 4242:4242 false [ALL] true 0" {
		h.Errorf("the container is %s", got)
	}
	if out, code := h.once("durward", "start", "open", "--yes"); code == 0 {
		h.Errorf("a service with the engine's socket is started: %s", out)
	}
	if out, _ := h.run("docker", "ps", "--all", "--quiet", "--filter", "name=durward-open"); out != "" {
		h.Errorf("it has a container: %s", out)
	}
	if out, code := h.once("durward", "stop", "boxed", "--yes"); code != 0 {
		h.Errorf("stop ended with %d: %s", code, out)
	}
	if out, _ := h.run("docker", "ps", "--quiet", "--filter", "name=durward-boxed"); out != "" {
		h.Errorf("it runs still: %s", out)
	}
}

// overlays: what opens more is what it says and no more; without the number of Docker's group nothing is rendered.
func (h *composed) overlays() {
	rendered := func(files ...string) string {
		h.Helper()
		argv := []string{os.Getenv("COMPOSE"), "--file", h.files + "/compose.yaml"}
		for _, file := range files {
			argv = append(argv, "--file", filepath.Join(h.files, file))
		}
		out, _ := h.run(append(argv, "--profile", "*", "config", "--format", "json")...) // whoever asks reads it, or the complaint
		return out
	}
	if out := rendered("compose.docker.yaml"); !strings.Contains(out, "say whose the socket is") {
		h.Errorf("without DOCKER_GID: %s", out)
	}
	h.env = append(slices.Clone(h.env), "DOCKER_GID=64001")
	var config struct {
		Services map[string]struct {
			GroupAdd []string `json:"group_add"`
			Devices  []any    `json:"devices"`
			PID      string   `json:"pid"`
			Profiles []string `json:"profiles"`
			Volumes  []struct {
				Source, Target string
			} `json:"volumes"`
		} `json:"services"`
	}
	h.must(json.Unmarshal([]byte(rendered("compose.docker.yaml", "compose.gpu.yaml")), &config))
	for name, service := range config.Services {
		socket := slices.ContainsFunc(service.Volumes, func(v struct{ Source, Target string }) bool { return v.Target == "/run/docker.sock" })
		gpu := strings.Contains(fmt.Sprint(service.Devices), "nvidia.com/gpu=all")
		if executor := name == "executor"; socket != executor || gpu != executor || slices.Contains(service.GroupAdd, "64001") != executor || (service.PID == "host") != executor {
			h.Errorf("%s: socket %v, GPUs %v, groups %v, processes %q", name, socket, gpu, service.GroupAdd, service.PID)
		}
	}
	for _, name := range []string{"postgres", "prometheus"} {
		if !slices.Equal(config.Services[name].Profiles, []string{name}) {
			h.Errorf("%s is started unasked: %v", name, config.Services[name].Profiles)
		}
	}
}
