package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"durward.internal/services/operator/internal/draft"
	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/secret"
)

// Bounds of a folder of presets.
const (
	maxPresets      = 1024
	maxPresetDepth  = 8
	maxPresetsBytes = 8 << 20
	maxPresetBytes  = 256 << 10
	// maxWalked bounds the files of any name that are passed by.
	maxWalked = 100_000
)

// Gpumod reads presets/**/*.yaml and modes/*.yaml below dir, or presets alone below dir where it has no such folder. What single
// files get wrong is left out by name; an error is for the folder as a whole.
// Source: docs/user-guide/presets.md and modes.md of jaigouk/gpumod.
func Gpumod(ctx context.Context, p *proposal.Proposal, dir string, given Given) error {
	g := &gpumod{builder: newBuilder(p, given)}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("%s is no folder that can be read", clean.Visible(dir))
	}
	defer func() { _ = root.Close() }()
	presets, modes := "presets", "modes"
	if info, err := root.Stat(presets); err != nil || !info.IsDir() {
		presets = "."
	}
	files, err := g.files(ctx, root, presets)
	if err != nil {
		return err
	}
	for _, f := range files {
		if presets == "." && strings.HasPrefix(f.name, modes+"/") {
			continue
		}
		g.preset(f)
		if err := cmp.Or(ctx.Err(), g.spent()); err != nil {
			return err
		}
	}
	files, err = g.files(ctx, root, modes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, f := range files {
		g.mode(f)
	}
	if len(g.ids) == 0 {
		return fmt.Errorf("no gpumod preset is in %s", clean.Visible(dir))
	}
	p.Note("gpumod's units belong to a user's own systemd: the executor finds them there if systemd.manager in executor.yaml says so.")
	p.Note("gpumod knows one GPU, so every service is on GPU 0; vram_mib is what its presets declare.")
	return nil
}

type gpumod struct {
	*builder
	bytes int
}

type presetFile struct {
	name string
	root *boundedyaml.Value
}

// files decodes the .yaml files below a folder, in the order of their names. Symbolic links are not followed.
func (g *gpumod) files(ctx context.Context, root *os.Root, folder string) ([]presetFile, error) {
	var out []presetFile
	seen, walked := 0, 0
	err := fs.WalkDir(root.FS(), folder, func(name string, entry fs.DirEntry, err error) error {
		if walked++; walked > maxWalked {
			return fmt.Errorf("more than %d files and folders are below %s", maxWalked, clean.Visible(folder))
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && name == folder:
			return err
		case err == nil && entry.IsDir() && (strings.Count(name, "/") > maxPresetDepth || name != folder && strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case err == nil && (entry.IsDir() || !slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(name))):
			return nil
		}
		if seen++; seen > maxPresets {
			return fmt.Errorf("more than %d files are below %s", maxPresets, clean.Visible(folder))
		}
		v, why := (*boundedyaml.Value)(nil), "it cannot be read"
		if err == nil {
			v, why = g.file(root, name, entry)
		}
		if why != "" {
			g.LeaveOut(name, "%s", why)
		} else {
			out = append(out, presetFile{name, v})
		}
		if g.bytes > maxPresetsBytes {
			return errors.New("the files are larger than 8 MB together")
		}
		return nil
	})
	return out, err
}

// file decodes one file, or says why it does not.
func (g *gpumod) file(root *os.Root, name string, entry fs.DirEntry) (v *boundedyaml.Value, why string) {
	if !entry.Type().IsRegular() {
		return nil, "it is not a regular file"
	}
	if info, err := entry.Info(); err != nil || info.Size() > maxPresetBytes {
		return nil, "it is larger than 256 kB, or cannot be read"
	}
	data, err := root.ReadFile(name)
	if g.bytes += len(data); err != nil {
		return nil, "it cannot be read"
	}
	if v, err = boundedyaml.Decode(name, data); err != nil {
		return nil, "it " + strings.TrimLeft(strings.TrimPrefix(err.Error(), name), ": ")
	}
	return v, ""
}

// presetKeys are those of a preset that are read or are known to mean nothing here.
var presetKeys = strings.Fields("id name driver vram_mb port context_size kv_cache_per_1k model_id model_path health_endpoint startup_timeout " +
	"supports_sleep sleep_mode unit_template unit_vars extra_config depends_on description")

// presetBounds are how long a preset's lists may be.
var presetBounds = []boundedyaml.Bound{
	boundedyaml.Most(maxList, "depends_on"), boundedyaml.Most(maxList, "unit_vars"), boundedyaml.Most(maxList, "extra_config"), boundedyaml.Most(maxArguments, "extra_config", "command"),
	boundedyaml.Most(maxVariables, "extra_config", "environment"), boundedyaml.Most(maxList, "extra_config", "ports"), boundedyaml.Most(maxMounts, "extra_config", "volumes"),
}

