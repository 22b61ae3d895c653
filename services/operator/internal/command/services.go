package command

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
)

func (a *app) servicesCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "services",
		Aliases: []string{"ls"},
		Short:   "The catalogue's services and their states",
		Long:    "Lists the services that this host's catalogue defines, as the executor sees them now.",
		Example: "  durward services\n  durward services --json | jq -r '.services[] | select(.state == \"SERVICE_STATE_RUNNING\") | .service_id'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, s, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			list, err := s.Executor.Tools.ListServices(ctx, &executorv1.ListServicesRequest{})
			if err != nil {
				return err
			}
			if a.json {
				return a.out.Message(list)
			}
			rows := make([][]string, 0, len(list.GetServices()))
			for _, service := range list.GetServices() {
				rows = append(rows, []string{clean.Line(service.GetServiceId(), 64), stateWord(service.GetState()),
					mebibytes(service.GetVramMib()), clean.Line(service.GetModel(), 128), clean.Line(service.GetName(), 64)})
			}
			a.out.Table([]string{"SERVICE", "STATE", "VRAM", "MODEL", "NAME"}, rows)
			return nil
		},
	}
}

func (a *app) serviceCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "service ID",
		Aliases:           []string{"info"},
		Short:             "One service: state, address, model, memory",
		Example:           "  durward service demo-chat",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, s, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			info, err := s.Executor.Tools.ServiceInfo(ctx, &executorv1.ServiceInfoRequest{ServiceId: &args[0]})
			if err != nil {
				return err
			}
			if a.json {
				return a.out.Message(info)
			}
			d := info.GetService()
			a.out.Printf("%s  %s\n", a.out.Bold(clean.Line(d.GetServiceId(), 64)), clean.Line(d.GetName(), 64))
			for _, line := range [][2]string{
				{"state", stateWord(d.GetState())},
				{"cause", clean.Line(d.GetCause(), 300)},
				{"address", clean.Line(d.GetBaseUrl(), 256)},
				{"model", clean.Line(d.GetModel(), 128)},
				{"GPUs", joinNumbers(d.GetGpus())},
				{"memory", declared(d.GetVramMib())},
				{"up for", uptime(d.GetUptimeS())},
				{"driver", clean.Line(d.GetDriver(), 64)},
				{"about", clean.Line(d.GetDescription(), 300)},
			} {
				if line[1] != "" {
					a.out.Printf("  %-8s %s\n", line[0], line[1])
				}
			}
			return nil
		},
	}
}

func (a *app) gpuCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "gpu",
		Short:   "GPUs, their memory, and what runs on them",
		Long:    "Lists the GPUs as the executor sees them. Simulated ones come from the catalogue and say so.",
		Example: "  durward gpu",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, s, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			status, err := s.Executor.Tools.GpuStatus(ctx, &executorv1.GpuStatusRequest{})
			if err != nil {
				return err
			}
			if a.json {
				return a.out.Message(status)
			}
			if len(status.GetGpus()) == 0 {
				a.out.Printf("%s\n", gpuWords(status.GetSource(), 0, false, driverFound()))
				return nil
			}
			rows := make([][]string, 0, len(status.GetGpus()))
			for _, gpu := range status.GetGpus() {
				kind := clean.Line(status.GetSource(), 32)
				if gpu.GetSimulated() {
					kind = "simulated"
				}
				rows = append(rows, []string{strconv.FormatUint(uint64(gpu.GetIndex()), 10), clean.Line(gpu.GetName(), 64),
					fmt.Sprintf("%d of %d MiB", gpu.GetMemoryUsedMib(), gpu.GetMemoryTotalMib()), kind,
					clean.Line(strings.Join(gpu.GetServices(), ", "), 500)})
			}
			a.out.Table([]string{"GPU", "NAME", "MEMORY", "SOURCE", "SERVICES"}, rows)
			return nil
		},
	}
}

func (a *app) startCommand() *cobra.Command {
	return a.actCommand("start", "start_service", "Start a service, by your own signed command")
}

func (a *app) stopCommand() *cobra.Command {
	return a.actCommand("stop", "stop_service", "Stop a service, by your own signed command")
}

func (a *app) actCommand(verb, tool, short string) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   verb + " ID",
		Short: short,
		Long: short + `.

It takes the same road as an agent's request: you are shown the target as the executor has it and the
whole statement, you sign it with your key, the vault grants it, the executor checks your signature
itself, and everything is recorded. No agent is involved.

Without a terminal it refuses unless --yes is given; a protected key asks for its passphrase all the same.`,
		Example:           "  durward " + verb + " demo-chat",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, s, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			return a.command(ctx, s, tool, args[0], yes)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before signing")
	return cmd
}

// command carries out a human's own call of a tool that takes a service id.
func (a *app) command(ctx context.Context, s *session, tool, serviceID string, yes bool) error {
	arguments, err := canonical.Marshal(map[string]string{"service_id": serviceID})
	if err != nil {
		return usage("See: durward services", "%q is not a service id", clean.Visible(serviceID))
	}
	call, err := approval.NewCall(tool, arguments)
	if err != nil {
		if errors.Is(err, approval.ErrArguments) {
			return usage("See: durward services", "%q is not a service id: letters, digits, _ and -, at most 64", clean.Visible(serviceID))
		}
		return err
	}
	preview, err := s.preview(ctx, call.Tool.Ref(), call.Arguments)
	if err != nil {
		return err
	}
	signer, err := a.signer(s)
	if err != nil {
		return err
	}
	vault, err := s.Vault.Control.GetStatus(ctx, &vaultv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	st, err := signer.Command(call, preview, vault.GetEpoch())
	if err != nil {
		return denied("", "it cannot be signed: %v", err)
	}
	out := a.display()
	out.Printf("%s  %s %s  on %s\n", out.Bold(contract.TierName(call.Tool.Tier)), call.Tool.Name, approval.Arguments(call.Arguments), approval.Place(st.Audience))
	for _, step := range preview.GetPlan() {
		out.Printf("  %s\n", clean.Visible(step))
	}
	if err := a.showStatement(st, preview.GetSubject().GetEntry()); err != nil {
		return err
	}
	if err := a.confirm(ctx, "Sign and do it?", yes); err != nil {
		return err
	}
	signed, err := a.sign(ctx, s, st)
	if err != nil {
		return err
	}
	granted, err := s.Vault.GrantCommand(ctx, &vaultv1.GrantCommandRequest{Statement: signed})
	if err != nil {
		return err
	}
	r, err := s.dispatch(ctx, call, granted.GetGrant())
	if err != nil {
		return err
	}
	return a.showResult(r, granted.GetOperationId())
}

func stateWord(s executorv1.ServiceState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "SERVICE_STATE_"))
}

func mebibytes(n uint32) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(uint64(n), 10) + " MiB"
}

func declared(n uint32) string {
	if n == 0 {
		return ""
	}
	return mebibytes(n) + " (declared)"
}

func uptime(seconds uint32) string {
	if seconds == 0 {
		return ""
	}
	return approval.Duration(time.Duration(seconds) * time.Second)
}

func joinNumbers(list []uint32) string {
	parts := make([]string, len(list))
	for i, n := range list {
		parts[i] = strconv.FormatUint(uint64(n), 10)
	}
	return strings.Join(parts, ", ")
}
