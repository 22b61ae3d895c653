package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/doctor"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/health"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Whether every process is well, and what is pending",
		Long: `Asks every process how it is: its health listener, and over the operator's own connection its deep status
(halted, epoch, whether it reaches the others, what waits). It works when some or all of them are down.

Exit code 3 when a process cannot be reached.`,
		Example: "  durward status\n  durward status --json | jq .vault.pending",
		RunE:    a.Configured(a.status),
	}
}

// processStatus is one process in --json. Field names are stable.
type processStatus struct {
	Role    string `json:"role"`
	Health  string `json:"health"`
	Version string `json:"version,omitempty"`
	Address string `json:"health_address"`
	Problem string `json:"problem,omitempty"`
	// answers: it runs, whatever it says of itself.
	answers bool
	// silent: its address is taken, and nothing usable answers there.
	silent bool
	// refused: it refuses a file, and goes by the last good one.
	refused bool
	// standsBy: it is a vault that does not lead.
	standsBy bool
}

// deep is what the processes' GetStatus RPCs answer; nil where one could not be had.
type deep struct {
	vault    *vaultv1.GetStatusResponse
	executor *executorv1.GetStatusResponse
	// egress is nil where there is none.
	egress *egressv1.GetStatusResponse
	audit  *auditv1.GetStatusResponse
	modes  *executorv1.ListModesResponse
	// unenforced are services whose network expectation nothing enforces.
	unenforced []string
	problems   map[string]string
	// sealed: credentials are stored, and the vault cannot open them before a human hands it their passphrase.
	sealed bool
	// undoing is the mode of an interrupted switch that is being undone.
	undoing string
	// refused says which of its rules' files the vault refuses.
	refused string
	// witnesses says how the log stands with them.
	witnesses string
	// altered says that audit's log does not extend what was seen of it.
	altered string
	// unconnected is why this program itself can ask nothing; "" where it can.
	unconnected string
}

func (a *app) status(ctx context.Context, cfg installdir.Config, _ []string) error {
	processes := a.health(ctx, cfg)
	d := a.deepStatus(ctx, slices.ContainsFunc(processes, func(p processStatus) bool { return p.Role == "vault" && p.answers && p.Health != "ok" }))
	for i := range processes {
		p := &processes[i]
		p.Problem = d.problems[p.Role]
		if p.Role == "audit" && d.altered != "" {
			p.Problem = d.altered
		}
		if p.standsBy {
			p.Problem = "it stands by: its database cannot be used"
		}
		if p.silent && p.Problem == "" {
			p.Problem = "it does not answer"
		}
		if p.Health == "ok" || !p.answers || p.Problem != "" {
			continue
		}
		p.Problem = "it runs, and says that it is not well"
		if p.Role == "vault" && d.refused != "" {
			p.Problem, p.refused = d.refused, true
		}
	}
	running, isRunning := a.Home.RunningProcess()
	value, err := a.statusJSON(processes, d, running, isRunning)
	if err != nil {
		return err
	}
	if err := a.Show(value, func() { a.statusText(processes, d, running, isRunning) }); err != nil {
		return err
	}
	for _, p := range processes {
		if p.Health != "ok" || p.Problem != "" {
			a.RequestID = ""
			if d.unconnected != "" && p.Health == "ok" {
				return cli.Unreachable(a.Renewal(), "%s", d.unconnected)
			}
			if p.Role == "audit" && d.altered != "" {
				return cli.Unreachable("Do not go on before you know why: durward audit verify; see SECURITY.md", "audit's log is not what it was")
			}
			if p.refused {
				return cli.Unreachable("Correct the file. What is in force until then: durward config show", "the %s refuses a file of its rules, and the last good one binds", p.Role)
			}
			return cli.Unreachable(a.whyNot(p), "%s is not well", p.Role)
		}
	}
	return nil
}

