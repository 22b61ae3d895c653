package admin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/operator/internal/supervisor"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/rpc"
)

// correctFile is what to do about a configuration that cannot be used.
const correctFile = "Correct the file and try again."

// renewCheck is how often up looks whether a certificate has reached half its life.
const renewCheck = 10 * time.Minute

func (a *app) upCommand() *cobra.Command {
	var opts upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run Durward in this terminal until Ctrl-C",
		Long: `Runs audit, vault, executor and gateway as separate processes and stays in the foreground.

The first time it makes a folder (~/.durward) with a certificate authority, keys, configuration and an
example catalogue; after that it reuses them. It renews certificates by itself. A process that dies is
reported with its last log lines and started again. Ctrl-C stops Durward; services that it started keep
running ("durward down --services" stops those too).

With --development every process runs as you and your signing key has no passphrase: any program of
yours can approve. Without it, up asks for a passphrase when it makes the key, and services in the
catalogue need a user of their own (run_as).`,
		Example: `  durward up --development
  durward up --home /srv/durward --base-port 8430`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.up(cmd.Context(), opts) },
	}
	cmd.Flags().BoolVar(&opts.development, "development", false, "one user, a signing key without passphrase; for trying it out")
	cmd.Flags().BoolVar(&opts.prepare, "prepare", false, "make the folder with its keys and configuration, and start nothing")
	cmd.Flags().BoolVar(&opts.egress, "egress", false, "add egress, by which agents reach other hosts, to the folder for good")
	cmd.Flags().BoolVar(&opts.built, "built", false, "print that the programs were built (scripts/run.sh does)")
	cmd.Flags().StringVar(&opts.operator, "operator", "", "your name in approvals, when the folder is made (default your user name)")
	cmd.Flags().IntVar(&opts.basePort, "base-port", 0, fmt.Sprintf("first of the ports, when the folder is made (default %d)", installdir.DefaultBasePort))
	return cmd
}

type upOptions struct {
	development, built, prepare, egress bool
	operator                            string
	basePort                            int
}

func (a *app) up(ctx context.Context, opts upOptions) error {
	if a.Format == output.JSON || a.Format == output.YAML {
		return cli.Usage("What runs is told by: durward status -o "+string(a.Format), "durward up has no result to write as %s", a.Format)
	}
	bin, err := cli.OwnFolder()
	if err != nil {
		return err
	}
	release, err := a.lockUp()
	if err != nil {
		return err
	}
	defer func() { _ = release() }() // ends with this process at the latest
	if opts.built {
		a.tick("built", true)
	}
	cfg, err := a.prepare(ctx, opts)
	if err != nil {
		return a.endLine(opts.built, err)
	}
	a.tick("keys", !opts.built)
	if opts.prepare {
		command := a.Elsewhere() + " up"
		if opts.development {
			command += " --development"
		}
		a.Out.Printf("\nReady in %s. Edit %s, then: %s\n", a.Home.Dir, filepath.Dir(a.Home.Config("x")), command)
		return nil
	}
	children, err := a.children(cfg.Roles(), opts.development, bin)
	if err != nil {
		return a.endLine(true, err)
	}

	// Certificates and processes are watched side by side.
	var reporting sync.Mutex
	report := func(text string) {
		reporting.Lock()
		defer reporting.Unlock()
		a.Out.Remark("%s", a.Out.Yellow(clean.Block(text, 8000)))
	}
	supervisor, err := supervisor.New(supervisor.Config{Children: children, Ready: func(role string) { a.tick(role, false) }, Report: report})
	if err != nil {
		return a.endLine(true, cli.Failed("", "%s", err.Error()))
	}
	self, err := installdir.Self(opts.development)
	if err != nil {
		return a.endLine(true, err)
	}
	if err := a.Home.WriteProcess(self); err != nil {
		return a.endLine(true, err)
	}
	defer func() { _ = a.Home.RemoveProcess() }() // its process is gone: it says nothing to anybody

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	renewing := make(chan struct{})
	go func() {
		defer close(renewing)
		a.keepCertificates(ctx, cfg.Operator, report)
	}()
	err = supervisor.Run(ctx, func() {
		a.Out.Printf("\n")
		a.screen(ctx, cfg, opts, bin)
	})
	cancel()
	<-renewing
	if err != nil {
		return a.endLine(true, a.notStarted(err, bin))
	}
	a.Out.Printf("\nDurward has stopped; a service that still runs keeps running.\n")
	return nil
}

