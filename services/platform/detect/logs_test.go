package detect

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// logLines makes lines as services write them, the same for the same seed. None of them holds personal data or a credential: an address
// is the host's own, and who logs in is a service.
func logLines(n int, seed uint64) []string {
	r := rand.New(rand.NewPCG(seed, 1))
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	hex := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteByte("0123456789abcdef"[r.IntN(16)])
		}
		return b.String()
	}
	uuid := func() string { return hex(8) + "-" + hex(4) + "-4" + hex(3) + "-a" + hex(3) + "-" + hex(12) }
	num := func(n int) int { return r.IntN(n) }
	model := func() string {
		return pick("meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen2.5-7B-Instruct-AWQ", "mistralai/Mistral-7B-v0.3", "google/gemma-2-9b-it", "deepseek-ai/DeepSeek-V3", "TheBloke/Llama-2-13B-GPTQ")
	}
	day := func() string {
		return fmt.Sprintf("%02d-%02d %02d:%02d:%02d", 1+num(12), 1+num(28), num(24), num(60), num(60))
	}
	formats := []func() string{
		func() string {
			return fmt.Sprintf("INFO %s [loader.py:%d] Loading weights took %d.%02d seconds", day(), num(900), num(90), num(100))
		},
		func() string {
			return fmt.Sprintf("INFO %s [metrics.py:%d] Avg prompt throughput: %d.%d tokens/s, Avg generation throughput: %d.%d tokens/s, Running: %d reqs, Swapped: 0 reqs, Pending: %d reqs, GPU KV cache usage: %d.%d%%",
				day(), num(900), num(4000), num(10), num(900), num(10), num(64), num(9), num(100), num(10))
		},
		func() string {
			return fmt.Sprintf("INFO %s [async_llm_engine.py:%d] Added request cmpl-%s. prompt_tokens=%d max_tokens=%d temperature=0.%d", day(), num(300), hex(32), num(9000), num(4096), num(10))
		},
		func() string {
			return fmt.Sprintf("INFO %s [api_server.py:%d] vLLM API server version 0.%d.%d", day(), num(900), num(12), num(9))
		},
		func() string {
			return fmt.Sprintf("WARNING %s [config.py:%d] %s is quantized, %s may be faster; device capability %d.%d", day(), num(900), model(), pick("awq_marlin", "gptq_marlin", "fp8"), 7+num(3), num(10))
		},
		func() string {
			return fmt.Sprintf("(VllmWorkerProcess pid=%d) INFO %s [model_runner.py:%d] Graph capturing finished in %d secs, took %d.%02d GiB", num(4000000), day(), num(2000), num(90), num(9), num(100))
		},
		func() string {
			return fmt.Sprintf("llama_model_loader: - kv %3d: %40s %s = %d", num(40), "llama."+pick("context_length", "embedding_length", "block_count", "rope.freq_base"), pick("u32", "f32"), num(131072))
		},
		func() string {
			return fmt.Sprintf("llama_print_timings:        eval time = %8d.%02d ms / %5d runs   (%5d.%02d ms per token, %5d.%02d tokens per second)", num(90000), num(100), num(900), num(90), num(100), num(90), num(100))
		},
		func() string {
			return fmt.Sprintf("ggml_cuda_init: found %d CUDA devices: Device 0: NVIDIA %s, compute capability 8.%d, VMM: yes", 1+num(8), pick("GeForce RTX 3090", "A100-SXM4-80GB", "H100 PCIe", "RTX 6000 Ada Generation", "Tesla V100"), num(10))
		},
		func() string {
			return fmt.Sprintf("srv  log_server_r: request: POST /v1/chat/completions 127.0.0.1 %d", 200+num(4))
		},
		func() string {
			return fmt.Sprintf("slot update_slots: id %2d | task %d | prompt done, n_past = %d, n_tokens = %d", num(8), num(100000), num(9000), num(2048))
		},
		func() string {
			return fmt.Sprintf("Nov %02d %02d:%02d:%02d gpu%02d systemd[1]: %s %s", 1+num(28), num(24), num(60), num(60), num(20), pick("Started", "Stopping", "Stopped", "Starting", "Reloading"), pick("vllm@qwen.service - vLLM OpenAI server.", "nginx.service - A high performance web server and a reverse proxy server.", "user@1000.service - User Manager for UID 1000.", "docker.service - Docker Application Container Engine."))
		},
		func() string {
			return fmt.Sprintf("Nov %02d %02d:%02d:%02d gpu%02d kernel: NVRM: Xid (PCI:0000:%s:00): %d, pid=%d, name=python3, Ch %08x", 1+num(28), num(24), num(60), num(60), num(20), hex(2), num(120), num(4000000), num(1<<30))
		},
		func() string {
			return fmt.Sprintf("Nov %02d %02d:%02d:%02d gpu%02d dockerd[%d]: time=\"2026-11-%02dT%02d:%02d:%02d.%09dZ\" level=info msg=\"ignoring event\" container=%s module=libcontainerd", 1+num(28), num(24), num(60), num(60), num(20), num(9000), 1+num(28), num(24), num(60), num(60), num(999999999), hex(64))
		},
		func() string {
			return fmt.Sprintf(`127.0.0.1 - - [%02d/Nov/2026:%02d:%02d:%02d +0100] "GET /v1/models?limit=%d HTTP/1.1" 200 %d "-" "curl/8.%d.%d" %d.%03d`, 1+num(28), num(24), num(60), num(60), num(100), num(99999), num(12), num(9), num(3), num(1000))
		},
		func() string {
			return fmt.Sprintf(`127.0.0.1 - - [%02d/Nov/2026:%02d:%02d:%02d +0000] "POST /api/generate HTTP/1.1" 499 0 "https://chat.example.org/c/%s" "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/%d.0.%d.%d Safari/537.36"`, 1+num(28), num(24), num(60), num(60), uuid(), 90+num(60), num(7000), num(200))
		},
		func() string {
			return fmt.Sprintf("2026/11/%02d %02d:%02d:%02d [error] %d#%d: *%d connect() failed (111: Connection refused) while connecting to upstream, upstream: \"http://127.0.0.1:%d/v1\"", 1+num(28), num(24), num(60), num(60), num(9000), num(9000), num(9999999), 1024+num(60000))
		},
		func() string { return "Traceback (most recent call last):" },
		func() string {
			return fmt.Sprintf(`  File "/usr/lib/python3/dist-packages/vllm/%s.py", line %d, in %s`, pick("engine/llm_engine", "worker/model_runner", "entrypoints/api_server"), num(2000), pick("__init__", "step", "execute_model", "forward"))
		},
		func() string {
			return fmt.Sprintf("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %d.%02d GiB. GPU 0 has a total capacity of 79.15 GiB of which %d.%02d MiB is free. Process %d has %d.%02d GiB memory in use.", num(40), num(100), num(900), num(100), num(4000000), num(70), num(100))
		},
		func() string {
			return fmt.Sprintf("RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:%d, unhandled cuda error, NCCL version 2.%d.%d", num(3000), num(30), num(9))
		},
		func() string {
			return fmt.Sprintf("%d.%06d request_id=%s status=ok duration_ms=%d bytes=%d trace=%s span=%s", 1763900000+num(99999), num(999999), uuid(), num(90000), num(1<<30), hex(32), hex(16))
		},
		func() string {
			return fmt.Sprintf("%d %d %d %d GPU-%s sha256:%s 0x%s", 1700000000+num(90000000), num(999999999), num(99999), num(999), uuid(), hex(64), hex(12))
		},
		func() string {
			return fmt.Sprintf(`{"level":"info","ts":%d.%07d,"caller":"http/server.go:%d","msg":"served","path":"/metrics","size":%d,"id":"%s"}`, 1763900000+num(99999), num(9999999), num(900), num(1<<24), hex(16))
		},
		func() string {
			return fmt.Sprintf("| %d%%   %dC    P%d    %dW / 300W |  %5dMiB / 81559MiB |     %d%%      Default |", num(100), 30+num(50), num(9), num(300), num(81559), num(100))
		},
		func() string {
			return fmt.Sprintf("Downloading shards: %d%%|%s| %d/%d [%02d:%02d<%02d:%02d, %d.%02ds/it]", num(100), strings.Repeat("█", 1+num(9)), num(30), 30, num(60), num(60), num(60), num(60), num(90), num(100))
		},
	}
	out := make([]string, n)
	for i := range out {
		out[i] = formats[r.IntN(len(formats))]()
	}
	return out
}

