package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/bring"
	"durward.internal/services/operator/internal/draft"
	"durward.internal/services/operator/internal/home"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/keys"
	"durward.internal/services/platform/catalogue"
	"durward.internal/services/platform/clean"
)

// maxCatalogueFile is the most that is read of a file, one byte more than the catalogue's own bound.
const maxCatalogueFile = 1<<20 + 1

// catalogPlace is which catalogue is meant, and how it is read.
type catalogPlace struct {
	path        string
	development bool
}

func (a *app) catalogCommand() *cobra.Command {
	var place catalogPlace
	cmd := &cobra.Command{
		Use:     "catalog",
		Aliases: []string{"catalogue"},
		Short:   "The catalogue: what this host may run; check, show, add, import",
		Long: `The catalogue is a file, or a folder of .yaml files, in which you say what the executor may run: GPUs, models,
services, modes. No agent and no RPC changes it. The executor reads it again within a second of a change, and
keeps the last good one while there is a mistake in it.`,
		Example: `  durward catalog check
  durward catalog show demo-chat
  durward catalog add service coder --port 8001 --gpus 0 --vram 40000 -- vllm serve Qwen/Qwen3-32B --port 8001
  durward catalog add mode coding coder demo-embed`,
	}
	cmd.PersistentFlags().StringVar(&place.path, "catalogue", "",
		"the catalogue's file or folder (default: what config/executor.yaml names)")
	cmd.PersistentFlags().BoolVar(&place.development, "development", false,
		"accept services without run_as (default: as this installation was made)")
	cmd.AddCommand(a.catalogCheckCommand(&place), a.catalogShowCommand(&place), a.catalogAddCommand(&place), a.catalogImportCommand(&place))
	return cmd
}

// executorFile is what of the executor's configuration matters here; the executor itself checks the rest.
type executorFile struct {
	Catalogue   string `yaml:"catalogue"`
	ProgramsDir string `yaml:"programs_dir"`
	Systemd     struct {
		Manager string `yaml:"manager"`
	} `yaml:"systemd"`
	Docker struct {
		Socket string `yaml:"socket"`
	} `yaml:"docker"`
	GPU struct {
		LlamaFitParams string `yaml:"llama_fit_params"`
	} `yaml:"gpu"`
}

// installedExecutor is the executor's configuration where durward install laid it out: anybody may read it.
const installedExecutor = "/etc/durward/executor.yaml"

// executorFile reads the executor's configuration: this home's, or else the host's.
func (a *app) executorFile() (f executorFile, installed bool, err error) {
	name := a.home.Config("executor")
	raw, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		if host, hostErr := os.ReadFile(installedExecutor); hostErr == nil {
			name, raw, err, installed = installedExecutor, host, nil, true
		}
	}
	if err != nil {
		return f, false, err
	}
	if err := yaml.Unmarshal(raw, &f); err != nil || f.Catalogue == "" {
		return f, installed, fmt.Errorf("%s names no catalogue", name)
	}
	return f, installed, nil
}

// resolve fills in which catalogue is meant and how the executor would read it. changed: --development was given.
func (p catalogPlace) resolve(a *app, changed bool) (string, catalogue.Options, error) {
	bin, err := ownFolder()
	if err != nil {
		return "", catalogue.Options{}, err
	}
	opts := catalogue.Options{ProgramsDir: bin, Development: p.development, UID: os.Getuid()}
	f, installed, err := a.executorFile()
	if err != nil && p.path == "" {
		return "", opts, usage("Name the catalogue: --catalogue PATH", "%s", clean.Block(err.Error(), 500))
	}
	opts.ProgramsDir = orElse(f.ProgramsDir, opts.ProgramsDir)
	if u, err := user.Lookup(install.User("executor")); err == nil && installed {
		if uid, err := strconv.Atoi(u.Uid); err == nil {
			opts.UID = uid
		}
	}
	if !changed {
		opts.Development = !installed && a.isDevelopment()
	}
	return orElse(p.path, f.Catalogue), opts, nil
}

// isDevelopment reports whether this installation is one for trying things out: it runs as one, or its signing key has no
// passphrase.
func (a *app) isDevelopment() bool {
	if running, ok := a.home.RunningProcess(); ok {
		return running.Development
	}
	cfg, err := a.home.Load()
	if err != nil {
		return false
	}
	protected, err := keys.Protected(cfg.SigningKey)
	return err == nil && !protected
}

func (p *catalogPlace) of(a *app, cmd *cobra.Command) (string, catalogue.Options, error) {
	return p.resolve(a, cmd.Flags().Changed("development"))
}

