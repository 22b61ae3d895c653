package command

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/home"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/trust"
)

// flagWords says what a flag that is called so wants, wherever it is. A command that knows better says so itself.
func (a *app) flagWords() map[string]cobra.CompletionFunc {
	none := cobra.NoFileCompletions
	table := map[string]cobra.CompletionFunc{
		"home": folders, "programs": folders, "root": folders,
		"file": files(), "from": files(), "to": files(), "output": files(), "offline": files(), "catalogue": files(), "signing-key": files(), "ssh-key": files("pub"),
		"client": a.completeClients, "principal": a.completeClients, "as": a.completeClients, "agent": a.completeAgents, "user": a.completeUsers,
		"session": a.completeSessions, "tool": completeTools, "service": a.completeServices, "depends-on": a.completeServices, "mode": a.completeModes, "model": a.completeModels,
		"tier": tierWords, "kind": oneOf(words(auditv1.Kind_name, "KIND_")...), "status": oneOf(words(auditv1.Status_name, "STATUS_")...), "writer": oneOf(roles()...),
		"run-as": completeAccounts, "executor-user": completeAccounts, "operator": completeAccounts,
		"since": oneOf("1h", "24h", "168h"), "for": oneOf("15m", "1h", "2h", "8h"), "until": oneOf("24h", "168h", "720h"),
		"min-interval": oneOf("10s", "30s", "1m"),
	}
	// What a person makes up, or copies: a name that is new, words, a number.
	for _, free := range []string{
		"reason", "note", "name", "description", "source", "served-name", "request", "operation", "cursor", "plan", "uuid", "image", "health", "unit",
		"container-user", "limit", "lines", "vram", "memory", "sleep-mib", "gpus", "port", "base-port", "container-port", "start-timeout", "stop-timeout",
		"stall-timeout", "budget-session", "budget-day", "budget-month", "uses", "arg",
	} {
		table[free] = none
	}
	return table
}

// argumentWords says the same of a command's arguments, by its path.
func (a *app) argumentWords() map[string]cobra.CompletionFunc {
	none := cobra.NoFileCompletions
	return map[string]cobra.CompletionFunc{
		"durward audit export": files(), "durward audit show": none,
		"durward catalog add gpu": none, "durward catalog add model": none, "durward catalog add service": none,
		"durward config trust": files("yaml", "yml"), "durward policy check": files("cedar", "yaml"),
		"durward operator add":    keyFileSecond,
		"durward operator revoke": a.completeOperators,
	}
}

// completeRest gives every argument and flag that has none its completion. A shell that is told nothing offers the files of the
// current folder, which is wrong nearly everywhere.
func (a *app) completeRest(root *cobra.Command) {
	flags, arguments := a.flagWords(), a.argumentWords()
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 && !cmd.HasSubCommands() {
			if f, known := arguments[cmd.CommandPath()]; known {
				cmd.ValidArgsFunction = f
			} else if !takesArguments(cmd) {
				cmd.ValidArgsFunction = cobra.NoFileCompletions
			}
		}
		complete := func(f *pflag.Flag) {
			words, known := flags[f.Name]
			if _, has := cmd.GetFlagCompletionFunc(f.Name); known && !has && f.Value.Type() != "bool" {
				a.completeFlagWith(cmd, f.Name, words)
			}
		}
		cmd.LocalNonPersistentFlags().VisitAll(complete)
		cmd.PersistentFlags().VisitAll(complete)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

// takesArguments reports whether a command takes any argument at all.
func takesArguments(cmd *cobra.Command) bool {
	for _, args := range [][]string{{"x"}, {"x", "y"}, {"x", "y", "z"}} {
		if cmd.Args != nil && cmd.Args(cmd, args) == nil {
			return true
		}
	}
	return false
}

// folders completes folders.
func folders(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// keyFileSecond completes a new name, which is nobody's to offer, and a public key file.
func keyFileSecond(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 1 {
		return []string{"pub"}, cobra.ShellCompDirectiveFilterFileExt
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// roles are the processes that write records.
func roles() []string {
	var out []string
	for value := range optionsv1.Role_name {
		if role := optionsv1.Role(value); role != optionsv1.Role_ROLE_UNSPECIFIED {
			out = append(out, identity.RoleName(role))
		}
	}
	slices.Sort(out)
	return out
}

// completeAccounts completes Unix users.
func completeAccounts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
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

// completeOperators completes who may approve.
func (a *app) completeOperators(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	at, err := home.At(a.homeDir)
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
