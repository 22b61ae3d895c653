package catalog

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/catalogfile"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/importer"
	"durward.internal/services/operator/internal/importer/discover"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/hostprogram"
	"durward.internal/services/platform/secret"
)

// importing is one run of `catalog import`.
type importing struct {
	place *cli.CatalogPlace
	out   string
	yes   bool
	given importer.Given
	set   []string

	// What was found of the present catalog: its path, "" for none, its files, how it is read, and what it says, nil for none.
	path    string
	files   []catalog.File
	opts    catalog.Options
	present *catalog.Catalog
	// The host's GPUs, and the programs that hold their memory.
	gpus []discover.GPU
	held []discover.Holder
	// quiet: no server is asked what it is.
	quiet bool
}

const importLong = `
What comes out is a proposal: a new catalogue file, by default ./durward-import-KIND.yaml, with comments that say
where each entry came from, what was left out, and why. Nothing is run, the catalogue does not change, and no
variable of your environment is read: at a terminal you are asked for the values that files need, --set gives them
too. What is called a secret or looks like one is not copied: it is named in a comment, and you put it where it
belongs.

The proposal stands beside the present catalogue: ids that are taken there are not proposed again, and
durward catalog check FILE accepts it as it stands. Where the catalogue has no GPUs, the host's are proposed, or simulated
ones where it has none. Read it, change it, and move it into the catalogue's folder.`

func (a *app) catalogImportCommand(place *cli.CatalogPlace) *cobra.Command {
	imp := &importing{place: place}
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Propose catalogue entries from what you run already",
		Long:  "Brings what another tool runs, or what runs on this host, into a proposal for the catalogue.\n" + importLong,
		Example: `  durward catalog import llama-swap ~/llama-swap/config.yaml
  durward catalog import compose compose.yaml --out proposal.yaml
  durward catalog import gpumod ~/gpumod --set HOME=/home/ai
  durward catalog import systemd`,
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&imp.out, "out", "", `the file to write, or "-" for standard output (default ./durward-import-KIND.yaml)`)
	flags.BoolVar(&imp.yes, "yes", false, "do not ask before a proposal from before is overwritten; nothing else ever is")
	flags.StringVar(&imp.given.RunAs, "run-as", "", "the user that imported programs run as")
	flags.StringVar(&imp.given.ContainerUser, "container-user", "1000:1000", "the user of containers that name none or root, UID or UID:GID")
	flags.StringArrayVar(&imp.set, "set", nil, "NAME=VALUE for a variable that the files name; never a secret")
	cmd.AddCommand(a.fileImports(imp)...)
	cmd.AddCommand(a.importSystemdCommand(imp), a.importDockerCommand(imp))
	return cmd
}

// fileImports are the imports of what other tools' files say.
func (a *app) fileImports(imp *importing) []*cobra.Command {
	files := func(cmd *cobra.Command, read func(ctx context.Context, p *proposal.Proposal, args []string) error) *cobra.Command {
		cmd.Long += importLong
		cmd.RunE = func(cmd *cobra.Command, args []string) error { return a.importFiles(cmd, imp, args, read) }
		return cmd
	}
	return []*cobra.Command{
		files(&cobra.Command{
			Use:   "gpumod DIR",
			Short: "From gpumod's presets and modes",
			Long: `Reads presets/**/*.yaml and modes/*.yaml below a folder, as gpumod lays them out, or a folder of presets alone. A
preset becomes a service that is the systemd unit ID.service (Docker presets become containers), a mode becomes a
mode. Unit templates and extra arguments are code and are left out: the unit that gpumod installed stays as it is.
`,
			Example:           "  durward catalog import gpumod ~/gpumod\n  durward catalog import gpumod ~/gpumod --set HOME=/home/ai --out -",
			Args:              cobra.ExactArgs(1),
			ValidArgsFunction: cli.CompleteFolders,
		}, func(ctx context.Context, p *proposal.Proposal, args []string) error {
			return importer.Gpumod(ctx, p, args[0], imp.given)
		}),
		files(&cobra.Command{
			Use:   "llama-swap FILE",
			Short: "From llama-swap's config.yaml",
			Long: `Reads llama-swap's configuration. A model becomes a service: its cmd is split into arguments, macros are expanded,
and commands that need a shell are left out. docker run and podman run become containers. Groups and the matrix
become candidate modes, persistent groups are pinned, ttl becomes idle, and what is preloaded is named as a
candidate for boot. API keys and peers stay where they are.
`,
			Example:           "  durward catalog import llama-swap config.yaml\n  durward catalog import llama-swap config.yaml --set HOME=/home/ai --run-as ai",
			Args:              cobra.ExactArgs(1),
			ValidArgsFunction: cli.CompleteFiles("yaml", "yml"),
		}, func(ctx context.Context, p *proposal.Proposal, args []string) error {
			return importer.LlamaSwap(ctx, p, args[0], imp.given)
		}),
		files(&cobra.Command{
			Use:   "compose FILE...",
			Short: "From the GPU services of Compose files",
			Long: `Reads Compose files one by one and takes the services that ask for GPUs. Profiles become modes. What makes a
container as powerful as the host is refused by name: privileged, all capabilities, the host's processes and users,
the runtime's socket, the system's and hidden folders, whole homes. The host's network and memory, and single
capabilities, are left out of what is proposed. Ports are published on 127.0.0.1 alone. Files that a Compose file
extends, includes or reads variables from are named and not read.
`,
			Example:           "  durward catalog import compose compose.yaml\n  durward catalog import compose compose.yaml compose.gpu.yaml --set TAG=v0.11.0",
			Args:              cobra.MinimumNArgs(1),
			ValidArgsFunction: cli.CompleteFiles("yaml", "yml"),
		}, func(ctx context.Context, p *proposal.Proposal, args []string) error {
			return importer.Compose(ctx, p, args, imp.given)
		}),
	}
}

