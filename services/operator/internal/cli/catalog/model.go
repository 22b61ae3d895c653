package catalog

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/draft"
	"durward.internal/services/operator/internal/importer/discover"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/operator/internal/sizing"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/hostprogram"
	"durward.internal/services/platform/inspect"
	"durward.internal/services/platform/model"
)

const (
	// inspector is the program that reads models' files; it lies beside this one.
	inspector = "durward-inspect"
	// oracle is llama.cpp's own program that says what a model takes.
	oracle = "llama-fit-params"
)

// fromModel is one run of `catalog add FILE`.
type fromModel struct {
	add                       *addition
	id, served, service       string
	noService, exact          bool
	runAs, program, fitParams string
	gpus                      []uint
	context, port             uint32
}

// servable refuses a name that is not what it looks like: an engine would get it as it is.
func servable(name string) error {
	if !proposal.Shown(name) {
		return cli.Usage("", "--served-name %q holds characters that cannot be shown", clean.Visible(name))
	}
	return nil
}

func (a *app) modelFlags(m *fromModel, cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&m.id, "id", "", "the model's id (default: from the name of its file or folder)")
	flags.StringVar(&m.served, "served-name", "", "the name to use in requests (default: its id)")
	flags.StringVar(&m.service, "service", "", "the service's id (default: from the model's)")
	flags.BoolVar(&m.noService, "no-service", false, "add the model alone")
	flags.UintSliceVar(&m.gpus, "gpus", nil, "indexes of the service's GPUs (default: the fewest that it fits on)")
	flags.Uint32Var(&m.context, "context", 0, "its context length in tokens (default: the longest that fits, at most 32768)")
	flags.Uint32Var(&m.port, "port", 0, "its port on 127.0.0.1 (default: a free one from 8001 on)")
	flags.StringVar(&m.runAs, "run-as", "", "the user that it runs as; needed outside development")
	flags.StringVar(&m.program, "program", "", "the engine's program (default: llama-server for a file, vllm for a folder)")
	flags.BoolVar(&m.exact, "exact", false, "ask llama.cpp's llama-fit-params too, if it is installed; it opens the file and the GPUs")
	flags.StringVar(&m.fitParams, "llama-fit-params", "", "where that program is (default: as executor.yaml says, or in PATH)")
	cmd.MarkFlagsMutuallyExclusive("service", "no-service")
	for _, made := range []string{"id", "service", "context"} {
		cli.CompleteFlag(cmd, made, cobra.NoFileCompletions)
	}
}

const fromModelLong = `
With a GGUF file or a folder of Hugging Face's (config.json and safetensors), what is in it is read by durward-inspect, a process of
its own with bounds, and two entries are drafted: the model with its card, and a service that serves it on a free port of 127.0.0.1,
llama-server for a file and vLLM for a folder, on the fewest GPUs that it fits on. You are shown what it will take, part by part.`

// IsModelPath reports whether an argument of catalog add is meant to be a file or a folder.
func IsModelPath(arg string) bool {
	if strings.ContainsRune(arg, filepath.Separator) || strings.HasSuffix(arg, ".gguf") {
		return true
	}
	_, err := os.Stat(arg)
	return err == nil
}

// newEntry is one of several entries that are added together.
type newEntry struct {
	section string
	entry   draft.Entry
}

// addFromModel drafts a model and a service for a local model, shows both with their estimate, asks and writes.
func (a *app) addFromModel(cmd *cobra.Command, m *fromModel, path string) error {
	if err := servable(m.served); err != nil {
		return err
	}
	ctx := cmd.Context()
	if m.add.from != "" {
		return cli.Usage("", "with --from the file says everything; leave the arguments out")
	}
	file, err := filepath.Abs(path)
	if err != nil {
		return cli.Failed("", "%s", clean.Line(err.Error(), 300))
	}
	at, opts, err := m.add.place.Of(a.App, cmd)
	if err != nil {
		return err
	}
	card, err := a.readCard(ctx, opts, file)
	if err != nil {
		return err
	}
	_, present, err := a.readCatalog(at, opts)
	if err != nil {
		return err
	}
	named := sizing.NameOf(file)
	id := proposal.ModelID(cmp.Or(m.id, named.ID))
	if id == "" || m.id != "" && id != m.id {
		return cli.Usage("Give it one: --id NAME", "no model id can be made of %q", clean.Visible(cmp.Or(m.id, filepath.Base(file))))
	}
	if _, taken := present.Model(id); taken {
		return cli.Usage("Name it otherwise: --id NAME", "the catalogue has a model %s already", id)
	}
	entry, err := laidOut(draft.Of(catalog.Model{ID: id, ServedName: m.served, File: file, Source: named.Source, Card: &card}))
	if err != nil {
		return err
	}
	entries := []newEntry{{draft.Models, entry}}
	if !m.noService {
		more, err := a.draftService(ctx, m, present, opts, card, file, id)
		if err != nil {
			return err
		}
		entries = append(entries, more...)
	}
	return a.addEntries(ctx, at, opts, m, entries, file)
}

