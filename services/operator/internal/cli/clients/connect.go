package clients

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/bridge"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/durable"
	"durward.internal/services/platform/pattern"
)

type connectOptions struct {
	program                        client.Program
	name, tier, ssh, sshKey        string
	overHTTP, dryRun, yes, project bool
	print, remove                  bool
	// tierGiven: a person said which tier.
	tierGiven bool
}

func (a *app) clientConnectCommand() *cobra.Command {
	var o connectOptions
	cmd := &cobra.Command{
		Use:   "connect " + strings.Join(client.ProgramNames(), "|"),
		Short: "Write an agent program's configuration",
		Long: `Lets the client in if need be, and writes Durward into your configuration of the program. With --project it is that of the
project in the current folder (.mcp.json, .cursor/mcp.json, .vscode/mcp.json and others): it then names files of this
machine, and is not for sharing. The change is shown first; other servers, comments and order stay, and the file as it
was is kept beside it (.before-durward). For Codex and Goose the lines are printed, for you to enter. Nothing secret is
written there: the stdio bridge (durward mcp) reads the token and key from files that only you can read.

A client that is let in so may ask for starts, stops, sleeping and waking; --tier DESTRUCTIVE lets it ask for switches of modes
too, and for tools of others' servers that you named so. Each change waits for your signature.

With --http the configuration names the URL, and the token is read from the environment variable
DURWARD_TOKEN; such a client is a bearer client.

With --ssh HOST the program runs on another machine, which reaches this one as HOST: nothing is written there. What to put
where is printed: a line for authorized_keys, whose key can do nothing but speak for this client, and the program's
configuration.

--print prints what would stand in the configuration, and changes nothing. --remove takes Durward out of it again.`,
		Example: "  durward client connect claude-code\n  durward client connect vscode --dry-run\n  durward client connect cursor --project --yes\n" +
			"  durward client connect claude-code --ssh gpu1 --ssh-key agent.pub\n  durward client connect cursor --remove",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: client.ProgramNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.program, _ = client.FindProgram(args[0])
			o.tierGiven = cmd.Flags().Changed("tier")
			if o.name == "" {
				o.name = args[0]
				if o.overHTTP {
					o.name += "-http"
				}
			}
			switch {
			case o.overHTTP && o.ssh != "":
				return cli.Usage("", "give one of --http and --ssh")
			case o.sshKey != "" && o.ssh == "":
				return cli.Usage("", "--ssh-key goes with --ssh")
			case o.remove && (o.print || o.ssh != ""):
				return cli.Usage("", "--remove goes with neither --print nor --ssh")
			}
			cfg, err := a.Config()
			if err != nil {
				return err
			}
			if err := client.CheckName(o.name); err != nil {
				return cli.Usage("", "%v", err)
			}
			switch {
			case o.ssh != "":
				return a.connectOverSSH(cmd.Context(), cfg, o)
			case o.print:
				return a.printConnection(cfg, o)
			case o.remove:
				return a.disconnectClient(cmd.Context(), o)
			default:
				return a.connectClient(cmd.Context(), cfg, o)
			}
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.overHTTP, "http", false, "connect by URL instead of by the bridge")
	flags.BoolVar(&o.dryRun, "dry-run", false, "show the change and make none")
	flags.BoolVar(&o.yes, "yes", false, "do not ask; the signing key is still needed to let a client in")
	flags.BoolVar(&o.project, "project", false, "write the configuration of the project in the current folder instead of yours")
	flags.BoolVar(&o.print, "print", false, "print the configuration and change nothing")
	flags.BoolVar(&o.remove, "remove", false, "take Durward out of the configuration; the client stays")
	flags.StringVar(&o.ssh, "ssh", "", "the program is on another machine, which reaches this one by SSH under this name ([user@]host)")
	flags.StringVar(&o.sshKey, "ssh-key", "", "with --ssh: the public key file of the program's machine")
	flags.StringVar(&o.name, "name", "", "the client's name (default the program's)")
	flags.StringVar(&o.tier, "tier", "WRITE", "the most that a new client may ask for: READ, WRITE or DESTRUCTIVE")
	cli.CompleteFlag(cmd, "name", a.CompleteClients)
	return cmd
}

