package sizing

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/pattern"
)

// Named is what a path says of a model's name.
type Named struct{ ID, Source string }

var (
	splitPart = pattern.New(`-[0-9]{5}-of-[0-9]{5}\z`)
	// Hugging Face's cache: models--OWNER--NAME/snapshots/REVISION.
	hubCache = pattern.New(`/models--([A-Za-z0-9][A-Za-z0-9._\-]*?)--([A-Za-z0-9][A-Za-z0-9._\-]*)/snapshots/[0-9a-f]{40}(/|\z)`)
)

// NameOf is the name that a path gives a model, and where it came from.
func NameOf(file string) Named {
	if m := hubCache().FindStringSubmatch(file); m != nil {
		name := m[1] + "/" + m[2]
		if strings.HasSuffix(file, ".gguf") {
			return Named{ggufName(file), "hf:" + name}
		}
		return Named{name, "hf:" + name}
	}
	if strings.HasSuffix(file, ".gguf") {
		return Named{ID: ggufName(file)}
	}
	return Named{ID: filepath.Base(file)}
}

func ggufName(file string) string {
	return splitPart().ReplaceAllString(strings.TrimSuffix(filepath.Base(file), ".gguf"), "")
}

// Model is a model's entry.
func Model(id, served, file, source string, card *model.Card) yaml.MapSlice {
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
		put("card", Card(*card), true)
	}
	return out
}

// Card lays a card out as the catalog has it.
func Card(c model.Card) yaml.MapSlice {
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

// Service is what a service's entry says beside how it runs.
type Service struct {
	Engine, Program, File string
	ID, Model, Served     string
	RunAs                 string
	Port                  uint32
}

// Entry is the service's entry.
func Entry(c Choice, s Service) yaml.MapSlice {
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	var argv []any
	extra := yaml.MapSlice{{Key: "engine", Value: s.Engine}, {Key: "context_size", Value: c.context}}
	if s.Engine == enginecmd.VLLM {
		argv = []any{s.Program, "serve", s.File, "--host", "127.0.0.1", "--port", number(s.Port), "--served-model-name", s.Served, "--max-model-len", number(c.context)}
		if len(c.GPUs) > 1 {
			argv = append(argv, "--tensor-parallel-size", strconv.Itoa(len(c.GPUs)))
			extra = append(extra, yaml.MapItem{Key: "tensor_parallel", Value: len(c.GPUs)})
		}
		if c.utilisation != "" {
			argv = append(argv, "--gpu-memory-utilization", c.utilisation)
			extra = append(extra, yaml.MapItem{Key: "gpu_memory_utilization", Value: c.utilisation})
		}
	} else {
		argv = []any{s.Program, "-m", s.File, "--host", "127.0.0.1", "--port", number(s.Port), "--alias", s.Served, "-c", number(c.context)}
	}
	out := yaml.MapSlice{{Key: "id", Value: s.ID}, {Key: "driver", Value: catalog.DriverProcess}, {Key: "argv", Value: argv}}
	put := func(key string, value any) { out = append(out, yaml.MapItem{Key: key, Value: value}) }
	var numbers []uint32
	var visible []string
	for _, g := range c.GPUs {
		numbers = append(numbers, g.Index)
		if g.Real {
			visible = append(visible, number(g.Driver))
		}
	}
	if len(visible) > 0 {
		// The engine would use every GPU of the host; in this order its numbers are the driver's.
		put("environment", yaml.MapSlice{{Key: "CUDA_DEVICE_ORDER", Value: "PCI_BUS_ID"}, {Key: "CUDA_VISIBLE_DEVICES", Value: strings.Join(visible, ",")}})
	}
	if s.RunAs != "" {
		put("run_as", s.RunAs)
	}
	put("port", s.Port)
	put("openai", true)
	put("model", s.Model)
	if len(numbers) > 0 {
		put("gpus", numbers)
	}
	put("extra_config", extra)
	put("start_timeout_s", modelStartS)
	return out
}
