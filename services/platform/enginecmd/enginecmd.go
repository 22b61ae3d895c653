// Package enginecmd reads the command lines of inference engines: what `llama-server` and `vllm serve` were told that matters to
// whoever plans memory or takes a service over. It parses an argument vector, never a shell's language, and runs nothing.
//
// Nothing that it is given is trusted, and nothing that it returns is cleaned: texts are as they stand in the arguments. An option
// that it does not know is passed over without its value, which could then be taken for an option; whoever decides by what was
// read shows it to a human first.
package enginecmd

import (
	"path/filepath"
	"slices"
	"strings"
)

// Engines, as extra_config.engine has them.
const (
	LlamaCPP = "llama.cpp"
	VLLM     = "vllm"
	SGLang   = "sglang"
	Ollama   = "ollama"
)

// Command is what an engine's command line says. What it does not say is zero; the engine's own default then holds, which package
// vram knows.
type Command struct {
	Engine string
	// Model is the file, folder or repository that it serves; ServedName the name that it answers to.
	Model, ServedName string
	Host              string
	Port              uint32
	// Context is in tokens, for llama.cpp over all slots; Parallel is slots or sequences at a time.
	Context, Parallel uint32
	// OwnContext: the command line asks for the model's own context (llama.cpp's -c 0, vLLM's --max-model-len auto).
	OwnContext                                     bool
	TensorParallel, PipelineParallel, DataParallel uint32
	// DataParallelLocal is how many of vLLM's copies are on this host; Nodes is vLLM's and SGLang's --nnodes. See Hosts and GPUs.
	DataParallelLocal, Nodes uint32
	// PrefillParallel and DecodeParallel are vLLM's context parallelism: so many times the GPUs, and so many of those of tensor parallelism
	// that share one cache. Ray: vLLM's workers are placed by Ray, on any host of its cluster.
	PrefillParallel, DecodeParallel uint32
	Ray                             bool
	// GPULayers is llama.cpp's -ngl; nil: not said, which means all.
	GPULayers *uint32
	// CPUExperts is llama.cpp's --n-cpu-moe: of so many layers, from the first on, the experts stay with the host; AllExperts: of all.
	// Overrides are its -ot, "PATTERN=BUFFER", in order. See HostExperts and Moves.
	CPUExperts uint32
	Overrides  []string
	// HostCache: llama.cpp's KV cache stays with the host (--no-kv-offload).
	HostCache bool
	// CacheK and CacheV are data types of the KV cache, "f16", "q8_0", "fp8".
	CacheK, CacheV string
	// Utilisation is vLLM's share of the GPU, "0.90"; for SGLang it is --mem-fraction-static, the share for weights and cache.
	Utilisation string
	// KVCacheBytes is vLLM's --kv-cache-memory-bytes.
	KVCacheBytes uint64
	// OffloadMiB is how much of its part of the weights each of vLLM's and SGLang's GPUs leaves with the host (--cpu-offload-gb).
	OffloadMiB uint32
	// Batch is llama.cpp's -b, vLLM's --max-num-batched-tokens, SGLang's --chunked-prefill-size; MicroBatch is llama.cpp's -ub.
	Batch, MicroBatch    uint32
	FlashAttention       *bool
	Fit                  *bool // llama.cpp's --fit; vLLM's --max-model-len auto, which shortens the context until it fits
	FitTargetMiB         uint32
	FitContext           uint32 // llama.cpp's --fit-ctx: the shortest context that it may choose
	ConfigFile           bool   // vLLM's and SGLang's --config: more options are in a file, which is not read
	HostKVMiB            uint32 // vLLM's --kv-offloading-size: KV cache that each copy keeps in the host's memory besides
	SleepMode            bool   // vLLM's --enable-sleep-mode, SGLang's --enable-memory-saver
	Router               bool   // llama-server without a model: it loads them on request
	FullWindow           bool   // llama.cpp's --swa-full
	Unified              *bool  // llama.cpp's --kv-unified
	Adapters, Projectors []string
	// Repository: llama.cpp chooses the files of a repository (-hf), a projector among them where it has one. NoProjector: none is loaded
	// (--no-mmproj), or none on a GPU (--no-mmproj-offload). See GPUProjectors.
	Repository, NoProjector bool
	// Drafts are models that guess tokens for the main one.
	Drafts []string
	// SplitMode, TensorSplit, Devices and MainGPU say how llama.cpp lays a model on several GPUs, as it was told: "row", "3,1",
	// "CUDA0,CUDA1". MainGPU is an index among the GPUs that it sees, or among Devices.
	SplitMode, TensorSplit, Devices string
	MainGPU                         uint32
}