// importFiles is an import from files: begun, read, proposed. A person at a terminal is asked for the values of variables for lack of
// which something is left out, and the files are read again with them.
func (a *app) importFiles(
	cmd *cobra.Command, imp *importing, files []string, read func(ctx context.Context, p *proposal.Proposal, args []string) error,
) error {
	asked := map[string]bool{}
	for {
		p, err := a.beginImport(cmd, imp, files...)
		if err != nil {
			return err
		}
		if err := read(cmd.Context(), p, files); err != nil {
			return nothingWritten(err)
		}
		if !a.askVariables(cmd.Context(), imp, p.Wanted(), asked) {
			return a.propose(cmd.Context(), imp, p)
		}
	}
}

// nothingWritten is why an import ended.
func nothingWritten(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return cli.Failed("Nothing was written.", "%s", clean.Block(err.Error(), 1000))
}

// askVariables asks for the value of each variable once, and reports whether one was given.
func (a *app) askVariables(ctx context.Context, imp *importing, names []string, asked map[string]bool) (given bool) {
	if imp.yes || imp.out == "-" || a.Machine() || !output.IsTerminal(a.Streams.In) {
		return false
	}
	for _, name := range names {
		if asked[name] || len(asked) >= maxAsked {
			continue
		}
		asked[name] = true
		value, ok := a.Ask(ctx, "The value of "+clean.Visible(name)+", which the file names (empty: what needs it is left out): ")
		switch {
		case !ok:
			return given
		case secret.Suspect(value):
			a.Display().Remark("That looks like a secret, which is not copied into a catalogue.")
		case value != "":
			imp.set, given = append(imp.set, name+"="+value), true
		}
	}
	return given
}

// maxAsked bounds what a person is asked for.
const maxAsked = 32

