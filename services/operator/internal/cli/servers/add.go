package servers

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/servers"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/statement"
)

// adding is what the flags of add say.
type adding struct {
	id, bin, bearer, sandbox  string
	read, destructive, allow  []string
	readFolders, writeFolders []string
	domains                   []string
	env, credentials          map[string]string
	resources, prompts        bool
	elicitation               bool
	images, yesPublisher, yes bool
}

func (a *app) addCommand() *cobra.Command {
	var f adding
	cmd := &cobra.Command{
		Use:   "add (npm:PACKAGE@VERSION | program PATH | URL | FILE [NAME]) [-- ARGUMENT...]",
		Short: "Add a server, and accept its tools, with your signature",
		Long: `Adds another people's MCP server. It is started once, in its sandbox and without a network, and says which tools it has; you
see them, cleaned, with what is suspicious of them, and sign them as they are. Nothing else of it is ever offered.

A package of npm is named with its exact version. It is installed from a lock with the digest of each content, and no script of it
runs. Without a scope, or of a publisher that is not known, it wants your yes: --yes-publisher.

A FILE is a server.json of the MCP registry, or has the servers of Claude Desktop, Cursor, VS Code, Windsurf or Gemini CLI; NAME
says which of several. Secrets in it, and settings that are not for Durward, are named and not copied.

A server elsewhere that lists nothing without its credential is accepted in two steps: this one signs where the credential of --bearer
goes, and durward server accept shows the tools, which egress asks it for.

Every tool is WRITE and waits for you, unless --read says that it only looks or --destructive that it destroys. What a server says
of its own tools lowers no tier.
` + cli.SignedChange,
		Example: `  durward server add npm:@modelcontextprotocol/server-filesystem@2026.8.31 --allow-read /srv/docs --read read_text_file -- /srv/docs
  durward server add program /usr/local/bin/notes-mcp --id notes --credential NOTES_TOKEN=notes
  durward server add https://mcp.example/mcp --id example
  durward server add ~/.cursor/mcp.json github`,
		Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return []string{"npm:", "program", "https://"}, cobra.ShellCompDirectiveDefault
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	cmd.RunE = a.Configured(func(ctx context.Context, cfg installdir.Config, args []string) error {
		var own []string
		if dash := cmd.ArgsLenAtDash(); dash >= 0 {
			args, own = args[:dash], args[dash:]
		}
		return a.add(ctx, cfg, args, own, f)
	})
	flags := cmd.Flags()
	flags.StringVar(&f.id, "id", "", "call it `ID` (default: from its name)")
	flags.StringVar(&f.bin, "bin", "", "start this `FILE` of the package, where it has several programs")
	flags.StringVar(&f.bearer, "bearer", "", "call a remote server with the stored `CREDENTIAL`")
	flags.StringVar(&f.sandbox, "sandbox", "", "`none` runs it without a sandbox, in development alone (DANGER)")
	flags.StringArrayVar(&f.read, "read", nil, "`TOOL` only looks: it runs without asking")
	flags.StringArrayVar(&f.destructive, "destructive", nil, "`TOOL` destroys")
	flags.StringArrayVar(&f.allow, "tool", nil, "offer `TOOL`, and only those that are named so")
	flags.StringArrayVar(&f.readFolders, "allow-read", nil, "it may read this `FOLDER`")
	flags.StringArrayVar(&f.writeFolders, "allow-write", nil, "it may read and write this `FOLDER`")
	flags.StringArrayVar(&f.domains, "domain", nil, "it may reach this `DOMAIN`")
	flags.StringToStringVar(&f.env, "env", nil, "give it a variable, `VAR=VALUE`, that is no secret")
	flags.StringToStringVar(&f.credentials, "credential", nil, "give it a stored credential in a variable, `VAR=NAME`")
	flags.BoolVar(&f.resources, "resources", false, "offer its resources, too")
	flags.BoolVar(&f.prompts, "prompts", false, "offer its prompts, too")
	flags.BoolVar(&f.images, "images", false, "let pictures through, at which nobody looks")
	flags.BoolVar(&f.elicitation, "elicitation", false, "let it ask questions during a call; each answer is a call of its own")
	flags.BoolVar(&f.yesPublisher, "yes-publisher", false, "the package's publisher is whom you mean")
	a.RuleFlags(cmd, nil, &f.yes)
	for _, folder := range []string{"allow-read", "allow-write"} {
		cli.CompleteFlag(cmd, folder, cli.CompleteFolders)
	}
	for _, own := range []string{"id", "bin", "bearer", "read", "destructive", "tool", "domain", "env", "credential"} {
		cli.CompleteFlag(cmd, own, cobra.NoFileCompletions)
	}
	cli.CompleteFlag(cmd, "sandbox", cli.OneOf("none"))
	return cmd
}

func (a *app) add(ctx context.Context, cfg installdir.Config, args, own []string, f adding) error {
	state, files, err := a.state(cfg)
	if err != nil {
		return err
	}
	found, err := source(args, own, f.id)
	if err != nil {
		return err
	}
	for _, folders := range [][]string{f.readFolders, f.writeFolders} {
		for i := range folders {
			if folders[i], err = filepath.Abs(folders[i]); err != nil {
				return err
			}
		}
	}
	e, err := f.entry(found.Entry)
	if err != nil {
		return err
	}
	if _, taken := state.Entry(e.ID); taken {
		return cli.Usage("Choose another with --id, or take that one away: durward server remove "+e.ID, "there is a server %s already", e.ID)
	}
	for _, note := range found.Notes {
		a.Out.Remark("%s", a.Out.Yellow(clean.Line(note, 300)))
	}
	if e.NPM != nil && !servers.Known(e.NPM.Name) && !f.yesPublisher {
		who := "of a publisher that is not known here"
		if !strings.HasPrefix(e.NPM.Name, "@") {
			who = "without a scope: anybody may have taken its name"
		}
		if err := a.Confirm(ctx, clean.Visible(e.NPM.Name)+" is "+who+". Install it?", false); err != nil {
			return cli.Denied("Look at it in the registry, and say --yes-publisher.", "%s is %s", clean.Visible(e.NPM.Name), who)
		}
	}
	run, narrowed := asked(e, f.writeFolders)
	if len(narrowed) > 0 {
		a.Out.Remark("%s", a.Out.Yellow("its file lets it write "+clean.Visible(clean.Line(strings.Join(narrowed, ", "), 200))+
			": it only reads there while it lists its tools, unless you say --allow-write FOLDER"))
	}
	p, err := a.accepted(ctx, state, files, e, run)
	if err != nil {
		return err
	}
	return a.sign(ctx, cfg, files, func(now servers.State) *downstream.Lock { return now.With(p) }, change{
		action: "server add " + e.ID, done: "the server " + e.ID + " has " + clean.Count(len(p.Tools), "tool"), yes: f.yes,
		edit: func(before []byte) ([]byte, error) { return servers.Add(files.Entries, before, e) },
	})
}

// asked is an entry as it is run to list its tools, before anybody saw or signed it: the folders that it may write are those that the
// operator named. What its file alone names it reads.
func asked(e downstream.Entry, named []string) (_ downstream.Entry, narrowed []string) {
	if e.Sandbox.None {
		return e, nil
	}
	writes := e.Sandbox.Write
	e.Sandbox.Write = nil
	for _, folder := range writes {
		if slices.Contains(named, folder) {
			e.Sandbox.Write = append(e.Sandbox.Write, folder)
		} else {
			narrowed = append(narrowed, folder)
		}
	}
	e.Sandbox.Read = slices.Concat(e.Sandbox.Read, narrowed)
	return e, narrowed
}

// source is what the arguments name.
func source(args, own []string, id string) (found servers.Found, err error) {
	what := args[0]
	switch {
	case strings.HasPrefix(what, "npm:") && len(args) == 1:
		if found.Entry.NPM, err = servers.Package(strings.TrimPrefix(what, "npm:")); err != nil {
			return found, cli.Usage("", "%v", err)
		}
		found.Entry.ID, found.Entry.NPM.Args = servers.IDOf(found.Entry.NPM.Name), own
	case what == "program" && len(args) == 2:
		path, err := filepath.Abs(args[1])
		if err != nil {
			return found, err
		}
		found.Entry = downstream.Entry{ID: servers.IDOf(strings.TrimSuffix(path, filepath.Ext(path))), Program: &downstream.Program{Path: path, Args: own}}
	case (strings.HasPrefix(what, "https://") || strings.HasPrefix(what, "http://")) && len(args) == 1:
		host, _, _ := strings.Cut(strings.SplitN(what, "//", 2)[1], "/")
		host, _, _ = strings.Cut(host, ":")
		found.Entry = downstream.Entry{ID: servers.IDOf(host), URL: what}
	case len(args) <= 2:
		return fromFile(args, own, id)
	default:
		return found, cli.Usage("See: durward server add -h", "that names no server")
	}
	return found, nil
}

func fromFile(args, own []string, id string) (found servers.Found, err error) {
	raw, err := os.ReadFile(filepath.Clean(args[0]))
	if err != nil {
		return found, cli.Usage("npm:PACKAGE@VERSION, program PATH, a URL, or a file that is there.", "%s cannot be read", clean.Visible(args[0]))
	}
	all, err := servers.FromFile(raw, id)
	if err != nil {
		return found, cli.Usage("", "%s: %v", clean.Visible(args[0]), err)
	}
	names := slices.Sorted(maps.Keys(all))
	name := names[0]
	if len(args) == 2 {
		name = args[1]
	} else if len(names) > 1 {
		return found, cli.Usage("Say which one, behind the file.", "it names %d servers: %s", len(names), clean.Visible(clean.Line(strings.Join(names, ", "), 500)))
	}
	found, ok := all[name]
	switch {
	case !ok:
		return found, cli.Usage("It names "+clean.Visible(clean.Line(strings.Join(names, ", "), 500)), "there is no server %s in it", clean.Visible(name))
	case found.Problem != nil:
		return found, cli.Usage("", "%s: %v", clean.Visible(name), found.Problem)
	case found.Entry.NPM != nil:
		found.Entry.NPM.Args = append(found.Entry.NPM.Args, own...)
	case found.Entry.Program != nil:
		found.Entry.Program.Args = append(found.Entry.Program.Args, own...)
	}
	return found, nil
}

// entry is the entry with what the flags say.
func (f adding) entry(e downstream.Entry) (downstream.Entry, error) {
	if f.id != "" {
		e.ID = f.id
	} else if downstream.CheckID(e.ID) != nil {
		return e, cli.Usage("Choose one: --id ID", "no id can be made of that name")
	}
	if e.NPM != nil && f.bin != "" {
		e.NPM.Bin = f.bin
	}
	if f.bearer != "" {
		e.Bearer = f.bearer
	}
	if f.sandbox != "" && f.sandbox != "none" {
		return e, cli.Usage("", "--sandbox takes none")
	}
	e.Sandbox.None = f.sandbox == "none"
	e.Sandbox.Read = append(e.Sandbox.Read, f.readFolders...)
	e.Sandbox.Write = append(slices.DeleteFunc(e.Sandbox.Write, func(folder string) bool { return slices.Contains(f.writeFolders, folder) }), f.writeFolders...)
	e.Sandbox.Domains = append(e.Sandbox.Domains, f.domains...)
	e.Env, e.Credentials, e.Allow = merged(e.Env, f.env), merged(e.Credentials, f.credentials), f.allow
	e.Resources, e.Prompts, e.Images, e.Elicitation = e.Resources || f.resources, e.Prompts || f.prompts, e.Images || f.images, e.Elicitation || f.elicitation
	e.Tiers = map[string]optionsv1.Tier{}
	for tier, names := range map[optionsv1.Tier][]string{optionsv1.Tier_TIER_READ: f.read, optionsv1.Tier_TIER_DESTRUCTIVE: f.destructive} {
		for _, name := range names {
			if _, twice := e.Tiers[name]; twice {
				return e, cli.Usage("", "%s has one tier", clean.Visible(name))
			}
			e.Tiers[name] = tier
		}
	}
	settled, err := servers.Settle(e)
	if err != nil {
		return e, cli.Usage("", "%s", clean.Line(err.Error(), 500))
	}
	return settled, nil
}

func merged(a, b map[string]string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, a)
	maps.Copy(out, b)
	if len(out) == 0 {
		return nil
	}
	return out
}

