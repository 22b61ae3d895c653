package enginecmd

import (
	"cmp"
	"math"
	"strconv"
	"strings"
)

// arity is how an option takes its value.
type arity int

const (
	value    arity = iota // the next argument, or what follows "="
	flag                  // none
	optional              // the next argument, if that is one of on, off, auto and their like
	many                  // all arguments up to the next option; the first is taken
)

type option struct {
	arity arity
	take  func(c *Command, text string)
}

type options map[string]option

// table makes options of pairs of names, separated by spaces, and what they do.
func table(rows ...row) options {
	out := options{}
	for _, r := range rows {
		for name := range strings.FieldsSeq(r.names) {
			out[name] = option{r.arity, r.take}
		}
	}
	return out
}

type row struct {
	names string
	arity arity
	take  func(c *Command, text string)
}

// find returns the option that an argument names, and the value behind "=". The engines take _ for - in long names.
func (o options) find(argument string) (opt option, text string, joined, ok bool) {
	if !strings.HasPrefix(argument, "-") {
		return option{}, "", false, false
	}
	name, text, joined := strings.Cut(argument, "=")
	if strings.HasPrefix(name, "--") {
		name = strings.ReplaceAll(name, "_", "-")
	}
	opt, ok = o[name]
	return opt, text, joined, ok
}

// read takes every option that it knows; of one that is given twice the last counts, as for the engines. loose are the arguments that
// are no option, and no value of one: what follows one that is not known could be its value.
func (o options) read(c *Command, args []string) (loose []string) {
	unknown := false
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return loose
		}
		opt, text, joined, ok := o.find(args[i])
		before := unknown
		unknown = !ok && strings.HasPrefix(args[i], "-") && !strings.Contains(args[i], "=")
		if !ok {
			if !before && !strings.HasPrefix(args[i], "-") {
				loose = append(loose, args[i])
			}
			continue
		}
		next, has := "", i+1 < len(args)
		if has {
			next = args[i+1]
			if _, _, _, isOption := o.find(next); isOption {
				has = false
			}
		}
		switch {
		case opt.arity == flag:
			opt.take(c, text)
		case joined:
			opt.take(c, text)
		case opt.arity == optional && (!has || !isSwitch(next)):
			opt.take(c, "")
		case has:
			opt.take(c, next)
			i++
		}
		if opt.arity == many && !joined {
			for i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
				i++
			}
		}
	}
	return loose
}

func isSwitch(text string) bool {
	return truth(text) != nil || strings.EqualFold(text, "auto") || text == "-1"
}

// truth reads a switch; nil: it says neither.
func truth(text string) *bool {
	yes := false
	switch strings.ToLower(text) {
	case "on", "true", "1", "enabled", "yes":
		yes = true
	case "off", "false", "0", "disabled", "no":
	default:
		return nil
	}
	return &yes
}

// number reads a count; what is none, or negative, which engines take for "by itself", is 0.
func number(text string) uint32 {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

func port(text string) uint32 {
	if n := number(text); n <= 65535 {
		return n
	}
	return 0
}

// size reads vLLM's numbers for people: "32k" is 32,000, "32K" is 32,768, "25.6k" is 25,600. What is none is 0.
// Source: vllm/engine/arg_utils.py, human_readable_int.
func size(text string) uint64 {
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return n
	}
	if len(text) < 2 {
		return 0
	}
	digits, unit := text[:len(text)-1], text[len(text)-1]
	power := strings.IndexByte("kmgt", unit|0x20) + 1
	if power == 0 {
		return 0
	}
	if unit < 'a' {
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || n > math.MaxUint64>>(10*power) {
			return 0
		}
		return n << (10 * power)
	}
	f, err := strconv.ParseFloat(digits, 64)
	if f *= math.Pow(1000, float64(power)); err != nil || !(f >= 0 && f < 1<<62) {
		return 0
	}
	return uint64(f)
}

func size32(text string) uint32 {
	if n := size(text); n <= math.MaxUint32 {
		return uint32(n)
	}
	return 0
}