// whyNot says where a process tells why it is not well, and how it is started where it does not run or hangs.
func (a *app) whyNot(p processStatus) string {
	running, up := a.Home.RunningProcess()
	useless := func(c installdir.Certificate) bool { return c.Role == p.Role && c.Problem != "" }
	switch installed := a.installed(); {
	case p.answers && slices.ContainsFunc(a.Home.Certificates(), useless): // nobody accepts it, and its own log does not say so
		return "Its certificate cannot be used. " + a.Renewal()
	case installed && p.answers:
		return "It runs. Why: " + cli.ItsLog(a.Home, p.Role)
	case installed:
		return "Start it" + cli.When(p.silent, " again") + ": " + cli.Restart(p.Role) + ". Why: " + cli.ItsLog(a.Home, p.Role)
	case p.answers:
		return "It runs. Why it is not well: " + a.Home.Log(p.Role)
	case p.silent && up:
		return "It runs and hangs. Start all again: durward down; durward up" + cli.When(running.Development, " --development") + ". What it said last: " + a.Home.Log(p.Role)
	default:
		if taken := free(p.Role, p.Address); !up && taken != nil {
			return "No process of this installation runs, and " + taken.Error() + ". Mend that; then: " + cli.Start(a.Home)
		}
		return "Start it: " + cli.Start(a.Home) + ". Why it stopped: " + a.Home.Log(p.Role)
	}
}

// refusedRules says which files of the rules the vault refuses; "" where it names none or does not answer.
func refusedRules(ctx context.Context, s *cli.Session) string {
	policy, err := s.Vault.Policy.GetPolicy(ctx, &vaultv1.GetPolicyRequest{})
	if err != nil {
		return ""
	}
	refused, more := "", 0
	for _, f := range policy.GetFiles() {
		switch {
		case f.GetProblem() == "":
		case refused == "":
			name := clean.Line(f.GetName(), 256)
			if refused = clean.Line(f.GetProblem(), 500); !strings.Contains(refused, name+":") { // most problems name their file themselves, some with its folder
				refused = name + ": " + refused
			}
		default:
			more++
		}
	}
	if refused == "" {
		return ""
	}
	if more > 0 {
		refused += fmt.Sprintf(" (and %s)", clean.Count(more, "more file"))
	}
	return refused + "; the last good one is in force"
}

// installed reports whether the processes are those that durward install laid out on this host, which systemd runs.
func (a *app) installed() bool {
	cfg, err := a.Home.Load()
	return err == nil && cfg.TrustDir == install.TrustDir
}

// health asks the shallow health listeners, all at once.
func (a *app) health(ctx context.Context, cfg installdir.Config) []processStatus {
	client := &http.Client{Timeout: cli.StatusPatience, Transport: &http.Transport{DisableKeepAlives: true}}
	roles := cfg.Roles()
	out := make([]processStatus, len(roles))
	var wait sync.WaitGroup
	for i, role := range roles {
		wait.Go(func() {
			address := cfg.Health.Of(role)
			ok, h := health.Healthy(ctx, client, address, role)
			word, silent := "ok", false
			switch {
			case ok:
			case h.Service == role:
				word = clean.Line(h.Status, 32)
			case h.Service != "":
				word = "answered by " + clean.Line(h.Service, 32)
			default:
				word = "down"
				if silent = cli.Taken(ctx, address); silent {
					word = "no answer"
				}
			}
			out[i] = processStatus{Role: role, Health: word, Version: clean.Line(h.Version, 64), Address: address, answers: h.Service == role, silent: silent}
			if role == "vault" && h.Service == role && !ok {
				counts, _ := health.Metrics(ctx, client, address)
				leads, known := counts["durward_vault_leads"]
				out[i].standsBy = known && leads == 0 // one that stands by and could lead is well
			}
		})
	}
	wait.Wait()
	return out
}