// load reads the catalogue there, which must be good, and says where that is.
func (p *catalogPlace) load(a *app, cmd *cobra.Command) (string, *catalogue.Catalogue, error) {
	path, opts, err := p.of(a, cmd)
	if err != nil {
		return "", nil, err
	}
	c, err := catalogue.Load(path, opts)
	if err != nil {
		return "", nil, a.badCatalogue(path, err)
	}
	return path, c, nil
}

// problemJSON is one thing that is wrong with a catalogue, in --json.
type problemJSON struct {
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	What   string `json:"what"`
}

func (a *app) catalogCheckCommand(place *catalogPlace) *cobra.Command {
	return &cobra.Command{
		Use:   "check [PATH]",
		Short: "Whether the catalogue is good; every mistake with its line",
		Long: `Reads the catalogue as the executor would and says everything that is wrong, as file:line:column. Of a good
one it says what the executor will not tell you: modes that declare more than a GPU has, network
expectations that nothing enforces, and whether the running executor uses this very catalogue.

Exit code 1 when it is not good.`,
		Example: "  durward catalog check\n  durward catalog check ./catalogue.yaml --development",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				place.path = args[0]
			}
			path, c, err := place.load(a, cmd)
			if err != nil {
				return err
			}
			return a.goodCatalogue(cmd.Context(), path, c)
		},
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}
}

// badCatalogue says what is wrong with a catalogue.
func (a *app) badCatalogue(path string, err error) error {
	problems := catalogue.AsProblems(err)
	if a.json {
		list := []problemJSON{}
		for _, p := range problems {
			list = append(list, problemJSON{p.File, p.Line, p.Column, p.What})
		}
		if len(problems) == 0 {
			list = append(list, problemJSON{File: path, What: clean.Block(err.Error(), 2000)})
		}
		if err := a.out.Value(map[string]any{"path": path, "good": false, "problems": list}); err != nil {
			return err
		}
		return failed("", "the catalogue is not good: %s", count(len(list), "mistake"))
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || len(problems) == 0 {
		return failed("", "%s", clean.Block(err.Error(), 2000))
	}
	for _, p := range problems {
		a.out.Printf("%s %s\n", a.out.Red("✗"), clean.Line(p.String(), 1000))
	}
	return failed("The executor keeps the last good catalogue until this one is.", "the catalogue is not good: %s",
		count(len(problems), "mistake"))
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// goodCatalogue says what is worth knowing of a good one.
func (a *app) goodCatalogue(ctx context.Context, path string, c *catalogue.Catalogue) error {
	remarks := catalogueRemarks(c)
	inForce, known := a.inForce(ctx, c.Digest)
	if a.json {
		value := map[string]any{
			"path": path, "good": true, "digest": c.Digest, "remarks": remarks, "in_force": nil,
			"gpus": len(c.GPUs), "models": len(c.Models), "services": len(c.Services), "modes": len(c.Modes),
		}
		if known {
			value["in_force"] = inForce
		}
		return a.out.Value(value)
	}
	a.out.Printf("%s %s: %s, %s, %s, %s\n", a.out.Green("✓"), path, count(len(c.GPUs), "GPU"), count(len(c.Models), "model"),
		count(len(c.Services), "service"), count(len(c.Modes), "mode"))
	for _, remark := range remarks {
		a.out.Printf("%s %s\n", a.out.Yellow("!"), remark)
	}
	switch {
	case known && inForce:
		a.out.Printf("%s the executor uses it\n", a.out.Green("✓"))
	case known:
		a.out.Printf("%s the executor uses another one; if it still does in a second, its log says why: %s\n", a.out.Yellow("!"),
			a.home.Log("executor"))
	}
	return nil
}

// inForce reports whether the running executor uses the catalogue with this digest, if it can be asked.
func (a *app) inForce(ctx context.Context, digest string) (inForce, known bool) {
	if !a.home.Exists() {
		return false, false
	}
	ctx, s, err := a.connect(ctx)
	if err != nil {
		return false, false
	}
	defer s.close()
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	status, err := s.Executor.GetStatus(ctx, &executorv1.GetStatusRequest{})
	a.requestID = ""
	return status.GetCatalogueDigest() == digest, err == nil
}

// catalogueRemarks are what is allowed and still worth a look.
func catalogueRemarks(c *catalogue.Catalogue) []string {
	var out []string
	total := map[uint32]uint32{}
	for _, g := range c.GPUs {
		total[g.Index] = g.MemoryMiB
	}
	for _, m := range c.Modes {
		need := map[uint32]uint32{}
		for _, id := range m.Services {
			s, ok := c.Lookup(id)
			if !ok {
				continue
			}
			for _, index := range s.GPUs {
				need[index] += catalogue.Share(s.VRAMMiB, len(s.GPUs))
			}
		}
		for _, g := range c.GPUs {
			// What a real GPU has is measured by the executor.
			if has := total[g.Index]; has > 0 && need[g.Index] > has {
				out = append(out, fmt.Sprintf("mode %s declares %d MiB on GPU %d, which has %d", m.ID, need[g.Index], g.Index, has))
			}
		}
	}
	for _, s := range c.Services {
		if s.Driver == catalogue.DriverProcess && (s.Network == catalogue.NetworkLoopback || s.Network == catalogue.NetworkNone) {
			out = append(out, fmt.Sprintf("service %s expects network %q, which the process driver cannot enforce; "+
				"a systemd unit can: durward service install %s", s.ID, s.Network, s.ID))
		}
	}
	return out
}

func (a *app) catalogShowCommand(place *catalogPlace) *cobra.Command {
	return &cobra.Command{
		Use:   "show [ID]",
		Short: "The catalogue as the executor would read it, or one entry whole",
		Long: `Without ID: what the catalogue defines. With the id of a service, mode or model: the whole entry, every default
filled in, which is what an approver is shown (there with the digest of its program, unit or image).`,
		Example:           "  durward catalog show\n  durward catalog show demo-chat --json | jq .services[0].argv",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeEntries(place),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, c, err := place.load(a, cmd)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				return a.showEntry(c, args[0])
			}
			if a.json {
				return a.out.Value(map[string]any{
					"digest": c.Digest, "gpus": list(c.GPUs), "models": list(c.Models), "services": list(c.Services),
					"modes": list(c.Modes), "boot": c.Boot,
				})
			}
			a.printCatalogue(c)
			return nil
		},
	}
}