// GPUProjectors is how many projectors llama.cpp may load on a GPU. A repository may have one, and counts as one
// (common_params_handle_models in common/arg.cpp).
func (c *Command) GPUProjectors() int {
	switch {
	case c.NoProjector:
		return 0
	case c.Repository && len(c.Projectors) == 0:
		return 1
	}
	return len(c.Projectors)
}

// Hosts is on how many hosts, as many GPUs on each, vLLM or SGLang runs what the command line says.
func (c *Command) Hosts() uint32 {
	hosts := max(c.Nodes, 1)
	if local := c.DataParallelLocal; local > 0 && c.DataParallel > local {
		hosts = max(hosts, (c.DataParallel-1)/local+1)
	}
	return hosts
}

// GPUs is how many of this host's GPUs vLLM or SGLang takes.
func (c *Command) GPUs() uint64 {
	all := uint64(1)
	for _, n := range []uint32{c.TensorParallel, c.PipelineParallel, c.DataParallel, c.PrefillParallel} {
		all *= uint64(min(max(n, 1), maxArguments))
	}
	return (all-1)/uint64(c.Hosts()) + 1
}

// maxArguments bounds what is looked at; an entry of the catalog has at most 128.
const maxArguments = 1024

// Read reads an engine's argument vector and says whether it is one: llama-server, `vllm serve`, vLLM's and SGLang's Python
// modules, `ollama serve`; behind env, nice, numactl and their like; and inside `docker run` and `podman run`, where Host and Port
// are those that the host publishes. environment is what the program is given beside it, or nil; an argument wins over a variable,
// as it does for the engines. A shell's command line is not recognised.
func Read(argv []string, environment map[string]string) (Command, bool) {
	if len(argv) > maxArguments {
		return Command{}, false
	}
	inner, added, ok := Unwrap(argv)
	if !ok {
		return Command{}, false
	}
	if c, ok := ReadContainer(inner); ok {
		return c.engine()
	}
	variables := func(key string) string {
		if value, ok := added[key]; ok {
			return value
		}
		return environment[key]
	}
	return read(inner, variables)
}

// read is Read without wrappers.
func read(argv []string, variable func(string) string) (Command, bool) {
	if len(argv) == 0 {
		return Command{}, false
	}
	base, rest := filepath.Base(argv[0]), argv[1:]
	switch {
	case base == "ik-llama-server" || base == "llama-server" || strings.HasPrefix(base, "llama-server-") || strings.HasPrefix(base, "llama-server."):
		return readLlama(rest, variable), true
	case base == "llama" && first(rest) == "serve":
		return readLlama(rest[1:], variable), true
	case base == "vllm" && first(rest) == "serve":
		return readVLLM(rest[1:]), true
	case base == "sglang" && first(rest) == "serve":
		return readSGLang(rest[1:]), true
	case base == "ollama" && (first(rest) == "serve" || first(rest) == "start"):
		return readOllama(variable), true
	case isPython(base):
		return readPython(rest)
	}
	return Command{}, false
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

func isPython(base string) bool {
	version, ok := strings.CutPrefix(base, "python")
	return ok && strings.Trim(version, "0123456789.") == ""
}

// readPython finds the module or the script that the interpreter is to run.
func readPython(args []string) (Command, bool) {
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-m" && i+1 < len(args):
			return readModule(args[i+1], args[i+2:])
		case a == "-X" || a == "-W":
			i++
		case a == "-c":
			return Command{}, false
		case strings.HasPrefix(a, "-"):
		case filepath.Base(a) == "vllm" && i+1 < len(args) && args[i+1] == "serve":
			return readVLLM(args[i+2:]), true
		case filepath.Base(a) == "sglang" && i+1 < len(args) && args[i+1] == "serve":
			return readSGLang(args[i+2:]), true
		default:
			return Command{}, false
		}
	}
	return Command{}, false
}

