// Package root assembles the durward command. It alone knows every group of commands; the groups do not know each other.
//
// The program runs as the operator, at the operator's terminal or in the operator's scripts. It believes the files of the home
// folder and what the executor says of itself; what agents, clients and the vault say is shown, made visible, and signed
// only after its digests were computed here.
package root

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/admin"
	"durward.internal/services/operator/internal/cli/approve"
	"durward.internal/services/operator/internal/cli/audit"
	"durward.internal/services/operator/internal/cli/catalog"
	"durward.internal/services/operator/internal/cli/clients"
	"durward.internal/services/operator/internal/cli/credentials"
	"durward.internal/services/operator/internal/cli/egress"
	"durward.internal/services/operator/internal/cli/host"
	"durward.internal/services/operator/internal/cli/life"
	"durward.internal/services/operator/internal/cli/privacy"
	"durward.internal/services/operator/internal/cli/rules"
	"durward.internal/services/operator/internal/cli/servers"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
)

// Main runs the command and returns its exit code.
func Main(ctx context.Context, args []string, streams cli.Streams) int {
	a := &cli.App{Streams: streams, Now: time.Now}
	cmd := root(a)
	if len(args) > 0 && args[0] == cobra.ShellCompRequestCmd {
		plainUsage(cmd)
	}
	cmd.SetArgs(args)
	cmd.SetIn(streams.In)
	help := &telling{Writer: streams.Out}
	cmd.SetOut(help)
	cmd.SetErr(streams.Err)
	err := cmd.ExecuteContext(ctx)
	failed := help.failed
	if a.Out != nil {
		failed = cmp.Or(a.Out.Failed(), failed)
	}
	if errors.Is(failed, syscall.EPIPE) && (err == nil || errors.Is(err, syscall.EPIPE)) {
		return cli.ExitFailed // as for "| head": whoever read has enough
	}
	if failed != nil && (err == nil || errors.Is(err, failed)) {
		err = cli.Failed("The command itself was carried out.", "its output could not be written: %v", failed)
	}
	if err == nil {
		return cli.ExitOK
	}
	return a.Explain(err)
}

// telling remembers that a write failed, which cobra forgets of help.
type telling struct {
	io.Writer
	failed error
}

func (t *telling) Write(b []byte) (int, error) {
	n, err := t.Writer.Write(b)
	t.failed = cmp.Or(t.failed, err)
	return n, err
}

const longHelp = `durward is the human's side of Durward, which lets AI agents manage this machine's services
while a person keeps the last word.

An agent may look by itself. What it wants to change waits here until you approve it with your own
signing key, and everything is recorded in a log that can be proved.

  durward up --development          run everything in this terminal, for trying it out
  durward client connect claude-code
  durward approvals                 what waits for you
  durward approve K7F3              look at it, sign, let it happen
  durward watch                     services, GPU memory and running steps, live
  durward simulate coding           what a switch of modes would do, and whether it fits
  durward audit search              what happened

Commands mean the installation in ~/.durward, or the one that --home or $DURWARD_HOME names; where ~/.durward
is not there and $XDG_DATA_HOME is set, a new one is made below that.

Every command that reads takes -o json, yaml or wide, and --quiet for ids alone.
"durward help exit-codes" explains the exit codes.`