// list makes an empty list of none, for JSON.
func list[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}

func (a *app) showEntry(c *catalogue.Catalogue, id string) error {
	found := map[string]any{}
	if s, ok := c.Lookup(id); ok {
		found["services"] = []any{s}
	}
	if m, ok := c.Mode(id); ok {
		found["modes"] = []any{m}
	}
	if m, ok := c.Model(id); ok {
		found["models"] = []any{m}
	}
	if len(found) == 0 {
		next := "See: durward catalog show"
		if near := c.Suggest(id); len(near) > 0 {
			next = "Did you mean " + strings.Join(near, ", ") + "?"
		}
		return failed(next, "no service, mode or model has the id %q", clean.Visible(id))
	}
	if a.json {
		return a.out.Value(found)
	}
	for _, kind := range []string{"services", "modes", "models"} {
		for _, entry := range anyList(found[kind]) {
			raw, err := json.Marshal(entry)
			if err != nil {
				return fmt.Errorf("encode entry: %w", err)
			}
			a.out.Printf("%s\n", a.out.Bold(strings.TrimSuffix(kind, "s")+" "+clean.Visible(id)))
			for _, line := range approval.Lines(raw) {
				a.out.Printf("  %s\n", line)
			}
		}
	}
	return nil
}

func anyList(v any) []any {
	items, _ := v.([]any)
	return items
}

func (a *app) printCatalogue(c *catalogue.Catalogue) {
	var rows [][]string
	for _, g := range c.GPUs {
		kind := "real, " + orElse(g.UUID, "by index")
		if g.Simulated {
			kind = "simulated, " + mebibytes(g.MemoryMiB)
		}
		rows = append(rows, []string{strconv.FormatUint(uint64(g.Index), 10), kind, clean.Line(g.Name, 64)})
	}
	a.section([]string{"GPU", "KIND", "NAME"}, rows)
	rows = nil
	for _, m := range c.Models {
		rows = append(rows, []string{clean.Line(m.ID, 128), clean.Line(m.ServedName, 128), clean.Line(m.Source, 256)})
	}
	a.section([]string{"MODEL", "NAME IN REQUESTS", "SOURCE"}, rows)
	rows = nil
	for _, s := range c.Services {
		model := ""
		if s.Model != nil {
			model = clean.Line(s.Model.ID, 128)
		}
		sleep := s.Sleep
		if sleep == catalogue.SleepNone {
			sleep = ""
		}
		rows = append(rows, []string{
			s.ID, s.Driver, orNothing(s.Port), joinNumbers(s.GPUs), mebibytes(s.VRAMMiB), sleep, s.RunAs, model,
		})
	}
	a.section([]string{"SERVICE", "DRIVER", "PORT", "GPUS", "VRAM", "SLEEP", "RUNS AS", "MODEL"}, rows)
	rows = nil
	for _, m := range c.Modes {
		rows = append(rows, []string{m.ID, strings.Join(m.Services, ", "), clean.Line(m.Description, 100)})
	}
	a.section([]string{"MODE", "SERVICES", "ABOUT"}, rows)
	a.out.Printf("at boot: %s\n", clean.Line(orElse(c.Boot, catalogue.BootNone), 64))
}

