package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/security"
)

// Host is what is known of the GPU host.
type Host struct {
	// Catalog is the catalog's own file, read as the executor would; nil when CatalogError says why it cannot be.
	Catalog      *catalog.Catalog
	CatalogError error
	// DockerSocket is what config/executor.yaml names; UserManager: units are those of systemd's user manager.
	DockerSocket string
	UserManager  bool
	// Status is the executor's; nil when it does not answer.
	Status *executorv1.GetStatusResponse
	// Egress is egress' word; nil where there is none, or it does not answer.
	Egress *egressv1.GetStatusResponse
	// Servers are other people's MCP servers, as egress has them; nil where it does not answer.
	Servers *egressv1.ListServersResponse
	// Vault is the vault's; nil when it does not answer.
	Vault *vaultv1.GetStatusResponse
	// Audit is audit's; nil when it does not answer.
	Audit *auditv1.GetStatusResponse
	// Log is why audit, which answers, tells nothing of the log, or does not prove that it extends what was seen of it; "" for neither.
	Log string
	// Witnesses is how the log stands with its witnesses, "" where audit does not answer, and Cosigned whether that is well.
	Witnesses string
	Cosigned  bool
	// Unenforced are services whose network expectation nothing enforces, by the executor's own word.
	Unenforced []string
}

// uses counts the catalog's services of a driver.
func (h Host) uses(driver string) int {
	n := 0
	if h.Catalog != nil {
		for _, s := range h.Catalog.Services {
			if s.Driver == driver {
				n++
			}
		}
	}
	return n
}

// Halted is a process's status that says whether it is halted, and why.
type Halted interface {
	GetHalted() bool
	GetHaltedReason() string
	GetHaltedBy() string
}

// WhyHalted says by whom a process was halted and why; "" where it is not halted.
func WhyHalted(s Halted) string {
	if !s.GetHalted() {
		return ""
	}
	out := "halted"
	if id, err := identity.Parse(s.GetHaltedBy()); err == nil {
		if out += " by "; id.Role() == optionsv1.Role_ROLE_OPERATOR {
			out += id.Instance()
		} else {
			out += "itself"
		}
	}
	if s.GetHaltedReason() != "" {
		out += ": " + clean.Line(s.GetHaltedReason(), 500)
	}
	return out
}

// FarBehind says that a sink's epoch is so far below the vault's that it refuses every call; "" where it is not, or either is not known.
func FarBehind(vault, sink uint64) string {
	if sink == 0 || vault <= grant.EpochWithin(sink) {
		return ""
	}
	return fmt.Sprintf("at epoch %d, and the vault is at %d, which it takes up on a human's signature alone", sink, vault)
}

func halted(_ context.Context, cfg Config) []Finding {
	var out []Finding
	for _, s := range []struct {
		role  string
		epoch uint64
	}{{"executor", cfg.Host.Status.GetEpoch()}, {"egress process", cfg.Host.Egress.GetEpoch()}} {
		if behind := FarBehind(cfg.Host.Vault.GetEpoch(), s.epoch); behind != "" {
			out = append(out, Finding{Warning, "epoch", "the " + s.role + " refuses every call: it is " + behind, "Where it was added after a restore: durward resume. Else find out why."})
		}
	}
	for _, s := range []struct {
		role   string
		status Halted
	}{{"vault", cfg.Host.Vault}, {"executor", cfg.Host.Status}, {"egress process", cfg.Host.Egress}} {
		if why := WhyHalted(s.status); why != "" {
			out = append(out, Finding{Warning, "halted", "the " + s.role + " is " + why, "Find out why; then: durward resume"})
		}
	}
	return out
}

// quiet is after what time a gateway that says nothing of itself is said to be away.
const quiet = 2 * time.Minute

// Gateways says what is not well with the gateways, by what they told the vault of themselves: hints, of processes that are not trusted.
func Gateways(vault *vaultv1.GetStatusResponse, now time.Time) (problems []string) {
	for _, g := range vault.GetGateways() {
		says := func(problem string) {
			if len(vault.GetGateways()) > 1 {
				problem = clean.Line(g.GetIdentity(), 200) + ": " + problem
			}
			problems = append(problems, problem)
		}
		if now.Sub(g.GetToldAt().AsTime()) > quiet {
			says("has told the vault nothing for minutes")
			continue
		}
		if !g.GetHealth().GetExecutorReachable() {
			says("cannot reach the executor")
		}
		if !g.GetHealth().GetAuditReachable() {
			says("cannot reach audit")
		}
	}
	return problems
}