// root builds the tree of commands.
func root(a *cli.App) *cobra.Command {
	var format string
	var asJSON, quiet bool
	root := &cobra.Command{
		Use:           "durward",
		Short:         "The human's side of Durward",
		Long:          longHelp,
		Version:       a.Streams.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			a.Flags = cmd.Flags()
			if err = emptyLists(cmd.Flags()); err != nil {
				return err
			}
			if a.Format, err = formatOf(format, asJSON, quiet); err != nil {
				return err
			}
			a.Out = output.New(a.Streams.Out, a.Streams.Err, a.Streams.Getenv)
			a.Out.Wide = a.Format == output.Wide
			if _, none := cmd.Annotations[cli.NoHome]; !none {
				if a.Home, err = installdir.Find(a.HomeDir, a.Streams.Getenv); err != nil {
					return err
				}
			}
			return unfit(cmd, cmd.ValidateFlagGroups())
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("durward {{.Version}}\n")
	root.Flags().Bool("version", false, "print the version")
	root.PersistentFlags().StringVar(&a.HomeDir, "home", "", "folder of this installation (default ~/.durward)")
	root.PersistentFlags().StringVarP(&format, "output", "o", string(output.Text), "write results as `FORMAT`: text, wide, json or yaml")
	root.PersistentFlags().BoolVar(&asJSON, "json", false, "short for -o json")
	root.PersistentFlags().BoolVarP(&quiet, "quiet", "q", false, "write ids alone")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		next := "See: " + cmd.CommandPath() + " -h"
		if unknown, is := errors.AsType[*pflag.NotExistError](err); is { // -json is an unknown j to pflag
			next = cli.DidYouMean(nearFlags(cmd, cmp.Or(unknown.GetSpecifiedShortnames(), unknown.GetSpecifiedName())), next)
		}
		if wrong, is := errors.AsType[*pflag.InvalidValueError](err); is {
			switch kind := kindOf(wrong.GetFlag().Value.Type()); {
			case errors.Is(err, strconv.ErrRange):
				return cli.Usage(next, "--%s %q is out of range", wrong.GetFlag().Name, wrong.GetValue())
			case kind != "":
				return cli.Usage(next, "--%s is %s, and %q is none", wrong.GetFlag().Name, kind, wrong.GetValue())
			}
		}
		return cli.Usage(next, "%v", err)
	})
	root.AddGroup(
		&cobra.Group{ID: cli.GroupRun, Title: "Running it:"},
		&cobra.Group{ID: cli.GroupDecide, Title: "Deciding:"},
		&cobra.Group{ID: cli.GroupServices, Title: "Services:"},
		&cobra.Group{ID: cli.GroupHost, Title: "The GPU host:"},
		&cobra.Group{ID: cli.GroupHistory, Title: "History:"},
		&cobra.Group{ID: cli.GroupAccess, Title: "Who may do what:"},
	)
	for _, commands := range []func(*cli.App) []*cobra.Command{
		admin.Commands, approve.Commands, audit.Commands, catalog.Commands, clients.Commands, credentials.Commands, egress.Commands, host.Commands, life.Commands, privacy.Commands, rules.Commands, servers.Commands,
	} {
		root.AddCommand(commands(a)...)
	}
	root.AddCommand(admin.Version(a), exitCodesTopic())
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = knownTopic
	}
	checkArguments(root, a)
	completeRest(a, root)
	return root
}

// kindOf says what a flag of a type takes, where what pflag says of a wrong value are the words of a parser of Go's; or "".
func kindOf(flag string) string {
	switch flag {
	case "bool":
		return "true or false"
	case "int":
		return "a whole number"
	case "uint", "uint32":
		return "a whole number, 0 or more"
	case "duration":
		return "a time like 90s, 30m or 2h"
	default:
		return ""
	}
}

// nearFlags are the command's flags that one may have been meant to be, as they are written.
func nearFlags(cmd *cobra.Command, name string) []string {
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	near := config.Suggest(name, known)
	for i := range near {
		near[i] = "--" + near[i]
	}
	return near
}

// emptyLists refuses a list that is given and names nothing, as --service "$ID" does where the variable is not set: without the flag most
// commands mean all, so that what was to be for one would be for each.
func emptyLists(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		if list, is := f.Value.(pflag.SliceValue); is && (len(list.GetSlice()) == 0 || slices.Contains(list.GetSlice(), "")) {
			err = cli.Usage("Name what it is for, or leave it away.", "--%s is empty", f.Name)
		}
	})
	return err
}

// formatOf is the format that the flags ask for.
func formatOf(format string, asJSON, quiet bool) (output.Format, error) {
	chosen := output.Format(format)
	asked := 0
	for flag, given := range map[output.Format]bool{output.JSON: asJSON, output.Quiet: quiet} {
		if given {
			asked++
			chosen = flag
		}
	}
	switch {
	case !slices.Contains(output.Formats(), format):
		return "", cli.Usage("One of: "+strings.Join(output.Formats(), ", "), "-o knows no %q", clean.Visible(format))
	case asked > 1, asked > 0 && format != string(output.Text) && format != string(chosen):
		return "", cli.Usage("One of: -o FORMAT, --json, --quiet", "two formats are asked for")
	}
	return chosen, nil
}

