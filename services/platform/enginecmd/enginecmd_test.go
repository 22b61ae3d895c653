package enginecmd

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func words(line string) []string { return strings.Fields(line) }

func TestRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, line string
		env        map[string]string
		want       Command
	}{
		{"llama.cpp, short", "llama-server -m /m/x.gguf -c 8192 -np 2 -ngl 33 -ctk q8_0 -ctv q4_0 -b 1024 -ub 256 -fa on -a chat,other", nil, Command{
			Engine: LlamaCPP, Model: "/m/x.gguf", ServedName: "chat", Context: 8192, Parallel: 2, GPULayers: new(uint32(33)), CacheK: "q8_0", CacheV: "q4_0",
			Batch: 1024, MicroBatch: 256, FlashAttention: new(true),
		}},
		{"llama.cpp, long", "/opt/llama-server --model=/m/x.gguf --ctx_size 4096 --parallel 4 --n-gpu-layers all --cache-type-k bf16 --host 127.0.0.1 --port 9001 " +
			"--flash-attn off --fit off --fit-target 512,256 --swa-full --no-kv-unified --lora a,b --lora-scaled c:0.5 --mmproj p", nil, Command{
			Engine: LlamaCPP, Model: "/m/x.gguf", Context: 4096, Parallel: 4, CacheK: "bf16", Host: "127.0.0.1", Port: 9001, FlashAttention: new(false),
			Fit: new(false), FitTargetMiB: 512, FullWindow: true, Unified: new(false), Adapters: []string{"a", "b", "c"}, Projectors: []string{"p"},
		}},
		{"experts of some layers with the host", "llama-server -m x --n-cpu-moe 12", nil, Command{Engine: LlamaCPP, Model: "x", CPUExperts: 12}},
		{"of all", "llama-server -m x -cmoe", nil, Command{Engine: LlamaCPP, Model: "x", CPUExperts: AllExperts}},
		{"of all, by the environment", "llama-server -m x", map[string]string{"LLAMA_ARG_CPU_MOE": "1"}, Command{Engine: LlamaCPP, Model: "x", CPUExperts: AllExperts}},
		{"what patterns move, in order", "llama-server -m x -ot output=CUDA0,.ffn_.*_exps.=CPU --override_tensor blk=CPU", nil,
			Command{Engine: LlamaCPP, Model: "x", Overrides: []string{"output=CUDA0", ".ffn_.*_exps.=CPU", "blk=CPU"}}},
		{"a cache with the host", "llama-server -m x --no-kv-offload", nil, Command{Engine: LlamaCPP, Model: "x", HostCache: true}},
		{"or not", "llama-server -m x -nkvo -kvo", nil, Command{Engine: LlamaCPP, Model: "x"}},
		{"with the host, by the environment", "llama-server -m x", map[string]string{"LLAMA_ARG_KV_OFFLOAD": "off"}, Command{Engine: LlamaCPP, Model: "x", HostCache: true}},
		{"and by that of before", "llama-server -m x", map[string]string{"LLAMA_ARG_NO_KV_OFFLOAD": "1"}, Command{Engine: LlamaCPP, Model: "x", HostCache: true}},
		{"the shortest context", "llama-server -m x --fit on --fit-ctx 32768", nil, Command{Engine: LlamaCPP, Model: "x", Fit: new(true), FitContext: 32768}},
		{"copies on this host", "vllm serve a/b -dp 4 --data-parallel-size-local 2", nil, Command{Engine: VLLM, Model: "a/b", DataParallel: 4, DataParallelLocal: 2}},
		{"one copy of several", "vllm serve a/b -dp 4 --data-parallel-rank 3", nil, Command{Engine: VLLM, Model: "a/b", DataParallel: 4, DataParallelLocal: 1}},
		{"several hosts", "vllm serve a/b -tp 8 -pp 2 --nnodes 2 --node-rank 0", nil, Command{Engine: VLLM, Model: "a/b", TensorParallel: 8, PipelineParallel: 2, Nodes: 2}},
		{"SGLang on several hosts", "sglang serve --model-path a/b --tp 16 --nnodes=2", nil, Command{Engine: SGLang, Model: "a/b", TensorParallel: 16, Nodes: 2}},
		{"Ollama, by a URL without a port", "ollama serve", map[string]string{"OLLAMA_HOST": "http://127.0.0.1"}, Command{Engine: Ollama, Host: "127.0.0.1", Port: 80}},
		{"Ollama, by a host alone", "ollama serve", map[string]string{"OLLAMA_HOST": "127.0.0.1"}, Command{Engine: Ollama, Host: "127.0.0.1"}},
		{"flash attention was a flag", "llama-server -fa -m x", nil, Command{Engine: LlamaCPP, Model: "x", FlashAttention: new(true)}},
		{"and is by itself", "llama-server -fa auto -m x", nil, Command{Engine: LlamaCPP, Model: "x"}},
		{"a file wins over a repository", "llama-server -m x.gguf -hf a/b:Q4", nil, Command{Engine: LlamaCPP, Model: "x.gguf"}},
		{"a repository", "llama-server -hf a/b:Q4_K_M", nil, Command{Engine: LlamaCPP, Model: "a/b:Q4_K_M", Repository: true}},
		{"a router", "llama-server --models-preset p.ini --port 8080", nil, Command{Engine: LlamaCPP, Port: 8080, Router: true}},
		{"a preset", "llama-server --gpt-oss-20b-default", nil, Command{Engine: LlamaCPP, Model: "ggml-org/gpt-oss-20b-GGUF", Port: 8013, Batch: 32768, MicroBatch: 2048,
			Parallel: 2, Context: 262144}},
		{"a preset, and more", "llama-server --fim_qwen-7b-spec -c 4096 --port 8080 -np 1", nil, Command{Engine: LlamaCPP, Model: "ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF", Port: 8080,
			Batch: 1024, MicroBatch: 1024, Parallel: 1, Context: 4096, Drafts: []string{"ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF"}}},
		{"a preset with the model's context", "llama-server -m x --vision-gemma-4b-default", nil, Command{Engine: LlamaCPP, Model: "x", Port: 8014, OwnContext: true}},
		{"by variables, an argument wins", "llama-server -c 100", map[string]string{"LLAMA_ARG_MODEL": "x", "LLAMA_ARG_CTX_SIZE": "5", "LLAMA_ARG_HOST": "0.0.0.0"},
			Command{Engine: LlamaCPP, Model: "x", Context: 100, Host: "0.0.0.0"}},
		{"flags by variables", "llama-server -m x", map[string]string{"LLAMA_ARG_SWA_FULL": "1", "LLAMA_ARG_KV_UNIFIED": "false", "LLAMA_ARG_FLASH_ATTN": "on"},
			Command{Engine: LlamaCPP, Model: "x", FullWindow: true, Unified: new(false), FlashAttention: new(true)}},
		{"flags that variables take away", "llama-server -m x", map[string]string{"LLAMA_ARG_SWA_FULL": "0", "LLAMA_ARG_KV_UNIFIED": "1"},
			Command{Engine: LlamaCPP, Model: "x", Unified: new(true)}},
		{"the last counts", "llama-server -m x -c 1 -c 2", nil, Command{Engine: LlamaCPP, Model: "x", Context: 2}},
		{"numbers that are none", "llama-server -m x -c -1 -np auto -ngl auto --port 70000 -b 99999999999999999999", nil, Command{Engine: LlamaCPP, Model: "x"}},
		{"an option without its value", "llama-server -m x -c -np 3 -a", nil, Command{Engine: LlamaCPP, Model: "x", Parallel: 3}},
		{"a build with its hash", "/opt/llama-server-ec9e0301 -m x", nil, Command{Engine: LlamaCPP, Model: "x"}},
		{"vLLM", "vllm serve a/b --max-model-len 32k --max-num-seqs 64 -tp 2 --gpu-memory-utilization 0.90 --kv-cache-dtype fp8 --served-model-name one two " +
			"--enable-sleep-mode --kv-cache-memory-bytes 4G --max-num-batched-tokens 8192 --host 0.0.0.0 --port 8001", nil, Command{
			Engine: VLLM, Model: "a/b", Context: 32_000, Parallel: 64, TensorParallel: 2, Utilisation: "0.90", CacheK: "fp8", CacheV: "fp8", ServedName: "one",
			SleepMode: true, KVCacheBytes: 4 << 30, Batch: 8192, Host: "0.0.0.0", Port: 8001,
		}},
		{"vLLM's module", "/venv/bin/python3.12 -u -m vllm.entrypoints.openai.api_server --model=a/b --tensor_parallel_size=4 --max-model-len=25.6k", nil,
			Command{Engine: VLLM, Model: "a/b", TensorParallel: 4, Context: 25_600}},
		{"vLLM as the kernel shows it", "/venv/bin/python /venv/bin/vllm serve a/b", nil, Command{Engine: VLLM, Model: "a/b"}},
		{"a binary unit", "vllm serve a/b --max-model-len 32K", nil, Command{Engine: VLLM, Model: "a/b", Context: 32 << 10}},
		{"a context that fits", "vllm serve a/b --max-model-len auto", nil, Command{Engine: VLLM, Model: "a/b", OwnContext: true, Fit: new(true)}},
		{"a context that fits, by its number", "vllm serve a/b --max-model-len 4096 --max-model-len -1", nil, Command{Engine: VLLM, Model: "a/b", OwnContext: true, Fit: new(true)}},
		{"a context, after one that fits", "vllm serve a/b --max-model-len auto --max-model-len 4096", nil, Command{Engine: VLLM, Model: "a/b", Context: 4096}},
		{"the model behind options", "vllm serve --port 8000 --enable-sleep-mode a/b --max-model-len 4096", nil, Command{Engine: VLLM, Model: "a/b", Port: 8000, SleepMode: true, Context: 4096}},
		{"the model behind what is not known and joined", "vllm serve --dtype=half a/b", nil, Command{Engine: VLLM, Model: "a/b"}},
		{"what could be a value", "vllm serve --dtype half", nil, Command{Engine: VLLM}},
		{"names, and no model", "vllm serve --served-model-name one two", nil, Command{Engine: VLLM, ServedName: "one"}},
		{"two that could be the model", "vllm serve --port 8000 a/b c/d", nil, Command{Engine: VLLM, Port: 8000}},
		{"weights with the host", "vllm serve a/b --cpu-offload-gb 7.5", nil, Command{Engine: VLLM, Model: "a/b", OffloadMiB: 7680}},
		{"some weights with the host", "vllm serve a/b --cpu-offload-gb 7.5 --cpu-offload-params experts", nil, Command{Engine: VLLM, Model: "a/b"}},
		{"weights that are none", "vllm serve a/b --cpu-offload-gb -1", nil, Command{Engine: VLLM, Model: "a/b"}},
		{"SGLang's weights with the host", "sglang serve --model-path a/b --cpu-offload-gb=8", nil, Command{Engine: SGLang, Model: "a/b", OffloadMiB: 8192}},
		{"a share that is none", "vllm serve a/b --gpu-memory-utilization 90", nil, Command{Engine: VLLM, Model: "a/b"}},
		{"SGLang", "python -m sglang.launch_server --model-path a/b --tp 2 --context-length 8192 --mem-fraction-static 0.8 --enable-memory-saver --port 30001", nil,
			Command{Engine: SGLang, Model: "a/b", TensorParallel: 2, Context: 8192, Utilisation: "0.8", SleepMode: true, Port: 30001}},
		{"Ollama", "/usr/local/bin/ollama serve", map[string]string{
			"OLLAMA_HOST": "http://127.0.0.1:11500/", "OLLAMA_NUM_PARALLEL": "2", "OLLAMA_CONTEXT_LENGTH": "4096",
			"OLLAMA_KV_CACHE_TYPE": "q8_0", "OLLAMA_FLASH_ATTENTION": "1",
		}, Command{Engine: Ollama, Host: "127.0.0.1", Port: 11500, Parallel: 2, Context: 4096, CacheK: "q8_0", CacheV: "q8_0", FlashAttention: new(true)}},
		{"behind env", "env -u X A=b LLAMA_ARG_CTX_SIZE=7 /x/llama-server -m y", nil, Command{Engine: LlamaCPP, Model: "y", Context: 7}},
		{"behind much", "nice -n 5 numactl --cpunodebind=0 -m 0 taskset -c 0-3 ionice -c2 -n0 vllm serve a/b", nil, Command{Engine: VLLM, Model: "a/b"}},
		{"in a container", "docker run --rm -it --gpus all -p 127.0.0.1:9000:8000 --ipc=host -v /m:/m vllm/vllm-openai:v0.11.0 --model a/b -tp 2", nil,
			Command{Engine: VLLM, Model: "a/b", TensorParallel: 2, Host: "127.0.0.1", Port: 9000}},
		{"in a container, by its environment", "podman run -p 8081:8080 -e LLAMA_ARG_CTX_SIZE=9 ghcr.io/ggml-org/llama.cpp:server-cuda -m /m/x.gguf", nil,
			Command{Engine: LlamaCPP, Model: "/m/x.gguf", Context: 9, Host: "0.0.0.0", Port: 8081}},
		{"in a container, with its own program", "docker run lmsysorg/sglang:latest python3 -m sglang.launch_server --model-path a/b", nil, Command{Engine: SGLang, Model: "a/b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, ok := Read(words(c.line), c.env)
			if !ok {
				t.Fatal("not recognised")
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"", "sh -c llama-server", "bash -lc vllm", "busybox sh llama-server", "env -S llama-server", "env", "env A=b", "nice", "nice --unknown x llama-server", "vllm bench x", "vllm",
		"ollama run x", "python", "python -c vllm", "python x.py serve", "python -m http.server", "python -m vllm chat", "docker exec x llama-server",
		"docker run --unknown x vllm/vllm-openai", "docker run", "docker run -p", "docker", "pythonista -m vllm.entrypoints.openai.api_server", "numactl -N",
		"taskset -c", "docker run redis:8", "docker run -Z vllm/vllm-openai", "nginx",
		strings.Repeat("env ", 20) + "llama-server", "llama-server " + strings.Repeat("-v ", 2000),
	} {
		if got, ok := Read(words(line), nil); ok {
			t.Errorf("%.60q was read as %+v", line, got)
		}
	}
}

func TestReadContainer(t *testing.T) {
	t.Parallel()
	got, ok := ReadContainer(words("docker container run -dit --name=x --user 1:2 -e A=b -eC --env-file f -p8000:80 --publish 1:2 -v /a:/b:ro --mount type=bind,source=/c,target=/d " +
		"--tmpfs /t --gpus \"device=0,1\" --device nvidia.com/gpu=0 --runtime nvidia --shm-size 1g -m 2g --cpus 3 --pids-limit 4 -l k=v --privileged --net host --rm=false img:1 --flag -x"))
	want := Container{
		Image: "img:1", Command: []string{"--flag", "-x"}, Options: []Option{
			{"detach", "true"}, {"interactive", "true"}, {"tty", "true"}, {"name", "x"}, {"user", "1:2"}, {"env", "A=b"}, {"env", "C"}, {"env-file", "f"},
			{"publish", "8000:80"}, {"publish", "1:2"}, {"volume", "/a:/b:ro"}, {"mount", "type=bind,source=/c,target=/d"}, {"tmpfs", "/t"}, {"gpus", "device=0,1"},
			{"device", "nvidia.com/gpu=0"}, {"runtime", "nvidia"}, {"shm-size", "1g"}, {"memory", "2g"}, {"cpus", "3"}, {"pids-limit", "4"}, {"label", "k=v"},
			{"privileged", "true"}, {"network", "host"},
		},
	}
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("%v (-want +got)\n%s", ok, diff)
	}
}

func TestPublished(t *testing.T) {
	t.Parallel()
	type published struct {
		Host            string
		Outside, Inside uint32
	}
	for text, want := range map[string]published{
		"80": {"", 0, 80}, "8080:80": {"", 8080, 80}, "127.0.0.1:8080:80/tcp": {"127.0.0.1", 8080, 80}, "[::1]:8080:80": {"::1", 8080, 80},
		"127.0.0.1::80": {"127.0.0.1", 0, 80}, "80/udp": {}, "8000-8010:8000-8010": {}, "x": {}, "": {}, "1:99999": {"", 1, 0},
	} {
		host, outside, inside := Published(text)
		if got := (published{host, outside, inside}); got != want {
			t.Errorf("%q is %+v, want %+v", text, got, want)
		}
	}
}

func TestUnwrapKeepsArguments(t *testing.T) {
	t.Parallel()
	inner, env, ok := Unwrap(words("env A=b C=d nice -n 3 prog -n 3 A=b"))
	if diff := cmp.Diff([]string{"prog", "-n", "3", "A=b"}, inner); !ok || diff != "" {
		t.Errorf("%v %s", ok, diff)
	}
	if diff := cmp.Diff(map[string]string{"A": "b", "C": "d"}, env); diff != "" {
		t.Error(diff)
	}
}

// FuzzRead: whatever the arguments, reading ends, and says nothing of what it did not recognise.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		"llama-server\x00-m\x00x\x00-c\x0032k", "vllm\x00serve\x00a/b\x00--served-model-name\x00x\x00y", "docker\x00run\x00-it\x00-p\x001:2\x00vllm/vllm-openai\x00--model\x00x",
		"env\x00A=b\x00nice\x00-n5\x00python\x00-m\x00sglang.launch_server\x00--tp=2", "docker\x00run\x00--entrypoint\x00docker\x00x\x00run\x00--entrypoint\x00docker\x00y", "ollama\x00serve",
	} {
		f.Add(seed, "0.0.0.0:1")
	}
	f.Fuzz(func(t *testing.T, joined, host string) {
		argv := strings.Split(joined, "\x00")
		before := strings.Join(argv, "\x00")
		c, ok := Read(argv, map[string]string{"OLLAMA_HOST": host, "LLAMA_ARG_CTX_SIZE": host})
		switch {
		case !ok && c.Engine != "":
			t.Errorf("%q is refused and is %s", argv, c.Engine)
		case ok && c.Engine == "":
			t.Errorf("%q is no engine", argv)
		case c.Port > 65535:
			t.Errorf("%q has port %d", argv, c.Port)
		case strings.Join(argv, "\x00") != before:
			t.Errorf("%q was changed to %q", before, argv)
		}
	})
}
