package importer

import (
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/secret"
)

var cdiName = pattern.New(`\Anvidia\.com/gpu=([A-Za-z0-9\-]{1,64})\z`)

// gpuFile is a GPU's device, behind which a Compose file may say where it stands in the container.
var gpuFile = pattern.New(`\A/dev/nvidia([0-9]{1,2})\b`)

// isGPU reports whether a device that a service reserves is a GPU of NVIDIA's; text puts variables in.
func isGPU(d *boundedyaml.Value, text func(*boundedyaml.Value) string) bool {
	if d.Over([]boundedyaml.Bound{boundedyaml.Most(maxList, "device_ids"), boundedyaml.Most(maxList, "capabilities")}) != "" {
		return false
	}
	switch text(d.Get("driver")) {
	case "cdi":
		return slices.ContainsFunc(d.Get("device_ids").Strings(), cdiName().MatchString)
	case "", "nvidia":
		return slices.ContainsFunc(d.Get("capabilities").Strings(), func(one string) bool { return one == "gpu" || one == "nvidia" || one == "compute" })
	}
	return false
}

// devices are a service's devices, in either syntax.
func devices(v *boundedyaml.Value) []string {
	out := v.Get("devices").Strings()
	for _, d := range v.Get("devices").List {
		if source := d.Get("source").Str(); source != "" {
			out = append(out, source)
		}
	}
	return out
}

// wants reports whether a Compose service asks for GPUs.
func (x *box) wants() bool {
	v := x.v
	return v.Get("gpus").IsSet() || x.text(v.Get("runtime")) == "nvidia" ||
		slices.ContainsFunc(v.At("deploy", "resources", "reservations", "devices").List, func(d *boundedyaml.Value) bool { return isGPU(d, x.text) }) ||
		slices.ContainsFunc(devices(v), func(d string) bool {
			d = x.text(boundedyaml.Plain(d))
			return slices.ContainsFunc([]string{"nvidia.com/gpu", "/dev/nvidia", "/dev/kfd", "/dev/dri"}, func(gpu string) bool { return strings.HasPrefix(d, gpu) })
		})
}

// ask reads the ways in which a container asks for GPUs.
func (x *box) ask() {
	visible := takeVariable(x.program, "NVIDIA_VISIBLE_DEVICES")
	takeVariable(x.program, "NVIDIA_DRIVER_CAPABILITIES")
	request := func(d *boundedyaml.Value) {
		if d.Size() > maxList || d.Get("device_ids").Size() > maxList {
			return
		}
		ids := x.texts(d.Get("device_ids"))
		for _, id := range ids {
			x.GPUs = append(x.GPUs, x.named(id)...)
		}
		if len(ids) == 0 {
			x.GPUs = append(x.GPUs, x.some(x.program, x.text(d.Get("count")))...)
		}
	}
	for _, d := range x.v.At("deploy", "resources", "reservations", "devices").List {
		if isGPU(d, x.text) {
			request(d)
		}
	}
	g := x.v.Get("gpus")
	for _, d := range g.List {
		request(d)
	}
	if text := x.text(g); text != "" {
		if ids, ok := strings.CutPrefix(text, "device="); ok {
			x.GPUs = append(x.GPUs, x.visible(x.program, strings.Trim(ids, `"'`))...)
		} else {
			x.GPUs = append(x.GPUs, x.some(x.program, strings.TrimPrefix(text, "count="))...)
		}
	}
	for _, d := range devices(x.v) {
		if d = x.text(boundedyaml.Plain(d)); cdiName().MatchString(d) {
			x.GPUs = append(x.GPUs, x.named(d)...)
		} else if m := gpuFile().FindStringSubmatch(d); m != nil {
			x.GPUs = append(x.GPUs, x.visible(x.program, m[1])...)
			x.note("It was given %s: that this is the GPU of that number is a guess.", m[0])
		}
	}
	if len(x.GPUs) == 0 && x.text(x.v.Get("runtime")) == "nvidia" {
		switch visible {
		case "", "all":
			x.GPUs = x.some(x.program, "all")
		case "none", "void":
		default:
			x.GPUs = x.visible(x.program, visible)
		}
	}
	x.narrow()
}