// deep: what the processes' own deep checks found, and how long the log's disk lasts.
func deep(_ context.Context, cfg Config) []Finding {
	var out []Finding
	if days, known := history.DaysLeft(cfg.Host.Audit); known && days < history.FewDays {
		out = append(out, Finding{Warning, "audit's disk", fmt.Sprintf("it is full in %s at the rate of the last week; then nothing may be changed", clean.Count(days, "day")),
			"Make room, or look what may go: durward audit prune --older-than 90d --dry-run"})
	}
	for _, s := range []struct {
		role     string
		problems []string
	}{{"audit", cfg.Host.Audit.GetProblems()}, {"vault", cfg.Host.Vault.GetProblems()}, {"executor", cfg.Host.Status.GetProblems()}, {"egress", cfg.Host.Egress.GetProblems()}, {"gateway", Gateways(cfg.Host.Vault, cfg.Now())}} {
		for _, problem := range s.problems {
			out = append(out, Finding{Warning, "health", "the " + s.role + ": " + clean.Line(problem, 300), cfg.itsLog(s.role)})
		}
	}
	if cfg.Host.Log != "" {
		out = append(out, Finding{Bad, "the log", clean.Line(cfg.Host.Log, 300), "Do not go on before you know why: durward audit verify; see SECURITY.md"})
	}
	switch {
	case cfg.Host.Witnesses == "" || cfg.Host.Witnesses == history.NoWitnesses:
	case cfg.Host.Cosigned:
		out = append(out, good("witnesses", "%s", cfg.Host.Witnesses))
	default:
		out = append(out, Finding{Warning, "witnesses", cfg.Host.Witnesses, "auditrelay's log says which witness does not answer, or refuses, and why."})
	}
	switch line, well := history.ForwardLine(cfg.Host.Audit, cfg.Now()); {
	case !well:
		out = append(out, Finding{Warning, "forwarding", line, "auditrelay's log says why; nothing of the log is lost, and it goes on where it stopped."})
	case line != "":
		out = append(out, good("forwarding", "%s", line))
	}
	return out
}

// domains: the list that egress goes by is the one that is there, without a mistake.
func domains(_ context.Context, cfg Config) []Finding {
	if cfg.Operator.Egress == nil {
		return nil
	}
	for _, at := range []string{cfg.Operator.SecurityDir, filepath.Join(cfg.Operator.SecurityDir, destination.File)} {
		if err := syscall.Access(at, 4); errors.Is(err, fs.ErrPermission) {
			return []Finding{{Warning, "domains", "you may not read the list of domains", "Look as a user who may: durward egress domains"}}
		}
	}
	state, files := security.Look(cfg.Operator.Security(), nil)
	why, file := cfg.Host.Egress.GetDomainsRefused(), destination.File
	for _, f := range files {
		if path.Base(f.Name) == destination.File && f.Problem != "" {
			why, file = f.Problem, f.Name
		}
	}
	switch {
	case why != "":
		return []Finding{{Bad, "domains", "egress uses an older list of domains: " + clean.Line(why, 300), "Correct " + filepath.Join(cfg.Operator.SecurityDir, file)}}
	case state == nil: // what is told of the rules says why
		return nil
	}
	switch list := state.Domains; {
	case cfg.Host.Egress != nil && int(cfg.Host.Egress.GetDomains()) != len(list.Allow)+len(list.Block):
		return []Finding{{Warning, "domains", "the list is good, and egress uses another one", "Look again in a second: durward doctor"}}
	}
	return []Finding{good("domains", "%s allowed and %d blocked; egress asks you about others", clean.Count(len(state.Domains.Allow), "is", "are"), len(state.Domains.Block))}
}

// maxDisabled bounds how many disabled entries are named.
const maxDisabled = 10

func catalogFile(_ context.Context, cfg Config) []Finding {
	h := cfg.Host
	var wrong []Finding
	if why := h.Status.GetCatalogueRefused(); why != "" { // what is disabled stands in the older one then
		wrong = append(wrong, Finding{Bad, "catalogue", "the executor uses an older one: " + clean.Line(why, 300), "durward catalog check"})
	}
	for _, d := range h.Status.GetDisabled()[:min(len(h.Status.GetDisabled()), maxDisabled)] {
		wrong = append(wrong, Finding{Bad, "catalogue", strings.TrimSpace(d.GetKind()+" "+clean.Line(d.GetId(), 128)) + " is disabled: " +
			clean.Line(d.GetProblem(), 300), "durward catalog check"})
	}
	switch {
	case len(wrong) > 0:
		return wrong
	case errors.Is(h.CatalogError, fs.ErrPermission):
		return []Finding{{Warning, "catalogue", "you may not read it", "Look as a user who may: durward catalog check"}}
	case h.CatalogError != nil:
		first, _, _ := strings.Cut(h.CatalogError.Error(), "\n")
		return []Finding{{Bad, "catalogue", clean.Line(first, 300), "durward catalog check"}}
	case h.Catalog == nil:
		return nil
	case h.Status != nil && h.Status.GetCatalogueDigest() != h.Catalog.Digest:
		return []Finding{{Warning, "catalogue", "it is good, and the executor uses another one", "Look again in a second: durward doctor"}}
	}
	return []Finding{good("catalogue", "%s and %s, without a mistake", clean.Count(len(h.Catalog.Services), "service"), clean.Count(len(h.Catalog.Modes), "mode"))}
}