func (g *gpumod) preset(f presetFile) {
	v, id, why := f.root, f.root.Get("id").Str(), ""
	switch {
	case v.Kind != boundedyaml.Mapping || !v.Get("id").IsSet() || !v.Get("driver").IsSet():
		why = "it is no preset: it has no id and driver"
	case v.Over(presetBounds) != "":
		why = v.Over(presetBounds)
	case proposal.ID(id) != id || id == "":
		why = fmt.Sprintf("its id %q is none that a service can have", clean.Line(clean.Visible(id), 80))
	case g.ids[id]:
		why = "another preset has the id " + id
	case !g.more():
		why = fmt.Sprintf("more than %d services", proposal.MaxServices)
	}
	if why != "" {
		g.LeaveOut("preset "+f.name, "%s", why)
		return
	}
	g.ids[id] = true
	s := &program{what: "preset " + id + " (" + f.name + ")", Service: draft.Service{Name: v.Get("name").Str(), Description: v.Get("description").Str()}}
	s.note("From %s.", f.name)
	for _, key := range unknown(v, presetKeys) {
		s.note("%s is not known and was left out.", key)
	}
	s.Port, _ = v.Get("port").Number()
	s.Health.Path = v.Get("health_endpoint").Str()
	s.StartTimeoutS, _ = v.Get("startup_timeout").Number()
	switch driver := v.Get("driver").Str(); driver {
	case "vllm", "llamacpp", "fastapi":
		g.unit(id, s, v, driver)
	case "docker":
		g.docker(id, s, v)
	default:
		g.LeaveOut(s.what, "its driver %q is none of vllm, llamacpp, fastapi, docker", clean.Line(clean.Visible(driver), 64))
	}
}

// unit is a preset that gpumod made a unit of.
func (g *gpumod) unit(id string, s *program, v *boundedyaml.Value, driver string) {
	s.Unit = id + ".service"
	if v.Get("unit_template").IsSet() {
		s.note("unit_template was left out: it is code. The unit %s.service stays as it is installed.", id)
	}
	s.Extra = g.extra(s, v, driver)
	if s.Port > 65535 {
		g.LeaveOut(s.what, "its port %d is none", s.Port)
		return
	}
	if s.Port == 0 && s.Health.Path != "" {
		s.note("health_endpoint was left out: without a port there is nobody to ask.")
	}
	g.memory(s, v)
	s.Model, s.DependsOn = g.model(s, v), g.needs(s, v)
	g.propose(id, catalog.DriverSystemd, s)
}

func (g *gpumod) needs(s *program, v *boundedyaml.Value) []string {
	var out []string
	for _, id := range v.Get("depends_on").Strings() {
		if proposal.ID(id) == id && id != "" {
			out = append(out, id)
		} else {
			s.note("depends_on %s is no id and was left out.", clean.Line(clean.Visible(id), 64))
		}
	}
	return out
}

// memory puts GPU, memory and sleep.
func (g *gpumod) memory(s *program, v *boundedyaml.Value) {
	mib, ok := v.Get("vram_mb").Number()
	if !ok {
		s.note("vram_mb is missing or no number.")
	}
	if v.Get("kv_cache_per_1k").IsSet() {
		s.note("kv_cache_per_1k was left out: the cache is computed from the model's card.")
	}
	if mib == 0 {
		return
	}
	if !g.GPU(0) {
		s.note("Its %d MiB were left out: the catalogue has no GPU 0.", mib)
		return
	}
	s.VRAMMiB, s.GPUs = mib, []uint32{0}
	mode := v.Get("sleep_mode").Str()
	if mode == "" && v.Get("supports_sleep").Is() {
		mode = "l1"
	}
	sleep := map[string]string{"l1": catalog.SleepVLLM1, "l2": catalog.SleepVLLM2, "router": catalog.SleepLlamaRouter}[mode]
	switch {
	case mode == "" || mode == "none":
	case sleep == "":
		s.note("sleep_mode %s is not known.", clean.Line(clean.Visible(mode), 64))
	case s.Port == 0:
		s.note("sleep_mode was left out: an engine is asked to sleep at its port, and there is none.")
	default:
		if s.Sleep = sleep; sleep != catalog.SleepLlamaRouter {
			s.note("Its unit must have --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1, and listen on 127.0.0.1: gpumod's template does neither.")
		}
	}
}

// extraNames are what gpumod's presets call an entry's facts about the engine.
var extraNames = map[string]string{
	"max_model_len": "context_size", "ctx_size": "context_size", "tensor_parallel_size": "tensor_parallel", "max_num_seqs": "parallel", "n_parallel": "parallel",
	"gpu_mem_util": "gpu_memory_utilization", "vllm": enginecmd.VLLM, "llamacpp": enginecmd.LlamaCPP,
}