// notStarted is what kept a process from starting: its configuration, where its program says so, whose fault has one exit code whether a
// key of it is wrong or all of it.
func (a *app) notStarted(err error, bin string) error {
	died, ended := errors.AsType[*supervisor.DiedError](err)
	if exit, ok := errors.AsType[*exec.ExitError](err); ended && ok && exit.ExitCode() == cli.ExitUsage {
		if wrong, err := programCheck(context.Background(), filepath.Join(bin, died.Role), a.Home.Config(died.Role)); err == nil && wrong != "" {
			return cli.Usage(correctFile, "%s", wrong)
		}
	}
	return cli.Failed("The whole log is in "+filepath.Dir(a.Home.Log("x"))+".", "%s", clean.Block(err.Error(), 8000))
}

// endLine ends the line of ticks before an error is written.
func (a *app) endLine(started bool, err error) error {
	if started {
		a.Out.Printf("\n")
	}
	return err
}

func (a *app) tick(word string, first bool) {
	if !first {
		a.Out.Printf("  ")
	}
	a.Out.Printf("%s %s", a.Out.Green("✓"), word)
}

func (a *app) lockUp() (func() error, error) {
	release, err := a.Home.Lock("up")
	if errors.Is(err, installdir.ErrLocked) {
		text := "Durward is already running for " + a.Home.Dir
		if p, ok := a.Home.RunningProcess(); ok {
			text += " (process " + strconv.Itoa(p.PID) + ")"
		}
		return nil, cli.Failed("See: durward status. Stop it: durward down", "%s", text)
	}
	return release, err
}