// checkArguments makes the wrong number of arguments, unknown subcommands, and for a program their lack, a usage error of every command.
func checkArguments(cmd *cobra.Command, a *cli.App) {
	inner := cmd.Args
	if inner == nil {
		inner = cobra.NoArgs
	}
	cmd.Args = func(c *cobra.Command, args []string) error {
		_, files := c.Annotations[cli.TakesFiles]
		if c.HasSubCommands() && len(args) > 0 && (!files || !catalog.IsModelPath(args[0])) {
			next := "See: " + c.CommandPath() + " -h"
			if near := config.Suggest(args[0], names(c)); args[0] == "restart" && !c.HasParent() {
				next = "A service is stopped and started: durward stop ID, durward start ID" // restore is near, and far from it
			} else if len(near) > 0 {
				next = cli.DidYouMean(near, "")
			} else if show, _, err := c.Find([]string{"show"}); err == nil && show != c {
				next = "To look at one: " + show.CommandPath() + " " + clean.Visible(args[0])
			}
			return cli.Usage(next, "%s has no command %q", c.CommandPath(), clean.Visible(args[0]))
		}
		return misfit(c, args, inner(c, args))
	}
	if cmd.HasSubCommands() && cmd.RunE == nil && cmd.Run == nil {
		cmd.RunE = func(c *cobra.Command, _ []string) error {
			if a.Machine() {
				return cli.Usage("See: "+c.CommandPath()+" -h", "%s by itself has no result, only help: name one of its commands", c.CommandPath())
			}
			return c.Help()
		}
	}
	for _, sub := range cmd.Commands() {
		checkArguments(sub, a)
	}
}

// knownTopic refuses help about a command that there is not, where cobra shows the help of the one above it.
func knownTopic(help *cobra.Command, args []string) error {
	about, rest, err := help.Root().Find(args)
	if err == nil && len(rest) > 0 && about.HasSubCommands() {
		err = about.Args(about, rest)
	}
	return err
}

// misfit says in our own words what cobra says of arguments that do not fit; a command's own check is passed on.
func misfit(c *cobra.Command, args []string, err error) error {
	if _, ours := errors.AsType[*cli.Problem](err); ours || err == nil {
		return err
	}
	next := "Usage: " + c.UseLine()
	takes := strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(c.UseLine(), c.CommandPath()), "[flags]"))
	switch {
	case takes == "":
		return cli.Usage(next, "%s takes no argument, and %q is one", c.CommandPath(), clean.Visible(args[0]))
	case len(args) == 0:
		return cli.Usage(next, "say which: %s takes %s", c.CommandPath(), takes)
	case len(args) == 1 && len(c.ValidArgs) > 0:
		return cli.Usage(cli.DidYouMean(config.Suggest(args[0], c.ValidArgs), next), "%s does not know %q", c.CommandPath(), clean.Visible(args[0]))
	default:
		return cli.Usage(next, "%s takes %s, and got %d", c.CommandPath(), takes, len(args))
	}
}

// unfit says in our own words what cobra says of flags that do not fit together.
func unfit(c *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	// "if any flags in the group [file stdin] are set none of the others can be; …", or "… they must all be set; …"
	_, group, _ := strings.Cut(err.Error(), "[")
	group, rest, _ := strings.Cut(group, "]")
	flags := "--" + strings.Join(strings.Fields(group), " and --")
	if strings.Contains(rest, "none of the others") {
		return cli.Usage("See: "+c.CommandPath()+" -h", "%s exclude each other", flags)
	}
	return cli.Usage("See: "+c.CommandPath()+" -h", "%s go together", flags)
}

// names lists a command's subcommands and their aliases.
func names(c *cobra.Command) []string {
	var out []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			out = append(append(out, sub.Name()), sub.Aliases...)
		}
	}
	return out
}

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "What the exit codes mean",
		Long: `What durward's exit codes mean:

  0  done
  1  it was tried and failed; doctor found a ✗; verify found that the log is not what it was, or
     that a signature in it does not stand
  2  wrong usage or bad input; nothing was tried
  3  a process of Durward cannot be reached; see "durward status"
  4  denied, or a person is needed: no terminal to ask at, a wrong passphrase, a halt

Errors go to standard error: one sentence, what to do next, and the request id under which logs
and records tell more.`,
	}
}

