package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/bring"
	"durward.internal/services/operator/internal/bring/found"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/draft"
	"durward.internal/services/platform/catalogue"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/inspect"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/vram"
)

const (
	// inspector is the program that reads models' files; it lies beside this one.
	inspector = "durward-inspect"
	// oracle is llama.cpp's own program that says what a model takes.
	oracle = "llama-fit-params"
	// FirstPort is where a port for a new service is looked for.
	FirstPort = 8001
	// usualContext is the context length, in tokens, that a new service gets where the model and the GPUs have room for it. More costs
	// memory that other services want; a human who needs it says so.
	usualContext = 32768
	// leastContext is below what no service is drafted, unless the model or a human wants less; goodContext is what a further GPU is
	// taken for.
	leastContext = 4096
	goodContext  = 8192
	// modelStartS is what a service gets to load its model.
	modelStartS = 900
	// marginMiB is what the executor leaves free on each GPU unless it is told otherwise (deploy/config/executor.yaml).
	marginMiB = 512
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
	if !bring.Shown(name) {
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
		a.CompleteFlagWith(cmd, made, cobra.NoFileCompletions)
	}
	a.CompleteFlagWith(cmd, "program", cli.CompleteFiles())
	a.CompleteFlagWith(cmd, "llama-fit-params", cli.CompleteFiles())
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

// choice is how the service would run, and what that takes.
type choice struct {
	gpus        []hostGPU
	context     uint32
	utilisation string
	estimate    vram.Estimate
	// fits: on every GPU there is room; sized: the GPUs' memory is known.
	fits, sized bool
}

// hostGPU is one that a service may use.
type hostGPU struct {
	index uint32
	// driver is the driver's own index, and real: it is none that the catalogue made up.
	driver   uint32
	real     bool
	totalMiB uint32
	// missing: the catalogue does not have it; uuid and name are for its entry.
	missing    bool
	uuid, name string
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
	files, err := catalogueFiles(at)
	if err != nil {
		return cli.Failed("", "the catalogue cannot be read: %s", clean.Line(err.Error(), 300))
	}
	present, err := catalogue.ParseFiles(files, opts)
	if err != nil {
		return a.BadCatalogue(at, err)
	}
	named := modelNamed(file)
	id := bring.ModelID(cmp.Or(m.id, named.id))
	if id == "" || m.id != "" && id != m.id {
		return cli.Usage("Give it one: --id NAME", "no model id can be made of %q", clean.Visible(cmp.Or(m.id, filepath.Base(file))))
	}
	if _, taken := present.Model(id); taken {
		return cli.Usage("Name it otherwise: --id NAME", "the catalogue has a model %s already", id)
	}
	entry, err := draft.Make(modelFields(id, m.served, file, named.source, &card))
	if err != nil {
		return cli.Usage("", "%s", err.Error())
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
func (a *app) readCard(ctx context.Context, opts catalogue.Options, file string) (model.Card, error) {
	own, err := cli.OwnFolder()
	if err != nil {
		return model.Card{}, err
	}
	program := ""
	for _, folder := range []string{opts.ProgramsDir, own} {
		if info, err := os.Stat(filepath.Join(folder, inspector)); folder != "" && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
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

// naming is what a path says of a model's name.
type naming struct{ id, source string }

var (
	splitPart = regexp.MustCompile(`-[0-9]{5}-of-[0-9]{5}\z`)
	// Hugging Face's cache: models--OWNER--NAME/snapshots/REVISION.
	hubCache = regexp.MustCompile(`/models--([A-Za-z0-9][A-Za-z0-9._\-]*?)--([A-Za-z0-9][A-Za-z0-9._\-]*)/snapshots/[0-9a-f]{40}(/|\z)`)
)

func modelNamed(file string) naming {
	if m := hubCache.FindStringSubmatch(file); m != nil {
		name := m[1] + "/" + m[2]
		if strings.HasSuffix(file, ".gguf") {
			return naming{ggufName(file), "hf:" + name}
		}
		return naming{name, "hf:" + name}
	}
	if strings.HasSuffix(file, ".gguf") {
		return naming{id: ggufName(file)}
	}
	return naming{id: filepath.Base(file)}
}

func ggufName(file string) string {
	return splitPart.ReplaceAllString(strings.TrimSuffix(filepath.Base(file), ".gguf"), "")
}

// modelFields are a model's entry.
func modelFields(id, served, file, source string, card *model.Card) yaml.MapSlice {
	out := yaml.MapSlice{{Key: "id", Value: id}}
	put := func(key string, value any, given bool) {
		if given {
			out = append(out, yaml.MapItem{Key: key, Value: value})
		}
	}
	put("served_name", served, served != "")
	put("file", file, file != "")
	put("source", source, source != "")
	if card != nil {
		put("card", cardFields(*card), true)
	}
	return out
}

// cardFields lay a card out as the catalogue has it.
func cardFields(c model.Card) yaml.MapSlice {
	var out yaml.MapSlice
	number := func(to *yaml.MapSlice, key string, n uint64) {
		if n != 0 {
			*to = append(*to, yaml.MapItem{Key: key, Value: n})
		}
	}
	if c.Architecture != "" {
		out = append(out, yaml.MapItem{Key: "architecture", Value: c.Architecture})
	}
	number(&out, "weights_mib", uint64(c.WeightsMiB))
	number(&out, "host_weights_mib", uint64(c.HostWeightsMiB))
	number(&out, "output_mib", uint64(c.OutputMiB))
	number(&out, "context", uint64(c.Context))
	number(&out, "hidden", uint64(c.Hidden))
	number(&out, "feed_forward", uint64(c.FeedForward))
	number(&out, "heads", uint64(c.Heads))
	number(&out, "vocabulary", uint64(c.Vocabulary))
	var layers []any
	for _, l := range c.Layers {
		one := yaml.MapSlice{{Key: "count", Value: l.Count}, {Key: "kind", Value: l.Kind}}
		number(&one, "kv_heads", uint64(l.KVHeads))
		number(&one, "key_dim", uint64(l.KeyDim))
		number(&one, "value_dim", uint64(l.ValueDim))
		number(&one, "window", uint64(l.Window))
		number(&one, "state_bytes", l.StateBytes)
		if l.Shared {
			one = append(one, yaml.MapItem{Key: "shared", Value: true})
		}
		layers = append(layers, one)
	}
	if len(layers) > 0 {
		out = append(out, yaml.MapItem{Key: "layers", Value: layers})
	}
	return out
}

// draftService drafts a service for the model, and before it the GPUs that the catalogue does not have yet.
func (a *app) draftService(
	ctx context.Context, m *fromModel, present *catalogue.Catalogue, opts catalogue.Options, card model.Card, file, modelID string,
) ([]newEntry, error) {
	taken := map[string]bool{}
	for _, s := range present.Services {
		taken[s.ID] = true
	}
	for _, mode := range present.Modes {
		taken[mode.ID] = true
	}
	name := cmp.Or(m.service, strings.ToLower(modelID[strings.LastIndex(modelID, "/")+1:]))
	id := bring.FreeID(name, taken)
	if id == "" || m.service != "" && id != m.service {
		return nil, cli.Usage("Name it otherwise: --service ID", "the service's id %q is taken or is none", clean.Visible(name))
	}
	engine, program := enginecmd.VLLM, "vllm"
	if strings.HasSuffix(file, ".gguf") {
		engine, program = enginecmd.LlamaCPP, "llama-server"
	}
	program = cmp.Or(m.program, program)
	if !programFound(program, opts.ProgramsDir) {
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
	port, err := freePort(m.port, present)
	if err != nil {
		return nil, err
	}
	c := chooseGPUs(card, engine, gpus, len(m.gpus) > 0, m.context)
	var out []newEntry
	for _, g := range c.gpus {
		if !g.missing {
			continue
		}
		e, err := draft.Make(yaml.MapSlice{{Key: "index", Value: g.index}, {Key: "uuid", Value: g.uuid}, {Key: "name", Value: g.name}})
		if err != nil {
			return nil, err
		}
		out = append(out, newEntry{draft.GPUs, e})
	}
	e, err := draft.Make(serviceFields(m, c, card, engine, program, file, id, modelID, port))
	if err != nil {
		return nil, cli.Usage("", "%s", err.Error())
	}
	return append(out, newEntry{draft.Services, e}), nil
}

func programFound(name, folder string) bool {
	if filepath.IsAbs(name) {
		info, err := os.Stat(name)
		return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
	}
	if info, err := os.Stat(filepath.Join(folder, name)); folder != "" && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
		return true
	}
	found, err := exec.LookPath(name)
	return err == nil && filepath.IsAbs(found)
}

// freePort is the port that was asked for, or the first from firstPort on that neither a service has nor a program of this host.
func freePort(wanted uint32, present *catalogue.Catalogue) (uint32, error) {
	taken := func(port uint32) bool {
		return slices.ContainsFunc(present.Services, func(s *catalogue.Service) bool { return s.Port == port })
	}
	if wanted != 0 {
		return wanted, nil // the catalogue's check says whose it is
	}
	for port := uint32(FirstPort); port < 10000; port++ {
		if taken(port) {
			continue
		}
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.FormatUint(uint64(port), 10))
		if err != nil {
			continue
		}
		_ = l.Close()
		return port, nil
	}
	return 0, cli.Usage("Name one: --port N", "no port from %d on is free", FirstPort)
}

// serviceGPUs are the GPUs that the service may use: those that were named, or the catalogue's, or where it has none the host's.
func (a *app) serviceGPUs(ctx context.Context, m *fromModel, present *catalogue.Catalogue) ([]hostGPU, error) {
	host, _, err := found.GPUs(ctx, found.Run)
	if err != nil {
		a.Out.Remark("The GPUs cannot be read, so their memory is not known here: %s", clean.Line(err.Error(), 200))
	}
	var all []hostGPU
	for _, g := range present.GPUs {
		one := hostGPU{index: g.Index, driver: g.Index, real: !g.Simulated, totalMiB: g.MemoryMiB}
		i := slices.IndexFunc(host, func(h found.GPU) bool { return g.UUID != "" && h.UUID == g.UUID || g.UUID == "" && h.Index == g.Index })
		if i >= 0 && one.real {
			one.driver, one.totalMiB = host[i].Index, host[i].TotalMiB
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		for _, h := range host {
			all = append(all, hostGPU{index: h.Index, driver: h.Index, real: true, totalMiB: h.TotalMiB, missing: true, uuid: h.UUID, name: h.Name})
		}
	}
	if len(m.gpus) == 0 {
		return all, nil
	}
	var out []hostGPU
	for _, wanted := range indexes(m.gpus) {
		i := slices.IndexFunc(all, func(g hostGPU) bool { return g.index == wanted })
		if i < 0 {
			return nil, cli.Usage("See: durward catalog show", "the catalogue has no GPU %d", wanted)
		}
		out = append(out, all[i])
	}
	return out, nil
}

// chooseGPUs finds how the service fits: the fewest GPUs first, and on them the longest context, at most usualContext unless more was
// asked for. Where nothing fits, it says what the least would take.
func chooseGPUs(card model.Card, engine string, gpus []hostGPU, all bool, wanted uint32) choice {
	contexts := contextsOf(card, wanted)
	sets := setsOf(gpus, engine, all)
	var last choice
	for _, least := range []uint32{min(goodContext, contexts[0]), 0} {
		for _, set := range sets {
			for _, context := range contexts {
				if context < least {
					break
				}
				c := runOn(card, engine, set, context)
				if c.fits || !c.sized {
					return c
				}
				last = c
			}
		}
	}
	return last
}

// contextsOf are the context lengths to try, the longest first.
func contextsOf(card model.Card, wanted uint32) []uint32 {
	if wanted > 0 {
		return []uint32{wanted}
	}
	longest := uint32(usualContext)
	if card.Context > 0 {
		longest = min(longest, card.Context)
	}
	out := []uint32{longest}
	for n := uint32(usualContext) / 2; n >= leastContext; n /= 2 {
		if n < longest {
			out = append(out, n)
		}
	}
	return out
}

// setsOf are the GPUs to try together. vLLM divides a model's heads by a power of two, among GPUs that are alike.
func setsOf(gpus []hostGPU, engine string, all bool) [][]hostGPU {
	if all || len(gpus) == 0 {
		return [][]hostGPU{gpus}
	}
	var out [][]hostGPU
	for _, g := range gpus {
		out = append(out, []hostGPU{g})
	}
	for n := 2; n <= len(gpus); n++ {
		if engine == enginecmd.VLLM && n&(n-1) != 0 {
			continue
		}
		for first := 0; first+n <= len(gpus); first++ {
			set := gpus[first : first+n]
			if engine == enginecmd.LlamaCPP || !slices.ContainsFunc(set, func(g hostGPU) bool { return g.totalMiB != set[0].totalMiB }) {
				out = append(out, set)
			}
		}
	}
	return out
}

// runOn estimates the service on these GPUs.
func runOn(card model.Card, engine string, gpus []hostGPU, context uint32) choice {
	out := choice{gpus: gpus, context: context, sized: len(gpus) > 0}
	run, _ := vram.Defaults(engine)
	run.Context = context
	on := make([]vram.GPU, len(gpus))
	for i, g := range gpus {
		on[i].TotalMiB = g.totalMiB
		out.sized = out.sized && g.totalMiB > 0
	}
	if len(gpus) == 0 {
		return out
	}
	if engine == enginecmd.VLLM {
		run.TensorParallel = uint32(len(gpus))
		return out.claim(card, run, on)
	}
	run.Fit = false // whether all of it fits is the question
	estimate, err := vram.Of(card, run, on)
	out.estimate = estimate
	out.fits = err == nil && out.sized && estimate.Starts && out.room()
	return out
}

// claim finds the smallest share of the GPUs with which vLLM starts, and takes one step more where there is room: what it needs at its start is the least
// certain of all.
func (c choice) claim(card model.Card, run vram.Run, on []vram.GPU) choice {
	for percent := 30; percent <= 95; percent += 5 {
		run.Utilisation = float64(percent) / 100
		estimate, err := vram.Of(card, run, on)
		if err != nil {
			return c
		}
		next := c
		next.estimate, next.utilisation = estimate, fmt.Sprintf("%.2f", run.Utilisation)
		room := c.sized && next.room()
		next.fits = room && estimate.Starts
		switch {
		case c.fits && !next.fits:
			return c // there is no room for the step more
		case c.fits, c.sized && !room, !c.sized && percent >= 90:
			return next
		}
		c = next
	}
	return c
}

// room reports whether each GPU has what the estimate takes, and the executor's margin.
func (c choice) room() bool {
	for i, g := range c.gpus {
		if i >= len(c.estimate.PerGPU) || uint64(c.estimate.PerGPU[i])+marginMiB > uint64(g.totalMiB) {
			return false
		}
	}
	return true
}

// serviceFields are the service's entry.
func serviceFields(m *fromModel, c choice, card model.Card, engine, program, file, id, modelID string, port uint32) yaml.MapSlice {
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	served := cmp.Or(m.served, modelID)
	var argv []any
	extra := yaml.MapSlice{{Key: "engine", Value: engine}, {Key: "context_size", Value: c.context}}
	if engine == enginecmd.VLLM {
		argv = []any{program, "serve", file, "--host", "127.0.0.1", "--port", number(port), "--served-model-name", served, "--max-model-len", number(c.context)}
		if len(c.gpus) > 1 {
			argv = append(argv, "--tensor-parallel-size", strconv.Itoa(len(c.gpus)))
			extra = append(extra, yaml.MapItem{Key: "tensor_parallel", Value: len(c.gpus)})
		}
		if c.utilisation != "" {
			argv = append(argv, "--gpu-memory-utilization", c.utilisation)
			extra = append(extra, yaml.MapItem{Key: "gpu_memory_utilization", Value: c.utilisation})
		}
	} else {
		argv = []any{program, "-m", file, "--host", "127.0.0.1", "--port", number(port), "--alias", served, "-c", number(c.context)}
	}
	out := yaml.MapSlice{{Key: "id", Value: id}, {Key: "driver", Value: catalogue.DriverProcess}, {Key: "argv", Value: argv}}
	put := func(key string, value any) { out = append(out, yaml.MapItem{Key: key, Value: value}) }
	var numbers []uint32
	var visible []string
	for _, g := range c.gpus {
		numbers = append(numbers, g.index)
		if g.real {
			visible = append(visible, number(g.driver))
		}
	}
	if len(visible) > 0 {
		// The engine would use every GPU of the host; in this order its numbers are the driver's.
		put("environment", yaml.MapSlice{{Key: "CUDA_DEVICE_ORDER", Value: "PCI_BUS_ID"}, {Key: "CUDA_VISIBLE_DEVICES", Value: strings.Join(visible, ",")}})
	}
	if m.runAs != "" {
		put("run_as", m.runAs)
	}
	put("port", port)
	put("openai", true)
	put("model", modelID)
	if len(numbers) > 0 {
		put("gpus", numbers)
	}
	put("extra_config", extra)
	put("start_timeout_s", modelStartS)
	return out
}

// withCard adds a card to a model's fields, if its file can be read.
func (a *app) withCard(ctx context.Context, m *fromModel, cmd *cobra.Command, file string, f *fields) {
	_, opts, err := m.add.place.Of(a.App, cmd)
	if err != nil {
		return
	}
	card, err := a.readCard(ctx, opts, file)
	if err != nil {
		// A file that is no model's, or not there yet, is an entry all the same; the executor reads it when it can.
		a.Out.Remark("The entry has no card, so what the model takes is not known yet: %v", err)
		return
	}
	f.put("card", cardFields(card))
}

// estimated is what a service of the catalogue takes by its card, on GPUs whose memory is known here, and the run that it was
// reckoned for.
func (a *app) estimated(ctx context.Context, c *catalogue.Catalogue, s *catalogue.Service) (vram.Estimate, vram.Run, []hostGPU, error) {
	var wanted []uint
	for _, g := range s.GPUs {
		wanted = append(wanted, uint(g))
	}
	if s.Model == nil || s.Model.Card == nil || len(wanted) == 0 {
		return vram.Estimate{}, vram.Run{}, nil, vram.ErrNoCard
	}
	gpus, err := a.serviceGPUs(ctx, &fromModel{gpus: wanted}, c)
	if err != nil {
		return vram.Estimate{}, vram.Run{}, nil, err
	}
	run, err := vram.RunOf(s)
	if err != nil {
		return vram.Estimate{}, run, nil, err
	}
	on := make([]vram.GPU, len(gpus))
	for i, g := range gpus {
		on[i].TotalMiB = g.totalMiB
	}
	estimate, err := vram.Of(*s.Model.Card, run, on)
	return estimate, run, gpus, err
}

// estimateJSON is what --json says of memory, in MiB.
type estimateJSON struct {
	Source                                      string            `json:"source"`
	Context                                     uint32            `json:"context"`
	PerGPU                                      map[string]uint32 `json:"per_gpu_mib"`
	Weights, KV, Compute, Overhead, Claim, Load uint32            `json:"-"`
	Parts                                       map[string]uint32 `json:"parts_mib"`
	Fits                                        *bool             `json:"fits"`
	Exact                                       []ExactJSON       `json:"llama_fit_params,omitempty"`
}

type ExactJSON struct {
	Device  string `json:"device"`
	Model   uint32 `json:"model_mib"`
	Context uint32 `json:"context_mib"`
	Compute uint32 `json:"compute_mib"`
}

// showEstimate says what the service will take, part by part with the source, and returns the same for --json.
func (a *app) showEstimate(ctx context.Context, m *fromModel, c *catalogue.Catalogue, s *catalogue.Service, file string) (*estimateJSON, error) {
	estimate, run, gpus, err := a.estimated(ctx, c, s)
	out := a.Display()
	if err != nil {
		out.Printf("%s what it takes cannot be estimated: %s\n", out.Yellow("!"), clean.Line(err.Error(), 300))
		return nil, nil
	}
	source := "estimated from the model's card"
	result := &estimateJSON{
		Source: vram.Estimated, Context: estimate.Context, PerGPU: map[string]uint32{},
		Parts: map[string]uint32{
			"weights": estimate.WeightsMiB, "kv_cache": estimate.KVMiB, "compute": estimate.ComputeMiB, "overhead": estimate.OverheadMiB,
			"claim": estimate.ClaimMiB, "host_while_loading": estimate.LoadHostMiB,
		},
	}
	tokens := uint64(estimate.Context)
	if estimate.ClaimMiB > 0 {
		tokens = estimate.KVTokens // it takes what the claim leaves
	}
	rows := [][]string{
		{"weights", cli.Mebibytes(estimate.WeightsMiB), source},
		{"KV cache", cli.Mebibytes(estimate.KVMiB), fmt.Sprintf("%s: room for %d tokens, %s", source, tokens, cmp.Or(run.CacheK, "f16"))},
		{"computation", cli.Mebibytes(estimate.ComputeMiB), source},
		{"driver and engine", cli.Mebibytes(estimate.OverheadMiB), "estimated: what the driver and such engines take besides"},
	}
	if estimate.ClaimMiB > 0 {
		rows = append(rows, []string{"claim", cli.Mebibytes(estimate.ClaimMiB), fmt.Sprintf("%s takes %.2f of each GPU whatever the model needs", run.Engine, run.Utilisation)})
	}
	out.Table([]string{"PART", "MEMORY", "SOURCE"}, rows)
	fits, sized := true, true
	for i, g := range gpus {
		need := estimate.PerGPU[i]
		result.PerGPU[strconv.FormatUint(uint64(g.index), 10)] = need
		sized = sized && g.totalMiB > 0
		fits = fits && uint64(need)+marginMiB <= uint64(g.totalMiB)
		of := "of a GPU whose memory is not known here"
		if g.totalMiB > 0 {
			of = "of " + cli.Mebibytes(g.totalMiB)
		}
		out.Printf("GPU %d: %s %s\n", g.index, cli.Mebibytes(need), of)
	}
	if sized {
		fits = fits && estimate.Starts
		result.Fits = &fits
		if !fits {
			out.Printf("%s %s\n", out.Red("✗"), "it does not fit: a smaller context (--context), more GPUs (--gpus), or a smaller quantisation")
		}
	}
	if !m.exact {
		return result, nil
	}
	return result, a.showExact(ctx, m, run, file, result)
}

// showExact asks llama.cpp itself.
func (a *app) showExact(ctx context.Context, m *fromModel, run vram.Run, file string, result *estimateJSON) error {
	if run.Engine != enginecmd.LlamaCPP {
		return cli.Usage("", "--exact is for GGUF files: %s is llama.cpp's", oracle)
	}
	program := m.fitParams
	if program == "" {
		f, _, err := a.ExecutorFile()
		if err == nil {
			program = f.GPU.LlamaFitParams
		}
	}
	if program == "" {
		program, _ = exec.LookPath(oracle)
	}
	if program == "" {
		return cli.Failed("Name it: --llama-fit-params PATH", "%s is not in PATH", oracle)
	}
	program, err := filepath.Abs(program)
	if err != nil {
		return err
	}
	devices, err := inspect.FitParams(ctx, program, file, run)
	if err != nil {
		return cli.Failed("Leave --exact out to go by the estimate.", "%s: %s", clean.Visible(program), clean.Line(err.Error(), 300))
	}
	var rows [][]string
	for _, d := range devices {
		result.Exact = append(result.Exact, ExactJSON(d))
		rows = append(rows, []string{d.Device, cli.Mebibytes(d.Model), cli.Mebibytes(d.Context), cli.Mebibytes(d.Compute)})
	}
	out := a.Display()
	out.Printf("%s says, without the driver's own:\n", oracle)
	out.Table([]string{"DEVICE", "WEIGHTS", "KV CACHE", "COMPUTATION"}, rows)
	return nil
}

// addEntries puts several entries into the catalogue: checked together, shown, asked for once, written file by file.
func (a *app) addEntries(ctx context.Context, path string, opts catalogue.Options, m *fromModel, entries []newEntry, file string) error {
	files, err := catalogueFiles(path)
	if err != nil {
		return cli.Failed("", "the catalogue cannot be read: %s", clean.Line(err.Error(), 300))
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
		var at int
		if at, files, err = target(path, files, add); err != nil {
			return err
		}
		text := files[at].Data
		if text == nil {
			text = []byte("version: 1\n")
		}
		after, line, err := draft.Append(text, e.section, e.entry)
		if err != nil {
			return cli.Failed("", "%s: %s", files[at].Name, err.Error())
		}
		files[at].Data = after
		if _, err := catalogue.ParseFiles(files, opts); err != nil {
			return a.badEntry(files[at].Name, line, len(e.entry.Lines()), err)
		}
		out.Printf("%s, %s\n", out.Bold(files[at].Name), e.section)
		for _, l := range e.entry.Lines() {
			out.Printf("    %s\n", out.Green("+ "+clean.Visible(l)))
		}
		if !slices.Contains(written, files[at].Name) {
			written = append(written, files[at].Name)
		}
	}
	changed, err := catalogue.ParseFiles(files, opts)
	if err != nil {
		return a.BadCatalogue(path, err)
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
	for _, remark := range catalogueRemarks(changed) {
		out.Printf("%s %s\n", out.Yellow("!"), remark)
	}
	if err := a.Confirm(ctx, "Write it?", m.add.yes); err != nil {
		return err
	}
	data := func(name string) []byte {
		return files[slices.IndexFunc(files, func(f catalogue.File) bool { return f.Name == name })].Data
	}
	for i, name := range written {
		if err := replace(name, before[name], data(name)); err != nil {
			for _, done := range written[:i] {
				// As far as it can be undone. The executor keeps the last good catalogue in any case.
				if before[done] != nil {
					err = errors.Join(err, replace(done, data(done), before[done]))
				}
			}
			return err
		}
	}
	return a.Show(map[string]any{"files": written, "added": added, "estimate": estimate, "digest": changed.Digest}, func() {
		a.Out.Printf("%s written. The executor takes it up within a second; see: durward catalog check\n", a.Out.Green("✓"))
	})
}
