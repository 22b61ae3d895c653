package catalog

import (
	"cmp"
	"io"
	"strconv"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/catalogfile"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/draft"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/sizing"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
)

// Adding.

// addition is one run of `catalog add`.
type addition struct {
	place    *cli.CatalogPlace
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

func (a *app) catalogAddCommand(place *cli.CatalogPlace) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add [FILE.gguf|FOLDER]",
		Short: "Add a service, mode, model or GPU, or what a local model needs; comments stay, and you are asked",
		Long:  "Adds an entry to the catalogue, or for a local model two.\n" + fromModelLong + "\n" + addLong,
		Example: `  durward catalog add /srv/models/Qwen3-8B-Q4_K_M.gguf --context 16384
  durward catalog add /srv/models/Qwen3-32B --gpus 0,1 --run-as ai
  durward catalog add service --from coder.yaml
  durward catalog add model Qwen/Qwen3-32B --source hf:Qwen/Qwen3-32B
  durward catalog add mode coding coder demo-embed`,
		Annotations: map[string]string{cli.TakesFiles: ""},
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
			return cli.Usage("", "with --from the file says everything; leave the arguments out")
		case add.from != "":
			add.entry, err = a.readEntry(add.from)
		default:
			add.entry, err = build(cmd, args)
		}
		if err != nil {
			return err
		}
		path, opts, err := add.place.Of(a.App, cmd)
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
		raw, err = io.ReadAll(io.LimitReader(a.Streams.In, catalogfile.MaxFile))
	} else {
		raw, err = catalogfile.ReadFile(from)
	}
	if err != nil {
		return draft.Entry{}, cli.Usage(`Name a file that holds the entry, YAML or JSON, or "-" for standard input.`, "the entry cannot be read: %s", clean.Line(err.Error(), 300))
	}
	e, err := draft.Read(raw)
	if err != nil {
		return draft.Entry{}, cli.Usage("", "%s", err.Error())
	}
	return e, nil
}

// laidOut is an entry's text.
func laidOut(fields yaml.MapSlice) (draft.Entry, error) {
	e, err := draft.Make(fields)
	if err != nil {
		return e, cli.Usage("", "%s", err.Error())
	}
	return e, nil
}

func (a *app) addServiceCommand(add *addition) *cobra.Command {
	var s draft.Service
	var c catalog.Container
	var gpus []uint
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
		if dash := cmd.ArgsLenAtDash(); dash >= 0 {
			args, s.Argv = args[:dash], args[dash:]
		}
		if len(args) != 1 {
			return draft.Entry{}, cli.Usage("Usage: "+cmd.UseLine(), "name one service id; its program follows --")
		}
		given := 0
		for _, one := range []struct {
			driver string
			is     bool
		}{{catalog.DriverProcess, len(s.Argv) > 0}, {catalog.DriverSystemd, s.Unit != ""}, {catalog.DriverDocker, c.Image != ""}} {
			if one.is {
				given++
				s.Driver = cmp.Or(s.Driver, one.driver)
			}
		}
		if given > 1 || s.Driver == "" {
			return draft.Entry{}, cli.Usage("Usage: "+cmd.UseLine(), "say what it runs: a program behind --, or --unit, or --image")
		}
		s.ID, s.GPUs = args[0], indexes(gpus)
		if c.Image != "" {
			s.Container = &c
		}
		return laidOut(draft.Of(s))
	})
	flags := cmd.Flags()
	flags.StringVar(&s.Name, "name", "", "for people")
	flags.StringVar(&s.Description, "description", "", "for people and agents")
	flags.StringVar(&s.Driver, "driver", "", "process, systemd, docker or null (default: by what it runs)")
	flags.StringVar(&s.Unit, "unit", "", "the systemd unit, NAME.service")
	flags.StringVar(&c.Image, "image", "", "the container's image, NAME@sha256:DIGEST")
	flags.StringVar(&c.User, "container-user", "", "the user in the container, UID or UID:GID")
	flags.Uint32Var(&c.Port, "container-port", 0, "the port in the container")
	flags.StringVar(&s.RunAs, "run-as", "", "the user that the program runs as")
	flags.Uint32Var(&s.Port, "port", 0, "the port on 127.0.0.1")
	flags.StringVar(&s.Health.Path, "health", "", "the path that is asked for health (default /health)")
	flags.BoolVar(&s.OpenAI, "openai", false, "it speaks OpenAI's API: ask for one token before it counts as ready")
	flags.StringVar(&s.Model, "model", "", "the id of the model that it serves")
	flags.UintSliceVar(&gpus, "gpus", nil, "indexes of its GPUs: 0,1")
	flags.Uint32Var(&s.VRAMMiB, "vram", 0, "GPU memory that it needs in all, in MiB")
	flags.StringVar(&s.Sleep, "sleep", "", "how it sleeps: none, vllm-l1, vllm-l2, llama-router")
	flags.Uint32Var(&s.SleepMiB, "sleep-mib", 0, "GPU memory that it keeps while it sleeps, in MiB")
	flags.StringSliceVar(&s.DependsOn, "depends-on", nil, "ids of services that must run first")
	flags.BoolVar(&s.Pin, "pin", false, "no switch stops it, and it never goes idle")
	flags.StringVar(&s.Network, "network", "", "what it is expected to reach: host, loopback, none")
	flags.Uint32Var(&s.StartTimeoutS, "start-timeout", 0, "seconds until it must be ready (default 60)")
	flags.Uint32Var(&s.StallTimeoutS, "stall-timeout", 0, "seconds that a start may go without progress")
	flags.Uint32Var(&s.StopTimeoutS, "stop-timeout", 0, "seconds between SIGTERM and SIGKILL (default 10)")
	for name, words := range map[string][]string{
		"driver":  {catalog.DriverProcess, catalog.DriverSystemd, catalog.DriverDocker, catalog.DriverNull},
		"sleep":   {catalog.SleepNone, catalog.SleepVLLM1, catalog.SleepVLLM2, catalog.SleepLlamaRouter},
		"network": {catalog.NetworkHost, catalog.NetworkLoopback, catalog.NetworkNone},
	} {
		cli.CompleteFlag(cmd, name, cli.OneOf(words...))
	}
	return cmd
}