func gpuSource(_ context.Context, cfg Config) []Finding {
	status := cfg.Host.Status
	if status == nil {
		return nil
	}
	_, err := os.Stat(filepath.Join(cfg.Root, "proc/driver/nvidia/version"))
	driver, gpus := err == nil, clean.Count(status.GetGpus(), "GPU")
	switch source := status.GetGpuSource(); {
	case source == "nvml":
		return []Finding{good("gpu", "%s, read through the driver's library", gpus)}
	case source == "nvidia-smi":
		return []Finding{{Warning, "gpu",
			gpus + ", read through nvidia-smi: slower, and without the driver's events",
			"Unless gpu.source says so: build with a C compiler (apt-get install gcc; make build), or install a release."}}
	case source == "simulated" && driver:
		return []Finding{{Warning, "gpu", "GPUs are simulated by the catalogue although an NVIDIA driver is there",
			"Name the real ones under gpus in the catalogue: durward catalog add gpu -h"}}
	case source == "simulated":
		return []Finding{good("gpu", "%s, simulated by the catalogue", gpus)}
	case driver:
		return []Finding{{Bad, "gpu", "an NVIDIA driver is there, and the executor finds no GPU",
			cfg.itsLog("executor")}}
	}
	return []Finding{{Warning, "gpu", "no GPU was found, and the catalogue simulates none",
		"To try things out: durward catalog add gpu 0 --simulated -h"}}
}

func systemd(_ context.Context, cfg Config) []Finding {
	n := cfg.Host.uses(catalog.DriverSystemd)
	if n == 0 {
		return nil
	}
	place, manager := "run/systemd/private", "systemd"
	if cfg.Host.UserManager {
		place, manager = "run/user/"+strconv.Itoa(os.Getuid())+"/systemd/private", "systemd's user manager"
	}
	if _, err := os.Stat(filepath.Join(cfg.Root, place)); err != nil && !errors.Is(err, fs.ErrPermission) {
		return []Finding{{Bad, "systemd", fmt.Sprintf("the catalogue has %s of %s, which does not run here", clean.Count(n, "service"), manager),
			"Use another driver for them, or see systemd.manager in config/executor.yaml."}}
	}
	return []Finding{good("systemd", "%s runs; %s", manager, clean.Count(n, "service is its unit", "services are its units"))}
}

// dockerPatience is how long a connection to a socket of this host may take.
const dockerPatience = time.Second

func docker(ctx context.Context, cfg Config) []Finding {
	n := cfg.Host.uses(catalog.DriverDocker)
	socket := cfg.Host.DockerSocket
	switch {
	case n == 0:
		return nil
	case socket == "":
		return []Finding{{Bad, "docker", fmt.Sprintf("the catalogue has %s, and the executor is given no socket", clean.Count(n, "container")),
			"Name it in config/executor.yaml: docker: {socket: /run/docker.sock}"}}
	}
	if cfg.Installed != nil && cfg.Installed.Containers {
		return nil // the socket is in the executor's container alone
	}
	dialer := net.Dialer{Timeout: dockerPatience}
	conn, err := dialer.DialContext(ctx, "unix", filepath.Join(cfg.Root, socket))
	switch {
	case err == nil:
		_ = conn.Close() // nothing was said
		return []Finding{{Warning, "docker", "it answers, to you too: whoever may use it is root in all but name",
			"Let the executor's user alone use " + clean.Line(socket, 200) + "."}}
	case errors.Is(err, syscall.EACCES):
		return []Finding{good("docker", "its socket is there, and you may not use it; %s", clean.Count(n, "service is a container", "services are containers"))}
	}
	return []Finding{{Bad, "docker", "nobody answers on " + clean.Line(socket, 200),
		"Start Docker (systemctl start docker), or correct docker.socket in config/executor.yaml."}}
}

func network(_ context.Context, cfg Config) []Finding {
	if len(cfg.Host.Unenforced) == 0 {
		return nil
	}
	return []Finding{{Warning, "network",
		"not enforced: " + strings.Join(cfg.Host.Unenforced, ", ") + " can reach more than the catalogue expects",
		"Run them as systemd units: durward service install ID"}}
}