// narrow leaves the container the GPUs alone that CUDA_VISIBLE_DEVICES says it uses, of those that it asks for and in their order. Where
// that is not understood, all stay.
func (x *box) narrow() {
	at := slices.IndexFunc(x.environment, func(p boundedyaml.Pair) bool { return p.Key == "CUDA_VISIBLE_DEVICES" })
	if at < 0 || len(x.GPUs) == 0 {
		return
	}
	var used []uint32
	for name := range strings.SplitSeq(x.environment[at].Value, ",") {
		if i, err := strconv.ParseUint(strings.TrimSpace(name), 10, 6); err == nil && int(i) < len(x.GPUs) {
			used = append(used, x.GPUs[i])
		} else if named, _ := x.GPUsNamed(name); err != nil && len(named) == 1 && slices.Contains(x.GPUs, named[0]) {
			used = append(used, named[0])
		} else {
			return
		}
	}
	x.GPUs = used
	if slices.IsSorted(used) {
		takeVariable(x.program, "CUDA_VISIBLE_DEVICES")
	} else { // the container sees them in ascending order
		var places []string
		for _, index := range used {
			places = append(places, strconv.Itoa(slices.Index(slices.Sorted(slices.Values(used)), index)))
		}
		x.environment[at].Value = strings.Join(places, ",")
	}
	x.note("CUDA_VISIBLE_DEVICES says which of its GPUs it uses: it gets those alone.")
}

// named reads one GPU's index, UUID or CDI name.
func (x *box) named(id string) []uint32 {
	if m := cdiName().FindStringSubmatch(id); m != nil {
		x.cdi = true
		id = m[1]
	}
	if id == "all" {
		return x.some(x.program, id)
	}
	return x.visible(x.program, id)
}

// takeVariable takes a variable out of the environment.
func takeVariable(s *program, key string) (value string) {
	s.environment = slices.DeleteFunc(s.environment, func(p boundedyaml.Pair) bool {
		if p.Key == key {
			value = p.Value
		}
		return p.Key == key
	})
	return value
}

// some are as many GPUs of the host as are asked for, "" and "all" for all.
func (b *builder) some(s *program, count string) []uint32 {
	indexes, sure := b.HostGPUs()
	if count == "" || count == "all" || count == "-1" {
		if !sure {
			s.note("It asks for all GPUs, and the catalogue knows none: GPU 0 is a guess.")
		}
		return indexes
	}
	n, err := strconv.ParseUint(count, 10, 6)
	switch {
	case err != nil || n == 0:
		s.note("How many GPUs it asks for is not understood: %s", clean.Line(clean.Visible(count), 32))
		return nil
	case int(n) < len(indexes):
		s.note("It asks for any %d of the GPUs: the first are taken.", n)
		return indexes[:n]
	}
	for next := uint32(0); len(indexes) < int(n); next++ {
		if !slices.Contains(indexes, next) {
			indexes = append(indexes, next)
		}
	}
	return indexes
}

// visible reads CUDA_VISIBLE_DEVICES.
func (b *builder) visible(s *program, list string) []uint32 {
	indexes, unknown := b.GPUsNamed(list)
	for _, one := range unknown {
		s.note("GPU %s is not one that the catalogue knows by its uuid.", clean.Line(clean.Visible(secret.Redact(one)), 64))
	}
	return indexes
}

// engineGPUs says on which GPUs a program runs, as far as that can be told.
func (b *builder) engineGPUs(s *program, engine enginecmd.Command, known bool) {
	visible := s.Environment["CUDA_VISIBLE_DEVICES"]
	if known && engine.GPULayers != nil && *engine.GPULayers == 0 {
		s.note("It runs without a GPU (-ngl 0).")
		return
	}
	s.GPUs = b.visible(s, visible)
	if visible == "" && known {
		all, sure := b.HostGPUs()
		s.GPUs = all
		if engine.Engine != enginecmd.LlamaCPP && engine.Engine != enginecmd.Ollama {
			s.GPUs = all[:min(len(all), int(min(engine.GPUs(), 64)))]
		}
		switch {
		case !sure:
			s.note("Nothing says which GPUs it uses: GPU 0 is a guess.")
		case len(all) > 1:
			s.note("Nothing says which GPUs it uses: these are what the engine takes by itself.")
		}
	}
	b.knownGPUs(s)
}

// knownGPUs keeps the GPUs that the host has, each once. What needs memory of none declares none.
func (b *builder) knownGPUs(s *program) {
	var kept []uint32
	for _, index := range s.GPUs {
		switch {
		case slices.Contains(kept, index):
		case b.GPU(index):
			kept = append(kept, index)
		default:
			s.note("GPU %d is not one of the host's, as the catalogue has them.", index)
		}
	}
	if s.GPUs = kept; len(kept) == 0 {
		s.VRAMMiB = 0
	}
}