// beginImport reads the present catalog, which must be good, and begins a proposal beside it. from is what it is made from.
func (a *app) beginImport(cmd *cobra.Command, imp *importing, from ...string) (*proposal.Proposal, error) {
	kind := cmd.Name()
	for _, pair := range imp.set {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, cli.Usage("", "--set takes NAME=VALUE")
		}
		if secret.Name(name) || secret.Suspect(value) {
			return nil, cli.Usage("", "--set %s: secrets are not copied into a catalogue", clean.Visible(name))
		}
		if imp.given.Variables == nil {
			imp.given.Variables = map[string]string{}
		}
		imp.given.Variables[name] = value
	}
	if imp.out == "-" && a.Machine() {
		return nil, cli.Usage("", "--json and --out - both want standard output; name a file")
	}
	if imp.out == "" {
		imp.out = "durward-import-" + kind + ".yaml"
		if err := a.outsideCatalog(cmd, imp); err != nil {
			return nil, err
		}
	}
	if err := a.presentCatalog(cmd, imp); err != nil {
		return nil, err
	}
	p := proposal.New(kind, imp.present, from...)
	imp.given.Find = func(name string) error { _, err := imp.opts.Find(name); return err }
	if imp.given.RunAs == "" && !imp.opts.Development && kind == "llama-swap" {
		imp.given.RunAs = "nobody"
		p.Note("Nobody was named whom programs run as (--run-as USER): they run as nobody, who can read and write what everybody can. A user of its own " +
			"for each, who may read its model, is better; your own would let a program read your keys.")
	}
	var err error
	imp.gpus, imp.held, err = discover.GPUs(cmd.Context(), hostprogram.Run)
	if err != nil {
		p.Note("The GPUs could not be read: %s. Which GPUs a service uses, and how much of them, is not known.", clean.Line(err.Error(), 200))
	}
	p.Host(output.Each(imp.gpus, func(g discover.GPU) catalog.GPU { return catalog.GPU{Index: g.Index, UUID: g.UUID, Name: g.Name} }))
	if imp.path == "" {
		p.Note("No catalogue was found on this host to stand beside (--catalogue names one).")
	}
	return p, nil
}

// presentCatalog reads the catalog that there is, if there is one.
func (a *app) presentCatalog(cmd *cobra.Command, imp *importing) error {
	path, opts, err := imp.place.Of(a.App, cmd)
	imp.opts = opts
	if err == nil {
		imp.files, err = catalogfile.Read(path)
		if errors.Is(err, fs.ErrNotExist) && imp.place.Path == "" {
			path, err = "", nil
		}
		if err != nil {
			return cli.Failed("", "the catalogue cannot be read: %s", clean.Line(err.Error(), 300))
		}
	}
	// The proposal may be there already, from the run before: it is what is made anew.
	if imp.files, err = besides(imp.files, imp.out, err); errors.Is(err, errOwnFile) {
		return cli.Usage("Name a new file: --out FILE", "%s is one of the catalogue's own files", clean.Visible(imp.out))
	}
	if err != nil || path == "" || len(imp.files) == 0 {
		return nil
	}
	imp.path = path
	if imp.present, err = catalog.ParseFiles(imp.files, imp.opts); err != nil {
		return a.BadCatalog(path, err)
	}
	return nil
}

// checked reads the catalog to be checked. A proposal is read beside the present catalog, as it is to stand there.
func (a *app) checked(cmd *cobra.Command, place *cli.CatalogPlace, args []string) (path, beside string, c *catalog.Catalog, err error) {
	if len(args) == 0 || !proposed(args[0]) {
		if len(args) > 0 {
			place.Path = args[0]
		}
		path, c, err = place.Load(a.App, cmd)
		return path, "", c, err
	}
	imp := &importing{place: place, out: args[0]}
	if err := a.presentCatalog(cmd, imp); err != nil {
		return "", "", nil, err
	}
	files, err := catalogfile.Read(args[0])
	if err == nil {
		c, err = catalog.ParseFiles(append(imp.files, files...), imp.opts)
	}
	if err != nil {
		return "", "", nil, a.BadCatalog(args[0], err)
	}
	return args[0], imp.path, c, nil
}

var errOwnFile = errors.New("the catalogue's own")

// besides leaves out the proposal itself, which may be in the catalog from a run before, and refuses any other of its files as
// the one to write. err is what went wrong before.
func besides(files []catalog.File, out string, err error) ([]catalog.File, error) {
	target, statErr := os.Stat(out)
	if statErr != nil || err != nil {
		return files, err
	}
	var kept []catalog.File
	for _, f := range files {
		info, statErr := os.Stat(f.Name)
		switch {
		case statErr != nil || !os.SameFile(info, target):
			kept = append(kept, f)
		case len(files) == 1 || !bytes.HasPrefix(f.Data, []byte(proposal.Heading)):
			return nil, errOwnFile
		}
	}
	return kept, nil
}

// outsideCatalog keeps a proposal that nobody has read from becoming the catalog by the folder that one stands in.
func (a *app) outsideCatalog(cmd *cobra.Command, imp *importing) error {
	path, _, err := imp.place.Of(a.App, cmd)
	if err != nil {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return nil
	}
	if here, err := os.Stat("."); err == nil && os.SameFile(info, here) {
		return cli.Usage("Run it in another folder, or name the file: --out FILE", "this is the catalogue's folder, where a proposal would be in force at once")
	}
	return nil
}

