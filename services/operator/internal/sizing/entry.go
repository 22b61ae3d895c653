package sizing

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"durward.internal/services/operator/internal/draft"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/enginecmd"
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

// Service is what a service's entry says beside how it runs.
type Service struct {
	Engine, Program, File string
	ID, Model, Served     string
	RunAs                 string
	Port                  uint32
}

// Entry is the service's entry.
func Entry(c Choice, s Service) draft.Service {
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	entry := draft.Service{
		ID: s.ID, Driver: catalog.DriverProcess, RunAs: s.RunAs, Port: s.Port, OpenAI: true, Model: s.Model, StartTimeoutS: modelStartS,
		Extra: yaml.MapSlice{{Key: "engine", Value: s.Engine}, {Key: "context_size", Value: c.context}},
	}
	if s.Engine == enginecmd.VLLM {
		entry.Argv = []string{s.Program, "serve", s.File, "--host", "127.0.0.1", "--port", number(s.Port), "--served-model-name", s.Served, "--max-model-len", number(c.context)}
		if len(c.GPUs) > 1 {
			entry.Argv = append(entry.Argv, "--tensor-parallel-size", strconv.Itoa(len(c.GPUs)))
			entry.Extra = append(entry.Extra, yaml.MapItem{Key: "tensor_parallel", Value: len(c.GPUs)})
		}
		if c.utilisation != "" {
			entry.Argv = append(entry.Argv, "--gpu-memory-utilization", c.utilisation)
			entry.Extra = append(entry.Extra, yaml.MapItem{Key: "gpu_memory_utilization", Value: c.utilisation})
		}
	} else {
		entry.Argv = []string{s.Program, "-m", s.File, "--host", "127.0.0.1", "--port", number(s.Port), "--alias", s.Served, "-c", number(c.context)}
	}
	var visible []string
	for _, g := range c.GPUs {
		entry.GPUs = append(entry.GPUs, g.Index)
		if g.Real {
			visible = append(visible, number(g.Driver))
		}
	}
	if len(visible) > 0 {
		// The engine would use every GPU of the host; in this order its numbers are the driver's.
		entry.Environment = map[string]string{"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": strings.Join(visible, ",")}
	}
	return entry
}
