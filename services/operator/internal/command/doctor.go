package command

import (
	"context"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/doctor"
	"durward.internal/services/platform/catalogue"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "What makes this installation weak or keeps it from running",
		Long: `Looks at users and groups, file permissions, the signing key, ports and processes, clocks, certificates,
programs and drivers; at the catalogue, where GPU numbers come from, whether systemd and Docker can be reached
where the catalogue uses them, and network expectations that nothing enforces. Each line is ✓ good, ! worth
knowing or ✗ bad, and says what to do. It changes nothing.

Exit code 1 when anything is ✗.`,
		Example: "  durward doctor\n  durward doctor --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			bin, err := ownFolder()
			if err != nil {
				return err
			}
			running, _ := a.home.RunningProcess()
			findings := doctor.Examine(cmd.Context(), doctor.Config{
				Home: a.home, Operator: cfg, Development: running.Development, Bin: bin, Version: programVersion, Own: a.streams.Version,
				HTTP: &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}, Now: a.now, Root: "/",
				Host: a.examinedHost(cmd.Context()),
			})
			bad := 0
			for _, f := range findings {
				if f.Level == doctor.Bad {
					bad++
				}
				if a.json {
					continue
				}
				mark := map[doctor.Level]string{doctor.Good: a.out.Green("✓"), doctor.Warning: a.out.Yellow("!"), doctor.Bad: a.out.Red("✗")}[f.Level]
				a.out.Printf("%s %-13s %s\n", mark, f.Name, f.Text)
				if f.Do != "" {
					a.out.Printf("  %-13s %s\n", "", a.out.Dim("→ "+f.Do))
				}
			}
			if a.json {
				if err := a.out.Value(map[string]any{"findings": findings, "bad": bad}); err != nil {
					return err
				}
			}
			if bad > 0 {
				return failed("", "%d of %d findings are bad", bad, len(findings))
			}
			return nil
		},
	}
}

// examinedHost gathers what doctor looks at of the GPU host: the catalogue's own file, and what the executor says.
func (a *app) examinedHost(ctx context.Context) doctor.Host {
	var h doctor.Host
	path, opts, err := catalogPlace{}.resolve(a, false)
	if err == nil {
		h.Catalogue, err = catalogue.Load(path, opts)
	}
	h.CatalogueError = err
	if f, _, err := a.executorFile(); err == nil {
		h.DockerSocket, h.UserManager = f.Docker.Socket, f.Systemd.Manager == "user"
	}
	ctx, s, err := a.connect(ctx)
	if err != nil {
		return h
	}
	defer s.close()
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	defer func() { a.requestID = "" }()
	if h.Status, err = s.Executor.GetStatus(ctx, &executorv1.GetStatusRequest{}); err != nil {
		return h // whether the processes answer is a finding of its own
	}
	h.Unenforced = s.unenforced(ctx, a.limitedServices())
	return h
}
