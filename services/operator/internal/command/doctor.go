package command

import (
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/doctor"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "What makes this installation weak or keeps it from running",
		Long: `Looks at users and groups, file permissions, the signing key, ports and processes, clocks, certificates,
programs and drivers. Each line is ✓ good, ! worth knowing or ✗ bad, and says what to do. It changes nothing.

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
