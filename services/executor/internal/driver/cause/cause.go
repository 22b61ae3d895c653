// Package cause reads from a service's last log lines why it ended. What it returns is one of the driver package's fixed
// sentences and nothing of the log itself: whoever writes a log can make this package choose another sentence, and no more.
package cause

import (
	"slices"
	"strings"

	"durward.internal/services/executor/internal/driver"
)

// Lines is how many of the last lines of a log are worth reading.
const Lines = 20

// maxLine is how much of a line is looked at, in bytes: an engine's own sentence stands in the beginning or at the end of one.
const maxLine = 4096

// signs are what engines, libraries and the kernel write, in small letters, with the cause that it means. The first that is found
// in a line counts, so the narrower stands before the wider. Sources: PyTorch's and vLLM's exceptions, llama.cpp's ggml-cuda and
// llama-model-loader, huggingface_hub's errors, strerror(3), CPython's socket errors, Linux' OOM killer, systemd's own messages.
var signs = []struct{ text, cause string }{
	{"cuda out of memory", driver.CauseOutOfVRAM},
	{"torch.outofmemoryerror", driver.CauseOutOfVRAM},
	{"cuda error: out of memory", driver.CauseOutOfVRAM},
	{"cuda_error_out_of_memory", driver.CauseOutOfVRAM},
	{"cudaerrormemoryallocation", driver.CauseOutOfVRAM},
	{"cudamalloc failed: out of memory", driver.CauseOutOfVRAM},
	{"cublas_status_alloc_failed", driver.CauseOutOfVRAM},
	{"hip out of memory", driver.CauseOutOfVRAM},
	{"unable to allocate cuda", driver.CauseOutOfVRAM},
	{"failed to allocate cuda", driver.CauseOutOfVRAM},
	{"no available memory for the cache blocks", driver.CauseOutOfVRAM},
	{"is less than desired gpu memory utilization", driver.CauseOutOfVRAM},
	{"larger than the available kv cache memory", driver.CauseOutOfVRAM},
	{"gpu out of memory", driver.CauseOutOfVRAM},
	{"out of gpu memory", driver.CauseOutOfVRAM},

	{"address already in use", driver.CausePortInUse},
	{"address in use", driver.CausePortInUse},
	{"eaddrinuse", driver.CausePortInUse},
	{"couldn't bind http server socket", driver.CausePortInUse},
	{"couldn't bind to server socket", driver.CausePortInUse},

	{"failed to load model from file", driver.CauseWeightsMissing},
	{"failed to open gguf", driver.CauseWeightsMissing},
	{"gguf_init_from_file: failed to open", driver.CauseWeightsMissing},
	{"cannot find any model weights", driver.CauseWeightsMissing},
	{"no such model", driver.CauseWeightsMissing},
	{"model file not found", driver.CauseWeightsMissing},
	{"model path does not exist", driver.CauseWeightsMissing},
	{"repository not found", driver.CauseWeightsMissing},
	{"repositorynotfounderror", driver.CauseWeightsMissing},
	{"localentrynotfounderror", driver.CauseWeightsMissing},
	{"is not a local folder and is not a valid model identifier", driver.CauseWeightsMissing},
	{"incorrect path_or_model_id", driver.CauseWeightsMissing},
	{"invalid repository id or local directory", driver.CauseWeightsMissing},
	{"couldn't connect to 'https://huggingface.co'", driver.CauseWeightsMissing},

	{"failed with result 'oom-kill'", driver.CauseOutOfMemory},
	{"killed by the oom killer", driver.CauseOutOfMemory},
	{"out of memory: killed process", driver.CauseOutOfMemory},
	{"memory cgroup out of memory", driver.CauseOutOfMemory},
	{"cannot allocate memory", driver.CauseOutOfMemory},
	{"std::bad_alloc", driver.CauseOutOfMemory},
	{"defaultcpuallocator: can't allocate memory", driver.CauseOutOfMemory},
	{"not enough memory: you tried to allocate", driver.CauseOutOfMemory},
	{"fatal error: out of memory", driver.CauseOutOfMemory},
	{"fatal error: runtime: out of memory", driver.CauseOutOfMemory},
	{"memoryerror", driver.CauseOutOfMemory},
	{"outofmemoryerror", driver.CauseOutOfMemory},

	{"rpc call to execute_model timed out", driver.CauseStalled},
	{"watchdog caught collective operation timeout", driver.CauseStalled},
	{"start operation timed out", driver.CauseStalled},
}

// missing are lines that say "not found" of a file that looks like a model's.
var (
	notFound = []string{"no such file or directory", "filenotfounderror", "not found", "does not exist"}
	weights  = []string{".gguf", ".safetensors", "pytorch_model", ".bin'", ".pth", ".pt'", "config.json", "tokenizer"}
)

// FromLog returns the cause that the lines (the oldest first) tell of, or "". The first line that tells of one counts: what
// comes after a failure is mostly its consequence. Of more than Lines lines the last are read.
func FromLog(lines []string) string {
	for _, line := range lines[max(0, len(lines)-Lines):] {
		if c := fromLine(line); c != "" {
			return c
		}
	}
	return ""
}

func fromLine(line string) string {
	if len(line) > 2*maxLine {
		line = line[:maxLine] + "\n" + line[len(line)-maxLine:]
	}
	line = strings.ToLower(line)
	for _, sign := range signs {
		if strings.Contains(line, sign.text) {
			return sign.cause
		}
	}
	if containsAny(line, notFound) && containsAny(line, weights) {
		return driver.CauseWeightsMissing
	}
	return ""
}

func containsAny(line string, texts []string) bool {
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(line, text) })
}