// section is a table that is left out when it is empty.
func (a *app) section(header []string, rows [][]string) {
	if len(rows) > 0 {
		a.out.Table(header, rows)
		a.out.Printf("\n")
	}
}

// completeEntries completes ids from the catalogue's own file, without asking any process.
func (a *app) completeEntries(place *catalogPlace) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		at, err := home.At(a.homeDir)
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		a.home = at
		path, opts, err := place.of(a, cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := catalogue.Load(path, opts)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for _, s := range c.Services {
			out = append(out, cobra.CompletionWithDesc(s.ID, "service: "+s.Name))
		}
		for _, m := range c.Modes {
			out = append(out, cobra.CompletionWithDesc(m.ID, "mode: "+m.Name))
		}
		for _, m := range c.Models {
			out = append(out, cobra.CompletionWithDesc(m.ID, "model"))
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// Adding.

// addition is one run of `catalog add`.
type addition struct {
	place    *catalogPlace
	section  string
	entry    draft.Entry
	from, to string
	yes      bool
}

const addLong = `
The entry is appended to its list in the catalogue; nothing else in the file changes, comments stay. Before it is
written, the whole catalogue is checked with it, you are shown the new lines, and you are asked.

--from reads an entry that you wrote yourself, YAML or JSON, from a file or "-" for standard input; YAML keeps its
comments. With a folder, --to names the file in it; otherwise it is the last file that has such entries.`

func (a *app) catalogAddCommand(place *catalogPlace) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add [FILE.gguf|FOLDER]",
		Short: "Add a service, mode, model or GPU, or what a local model needs; comments stay, and you are asked",
		Long:  "Adds an entry to the catalogue, or for a local model two.\n" + fromModelLong + "\n" + addLong,
		Example: `  durward catalog add /srv/models/Qwen3-8B-Q4_K_M.gguf --context 16384
  durward catalog add /srv/models/Qwen3-32B --gpus 0,1 --run-as ai
  durward catalog add service --from coder.yaml
  durward catalog add model Qwen/Qwen3-32B --source hf:Qwen/Qwen3-32B
  durward catalog add mode coding coder demo-embed`,
		Annotations: map[string]string{takesFiles: ""},
		Args:        cobra.MaximumNArgs(1),
	}
	add := &addition{place: place}
	m := &fromModel{add: add}
	a.modelFlags(m, cmd)
	// Beside the subcommands a model's file or folder: the shell's own completion, where no subcommand begins so.
	cmd.ValidArgsFunction = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return a.addFromModel(cmd, m, args[0])
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&add.from, "from", "", `read the whole entry, YAML or JSON, from a file, or "-"`)
	flags.StringVar(&add.to, "to", "", "the file of a catalogue folder that gets it; made if it is missing")
	flags.BoolVar(&add.yes, "yes", false, "do not ask before writing")
	_ = cmd.MarkPersistentFlagFilename("from", "yaml", "yml", "json") // for completion alone
	cmd.AddCommand(a.addServiceCommand(add), a.addModeCommand(add), a.addModelCommand(add), a.addGPUCommand(add))
	return cmd
}

// adder makes one of the subcommands: build lays the entry out from arguments and flags where --from is not given.
func (a *app) adder(
	add *addition, section string, cmd *cobra.Command, build func(cmd *cobra.Command, args []string) (draft.Entry, error),
) *cobra.Command {
	cmd.Long += "\n" + addLong
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		add.section = section
		switch {
		case add.from != "" && len(args) > 0:
			return usage("", "with --from the file says everything; leave the arguments out")
		case add.from != "":
			add.entry, err = a.readEntry(add.from)
		default:
			add.entry, err = build(cmd, args)
		}
		if err != nil {
			return err
		}
		path, opts, err := add.place.of(a, cmd)
		if err != nil {
			return err
		}
		return a.add(cmd.Context(), path, opts, *add)
	}
	return cmd
}

