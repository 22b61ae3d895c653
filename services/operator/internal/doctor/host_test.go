package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest/testfile"
)

func services(drivers ...string) *catalog.Catalog {
	c := &catalog.Catalog{Digest: "sha256:aa"}
	for _, d := range drivers {
		c.Services = append(c.Services, &catalog.Service{ID: d, Driver: d})
	}
	return c
}

func TestExamineHost(t *testing.T) {
	root := t.TempDir()
	put := func(name string) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		testfile.Write(t, filepath.Join(root, name), "")
	}
	put("with/proc/driver/nvidia/version")
	put("with/run/systemd/private")
	put("with/run/user/" + strconv.Itoa(os.Getuid()) + "/systemd/private")
	put("with/dead.sock")
	l, err := net.Listen("unix", filepath.Join(root, "with", "d.sock"))
	must(t, err)
	defer l.Close()
	gpus := func(source string) *executorv1.GetStatusResponse {
		return &executorv1.GetStatusResponse{GpuSource: source, Gpus: 1, CatalogueDigest: "sha256:aa"}
	}
	for _, c := range []struct {
		name, row, root string
		host            Host
		// want is "" where nothing is to be said.
		want Level
	}{
		{"a mistake", "catalogue", "", Host{CatalogError: errors.New("c.yaml:3:1: unknown key\nand more")}, Bad},
		{"not readable", "catalogue", "", Host{CatalogError: fs.ErrPermission}, Warning},
		{"another one in force", "catalogue", "", Host{Catalog: services(), Status: &executorv1.GetStatusResponse{CatalogueDigest: "sha256:bb"}}, Warning},
		{"in force", "catalogue", "", Host{Catalog: services(), Status: gpus("nvml")}, Good},
		{"the executor is down", "gpu", "", Host{}, ""},
		{"nvml", "gpu", "with", Host{Status: gpus("nvml")}, Good},
		{"nvidia-smi", "gpu", "with", Host{Status: gpus("nvidia-smi")}, Warning},
		{"simulated beside a driver", "gpu", "with", Host{Status: gpus("simulated")}, Warning},
		{"simulated", "gpu", "without", Host{Status: gpus("simulated")}, Good},
		{"none beside a driver", "gpu", "with", Host{Status: gpus("none found")}, Bad},
		{"none", "gpu", "without", Host{Status: gpus("none found")}, Warning},
		{"no unit", "systemd", "without", Host{Catalog: services("process")}, ""},
		{"no systemd", "systemd", "without", Host{Catalog: services("systemd")}, Bad},
		{"no user manager", "systemd", "without", Host{Catalog: services("systemd"), UserManager: true}, Bad},
		{"systemd", "systemd", "with", Host{Catalog: services("systemd")}, Good},
		{"user manager", "systemd", "with", Host{Catalog: services("systemd"), UserManager: true}, Good},
		{"no container", "docker", "with", Host{Catalog: services("process")}, ""},
		{"no socket is named", "docker", "with", Host{Catalog: services("docker")}, Bad},
		{"the socket is missing", "docker", "with", Host{Catalog: services("docker"), DockerSocket: "/none.sock"}, Bad},
		{"nobody listens", "docker", "with", Host{Catalog: services("docker"), DockerSocket: "/dead.sock"}, Bad},
		{"it answers to everybody", "docker", "with", Host{Catalog: services("docker"), DockerSocket: "/d.sock"}, Warning},
		{"enforced", "network", "", Host{}, ""},
		{"not enforced", "network", "", Host{Unenforced: []string{"chat"}}, Warning},
	} {
		t.Run(c.row+": "+c.name, func(t *testing.T) {
			cfg := Config{Host: c.host, Root: filepath.Join(root, c.root)}
			var found []Finding
			for _, check := range []func(context.Context, Config) []Finding{catalogFile, gpuSource, systemd, docker, network} {
				found = append(found, check(t.Context(), cfg)...)
			}
			i := slices.IndexFunc(found, func(f Finding) bool { return f.Name == c.row })
			switch {
			case i < 0 && c.want == "":
			case i < 0 || found[i].Level != c.want:
				t.Errorf("found %+v, want %s %q", found, c.row, c.want)
			case found[i].Level != Good && found[i].Do == "":
				t.Errorf("%+v does not say what to do", found[i])
			}
		})
	}
}

