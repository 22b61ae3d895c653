package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/platformtest/input"
	"durward.internal/services/platform/process"
)

const shipped = "../../../../deploy/config"

func TestShippedConfigurationIsGood(t *testing.T) {
	input.Outside(t)
	cfg := &settings{}
	must(t, config.Load(filepath.Join(shipped, "executor.yaml"), cfg))
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	if cfg.marginMiB() != capacity.DefaultMargin || (&settings{}).marginMiB() != capacity.DefaultMargin || cfg.Docker.Socket != "" {
		t.Errorf("margin %d, docker %q", cfg.marginMiB(), cfg.Docker.Socket)
	}
	if len(cfg.Unattended) != 0 {
		t.Error("the shipped configuration lets tools run unattended")
	}
}

func TestShippedCatalogIsGood(t *testing.T) {
	input.Outside(t)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "durward-demo"), nil, 0o700))
	c, err := catalog.Load(filepath.Join(shipped, "catalogue.yaml"), catalog.Options{ProgramsDir: dir, Development: true})
	must(t, err)
	chat, ok := c.Lookup("demo-chat")
	if !ok || chat.VRAMMiB != 6144 || chat.BaseURL != "http://127.0.0.1:7450/v1" || chat.ServedModel() != "demo-1b" {
		t.Errorf("demo-chat is %+v", chat)
	}
	if _, ok := c.Lookup("demo-embed"); !ok || len(c.GPUs) != 2 {
		t.Errorf("the example has %d GPUs", len(c.GPUs))
	}
}

func TestBadConfigurationIsRefused(t *testing.T) {
	input.Outside(t)
	good, err := os.ReadFile(filepath.Join(shipped, "executor.yaml"))
	must(t, err)
	for name, c := range map[string]struct{ old, new, says string }{
		"unknown key":     {"catalogue: /", "catalog: /", `did you mean "catalogue"`},
		"development key": {"unattended: []", "unattended: []\ndevelopment: true", "unknown key"},
		"open listener":   {"listen: 127.0.0.1:7432", "listen: 0.0.0.0:7432", "loopback"},
		"wrong role":      {"spiffe://durward.local/vault/main", "spiffe://durward.local/gateway/main", "role vault"},
		"no identity":     {"spiffe://durward.local/audit/main", "audit", "identity"},
		"relative path":   {"catalogue: /etc", "catalogue: etc", "absolute"},
		"relative folder": {`programs_dir: ""`, `programs_dir: bin`, "absolute"},
		"another manager": {"manager: system", "manager: session", "systemd.manager"},
		"a TCP Docker":    {`socket: ""`, "socket: tcp://127.0.0.1:2375", "docker.socket"},
		"another source":  {"source: auto", "source: rocm", "gpu.source"},
		"a bare library":  {`library: ""`, "library: libnvidia-ml.so.1", "gpu.library"},
		"a bare program":  {`program: ""`, "program: nvidia-smi", "gpu.program"},
		"a bare oracle":   {`llama_fit_params: ""`, "llama_fit_params: llama-fit-params", "gpu.llama_fit_params"},
		"a huge margin":   {"margin_mib: 512", "margin_mib: 1048577", "gpu.margin_mib"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(string(good), c.old, c.new, 1)
			if text == string(good) {
				t.Fatal("the case changes nothing")
			}
			cfg := &settings{}
			err := config.Parse("executor.yaml", []byte(text), cfg)
			if err == nil {
				err = cfg.Validate()
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error is %v, want %q", err, c.says)
			}
		})
	}
}

