package importer

import (
	"errors"
	"os/user"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
)

// constructs are what people write, one each, and what becomes of it: lines of the proposal, or, where nothing is proposed, the sentence
// that says what a human has to decide.
var constructs = []struct {
	name, kind, text string
	want             []string
	out              bool
}{
	{"a batch size", "llama-swap", swapOf("/x/llama-server --port ${PORT} -b 2048 -ub 2048"), []string{"-b, \"2048\", -ub"}, false},
	{"another fork", "llama-swap", swapOf("/x/ik-llama-server --port ${PORT} --host 0.0.0.0 -b 1024 -m /m/x.gguf"), []string{"--host, \"127.0.0.1\", -b", "file: /m/x.gguf", "It listened on 0.0.0.0"}, false},
	{"a program that is not here", "llama-swap", swapOf("llama-server --port ${PORT}"), []string{"[/usr/local/bin/llama-server,", "llama-server is not installed here"}, false},
	{"a relative program", "llama-swap", swapOf("./build/bin/llama-server --port ${PORT}"), []string{"/build/bin/llama-server", "which is a guess"}, false},
	{"stable-diffusion.cpp", "llama-swap", swapOf("/app/sd-server --listen-port 9999 -l 0.0.0.0"), []string{"port: 9999", "[/app/sd-server, --listen-port, \"9999\", -l, \"127.0.0.1\"]"}, false},
	{"whisper.cpp", "llama-swap", swapOf("/app/whisper-server --port ${PORT} -m /m/ggml.bin --inference-path \"\""), []string{"port: 5800"}, false},
	{"a path of Windows", "llama-swap", swapOf(`C:\apps\llama-server.exe --port ${PORT}`), []string{"it names paths of Windows"}, true},
	{"a model on a drive", "llama-swap", swapOf("/x/llama-server --port ${PORT} -m F:/ai/x.gguf"), []string{"it names paths of Windows"}, true},
	{"variables before the program", "llama-swap", swapOf("OLLAMA_HOST=0.0.0.0:${PORT} OLLAMA_MODELS=/srv/ollama /usr/bin/ollama serve"),
		[]string{"[/usr/bin/ollama, serve]", "OLLAMA_HOST: \"127.0.0.1:5800\"", "OLLAMA_MODELS: /srv/ollama"}, false},
	{"patterns of tensors", "llama-swap", swapOf("/x/llama-server --port ${PORT} -m /m/x.gguf -ot .ffn_.*_exps.=CPU --chat-template-kwargs {\\\"thinking\\\":false}"),
		[]string{"\".ffn_.*_exps.=CPU\"", "thinking"}, false},
	{"every address of an unknown program", "llama-swap", "models:\n  m: {proxy: \"http://127.0.0.1:81\", cmd: \"/x/serve --listen 0.0.0.0:81 --bind=192.168.1.4:81 --host gpu\", env: [\"HOST=0.0.0.0\"]}\n",
		[]string{"[/x/serve, --listen, \"127.0.0.1:81\", \"--bind=127.0.0.1:81\", --host, \"127.0.0.1\"]", "HOST: \"127.0.0.1\"", "It listened on 0.0.0.0:81"}, false},
	{"a secret before the program", "llama-swap", swapOf("HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789 /x/llama-server --port ${PORT}"),
		[]string{"[/x/llama-server, --port", "HF_TOKEN"}, false},
	{"a template", "llama-swap", "models:\n  m: {cmd: {{ server }} --port 81}\n", []string{"it is a template"}, true},
	{"a template in a command", "llama-swap", swapOf("/x/llama-server --port {{ port }}"), []string{"it is a template"}, true},
	{"a template in a word", "llama-swap", swapOf("/x/llama-server --port {{port}}"), []string{"it is a template"}, true},
	{"a chat template", "llama-swap", swapOf("/x/llama-server --port ${PORT} --chat-template '{{ messages }}'"), []string{"{{ messages }}"}, false},
	{"an undefined macro", "llama-swap", swapOf("/x/llama-server ${base} --port 81"), []string{"names base", "--set base=…"}, true},
	{"another host", "llama-swap", "models: {m: {proxy: \"https://openrouter.example/v1\"}}", []string{"it runs elsewhere, at https://openrouter.example/v1"}, true},
	{"docker compose", "llama-swap", "models: {m: {proxy: \"http://x:80\", cmd: docker compose -f a.yml up}}", []string{"durward catalog import compose"}, true},
	{"a container by its name", "llama-swap", "models: {m: {proxy: \"http://box:8000\", cmd: docker run --name box --network lan vllm/vllm-openai:v1 --model a/b}}",
		[]string{"port: 8000"}, false},
	{"a port in a network that is shared", "llama-swap", swapOf("docker run --network container:llama-swap --ipc host --gpus all vllm/vllm-openai:v1 --model a/b --port ${PORT}"),
		[]string{"port: 5800", "shm_mib: 8192"}, false},
	{"an entrypoint", "llama-swap", swapOf("docker run --entrypoint serve.sh -p ${PORT}:8080 -e GGUF_FILE=x-Q4_K_M.gguf -e GGUF_REPO=a/b-GGUF -e GGUF_CTX=8192 x:1 --alias m"),
		[]string{"entrypoint: [serve.sh]", "GGUF_FILE: x-Q4_K_M.gguf", "GGUF_REPO: a/b-GGUF", "GGUF_CTX: \"8192\"", "- GGUF_CTX"}, false},
	{"a trailing slash", "llama-swap", swapOf("docker run -p 81:8000 -v /srv/hf/:/root/.cache/huggingface/ x:1"), []string{"mounts: [{source: /srv/hf, target: /root/.cache/huggingface, writable: true}]"}, false},
	{"a model by its path in the container", "llama-swap", swapOf("docker run -p 81:8000 -v /srv/hf:/hf:ro vllm/vllm-openai:v1 --model /hf/q"),
		[]string{"file: /srv/hf/q", "served_name: /hf/q\n"}, false},
	{"a mount that is only read", "llama-swap", swapOf("docker run -p 81:8000 --mount type=bind,src=/srv/a,dst=/a,readonly --mount type=bind,src=/srv/b,dst=/b,ro=1 --mount type=bind,src=/srv/c,dst=/c,readonly=false x:1"),
		[]string{"- {source: /srv/a, target: /a}\n", "- {source: /srv/b, target: /b}\n", "- {source: /srv/c, target: /c, writable: true}\n"}, false},
	{"a mount that is only read, in words", "compose", composeOf("volumes:", "- {type: bind, source: /srv/a, target: /a, read_only: \"true\"}",
		"- {type: bind, source: /srv/b, target: /b, read_only: \"${RO:-yes}\"}", "- {type: bind, source: /srv/c, target: /c, read_only: \"false\"}",
		"- /srv/d:/d:${MODE}", "- /srv/e:/e:z"),
		[]string{"- {source: /srv/a, target: /a}\n", "- {source: /srv/b, target: /b}\n", "- {source: /srv/c, target: /c, writable: true}\n", "- {source: /srv/d, target: /d}\n", "- {source: /srv/e, target: /e, writable: true}\n"}, false},
	{"processors", "compose", composeOf("cpus: 2.3"), []string{"cpu_percent: 230"}, false},
	{"processors of a swarm", "compose", composeOf("deploy: {resources: {limits: {cpus: \"0.29\"}}}"), []string{"cpu_percent: 29"}, false},
	{"limits that cannot be taken over", "compose", composeOf("mem_limit: \"${MEM}\"", "cpus: many", "pids_limit: 99999999"),
		[]string{"mem_limit was left out: it names MEM", "--set MEM=…", "cpus many is not understood", "pids_limit 99999999 is not understood"}, false},
	{"times with variables", "compose", composeOf("stop_grace_period: \"${STOP:-45s}\"", "healthcheck: {test: [CMD, curl, \"http://localhost/ok\"], start_period: \"${LOAD:-300s}\"}"),
		[]string{"start_timeout_s: 300", "stop_timeout_s: 45"}, false},
	{"the time of a stop", "llama-swap", swapOf("docker run --stop-timeout 45 -p ${PORT}:80 x:1"), []string{"stop_timeout_s: 45"}, false},
	{"overrides", "llama-swap", swapOf(`docker run -p 81:8000 vllm/vllm-openai:v1 --model a/b --hf_overrides '{"matryoshka_dimensions":[256,512]}'`), []string{"--hf_overrides", "matryoshka_dimensions"}, false},
	{"variables that are no secrets", "compose", composeOf("environment: {MAX_NUM_SEQS: \"8\", PORT: \"8000\", RESPONSE_FORMAT: TXT, MODEL: a/b, LOG: /var/log/x, API: \"http://db:80\"}"),
		[]string{"MAX_NUM_SEQS: \"8\"", "PORT: \"8000\"", "RESPONSE_FORMAT: TXT", "MODEL: a/b", "LOG: /var/log/x", "API: \"http://db:80\""}, false},
	{"one port for two", "llama-swap", "models:\n  a: {proxy: \"http://127.0.0.1:81\", cmd: /x/llama-server --port 81}\n  b: {proxy: \"http://127.0.0.1:81\", cmd: /x/llama-server --port 81}\n",
		[]string{"- id: a", "- id: b", "port: 81"}, false},
	{"a group of one port", "llama-swap", "models:\n  a: {cmd: /x/llama-server --port 81}\n  b: {cmd: /x/llama-server --port 81}\ngroups: {g: {swap: false, members: [a, b]}}\n",
		[]string{"mode g: port 81 is service \"a\"'s too"}, false},
	{"a group that is not whole", "llama-swap", "models:\n  a: {cmd: /x/llama-server --port 81}\n  b: {cmd: sh -c x}\ngroups: {g: {swap: false, members: [a, b]}}\n",
		[]string{"mode g: it would not be whole: not in the proposal is b"}, false},
	{"a GPU by its device", "compose", "services: {s: {image: \"x:1\", devices: [/dev/nvidiactl, \"/dev/nvidia0:/dev/nvidia0\", {source: /dev/nvidia-uvm, target: /dev/nvidia-uvm}]}}",
		[]string{"gpus: [0]\n", "It was given /dev/nvidia0: that this is the GPU of that number is a guess."}, false},
	{"a runtime by a variable", "compose", "services: {s: {image: \"x:1\", runtime: \"${RT:-nvidia}\", ports: [{target: 80, published: 81, protocol: \"${PROTO:-tcp}\"}]}}",
		[]string{"gpus: [0]\n", "port: 81\n"}, false},
	{"a driver by a variable", "compose", "services: {s: {image: \"x:1\", deploy: {resources: {reservations: {devices: [{driver: \"${DRV:-nvidia}\", capabilities: [gpu]}]}}}}}",
		[]string{"gpus: [0]\n"}, false},
	{"a runtime that is not NVIDIA's", "compose", "services: {s: {image: \"x:1\", runtime: \"${RT:-runc}\"}}", []string{"it asks for no GPU"}, true},
	{"ROCm", "compose", "services: {s: {image: \"x:1\", devices: [/dev/kfd, /dev/dri]}}", []string{"as ROCm does: a service gets NVIDIA's GPUs alone"}, true},
	{"llama-swap itself", "compose", "services: {s: {image: \"ghcr.io/mostlygeek/llama-swap:cuda\", gpus: all}}", []string{"durward catalog import llama-swap"}, true},
	{"another program of llama-swap's image", "llama-swap", swapOf("docker run -p ${PORT}:8080 --entrypoint /app/llama-server ghcr.io/mostlygeek/llama-swap:cuda -m /m/x.gguf --host 0.0.0.0 --port 8080"),
		[]string{"entrypoint: [/app/llama-server]", "port: 8080"}, false},
	{"a build", "compose", "name: box\nservices: {web: {build: ., gpus: all}}", []string{"image: ", "is what docker compose build calls it"}, false},
	{"a GPU by a uuid", "compose", composeOf("runtime: nvidia", "environment: {NVIDIA_VISIBLE_DEVICES: GPU-11111111-2222-3333-4444-555555555555}"), []string{"simulated: true", "gpus: [0]"}, false},
}

