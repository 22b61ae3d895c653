package cli

import (
	"bufio"
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/trust"
)

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

// noFiles keeps a shell from offering files.
const noFiles = cobra.ShellCompDirectiveNoFileComp

// Complete completes a first argument, or a flag, with what list finds: quickly and silently, since a shell's line is no place for
// errors. An incomplete completion is a completion. Persistent hooks do not run for completion.
func (a *App) Complete(args []string, list func() ([]string, error)) ([]string, cobra.ShellCompDirective) {
	at, err := installdir.Find(a.HomeDir, a.Streams.Getenv)
	if err != nil || len(args) > 0 {
		return nil, noFiles
	}
	a.Home = at
	out, _ := list()
	return out, noFiles
}

// CompleteFrom completes with what list finds in the files of this installation.
func (a *App) CompleteFrom(args []string, list func(installdir.Config) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	return a.Complete(args, func() ([]string, error) {
		cfg, err := a.Home.Load()
		if err != nil {
			return nil, err
		}
		return list(cfg)
	})
}

// CompleteAsked completes with what the processes answer. describe gives the id of each item and what is said of it.
func CompleteAsked[T any](a *App, cmd *cobra.Command, args []string, list func(context.Context, *Session) ([]T, error), describe func(T) (id, about string)) ([]string, cobra.ShellCompDirective) {
	return a.Complete(args, func() (out []string, err error) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
		defer cancel()
		err = a.Run(ctx, func(ctx context.Context, s *Session) error {
			s.parting = nil // a shell's line has no room for warnings
			items, err := list(ctx, s)
			for _, item := range items {
				out = append(out, cobra.CompletionWithDesc(describe(item)))
			}
			return err
		})
		return out, err
	})
}

// CompleteEntries completes the ids of a kind of the catalog's entries: "service", "mode" or "model".
func (a *App) CompleteEntries(kind string) cobra.CompletionFunc {
	longest := map[string]int{"service": 64, "mode": 64, "model": 128}[kind]
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return CompleteAsked(a, cmd, args, func(ctx context.Context, s *Session) ([]entry, error) { return s.entries(ctx, kind) }, func(e entry) (id, about string) {
			return clean.Line(e.id, longest), clean.Line(e.name, longest)
		})
	}
}

// CompleteSessions completes the references of open sessions.
func (a *App) CompleteSessions(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return CompleteAsked(a, cmd, args, func(ctx context.Context, s *Session) ([]*vaultv1.OpenSession, error) {
		list, err := s.Vault.Standing.ListSessions(ctx, &vaultv1.ListSessionsRequest{})
		return list.GetSessions(), err
	}, func(one *vaultv1.OpenSession) (id, about string) {
		return clean.Line(one.GetSession(), 64), clean.Line(one.GetPrincipal(), 64)
	})
}

// CompleteClients completes the names of clients that are let in.
func (a *App) CompleteClients(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.CompleteFrom(args, func(cfg installdir.Config) ([]string, error) {
		list, err := client.Admitted(cfg.Clients)
		return output.Each(list, func(c client.Client) string { return c.ID }), err
	})
}

// OneOf completes a value that is one of a few.
func OneOf(list ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(list, noFiles)
}

// OneOfThose completes one of a list that is made when a shell asks for it.
func OneOfThose(list func() []string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) { return list(), noFiles }
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
	return nil, noFiles
}

// Roles are the processes that write records.
func Roles() []string {
	var out []string
	for value := range optionsv1.Role_name {
		switch role := optionsv1.Role(value); role {
		case optionsv1.Role_ROLE_UNSPECIFIED, optionsv1.Role_ROLE_NOTIFIER, optionsv1.Role_ROLE_TOOL:
		default:
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
		return nil, noFiles
	}
	defer f.Close()
	var out []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, _, ok := strings.Cut(lines.Text(), ":"); ok && name != "" && name[0] != '#' {
			out = append(out, name)
		}
	}
	return out, noFiles
}

// CompleteOperators completes who may approve.
func (a *App) CompleteOperators(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.CompleteFrom(args, func(cfg installdir.Config) ([]string, error) {
		signers, err := trust.ReadAllowedSigners(cfg.TrustDir)
		if err != nil {
			return nil, err
		}
		var out []string
		for _, s := range signers.All() {
			if name := clean.Line(s.Operator, 64); !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
		return out, nil
	})
}

// CompleteUsers completes the users that clients.yaml names.
func (a *App) CompleteUsers(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.CompleteFrom(args, func(cfg installdir.Config) ([]string, error) {
		list, err := client.Admitted(cfg.Clients)
		return client.Users(list), err
	})
}

// CompleteAgents completes the agents that clients.yaml names.
func (a *App) CompleteAgents(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.CompleteFrom(args, func(cfg installdir.Config) (out []string, err error) {
		list, err := client.Admitted(cfg.Clients)
		for _, c := range list {
			out = append(out, c.Agents...)
		}
		return out, err
	})
}

// CompleteFlag gives a flag a completion.
func CompleteFlag(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	// It fails only for a flag that is not there.
	_ = cmd.RegisterFlagCompletionFunc(flag, func(c *cobra.Command, _ []string, to string) ([]string, cobra.ShellCompDirective) {
		return f(c, nil, to) // what stands on the line already is no reason to offer nothing
	})
}

// CompleteTools completes a tool, and behind it the names of its arguments: those of other people's servers too, where this
// installation's files can be read.
func (a *App) CompleteTools(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	_, _ = a.CompleteFrom(nil, func(cfg installdir.Config) ([]string, error) { a.pin(cfg); return nil, nil })
	var out []string
	switch {
	case len(args) == 0:
		for _, t := range contract.All() {
			out = append(out, cobra.CompletionWithDesc(t.Name, contract.TierName(t.Tier)))
		}
		return out, noFiles
	default:
		t, ok := contract.Lookup(args[0])
		if properties, _ := t.InputSchema["properties"].(map[string]any); t.Foreign != nil {
			for _, name := range slices.Sorted(maps.Keys(properties)) {
				out = append(out, clean.Line(name, 64)+"=")
			}
		} else if ok {
			fields := t.Method.Input().Fields()
			for i := range fields.Len() {
				out = append(out, string(fields.Get(i).Name())+"=")
			}
		}
		return out, noFiles | cobra.ShellCompDirectiveNoSpace
	}
}