// asProgram makes the test's own binary the executor.
const asProgram = "DURWARD_TEST_EXECUTOR"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestTheProgram starts the executor without vault and audit, and looks at it as the operator: reads go on into
// the spool, changes do not, SIGTERM ends it with 0, and a second one takes up its state.
func TestTheProgram(t *testing.T) {
	kit := platformtest.New(t)
	dir := t.TempDir()
	program := func(args ...string) *exec.Cmd {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		return cmd
	}
	files := kit.Files(optionsv1.Role_ROLE_EXECUTOR, "local")
	listen := platformtest.ClaimPorts(t)
	health := listen + 1
	cat := filepath.Join(dir, "catalogue.yaml")
	write(t, cat, "version: 1\nservices: [{id: idle, driver: \"null\"}]\n")
	file := filepath.Join(dir, "executor.yaml")
	write(t, file, fmt.Sprintf(`listen: 127.0.0.1:%d
health_listen: 127.0.0.1:%d
state_dir: %s
trust_dir: %s
tls: {certificate: %s, key: %s}
vault: {address: "127.0.0.1:1", identity: %s}
audit: {address: "127.0.0.1:2", identity: %s}
catalogue: %s
`, listen, health, filepath.Join(dir, "state"), kit.TrustDir, files.Certificate, files.Key,
		kit.ID(optionsv1.Role_ROLE_VAULT, "main"), kit.ID(optionsv1.Role_ROLE_AUDIT, "main"), cat))

	if out, err := program("-config", file, "-check").CombinedOutput(); err != nil || !bytes.Contains(out, []byte("ok")) {
		t.Errorf("-check: %v\n%s", err, out)
	}
	for range 2 {
		var said bytes.Buffer
		p := program("-config", file)
		p.Stderr = &said
		must(t, p.Start())
		ended := make(chan error, 1)
		go func() { ended <- p.Wait() }()
		t.Cleanup(func() { _ = p.Process.Kill() })

		awaitHealth(t, health)
		me := kit.ID(optionsv1.Role_ROLE_OPERATOR, platformtest.Operator)
		conn := kit.Dial(t, me, fmt.Sprintf("127.0.0.1:%d", listen), kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local"))
		tools, control := executorv1.NewToolServiceClient(conn), executorv1.NewControlServiceClient(conn)
		list, err := tools.ListServices(t.Context(), &executorv1.ListServicesRequest{})
		if err != nil || len(list.GetServices()) != 1 {
			t.Errorf("list: %v, %v", list, err)
		}
		status, err := control.GetStatus(t.Context(), &executorv1.GetStatusRequest{})
		if err != nil || status.GetAuditReachable() || status.GetVaultReachable() || status.GetSpooledRecords() == 0 {
			t.Errorf("status: %v, %v", status, err)
		}
		if _, err := tools.StartService(t.Context(), &executorv1.StartServiceRequest{ServiceId: proto.String("idle")}); !fault.Is(err, callv1.Code_CODE_DENIED) {
			t.Errorf("start without a grant: %v", err)
		}
		tool, _ := contract.Lookup("start_service")
		if _, err := control.PreviewCall(t.Context(), &executorv1.PreviewCallRequest{Tool: tool.Ref(), Arguments: []byte(`{"service_id":"idle"}`)}); err != nil {
			t.Errorf("preview: %v", err)
		}
		must(t, p.Process.Signal(os.Interrupt))
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("it ended with %v\n%s", err, said.String())
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("it does not end\n%s", said.String())
		}
		for line := range strings.Lines(said.String()) {
			if !json.Valid([]byte(line)) {
				t.Errorf("not a JSON log line: %s", line)
			}
		}
	}
	for _, name := range []string{"executor.db", "spool.db", "run", "logs"} {
		info, err := os.Stat(filepath.Join(dir, "state", name))
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func awaitHealth(t *testing.T, port int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) { // no event: another process is asked
		res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/health", port))
		if err == nil {
			err = res.Body.Close()
			if res.StatusCode != http.StatusOK {
				err = errors.New(res.Status)
			}
		}
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not healthy: %v", err)
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	must(t, os.WriteFile(file, []byte(text), 0o600))
}

func TestABusyPortEndsTheStart(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	cfg := &settings{}
	cfg.StateDir, cfg.Listen, cfg.HealthListen = t.TempDir(), l.Addr().String(), "127.0.0.1:0"
	if err := run(context.Background(), cfg, platformtest.Logger()); err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("error is %v", err)
	}
}

func TestAnotherProcessInItsStateFolderEndsTheStart(t *testing.T) {
	cfg := &settings{}
	cfg.StateDir, cfg.Listen, cfg.HealthListen = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0"
	release, err := process.LockState(cfg.StateDir)
	must(t, err)
	defer func() { _ = release() }() // it ends with this process at the latest
	if err := run(t.Context(), cfg, platformtest.Logger()); err == nil || !strings.Contains(err.Error(), "another running process keeps its state in "+cfg.StateDir) {
		t.Errorf("error is %v", err)
	}
}

// TestNoDrillFlag: a build without the drill's tag cannot weaken anything.
func TestNoDrillFlag(t *testing.T) {
	flags := flag.NewFlagSet("executor", flag.ContinueOnError)
	drillFlags(flags)
	flags.VisitAll(func(f *flag.Flag) { t.Errorf("there is a flag -%s", f.Name) })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