// flagWords says what a flag that is called so wants, wherever it is. A command that knows better says so itself.
func flagWords(a *cli.App) map[string]cobra.CompletionFunc {
	none := cobra.NoFileCompletions
	table := map[string]cobra.CompletionFunc{
		"program": cli.CompleteFiles(), "llama-fit-params": cli.CompleteFiles(), "socket": cli.CompleteFiles("sock"), "out": cli.CompleteFiles("yaml"),
		"home": cli.CompleteFolders, "programs": cli.CompleteFolders, "root": cli.CompleteFolders, "trust": cli.CompleteFolders,
		"file": cli.CompleteFiles(), "from": cli.CompleteFiles(), "to": cli.CompleteFiles(), "output": cli.OneOf(output.Formats()...), "offline": cli.CompleteFiles(), "catalogue": cli.CompleteFiles(), "signing-key": cli.CompleteFiles(), "signers": cli.CompleteFiles(), "ssh-key": cli.CompleteFiles("pub"),
		"client": a.CompleteClients, "principal": a.CompleteClients, "as": a.CompleteClients, "agent": a.CompleteAgents, "user": a.CompleteUsers,
		"session": a.CompleteSessions, "tool": a.CompleteTools, "service": a.CompleteEntries("service"), "depends-on": a.CompleteEntries("service"), "mode": a.CompleteEntries("mode"), "model": a.CompleteEntries("model"),
		"tier": cli.OneOf("READ", "WRITE", "DESTRUCTIVE"), "kind": cli.OneOf(cli.EnumWords(auditv1.Kind_name, "KIND_")...), "status": cli.OneOf(cli.EnumWords(auditv1.Status_name, "STATUS_")...), "writer": cli.OneOf(cli.Roles()...), "channel": cli.OneOf("cli", "desktop-ui", "api", "messaging"),
		"run-as": cli.CompleteAccounts, "executor-user": cli.CompleteAccounts, "operator": cli.CompleteAccounts,
		"since": cli.OneOf("1h", "24h", "168h"), "every": cli.OneOf("1h"), "for": cli.OneOf("15m", "1h", "2h", "8h"), "until": cli.OneOf("24h", "168h", "720h"),
		"min-interval": cli.OneOf("10s", "30s", "1m"), "older-than": cli.OneOf("30d", "90d", "365d"),
	}
	// What a person makes up, or copies: a name that is new, words, a number.
	for _, free := range []string{
		"reason", "note", "name", "text", "before", "description", "source", "served-name", "request", "operation", "cursor", "plan", "uuid", "image", "health", "unit",
		"container-user", "limit", "tail", "vram", "memory", "sleep-mib", "gpus", "port", "base-port", "container-port", "start-timeout", "stop-timeout",
		"stall-timeout", "budget-session", "budget-day", "budget-month", "uses", "arg", "set", "ssh", "margin", "variable", "path-variable",
	} {
		table[free] = none
	}
	return table
}

// argumentWords says the same of a command's arguments, by its path.
func argumentWords(a *cli.App) map[string]cobra.CompletionFunc {
	none := cobra.NoFileCompletions
	return map[string]cobra.CompletionFunc{
		"durward audit export": cli.CompleteFiles(), "durward audit receipt": cli.CompleteFiles("json"), "durward audit show": none,
		"durward audit hold add": none, "durward audit hold release": none,
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
		cmd.Flags().VisitAll(complete)
		cmd.PersistentFlags().VisitAll(complete)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

// plainUsage takes the backquotes out of what flags are said to do: help reads them as the name of the value, a shell shows them.
func plainUsage(cmd *cobra.Command) {
	plain := func(f *pflag.Flag) { f.Usage = strings.ReplaceAll(f.Usage, "`", "") }
	cmd.Flags().VisitAll(plain)
	cmd.PersistentFlags().VisitAll(plain)
	for _, sub := range cmd.Commands() {
		plainUsage(sub)
	}
}

// takesArguments reports whether a command takes any argument at all.
func takesArguments(cmd *cobra.Command) bool {
	return cmd.Args != nil && slices.ContainsFunc([][]string{{"x"}, {"x", "y"}, {"x", "y", "z"}}, func(args []string) bool { return cmd.Args(cmd, args) == nil })
}