func (a *app) readEntry(from string) (draft.Entry, error) {
	var raw []byte
	var err error
	if from == "-" {
		raw, err = io.ReadAll(io.LimitReader(a.streams.In, maxCatalogueFile))
	} else {
		raw, err = readBounded(from)
	}
	if err != nil {
		return draft.Entry{}, usage("", "the entry cannot be read: %s", clean.Line(err.Error(), 300))
	}
	e, err := draft.Read(raw)
	if err != nil {
		return draft.Entry{}, usage("", "%s", err.Error())
	}
	return e, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxCatalogueFile))
}

// fields collects an entry's keys in their order, leaving out what was not given.
type fields struct {
	cmd  *cobra.Command
	list yaml.MapSlice
}

func (f *fields) put(key string, value any) {
	f.list = append(f.list, yaml.MapItem{Key: key, Value: value})
}

// flag puts a key if its flag was given.
func (f *fields) flag(name, key string, value any) {
	if f.cmd.Flags().Changed(name) {
		f.put(key, value)
	}
}

func (f *fields) entry() (draft.Entry, error) {
	e, err := draft.Make(f.list)
	if err != nil {
		return e, usage("", "%s", err.Error())
	}
	return e, nil
}

func (a *app) addServiceCommand(add *addition) *cobra.Command {
	var name, description, driver, unit, image, model, runAs, health, sleep, network, user string
	var port, containerPort, vram, sleepMiB, startTimeout, stopTimeout, stallTimeout uint32
	var gpus []uint
	var dependsOn []string
	var openAI, pin bool
	cmd := &cobra.Command{
		Use:   "service ID [flags] [-- PROGRAM ARGUMENT...]",
		Short: "Add a service: a program, a systemd unit or a container",
		Long: `Adds a service to the catalogue. What follows "--" is the program with its arguments, exactly as they will be
passed on; no shell ever sees them. With --unit it is a systemd unit instead, with --image a container.`,
		Example: `  durward catalog add service coder --port 8001 --gpus 0 --vram 40000 -- vllm serve Qwen/Qwen3-32B --port 8001
  durward catalog add service ollama --unit ollama.service --port 11434 --gpus 0 --vram 20000
  durward catalog add service --from coder.yaml`,
		Args: cobra.ArbitraryArgs,
	}
	cmd = a.adder(add, draft.Services, cmd, func(cmd *cobra.Command, args []string) (draft.Entry, error) {
		dash := cmd.ArgsLenAtDash()
		var argv []string
		if dash >= 0 {
			args, argv = args[:dash], args[dash:]
		}
		if len(args) != 1 {
			return draft.Entry{}, usage("Usage: "+cmd.UseLine(), "name one service id; its program follows --")
		}
		kind := driver
		given := 0
		for _, one := range []struct {
			driver string
			is     bool
		}{{catalogue.DriverProcess, len(argv) > 0}, {catalogue.DriverSystemd, unit != ""}, {catalogue.DriverDocker, image != ""}} {
			if one.is {
				given++
				kind = orElse(kind, one.driver)
			}
		}
		if given > 1 || kind == "" {
			return draft.Entry{}, usage("Usage: "+cmd.UseLine(), "say what it runs: a program behind --, or --unit, or --image")
		}
		f := fields{cmd: cmd}
		f.put("id", args[0])
		f.flag("name", "name", name)
		f.flag("description", "description", description)
		f.put("driver", kind)
		f.flag("unit", "unit", unit)
		if image != "" {
			container := yaml.MapSlice{{Key: "image", Value: image}}
			if user != "" {
				container = append(container, yaml.MapItem{Key: "user", Value: user})
			}
			if containerPort > 0 {
				container = append(container, yaml.MapItem{Key: "port", Value: containerPort})
			}
			f.put("container", container)
		}
		if len(argv) > 0 {
			f.put("argv", argv)
		}
		f.flag("run-as", "run_as", runAs)
		f.flag("port", "port", port)
		if health != "" {
			f.put("health", yaml.MapSlice{{Key: "path", Value: health}})
		}
		f.flag("openai", "openai", openAI)
		f.flag("model", "model", model)
		f.flag("gpus", "gpus", indexes(gpus))
		f.flag("vram", "vram_mib", vram)
		f.flag("sleep", "sleep", sleep)
		f.flag("sleep-mib", "sleep_mib", sleepMiB)
		f.flag("depends-on", "depends_on", dependsOn)
		f.flag("pin", "pin", pin)
		f.flag("network", "network", network)
		f.flag("start-timeout", "start_timeout_s", startTimeout)
		f.flag("stall-timeout", "stall_timeout_s", stallTimeout)
		f.flag("stop-timeout", "stop_timeout_s", stopTimeout)
		return f.entry()
	})
	flags := cmd.Flags()
	flags.StringVar(&name, "name", "", "for people")
	flags.StringVar(&description, "description", "", "for people and agents")
	flags.StringVar(&driver, "driver", "", "process, systemd, docker or null (default: by what it runs)")
	flags.StringVar(&unit, "unit", "", "the systemd unit, NAME.service")
	flags.StringVar(&image, "image", "", "the container's image, NAME@sha256:DIGEST")
	flags.StringVar(&user, "container-user", "", "the user in the container, UID or UID:GID")
	flags.Uint32Var(&containerPort, "container-port", 0, "the port in the container")
	flags.StringVar(&runAs, "run-as", "", "the user that the program runs as")
	flags.Uint32Var(&port, "port", 0, "the port on 127.0.0.1")
	flags.StringVar(&health, "health", "", "the path that is asked for health (default /health)")
	flags.BoolVar(&openAI, "openai", false, "it speaks OpenAI's API: ask for one token before it counts as ready")
	flags.StringVar(&model, "model", "", "the id of the model that it serves")
	flags.UintSliceVar(&gpus, "gpus", nil, "indexes of its GPUs: 0,1")
	flags.Uint32Var(&vram, "vram", 0, "GPU memory that it needs in all, in MiB")
	flags.StringVar(&sleep, "sleep", "", "how it sleeps: none, vllm-l1, vllm-l2, llama-router")
	flags.Uint32Var(&sleepMiB, "sleep-mib", 0, "GPU memory that it keeps while it sleeps, in MiB")
	flags.StringSliceVar(&dependsOn, "depends-on", nil, "ids of services that must run first")
	flags.BoolVar(&pin, "pin", false, "no switch stops it, and it never goes idle")
	flags.StringVar(&network, "network", "", "what it is expected to reach: host, loopback, none")
	flags.Uint32Var(&startTimeout, "start-timeout", 0, "seconds until it must be ready (default 60)")
	flags.Uint32Var(&stallTimeout, "stall-timeout", 0, "seconds that a start may go without progress")
	flags.Uint32Var(&stopTimeout, "stop-timeout", 0, "seconds between SIGTERM and SIGKILL (default 10)")
	for name, words := range map[string][]string{
		"driver":  {catalogue.DriverProcess, catalogue.DriverSystemd, catalogue.DriverDocker, catalogue.DriverNull},
		"sleep":   {catalogue.SleepNone, catalogue.SleepVLLM1, catalogue.SleepVLLM2, catalogue.SleepLlamaRouter},
		"network": {catalogue.NetworkHost, catalogue.NetworkLoopback, catalogue.NetworkNone},
	} {
		// It fails for unknown flags alone.
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	models := func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return a.completeModels(cmd, nil, word)
	}
	_ = cmd.RegisterFlagCompletionFunc("model", models)
	return cmd
}

