package harness

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/platformtest"
)

// Names of the processes, in the order in which they start.
const (
	Audit    = "audit"
	Vault    = "vault"
	Executor = "executor"
	Gateway  = "gateway"
)

// Egress is the process that reaches other hosts, where Options ask for it.
const Egress = "egress"

// Standby is a second audit, of which config/standby.yaml is the configuration, and SecondVault a vault with config/second.yaml. Their
// addresses are the block's last ports.
const (
	Standby     = "standby"
	SecondVault = "second"
)

// serviceOffset is where a block's ports for services begin: 0 to 14 are the processes' own.
const serviceOffset = 16

// up is the name of `durward up` among the processes.
const up = "up"

// Roles returns the names of the processes, in the order in which they start.
func Roles() []string { return []string{Audit, Vault, Executor, Gateway} }

// Tools are the contract's tools that a host without egress offers.
func Tools() []contract.Tool {
	return slices.DeleteFunc(contract.Tools(), func(t contract.Tool) bool { return t.Sink == optionsv1.Role_ROLE_EGRESS })
}

// Listed are those of them that tools/list shows a client up to a tier where there are no other people's servers: what finds tools finds
// nothing more there.
func Listed(upTo optionsv1.Tier) []contract.Tool {
	return slices.DeleteFunc(Tools(), func(t contract.Tool) bool {
		return t.Name == "find_tools" || t.Name == "describe_tool" || t.Tier > upTo
	})
}

// Patience is how long anything that ought to happen at once may take on a busy machine.
const Patience = 20 * time.Second

// Options say how a Host is made.
type Options struct {
	Build Build
	// Bin is a folder of programs that were built from another commit, to be measured beside this one's; empty means Build's.
	Bin string
	// Catalog returns the executor's catalog; nil means DemoCatalog.
	Catalog func(h *Host) string
	// Limits is the gateway's `limits:` section, in YAML; empty means limits that no test reaches, and DefaultLimits those that
	// an operator gets.
	Limits string
	// HoldS is how many seconds the gateway holds a call that waits for a human; 0 means 1, the least there is, so that tests need
	// not wait.
	HoldS int
	// ThroughSDK has the gateway answer nothing by itself.
	ThroughSDK bool
	// Egress adds the process that reaches other hosts.
	Egress bool
	// Sockets has vault, executor and audit serve on Unix sockets.
	Sockets bool
	// Operator is the operator's name; empty means ada.
	Operator string
	// Flags are further command-line flags, by process.
	Flags map[string][]string
}

// Host is one installation in a temporary folder, and its processes. It is for one test; its methods fail that test.
type Host struct {
	// Dir is the installation's folder; Bin the folder of the programs.
	Dir, Bin string
	// Operator is the operator's name.
	Operator string

	// root is the home folder of whoever runs the programs; Dir is in it.
	root      string
	t         testing.TB
	opts      Options
	base      int
	processes map[string]*Process
	history   auditv1.HistoryServiceClient
	vault     vaultv1.ControlServiceClient
	// sockets are the addresses of processes that serve on one, as their clients write them.
	sockets map[string]string
}

