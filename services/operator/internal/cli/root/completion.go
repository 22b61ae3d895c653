package root

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/cli"
)

// flagWords says what a flag that is called so wants, wherever it is. A command that knows better says so itself.
func flagWords(a *cli.App) map[string]cobra.CompletionFunc {
	none := cobra.NoFileCompletions
	table := map[string]cobra.CompletionFunc{
		"program": cli.CompleteFiles(), "llama-fit-params": cli.CompleteFiles(), "socket": cli.CompleteFiles("sock"), "out": cli.CompleteFiles("yaml"),
		"home": cli.CompleteFolders, "programs": cli.CompleteFolders, "root": cli.CompleteFolders,
		"file": cli.CompleteFiles(), "from": cli.CompleteFiles(), "to": cli.CompleteFiles(), "output": cli.CompleteFiles(), "offline": cli.CompleteFiles(), "catalogue": cli.CompleteFiles(), "signing-key": cli.CompleteFiles(), "ssh-key": cli.CompleteFiles("pub"),
		"client": a.CompleteClients, "principal": a.CompleteClients, "as": a.CompleteClients, "agent": a.CompleteAgents, "user": a.CompleteUsers,
		"session": a.CompleteSessions, "tool": cli.CompleteTools, "service": a.CompleteServices, "depends-on": a.CompleteServices, "mode": a.CompleteModes, "model": a.CompleteModels,
		"tier": cli.CompleteTiers, "kind": cli.OneOf(cli.EnumWords(auditv1.Kind_name, "KIND_")...), "status": cli.OneOf(cli.EnumWords(auditv1.Status_name, "STATUS_")...), "writer": cli.OneOf(cli.Roles()...),
		"run-as": cli.CompleteAccounts, "executor-user": cli.CompleteAccounts, "operator": cli.CompleteAccounts,
		"since": cli.OneOf("1h", "24h", "168h"), "for": cli.OneOf("15m", "1h", "2h", "8h"), "until": cli.OneOf("24h", "168h", "720h"),
		"min-interval": cli.OneOf("10s", "30s", "1m"),
	}
	// What a person makes up, or copies: a name that is new, words, a number.
	for _, free := range []string{
		"reason", "note", "name", "description", "source", "served-name", "request", "operation", "cursor", "plan", "uuid", "image", "health", "unit",
		"container-user", "limit", "lines", "vram", "memory", "sleep-mib", "gpus", "port", "base-port", "container-port", "start-timeout", "stop-timeout",
		"stall-timeout", "budget-session", "budget-day", "budget-month", "uses", "arg", "set", "ssh", "margin",
	} {
		table[free] = none
	}
	return table
}

// argumentWords says the same of a command's arguments, by its path.
func argumentWords(a *cli.App) map[string]cobra.CompletionFunc {
	none := cobra.NoFileCompletions
	return map[string]cobra.CompletionFunc{
		"durward audit export": cli.CompleteFiles(), "durward audit show": none,
		"durward catalog add gpu": none, "durward catalog add model": none, "durward catalog add service": none,
		"durward config trust": cli.CompleteFiles("yaml", "yml"), "durward policy check": cli.CompleteFiles("cedar", "yaml"),
		"durward operator add":    cli.CompleteSecondKeyFile,
		"durward operator revoke": a.CompleteOperators,
	}
}

// completeRest gives every argument and flag that has none its completion. A shell that is told nothing offers the files of the
// current folder, which is wrong nearly everywhere.
func completeRest(a *cli.App, root *cobra.Command) {
	flags, arguments := flagWords(a), argumentWords(a)
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
				cli.CompleteFlag(cmd, f.Name, words)
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