func indexes(gpus []uint) []uint32 {
	out := make([]uint32, len(gpus))
	for i, g := range gpus {
		out[i] = uint32(min(g, 1<<32-1))
	}
	return out
}

func (a *app) addModeCommand(add *addition) *cobra.Command {
	var name, description string
	cmd := &cobra.Command{
		Use:     "mode ID SERVICE...",
		Short:   "Add a mode: services that run together, in the order in which they start",
		Long:    "Adds a mode to the catalogue: services that run together, in the order in which they start.",
		Example: "  durward catalog add mode coding coder demo-embed --description \"The big coder and the embedder\"",
		Args:    cobra.ArbitraryArgs,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeServices(cmd, nil, word)
		},
	}
	cmd = a.adder(add, draft.Modes, cmd, func(cmd *cobra.Command, args []string) (draft.Entry, error) {
		if len(args) < 2 {
			return draft.Entry{}, usage("Usage: "+cmd.UseLine(), "name the mode and its services")
		}
		f := fields{cmd: cmd}
		f.put("id", args[0])
		f.flag("name", "name", name)
		f.flag("description", "description", description)
		f.put("services", args[1:])
		return f.entry()
	})
	cmd.Flags().StringVar(&name, "name", "", "for people")
	cmd.Flags().StringVar(&description, "description", "", "for people and agents")
	return cmd
}