// New makes an installation in development mode, by `durward up --prepare`, and starts nothing.
func New(t testing.TB, opts Options) *Host {
	t.Helper()
	root := t.TempDir()
	bin := opts.Bin
	if bin == "" {
		bin = Binaries(t, opts.Build)
	}
	h := &Host{
		Dir: filepath.Join(root, "home"), Bin: bin, Operator: cmp.Or(opts.Operator, "ada"),
		root: root, t: t, opts: opts, base: platformtest.ClaimPorts(t), processes: map[string]*Process{},
	}
	t.Cleanup(h.close)
	if err := os.Mkdir(filepath.Join(root, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	prepare := []string{"up", "--prepare", "--development", "--operator", h.Operator, "--base-port", strconv.Itoa(h.base)}
	if opts.Egress {
		prepare = append(prepare, "--egress")
	}
	h.Durward(prepare...)
	catalog := opts.Catalog
	if catalog == nil {
		catalog = DemoCatalog
	}
	h.WriteFile("config/catalogue.yaml", catalog(h))
	h.WriteFile("config/gateway.yaml", h.ReadFile("config/gateway.yaml")+fmt.Sprintf("\nhold_s: %d\n%s", cmp.Or(opts.HoldS, 1), opts.limits()))
	if opts.ThroughSDK {
		h.WriteFile("config/gateway.yaml", h.ReadFile("config/gateway.yaml")+"through_sdk: true\n")
	}
	if opts.Sockets {
		h.overSockets()
	}
	return h
}

// DefaultLimits are the gateway's own limits, for Options.
const DefaultLimits = "{}"

// limits is the gateway's `limits:` section.
func (o Options) limits() string {
	if o.Limits != "" {
		return "limits: " + o.Limits + "\n"
	}
	const lifted = "{per_s: 100000, burst: 100000}"
	section := "limits: {requests_per_principal: 4096, connections: 8192, connections_per_principal: 4096, connections_of_strangers: 4096, " +
		"strangers_at_once: 64, refusal_delay_ms: 1"
	for _, bucket := range []string{"tools", "reads", "resources", "lists", "messages", "strangers"} {
		section += ", " + bucket + ": " + lifted
	}
	return section + "}\n"
}

// Start makes an installation and starts all its processes.
func Start(t testing.TB, opts Options) *Host {
	t.Helper()
	h := New(t, opts)
	h.StartAll()
	return h
}

func (h *Host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// Path is a file of the installation.
func (h *Host) Path(parts ...string) string {
	return filepath.Join(append([]string{h.Dir}, parts...)...)
}

// WriteFile replaces a file of the installation, atomically, 0600.
func (h *Host) WriteFile(name, content string) {
	h.t.Helper()
	path := h.Path(name)
	h.must(os.WriteFile(path+".new", []byte(content), 0o600))
	h.must(os.Rename(path+".new", path))
}

// ReadFile returns a file of the installation.
func (h *Host) ReadFile(name string) string {
	h.t.Helper()
	b, err := os.ReadFile(h.Path(name))
	h.must(err)
	return string(b)
}

// Port returns a port for the n-th service, 0 to 7, that nobody else has.
func (h *Host) Port(n int) int { return h.base + serviceOffset + n }

// overSockets writes Unix sockets into the configurations, for loopback's ports.
func (h *Host) overSockets() {
	h.t.Helper()
	dir, err := os.MkdirTemp("", "durward") // a socket's path has a hundred characters at most
	h.must(err)
	h.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	me, err := user.Current()
	h.must(err)
	ports, sockets := map[string]string{}, map[string]string{}
	for _, role := range []string{Vault, Executor, Audit} {
		ports[role], sockets[role] = h.Address(role), "unix:"+filepath.Join(dir, role+".sock")
	}
	for _, file := range []string{Gateway, Executor, Vault, Audit, "operator"} {
		name := "config/" + file + ".yaml"
		text := h.ReadFile(name)
		for role, socket := range sockets {
			text = strings.ReplaceAll(text, "\nlisten: "+ports[role]+"\n", "\nlisten: "+socket+"\n")
			text = strings.ReplaceAll(text, "address: "+ports[role]+"\n", "address: "+socket+",user="+me.Username+"\n")
		}
		h.WriteFile(name, text)
	}
	h.sockets = map[string]string{}
	for role, socket := range sockets {
		h.sockets[role] = socket + ",user=" + me.Username
	}
}

// Address is where a process serves: gRPC, and MCP at the gateway.
func (h *Host) Address(role string) string {
	if socket := h.sockets[role]; socket != "" {
		return socket
	}
	return h.at(map[string]int{Gateway: 0, Vault: 1, Executor: 2, Audit: 3, Egress: 4, Standby: serviceOffset + 6, SecondVault: serviceOffset + 4}[role])
}

// HealthAddress is where a process's health listener is.
func (h *Host) HealthAddress(role string) string {
	return h.at(map[string]int{Gateway: 10, Vault: 11, Executor: 12, Audit: 13, Egress: 14, Standby: serviceOffset + 7, SecondVault: serviceOffset + 5}[role])
}

func (h *Host) at(offset int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(h.base+offset))
}

// MCPURL is where agents connect.
func (h *Host) MCPURL() string { return "http://" + h.Address(Gateway) + "/mcp" }

// StartAll starts every process in order and waits until each is healthy.
func (h *Host) StartAll() {
	h.t.Helper()
	for _, role := range Roles() {
		if role == Gateway && h.opts.Egress {
			h.StartProcess(Egress)
		}
		h.StartProcess(role)
	}
}

// Up runs `durward up`, which runs the processes, and waits until it says where agents connect. Its screen is its log.
func (h *Host) Up(flags ...string) *Process {
	h.t.Helper()
	log := h.Path("logs", "up.log")
	if err := os.Remove(log); err != nil && !os.IsNotExist(err) {
		h.t.Fatal(err)
	}
	args := append([]string{filepath.Join(h.Bin, "durward"), "--home", h.Dir, "up", "--development"}, flags...)
	p := startProcess(h.t, "durward up", log, h.Environment(), args)
	h.processes[up] = p
	// It starts every process.
	if err := poll(time.Duration(len(Roles()))*Patience, func() error {
		if !p.Running() {
			h.t.Fatalf("durward up ended: %v\n%s", p.Ended(), p.Log())
		}
		if !strings.Contains(p.Log(), h.MCPURL()) {
			return fmt.Errorf("not yet\n%s", p.Log())
		}
		return nil
	}); err != nil {
		h.t.Fatalf("durward up is ready: %v", err)
	}
	return p
}

// StartProcess starts one process and waits until it is healthy.
func (h *Host) StartProcess(role string) *Process {
	h.t.Helper()
	p := h.Launch(role)
	h.AwaitHealthy(role)
	return p
}

// Launch starts one process and does not wait. A process of that name must not be running.
func (h *Host) Launch(role string) *Process {
	h.t.Helper()
	return h.LaunchUnder(nil, role)
}

// Replace ends a process and starts it from another folder of programs, from which h starts processes from then on. It reports whether the
// process runs: one whose state is a newer one refuses to start.
func (h *Host) Replace(role, bin string) bool {
	h.t.Helper()
	if p := h.Process(role); p.Running() {
		p.Stop()
	}
	h.Bin = bin
	p := h.Launch(role)
	Eventually(h.t, role+" is well or refuses", func() error {
		if p.Running() && !h.Healthy(role) {
			return fmt.Errorf("%s", p.Log())
		}
		return nil
	})
	return p.Running()
}

// LaunchUnder starts one process by another program, such as `prlimit --fsize=…`, which must become the process itself.
func (h *Host) LaunchUnder(wrapper []string, role string) *Process {
	h.t.Helper()
	if old := h.processes[role]; old != nil && old.Running() {
		h.t.Fatalf("%s is running already", role)
	}
	program := role
	switch role {
	case Standby:
		program = Audit
	case SecondVault:
		program = Vault
	}
	args := append(append([]string{}, wrapper...), filepath.Join(h.Bin, program), "-config", h.Path("config", role+".yaml"))
	if role == Executor || role == Egress {
		args = append(args, "-development")
	}
	args = append(args, h.opts.Flags[role]...)
	p := startProcess(h.t, role, h.Path("logs", role+".log"), h.Environment(), args)
	h.processes[role] = p
	return p
}

// SetFlags replaces the further command-line flags that a process gets from its next start on.
func (h *Host) SetFlags(role string, flags ...string) {
	set := maps.Clone(h.opts.Flags)
	if set == nil {
		set = map[string][]string{}
	}
	set[role] = flags
	h.opts.Flags = set
}

// Process returns a process that was started.
func (h *Host) Process(role string) *Process {
	h.t.Helper()
	p := h.processes[role]
	if p == nil {
		h.t.Fatalf("%s was never started", role)
	}
	return p
}

// runs reports whether a process was started and has not ended.
func (h *Host) runs(name string) bool {
	p := h.processes[name]
	return p != nil && p.Running()
}

// Healthy reports whether a process answers that it is well.
func (h *Host) Healthy(role string) bool {
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.HealthAddress(role)+"/health", nil)
	h.must(err)
	response, err := httpClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// httpClient keeps no connections, which would tell a stopped process from a hung one too late.
var httpClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// AwaitHealthy waits until a process answers that it is well, and fails the test when it ends before.
func (h *Host) AwaitHealthy(role string) {
	h.t.Helper()
	p := h.Process(role)
	Eventually(h.t, role+" is healthy", func() error {
		if !p.Running() {
			h.t.Fatalf("%s ended before it was healthy: %v\n%s", role, p.Ended(), p.Log())
		}
		if !h.Healthy(role) {
			return fmt.Errorf("not yet\n%s", p.Log())
		}
		return nil
	})
}

// close ends the processes, newest first, and then the services, which are made to outlive them.
func (h *Host) close() {
	roles := append([]string{up, Egress, Standby, SecondVault}, Roles()...)
	for i := len(roles) - 1; i >= 0; i-- {
		if p := h.processes[roles[i]]; p != nil {
			p.end()
			if h.t.Failed() {
				h.t.Logf("the end of %s's log:\n%s", roles[i], p.Log())
			}
		}
	}
	if why, ok := awaited.LoadAndDelete(h.t); ok {
		h.t.Logf("once more, %s", why)
	}
	h.KillServices()
}

// KillServices kills the services that this installation started, and waits until they are gone.
func (h *Host) KillServices() {
	h.t.Helper()
	for _, pid := range h.ServicePIDs() {
		// Gone already is as good.
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	Eventually(h.t, "the services are gone", func() error {
		if left := h.ServicePIDs(); len(left) > 0 {
			return fmt.Errorf("still there: %v", left)
		}
		return nil
	})
}

// ServicePIDs returns the running services: programs other than Durward's whose command line names a file of this
// installation.
func (h *Host) ServicePIDs() []int {
	h.t.Helper()
	entries, err := os.ReadDir("/proc")
	h.must(err)
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		program, _, _ := strings.Cut(string(cmdline), "\x00")
		// Of whichever folder of programs: Replace leaves what an earlier one runs.
		if name := filepath.Base(program); err != nil || name != "durward-demo" && name != Engine {
			continue
		}
		if strings.Contains(string(cmdline), h.Dir+string(filepath.Separator)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Digest returns the SHA-256 of every file under folders of the installation, by name.
func (h *Host) Digest(folders ...string) map[string]string {
	h.t.Helper()
	digests := map[string]string{}
	for _, folder := range folders {
		err := filepath.WalkDir(h.Path(folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			digests[strings.TrimPrefix(path, h.Dir)] = fmt.Sprintf("%x", sha256.Sum256(b))
			return err
		})
		h.must(err)
	}
	return digests
}
