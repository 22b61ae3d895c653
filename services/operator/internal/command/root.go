// Package command is the durward command: one file for each noun, each command short: read, ask, show, act.
//
// It runs as the operator, at the operator's terminal or in the operator's scripts. It believes the files of the home
// folder and what the executor says of itself; what agents, clients and the vault say is shown, made visible, and signed
// only after its digests were computed here.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/home"
	"durward.internal/services/operator/internal/keys"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
)

// Exit codes; `durward help exit-codes` explains them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitDenied      = 4
)

// Streams are the program's surroundings.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Getenv   func(string) string
	// Version is this program's.
	Version string
}

// app is one run of the command.
type app struct {
	streams Streams
	homeDir string
	json    bool
	out     *output.Printer
	home    home.Home
	now     func() time.Time
	// requestID is the id of this run's last call, for error messages.
	requestID string
}

// problem is an error with an exit code and what to do next.
type problem struct {
	code int
	text string
	next string
}

func (p *problem) Error() string { return p.text }

func failed(next, format string, args ...any) error {
	return &problem{exitFailed, fmt.Sprintf(format, args...), next}
}

func usage(next, format string, args ...any) error {
	return &problem{exitUsage, fmt.Sprintf(format, args...), next}
}

func unreachable(next, format string, args ...any) error {
	return &problem{exitUnreachable, fmt.Sprintf(format, args...), next}
}

func denied(next, format string, args ...any) error {
	return &problem{exitDenied, fmt.Sprintf(format, args...), next}
}

// Main runs the command and returns its exit code.
func Main(ctx context.Context, args []string, streams Streams) int {
	a := &app{streams: streams, now: time.Now}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	return a.explain(err)
}

// explain writes an error as one plain sentence, what to do next and the request id, and returns the exit code.
func (a *app) explain(err error) int {
	var p *problem
	if !errors.As(err, &p) {
		p = a.translate(err)
	}
	line := "durward: " + p.text
	if a.requestID != "" && p.code != exitUsage {
		line += " [" + a.requestID + "]"
	}
	_, _ = fmt.Fprintln(a.streams.Err, line)
	if p.next != "" {
		_, _ = fmt.Fprintln(a.streams.Err, "  "+p.next)
	}
	return p.code
}

// translate turns an error from elsewhere into a sentence for a person.
func (a *app) translate(err error) *problem {
	var f *fault.Error
	switch {
	case errors.Is(err, keys.ErrNeedsHuman):
		return &problem{exitDenied, keys.ErrNeedsHuman.Error(), "Run the command at a terminal, or load the key into ssh-agent."}
	case errors.Is(err, keys.ErrPassphrase):
		return &problem{exitDenied, keys.ErrPassphrase.Error(), "Try again."}
	case errors.As(err, &f):
		return translateFault(f)
	case errors.Is(err, context.Canceled):
		return &problem{exitFailed, "interrupted", ""}
	default:
		// Whatever remains is this program's own: its files, its arguments.
		return &problem{exitFailed, clean.Block(err.Error(), 2000), ""}
	}
}

func translateFault(f *fault.Error) *problem {
	text := f.Message
	if f.Field != "" && !strings.Contains(text, f.Field) {
		text = f.Field + ": " + text
	}
	next := ""
	if len(f.DidYouMean) > 0 {
		next = "Did you mean " + strings.Join(f.DidYouMean, ", ") + "?"
	}
	switch f.Code {
	case callv1.Code_CODE_UNAVAILABLE, callv1.Code_CODE_TIMEOUT:
		return &problem{exitUnreachable, text, orElse(next, "See which process is down: durward status")}
	case callv1.Code_CODE_AUDIT_UNAVAILABLE:
		return &problem{exitUnreachable, text, orElse(next, "Nothing is done that cannot be recorded. See: durward status")}
	case callv1.Code_CODE_DENIED, callv1.Code_CODE_UNAUTHENTICATED, callv1.Code_CODE_PROOF_REQUIRED:
		return &problem{exitDenied, text, next}
	case callv1.Code_CODE_HALTED:
		return &problem{exitDenied, text, orElse(next, "End the halt: durward resume")}
	case callv1.Code_CODE_INVALID_ARGUMENT:
		return &problem{exitUsage, text, next}
	case callv1.Code_CODE_NOT_FOUND:
		return &problem{exitFailed, text, next}
	case callv1.Code_CODE_PLAN_CHANGED:
		return &problem{exitFailed, text, orElse(next, "Nothing was done. See what would be done now: durward simulate MODE")}
	case callv1.Code_CODE_DOES_NOT_FIT:
		return &problem{exitFailed, text, orElse(next, "See what holds memory: durward gpu")}
	case callv1.Code_CODE_INTERNAL:
		return &problem{exitFailed, text, orElse(next, "The cause is in the log of the process under the request id: ~/.durward/logs")}
	default:
		return &problem{exitFailed, text, next}
	}
}

func orElse(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}