func (a *app) addModelCommand(add *addition) *cobra.Command {
	var served, file, source string
	cmd := &cobra.Command{
		Use:   "model [ID]",
		Short: "Add a model that services serve",
		Long: `Adds a model to the catalogue. With --file its card, by which its memory is estimated, is read from there and becomes part of the
entry; the id may then be left out. A service for it comes along with: durward catalog add FILE`,
		Example: "  durward catalog add model Qwen/Qwen3-32B --served-name qwen3 --source hf:Qwen/Qwen3-32B\n" +
			"  durward catalog add model --file /srv/models/Qwen3-8B-Q4_K_M.gguf",
		Args: cobra.MaximumNArgs(1),
	}
	cmd = a.adder(add, draft.Models, cmd, func(cmd *cobra.Command, args []string) (draft.Entry, error) {
		id := ""
		switch {
		case len(args) == 1:
			id = args[0]
		case file != "":
			id = bring.ModelID(modelNamed(file).id)
		}
		if id == "" {
			return draft.Entry{}, usage("Usage: "+cmd.UseLine(), "name the model")
		}
		if err := servable(served); err != nil {
			return draft.Entry{}, err
		}
		f := fields{cmd: cmd}
		f.put("id", id)
		f.flag("served-name", "served_name", served)
		f.flag("file", "file", file)
		f.flag("source", "source", source)
		if file != "" {
			a.withCard(cmd.Context(), &fromModel{add: add}, cmd, file, &f)
		}
		return f.entry()
	})
	cmd.Flags().StringVar(&served, "served-name", "", "the name to use in requests (default: its id)")
	cmd.Flags().StringVar(&file, "file", "", "its file or folder on this host")
	cmd.Flags().StringVar(&source, "source", "", "where it came from, in words: hf:Qwen/Qwen3-32B")
	return cmd
}

func (a *app) addGPUCommand(add *addition) *cobra.Command {
	var uuid, name string
	var memory uint32
	var simulated bool
	cmd := &cobra.Command{
		Use:   "gpu INDEX",
		Short: "Add a GPU, real or simulated",
		Long:  "Adds a GPU to the catalogue: a real one by its uuid or index, or a simulated one for machines without.",
		Example: `  durward catalog add gpu 0 --uuid GPU-5f1d8a5e-6d4e-4c3f-9a51-0b9d8d8a8c11
  durward catalog add gpu 0 --simulated --name "Test GPU" --memory 24576`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd = a.adder(add, draft.GPUs, cmd, func(cmd *cobra.Command, args []string) (draft.Entry, error) {
		if len(args) != 1 {
			return draft.Entry{}, usage("Usage: "+cmd.UseLine(), "name the GPU's index")
		}
		index, err := strconv.ParseUint(args[0], 10, 32)
		if err != nil {
			return draft.Entry{}, usage("Usage: "+cmd.UseLine(), "%q is not an index", clean.Visible(args[0]))
		}
		f := fields{cmd: cmd}
		f.put("index", index)
		f.flag("uuid", "uuid", uuid)
		f.flag("name", "name", name)
		f.flag("memory", "memory_mib", memory)
		f.flag("simulated", "simulated", simulated)
		return f.entry()
	})
	cmd.Flags().StringVar(&uuid, "uuid", "", "a real GPU's uuid, as nvidia-smi -L shows it")
	cmd.Flags().StringVar(&name, "name", "", "for people and agents")
	cmd.Flags().Uint32Var(&memory, "memory", 0, "what a simulated GPU has, in MiB")
	cmd.Flags().BoolVar(&simulated, "simulated", false, "it is made up")
	return cmd
}

// add puts an entry into the catalogue: checked, shown, asked, written.
func (a *app) add(ctx context.Context, path string, opts catalogue.Options, add addition) error {
	files, err := catalogueFiles(path)
	if err != nil {
		return failed("", "the catalogue cannot be read: %s", clean.Line(err.Error(), 300))
	}
	if _, err := catalogue.ParseFiles(files, opts); err != nil {
		return a.badCatalogue(path, err)
	}
	at, files, err := target(path, files, add)
	if err != nil {
		return err
	}
	before := files[at].Data
	text := before
	if text == nil {
		text = []byte("version: 1\n")
	}
	after, line, err := draft.Append(text, add.section, add.entry)
	if err != nil {
		for _, line := range add.entry.Lines() {
			a.display().Printf("    %s\n", clean.Visible(line))
		}
		return failed("", "%s: %s", files[at].Name, err.Error())
	}
	files[at].Data = after
	changed, err := catalogue.ParseFiles(files, opts)
	if err != nil {
		return a.badEntry(files[at].Name, line, len(add.entry.Lines()), err)
	}
	out := a.display()
	out.Printf("%s\n", out.Bold(files[at].Name))
	old, now := strings.Split(string(text), "\n"), strings.Split(string(after), "\n")
	first := 0
	for first < min(len(old), len(now)) && old[first] == now[first] {
		first++
	}
	for i := first; i < min(line-1+len(add.entry.Lines()), len(now)); i++ {
		out.Printf("%s %s\n", out.Dim(fmt.Sprintf("%5d", i+1)), out.Green("+ "+clean.Visible(strings.TrimSuffix(now[i], "\r"))))
	}
	for _, remark := range catalogueRemarks(changed) {
		out.Printf("%s %s\n", out.Yellow("!"), remark)
	}
	if err := a.confirm(ctx, "Write it?", add.yes); err != nil {
		return err
	}
	if err := replace(files[at].Name, before, after); err != nil {
		return err
	}
	if a.json {
		return a.out.Value(map[string]any{"file": files[at].Name, "line": line, "section": add.section, "digest": changed.Digest})
	}
	a.out.Printf("%s written. The executor takes it up within a second; see: durward catalog check\n", a.out.Green("✓"))
	return nil
}

// badEntry says what is wrong with the new entry, by its own lines.
func (a *app) badEntry(file string, line, length int, err error) error {
	var lines []string
	for _, p := range catalogue.AsProblems(err) {
		where := p.String()
		if p.File == file && p.Line >= line && p.Line < line+length {
			where = fmt.Sprintf("line %d of the entry: %s", p.Line-line+1, p.What)
		}
		lines = append(lines, clean.Line(where, 500))
	}
	if len(lines) == 0 {
		lines = []string{clean.Block(err.Error(), 1000)}
	}
	return usage("Nothing was written. Every key of an entry: deploy/config/catalogue.yaml", "%s", strings.Join(lines, "\n  "))
}

// catalogueFiles reads a catalogue's files as the executor lists them.
func catalogueFiles(path string) ([]catalogue.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	names := []string{path}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		names = nil
		for _, e := range entries {
			if filepath.Ext(e.Name()) == ".yaml" && !strings.HasPrefix(e.Name(), ".") {
				names = append(names, filepath.Join(path, e.Name()))
			}
		}
	}
	files := make([]catalogue.File, len(names))
	for i, name := range names {
		data, err := readBounded(name)
		if err != nil {
			return nil, err
		}
		files[i] = catalogue.File{Name: name, Data: data}
	}
	return files, nil
}