// share reads a part of the whole, more than 0 and at most 1, and keeps it as it was written.
func share(text string) string {
	if f, err := strconv.ParseFloat(text, 64); err != nil || !(f > 0 && f <= 1) {
		return ""
	}
	return text
}

// mib reads vLLM's and SGLang's GiB, "7.5", as MiB. What is none is 0.
func mib(text string) uint32 {
	f, err := strconv.ParseFloat(text, 64)
	if f *= 1024; err != nil || !(f >= 0 && f <= math.MaxUint32) {
		return 0
	}
	return uint32(f)
}

// firstOf is the first of a list with commas.
func firstOf(text string) string {
	text, _, _ = strings.Cut(text, ",")
	return text
}

// list splits at commas. A colon with a scale behind a file of an adapter is left out.
func list(text string, scaled bool) []string {
	var out []string
	for one := range strings.SplitSeq(text, ",") {
		if scaled {
			one, _, _ = strings.Cut(one, ":")
		}
		if one != "" && len(out) < 64 {
			out = append(out, one)
		}
	}
	return out
}

// layers reads -ngl; "all", "auto" and negative numbers mean all.
func layers(text string) *uint32 {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return nil
	}
	count := uint32(n)
	return &count
}

// llamaOptions are llama-server's. Source: tools/server/README.md of ggml-org/llama.cpp (September 2026), and older spellings.
var llamaOptions = table(
	row{"-c --ctx-size", value, func(c *Command, v string) { c.Context, c.OwnContext = number(v), v == "0" }},
	row{"-np --parallel", value, func(c *Command, v string) { c.Parallel = number(v) }},
	row{"-ngl --gpu-layers --n-gpu-layers", value, func(c *Command, v string) { c.GPULayers = layers(v) }},
	row{"-ncmoe --n-cpu-moe", value, func(c *Command, v string) { c.CPUExperts = number(v) }},
	row{"-cmoe --cpu-moe", flag, func(c *Command, _ string) { c.CPUExperts = AllExperts }},
	row{"-ot --override-tensor", value, func(c *Command, v string) { c.Overrides = append(c.Overrides, strings.Split(v, ",")...) }},
	row{"-kvo --kv-offload", flag, func(c *Command, _ string) { c.HostCache = false }},
	row{"-nkvo --no-kv-offload", flag, func(c *Command, _ string) { c.HostCache = true }},
	row{"-ctk --cache-type-k", value, func(c *Command, v string) { c.CacheK = v }},
	row{"-ctv --cache-type-v", value, func(c *Command, v string) { c.CacheV = v }},
	row{"-b --batch-size", value, func(c *Command, v string) { c.Batch = number(v) }},
	row{"-ub --ubatch-size", value, func(c *Command, v string) { c.MicroBatch = number(v) }},
	// Without a value it was a flag until 2025.
	row{"-fa --flash-attn", optional, func(c *Command, v string) { c.FlashAttention = truth(cmp.Or(v, "on")) }},
	row{"-fit --fit", optional, func(c *Command, v string) { c.Fit = truth(cmp.Or(v, "on")) }},
	row{"-fitt --fit-target", value, func(c *Command, v string) { c.FitTargetMiB = number(firstOf(v)) }},
	row{"-fitc --fit-ctx", value, func(c *Command, v string) { c.FitContext = number(v) }},
	row{"-m --model", value, func(c *Command, v string) { c.Model, c.Repository = v, false }},
	row{"-hf -hfr --hf-repo", value, func(c *Command, v string) { c.Model, c.Repository = cmp.Or(c.Model, v), c.Model == "" }},
	row{"-hff --hf-file", value, func(c *Command, _ string) { c.Repository = false }},
	row{"-mu --model-url -dr --docker-repo", value, func(c *Command, v string) {
		// A file on the host is what is loaded where both are named.
		c.Model = cmp.Or(c.Model, v)
	}},
	row{"-a --alias", value, func(c *Command, v string) { c.ServedName = firstOf(v) }},
	row{"--host", value, func(c *Command, v string) { c.Host = v }},
	row{"--port", value, func(c *Command, v string) { c.Port = port(v) }},
	row{"--swa-full", flag, func(c *Command, _ string) { c.FullWindow = true }},
	row{"-kvu --kv-unified", flag, func(c *Command, _ string) { c.Unified = truth("on") }},
	row{"-no-kvu --no-kv-unified", flag, func(c *Command, _ string) { c.Unified = truth("off") }},
	row{"--lora", value, func(c *Command, v string) { c.Adapters = append(c.Adapters, list(v, false)...) }},
	row{"--lora-scaled", value, func(c *Command, v string) { c.Adapters = append(c.Adapters, list(v, true)...) }},
	row{"-mm --mmproj -mmu --mmproj-url", value, func(c *Command, v string) { c.Projectors = append(c.Projectors, v) }},
	row{"--no-mmproj --no-mmproj-auto --no-mmproj-offload", flag, func(c *Command, _ string) { c.NoProjector = true }},
	row{"--mmproj-auto --mmproj-offload", flag, func(c *Command, _ string) { c.NoProjector = false }},
	row{"-md --model-draft --spec-draft-model -hfd -hfrd --hf-repo-draft --spec-draft-hf", value, func(c *Command, v string) {
		c.Drafts = append(c.Drafts, v)
	}},
	row{"-sm --split-mode", value, func(c *Command, v string) { c.SplitMode = v }},
	row{"-ts --tensor-split", value, func(c *Command, v string) { c.TensorSplit = v }},
	row{"-mg --main-gpu", value, func(c *Command, v string) { c.MainGPU = number(v) }},
	row{"-dev --device", value, func(c *Command, v string) { c.Devices = v }},
	// Presets, each a model with its settings; an option behind one replaces what it says.
	row{"--embd-gemma-default", flag, preset("embeddinggemma-300M-qat-q4_0-GGUF", Command{Port: 8011, Batch: 2048, MicroBatch: 2048, Parallel: 32, Context: 32 * 2048})},
	row{"--fim-qwen-1.5b-default", flag, preset("Qwen2.5-Coder-1.5B-Q8_0-GGUF", fim)},
	row{"--fim-qwen-3b-default", flag, preset("Qwen2.5-Coder-3B-Q8_0-GGUF", fim)},
	row{"--fim-qwen-7b-default", flag, preset("Qwen2.5-Coder-7B-Q8_0-GGUF", fim)},
	row{"--fim-qwen-7b-spec", flag, preset("Qwen2.5-Coder-7B-Q8_0-GGUF", fim, fimDraft)},
	row{"--fim-qwen-14b-spec", flag, preset("Qwen2.5-Coder-14B-Q8_0-GGUF", fim, fimDraft)},
	row{"--fim-qwen-30b-default", flag, preset("Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF", fim)},
	row{"--gpt-oss-20b-default", flag, preset("gpt-oss-20b-GGUF", gptOSS)},
	row{"--gpt-oss-120b-default", flag, preset("gpt-oss-120b-GGUF", gptOSS)},
	row{"--vision-gemma-4b-default", flag, preset("gemma-3-4b-it-qat-GGUF", Command{Port: 8014, Repository: true})},
	row{"--vision-gemma-12b-default", flag, preset("gemma-3-12b-it-qat-GGUF", Command{Port: 8014, Repository: true})},
)