// deepStatus asks the GetStatus RPCs, all at once; with rules also which files the vault refuses.
func (a *app) deepStatus(ctx context.Context, rules bool) deep {
	d := deep{problems: map[string]string{}}
	ctx, cancel := context.WithTimeout(ctx, 2*cli.StatusPatience)
	defer cancel()
	var vaultErr, executorErr, auditErr, egressErr error
	err := a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		proving := ctx
		ctx, cancel := context.WithTimeout(ctx, cli.StatusPatience)
		defer cancel()
		var wait sync.WaitGroup
		wait.Go(func() { d.vault, vaultErr = s.Vault.Control.GetStatus(ctx, &vaultv1.GetStatusRequest{}) })
		wait.Go(func() { d.executor, executorErr = s.Executor.GetStatus(ctx, &executorv1.GetStatusRequest{}) })
		wait.Go(func() { d.audit, auditErr = s.Audit.GetStatus(ctx, &auditv1.GetStatusRequest{}) })
		if s.Egress != nil {
			wait.Go(func() { d.egress, egressErr = s.Egress.GetStatus(ctx, &egressv1.GetStatusRequest{}) })
		}
		// What could not be had of these is left out: the executor's own line says that it does not answer.
		wait.Go(func() { d.modes, _ = s.Executor.Tools.ListModes(ctx, &executorv1.ListModesRequest{}) })
		wait.Go(func() { d.undoing = undoing(ctx, s) })
		wait.Go(func() {
			list, err := s.Vault.Credentials.ListCredentials(ctx, &vaultv1.ListCredentialsRequest{})
			d.sealed = err == nil && list.GetSealed() && len(list.GetCredentials()) > 0
		})
		if rules {
			wait.Go(func() { d.refused = refusedRules(ctx, s) })
		}
		wait.Go(func() { d.unenforced = unenforced(ctx, s, a.limitedServices()) })
		wait.Wait()
		if auditErr != nil {
			proving = ctx // the time that is left is enough for one that did not answer
		}
		err := s.LogExtends(proving, s.Seen(proving, d.vault, d.executor, d.egress, d.audit.GetWitnessed()))
		if altered, ok := errors.AsType[*history.Altered](err); ok {
			d.altered = altered.Error()
		} else if auditErr == nil {
			auditErr = err // it answers, and proves nothing
		}
		d.witnesses, _ = history.WitnessLine(s.Trust.Current(), d.audit.GetWitnessed(), a.Now())
		return nil
	})
	if err != nil {
		d.unconnected = cli.PublicText(err)
	}
	for role, asked := range map[string]error{"vault": vaultErr, "executor": executorErr, "audit": auditErr, "egress": egressErr} {
		if err := cmp.Or(err, asked); err != nil {
			d.problems[role] = cli.PublicText(err)
		}
	}
	return d
}

func (a *app) statusJSON(processes []processStatus, d deep, running installdir.Process, isRunning bool) (map[string]any, error) {
	value := map[string]any{
		"home": a.Home.Dir, "processes": processes, "certificates": a.Home.Certificates(), "running": isRunning,
		"mode": clean.Line(d.modes.GetCurrent(), 64), "network_not_enforced": cli.NonNil(d.unenforced),
		"undoing": clean.Line(d.undoing, 64), "witnesses": d.witnesses, "credentials_sealed": d.sealed,
	}
	if isRunning {
		value["up"] = running
	}
	answers := map[string]proto.Message{"vault": d.vault, "executor": d.executor, "audit": d.audit}
	if slices.ContainsFunc(processes, func(p processStatus) bool { return p.Role == "egress" }) {
		answers["egress"] = d.egress
	}
	for name, message := range answers {
		if !message.ProtoReflect().IsValid() {
			value[name] = nil
			continue
		}
		b, err := output.MessageJSON(message)
		if err != nil {
			return nil, err
		}
		value[name] = b
	}
	return value, nil
}

// halt says how far the processes are halted; "" where none says that it is. Without the vault's grants no other acts.
func (d deep) halt(processes []processStatus, typed string) string {
	var halted, others []string
	for _, p := range processes {
		switch {
		case p.Role == "vault" && d.vault.GetHalted(), p.Role == "executor" && d.executor.GetHalted(), p.Role == "egress" && d.egress.GetHalted():
			halted = append(halted, p.Role)
		case p.Role == "executor" && d.executor == nil, p.Role == "egress" && d.egress == nil:
			others = append(others, p.Role+" (does not answer)")
		case p.Role == "executor", p.Role == "egress":
			others = append(others, p.Role)
		}
	}
	switch {
	case len(halted) == 0:
		return ""
	case d.vault.GetHalted() || len(others) == 0:
		return "HALTED: nothing that changes anything runs. End it with: " + typed + " resume"
	default:
		return fmt.Sprintf("HALTED IN PART: %s; NOT HALTED: %s. Halt all with: %s panic; end it with: %s resume", strings.Join(halted, ", "), strings.Join(others, ", "), typed, typed)
	}
}