func readModule(name string, args []string) (Command, bool) {
	switch name {
	case "vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server":
		return readVLLM(args), true
	case "vllm.entrypoints.cli.main", "vllm":
		if first(args) == "serve" {
			return readVLLM(args[1:]), true
		}
	case "sglang.launch_server":
		return readSGLang(args), true
	case "sglang":
		if first(args) == "serve" {
			return readSGLang(args[1:]), true
		}
	}
	return Command{}, false
}

func readLlama(args []string, variable func(string) string) Command {
	c := Command{Engine: LlamaCPP}
	for _, key := range llamaVariables {
		value := variable(key.variable)
		off := truth(value) != nil && !*truth(value)
		switch opt := llamaOptions[key.option]; {
		case value == "":
		case opt.arity != flag || !off:
			opt.take(&c, value)
		case key.option == "-kvu":
			c.Unified = truth(value)
		case key.option == "-kvo":
			c.HostCache = true
		case key.option == "--mmproj-auto", key.option == "--mmproj-offload":
			c.NoProjector = true
		}
	}
	llamaOptions.read(&c, args)
	c.Router = c.Model == ""
	return c
}

func readVLLM(args []string) Command {
	c := Command{Engine: VLLM}
	if first(args) != "" && !strings.HasPrefix(args[0], "-") {
		c.Model, args = args[0], args[1:]
	}
	if loose := vllmOptions.read(&c, args); len(loose) == 1 && c.Model == "" {
		c.Model = loose[0]
	}
	if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(strings.ReplaceAll(a, "_", "-"), "--cpu-offload-params") }) {
		c.OffloadMiB = 0 // of some tensors alone, which may be far less
	}
	return c
}

func readSGLang(args []string) Command {
	c := Command{Engine: SGLang}
	sglangOptions.read(&c, args)
	if slices.Contains(args, "--enable-dp-attention") {
		c.DataParallel = 0 // on the GPUs of tensor parallelism
	}
	return c
}

// readOllama reads Ollama's variables; its server has no options.
// Source: docs/faq of ollama/ollama and envconfig/config.go.
func readOllama(variable func(string) string) Command {
	c := Command{Engine: Ollama, CacheK: variable("OLLAMA_KV_CACHE_TYPE")}
	c.CacheV = c.CacheK
	c.Host, c.Port = hostPort(variable("OLLAMA_HOST"))
	if scheme, _, _ := strings.Cut(variable("OLLAMA_HOST"), "://"); c.Port == 0 && (scheme == "http" || scheme == "https") {
		c.Port = map[string]uint32{"http": 80, "https": 443}[scheme] // and not its own, which is that of a host without a scheme
	}
	c.Context = number(variable("OLLAMA_CONTEXT_LENGTH"))
	c.Parallel = number(variable("OLLAMA_NUM_PARALLEL"))
	c.FlashAttention = truth(variable("OLLAMA_FLASH_ATTENTION"))
	return c
}

// hostPort reads HOST, HOST:PORT and URLs of them.
func hostPort(text string) (string, uint32) {
	if _, rest, ok := strings.Cut(text, "://"); ok {
		text = rest
	}
	text, _, _ = strings.Cut(text, "/")
	if i := strings.LastIndexByte(text, ':'); i >= 0 && !strings.HasSuffix(text, "]") && strings.Count(text[:i], ":") != 1 {
		return strings.Trim(text[:i], "[]"), port(text[i+1:])
	}
	return strings.Trim(text, "[]"), 0
}

// shells are programs whose arguments are a language.
var shells = []string{"sh", "bash", "dash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "busybox", "ash"}

// Shell reports whether a program, by its name or path, is a shell.
func Shell(program string) bool { return slices.Contains(shells, filepath.Base(program)) }