// readCard runs the inspector.
func (a *app) readCard(ctx context.Context, opts catalog.Options, file string) (model.Card, error) {
	own, err := cli.OwnFolder()
	if err != nil {
		return model.Card{}, err
	}
	program := ""
	for _, folder := range []string{opts.ProgramsDir, own} {
		if folder != "" && executable(filepath.Join(folder, inspector)) {
			program = filepath.Join(folder, inspector)
			break
		}
	}
	if program == "" {
		return model.Card{}, cli.Failed("It is built and installed with durward: make build", "%s is not beside this program", inspector)
	}
	if program, err = filepath.Abs(program); err != nil {
		return model.Card{}, err
	}
	i := &inspect.Inspector{Program: program}
	card, err := i.Card(ctx, file)
	if err != nil {
		return card, cli.Failed("Nothing was written.", "%s: %s", clean.Visible(file), clean.Line(err.Error(), 300))
	}
	return card, nil
}

// draftService drafts a service for the model, and before it the GPUs that the catalog does not have yet.
func (a *app) draftService(
	ctx context.Context, m *fromModel, present *catalog.Catalog, opts catalog.Options, card model.Card, file, modelID string,
) ([]newEntry, error) {
	name := cmp.Or(m.service, strings.ToLower(modelID[strings.LastIndex(modelID, "/")+1:]))
	id := proposal.FreeID(name, proposal.Taken(present))
	if id == "" || m.service != "" && id != m.service {
		return nil, cli.Usage("Name it otherwise: --service ID", "the service's id %q is taken or is none", clean.Visible(name))
	}
	engine, program := enginecmd.VLLM, "vllm"
	if strings.HasSuffix(file, ".gguf") {
		engine, program = enginecmd.LlamaCPP, "llama-server"
	}
	program = cmp.Or(m.program, program)
	if _, err := opts.Find(program); err != nil {
		return nil, cli.Usage("Name the program: --program PATH; or add the model alone: --no-service", "%s is neither in programs_dir nor in PATH",
			clean.Visible(program))
	}
	if m.runAs == "" && !opts.Development {
		return nil, cli.Usage("Name the user: --run-as USER", "outside development a service runs as a user of its own")
	}
	gpus, err := a.serviceGPUs(ctx, m, present)
	if err != nil {
		return nil, err
	}
	port, err := sizing.FreePort(m.port, present)
	if err != nil {
		return nil, cli.Usage("Name one: --port N", "%v", err)
	}
	c := sizing.Choose(card, engine, gpus, len(m.gpus) > 0, m.context)
	var out []newEntry
	for _, g := range c.GPUs {
		if !g.Missing {
			continue
		}
		e, err := draft.Make(draft.OfGPU(catalog.GPU{Index: g.Index, UUID: g.UUID, Name: g.Name}))
		if err != nil {
			return nil, err
		}
		out = append(out, newEntry{draft.GPUs, e})
	}
	e, err := laidOut(draft.Of(sizing.Entry(c, sizing.Service{Engine: engine, Program: program, File: file, ID: id, Model: modelID, Served: cmp.Or(m.served, modelID), RunAs: m.runAs, Port: port})))
	if err != nil {
		return nil, err
	}
	return append(out, newEntry{draft.Services, e}), nil
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// serviceGPUs are the GPUs that the service may use: those that were named, or the catalog's, or where it has none the host's.
func (a *app) serviceGPUs(ctx context.Context, m *fromModel, present *catalog.Catalog) ([]sizing.GPU, error) {
	host, _, err := discover.GPUs(ctx, hostprogram.Run)
	if err != nil {
		a.Out.Remark("The GPUs cannot be read, so their memory is not known here: %s", clean.Line(err.Error(), 200))
	}
	var all []sizing.GPU
	for _, g := range present.GPUs {
		one := sizing.GPU{Index: g.Index, Driver: g.Index, Real: !g.Simulated, TotalMiB: g.MemoryMiB}
		i := slices.IndexFunc(host, func(h discover.GPU) bool {
			return g.UUID != "" && h.UUID == g.UUID || g.UUID == "" && h.Index == g.Index
		})
		if i >= 0 && one.Real {
			one.Driver, one.TotalMiB = host[i].Index, host[i].TotalMiB
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		for _, h := range host {
			all = append(all, sizing.GPU{Index: h.Index, Driver: h.Index, Real: true, TotalMiB: h.TotalMiB, Missing: true, UUID: h.UUID, Name: h.Name})
		}
	}
	if len(m.gpus) == 0 {
		return all, nil
	}
	var out []sizing.GPU
	for _, wanted := range indexes(m.gpus) {
		i := slices.IndexFunc(all, func(g sizing.GPU) bool { return g.Index == wanted })
		if i < 0 {
			return nil, cli.Usage("See: durward catalog show", "the catalogue has no GPU %d", wanted)
		}
		out = append(out, all[i])
	}
	return out, nil
}

// cardOf is a model's card, nil if its file cannot be read.
func (a *app) cardOf(cmd *cobra.Command, place *cli.CatalogPlace, file string) *model.Card {
	_, opts, err := place.Of(a.App, cmd)
	if err != nil {
		return nil
	}
	card, err := a.readCard(cmd.Context(), opts, file)
	if err != nil {
		// A file that is no model's, or not there yet, is an entry all the same; the executor reads it when it can.
		a.Out.Remark("The entry has no card, so what the model takes is not known yet: %v", err)
		return nil
	}
	return &card
}

// addEntries puts several entries into the catalog: checked together, shown, asked for once, written file by file.
func (a *app) addEntries(ctx context.Context, path string, opts catalog.Options, m *fromModel, entries []newEntry, file string) error {
	files, changed, err := a.readCatalog(path, opts)
	if err != nil {
		return err
	}
	before := map[string][]byte{}
	for _, f := range files {
		before[f.Name] = f.Data
	}
	out := a.Display()
	var written []string
	for _, e := range entries {
		add := *m.add
		add.section, add.entry = e.section, e.entry
		p, err := a.insert(path, files, opts, add)
		if err != nil {
			return err
		}
		files, changed = p.files, p.catalog
		name := p.file().Name
		out.Printf("%s, %s\n", out.Bold(name), e.section)
		for _, l := range e.entry.Lines() {
			out.Printf("    %s\n", out.Green("+ "+clean.Visible(l)))
		}
		if !slices.Contains(written, name) {
			written = append(written, name)
		}
	}
	var estimate *estimateJSON
	added := map[string]string{}
	for _, e := range entries {
		if e.section == draft.GPUs {
			continue
		}
		added[strings.TrimSuffix(e.section, "s")] = e.entry.String("id")
		if s, ok := changed.Lookup(e.entry.String("id")); ok && e.section == draft.Services {
			if estimate, err = a.showEstimate(ctx, m, changed, s, file); err != nil {
				return err
			}
		}
	}
	for _, remark := range catalogRemarks(changed) {
		out.Printf("%s %s\n", out.Yellow("!"), remark)
	}
	if err := a.Confirm(ctx, "Write it?", m.add.yes); err != nil {
		return err
	}
	data := func(name string) []byte {
		return files[slices.IndexFunc(files, func(f catalog.File) bool { return f.Name == name })].Data
	}
	for i, name := range written {
		if err := a.replace(name, before[name], data(name)); err != nil {
			for _, done := range written[:i] {
				// As far as it can be undone. The executor keeps the last good catalog in any case.
				if before[done] != nil {
					err = errors.Join(err, a.replace(done, data(done), before[done]))
				}
			}
			return err
		}
	}
	return a.written(ctx, path, changed, map[string]any{"files": written, "added": added, "estimate": estimate})
}