func (a *app) statusText(processes []processStatus, d deep, running installdir.Process, isRunning bool) {
	switch {
	case isRunning && running.Development:
		a.Out.Printf("durward up runs as process %d, %s\n", running.PID, a.Out.Yellow("DEVELOPMENT"))
	case isRunning:
		a.Out.Printf("durward up runs as process %d\n", running.PID)
	case a.installed() && install.InContainers():
		a.Out.Printf("the processes run in containers\n")
	case a.installed():
		a.Out.Printf("systemd runs the processes: durward.target\n")
	default:
		a.Out.Printf("durward up does not run for %s\n", a.Home.Dir)
		if install.OnHost() {
			a.Out.Printf("Durward is installed on this host too; durward join makes that one what your commands mean\n")
		}
	}
	if halt := d.halt(processes, a.Typed()); halt != "" {
		a.Out.Printf("%s\n", a.Out.Red(halt))
	}
	for _, p := range []struct {
		role  string
		epoch uint64
	}{{"executor", d.executor.GetEpoch()}, {"egress", d.egress.GetEpoch()}} {
		if behind := doctor.FarBehind(d.vault.GetEpoch(), p.epoch); behind != "" {
			a.Out.Printf("%s\n", a.Out.Red(p.role+" REFUSES EVERY CALL: it is "+behind+". Where it was added after a restore: "+a.Typed()+" resume"))
		}
	}
	a.Out.Table([]string{"PROCESS", "HEALTH", "DETAIL"}, output.Each(processes, func(p processStatus) []string {
		word := a.Out.Red(p.Health)
		if p.Health == "ok" {
			word = a.Out.Green(p.Health)
		}
		// Of a process that says that it is not well the rest is worth knowing all the more: that it is halted, say.
		detail := strings.Join(slices.DeleteFunc([]string{p.Problem, d.detail(p.Role, a.Now())}, func(s string) bool { return s == "" }), "; ")
		return []string{p.Role, word, detail}
	}))
	if e := d.executor; e != nil {
		a.Out.Printf("services %d of %d running   GPUs %s\n", e.GetServicesRunning(), e.GetServicesTotal(),
			cli.GPUWords(e.GetGpuSource(), e.GetGpus(), a.Home.IsExampleCatalog(), cli.DriverFound()))
	}
	for _, line := range d.catalog(a.Typed()) {
		a.Out.Printf("catalog  %s\n", a.Out.Yellow(line))
	}
	if d.undoing != "" {
		a.Out.Printf("switch   %s\n", a.Out.Yellow("to "+clean.Line(d.undoing, 64)+" was interrupted and is being undone; nothing else changes meanwhile"))
	}
	if current := d.modes.GetCurrent(); current != "" {
		drifted := ""
		if !cli.ModeRuns(d.modes) {
			drifted = a.Out.Yellow("  drifted; bring it back: " + a.Typed() + " switch " + clean.Line(current, 64))
		}
		a.Out.Printf("mode     %s%s\n", clean.Line(current, 64), drifted)
	}
	if len(d.unenforced) > 0 {
		a.Out.Printf("network  %s\n", a.Out.Yellow("not enforced: "+strings.Join(d.unenforced, ", ")))
	}
	if d.sealed {
		a.Out.Printf("secrets  %s\n", a.Out.Yellow("sealed: what needs a stored credential does not start. Unseal them: "+a.Typed()+" vault unseal"))
	}
	if d.vault != nil {
		a.Out.Printf("pending  %d   sessions %d   clients %d\n", d.vault.GetPending(), d.vault.GetSessions(), d.vault.GetClients())
	}
	now := a.Now()
	var soonest *installdir.Certificate
	certificates := a.Home.Certificates()
	for i, c := range certificates {
		if c.Problem != "" {
			a.Out.Printf("%s\n", a.Out.Red("certificate of "+c.Role+": "+c.Problem))
			continue
		}
		if soonest == nil || c.NotAfter.Before(soonest.NotAfter) {
			soonest = &certificates[i]
		}
	}
	if soonest != nil {
		a.Out.Printf("certs    the first (%s) expires in %s\n", soonest.Role, approval.Duration(soonest.NotAfter.Sub(now)))
	}
}

