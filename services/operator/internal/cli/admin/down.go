package admin

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/cli"
)

// downPatience is how long down waits for up to drain its four processes.
const downPatience = 40 * time.Second

func (a *app) downCommand() *cobra.Command {
	var services, yes bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop Durward; services keep running unless --services is given",
		Long: `Asks the running "durward up" of this installation to drain and stop, and waits until it has.

Services that Durward started keep running. With --services each running service is stopped first, with
a command that you sign, as "durward stop" would.`,
		Example: "  durward down\n  durward down --services",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !services {
				return a.down(cmd.Context(), nil)
			}
			return a.down(cmd.Context(), func() error { return a.stopServices(cmd.Context(), yes) })
		},
	}
	cmd.Flags().BoolVar(&services, "services", false, "stop running services first")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before signing (with --services)")
	return cmd
}

// down stops up, and before it what first stops, if it is given.
func (a *app) down(ctx context.Context, first func() error) (err error) {
	result := map[string]any{"stopped": false}
	if first != nil {
		services, failed := a.Gathered(first)
		result["services"] = cli.NonNil(services)
		defer func() {
			if err != nil && len(services) > 0 { // what became of the services is told, whatever comes of the rest
				err = cmp.Or(a.Show(result, func() {}), err)
			}
		}()
		if failed != nil {
			return failed
		}
	}
	process, running := a.Home.RunningProcess()
	if !running {
		return cli.Failed("See: durward status", "Durward is not running for %s", a.Home.Dir)
	}
	if err := syscall.Kill(process.PID, syscall.SIGTERM); err != nil {
		return cli.Failed("It may be another user's.", "process %d could not be asked to stop", process.PID)
	}
	deadline := time.After(downPatience)
	for process.Alive() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return cli.Failed("Its log says why: "+a.Home.Log("*"), "process %s is still draining after %s", strconv.Itoa(process.PID), downPatience)
		case <-time.After(50 * time.Millisecond):
		}
	}
	result["stopped"], result["process"] = true, process.PID
	return a.Show(result, func() { a.Out.Printf("Durward has stopped.\n") })
}

func (a *app) stopServices(ctx context.Context, yes bool) error {
	return a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		list, err := s.Executor.Tools.ListServices(ctx, &executorv1.ListServicesRequest{})
		if err != nil {
			return err
		}
		for _, service := range list.GetServices() {
			switch service.GetState() {
			case executorv1.ServiceState_SERVICE_STATE_STOPPED, executorv1.ServiceState_SERVICE_STATE_FAILED:
				continue
			default:
			}
			if err := a.ActOnService(ctx, s, "stop_service", service.GetServiceId(), cli.Asking{Yes: yes}); err != nil {
				return fmt.Errorf("stop %s: %w", service.GetServiceId(), err)
			}
		}
		return nil
	})
}