// prepare makes what is missing and issues certificates.
func (a *app) prepare(ctx context.Context, opts upOptions) (installdir.Config, error) {
	fresh := !a.Home.Exists()
	name := cmp.Or(opts.operator, a.Home.Signer(a.Now()), installdir.OperatorName(cli.UserName()))
	if !fresh {
		cfg, err := a.Config()
		if err != nil {
			return installdir.Config{}, err
		}
		if cfg.TrustDir == install.TrustDir {
			return installdir.Config{}, cli.Failed("What runs: durward status. To try something beside it: durward up --development --home DIR --base-port 8430",
				"%s is your side of this host's installation, which systemd runs", a.Home.Dir)
		}
		if opts.operator != "" && opts.operator != cfg.Operator {
			return installdir.Config{}, cli.Usage("Edit "+a.Home.Config("operator")+" to change it.", "this installation's operator is %s", cfg.Operator)
		}
		if opts.basePort != 0 && !strings.HasSuffix(cfg.MCPURL, fmt.Sprintf(":%d/mcp", opts.basePort)) { // the same again is what it has
			return installdir.Config{}, cli.Usage("Edit the files in "+filepath.Dir(a.Home.Config("x"))+" to change ports.", "--base-port is for making a new installation; this one is there already")
		}
		name = cfg.Operator
	}
	options := installdir.Options{
		Development: opts.development, Operator: name, BasePort: opts.basePort,
		Passphrase: func() ([]byte, error) { return a.newPassphrase(ctx) },
	}
	if err := options.Check(); fresh && err != nil {
		return installdir.Config{}, cli.Usage("See: durward up --help", "%v", err)
	}
	if fresh {
		all, err := a.Home.Listeners(opts.basePort)
		if err != nil {
			return installdir.Config{}, unreadable(err)
		}
		other := cmp.Or(opts.basePort, installdir.DefaultBasePort)%60000 + 1000 // none of those that were tried
		otherwise := fmt.Sprintf("No installation was made. Choose other ports: durward up %s--base-port %d", cli.When(opts.development, "--development "), other)
		if a.Home.Runs() { // what is there says the ports
			otherwise = "Stop that program, or change the port in the files in " + filepath.Dir(a.Home.Config("x")) + "."
		}
		for _, listeners := range all {
			if err := free("Durward", listeners.Listen, listeners.HealthListen); err != nil && !opts.prepare {
				return installdir.Config{}, cli.Failed(otherwise, "%v", err)
			}
		}
	}
	if _, keyless := os.Stat(a.Home.Key("operator_ed25519")); fresh && !opts.development && keyless != nil {
		// Before anything is made: a folder without the key would be half an installation.
		asked, err := options.Passphrase()
		if errors.Is(err, signingkey.ErrNeedsHuman) {
			return installdir.Config{}, cli.Denied("Run the command at a terminal; to try things out: durward up --development",
				"your signing key is made with a passphrase, and there is no terminal to ask for one")
		}
		if err != nil {
			return installdir.Config{}, err
		}
		defer clear(asked)
		options.Passphrase = func() ([]byte, error) { return asked, nil }
	}
	_, err := a.Home.Init(options)
	if errors.Is(err, installdir.ErrLost) {
		return installdir.Config{}, cli.Failed("Put it back from a backup; a new one would be trusted by nobody. To begin anew beside it: durward up "+
			cli.When(opts.development, "--development ")+"--home DIR --base-port 8430", "%v", err)
	}
	if err != nil {
		return installdir.Config{}, err
	}
	cfg, err := a.Config()
	if err != nil {
		return installdir.Config{}, err
	}
	_, without := os.Stat(a.Home.Config("egress"))
	if opts.egress || fresh && without == nil {
		if _, err := a.Home.AddEgress(cfg); err != nil {
			return installdir.Config{}, err
		}
		if cfg, err = a.Config(); err != nil {
			return installdir.Config{}, err
		}
	}
	if !opts.development {
		protected, err := signingkey.Protected(cfg.SigningKey)
		if err != nil {
			return installdir.Config{}, err
		}
		if !protected {
			return installdir.Config{}, cli.Denied("Give it one: ssh-keygen -p -f "+cli.ShellWord(cfg.SigningKey)+"\n  or try things out with: durward up --development",
				"the signing key has no passphrase, so any program of yours could approve")
		}
	}
	if _, err := a.Home.RenewCertificates(cfg.Operator, a.Now(), false); err != nil {
		return installdir.Config{}, err
	}
	return cfg, nil
}

func (a *app) newPassphrase(ctx context.Context) ([]byte, error) {
	for {
		first, err := signingkey.AskTerminal(ctx, "New passphrase for your signing key (at least 8 characters): ")
		if err != nil {
			return nil, err
		}
		if len(first) < 8 {
			a.Out.Remark("That is shorter than 8 characters.")
			continue
		}
		second, err := signingkey.AskTerminal(ctx, "The same again: ")
		if err != nil {
			return nil, err
		}
		if bytes.Equal(first, second) {
			clear(second)
			return first, nil
		}
		a.Out.Remark("The two were not the same.")
	}
}

// children describes the processes, and refuses when one of their ports is taken.
func (a *app) children(roles []string, development bool, bin string) ([]supervisor.Child, error) {
	var children []supervisor.Child
	for _, role := range roles {
		listeners, err := installdir.ReadListeners(a.Home.Config(role))
		if err != nil {
			return nil, unreadable(err)
		}
		if err := free(role, listeners.Listen, listeners.HealthListen); err != nil {
			return nil, cli.Failed("Stop that program, or change the port in "+a.Home.Config(role)+".", "%v", err)
		}
		args := []string{"-config", a.Home.Config(role)}
		if role != "gateway" && development {
			args = append(args, "-development")
		}
		children = append(children, supervisor.Child{
			Role: role, Path: filepath.Join(bin, role), Args: args, Env: childEnvironment(a.Streams.Getenv),
			Log: a.Home.Log(role), Health: listeners.HealthListen,
		})
	}
	return children, nil
}