// catalog says what of the catalog is not in force, to a person who types durward so.
func (d deep) catalog(durward string) []string {
	var out []string
	if refused := d.executor.GetCatalogueRefused(); refused != "" {
		out = append(out, "an older one is in force: "+clean.Line(refused, 300))
	}
	if n := len(d.executor.GetDisabled()); n > 0 {
		names := output.Each(d.executor.GetDisabled()[:min(n, 8)], func(e *executorv1.DisabledEntry) string {
			return strings.TrimSpace(e.GetKind() + " " + clean.Line(e.GetId(), 128))
		})
		out = append(out, fmt.Sprintf("disabled, since entries are wrong: %s%s; why: %s catalog check", strings.Join(names, ", "), cli.When(n > 8, ", …"), durward))
	}
	return out
}

// undoing is the mode of an interrupted switch that the executor undoes now; "" where there is none.
func undoing(ctx context.Context, s *cli.Session) string {
	out, err := s.Executor.ListSwitches(ctx, &executorv1.ListSwitchesRequest{Limit: 1})
	if err != nil || len(out.GetSwitches()) == 0 {
		return ""
	}
	last := out.GetSwitches()[0]
	if last.GetEndedAt() != nil || !last.GetRecovered() {
		return ""
	}
	return last.GetModeId()
}

// detail sums up a process's deep status in a line.
func (d deep) detail(role string, now time.Time) string {
	switch {
	case role == "vault" && d.vault != nil:
		return fmt.Sprintf("epoch %d%s%s%s%s", d.vault.GetEpoch(), haltedBy(d.vault),
			d.withoutAudit(d.vault.GetAuditReachable()), some(d.vault.GetSpooledRecords(), "record waits for audit", "records wait for audit"), wrong(d.vault))
	case role == "executor" && d.executor != nil:
		return fmt.Sprintf("epoch %d%s%s%s%s%s%s", d.executor.GetEpoch(), haltedBy(d.executor),
			d.withoutAudit(d.executor.GetAuditReachable()), cli.When(!d.executor.GetVaultReachable(), ", cannot reach the vault"),
			some(d.executor.GetSpooledRecords(), "record waits for audit", "records wait for audit"), some(d.executor.GetUnsettled(), "operation not settled yet", "operations not settled yet"),
			wrong(d.executor))
	case role == "egress" && d.egress != nil:
		return fmt.Sprintf("epoch %d, %s listed%s%s%s%s%s", d.egress.GetEpoch(), clean.Count(d.egress.GetDomains(), "domain"),
			cli.When(d.egress.GetDomainsRefused() != "", ", domains.yaml is refused"), haltedBy(d.egress), d.withoutAudit(d.egress.GetAuditReachable()),
			some(d.egress.GetSpooledRecords(), "record waits for audit", "records wait for audit"), wrong(d.egress))
	case role == "audit" && d.audit != nil:
		free := "" // the disk is a database server's
		if d.audit.GetDiskFreeBytes() > 0 {
			free = fmt.Sprintf(", %d MiB free", d.audit.GetDiskFreeBytes()>>20)
			if days, known := history.DaysLeft(d.audit); known {
				free += " for " + clean.Count(days, "day")
			}
		}
		forwarded, _ := history.ForwardLine(d.audit, now)
		if forwarded != "" {
			forwarded = ", " + forwarded
		}
		return fmt.Sprintf("%s, %d MiB%s, %s%s%s", clean.Count(d.audit.GetSize(), "record"), d.audit.GetDatabaseBytes()>>20, free, d.witnesses, forwarded, wrong(d.audit))
	case role == "gateway":
		return strings.Join(doctor.Gateways(d.vault, now), "; ")
	default:
		return ""
	}
}

// wrong is what a process's deep check found wrong.
func wrong(s interface{ GetProblems() []string }) string {
	out := ""
	for _, problem := range s.GetProblems() {
		out += ", " + clean.Line(problem, 200)
	}
	return out
}

// haltedBy says why a process is halted; "" where it is not.
func haltedBy(s doctor.Halted) string {
	if why := doctor.WhyHalted(s); why != "" {
		return ", " + why
	}
	return ""
}

// withoutAudit says why a process has no use of audit.
func (d deep) withoutAudit(reachable bool) string {
	switch {
	case reachable:
		return ""
	case d.altered != "":
		return ", takes no answer of audit"
	default:
		return ", cannot reach audit"
	}
}

// some counts what there is; "" where there is none.
func some(n uint32, one, many string) string {
	return cli.When(n > 0, ", "+clean.Count(n, one, many))
}
