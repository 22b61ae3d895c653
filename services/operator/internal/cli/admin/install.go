package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/pty"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/health"
)

type installOptions struct {
	apply, dryRun    bool
	root, programs   string
	operators        []string
	signingKey       string
	settings         install.Settings
	changed          func(flag string) bool
	startingPatience time.Duration
	// command is the whole command line, of which completion files and manual pages are made.
	command *cobra.Command
}

const signingKeyUsage = "OpenSSH key `file` that is there already: a protected private key, or a .pub file whose key ssh-agent or a security key holds"

func (a *app) installCommand() *cobra.Command {
	opts := installOptions{startingPatience: 30 * time.Second}
	cmd := &cobra.Command{
		Use:   "install --dry-run | --apply",
		Short: "Lay Durward out on this host as it is meant to be run",
		Long: `Makes a Unix user for each process, /etc/durward with keys, trust roots and configuration, Unix sockets
between the processes, hardened units for systemd, and a timer that renews certificates; then starts it all.
What an agent's user can reach of it afterwards is the gateway's port.

--dry-run prints every step and changes nothing; where Durward is installed already it needs root too, to see
how things are. --apply does the steps and prints each. A second run changes nothing. Files that a human has edited are kept, and settings of
an earlier run hold until they are given anew.

Operators are people's Unix users: they enter the group durward-operators, get a certificate and, in
~/.durward, their configuration and a signing key with a passphrase. Root's own ~/.durward is for sudo durward
client and sudo durward operator. An installation that durward up made there before is set aside whole, in
~/.durward-aside. Rules (trust, clients, catalogue) are root's to change.

Where the package durward is installed, programs, units, manual pages and completion files are its own; an
installation that had laid them out before goes over to it, and keeps its keys, state and settings.`,
		Example: `  durward install --dry-run
  sudo durward install --apply
  sudo durward install --apply --operator alice --signing-key /home/alice/.ssh/id_ed25519_sk.pub`,
		Annotations: map[string]string{cli.NoHome: ""}, // what systemd starts has none, such as an unattended upgrade of the package
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.command, opts.changed = cmd.Root(), cmd.Flags().Changed
			return a.install(cmd.Context(), opts)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&opts.apply, "apply", false, "do it")
	flags.BoolVar(&opts.dryRun, "dry-run", false, "print every step and change nothing")
	flags.StringVar(&opts.root, "root", "/", "lay it out below this `folder`, an image's root, and start nothing")
	flags.StringVar(&opts.programs, "programs", "", "`folder` of the built programs (default this program's)")
	flags.StringArrayVar(&opts.operators, "operator", nil, "Unix `user` of a person who is to approve; may be repeated (default who called sudo)")
	flags.StringVar(&opts.signingKey, "signing-key", "", signingKeyUsage)
	flags.IntVar(&opts.settings.Port, "port", install.DefaultPort, "where agents connect, on 127.0.0.1")
	flags.BoolVar(&opts.settings.HealthOnLoopback, "health-on-loopback", false, "health and metrics on ports of 127.0.0.1, for every program here")
	flags.BoolVar(&opts.settings.Docker, "docker", false, "let the executor use the Docker Engine: whoever holds the executor then is root in all but name")
	flags.BoolVar(&opts.settings.ProcessDriver, "process-driver", false, "let the executor start services by itself, as other users: takes hardening from its unit")
	flags.BoolVar(&opts.settings.Relay, "relay", false, "add auditrelay, which dials the witnesses and collectors in its file: durward-auditrelay.service")
	flags.BoolVar(&opts.settings.Egress, "egress", false, "add egress, which reaches other hosts for agents: durward-egress.service")
	flags.BoolVar(&opts.settings.Witness, "witness", false, "add auditwitness, which cosigns the log on this host, and the relay to it: durward-auditwitness.service")
	flags.BoolVar(&opts.settings.Containers, "containers", false, "for processes in containers: what the service setup of deploy/compose runs")
	flags.BoolVar(&opts.settings.Firewall, "firewall", false, "have nftables refuse what comes to Durward's ports from elsewhere, in a table of its own: durward-firewall.service")
	return cmd
}

