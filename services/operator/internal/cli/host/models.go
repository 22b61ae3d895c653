package host

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
)

func (a *app) modelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "model",
		Aliases: []string{"models"},
		Short:   "The models that services serve",
		Example: "  durward model ls\n  durward model show durward/demo-1b",
	}
	list := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "The catalogue's models, and which answer now",
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, _ []string) (*executorv1.ListModelsResponse, error) {
			return s.Executor.Tools.ListModels(ctx, &executorv1.ListModelsRequest{})
		}, func(list *executorv1.ListModelsResponse) {
			a.Out.Table([]string{"MODEL", "ANSWERS", "NAME IN REQUESTS", "SERVICES"}, output.Each(list.GetModels(), func(m *executorv1.ModelSummary) []string {
				answers := a.Out.Dim("no")
				if m.GetAvailable() {
					answers = a.Out.Green("yes")
				}
				return []string{clean.Line(m.GetModelId(), 128), answers, clean.Line(m.GetServedName(), 128), clean.Line(strings.Join(m.GetServices(), ", "), 500)}
			}))
		}),
	}
	show := &cobra.Command{
		Use:               "show ID",
		Short:             "One model and the services that serve it",
		Example:           "  durward model show durward/demo-1b",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.CompleteModels,
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, args []string) (*executorv1.ModelInfoResponse, error) {
			return s.Executor.Tools.ModelInfo(ctx, &executorv1.ModelInfoRequest{ModelId: &args[0]})
		}, func(m *executorv1.ModelInfoResponse) {
			a.Out.Printf("%s\n", a.Out.Bold(clean.Line(m.GetModelId(), 128)))
			a.Out.Printf("  %-17s %s\n", "name in requests", clean.Line(m.GetServedName(), 128))
			a.Out.Fields(17, [][2]string{{"source", clean.Line(m.GetSource(), 256)}})
			for _, service := range m.GetServices() {
				a.Out.Printf("  %-17s %s  %s  %s\n", "service", clean.Line(service.GetServiceId(), 64), a.StateColour(service.GetState()),
					clean.Line(service.GetBaseUrl(), 256))
			}
		}),
	}
	cmd.AddCommand(list, show)
	return cmd
}