// change is what happens to both files.
type change struct {
	action, done string
	// edit changes servers.yaml; nil: it stays.
	edit func(before []byte) ([]byte, error)
	yes  bool
}

// sign shows the differences of both files, has the operator sign, and writes the lock before the entries. pin makes the lock of the files
// as they are once nobody else may change them: since they were read, a server may have taken minutes to list its tools.
func (a *app) sign(ctx context.Context, cfg installdir.Config, files servers.Files, pin func(servers.State) *downstream.Lock, c change) error {
	var locked *signedchange.Plan
	var lock *downstream.Lock
	out, err := a.ChangeRules(ctx, cfg, cli.RuleChange{
		Action: c.action, Yes: c.yes,
		Plans: func() (plans []*signedchange.Plan, err error) {
			if locked, err = signedchange.Prepare(files.Lock, downstream.LockFile, func(before []byte) ([]byte, error) { return before, nil }); err != nil {
				return nil, err
			}
			state, _, err := a.state(cfg)
			if err != nil {
				return nil, err
			}
			lock = pin(state)
			if _, err := lock.Marshal(); err != nil {
				return nil, cli.Failed("Nothing was changed.", "%s", clean.Line(err.Error(), 500))
			}
			if c.edit == nil {
				return nil, nil
			}
			return signedchange.PrepareOne(files.Entries, downstream.File, c.edit)
		},
		Beside: func(operator string, epoch uint64) (*statement.Statement, error) {
			digest, err := lock.Digest()
			return approval.Signer{Operator: operator, Now: a.Now()}.Servers(cfg.Vault.Identity, epoch, &statement.Servers{Digest: digest, Tools: servers.Counts(lock)}), err
		},
		Keep: func(signed *callv1.HumanStatement) (f signedchange.File, err error) {
			lock.Signed = signed
			if locked.After, err = lock.Marshal(); err != nil {
				return f, err
			}
			c := locked.Change()
			return signedchange.File{Name: locked.Name, Path: locked.Path, Before: c.Before, After: c.After}, locked.Write()
		},
	})
	return a.ReportRules(out, err, c.done)
}
