package cli

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/home"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/trust"
)

// CompleteFlag completes a flag with fixed words.
func (a *App) CompleteFlag(cmd *cobra.Command, flag string, words ...string) {
	// It fails only for a flag that is not there.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// EnumWords lists an enum's names for people, without the zero value.
func EnumWords(names map[int32]string, prefix string) []string {
	var out []string
	for value, name := range names {
		if value != 0 {
			out = append(out, strings.ToLower(strings.TrimPrefix(name, prefix)))
		}
	}
	slices.Sort(out)
	return out
}

// completionPatience is how long a shell waits for a completion.
const completionPatience = 500 * time.Millisecond

// ForCompletion calls f with connections, quickly and silently: a shell's line is no place for errors.
func (a *App) ForCompletion(cmd *cobra.Command, f func(context.Context, *Session) error) {
	// Persistent hooks do not run for completion.
	at, err := home.At(a.HomeDir)
	if err != nil {
		return
	}
	a.Home = at
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	ctx, s, err := a.Connect(ctx)
	if err != nil {
		return
	}
	defer s.Close()
	s.parting = nil // a shell's line has no room for warnings
	_ = f(ctx, s)   // an incomplete completion is a completion
}

// CompleteServices completes service ids.
func (a *App) CompleteServices(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	a.ForCompletion(cmd, func(ctx context.Context, s *Session) error {
		list, err := s.Executor.Tools.ListServices(ctx, &executorv1.ListServicesRequest{})
		for _, service := range list.GetServices() {
			out = append(out, cobra.CompletionWithDesc(clean.Line(service.GetServiceId(), 64), clean.Line(service.GetName(), 64)))
		}
		return err
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}

// CompleteClients completes the names of clients that are let in.
func (a *App) CompleteClients(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	at, err := home.At(a.HomeDir)
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

// CompleteModes completes mode ids.
func (a *App) CompleteModes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	a.ForCompletion(cmd, func(ctx context.Context, s *Session) error {
		list, err := s.Executor.Tools.ListModes(ctx, &executorv1.ListModesRequest{})
		for _, m := range list.GetModes() {
			out = append(out, cobra.CompletionWithDesc(clean.Line(m.GetModeId(), 64), clean.Line(m.GetName(), 64)))
		}
		return err
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}

// CompleteModels completes model ids.
func (a *App) CompleteModels(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	a.ForCompletion(cmd, func(ctx context.Context, s *Session) error {
		list, err := s.Executor.Tools.ListModels(ctx, &executorv1.ListModelsRequest{})
		for _, m := range list.GetModels() {
			out = append(out, cobra.CompletionWithDesc(clean.Line(m.GetModelId(), 128), clean.Line(m.GetServedName(), 128)))
		}
		return err
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}

// OneOf completes a value that is one of a few.
func OneOf(list ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)
}

// CompleteTiers completes a tier that a client may have.
func CompleteTiers(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"READ", "WRITE", "DESTRUCTIVE"}, cobra.ShellCompDirectiveNoFileComp
}

// CompleteFiles completes files with these endings; without any, all files.
func CompleteFiles(endings ...string) cobra.CompletionFunc {
	if len(endings) == 0 {
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		}
	}
	return cobra.FixedCompletions(endings, cobra.ShellCompDirectiveFilterFileExt)
}

// CompleteFolders completes folders.
func CompleteFolders(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// CompleteSecondKeyFile completes a new name, which is nobody's to offer, and a public key file.
func CompleteSecondKeyFile(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 1 {
		return []string{"pub"}, cobra.ShellCompDirectiveFilterFileExt
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// Roles are the processes that write records.
func Roles() []string {
	var out []string
	for value := range optionsv1.Role_name {
		if role := optionsv1.Role(value); role != optionsv1.Role_ROLE_UNSPECIFIED {
			out = append(out, identity.RoleName(role))
		}
	}
	slices.Sort(out)
	return out
}

// CompleteAccounts completes Unix users.
func CompleteAccounts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	f, err := os.Open("/etc/passwd")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer f.Close()
	var out []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, _, ok := strings.Cut(lines.Text(), ":"); ok && name != "" && name[0] != '#' {
			out = append(out, name)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// CompleteOperators completes who may approve.
func (a *App) CompleteOperators(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	at, err := home.At(a.HomeDir)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cfg, err := at.Load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	raw, err := os.ReadFile(filepath.Join(cfg.TrustDir, trust.FileAllowedSigners))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	signers, err := trust.ParseAllowedSigners(raw)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, s := range signers.All() {
		if name := clean.Line(s.Operator, 64); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// CompleteUsers completes the users that clients.yaml names.
func (a *App) CompleteUsers(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	at, err := home.At(a.HomeDir)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cfg, err := at.Load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, _ := ReadClientFacts(cfg.Clients)
	return KnownUsers(list), cobra.ShellCompDirectiveNoFileComp
}

// CompleteFlagWith gives a flag a completion.
func (a *App) CompleteFlagWith(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(c *cobra.Command, _ []string, to string) ([]string, cobra.ShellCompDirective) {
		return f(c, nil, to) // what stands on the line already is no reason to offer nothing
	})
}

func CompleteTools(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	switch {
	case len(args) == 0:
		for _, t := range contract.Tools() {
			out = append(out, cobra.CompletionWithDesc(t.Name, contract.TierName(t.Tier)))
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	default:
		if t, ok := contract.Lookup(args[0]); ok {
			fields := t.Method.Input().Fields()
			for i := range fields.Len() {
				out = append(out, string(fields.Get(i).Name())+"=")
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// CompleteAgents completes the agents that clients.yaml names.
func (a *App) CompleteAgents(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	at, err := home.At(a.HomeDir)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cfg, err := at.Load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, _ := ReadClientFacts(cfg.Clients)
	var out []string
	for _, c := range list {
		out = append(out, c.Agents...)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// FindSession returns the open session that a person named.
func (s *Session) FindSession(ctx context.Context, name string) (*vaultv1.OpenSession, error) {
	list, err := s.Vault.Standing.ListSessions(ctx, &vaultv1.ListSessionsRequest{})
	if err != nil {
		return nil, err
	}
	found, err := approval.FindSession(name, list.GetSessions())
	var ambiguous *approval.AmbiguousError
	switch {
	case errors.As(err, &ambiguous):
		return nil, Usage("Say one of them.", "%s fits %d sessions", clean.Visible(name), len(ambiguous.Candidates))
	case err != nil:
		return nil, Usage("See: durward sessions", "no open session is called %s", clean.Visible(name))
	}
	return found, nil
}

// CompleteSessions completes the references of open sessions.
func (a *App) CompleteSessions(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	a.ForCompletion(cmd, func(ctx context.Context, s *Session) error {
		list, err := s.Vault.Standing.ListSessions(ctx, &vaultv1.ListSessionsRequest{})
		for _, one := range list.GetSessions() {
			out = append(out, cobra.CompletionWithDesc(clean.Line(one.GetSession(), 64), clean.Line(one.GetPrincipal(), 64)))
		}
		return err
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}