// What llama-server's presets have in common (common/arg.cpp, "presets").
var (
	fim    = Command{Port: 8012, Batch: 1024, MicroBatch: 1024}
	gptOSS = Command{Port: 8013, Batch: 32768, MicroBatch: 2048, Parallel: 2, Context: 2 * 131072}
)

const (
	presets  = "ggml-org/"
	fimDraft = presets + "Qwen2.5-Coder-0.5B-Q8_0-GGUF"
)

// preset has a model of llama.cpp's own served as said says. What it says nothing of stays as it was.
func preset(model string, said Command, drafts ...string) func(*Command, string) {
	return func(c *Command, _ string) {
		c.Repository = c.Repository || said.Repository && c.Model == ""
		c.Model = cmp.Or(c.Model, presets+model)
		c.Port, c.Batch, c.MicroBatch = said.Port, cmp.Or(said.Batch, c.Batch), cmp.Or(said.MicroBatch, c.MicroBatch)
		c.Parallel = cmp.Or(said.Parallel, c.Parallel)
		c.Context, c.OwnContext = said.Context, said.Context == 0
		c.Drafts = append(c.Drafts, drafts...)
	}
}

// llamaVariables stand for options. LLAMA_ARG_MODEL comes before the repository, as -m does.
var llamaVariables = []struct{ variable, option string }{
	{"LLAMA_ARG_CTX_SIZE", "-c"}, {"LLAMA_ARG_N_PARALLEL", "-np"}, {"LLAMA_ARG_N_GPU_LAYERS", "-ngl"},
	{"LLAMA_ARG_N_CPU_MOE", "-ncmoe"}, {"LLAMA_ARG_CPU_MOE", "-cmoe"}, {"LLAMA_ARG_OVERRIDE_TENSOR", "-ot"},
	{"LLAMA_ARG_CACHE_TYPE_K", "-ctk"}, {"LLAMA_ARG_CACHE_TYPE_V", "-ctv"}, {"LLAMA_ARG_BATCH", "-b"}, {"LLAMA_ARG_UBATCH", "-ub"},
	{"LLAMA_ARG_FLASH_ATTN", "-fa"}, {"LLAMA_ARG_FIT", "-fit"}, {"LLAMA_ARG_FIT_TARGET", "-fitt"},
	{"LLAMA_ARG_FIT_CTX", "-fitc"}, {"LLAMA_ARG_KV_OFFLOAD", "-kvo"}, {"LLAMA_ARG_NO_KV_OFFLOAD", "-nkvo"},
	{"LLAMA_ARG_MODEL", "-m"}, {"LLAMA_ARG_HF_REPO", "-hf"}, {"LLAMA_ARG_MODEL_URL", "-mu"}, {"LLAMA_ARG_DOCKER_REPO", "-dr"},
	{"LLAMA_ARG_ALIAS", "-a"}, {"LLAMA_ARG_HOST", "--host"}, {"LLAMA_ARG_PORT", "--port"}, {"LLAMA_ARG_SWA_FULL", "--swa-full"},
	{"LLAMA_ARG_KV_UNIFIED", "-kvu"}, {"LLAMA_ARG_MMPROJ", "-mm"}, {"LLAMA_ARG_MMPROJ_URL", "-mmu"},
	{"LLAMA_ARG_NO_MMPROJ", "--no-mmproj"}, {"LLAMA_ARG_NO_MMPROJ_OFFLOAD", "--no-mmproj-offload"}, {"LLAMA_ARG_HF_FILE", "-hff"},
	{"LLAMA_ARG_MMPROJ_AUTO", "--mmproj-auto"}, {"LLAMA_ARG_MMPROJ_OFFLOAD", "--mmproj-offload"},
	{"LLAMA_ARG_SPLIT_MODE", "-sm"}, {"LLAMA_ARG_TENSOR_SPLIT", "-ts"}, {"LLAMA_ARG_MAIN_GPU", "-mg"}, {"LLAMA_ARG_DEVICE", "-dev"},
	{"LLAMA_ARG_MODEL_DRAFT", "-md"}, {"LLAMA_ARG_SPEC_DRAFT_MODEL", "-md"},
	{"LLAMA_ARG_HFD_REPO", "-hfd"}, {"LLAMA_ARG_SPEC_DRAFT_HF_REPO", "-hfd"},
}