func (a *app) install(ctx context.Context, opts installOptions) error {
	if opts.apply == opts.dryRun {
		return cli.Usage("See: durward install -h", "give one of --dry-run and --apply")
	}
	if opts.apply && os.Geteuid() != 0 {
		return cli.Denied("Run it with sudo.", "only root can make users and give files to them")
	}
	plan, err := a.planInstall(opts)
	if err != nil {
		return err
	}
	if opts.apply && filepath.Clean(opts.root) == "/" && plan.First && !plan.Containers() {
		if err := free("the gateway", plan.Address()); err != nil {
			return cli.Failed("Nothing was changed. End that program (durward down, where Durward is tried there), or choose another port: --port 8430", "%v", err)
		}
	}
	if opts.dryRun {
		return a.Show(map[string]any{"steps": plan.Steps, "effects": plan.Effects()}, func() {
			for _, s := range plan.Steps {
				a.step(s)
			}
			if plan.Effects() == 0 {
				a.Out.Printf("Everything is as it should be.\n")
			} else {
				a.Out.Printf("%s would change something. For that, the same command with sudo, and --apply in the place of --dry-run\n", clean.Count(plan.Effects(), "step"))
			}
		})
	}
	var done []install.Step
	err = plan.Apply(ctx, func(s install.Step) {
		done = append(done, s)
		if !a.Machine() {
			a.step(s)
		}
	})
	if err != nil {
		return cli.Failed("What was done stays; correct it and run the command again.", "%s", clean.Block(err.Error(), 4000))
	}
	if err := a.Show(map[string]any{"steps": done, "effects": plan.Effects()}, func() {}); err != nil {
		return err
	}
	if filepath.Clean(opts.root) != "/" || plan.Containers() {
		return nil
	}
	return a.awaitInstalled(ctx, plan, opts.startingPatience)
}

// planInstall takes the settings of an earlier run for what is not given.
func (a *app) planInstall(opts installOptions) (*install.Plan, error) {
	root, err := filepath.Abs(opts.root)
	if err != nil {
		return nil, cli.Usage("", "%v", err)
	}
	record, err := install.ReadRecord(root)
	if errors.Is(err, os.ErrPermission) {
		return nil, cli.Denied("sudo durward install --dry-run", "what is installed here can be read by root and operators alone")
	}
	if err != nil {
		return nil, err
	}
	if opts.settings.Witness && !opts.changed("relay") {
		opts.settings.Relay = true
	}
	settings := opts.settings
	if record.Installed() {
		settings = record.Settings
		for flag, take := range map[string]func(){
			"port":               func() { settings.Port = opts.settings.Port },
			"health-on-loopback": func() { settings.HealthOnLoopback = opts.settings.HealthOnLoopback },
			"docker":             func() { settings.Docker = opts.settings.Docker },
			"process-driver":     func() { settings.ProcessDriver = opts.settings.ProcessDriver },
			"relay":              func() { settings.Relay = opts.settings.Relay },
			"firewall":           func() { settings.Firewall = opts.settings.Firewall },
			"egress":             func() { settings.Egress = opts.settings.Egress },
			"containers":         func() { settings.Containers = opts.settings.Containers },
			"witness": func() {
				settings.Witness, settings.Relay = opts.settings.Witness, settings.Relay || opts.settings.Relay
			},
		} {
			if opts.changed(flag) {
				take()
			}
		}
	}
	operators := opts.operators
	nobody := len(operators) == 0 && len(record.Operators) == 0
	if sudoer := a.Streams.Getenv("SUDO_USER"); nobody && sudoer != "root" && sudoer != "" {
		operators, nobody = []string{sudoer}, false
	}
	if nobody {
		return nil, cli.Usage("Name their Unix user: --operator alice", "nobody could approve anything: there is no operator")
	}
	given := map[string]string{}
	if opts.signingKey != "" {
		if len(operators) != 1 || !filepath.IsAbs(opts.signingKey) {
			return nil, cli.Usage("", "--signing-key takes an absolute path, and goes with one --operator")
		}
		if _, err := os.Lstat(opts.signingKey); root == "/" && errors.Is(err, os.ErrNotExist) { // an image's own links lead elsewhere
			return nil, cli.Usage("Without --signing-key a new key is made.", "there is no key file %s", clean.Visible(opts.signingKey))
		}
		given[operators[0]] = opts.signingKey
	}
	programs := opts.programs
	if programs == "" {
		if programs, err = cli.OwnFolder(); err != nil {
			return nil, err
		}
	}
	papers, err := documents(opts.command, a.Streams.Version)
	if err != nil {
		return nil, err
	}
	plan, err := install.New(install.Options{
		Documents: papers,
		Settings:  settings, Root: root, Programs: programs, Operators: operators, SigningKeys: given,
		Command: runProgram, Join: a.joinAs, Accept: a.acceptKey, Now: a.Now,
	})
	if errors.Is(err, os.ErrPermission) {
		return nil, cli.Denied("sudo durward install --dry-run", "what is installed here can be seen by root alone")
	}
	if err != nil {
		return nil, cli.Failed("", "%s", clean.Block(err.Error(), 2000))
	}
	return plan, nil
}