// free says that a process cannot listen at one of its addresses, and which program holds that.
func free(process string, addresses ...string) error {
	for _, address := range addresses {
		listener, err := rpc.Listen(address, true)
		if err == nil {
			err = listener.Close()
		}
		if err != nil {
			return fmt.Errorf("%s cannot listen: %s", process, clean.Line(err.Error(), 500))
		}
	}
	return nil
}

// childEnvironment is all that the processes inherit (ENV-1).
func childEnvironment(getenv func(string) string) []string {
	return cli.Environment(getenv, "PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR")
}

// unreadable is an error of installdir's as users meet it: a file that cannot be used is wrong usage.
func unreadable(err error) error {
	if _, system := errors.AsType[*fs.PathError](err); system {
		return err
	}
	return cli.Usage(correctFile, "%v", err)
}

// keepCertificates renews certificates at half their life until ctx ends, and reports when it cannot.
func (a *app) keepCertificates(ctx context.Context, operator string, report func(string)) {
	for clock.SleepAwake(ctx, renewCheck, a.Now) {
		if _, err := a.Home.RenewCertificates(operator, a.Now(), false); err != nil {
			report("certificates could not be renewed: " + err.Error())
		}
	}
}

// screen is what a person reads once everything runs.
func (a *app) screen(ctx context.Context, cfg installdir.Config, opts upOptions, bin string) {
	if opts.development {
		a.Out.Printf("%s\n", a.Out.Yellow("DEVELOPMENT: every process runs as you; any program of yours can approve. See SECURITY.md."))
	} else {
		a.Out.Printf("%s\n", a.Out.Yellow("ONE USER: every process runs as you; your key's passphrase is what stands between your programs and an approval. See SECURITY.md."))
	}
	gpus, services := a.hostWords(ctx)
	a.Out.Printf("GPUs   %s\n", gpus)
	a.Out.Printf("MCP    %s\n", cfg.MCPURL)
	command := a.Elsewhere()
	next, ask := "Next  ", "what runs on my GPUs?"
	switch {
	case a.Home.IsExampleCatalog():
		ask += " start the demo chat service"
	case services == 0:
		a.Out.Printf("%s %s catalog import -h     to take over what this host runs already; catalog add describes it\n", next, command)
		next = "      "
	}
	a.Out.Printf("%s %s client connect claude-code     then ask: %q\n", next, command, ask)
	a.Out.Printf("       %s approvals\n", command)
	a.Out.Printf("       %s watch\n", command)
	a.Out.Printf("       %s audit search\n", command)
	a.Out.Printf("       %s notify install     to be told on your desktop or phone when something waits\n", command)
	if !onPath(bin, a.Streams.Getenv("PATH")) {
		a.Out.Printf("%s\n", a.Out.Dim("       (durward is not on your PATH yet: export PATH="+cli.ShellWord(bin)+":$PATH)"))
	}
}

func onPath(folder, path string) bool {
	return slices.ContainsFunc(filepath.SplitList(path), func(entry string) bool {
		real, err := filepath.EvalSymlinks(entry)
		return err == nil && real == folder
	})
}

// hostWords says what GPUs there are and where that is known from, by the executor's own words, and how many services it knows.
func (a *app) hostWords(ctx context.Context) (gpus string, services uint32) {
	var status *executorv1.GetStatusResponse
	err := a.Run(ctx, func(ctx context.Context, s *cli.Session) (err error) {
		status, err = s.Executor.GetStatus(ctx, &executorv1.GetStatusRequest{})
		return err
	})
	if err != nil {
		return "unknown: " + clean.Line(err.Error(), 200), 0
	}
	a.RequestID = ""
	return cli.GPUWords(status.GetGpuSource(), status.GetGpus(), a.Home.IsExampleCatalog(), cli.DriverFound()), status.GetServicesTotal()
}