// TestConstructs: each of them is proposed as the catalog takes it outside development, for a host that has neither a catalog, nor GPUs, nor
// the programs; or is left out with the one sentence.
func TestConstructs(t *testing.T) {
	t.Parallel()
	installed := host()
	installed.Development = false
	installed.Users = func(string) (*user.User, error) { return &user.User{Uid: "65534", Username: "nobody"}, nil }
	for _, c := range constructs {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := proposal.New(c.kind, nil, "x")
			p.Host(nil)
			given := Given{RunAs: "nobody", Find: func(string) error { return errors.New("not here") }}
			err := importText(t, p, c.kind, c.text, given)
			var text []byte
			if err == nil {
				if text, err = p.Settle(t.Context(), nil, installed); !errors.Is(err, proposal.ErrNothing) && err != nil {
					t.Fatal(err)
				}
			}
			said := string(text)
			for _, l := range p.LeftOut() {
				said += l.What + ": " + l.Why + "\n"
			}
			if err != nil {
				said += err.Error()
			}
			for _, want := range c.want {
				if !strings.Contains(said, want) {
					t.Errorf("%q is not in it\n%s", want, said)
				}
			}
			if c.out != (len(p.Services()) == 0) || !c.out && len(p.LeftOut()) > 0 && !strings.HasPrefix(p.LeftOut()[0].What, "mode ") && p.LeftOut()[0].What != "model b" {
				t.Errorf("proposed %q, left out %q", p.Services(), p.LeftOut())
			}
			if len(text) > 0 {
				if _, err := catalog.Parse("x", text, installed); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
