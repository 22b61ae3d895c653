package vram

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/enginecmd"
)

func TestRunOf(t *testing.T) {
	t.Parallel()
	llama, _ := Defaults(enginecmd.LlamaCPP)
	sglang, _ := Defaults(enginecmd.SGLang)
	vllm, _ := Defaults(enginecmd.VLLM)
	ollama, _ := Defaults(enginecmd.Ollama)
	with := func(r Run, change func(*Run)) Run { change(&r); return r }
	tests := []struct {
		name    string
		service catalog.Service
		want    Run
	}{
		{"defaults of llama.cpp", catalog.Service{Argv: []string{"/opt/llama-server", "-m", "/srv/a.gguf"}}, llama},
		{"a command line of llama.cpp", catalog.Service{Argv: []string{"/opt/llama-server", "-m", "/srv/a.gguf", "-c", "32768", "-np", "2", "-ngl", "20",
			"-ctk", "q8_0", "-ctv", "q4_0", "-b", "1024", "-ub", "256", "-fa", "off", "--fit", "off", "--swa-full"}},
			with(llama, func(r *Run) {
				r.Context, r.Parallel, r.Unified, r.GPULayers, r.CacheK, r.CacheV = 32768, 2, false, new(uint32(20)), "q8_0", "q4_0"
				r.Batch, r.MicroBatch, r.FlashAttention, r.Fit, r.FullWindow = 1024, 256, false, false, true
			})},
		{"places and what is beside the model", catalog.Service{Argv: []string{"llama-server", "-m", "/a.gguf", "-sm", "row", "-ts", "3,1", "-mg", "1", "--device", "CUDA0,CUDA1",
			"-md", "/d.gguf", "--mmproj", "/p.gguf", "--lora", "/x.gguf,/y.gguf"}},
			with(llama, func(r *Run) {
				r.SplitMode, r.TensorSplit, r.MainGPU, r.Devices, r.Drafts, r.Projectors, r.Adapters = "row", "3,1", 1, "CUDA0,CUDA1", 1, 1, 2
			})},
		{"places by variables", catalog.Service{Argv: []string{"llama-server", "-m", "/a.gguf"}, Environment: map[string]string{"LLAMA_ARG_SPLIT_MODE": "none",
			"LLAMA_ARG_MAIN_GPU": "1", "LLAMA_ARG_TENSOR_SPLIT": "1,2", "LLAMA_ARG_SPEC_DRAFT_MODEL": "/d.gguf"}},
			with(llama, func(r *Run) { r.SplitMode, r.MainGPU, r.TensorSplit, r.Drafts = "none", 1, "1,2", 1 })},
		{"places by extra_config", catalog.Service{Unit: "chat.service", ExtraConfig: map[string]string{"engine": "llama.cpp", "split_mode": "none", "main_gpu": "1", "tensor_split": "3,1"}},
			with(llama, func(r *Run) { r.SplitMode, r.MainGPU, r.TensorSplit = "none", 1, "3,1" })},
		{"slots that share by their own words", catalog.Service{Argv: []string{"llama-server", "-np", "2", "--kv-unified"}},
			with(llama, func(r *Run) { r.Parallel = 2 })},
		{"a command line of vLLM", catalog.Service{Sleep: catalog.SleepVLLM1, Argv: []string{"/opt/vllm", "serve", "org/model", "--max-model-len", "16384",
			"--gpu-memory-utilization", "0.45", "--tensor-parallel-size", "2", "--max-num-seqs", "64", "--kv-cache-dtype", "fp8"}},
			with(vllm, func(r *Run) {
				r.Context, r.Utilisation, r.TensorParallel, r.Parallel, r.CacheK, r.CacheV, r.Sleep = 16384, 0.45, 2, 64, "fp8", "fp8", catalog.SleepVLLM1
				r.PipelineParallel, r.DataParallel = 1, 1
			})},
		{"a context that vLLM chooses", catalog.Service{Argv: []string{"vllm", "serve", "org/model", "--max-model-len", "auto"}, ExtraConfig: map[string]string{"context_size": "4096"}},
			with(vllm, func(r *Run) { r.Fit, r.TensorParallel, r.PipelineParallel, r.DataParallel = true, 1, 1, 1 })},
		{"weights that vLLM leaves with the host", catalog.Service{Argv: []string{"vllm", "serve", "org/model", "--cpu-offload-gb", "4"}},
			with(vllm, func(r *Run) { r.OffloadMiB, r.TensorParallel, r.PipelineParallel, r.DataParallel = 4096, 1, 1, 1 })},
		{"a cache that vLLM keeps with the host besides", catalog.Service{Argv: []string{"vllm", "serve", "org/model", "--kv-offloading-size", "32"}},
			with(vllm, func(r *Run) { r.HostKVMiB, r.TensorParallel, r.PipelineParallel, r.DataParallel = 32768, 1, 1, 1 })},
		{"options of vLLM's own image", catalog.Service{Container: &catalog.Container{Image: "vllm/vllm-openai@sha256:0", Command: []string{"--model", "org/model", "--max-model-len", "8192"}}},
			with(vllm, func(r *Run) { r.Context, r.TensorParallel, r.PipelineParallel, r.DataParallel = 8192, 1, 1, 1 })},
		{"a unit of which extra_config tells", catalog.Service{Unit: "chat.service", ExtraConfig: map[string]string{"engine": "llama.cpp", "context_size": "16384", "parallel": "3",
			"kv_unified": "on", "kv_cache_dtype": "q8_0", "kv_cache_dtype_v": "q5_1", "gpu_layers": "0", "flash_attention": "off", "fit": "off", "fit_target_mib": "2048",
			"batch_size": "512", "micro_batch_size": "128"}},
			with(llama, func(r *Run) {
				r.Context, r.Parallel, r.CacheK, r.CacheV, r.GPULayers, r.FlashAttention, r.Fit = 16384, 3, "q8_0", "q5_1", new(uint32(0)), false, false
				r.FitTargetMiB, r.Batch, r.MicroBatch = 2048, 512, 128
			})},
		{"vLLM on several GPUs", catalog.Service{Argv: []string{"vllm", "serve", "org/model", "-tp", "2", "-pp", "2", "--data-parallel-size", "3"}},
			with(vllm, func(r *Run) { r.TensorParallel, r.PipelineParallel, r.DataParallel = 2, 2, 3 })},
		{"vLLM on several hosts", catalog.Service{Argv: []string{"vllm", "serve", "org/model", "-dp", "4", "-dpl", "2"}},
			with(vllm, func(r *Run) { r.TensorParallel, r.PipelineParallel, r.DataParallel, r.Hosts = 1, 1, 4, 2 })},
		{"vLLM on hosts that Ray has", catalog.Service{GPUs: []uint32{0, 1}, Argv: []string{"vllm", "serve", "org/model", "-tp", "2", "-pp", "3", "-pcp", "2", "-dcp", "2",
			"--distributed-executor-backend", "ray"}},
			with(vllm, func(r *Run) {
				r.TensorParallel, r.PipelineParallel, r.DataParallel, r.PrefillParallel, r.DecodeParallel, r.Hosts = 2, 3, 1, 2, 2, 6
			})},
		{"vLLM with Ray on this host alone", catalog.Service{GPUs: []uint32{0, 1}, Argv: []string{"vllm", "serve", "org/model", "-tp", "2", "-dpb", "ray"}},
			with(vllm, func(r *Run) { r.TensorParallel, r.PipelineParallel, r.DataParallel = 2, 1, 1 })},
		{"a projector that a repository may have", catalog.Service{Argv: []string{"llama-server", "-hf", "org/model"}}, with(llama, func(r *Run) { r.Projectors = 1 })},
		{"experts with the host", catalog.Service{Argv: []string{"llama-server", "-m", "/a.gguf", "-ncmoe", "4"}},
			with(llama, func(r *Run) { r.CPUExperts, r.Overridden = enginecmd.FirstLayers(4), true })},
		{"what is moved, and stays", catalog.Service{Argv: []string{"llama-server", "-m", "/a.gguf", "-ot", "blk.0.=CUDA1,exps=CPU", "-nkvo", "--fit-ctx", "8192"}},
			with(llama, func(r *Run) {
				r.CPUExperts = enginecmd.FirstLayers(enginecmd.AllExperts)
				r.CPUExperts[0]--
				r.Overridden, r.Moved, r.HostCache, r.FitContext = true, true, true, 8192
			})},
		{"SGLang's copies on the same GPUs", catalog.Service{Argv: []string{"python3", "-m", "sglang.launch_server", "--model-path", "org/model", "--tp", "4", "--dp", "4", "--enable-dp-attention"}},
			with(sglang, func(r *Run) { r.TensorParallel, r.PipelineParallel, r.DataParallel = 4, 1, 1 })},
		{"the model's own context wins over extra_config", catalog.Service{Argv: []string{"llama-server", "-c", "0"}, ExtraConfig: map[string]string{"context_size": "4096"}}, llama},
		{"a unit of vLLM", catalog.Service{Unit: "chat.service", ExtraConfig: map[string]string{"engine": "vllm", "gpu_memory_utilization": "0.5", "kv_cache_memory_bytes": "1073741824", "tensor_parallel": "4"}},
			with(vllm, func(r *Run) { r.Utilisation, r.KVCacheBytes, r.TensorParallel = 0.5, 1<<30, 4 })},
		{"the command line wins over extra_config", catalog.Service{Argv: []string{"llama-server", "-c", "4096", "-ngl", "5", "-fa", "on"},
			ExtraConfig: map[string]string{"engine": "vllm", "context_size": "99", "gpu_layers": "9", "flash_attention": "off"}},
			with(llama, func(r *Run) { r.Context, r.GPULayers = 4096, new(uint32(5)) })},
		{"Ollama", catalog.Service{Argv: []string{"/usr/bin/ollama", "serve"}, Environment: map[string]string{"OLLAMA_CONTEXT_LENGTH": "8192", "OLLAMA_NUM_PARALLEL": "2"}},
			with(ollama, func(r *Run) { r.Context, r.Parallel = 8192, 2 })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := RunOf(&tt.service)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestRunOfRefuses(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]catalog.Service{
		"nothing":                    {},
		"a program of its own":       {Argv: []string{"/opt/serve"}},
		"an engine without formulas": {ExtraConfig: map[string]string{"engine": "tensorrt-llm"}},
		"a shell":                    {Argv: []string{"/bin/sh", "-c", "llama-server -c 5"}},
	} {
		if r, err := RunOf(&s); !errors.Is(err, ErrNoEngine) {
			t.Errorf("%s: %+v %v", name, r, err)
		}
	}
	for _, line := range []string{"vllm serve --config /etc/vllm.yaml", "vllm serve a/b -tp 2 --config=c.yaml", "sglang serve --config c.yaml"} {
		if r, err := RunOf(&catalog.Service{Argv: strings.Fields(line)}); !errors.Is(err, ErrConfigFile) || r.Engine == "" {
			t.Errorf("%s: %+v %v", line, r, err)
		}
	}
	for name, extra := range map[string]map[string]string{
		"a context beyond 32 bits": {"engine": "vllm", "context_size": "4294967296"},
		"a negative context":       {"engine": "vllm", "context_size": "-1"},
		"a share above all":        {"engine": "vllm", "gpu_memory_utilization": "1.5"},
		"a share that is none":     {"engine": "vllm", "gpu_memory_utilization": "NaN"},
		"no share":                 {"engine": "vllm", "gpu_memory_utilization": "0"},
		"bytes beyond 64 bits":     {"engine": "vllm", "kv_cache_memory_bytes": "99999999999999999999"},
		"layers in words":          {"engine": "llama.cpp", "gpu_layers": "all"},
	} {
		if r, err := RunOf(&catalog.Service{ExtraConfig: extra}); err == nil || errors.Is(err, ErrNoEngine) {
			t.Errorf("%s: %+v %v", name, r, err)
		}
	}
}

// What a run leaves open is the engine's own.
func TestWhatHangsOnTheGPU(t *testing.T) {
	t.Parallel()
	run, _ := Defaults(enginecmd.VLLM)
	if r := run.filled([]GPU{{24564}}); r.Batch != 2048 || r.Parallel != 256 {
		t.Errorf("24 GB: %+v", r)
	}
	if r := run.filled([]GPU{{81559}, {81559}}); r.Batch != 8192 || r.Parallel != 1024 {
		t.Errorf("80 GB: %+v", r)
	}
	if r := run.filled([]GPU{{81559}, {24564}}); r.Batch != 2048 {
		t.Errorf("one of each: %+v", r)
	}
	for _, engine := range []string{enginecmd.LlamaCPP, enginecmd.Ollama, enginecmd.VLLM, enginecmd.SGLang} {
		r := Run{Engine: engine}.filled([]GPU{{24564}})
		if slices.Contains([]uint32{r.Batch, r.Parallel}, 0) || r.CacheK == "" || r.CacheV == "" {
			t.Errorf("%s: %+v", engine, r)
		}
	}
}

// TestVisibleGPUs: CUDA_VISIBLE_DEVICES says on which of its entry's GPUs an engine is, and in which order it sees them.
func TestVisibleGPUs(t *testing.T) {
	t.Parallel()
	box := &catalog.Container{Image: "vllm/vllm-openai@sha256:0"}
	gpus := []uint32{1, 3, 2}
	for name, c := range map[string]struct {
		service catalog.Service
		said    string
		want    string
	}{
		"nothing said":              {catalog.Service{GPUs: gpus}, "", ""},
		"one of the host's":         {catalog.Service{GPUs: gpus}, "3", "1"},
		"two, in another order":     {catalog.Service{GPUs: gpus}, "2, 1", "2,0"},
		"all, in the entry's order": {catalog.Service{GPUs: gpus}, "1,3,2", ""},
		"one that is not its own":   {catalog.Service{GPUs: gpus}, "0", ""},
		"by uuid":                   {catalog.Service{GPUs: gpus}, "GPU-11111111-2222-3333-4444-555555555555", ""},
		"none":                      {catalog.Service{GPUs: gpus}, "-1", ""},
		"one twice":                 {catalog.Service{GPUs: gpus}, "1,1", ""},
		"a container's last":        {catalog.Service{GPUs: gpus, Container: box}, "2", "1"},
		"a container has no such":   {catalog.Service{GPUs: []uint32{4}, Container: box}, "1", ""},
		"by env":                    {catalog.Service{GPUs: gpus, Argv: []string{"env", "CUDA_VISIBLE_DEVICES=3", "vllm", "serve", "a/b"}}, "1", "1"},
	} {
		s := c.service
		s.Environment = map[string]string{"CUDA_VISIBLE_DEVICES": c.said}
		s.ExtraConfig = map[string]string{"engine": "vllm"}
		if r, err := RunOf(&s); err != nil || r.Visible != c.want {
			t.Errorf("%s: %q, want %q; %v", name, r.Visible, c.want, err)
		}
	}
	run := vllmRun(func(r *Run) { r.Context, r.TensorParallel, r.PipelineParallel = 4096, 1, 1 })
	for where, want := range map[string]int{"": 0, "2": 2, "1,0": 1, "7": 0} {
		run.Visible = where
		e := of(t, llama8Q4, run, 24564, 24564, 24564)
		for i, mib := range e.PerGPU {
			if (mib > 0) != (i == want) {
				t.Errorf("%q: %v", where, e.PerGPU)
			}
		}
	}
}