// target chooses the file that gets the entry, and adds it to the files, without data, where it is a new one.
func target(path string, files []catalogue.File, add addition) (int, []catalogue.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, nil, err
	}
	if !info.IsDir() {
		if add.to != "" {
			return 0, nil, usage("", "--to is for a catalogue that is a folder; this one is the file %s", path)
		}
		return 0, files, nil
	}
	if add.to != "" {
		if add.to != filepath.Base(add.to) || filepath.Ext(add.to) != ".yaml" || strings.HasPrefix(add.to, ".") {
			return 0, nil, usage("", "--to is the name of a .yaml file in the folder")
		}
		name := filepath.Join(path, add.to)
		if i := slices.IndexFunc(files, func(f catalogue.File) bool { return f.Name == name }); i >= 0 {
			return i, files, nil
		}
		files = append(files, catalogue.File{Name: name})
		slices.SortFunc(files, func(a, b catalogue.File) int { return strings.Compare(a.Name, b.Name) })
		return slices.IndexFunc(files, func(f catalogue.File) bool { return f.Name == name }), files, nil
	}
	at := 0
	for i, f := range files {
		var sections map[string]any
		if yaml.Unmarshal(f.Data, &sections) == nil && len(anyList(sections[add.section])) > 0 {
			at = i
		}
	}
	return at, files, nil
}

// replace writes a catalogue's file, if it still is what was read; nil means that it must not be there.
func replace(path string, before, after []byte) error {
	now, err := readBounded(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && before == nil:
		return home.CreateFile(path, after, 0o644)
	case err != nil:
		return fmt.Errorf("write: %w", err)
	case before == nil || !bytes.Equal(now, before):
		return failed("Run the command again.", "%s was changed meanwhile; nothing was written", path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	// A symbolic link stays one.
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := home.WriteFile(path, after, info.Mode().Perm()); err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) == os.Geteuid() && int(owner.Gid) == os.Getegid() {
		return nil
	}
	// It stays its owner's, whose group may be the executor's.
	if err := os.Chown(path, int(owner.Uid), int(owner.Gid)); err != nil {
		return failed("See that the executor may read it.", "%s was written, and its owner is now you", path)
	}
	return nil
}