// entry writes Durward's entry into a document of the program's.
func (a *app) entry(cfg installdir.Config, o connectOptions, document []byte) ([]byte, error) {
	if o.overHTTP {
		return o.program.HTTP(document, cfg.MCPURL)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return o.program.Stdio(document, self, client.Bridge(a.Home.Dir, o.name)...)
}

func (a *app) printConnection(cfg installdir.Config, o connectOptions) error {
	document, err := a.entry(cfg, o, nil)
	if err != nil {
		return a.notEdited(o, "", err)
	}
	return a.Show(map[string]any{"client": o.name, "configuration": string(document)}, func() { a.Out.Printf("%s", document) })
}

// showConnection is the result: whether a program's configuration was changed.
func (a *app) showConnection(o connectOptions, path string, changed bool, text func()) error {
	return a.Show(map[string]any{"client": o.name, "file": path, "changed": changed}, text)
}

func (a *app) connectClient(ctx context.Context, cfg installdir.Config, o connectOptions) error {
	path, before, err := a.programFile(o)
	if err != nil {
		return err
	}
	after, err := a.entry(cfg, o, before)
	if err != nil {
		return a.notEdited(o, path, err)
	}
	known, err := a.knownClient(cfg, o)
	if err != nil {
		return err
	}
	if !known {
		lets := "Lets"
		if o.dryRun {
			lets = "Would let"
		}
		a.Display().Printf("%s in the client %s (up to %s), with its token and key in %s.\n", lets, o.name, o.tier, a.Home.Client(o.name))
	}
	if o.program.Manual() {
		return a.connectByHand(ctx, cfg, o, path, after, known)
	}
	diff := cmp.Or(client.Diff(path, before, after), path+" is as it should be already.\n")
	a.Display().Printf("%s", clean.Block(diff, 1<<20))
	if o.dryRun {
		return a.showConnection(o, path, false, func() { a.Out.Printf("Nothing was changed.\n") })
	}
	if known && bytes.Equal(before, after) {
		return a.showConnection(o, path, false, func() {})
	}
	// Whoever lets the client in is shown that, and asked, there.
	if known {
		err = a.Confirm(ctx, "Make this change?", o.yes)
	} else {
		err = a.addClient(ctx, cfg, client.Client{ID: o.name, Channel: "cli", TierCeiling: o.tier}, o.overHTTP, o.yes)
	}
	if err != nil {
		return err
	}
	if err := replaceProgramFile(path, before, after, o); err != nil {
		return err
	}
	return a.showConnection(o, path, !bytes.Equal(before, after), func() {
		a.Out.Printf("%s %s will find Durward at its next start.\n", a.Out.Green("✓"), o.program.Title)
		if o.overHTTP {
			a.Out.Printf("  Start it with the token: export %s=\"$(cat %s)\"\n", client.TokenVariable, cli.ShellWord(a.Home.Client(o.name, client.FileToken)))
		}
	})
}

// connectByHand lets the client in, and prints what a human enters in the program's configuration.
func (a *app) connectByHand(ctx context.Context, cfg installdir.Config, o connectOptions, path string, lines []byte, known bool) error {
	if !known && !o.dryRun {
		if err := a.addClient(ctx, cfg, client.Client{ID: o.name, Channel: "cli", TierCeiling: o.tier}, false, o.yes); err != nil {
			return err
		}
	}
	return a.Show(map[string]any{"client": o.name, "file": path, "changed": false, "configuration": string(lines)}, func() {
		a.Out.Printf("Enter in %s:\n\n%s\n", clean.Visible(path), clean.Block(string(lines), 1<<16))
	})
}

func (a *app) disconnectClient(ctx context.Context, o connectOptions) error {
	if o.program.Manual() {
		return cli.Usage("Take the lines out by hand. To lock the client out: durward client revoke "+o.name, "nothing here edits the configuration of %s", o.program.Title)
	}
	path, before, err := a.programFile(o)
	if err != nil {
		return err
	}
	after, err := o.program.Remove(before)
	if err != nil {
		return a.notEdited(o, path, err)
	}
	if len(before) == 0 || bytes.Equal(before, after) {
		return a.showConnection(o, path, false, func() { a.Out.Printf("Durward is not in %s.\n", clean.Visible(path)) })
	}
	a.Display().Printf("%s", clean.Block(client.Diff(path, before, after), 1<<20))
	if o.dryRun {
		return a.showConnection(o, path, false, func() { a.Out.Printf("Nothing was changed.\n") })
	}
	if err := a.Confirm(ctx, "Make this change?", o.yes); err != nil {
		return err
	}
	if err := replaceProgramFile(path, before, after, o); err != nil {
		return err
	}
	return a.showConnection(o, path, true, func() {
		a.Out.Printf("%s %s does not know Durward any more. To lock the client out too: %s client revoke %s\n", a.Out.Green("✓"), o.program.Title, a.Typed(), o.name)
	})
}

func (a *app) notEdited(o connectOptions, path string, err error) error {
	if errors.Is(err, client.ErrNoURL) {
		return cli.Usage("Leave --http away: it starts the bridge.", "%s connects to servers that it starts itself", o.program.Title)
	}
	return cli.Usage("Nothing was changed. Correct the file, or move it away.", "%s cannot be edited: %v", clean.Visible(path), err)
}

// sshHost is a name that ssh takes for a host and for nothing else.
var sshHost = pattern.New(`^[a-zA-Z0-9_][a-zA-Z0-9_.@:-]{0,252}$`)

// connectOverSSH says what a program on another machine needs, and lets its client in.
func (a *app) connectOverSSH(ctx context.Context, cfg installdir.Config, o connectOptions) error {
	if !sshHost().MatchString(o.ssh) {
		return cli.Usage("", "--ssh is the name by which the other machine reaches this one: [user@]host")
	}
	var public []byte
	if o.sshKey != "" {
		var err error
		if public, err = os.ReadFile(o.sshKey); err != nil {
			return cli.Usage("Give the .pub file of an SSH key of the program's machine.", "%s", clean.Line(err.Error(), 300))
		}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	line, err := client.AuthorizedKey(self, a.Home.Dir, o.name, string(public))
	if err != nil {
		return cli.Usage("Give the .pub file of an SSH key of the program's machine.", "%v", err)
	}
	identity := "~/.ssh/durward_" + o.name
	document, err := o.program.Stdio(nil, "ssh", "-T", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-i", identity, o.ssh)
	if err != nil {
		return err
	}
	known, err := a.knownClient(cfg, o)
	if err != nil {
		return err
	}
	if !known && !o.print && !o.dryRun {
		if err := a.addClient(ctx, cfg, client.Client{ID: o.name, Channel: "cli", TierCeiling: o.tier, Remote: true}, false, o.yes); err != nil {
			return err
		}
	}
	return a.Show(map[string]any{"client": o.name, "authorized_keys": line, "configuration": string(document)}, func() {
		if len(public) == 0 {
			a.Out.Printf("1. On the machine where %s runs, make a key for this alone:\n\n  ssh-keygen -t ed25519 -N '' -f %s\n\n", o.program.Title, identity)
		} else {
			a.Out.Printf("1. On the machine where %s runs, the key's private half is %s.\n\n", o.program.Title, identity)
		}
		a.Out.Printf("2. Here, one line in ~/.ssh/authorized_keys of the user whose clients/%s this is. The key can do nothing but speak for\n"+
			"   this client: no shell, no forwarding, and what the other side asks to run is not looked at.\n\n%s\n\n", o.name, clean.Visible(line))
		a.Out.Printf("3. On the program's machine, in its configuration:\n\n%s", clean.Block(string(document), 1<<16))
	})
}

// knownClient reports whether the client may connect so and its files are here. One that is let in up to another tier than a person
// asks for is an error: to connect changes no client.
func (a *app) knownClient(cfg installdir.Config, o connectOptions) (bool, error) {
	list, err := readClients(cfg)
	if err != nil {
		return false, err
	}
	for _, c := range list {
		if c.ID != o.name {
			continue
		}
		if c.Revoked {
			return false, cli.Denied("Give another one: --name", "the client %s was revoked", o.name)
		}
		if o.overHTTP && c.Key != "" {
			return false, cli.Usage("Give another one: --name. Or leave --http away: the bridge signs.",
				"the client %s signs with a key, and a program that connects by URL cannot", o.name)
		}
		if _, err := client.LoadCredentials(a.Home.Client(o.name)); err != nil {
			return false, cli.Failed("Give another one: --name", "the client %s is there, and its token is not: %v", o.name, err)
		}
		if o.tierGiven && c.TierCeiling != o.tier {
			return false, cli.Usage("Change its tier_ceiling in "+clean.Visible(cfg.Clients)+", or give another one: --name",
				"the client %s is let in already, up to %s: --tier is for a new one", o.name, c.TierCeiling)
		}
		if o.ssh != "" && !c.Remote {
			return false, cli.Usage("Give another one: --name", "the client %s is of this host: from another one it could call what is for programs of this host alone", o.name)
		}
		return true, nil
	}
	return false, nil
}

// programFile finds the configuration to edit, and reads it: nil if there is none. A link is followed: many people keep such files
// elsewhere.
func (a *app) programFile(o connectOptions) (path string, before []byte, err error) {
	if path, err = a.programPath(o); err != nil {
		return "", nil, err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	before, err = os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", nil, fmt.Errorf("configuration of %s: %w", o.program.Title, err)
	}
	return path, before, nil
}

func (a *app) programPath(o connectOptions) (string, error) {
	if o.project && !o.program.HasProject() {
		return "", cli.Usage("Leave --project away.", "%s has no configuration of a project's own", o.program.Title)
	}
	if o.project {
		folder, err := os.Getwd()
		if err != nil {
			return "", fmt.Errorf("current folder: %w", err)
		}
		return o.program.ProjectFile(folder), nil
	}
	folder, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("home folder: %w", err)
	}
	places := client.Places{Home: folder, Config: filepath.Join(folder, ".config"), Mac: runtime.GOOS == "darwin"}
	if dir := a.Streams.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		places.Config = dir
	}
	return o.program.UserFile(places), nil
}

// replaceProgramFile keeps the file as it was beside it, and replaces it. A program that runs may have written it since it was read.
func replaceProgramFile(path string, before, after []byte, o connectOptions) error {
	asRead := func() error {
		if now, err := os.ReadFile(path); err != nil && !errors.Is(err, os.ErrNotExist) || !bytes.Equal(now, before) {
			return cli.Failed("Run the command again.", "%s was changed meanwhile; nothing was written there", clean.Visible(path))
		}
		return nil
	}
	if err := asRead(); err != nil {
		return err
	}
	owner := programFileOwner(path, o)
	if len(before) > 0 {
		if err := durable.ReplaceAs(owner, path+".before-durward", before, nil); err != nil {
			return fmt.Errorf("configuration of %s: %w", o.program.Title, err)
		}
	}
	folder := os.FileMode(0o755)
	if owner.Mode == 0o600 {
		folder = 0o700
	}
	if err := os.MkdirAll(filepath.Dir(path), folder); err != nil {
		return fmt.Errorf("configuration of %s: %w", o.program.Title, err)
	}
	return durable.ReplaceAs(owner, path, after, asRead)
}

// programFileOwner keeps a file's mode, and its owner where root writes it: the program runs as that user. A new project file may be
// read by all, as others beside it.
func programFileOwner(path string, o connectOptions) durable.Owner {
	owner := durable.Own(0o600)
	if o.project {
		owner.Mode = 0o644
	}
	if info, err := os.Stat(path); err == nil {
		owner.Mode = info.Mode().Perm()
		if st, ok := info.Sys().(*syscall.Stat_t); ok && owner.UID == 0 {
			owner.UID, owner.GID = int(st.Uid), int(st.Gid)
		}
	}
	return owner
}

func (a *app) mcpCommand() *cobra.Command {
	var name, agent string
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "The stdio bridge that agent programs start",
		Long: `Speaks MCP over standard input and output with an agent program, and with the gateway in the client's name.
It reads the client's token and key from files that only you can read, and signs what the client asks
for, so that a hostile gateway cannot ask in its name. It has no authority of yours: what changes
something still waits for "durward approve".

A program that runs several agents starts a bridge for each and names it with --agent; policies can tell them
apart. The name must be one of the client's agents (durward client add --agent).

On another machine, over SSH, start it with a key that may do nothing else: durward client connect --ssh.

Agent programs start it; "durward client connect claude-code" writes that into their configuration.`,
		Example:           "  durward mcp --client claude-code\n  durward mcp --client orchestrator --agent planner",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name == "" {
				return cli.Usage("Make one: durward client add NAME", "--client NAME is required")
			}
			if err := client.CheckName(name); err != nil {
				return cli.Usage("", "%v", err)
			}
			if agent != "" && !client.ValidAgent(agent) {
				return cli.Usage("", "an agent's name is letters, digits, dots, dashes and underscores, at most 64")
			}
			cfg, err := a.Config()
			if err != nil {
				return err
			}
			credentials, err := client.LoadCredentials(a.Home.Client(name))
			if err != nil {
				return cli.Failed("Make it: durward client add "+name, "the client %s has no usable token here: %s", name, clean.Line(err.Error(), 300))
			}
			typed := "durward"
			if own, err := installdir.Find("", a.Streams.Getenv); err != nil || own.Dir != a.Home.Dir {
				typed = a.Typed() // without its folder it would start another one
			}
			signal.Reset(syscall.SIGPIPE) // a client that reads no more has no use for this program
			b, err := bridge.New(bridge.Config{
				Endpoint: cfg.MCPURL, Token: credentials.Token, Client: name, Key: credentials.Key,
				In: a.Streams.In, Out: a.Streams.Out, Agent: agent,
				Start:  cli.StartTyped(typed, a.Home),
				Remote: a.Streams.Getenv("SSH_CONNECTION") != "", // by sshd, whatever the other machine asks to run
				Reload: func() (string, ed25519.PrivateKey, error) {
					c, err := client.LoadCredentials(a.Home.Client(name))
					return c.Token, c.Key, err
				},
				Report: func(line string) { a.Out.Remark("durward mcp: %s", clean.Line(line, 500)) },
			})
			if err != nil {
				return err
			}
			return b.Run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&name, "client", "", "the client whose token and key to use")
	cmd.Flags().StringVar(&agent, "agent", "", "which of the client's agents it speaks for")
	return cmd
}