// extraOrder is in which order an entry says them.
var extraOrder = strings.Fields("engine engine_version context_size parallel tensor_parallel gpu_memory_utilization dtype kv_cache_dtype quantization")

// Extra are facts about an engine that an entry can hold, in its order.
func Extra(values map[string]string) (out proposal.Fields) {
	for _, key := range extraOrder {
		if !catalog.IsExtra(key, values[key]) {
			continue
		}
		var value any = values[key]
		if n, err := strconv.ParseUint(values[key], 10, 32); err == nil {
			value = n
		}
		out = append(out, yaml.MapItem{Key: key, Value: value})
	}
	return out
}

// extra makes facts about the engine of unit_vars and extra_config; everything else there is named.
func (g *gpumod) extra(s *program, v *boundedyaml.Value, driver string) proposal.Fields {
	values := map[string]string{"engine": extraNames[driver]}
	for _, section := range []string{"unit_vars", "extra_config"} {
		from := v.Get(section)
		for _, key := range from.Keys {
			name := cmp.Or(extraNames[key], key)
			if slices.Contains(extraOrder[2:], name) {
				values[name] = from.Get(key).Str()
				continue
			}
			why := ""
			switch {
			case key == "extra_args" || key == "unit_vars":
				why = ": it is code"
			case secret.Name(key) || secret.Suspect(from.Get(key).Str()):
				why = ": it is a secret"
			}
			s.note("%s.%s was left out%s; the unit has it.", section, clean.Line(clean.Visible(key), 64), why)
		}
	}
	values["context_size"] = cmp.Or(v.Get("context_size").Str(), values["context_size"])
	return Extra(values)
}

// model puts the preset's model.
func (g *gpumod) model(s *program, v *boundedyaml.Value) string {
	id, file := v.Get("model_id").Str(), g.put(v.Get("model_path").Str())
	switch {
	case len(missing(file)) > 0:
		s.note("model_path %s was left out: it %s.", clean.Line(clean.Visible(v.Get("model_path").Str()), 120), unusable(file))
		file = ""
	case file != "" && (!filepath.IsAbs(file) || !proposal.Shown(file) || secret.Suspect(file)):
		s.note("model_path was left out: it is not an absolute path that can be shown.")
		file = ""
	case file != "":
		file = filepath.Clean(file)
	}
	id = cmp.Or(id, strings.TrimSuffix(filepath.Base(file), ".gguf"))
	if secret.Suspect(id) || proposal.ModelID(id) == "" {
		return ""
	}
	m := catalog.Model{File: file}
	if repository().MatchString(id) {
		m.Source = "hf:" + id
	}
	return g.Model(id, draft.Of(m), s.notes[0])
}

// docker is a preset that gpumod runs as a container, as its documentation has it: under extra_config, much as a Compose file would say it.
func (g *gpumod) docker(id string, s *program, v *boundedyaml.Value) {
	if !v.At("extra_config", "image").IsSet() {
		g.LeaveOut(s.what, "it names no image under extra_config")
		return
	}
	if mib, ok := v.Get("vram_mb").Number(); ok && mib > 0 && g.GPU(0) {
		s.VRAMMiB = mib
	}
	s.DependsOn = g.needs(s, v)
	g.container(id, &box{program: s, v: v.Get("extra_config").With("gpus", "device=0")})
}

func (g *gpumod) mode(f presetFile) {
	v, id, services, why := f.root, f.root.Get("id").Str(), f.root.Get("services"), ""
	switch {
	case v.Kind != boundedyaml.Mapping || services.Kind != boundedyaml.Sequence && services.IsSet():
		why = "it is no mode: it has no id and services"
	case proposal.ID(id) != id || id == "":
		why = fmt.Sprintf("its id %q is none that a mode can have", clean.Line(clean.Visible(id), 80))
	case len(services.List) > proposal.MaxServices:
		why = fmt.Sprintf("it has more than %d services", proposal.MaxServices)
	case len(services.List) == 0:
		why = "it has no services; where nothing is to run, stop what runs"
	}
	if why != "" {
		g.LeaveOut("mode "+f.name, "%s", why)
		return
	}
	notes := []string{"From " + f.name + "."}
	for _, key := range unknown(v, strings.Fields("id name description services")) {
		notes = append(notes, key+" is not known and was left out.")
	}
	var members []string
	for _, m := range services.Strings() {
		members = append(members, clean.Line(m, 64))
	}
	g.Mode(id, modeFields(v.Get("name").Str(), v.Get("description").Str()), members, notes...)
}

func modeFields(name, description string) proposal.Fields {
	return draft.Of(catalog.Mode{Name: clean.Line(name, 64), Description: clean.Line(description, 300)})
}
