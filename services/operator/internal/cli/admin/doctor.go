package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/doctor"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
)

// programVersion asks a server program for its version.
func programVersion(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	b, err := exec.CommandContext(ctx, path, "-version").Output()
	if err != nil {
		return "", fmt.Errorf("run %s: %w", path, err)
	}
	return clean.Line(string(b), 100), nil
}

// programCheck asks a server program what is wrong with a configuration file.
func programCheck(ctx context.Context, path, file string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, path, "-config", file, "-check") // #nosec G204 -- a program beside this one
	cmd.Stderr = &said
	switch err := cmd.Run(); {
	case err == nil:
		return "", nil
	case cmd.ProcessState == nil || said.Len() == 0:
		return "", fmt.Errorf("run %s: %w", path, err)
	}
	return clean.Line(said.String(), 500), nil
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "What makes this installation weak or keeps it from running",
		Long: `Looks at users and groups, file permissions, the signing key, ports and processes, clocks, certificates, the
package and its units, programs, their configuration, and drivers; at the catalogue, where GPU numbers come from, whether
systemd and Docker can be reached where the catalogue uses them, and network expectations that nothing enforces. Each
line is ✓ good, ! worth knowing or ✗ bad, and says what to do. It changes nothing.

Exit code 1 when anything is ✗.`,
		Example: "  durward doctor\n  durward doctor --json",
		RunE: a.Configured(func(ctx context.Context, cfg installdir.Config, _ []string) error {
			bin, err := cli.OwnFolder()
			if err != nil {
				return err
			}
			running, isRunning := a.Home.RunningProcess()
			taken := func(role string) error {
				l, err := installdir.ReadListeners(a.Home.Config(role))
				if err != nil {
					return nil // the finding "configuration" says so
				}
				return free(role, l.Listen, l.HealthListen)
			}
			if isRunning {
				taken = nil
			}
			looking, done := a.Looking()
			defer done() // what was looked at when it was interrupted
			looking("this host and what the processes say of it")
			host := a.examinedHost(ctx)
			looking("what was installed")
			findings := doctor.Examine(ctx, doctor.Config{
				Home: a.Home, Operator: cfg, Development: running.Development, Bin: bin, Version: programVersion, Check: programCheck, Taken: taken, Own: a.Streams.Version,
				HTTP: &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}, Now: a.Now, Root: "/",
				Host: host, Installed: a.examinedUnits(ctx), Looking: looking,
			})
			done()
			bad := 0
			for i, f := range findings {
				findings[i].Do = a.MeantHere(f.Do)
				if f.Level == doctor.Bad {
					bad++
				}
			}
			err = a.Show(map[string]any{"findings": findings, "bad": bad}, func() {
				marks := map[doctor.Level]string{doctor.Good: a.Out.Green("✓"), doctor.Warning: a.Out.Yellow("!"), doctor.Bad: a.Out.Red("✗")}
				for _, f := range findings {
					a.Out.Printf("%s %-13s %s\n", marks[f.Level], f.Name, f.Text)
					if f.Do != "" {
						a.Out.Printf("  %-13s %s\n", "", a.Out.Dim("→ "+f.Do))
					}
				}
			})
			if err == nil && bad > 0 {
				err = cli.Failed("", "%s bad, of %d", clean.Count(bad, "finding is", "findings are"), len(findings))
			}
			return err
		}),
	}
}

// examinedUnits is what durward install laid out, where the command's home is a side of it.
func (a *app) examinedUnits(ctx context.Context) *doctor.Installed {
	record, err := install.ReadRecord("/")
	if err != nil || !record.Installed() || !a.installed() {
		return nil
	}
	in := &doctor.Installed{Containers: record.Containers, Packaged: !record.Containers && install.Packaged("/"), Reinstall: install.Reinstall}
	if in.Packaged {
		in.Behind = record.Behind("/")
		shipped, err := install.Verify("/", nil, a.Now())
		in.Differ, in.PackageError = shipped.Differ, err
		if _, err := os.Lstat(install.Program); err == nil {
			in.Beside = install.Program
		}
	}
	if os.Geteuid() == 0 {
		in.Misplaced, in.MisplacedError = install.Examine("/", a.Now)
	}
	if in.Containers {
		return in
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "systemctl", append([]string{"show", "--property=" + doctor.UnitProperties}, record.Units()...)...) //nolint:gosec // units of ours
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}
	out, err := cmd.Output()
	if err == nil {
		in.Units, err = doctor.ParseUnits(out)
	}
	in.UnitsError = err
	return in
}

// examinedHost gathers what doctor looks at of the GPU host: the catalog's own file, and what the executor says.
func (a *app) examinedHost(ctx context.Context) doctor.Host {
	var h doctor.Host
	path, opts, err := cli.CatalogPlace{}.Resolve(a.App, false)
	if err == nil {
		h.Catalog, err = catalog.Load(path, opts)
	}
	h.CatalogError = err
	if f, _, err := a.ExecutorFile(); err == nil {
		h.DockerSocket, h.UserManager = f.Docker.Socket, f.Systemd.Manager == "user"
	}
	ctx, cancel := context.WithTimeout(ctx, 3*cli.StatusPatience) // a process that hangs leaves the others' time
	defer cancel()
	defer func(was string) { a.RequestID = was }(a.RequestID)
	// Whether the processes answer is a finding of its own.
	_ = a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		h.Vault, h.Status, h.Egress = s.Statuses(ctx)
		asked, cancel := context.WithTimeout(ctx, cli.StatusPatience)
		defer cancel()
		var refused error
		if h.Audit, refused = s.Audit.GetStatus(asked, &auditv1.GetStatusRequest{}); h.Audit != nil {
			h.Witnesses, h.Cosigned = history.WitnessLine(s.Trust.Current(), h.Audit.GetWitnessed(), a.Now())
		}
		if h.Egress != nil {
			h.Servers, _ = s.Egress.ListServers(asked, &egressv1.ListServersRequest{})
		}
		if h.Status != nil {
			h.Unenforced = unenforced(asked, s, a.limitedServices())
		}
		if refused == nil {
			refused = s.LogExtends(ctx, s.Seen(ctx, h.Vault, h.Status, h.Egress, h.Audit.GetWitnessed()))
		}
		if fault.FromPeer(refused) || errors.As(refused, new(*history.Altered)) {
			h.Log = cli.PublicText(refused)
		}
		return nil
	})
	return h
}
