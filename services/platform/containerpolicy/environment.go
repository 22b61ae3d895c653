package containerpolicy

import (
	"path"
	"slices"
	"strings"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/pattern"
)

// VisibleDevices is the variable by which an image asks NVIDIA's runtime for GPUs by itself; NoDevices is its value for none.
const (
	VisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	NoDevices      = "void"
)

var keyPattern = pattern.New(`\A[A-Za-z_][A-Za-z0-9_]{0,63}\z`)

// keys are what any container may be given: ENV-1's, and what the model servers that we know read to find their files and to
// say how much they do. None of them names code to load.
var keys = []string{
	"HOME", "LANG", "LC_ALL", "TERM", "TZ", "USER", "XDG_CACHE_HOME",
	"HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE",
	"TOKENIZERS_PARALLELISM", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "NCCL_DEBUG", "PYTORCH_CUDA_ALLOC_CONF",
	"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "OMP_NUM_THREADS", "PYTHONUNBUFFERED",
	"VLLM_ATTENTION_BACKEND", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS",
	"VLLM_SERVER_DEV_MODE", "VLLM_USE_V1", "VLLM_WORKER_MULTIPROC_METHOD", "DO_NOT_TRACK",
	"LLAMA_CACHE", "LLAMA_LOG_VERBOSITY", "OLLAMA_MODELS", "OLLAMA_KEEP_ALIVE", "OLLAMA_NUM_PARALLEL",
}

// loaders begin the names of variables that make the dynamic loader and the C library run or read other code; one in an image
// was how CVE-2025-23266 got out of a container, because NVIDIA's hook, outside of it, inherited it. They are refused wherever
// they come from, except for the library path, of which images have need.
var loaders = []string{"LD_", "GCONV_PATH", "GETCONF_DIR", "GLIBC_TUNABLES", "MALLOC_TRACE", "LOCPATH", "NIS_PATH", "NLSPATH", "HOSTALIASES"}

const libraryPath = "LD_LIBRARY_PATH"

// fleeting are folders that say something else from one process to the next, or that anybody writes to: what a library path
// must not lead to in a process outside of the container.
var fleeting = []string{"/proc", "/dev", "/sys", "/run", "/var/run", "/tmp", "/var/tmp"}

// environment judges each variable: the image's own were approved with the image; others need a key that is allowed.
func environment(k *check) string {
	seen := map[string]bool{}
	for _, pair := range k.Config.Env {
		key, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok || !keyPattern().MatchString(key) || strings.ContainsRune(value, 0):
			return safe(key) + " is not KEY=VALUE"
		case seen[key]:
			return key + " is set twice"
		case !k.mayBeSet(key, value, slices.Contains(k.ImageEnvironment, pair)):
			return key + " is not allowed"
		}
		seen[key] = true
	}
	return ""
}

func (k *check) mayBeSet(key, value string, byImage bool) bool {
	switch {
	case byImage && key == libraryPath:
		return !slices.ContainsFunc(strings.Split(value, ":"), func(folder string) bool { return !lasting(folder) })
	case slices.ContainsFunc(loaders, func(l string) bool { return strings.HasPrefix(key, l) }):
		return false
	case key == VisibleDevices:
		// Where the daemon tells the hook itself, its word comes last and counts.
		return value == NoDevices || value == "none" || byImage && k.asksDriver()
	case strings.HasPrefix(key, "NVIDIA_"):
		return byImage && harmless(key, value)
	case byImage:
		return true
	}
	return PlainKey(key) || slices.Contains(k.Environment, key)
}

// PlainKey reports whether any container may be given the variable.
func PlainKey(key string) bool { return slices.Contains(keys, key) }

// lasting reports whether a name of a folder leads to the same place from everywhere, and not to one where anybody writes. An
// empty one is the working folder.
func lasting(folder string) bool {
	return path.IsAbs(folder) && path.Clean(folder) == strings.TrimSuffix(folder, "/") &&
		!slices.ContainsFunc(fleeting, func(root string) bool { return catalog.Within(folder, root) })
}

// harmless reports whether one of NVIDIA's variables in an image tells its hook nothing but what the image needs. Others make
// the hook mount more of the host.
func harmless(key, value string) bool {
	switch {
	case key == "NVIDIA_DRIVER_CAPABILITIES":
		return !slices.ContainsFunc(strings.Split(value, ","), func(name string) bool { return !slices.Contains([]string{"compute", "utility", "video"}, name) })
	case strings.HasPrefix(key, "NVIDIA_REQUIRE_"), strings.HasSuffix(key, "_VERSION"):
		return true
	}
	return slices.Contains([]string{
		"NVIDIA_BUILD_ID", "NVIDIA_CUDA_END_OF_LIFE", "NVIDIA_DISABLE_REQUIRE", "NVIDIA_PRODUCT_NAME",
	}, key)
}