func indexes(gpus []uint) []uint32 {
	return output.Each(gpus, func(g uint) uint32 { return uint32(min(g, 1<<32-1)) })
}

func (a *app) addModeCommand(add *addition) *cobra.Command {
	var m catalog.Mode
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
			return a.CompleteEntries("service")(cmd, nil, word)
		},
	}
	cmd = a.adder(add, draft.Modes, cmd, func(cmd *cobra.Command, args []string) (draft.Entry, error) {
		if len(args) < 2 {
			return draft.Entry{}, cli.Usage("Usage: "+cmd.UseLine(), "name the mode and its services")
		}
		m.ID, m.Services = args[0], args[1:]
		return laidOut(draft.Of(m))
	})
	cmd.Flags().StringVar(&m.Name, "name", "", "for people")
	cmd.Flags().StringVar(&m.Description, "description", "", "for people and agents")
	return cmd
}

func (a *app) addModelCommand(add *addition) *cobra.Command {
	var m catalog.Model
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
		switch {
		case len(args) == 1:
			m.ID = args[0]
		case m.File != "":
			m.ID = proposal.ModelID(sizing.NameOf(m.File).ID)
		}
		if m.ID == "" {
			return draft.Entry{}, cli.Usage("Usage: "+cmd.UseLine(), "name the model")
		}
		if err := servable(m.ServedName); err != nil {
			return draft.Entry{}, err
		}
		if m.File != "" {
			m.Card = a.cardOf(cmd, add.place, m.File)
		}
		return laidOut(draft.Of(m))
	})
	cmd.Flags().StringVar(&m.ServedName, "served-name", "", "the name to use in requests (default: its id)")
	cmd.Flags().StringVar(&m.File, "file", "", "its file or folder on this host")
	cmd.Flags().StringVar(&m.Source, "source", "", "where it came from, in words: hf:Qwen/Qwen3-32B")
	return cmd
}

func (a *app) addGPUCommand(add *addition) *cobra.Command {
	var g catalog.GPU
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
			return draft.Entry{}, cli.Usage("Usage: "+cmd.UseLine(), "name the GPU's index")
		}
		index, err := strconv.ParseUint(args[0], 10, 32)
		if err != nil {
			return draft.Entry{}, cli.Usage("Usage: "+cmd.UseLine(), "%q is not an index", clean.Visible(args[0]))
		}
		g.Index = uint32(index)
		return laidOut(draft.OfGPU(g))
	})
	cmd.Flags().StringVar(&g.UUID, "uuid", "", "a real GPU's uuid, as nvidia-smi -L shows it")
	cmd.Flags().StringVar(&g.Name, "name", "", "for people and agents")
	cmd.Flags().Uint32Var(&g.MemoryMiB, "memory", 0, "what a simulated GPU has, in MiB")
	cmd.Flags().BoolVar(&g.Simulated, "simulated", false, "it is made up")
	return cmd
}
