package vram

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
)

// Defaults is how an engine runs a model that is told nothing else, and whether formulas are known for that engine.
func Defaults(engine string) (Run, bool) {
	r := Run{Engine: engine}
	switch engine {
	case enginecmd.LlamaCPP:
		r.Parallel, r.Unified = 4, true            // --parallel auto: four slots that share the cache (tools/server, PR 16736 and 17997)
		r.CacheK, r.CacheV = "f16", "f16"          // --cache-type-k, --cache-type-v (common/common.h)
		r.Batch, r.MicroBatch = 2048, 512          // --batch-size, --ubatch-size (common/common.h)
		r.FlashAttention = true                    // --flash-attn auto: on wherever the GPU can (common/common.h)
		r.Fit, r.FitTargetMiB = true, fitTargetMiB // --fit on, --fit-target 1024 (common/common.h)
	case enginecmd.Ollama:
		r.Parallel = 1                           // OLLAMA_NUM_PARALLEL (envconfig/config.go)
		r.CacheK, r.CacheV = "f16", "f16"        // OLLAMA_KV_CACHE_TYPE (envconfig/config.go)
		r.Batch, r.MicroBatch = 512, 512         // num_batch (api/types.go)
		r.FlashAttention = true                  // OLLAMA_FLASH_ATTENTION: on for the models that can (envconfig/config.go)
		r.Fit, r.FitTargetMiB = true, contextMiB // what does not fit stays with the host; it leaves its minimum free (llm/server.go)
	case enginecmd.VLLM:
		// --gpu-memory-utilization (vllm/config/cache.py; 0.9 before 2026). Batch and Parallel hang on the GPU: see filled.
		r.Utilisation = 0.92
		r.CacheK, r.CacheV = "auto", "auto" // --kv-cache-dtype: the model's own, of two bytes (vllm/config/cache.py)
		r.FlashAttention = true
	case enginecmd.SGLang:
		r.Utilisation = 0.88                // --mem-fraction-static is computed; that is what it comes to on most GPUs (server_args.py)
		r.Batch = 8192                      // --chunked-prefill-size (server_args.py)
		r.CacheK, r.CacheV = "auto", "auto" // --kv-cache-dtype (server_args.py)
		r.FlashAttention = true
	default:
		return Run{}, false
	}
	return r, true
}

// filled puts the engine's defaults where the run says nothing that makes sense, and those that hang on the GPU.
func (r Run) filled(gpus []GPU) Run {
	d, known := Defaults(r.Engine)
	if !known {
		return r
	}
	if r.Parallel == 0 && r.blocks() {
		r.Parallel = 1
	}
	r.CacheK, r.CacheV = cmp.Or(r.CacheK, d.CacheK), cmp.Or(r.CacheV, d.CacheV)
	r.Batch, r.MicroBatch = cmp.Or(r.Batch, d.Batch), cmp.Or(r.MicroBatch, d.MicroBatch)
	if r.blocks() {
		r.MicroBatch = min(r.MicroBatch, r.Batch) // src/llama-context.cpp
	}
	r.FitTargetMiB = cmp.Or(r.FitTargetMiB, d.FitTargetMiB)
	if !(r.Utilisation > 0 && r.Utilisation <= 1) {
		r.Utilisation = d.Utilisation
	}
	smallest := gpus[0].TotalMiB
	var sum uint64
	for _, g := range gpus {
		smallest = min(smallest, g.TotalMiB)
		sum += uint64(g.TotalMiB)
	}
	// vLLM's API server takes 8,192 tokens and 1,024 sequences at a time on GPUs of 70 GiB and more, else 2,048 and 256
	// (EngineArgs.get_batch_defaults, vllm/engine/arg_utils.py; on an A100 always the lower ones, which need less).
	large := smallest >= 70*1024
	if r.Batch == 0 {
		r.Batch = 2048
		if large {
			r.Batch = 8192
		}
	}
	if r.Parallel == 0 {
		r.Parallel = 256
		if large {
			r.Parallel = 1024
		}
	}
	if r.Engine == enginecmd.Ollama && r.Context == 0 {
		// Ollama's documentation, "Context length": 4k below 24 GiB of GPU memory, 32k below 48, else 256k.
		switch {
		case sum < 24*1024*95/100: // a card of 24 GB says a little less
			r.Context = 4096
		case sum < 48*1024*95/100:
			r.Context = 32768
		default:
			r.Context = 262144
		}
	}
	return r
}

