package policy

import (
	"regexp"
	"slices"
	"strings"
)

// VisibleDevices is the variable by which an image asks NVIDIA's runtime for GPUs by itself; NoDevices is its value for none.
const (
	VisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	NoDevices      = "void"
)

var keyPattern = regexp.MustCompile(`\A[A-Za-z_][A-Za-z0-9_]{0,63}\z`)

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

// loaders make the dynamic loader run other code; one in an image was how CVE-2025-23266 got out of a container, because
// NVIDIA's hook inherited it. They are refused wherever they come from.
var loaders = []string{"LD_PRELOAD", "LD_AUDIT", "LD_DEBUG", "LD_DEBUG_OUTPUT", "LD_PROFILE", "LD_PROFILE_OUTPUT"}

// environment judges each variable: the image's own were approved with the image; others need a key that is allowed.
func environment(k *check) string {
	seen := map[string]bool{}
	for _, pair := range k.Config.Env {
		key, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok || !keyPattern.MatchString(key) || strings.ContainsRune(value, 0):
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
	case slices.Contains(loaders, key):
		return false
	case key == VisibleDevices:
		// Where the daemon tells the hook itself, its word comes last and counts.
		return value == NoDevices || value == "none" || byImage && k.asksDriver()
	case byImage:
		return true
	case strings.HasPrefix(key, "LD_"), strings.HasPrefix(key, "NVIDIA_"):
		return false
	}
	return slices.Contains(keys, key) || slices.Contains(k.Environment, key)
}