// ProposalJSON is what --json says of an import.
type ProposalJSON struct {
	File     string             `json:"file"`
	Models   []string           `json:"models"`
	Services []string           `json:"services"`
	Modes    []string           `json:"modes"`
	LeftOut  []proposal.LeftOut `json:"left_out"`
}

func proposalJSON(file string, p *proposal.Proposal) ProposalJSON {
	return ProposalJSON{file, cli.NonNil(p.Models()), cli.NonNil(p.Services()), cli.NonNil(p.Modes()), cli.NonNil(p.LeftOut())}
}

// propose settles a proposal with the present catalog, writes it and says what is in it.
func (a *app) propose(ctx context.Context, imp *importing, p *proposal.Proposal) error {
	text, err := p.Settle(ctx, imp.files, imp.opts)
	if errors.Is(err, proposal.ErrNothing) {
		return errors.Join(a.Show(proposalJSON("", p), func() { a.leftOut(p) }), cli.Failed("Nothing was written.", "%s", err.Error()))
	}
	if err != nil {
		return nothingWritten(err)
	}
	if imp.out == "-" {
		_, err := a.Streams.Out.Write(text)
		return err
	}
	if err := a.writeProposal(ctx, imp, text); err != nil {
		return err
	}
	return a.Show(proposalJSON(imp.out, p), func() {
		a.leftOut(p)
		a.Out.Printf("%s %s: %s, %s, %s\n", a.Out.Green("✓"), clean.Visible(imp.out), clean.Count(len(p.Services()), "service"), clean.Count(len(p.Models()), "model"),
			clean.Count(len(p.Modes()), "mode"))
		a.Out.Printf("Read it first. ")
		info, err := os.Stat(imp.path)
		there, thereErr := os.Stat(filepath.Dir(imp.out))
		switch {
		case imp.path == "" || err != nil || !info.IsDir():
			a.Out.Printf("Check it: %s catalog check %s. Its entries go into the catalogue's file; a catalogue may also be a folder of files.\n", a.Typed(), movable(imp.out))
		case thereErr == nil && os.SameFile(info, there):
			a.Out.Printf("It is in the catalogue's folder, and in force as it is: %s catalog check\n", a.Typed())
		default:
			a.Out.Printf("When it is right: mv %s %s && %s catalog check\n", movable(imp.out), cli.ShellWord(filepath.Clean(imp.path)+"/"), a.Typed())
		}
	})
}

func (a *app) leftOut(p *proposal.Proposal) {
	for _, l := range p.LeftOut() {
		a.Out.Printf("%s left out: %s: %s\n", a.Out.Yellow("!"), l.What, l.Why)
	}
}

// writeProposal writes the file: a new one as it is, one that is there only after asking.
func (a *app) writeProposal(ctx context.Context, imp *importing, text []byte) error {
	info, err := os.Lstat(imp.out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return written(installdir.CreateFile(imp.out, text, 0o644))
	case err != nil:
		return written(err)
	case !info.Mode().IsRegular():
		return cli.Usage("", "%s is not a regular file", clean.Visible(imp.out))
	}
	if !proposed(imp.out) {
		return cli.Usage("Name a new file: --out FILE", "%s is there already, and is no proposal of this command", clean.Visible(imp.out))
	}
	if err := a.Confirm(ctx, clean.Visible(imp.out)+" is there already. Overwrite it?", imp.yes); err != nil {
		return err
	}
	return written(installdir.WriteFile(imp.out, text, 0o644))
}

// proposed reports whether a file is a proposal, by its first line: nothing else is overwritten, whoever says yes.
func proposed(name string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	begin := make([]byte, len(proposal.Heading))
	_, err = io.ReadFull(f, begin)
	return err == nil && string(begin) == proposal.Heading
}

// movable is a file's name as mv takes it from a shell.
func movable(name string) string {
	if strings.HasPrefix(name, "-") {
		name = "./" + name
	}
	return cli.ShellWord(clean.Visible(name))
}

func written(err error) error {
	if err != nil {
		// Which file was written beside it on the way to its name says nothing to who typed that name.
		var why syscall.Errno
		if errors.As(err, &why) {
			err = why
		}
		return cli.Failed("Write it elsewhere: --out FILE", "the proposal cannot be written: %s", clean.Line(err.Error(), 300))
	}
	return nil
}
