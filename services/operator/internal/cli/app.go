// Package cli holds what the groups of commands below it share: connecting, asking, signing, completion and output. It has no
// commands. The groups import it and never each other; package root alone knows them all.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/downstream/inforce"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/trust"
)

// Exit codes; `durward help exit-codes` explains them.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitUnreachable = 3
	ExitDenied      = 4
)

// Groups of commands, as the help lists them.
const (
	GroupRun      = "run"
	GroupDecide   = "decide"
	GroupServices = "services"
	GroupHost     = "host"
	GroupHistory  = "history"
	GroupAccess   = "access"
)

// Grouped puts commands into a group of the help.
func Grouped(group string, commands ...*cobra.Command) []*cobra.Command {
	for _, c := range commands {
		c.GroupID = group
	}
	return commands
}

// Streams are the program's surroundings.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Getenv   func(string) string
	// Version is this program's.
	Version string
}

// App is one run of the command.
type App struct {
	Streams Streams
	HomeDir string
	// Format is how results are written.
	Format output.Format
	Out    *output.Printer
	Home   installdir.Home
	Now    func() time.Time
	// RequestID is the id of this run's last call, for error messages.
	RequestID string
	// Flags are those of the command that runs; nil before it is known.
	Flags *pflag.FlagSet
	// pinned: the pinned tools were read.
	pinned bool
	// gathered keeps results that are part of another; nil: they are written.
	gathered *[]any
}

// fieldOf annotates a flag with the field of a call that it becomes, where the two have different names.
const fieldOf = "field"

// NameField says which field of a call a flag becomes, so that what is refused of the field is said of the flag.
func NameField(flags *pflag.FlagSet, flag, field string) {
	_ = flags.SetAnnotation(flag, fieldOf, []string{field})
}

// asTyped is what a person typed for a field of a call: the flag that became it, or else the field.
func (a *App) asTyped(field string) string {
	typed := field
	if a.Flags != nil {
		a.Flags.Visit(func(f *pflag.Flag) {
			if strings.ReplaceAll(f.Name, "-", "_") == field || slices.Contains(f.Annotations[fieldOf], field) {
				typed = "--" + f.Name
			}
		})
	}
	return typed
}

// TakesFiles annotates a command with subcommands that takes the path of a model in their place.
const TakesFiles = "takes-files"

// Config reads the operator's configuration.
func (a *App) Config() (installdir.Config, error) {
	if !a.Home.Exists() {
		next := "Make one: durward up --development"
		if install.OnHost() {
			next = "Durward is installed on this host: durward join makes your side of it"
		}
		return installdir.Config{}, Failed(next, "there is no Durward installation in %s", clean.Visible(a.Home.Dir))
	}
	cfg, err := a.Home.Load()
	if errors.Is(err, installdir.ErrUnusable) {
		return installdir.Config{}, err
	}
	if err != nil {
		return installdir.Config{}, Usage("Correct the file and try again.", "%s", clean.Block(err.Error(), 2000))
	}
	a.pin(cfg)
	return cfg, nil
}

// pin makes the tools known that people accepted of other people's MCP servers, by this program's own reading of what they signed. The vault,
// the gateway and egress hold arguments to the tools' schemas, each by itself; here a human reads them.
func (a *App) pin(cfg installdir.Config) {
	if a.pinned {
		return
	}
	a.pinned = true
	inforce.Open(context.Background(), inforce.Config{
		Folder: cfg.ServersDir(), TrustDir: cfg.TrustDir, Unconfined: true, Compiler: unchecked, Logger: slog.New(slog.DiscardHandler),
	})
}

// unchecked is a downstream.Compiler that compiles nothing: what this program sends or signs, those check that act on it. A human reads it here.
func unchecked(any) (func(any) error, error) { return func(any) error { return nil }, nil }

// Session is an open connection to the processes.
type Session struct {
	*peers.Peers
	Config installdir.Config
	// parting warns of dangerous mode before the connections end; nil where nobody looks.
	parting func(*Session)
}

// Connect opens the connections. The context carries the request id of everything that this run asks for.
func (a *App) Connect(ctx context.Context) (context.Context, *Session, error) {
	cfg, err := a.Config()
	if err != nil {
		return ctx, nil, err
	}
	p, err := peers.Open(ctx, cfg)
	if err != nil {
		return ctx, nil, Failed(a.Renewal(), "%s", clean.Block(err.Error(), 500))
	}
	a.RequestID = rpc.NewRequestID()
	return rpc.WithRequestID(ctx, a.RequestID), &Session{p, cfg, a.warnOfDanger}, nil
}