// TestRealLogs prints what is found in the logs that the variable LOGS names, files of one folder: what a human must look at, since nobody says what
// of it is somebody's. Without -report, or without logs, there is nothing to do.
func TestRealLogs(t *testing.T) {
	folder := os.Getenv("LOGS")
	if !*report || folder == "" {
		return
	}
	files, err := os.ReadDir(folder)
	must(t, err)
	d, err := New(Config{})
	must(t, err)
	lines, types := 0, map[Type]int{}
	for _, f := range files {
		raw, err := os.ReadFile(filepath.Join(folder, f.Name()))
		must(t, err)
		text := string(raw)
		found, err := d.Find(t.Context(), text)
		must(t, err)
		for _, s := range found {
			types[s.Type]++
			if *listing {
				fmt.Printf("%s: %s %q, %s\n", f.Name(), s.Type, text[s.From:s.To], s.Why)
			}
		}
		lines += strings.Count(text, "\n")
		fmt.Printf("%s: %d values in %d lines\n", f.Name(), len(found), strings.Count(text, "\n"))
	}
	fmt.Printf("In %d lines of real logs are found %v.\n", lines, types)
}

// TestFalseAlarms: of 10,000 lines of services' logs at most one raises a false alarm.
func TestFalseAlarms(t *testing.T) {
	const lines = 40_000
	text := strings.Join(logLines(lines, 7), "\n")
	found := find(t, text)
	if *report {
		fmt.Printf("%d false alarms in %d generated lines of vLLM, llama.cpp, journald, nginx and Python.\n", len(found), lines)
	}
	for _, s := range found[:min(len(found), 20)] {
		begin := strings.LastIndexByte(text[:s.From], '\n') + 1
		t.Logf("%q, %s, %s: %.160q", text[s.From:s.To], s.Type, s.Why, text[begin:])
	}
	if len(found) > lines/10_000 {
		t.Errorf("%d false alarms in %d lines", len(found), lines)
	}
}