// step writes one step.
func (a *app) step(s install.Step) {
	verb := fmt.Sprintf("%-6s", s.Verb)
	switch s.Verb {
	case install.Same:
		verb = a.Out.Dim(verb)
	case install.Keep:
		verb = a.Out.Yellow(verb)
	default:
		verb = a.Out.Green(verb)
	}
	line := verb + "  " + clean.Visible(s.What)
	if s.Note != "" {
		line += "  " + a.Out.Dim("("+clean.Line(s.Note, 500)+")")
	}
	a.Out.Printf("%s\n", line)
}

// awaitInstalled waits until every process says that it is well.
func (a *app) awaitInstalled(ctx context.Context, plan *install.Plan, patience time.Duration) error {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	deadline := time.Now().Add(patience)
	for _, role := range plan.Serving() {
		for {
			if ok, _ := health.Healthy(ctx, client, plan.Health(role), role); ok {
				break
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if time.Now().After(deadline) {
				return cli.Failed("journalctl -u durward-"+role, "%s was not well within %s", role, patience)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	if !a.Machine() {
		a.Out.Printf("%s audit, vault, executor%s and gateway are well. Agents connect at %s\n", a.Out.Green("✓"), cli.When(slices.Contains(plan.Serving(), "egress"), ", egress"), plan.MCPURL())
		if aside := plan.Aside; len(aside) > 0 {
			a.Out.Printf("From now on durward means this host's installation. What was tried before is kept, with clients of its own:\n")
			for _, dir := range aside {
				a.Out.Printf("  durward --home %s\n", cli.ShellWord(dir))
			}
		}
		if plan.Effects() > 0 {
			a.Out.Printf("Run agents as a user who is neither root nor an operator (%s): what runs as an operator's user\n"+
				"looks at everything and halts as the operator does. Only the signing key approves.\n", strings.Join(plan.Operators, ", "))
		}
	}
	return nil
}

// systemFolders are where the host's own programs lie; the environment's PATH has no say.
var systemFolders = []string{"/usr/bin", "/usr/sbin", "/bin", "/sbin"}

// runProgram runs a program of the host.
func runProgram(ctx context.Context, program string, args ...string) error {
	for _, folder := range systemFolders {
		path := filepath.Join(folder, program)
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
			continue
		}
		cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // one of a few, with arguments of ours
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, clean.Line(string(bytes.TrimSpace(said)), 500))
		}
		return nil
	}
	return fmt.Errorf("this host has no %s", program)
}

// joined is what join writes as JSON.
type joined struct {
	Operator  string `json:"operator"`
	Home      string `json:"home"`
	PublicKey string `json:"public_key"`
	// KeyFile is where the signing key lies, KeySince when it was last written.
	KeyFile  string    `json:"key_file,omitempty"`
	KeySince time.Time `json:"key_since,omitzero"`
	// Aside is where the installation lies now that was in the home before.
	Aside string `json:"set_aside,omitempty"`
}

// joinAs runs `durward join` as the Unix user, so that root writes nothing where another user could lay a trap for it.
func (a *app) joinAs(ctx context.Context, who install.Member) (install.Key, error) {
	args := []string{"join", "--json", "--home", filepath.Join(who.Home, ".durward"), "--operator", who.Operator}
	if who.SigningKey != "" {
		args = append(args, "--signing-key", who.SigningKey)
	}
	if who.Without {
		args = append(args, "--no-key")
	}
	cmd := exec.CommandContext(ctx, install.ProgramIn(who.Root), args...) //nolint:gosec // the program that was just installed
	credential := &syscall.Credential{Uid: number(who.UID), Gid: number(who.GID)}
	for _, gid := range who.Groups {
		credential.Groups = append(credential.Groups, number(gid))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	if who.Root != "/" {
		cmd.SysProcAttr.Chroot = who.Root
	}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + who.Home, "TERM=dumb"}
	var out bytes.Buffer
	cmd.Stdout = &out
	// What it says besides is for the person at the terminal, whom it asks for a passphrase. The user's other programs can take over this
	// one: it does not get root's terminal, at which root is asked about its key afterwards.
	said, err := pty.Run(cmd, a.Streams.In, a.Streams.Err)
	var j joined
	unread := json.Unmarshal(out.Bytes(), &j)
	key := install.Key{Public: []byte(j.PublicKey), File: j.KeyFile, Since: j.KeySince, Aside: j.Aside}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == cli.ExitDenied:
		return key, install.ErrNoKey
	case err != nil:
		return key, fmt.Errorf("durward join: %w: %s", err, clean.Line(said, 500))
	case unread != nil:
		return key, fmt.Errorf("durward join: %w", unread)
	}
	return key, nil
}