// A catalogue that is not taken is named before the entries that are disabled in the one that is in force.
func TestRefusedAndDisabled(t *testing.T) {
	found := catalogFile(t.Context(), Config{Host: Host{Status: &executorv1.GetStatusResponse{
		CatalogueRefused: "c.yaml:9:5: unknown key",
		Disabled:         []*executorv1.DisabledEntry{{Kind: "mode", Id: "large", Problem: "c.yaml:3:1: a wrong one"}},
	}}})
	var got []string
	for _, f := range found {
		got = append(got, f.Text)
	}
	if diff := cmp.Diff([]string{"the executor uses an older one: c.yaml:9:5: unknown key", "mode large is disabled: c.yaml:3:1: a wrong one"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestOneGPU(t *testing.T) {
	for _, source := range []string{"nvml", "nvidia-smi", "simulated"} {
		found := gpuSource(t.Context(), Config{Root: t.TempDir(), Host: Host{Status: &executorv1.GetStatusResponse{GpuSource: source, Gpus: 1}}})
		if len(found) != 1 || !strings.HasPrefix(found[0].Text, "1 GPU, ") {
			t.Errorf("%s: %v", source, found)
		}
	}
}

// A halt says by whom and why, in a line that nothing in it can break.
func TestWhyHalted(t *testing.T) {
	for _, c := range []struct {
		status Halted
		want   string
	}{
		{(*vaultv1.GetStatusResponse)(nil), ""},
		{&vaultv1.GetStatusResponse{HaltedReason: "not any more"}, ""},
		{&vaultv1.GetStatusResponse{Halted: true}, "halted"},
		{&vaultv1.GetStatusResponse{Halted: true, HaltedBy: "spiffe://d/operator/ada"}, "halted by ada"},
		{&executorv1.GetStatusResponse{Halted: true, HaltedBy: "spiffe://d/operator/ada", HaltedReason: "a\n\x1b[2Jb"}, "halted by ada: a b"},
		{&executorv1.GetStatusResponse{Halted: true, HaltedBy: "spiffe://d/executor/local", HaltedReason: "the state is damaged"}, "halted by itself: the state is damaged"},
		{&executorv1.GetStatusResponse{Halted: true, HaltedBy: "nobody", HaltedReason: "x"}, "halted: x"},
	} {
		if got := WhyHalted(c.status); got != c.want {
			t.Errorf("%v: %q, want %q", c.status, got, c.want)
		}
	}
	found := halted(t.Context(), Config{Host: Host{Vault: &vaultv1.GetStatusResponse{Halted: true, HaltedReason: "x"}}})
	if len(found) != 1 || found[0].Level != Warning || found[0].Text != "the vault is halted: x" {
		t.Errorf("doctor finds %v", found)
	}
}

// A sink is far behind where it was added after a restore; one that is a little behind follows, and one that does not answer says nothing.
func TestASinkFarBehind(t *testing.T) {
	for epochs, want := range map[[2]uint64]bool{{1_000_003, 1}: true, {1_000_001, 1}: false, {0, 1}: false, {1_000_003, 0}: false, {1, 1_000_003}: false} {
		if got := FarBehind(epochs[0], epochs[1]); (got != "") != want {
			t.Errorf("the vault's and its: %d: %q", epochs, got)
		}
	}
	found := halted(t.Context(), Config{Host: Host{
		Vault: &vaultv1.GetStatusResponse{Epoch: 1_000_003}, Status: &executorv1.GetStatusResponse{Epoch: 1_000_003}, Egress: &egressv1.GetStatusResponse{Epoch: 1},
	}})
	if len(found) != 1 || found[0].Level != Warning || !strings.Contains(found[0].Text, "the egress process refuses every call") || !strings.Contains(found[0].Do, "durward resume") {
		t.Errorf("doctor finds %v", found)
	}
}

// What the deep checks found, and what gateways told of themselves, are findings; a gateway that went quiet is one, too.
func TestDeepHealthIsShown(t *testing.T) {
	now := time.Now()
	told := func(ago time.Duration, executor, audit bool) *vaultv1.Gateway {
		return &vaultv1.Gateway{Identity: "g", ToldAt: timestamppb.New(now.Add(-ago)), Health: &vaultv1.GatewayHealth{ExecutorReachable: executor, AuditReachable: audit}}
	}
	for name, c := range map[string]struct {
		host Host
		want []string
	}{
		"nothing answers":       {Host{}, nil},
		"all is well":           {Host{Vault: &vaultv1.GetStatusResponse{Gateways: []*vaultv1.Gateway{told(time.Minute, true, true)}}}, nil},
		"egress' disk":          {Host{Egress: &egressv1.GetStatusResponse{Problems: []string{"its state cannot be written"}}}, []string{"the egress: its state cannot be written"}},
		"an executor's disk":    {Host{Status: &executorv1.GetStatusResponse{Problems: []string{"its state\x1b[2J cannot be written"}}}, []string{"the executor: its state cannot be written"}},
		"an audit's disk":       {Host{Audit: &auditv1.GetStatusResponse{Problems: []string{"the log cannot be written"}}}, []string{"the audit: the log cannot be written"}},
		"a log of another past": {Host{Log: "the log was put back: it has 3 records, and egress has seen 5"}, []string{"the log was put back: it has 3 records, and egress has seen 5"}},
		"no witnesses":          {Host{Witnesses: "no witnesses", Cosigned: true}, nil},
		"a witness":             {Host{Witnesses: "cosigned by one", Cosigned: true}, []string{"cosigned by one"}},
		"a silent witness":      {Host{Witnesses: "cosigned by one, 2h0m0s ago"}, []string{"cosigned by one, 2h0m0s ago"}},
		"a vault's, and its gateways": {Host{Vault: &vaultv1.GetStatusResponse{
			Problems: []string{"its state cannot be written"}, Gateways: []*vaultv1.Gateway{told(0, false, true), told(time.Hour, false, false), told(0, true, false)},
		}}, []string{
			"the vault: its state cannot be written", "the gateway: g: cannot reach the executor", "the gateway: g: has told the vault nothing for minutes",
			"the gateway: g: cannot reach audit",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range deep(t.Context(), Config{Host: c.host, Now: func() time.Time { return now }}) {
				got = append(got, f.Text)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The log that tells why is a file where durward up runs, and the journal on an installed host, which has no such file.
func TestWhereItTellsWhy(t *testing.T) {
	cfg := Config{Now: time.Now, Host: Host{Vault: &vaultv1.GetStatusResponse{Problems: []string{"its state cannot be written"}}}}
	for home, want := range map[installdir.Home]string{
		{Dir: "/home"}:          "Its log says why: journalctl -u durward-vault -n 50",
		installation(t, 0).Home: "/logs/vault.log",
	} {
		cfg.Home = home
		if found := deep(t.Context(), cfg); len(found) != 1 || !strings.HasSuffix(found[0].Do, want) {
			t.Errorf("doctor finds %+v, want %q", found, want)
		}
	}
}

// On an installed host no remedy is a command of durward up, which is refused there.
func TestRemediesOfAnInstalledHost(t *testing.T) {
	for _, installed := range []*Installed{nil, {}} {
		cfg := installation(t, 0)
		cfg.Operator.Health, cfg.Installed = installdir.HealthAddresses{}, installed
		if installed != nil { // an operator's side of it has no process's configuration
			must(t, os.Remove(cfg.Home.Config("audit")))
		}
		found := append(processes(t.Context(), cfg), clocks(t.Context(), cfg)...)
		for _, after := range []time.Duration{20 * time.Hour, 30 * time.Hour} {
			cfg.Now = func() time.Time { return time.Now().Add(after) }
			found = append(found, certificates(t.Context(), cfg)...)
		}
		if len(found) != 4 {
			t.Fatalf("doctor finds %+v", found)
		}
		for _, f := range found {
			if ours := strings.Contains(f.Do, "durward up") || strings.Contains(f.Do, "durward cert renew"); f.Level == Good || ours != (installed == nil) {
				t.Errorf("%+v", f)
			}
		}
	}
}
