package host

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
)

// serviceCommand is the noun; the commonest of its verbs are commands of their own as well.
func (a *app) serviceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service",
		Short: "One service: show, start, stop, sleep, wake, logs, install",
		Long: `A service is something that the catalogue lets the executor run: a program, a systemd unit, a container.
You look without asking anybody. What changes something you sign, as you would an agent's request.`,
		Example: `  durward service ls
  durward service show demo-chat
  durward service start demo-chat
  durward service logs demo-chat -f`,
	}
	cmd.AddCommand(a.serviceListCommand("ls", "list"), a.serviceShowCommand())
	for _, v := range verbs {
		cmd.AddCommand(a.actCommand(v))
	}
	cmd.AddCommand(a.logsCommand(), a.serviceInstallCommand())
	return cmd
}

func (a *app) serviceListCommand(use string, aliases ...string) *cobra.Command {
	return a.orWatch(&cobra.Command{
		Use:     use,
		Aliases: aliases,
		Short:   "The catalogue's services and their states",
		Long:    "Lists the services that this host's catalogue defines, as the executor sees them now.",
		Example: `  durward services
  durward services -w
  durward services --json | jq -r '.services[] | select(.state == "running") | .service_id'`,
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, _ []string) (*executorv1.ListServicesResponse, error) {
			return s.Executor.Tools.ListServices(ctx, &executorv1.ListServicesRequest{})
		}, func(list *executorv1.ListServicesResponse) {
			defer func() {
				if len(list.GetDisabled()) > 0 {
					a.Out.Printf("%s\n", a.Out.Yellow("disabled, since their entries are wrong: "+clean.Line(strings.Join(list.GetDisabled(), ", "), 1000)+"; why: "+a.Typed()+" catalog check"))
				}
			}()
			if len(list.GetServices()) == 0 {
				a.Out.Printf("The catalogue defines no service yet. Add one: durward catalog add service -h\n")
				return
			}
			a.printServices(list.GetServices())
		}),
	}, watched{"service"})
}

func (a *app) printServices(services []*executorv1.ServiceSummary) {
	a.Out.Table([]string{"SERVICE", "STATE", "VRAM", "MODEL", "NAME"}, output.Each(services, func(s *executorv1.ServiceSummary) []string {
		return []string{clean.Line(s.GetServiceId(), 64), a.StateColour(s.GetState()), cli.Mebibytes(s.GetVramMib()), clean.Line(s.GetModel(), 128), clean.Line(s.GetName(), 64)}
	}))
}

func (a *app) serviceShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show ID",
		Aliases:           []string{"info"},
		Short:             "One service: state, address, model, memory",
		Example:           "  durward service show demo-chat\n  durward service show demo-chat --json | jq -r .service.base_url",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.CompleteEntries("service"),
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, args []string) (*executorv1.ServiceInfoResponse, error) {
			return s.Executor.Tools.ServiceInfo(ctx, &executorv1.ServiceInfoRequest{ServiceId: &args[0]})
		}, func(info *executorv1.ServiceInfoResponse) { a.printService(info.GetService()) }),
	}
}

func (a *app) printService(d *executorv1.ServiceDetail) {
	a.Out.Printf("%s  %s\n", a.Out.Bold(clean.Line(d.GetServiceId(), 64)), clean.Line(d.GetName(), 64))
	network := clean.Line(d.GetNetwork(), 32)
	if network == "not enforced" {
		network = a.Out.Yellow("not enforced") + a.Out.Dim(" (the catalogue expects a limit that this driver cannot set)")
	}
	a.Out.Fields(8, [][2]string{
		{"state", a.StateColour(d.GetState())},
		{"cause", clean.Line(d.GetCause(), 300)},
		{"address", clean.Line(d.GetBaseUrl(), 256)},
		{"model", clean.Line(d.GetModel(), 128)},
		{"GPUs", cli.JoinNumbers(d.GetGpus())},
		{"memory", memoryWords(d)},
		{"sleep", clean.Line(d.GetSleep(), 32)},
		{"pinned", cli.When(d.GetPinned(), "no switch stops it, and it never goes idle")},
		{"up for", uptime(d.GetUptimeS())},
		{"restarts", cli.OrNothing(d.GetRestarts())},
		{"driver", clean.Line(d.GetDriver(), 64)},
		{"network", network},
		{"about", clean.Line(d.GetDescription(), 300)},
	})
}

// memoryWords says what is declared and, where it is known, what is measured.
func memoryWords(d *executorv1.ServiceDetail) string {
	var parts []string
	if d.GetVramMib() > 0 {
		parts = append(parts, cli.Mebibytes(d.GetVramMib())+" (declared)")
	}
	if d.GetMeasuredMib() > 0 {
		parts = append(parts, cli.Mebibytes(d.GetMeasuredMib())+" (measured now)")
	}
	return strings.Join(parts, ", ")
}

func uptime(seconds uint32) string {
	if seconds == 0 {
		return ""
	}
	return approval.Duration(time.Duration(seconds) * time.Second)
}

const signedRoad = `
It takes the same road as an agent's request: you are shown what it would do, on one screen, and the whole
statement with v or --full, you sign it with your key, the vault grants it, the executor checks your signature
itself, and everything is recorded. No agent is involved.

Without a terminal it refuses unless --yes is given; a protected key asks for its passphrase all the same.`

// verb is a change of one service that a person can ask for.
type verb struct {
	word, tool, short, long string
}

var verbs = []verb{
	{"start", "start_service", "Start a service, by your own signed command",
		"Starts a service and waits until it answers. A service that does not fit in GPU memory is not started."},
	{"stop", "stop_service", "Stop a service, by your own signed command",
		"Stops a service. Requests in flight end with it."},
	{"sleep", "sleep_service", "Put a service to sleep, by your own signed command",
		"Puts a service to sleep: its engine gives back most of its GPU memory, and waking it is quicker than a start.\n" +
			"That the memory is free is measured, not believed."},
	{"wake", "wake_service", "Wake a sleeping service, by your own signed command",
		"Wakes a sleeping service, if it fits in GPU memory."},
}

// actCommand is one verb, below `durward` or `durward service`.
func (a *app) actCommand(v verb) *cobra.Command {
	var how *cli.Asking
	cmd := &cobra.Command{
		Use:               v.word + " ID",
		Short:             v.short,
		Long:              v.long + "\n" + signedRoad,
		Example:           "  durward " + v.word + " demo-chat",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.CompleteEntries("service"),
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, args []string) error {
			return a.ActOnService(ctx, s, v.tool, args[0], *how)
		}),
	}
	how = cli.AskingFlags(cmd)
	return cmd
}
