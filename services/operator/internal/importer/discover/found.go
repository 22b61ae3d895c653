// Package discover looks at what a host runs already: units of systemd and containers of Docker that serve models, the GPUs that
// they hold memory of, and what they answer about themselves.
//
// It runs as the operator and reads only: busctl with fixed questions, HTTP GET over Docker's socket, nvidia-smi's two lists, files of
// /proc, and HTTP GET on 127.0.0.1 at a service's own port. It starts, stops and changes nothing. Everything that it reads was
// written by others: names are cleaned before they are shown, values of the environment are kept for a few keys alone, and an answer is
// bounded in time and size. What it finds is a proposal for a human; the executor checks each entry again when it is used.
//
// The operator's program may link neither a D-Bus library nor Docker's client (only the executor touches the host), and it needs
// neither: busctl and a GET say the same as JSON.
package discover

import (
	"context"
	"slices"
	"strings"

	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/secret"
)

// Server is a unit or a container that serves a model, or seems to.
type Server struct {
	// Name is the unit's, or the container's without its slash: cleaned, for people. Subject is the same as it stands there.
	Name, Subject string
	Running       bool
	// Command is what its command line says; Recognised: it is an engine's that is known.
	Command    enginecmd.Command
	Recognised bool
	// Environment holds the values of the few keys that are safe to show; Withheld are the names of all others.
	Environment map[string]string
	Withheld    []string
	// GPUs are UUIDs of those on which it holds memory now, and MiB how much in all; 0 where the driver does not say.
	GPUs []string
	MiB  uint32
	// Port is where it listens on this host; 0: not known.
	Port uint32
	// Answer is what it said of itself, if it was asked. Elsewhere is the address that it listens on, if it was not asked for that.
	Answer    Answer
	Elsewhere string
	// Refused are the reasons for which the executor would not run it, Remarks what is worth knowing besides.
	Refused, Remarks []string
	// indirect is by what a program is started that was not seen, as enginecmd.Indirect says it.
	indirect string
}

// shown are the keys of an environment whose values are no secrets and say how an engine runs.
var shown = []string{
	"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "NVIDIA_VISIBLE_DEVICES", "OLLAMA_CONTEXT_LENGTH", "OLLAMA_FLASH_ATTENTION",
	"OLLAMA_HOST", "OLLAMA_KEEP_ALIVE", "OLLAMA_KV_CACHE_TYPE", "OLLAMA_MAX_LOADED_MODELS", "OLLAMA_NUM_PARALLEL", "VLLM_SERVER_DEV_MODE",
	"VLLM_USE_V1",
}

// isShown reports whether a variable may be shown. LLAMA_ARG_ begins those of llama.cpp's options; its keys have other names.
func isShown(key, value string) bool {
	if !slices.Contains(shown, key) && (!strings.HasPrefix(key, "LLAMA_ARG_") || secret.Name(key)) || len(value) > 256 || secret.Suspect(value) {
		return false
	}
	return !strings.Contains(value, "://") || key == "OLLAMA_HOST" && !strings.ContainsAny(value, "@?")
}

// environment splits KEY=VALUE pairs into what may be shown and the names of what may not.
func environment(pairs []string) (values map[string]string, withheld []string) {
	values = map[string]string{}
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		if isShown(key, value) {
			values[key] = value
		} else if key != "" && !slices.Contains(withheld, key) {
			withheld = append(withheld, key)
		}
	}
	slices.Sort(withheld)
	return values, withheld
}

// Runner runs a program by its absolute path and returns what it writes to its standard output.
type Runner func(ctx context.Context, program string, args ...string) ([]byte, error)
