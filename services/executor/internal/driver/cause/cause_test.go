package cause

import (
	"strings"
	"testing"

	"durward.internal/services/executor/internal/driver"
)

func TestFromLog(t *testing.T) {
	cases := []struct {
		name  string
		lines []string
		want  string
	}{
		{"nothing", nil, ""},
		{"an ordinary end", []string{"INFO: Shutting down", "INFO: Finished server process"}, ""},
		{"a word in passing", []string{"memory: 24576 MiB", "port 8000 is ours"}, ""},
		{"a missing file that is no model's", []string{"/etc/nvidia/x.conf: No such file or directory"}, ""},
		{
			"vLLM has no room",
			[]string{"ValueError: Free memory on device (3.1/24 GiB) on startup is less than desired GPU memory utilization (0.92, 22 GiB)."},
			driver.CauseOutOfVRAM,
		},
		{
			"PyTorch has no room, which ends as MemoryError would",
			[]string{"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "RuntimeError: Engine core initialization failed."},
			driver.CauseOutOfVRAM,
		},
		{"llama.cpp has no room", []string{"ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory"}, driver.CauseOutOfVRAM},
		{
			"vLLM's port",
			[]string{"OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use"},
			driver.CausePortInUse,
		},
		{"Node's port", []string{"Error: listen EADDRINUSE: port taken 127.0.0.1:8000"}, driver.CausePortInUse},
		{"llama-server's port", []string{"main: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080"}, driver.CausePortInUse},
		{"llama.cpp's file", []string{"llama_model_load: error loading model: failed to open /m/x.gguf: No such file or directory"}, driver.CauseWeightsMissing},
		{
			"a model that the hub does not know",
			[]string{"OSError: x/y is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'"},
			driver.CauseWeightsMissing,
		},
		{"safetensors", []string{"FileNotFoundError: [Errno 2]: '/m/model-00001-of-00002.safetensors'"}, driver.CauseWeightsMissing},
		{"the kernel", []string{"Memory cgroup out of memory: Killed process 12 (python3)"}, driver.CauseOutOfMemory},
		{"C++", []string{"terminate called after throwing an instance of 'std::bad_alloc'"}, driver.CauseOutOfMemory},
		{"systemd", []string{"x.service: Failed with result 'oom-kill'."}, driver.CauseOutOfMemory},
		{"a stall", []string{"RPC call to execute_model timed out."}, driver.CauseStalled},
		{"the first counts", []string{"CUDA out of memory", "bind: address already in use"}, driver.CauseOutOfVRAM},
		{"the end of a long line", []string{strings.Repeat("x", 1<<20) + " CUDA out of memory"}, driver.CauseOutOfVRAM},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := FromLog(c.lines); got != c.want {
				t.Errorf("FromLog = %q, want %q", got, c.want)
			}
		})
	}
}

// Lines before the last twenty are another story.
func TestFromLogReadsTheLastLines(t *testing.T) {
	lines := append([]string{"CUDA out of memory"}, make([]string, Lines)...)
	if got := FromLog(lines); got != "" {
		t.Errorf("FromLog = %q of a line before the last %d", got, Lines)
	}
}

// Whatever a program logs, the answer is a fixed sentence.
func FuzzFromLog(f *testing.F) {
	for _, seed := range []string{"", "CUDA out of memory", "a\nbind: address already in use", "\xff\x00 not found .gguf"} {
		f.Add(seed)
	}
	fixed := map[string]bool{"": true}
	for _, sign := range signs {
		fixed[sign.cause] = true
	}
	f.Fuzz(func(t *testing.T, log string) {
		if got := FromLog(strings.Split(log, "\n")); !fixed[got] {
			t.Errorf("FromLog = %q, which is no fixed sentence", got)
		}
	})
}
