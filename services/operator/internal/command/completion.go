package command

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/home"
	"durward.internal/services/platform/clean"
)

// completionPatience is how long a shell waits for a completion.
const completionPatience = 500 * time.Millisecond

// forCompletion calls f with connections, quickly and silently: a shell's line is no place for errors.
func (a *app) forCompletion(cmd *cobra.Command, f func(context.Context, *session) error) {
	// Persistent hooks do not run for completion.
	at, err := home.At(a.homeDir)
	if err != nil {
		return
	}
	a.home = at
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	ctx, s, err := a.connect(ctx)
	if err != nil {
		return
	}
	defer s.close()
	s.parting = nil // a shell's line has no room for warnings
	_ = f(ctx, s)   // an incomplete completion is a completion
}

// completeServices completes service ids.
func (a *app) completeServices(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	a.forCompletion(cmd, func(ctx context.Context, s *session) error {
		list, err := s.Executor.Tools.ListServices(ctx, &executorv1.ListServicesRequest{})
		for _, service := range list.GetServices() {
			out = append(out, cobra.CompletionWithDesc(clean.Line(service.GetServiceId(), 64), clean.Line(service.GetName(), 64)))
		}
		return err
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeClients completes the names of clients that are let in.
func (a *app) completeClients(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	at, err := home.At(a.homeDir)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cfg, err := at.Load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := client.Read(cfg.Clients)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, c := range list {
		if !c.Revoked {
			out = append(out, c.ID)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeModes completes mode ids.
func (a *app) completeModes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	a.forCompletion(cmd, func(ctx context.Context, s *session) error {
		list, err := s.Executor.Tools.ListModes(ctx, &executorv1.ListModesRequest{})
		for _, m := range list.GetModes() {
			out = append(out, cobra.CompletionWithDesc(clean.Line(m.GetModeId(), 64), clean.Line(m.GetName(), 64)))
		}
		return err
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeModels completes model ids.
func (a *app) completeModels(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	a.forCompletion(cmd, func(ctx context.Context, s *session) error {
		list, err := s.Executor.Tools.ListModels(ctx, &executorv1.ListModelsRequest{})
		for _, m := range list.GetModels() {
			out = append(out, cobra.CompletionWithDesc(clean.Line(m.GetModelId(), 128), clean.Line(m.GetServedName(), 128)))
		}
		return err
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}

// oneOf completes a value that is one of a few.
func oneOf(list ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)
}

// tierWords completes a tier that a client may have.
func tierWords(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"READ", "WRITE", "DESTRUCTIVE"}, cobra.ShellCompDirectiveNoFileComp
}

// files completes files with these endings; without any, all files.
func files(endings ...string) cobra.CompletionFunc {
	if len(endings) == 0 {
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		}
	}
	return cobra.FixedCompletions(endings, cobra.ShellCompDirectiveFilterFileExt)
}