// number is a user's or group's number, which passwd(5) and group(5) hold to 32 bits. One that is none becomes nobody's.
func number(n int) uint32 {
	if n < 0 || n >= math.MaxUint32 {
		return math.MaxUint32 - 1
	}
	return uint32(n)
}

// acceptKey asks root whether a key may approve that it has not named with --signing-key. What is said of the key is the word
// of a program of the operator's user: the fingerprint is what counts.
func (a *app) acceptKey(ctx context.Context, who install.Member, key install.Key, fingerprint string) error {
	a.Display().Printf("%s would approve with the key %s\n  in %s, written %s. Every program of the user %s could have put it there:\n"+
		"  compare it with what %s says it is (ssh-keygen -lf KEYFILE.pub).\n",
		clean.Visible(who.Operator), fingerprint, clean.Visible(clean.Line(key.File, 500)), key.Since.Format("2006-01-02 15:04 MST"), clean.Visible(who.Name), clean.Visible(who.Name))
	if err := a.Confirm(ctx, "May it approve?", false); err != nil {
		return install.ErrNoKey // nobody could be asked, or said no: the operator is told how to go on
	}
	return nil
}

func (a *app) joinCommand() *cobra.Command {
	var operator, signingKey string
	var without bool
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Make your own side of this host's installation",
		Long: `For an operator of a host on which Durward was installed (durward install): makes ~/.durward with the
configuration that finds the processes, and a signing key with a passphrase unless you have one. What durward up
made there before is set aside whole, in ~/.durward-aside. Run it as yourself. Root then lets the key
approve: sudo durward operator add NAME KEYFILE.pub`,
		Example: "  durward join\n  durward join --signing-key ~/.ssh/id_ed25519_sk.pub",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.join(cmd.Context(), operator, signingKey, without)
		},
	}
	cmd.Flags().StringVar(&operator, "operator", "", "your name in approvals (default your user name)")
	cmd.Flags().StringVar(&signingKey, "signing-key", "", signingKeyUsage)
	cmd.Flags().BoolVar(&without, "no-key", false, "make no signing key: for root, who changes rules and approves nothing")
	return cmd
}

func (a *app) join(ctx context.Context, operator, signingKey string, without bool) error {
	record, err := install.ReadRecord("/")
	if errors.Is(err, os.ErrPermission) {
		return cli.Denied("Ask for it: sudo durward install --apply --operator "+cli.UserName()+". Groups count from the next login on.",
			"you are not in the group %s", install.Group)
	}
	if err != nil {
		return err
	}
	if !record.Installed() {
		return cli.Failed("sudo durward install --apply", "Durward is not installed on this host")
	}
	operator = cmp.Or(operator, installdir.OperatorName(cli.UserName()))
	if signingKey != "" {
		if signingKey, err = filepath.Abs(signingKey); err != nil {
			return err
		}
	}
	opts := install.JoinOptions{Home: a.Home, Operator: operator, SigningKey: signingKey, Without: without}
	// Whoever asks for JSON is a program; the question goes to the terminal all the same, if there is one.
	opts.Passphrase = func() ([]byte, error) { return a.newPassphrase(ctx) }
	key, err := install.Join(record.Settings, opts)
	result := joined{Operator: operator, Home: a.Home.Dir, PublicKey: string(bytes.TrimSpace(key.Public)), KeyFile: key.File, KeySince: key.Since, Aside: key.Aside}
	sayAside := func() {
		if key.Aside != "" {
			a.Out.Printf("The installation that lay in %s lies in %s now: durward --home %s\n", a.Home.Dir, key.Aside, cli.ShellWord(key.Aside))
		}
	}
	if err != nil && key.Aside != "" {
		if err := a.Show(result, sayAside); err != nil {
			return err
		}
	}
	if errors.Is(err, signingkey.ErrNeedsHuman) {
		return cli.Denied("Run it at a terminal: durward join", "a signing key needs a passphrase, and there is no terminal to ask for one")
	}
	if err != nil {
		return cli.Failed("", "%s", clean.Block(err.Error(), 2000))
	}
	return a.Show(result, func() {
		sayAside()
		a.Out.Printf("%s %s is ready.\n", a.Out.Green("✓"), a.Home.Dir)
		if !without {
			a.Out.Printf("  Your key, which root lets approve (sudo durward operator add %s KEYFILE.pub):\n  %s\n", operator, bytes.TrimSpace(key.Public))
		}
	})
}