const longHelp = `durward is the human's side of Durward, which lets AI agents manage this machine's services
while a person keeps the last word.

An agent may look by itself. What it wants to change waits here until you approve it with your own
signing key, and everything is recorded in a log that can be proved.

  durward up --development          run everything in this terminal, for trying it out
  durward client connect claude-code
  durward approvals                 what waits for you
  durward approve K7F3              look at it whole, sign, let it happen
  durward watch                     services, GPU memory and running steps, live
  durward simulate coding           what a switch of modes would do, and whether it fits
  durward audit search              what happened

Every command that reads takes --json. "durward help exit-codes" explains the exit codes.`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "durward",
		Short:         "The human's side of Durward",
		Long:          longHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) (err error) {
			a.out = output.New(a.streams.Out, a.streams.Err, a.json, a.streams.Getenv)
			a.home, err = home.At(a.homeDir)
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVar(&a.homeDir, "home", "", "folder of this installation (default ~/.durward)")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "write results as JSON")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("See: "+cmd.CommandPath()+" -h", "%v", err)
	})
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Running it:"},
		&cobra.Group{ID: "decide", Title: "Deciding:"},
		&cobra.Group{ID: "services", Title: "Services:"},
		&cobra.Group{ID: "host", Title: "The GPU host:"},
		&cobra.Group{ID: "history", Title: "History:"},
		&cobra.Group{ID: "access", Title: "Who may do what:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("run", a.upCommand(), a.downCommand(), a.statusCommand(), a.doctorCommand(), a.panicCommand(), a.resumeCommand())
	add("run", a.installCommand(), a.joinCommand(), a.renewCommand())
	add("decide", a.approvalsCommand(), a.approveCommand(), a.denyCommand(), a.tuiCommand())
	add("decide", a.standingCommand(), a.dangerousCommand(), a.muteCommand(), a.sessionsCommand())
	add("services", a.serviceListCommand("services", "ls"), a.serviceCommand())
	for _, v := range verbs {
		add("services", a.actCommand(v))
	}
	add("services", a.logsCommand())
	add("host", a.modeCommand(), a.simulateCommand(), a.switchCommand(), a.switchesCommand(), a.modelCommand(), a.gpuCommand(), a.watchCommand(),
		a.catalogCommand())
	add("history", a.auditCommand())
	add("access", a.configCommand(), a.policyCommand())
	add("access", a.clientCommand(), a.operatorCommand(), a.certCommand(), a.mcpCommand())
	root.AddCommand(a.versionCommand(), exitCodesTopic())
	checkArguments(root)
	a.completeRest(root)
	return root
}

// takesFiles annotates a command with subcommands that takes the path of a model in their place.
const takesFiles = "takes-files"

// checkArguments makes the wrong number of arguments, and unknown subcommands, a usage error of every command.
func checkArguments(cmd *cobra.Command) {
	inner := cmd.Args
	if inner == nil {
		inner = cobra.NoArgs
	}
	cmd.Args = func(c *cobra.Command, args []string) error {
		_, files := c.Annotations[takesFiles]
		if c.HasSubCommands() && len(args) > 0 && (!files || !isModelPath(args[0])) {
			next := "See: " + c.CommandPath() + " -h"
			if near := config.Suggest(args[0], names(c)); len(near) > 0 {
				next = "Did you mean " + strings.Join(near, ", ") + "?"
			} else if show, _, err := c.Find([]string{"show"}); err == nil && show != c {
				next = "To look at one: " + show.CommandPath() + " " + clean.Visible(args[0])
			}
			return usage(next, "%s has no command %q", c.CommandPath(), clean.Visible(args[0]))
		}
		if err := inner(c, args); err != nil {
			return usage("Usage: "+c.UseLine(), "%v", err)
		}
		return nil
	}
	if cmd.HasSubCommands() && cmd.RunE == nil && cmd.Run == nil {
		cmd.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	for _, sub := range cmd.Commands() {
		checkArguments(sub)
	}
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

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.out.Value(map[string]string{"version": a.streams.Version})
			}
			a.out.Printf("durward %s\n", a.streams.Version)
			return nil
		},
	}
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

// config reads the operator's configuration.
func (a *app) config() (home.Config, error) {
	if !a.home.Exists() {
		return home.Config{}, failed("Make one: durward up --development", "there is no Durward installation in %s", a.home.Dir)
	}
	cfg, err := a.home.Load()
	if err != nil {
		return home.Config{}, usage("Correct the file and try again.", "%s", clean.Block(err.Error(), 2000))
	}
	return cfg, nil
}

// session is an open connection to the processes.
type session struct {
	*peers.Peers
	cfg home.Config
	// parting warns of dangerous mode before the connections end; nil where nobody looks.
	parting func(*session)
}

// connect opens the connections. The context carries the request id of everything that this run asks for.
func (a *app) connect(ctx context.Context) (context.Context, *session, error) {
	cfg, err := a.config()
	if err != nil {
		return ctx, nil, err
	}
	p, err := peers.Open(cfg)
	if err != nil {
		return ctx, nil, failed("Certificates are renewed while durward up runs, or with: durward cert renew", "%s", clean.Block(err.Error(), 500))
	}
	a.requestID = rpc.NewRequestID()
	return rpc.WithRequestID(ctx, a.requestID), &session{p, cfg, a.warnOfDanger}, nil
}

// close ends the connections; an error in doing so changes nothing for anybody.
func (s *session) close() {
	if s.parting != nil {
		s.parting(s)
	}
	_ = s.Close()
}

// ownFolder is where this program lies, and with it the programs of the processes.
func ownFolder() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	return filepath.Dir(self), nil
}

// userName is the name of the Unix user.
func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}