// vllmOptions are vLLM's. Source: docs.vllm.ai, `vllm serve --help` and "Engine Arguments".
var vllmOptions = table(
	row{"--model", value, func(c *Command, v string) { c.Model = v }},
	row{"--served-model-name", many, func(c *Command, v string) { c.ServedName = v }},
	row{"--host", value, func(c *Command, v string) { c.Host = v }},
	row{"--port", value, func(c *Command, v string) { c.Port = port(v) }},
	row{"--max-model-len", value, func(c *Command, v string) {
		c.Context, c.OwnContext, c.Fit = size32(v), false, nil
		if v == "auto" || v == "-1" {
			c.OwnContext, c.Fit = true, truth("on")
		}
	}},
	row{"--max-num-seqs", value, func(c *Command, v string) { c.Parallel = size32(v) }},
	row{"--max-num-batched-tokens", value, func(c *Command, v string) { c.Batch = size32(v) }},
	row{"-tp --tensor-parallel-size", value, func(c *Command, v string) { c.TensorParallel = number(v) }},
	row{"-pp --pipeline-parallel-size", value, func(c *Command, v string) { c.PipelineParallel = number(v) }},
	row{"-dp --data-parallel-size", value, func(c *Command, v string) { c.DataParallel = number(v) }},
	row{"-dpl --data-parallel-size-local", value, func(c *Command, v string) { c.DataParallelLocal = number(v) }},
	row{"-dpn --data-parallel-rank", value, func(c *Command, _ string) { c.DataParallelLocal = 1 }}, // others run the other copies
	row{"-pcp --prefill-context-parallel-size", value, func(c *Command, v string) { c.PrefillParallel = number(v) }},
	row{"-dcp --decode-context-parallel-size", value, func(c *Command, v string) { c.DecodeParallel = number(v) }},
	row{"--distributed-executor-backend -dpb --data-parallel-backend", value, func(c *Command, v string) { c.Ray = c.Ray || v == "ray" }},
	row{"-n --nnodes", value, func(c *Command, v string) { c.Nodes = number(v) }},
	row{"--gpu-memory-utilization", value, func(c *Command, v string) { c.Utilisation = share(v) }},
	row{"--kv-cache-memory-bytes", value, func(c *Command, v string) { c.KVCacheBytes = size(v) }},
	row{"--kv-cache-dtype", value, func(c *Command, v string) { c.CacheK, c.CacheV = v, v }},
	row{"--cpu-offload-gb", value, func(c *Command, v string) { c.OffloadMiB = mib(v) }},
	row{"--kv-offloading-size", value, func(c *Command, v string) { c.HostKVMiB = mib(v) }},
	row{"--config", value, func(c *Command, _ string) { c.ConfigFile = true }},
	row{"--enable-sleep-mode", flag, func(c *Command, _ string) { c.SleepMode = true }},
	row{"--no-enable-sleep-mode", flag, func(c *Command, _ string) { c.SleepMode = false }},
	row{"--lora-modules", many, func(c *Command, v string) { c.Adapters = append(c.Adapters, v) }},
)