// MendTrust says what to do where the trust folder cannot be read.
func MendTrust(dir string) string {
	return "Mend it, or put the folder back from a copy: " + ShellWord(dir)
}

// Renewal says how certificates are renewed; where it is the trust folder that cannot be read, what to do about that.
func (a *App) Renewal() string {
	if cfg, err := a.Config(); err == nil {
		if _, err := trust.Read(cfg.TrustDir); err != nil {
			return MendTrust(cfg.TrustDir)
		}
	}
	if a.Home.Runs() {
		return "Certificates are renewed while durward up runs, or with: durward cert renew"
	}
	if install.InContainers() {
		return "Certificates are renewed by the service renew, at once with: docker compose restart renew"
	}
	return "Certificates are renewed by a timer, or with: sudo durward renew"
}

// Run calls f with connections, and closes them.
func (a *App) Run(ctx context.Context, f func(context.Context, *Session) error) error {
	ctx, s, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	return f(ctx, s)
}

// Connected makes a command's function of one that needs connections, and the command's arguments alone.
func (a *App) Connected(f func(context.Context, *Session, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.Run(cmd.Context(), func(ctx context.Context, s *Session) error { return f(ctx, s, args) })
	}
}

// Configured makes a command's function of one that needs the configuration, and the command's arguments.
func (a *App) Configured(f func(context.Context, installdir.Config, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cfg, err := a.Config()
		if err != nil {
			return err
		}
		return f(cmd.Context(), cfg, args)
	}
}

// Asked makes a command's function of a question to the processes, whose answer is the result, and of what prints it.
func Asked[T proto.Message](a *App, ask func(context.Context, *Session, []string) (T, error), text func(T)) func(*cobra.Command, []string) error {
	return a.Connected(func(ctx context.Context, s *Session, args []string) error {
		answer, err := ask(ctx, s, args)
		if err != nil {
			return err
		}
		return a.Show(answer, func() { text(answer) })
	})
}

// NoHome annotates a command that needs no home folder.
const NoHome = "durward/no-home"

// Machine reports whether a program reads this command's result.
func (a *App) Machine() bool { return a.Format.Machine() }

// ShowLine is Show for one object of a stream.
func (a *App) ShowLine(value any, text func()) error { return a.show(value, true, text) }

// Show writes a result: the value as -o asks for it, a message by its protocol's names, and otherwise what text prints.
func (a *App) Show(value any, text func()) error { return a.show(value, false, text) }

// Gathered returns what do shows to programs, which becomes part of a result, so that the command writes one document. People see it at once.
func (a *App) Gathered(do func() error) (results []any, err error) {
	a.gathered = &results
	defer func() { a.gathered = nil }()
	err = do()
	return results, err
}

func (a *App) show(value any, stream bool, text func()) error {
	switch {
	case !a.Machine():
		text()
	case a.gathered != nil:
		*a.gathered = append(*a.gathered, value)
	default:
		if err := a.Out.Write(a.Format, value, stream); err != nil {
			return err
		}
	}
	if stream {
		return a.Out.Failed() // or it would go on for nobody
	}
	return nil
}

// Close ends the connections; an error in doing so changes nothing for anybody.
func (s *Session) Close() {
	if s.parting != nil {
		s.parting(s)
	}
	_ = s.Peers.Close()
}

// Elsewhere is how this installation's durward is called in another terminal or by another program, which may not have this one's
// variables.
func (a *App) Elsewhere() string {
	if a.HomeDir == "" && a.Streams.Getenv("DURWARD_HOME") == "" {
		return "durward"
	}
	return "durward --home " + ShellWord(a.Home.Dir)
}

// Typed is how this installation's durward is called again in this terminal: typed without --home, a command would act on another one.
func (a *App) Typed() string {
	if a.HomeDir == "" {
		return "durward"
	}
	return "durward --home " + ShellWord(a.HomeDir)
}

// OwnFolder is where this program lies, and with it the programs of the processes.
func OwnFolder() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	return filepath.Dir(self), nil
}

// Environment is what these variables say, as a program that is started gets it: those that are not empty (ENV-1).
func Environment(getenv func(string) string, names ...string) (env []string) {
	for _, name := range names {
		if value := getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// UserName is the name of the Unix user.
func UserName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

// StatusPatience bounds each question that status asks.
const StatusPatience = 2 * time.Second