// RunOf is how the service runs its model: what its command line says, else what extra_config says, else the engine's defaults.
// It returns ErrNoEngine where neither names an engine that formulas are known for, and ErrConfigFile with what is known of the engine.
func RunOf(s *catalog.Service) (Run, error) {
	said := command(s)
	extra := s.ExtraConfig
	r, known := Defaults(cmp.Or(said.Engine, extra["engine"]))
	if !known {
		return Run{}, ErrNoEngine
	}
	r.Sleep = s.Sleep
	if said.ConfigFile {
		return r, ErrConfigFile
	}
	for _, n := range []struct {
		key   string
		said  uint32
		where *uint32
	}{
		{"context_size", said.Context, &r.Context},
		{"parallel", said.Parallel, &r.Parallel},
		{"tensor_parallel", said.TensorParallel, &r.TensorParallel},
		{"batch_size", said.Batch, &r.Batch},
		{"micro_batch_size", said.MicroBatch, &r.MicroBatch},
		{"fit_target_mib", said.FitTargetMiB, &r.FitTargetMiB},
	} {
		given, err := number(extra, n.key)
		if err != nil {
			return Run{}, err
		}
		if n.key == "context_size" && said.OwnContext {
			given = 0
		}
		*n.where = cmp.Or(n.said, given, *n.where)
	}
	if said.Parallel > 0 || extra["parallel"] != "" {
		r.Unified = false // a number of slots that is given switches sharing off (tools/server, PR 17997)
	}
	if said.Engine == enginecmd.VLLM || said.Engine == enginecmd.SGLang {
		// A command line that was read and says nothing means one GPU (vllm/config/parallel.py, server_args.py).
		r.TensorParallel = cmp.Or(r.TensorParallel, 1)
		r.PipelineParallel, r.DataParallel = cmp.Or(said.PipelineParallel, 1), cmp.Or(said.DataParallel, 1)
		r.PrefillParallel, r.DecodeParallel = said.PrefillParallel, said.DecodeParallel
		hosts := uint64(said.Hosts())
		if here := uint64(len(s.GPUs)); said.Ray && here > 0 {
			hosts = max(hosts, ceilDiv(said.GPUs(), here)) // what is more than this host has lies on others of Ray's cluster
		}
		if hosts > 1 {
			r.Hosts = uint32(min(hosts, math.MaxUint32))
		}
	}
	r.CacheK = cmp.Or(said.CacheK, extra["kv_cache_dtype_k"], extra["kv_cache_dtype"], r.CacheK)
	r.CacheV = cmp.Or(said.CacheV, extra["kv_cache_dtype_v"], extra["kv_cache_dtype"], r.CacheV)
	if u := cmp.Or(said.Utilisation, extra["gpu_memory_utilization"]); u != "" {
		part, err := strconv.ParseFloat(u, 64)
		if err != nil || !(part > 0 && part <= 1) {
			return Run{}, fmt.Errorf("gpu_memory_utilization is a share of the GPU, above 0 and at most 1")
		}
		r.Utilisation = part
	}
	r.KVCacheBytes = said.KVCacheBytes
	if v := extra["kv_cache_memory_bytes"]; r.KVCacheBytes == 0 && v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return Run{}, fmt.Errorf("extra_config.kv_cache_memory_bytes is not a number of bytes")
		}
		r.KVCacheBytes = n
	}
	r.GPULayers, r.OffloadMiB, r.HostKVMiB = said.GPULayers, said.OffloadMiB, said.HostKVMiB
	r.Overridden = len(said.Overrides) > 0 || said.CPUExperts > 0
	r.CPUExperts, r.Moved, r.HostCache, r.FitContext = said.HostExperts(), said.Moves(), said.HostCache, said.FitContext
	if r.GPULayers == nil && extra["gpu_layers"] != "" {
		n, err := number(extra, "gpu_layers")
		if err != nil {
			return Run{}, err
		}
		r.GPULayers = &n
	}
	for _, b := range []struct {
		key   string
		said  *bool
		where *bool
	}{
		{"flash_attention", said.FlashAttention, &r.FlashAttention},
		{"fit", said.Fit, &r.Fit},
		{"kv_unified", said.Unified, &r.Unified},
	} {
		switch {
		case b.said != nil:
			*b.where = *b.said
		case extra[b.key] != "":
			*b.where = extra[b.key] == "on"
		}
	}
	r.FullWindow = said.FullWindow
	r.SplitMode, r.TensorSplit, r.Devices = cmp.Or(said.SplitMode, extra["split_mode"]), cmp.Or(said.TensorSplit, extra["tensor_split"]), said.Devices
	main, err := number(extra, "main_gpu")
	if err != nil {
		return Run{}, err
	}
	r.MainGPU = cmp.Or(said.MainGPU, main)
	r.Visible = visible(s)
	r.Drafts, r.Projectors, r.Adapters = len(said.Drafts), said.GPUProjectors(), len(said.Adapters)
	return r, nil
}

// number is a value of extra_config, 0 where it is not given.
func number(extra map[string]string, key string) (uint32, error) {
	if extra[key] == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(extra[key], 10, 32)
	if err != nil {
		return 0, fmt.Errorf("extra_config.%s is not a whole number", key)
	}
	return uint32(n), nil
}

// command is what the service's command line says; nothing where it has none, or one that is not an engine's. A container's
// command may be options alone, which its image's entrypoint takes.
func command(s *catalog.Service) enginecmd.Command {
	read := enginecmd.Read
	argv := s.Argv
	if s.Container != nil {
		argv = s.Container.Command
		read = func(argv []string, environment map[string]string) (enginecmd.Command, bool) {
			return enginecmd.InContainer(s.Container.Image, s.Container.Entrypoint, argv, environment)
		}
	}
	c, known := read(argv, s.Environment)
	if !known {
		return enginecmd.Command{}
	}
	return c
}

// visible is Run.Visible of a service.
func visible(s *catalog.Service) string {
	seen := s.Visible()
	if slices.Equal(seen, s.GPUs) {
		return ""
	}
	places := make([]string, len(seen))
	for i, index := range seen {
		places[i] = strconv.Itoa(slices.Index(s.GPUs, index))
	}
	return strings.Join(places, ",")
}

// ofVisible is Of for an engine that sees some of the GPUs: it takes nothing of the others.
func ofVisible(card model.Card, run Run, gpus []GPU) (Estimate, error) {
	var places []int
	var seen []GPU
	for text := range strings.SplitSeq(run.Visible, ",") {
		at, err := strconv.Atoi(text)
		if err != nil || at < 0 || at >= len(gpus) {
			places, seen = nil, gpus
			break
		}
		places, seen = append(places, at), append(seen, gpus[at])
	}
	run.Visible = ""
	e, err := Of(card, run, seen)
	if err != nil || places == nil {
		return e, err
	}
	all := make([]uint32, len(gpus))
	for i, at := range places {
		all[at] = e.PerGPU[i]
	}
	e.PerGPU = all
	return e, nil
}