// sglangOptions are SGLang's. Source: docs.sglang.ai, "Server Arguments".
var sglangOptions = table(
	row{"--model-path --model", value, func(c *Command, v string) { c.Model = v }},
	row{"--served-model-name", value, func(c *Command, v string) { c.ServedName = v }},
	row{"--host", value, func(c *Command, v string) { c.Host = v }},
	row{"--port", value, func(c *Command, v string) { c.Port = port(v) }},
	row{"--context-length", value, func(c *Command, v string) { c.Context = size32(v) }},
	row{"--max-running-requests", value, func(c *Command, v string) { c.Parallel = number(v) }},
	row{"--chunked-prefill-size", value, func(c *Command, v string) { c.Batch = number(v) }},
	row{"--tp --tp-size --tensor-parallel-size", value, func(c *Command, v string) { c.TensorParallel = number(v) }},
	row{"--pp --pp-size --pipeline-parallel-size", value, func(c *Command, v string) { c.PipelineParallel = number(v) }},
	row{"--dp --dp-size --data-parallel-size", value, func(c *Command, v string) { c.DataParallel = number(v) }},
	row{"--nnodes", value, func(c *Command, v string) { c.Nodes = number(v) }},
	row{"--mem-fraction-static", value, func(c *Command, v string) { c.Utilisation = share(v) }},
	row{"--kv-cache-dtype", value, func(c *Command, v string) { c.CacheK, c.CacheV = v, v }},
	row{"--cpu-offload-gb", value, func(c *Command, v string) { c.OffloadMiB = mib(v) }},
	row{"--config", value, func(c *Command, _ string) { c.ConfigFile = true }},
	row{"--enable-memory-saver", flag, func(c *Command, _ string) { c.SleepMode = true }},
	row{"--lora-paths", many, func(c *Command, v string) { c.Adapters = append(c.Adapters, v) }},
)
