package importer

import (
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/platformtest/testfile"
)

// secrets are what the files of TestNoSecretIsCopied hold.
var secrets = []string{"hunter2", "abcdef123456", "ghp_", "correcthorse", "dXNlcjpodW50ZXIy"}

// TestNoSecretIsCopied: secrets in every place in which a file can have one. None is in the proposal, its remarks, or what was left out.
func TestNoSecretIsCopied(t *testing.T) {
	t.Parallel()
	server := func(arguments string, more ...string) string {
		return "models:\n  m:\n    cmd: |\n      /x/llama-server --port 8080 " + arguments + "\n" + indent(more)
	}
	vllm := func(arguments string) string {
		return "models:\n  m:\n    cmd: |\n      /x/vllm serve a/b " + arguments + " --port 8080\n"
	}
	variables := func(pairs ...string) string {
		var b strings.Builder
		for _, p := range pairs {
			b.WriteString("      - \"" + p + "\"\n")
		}
		return "models:\n  m:\n    cmd: /x/llama-server --port 8080\n    env:\n" + b.String()
	}
	type entry struct {
		name, kind, text string
		// stays: the service is proposed without the secret. Else it is left out.
		stays bool
	}
	cases := []entry{
		{"a name", "llama-swap", server("", `name: "sk-abcdef123456789"`), true},
		{"a long name", "llama-swap", server("", `name: "`+strings.Repeat("x", 60)+` sk-abcdef123456789"`), true},
		{"a description", "llama-swap", server("", `description: "with ghp_abcdefghijklmnopqrstuvwxyz"`), true},
		{"a password told", "llama-swap", server("", `description: "password: hunter2"`), true},
		{"what it serves", "llama-swap", server("-m /srv/m.gguf", `useModelName: "sk-abcdef123456789"`), true},
		{"an alias", "llama-swap", server("", `aliases: ["sk-abcdef123456789"]`), true},
		{"a path", "llama-swap", server("", `proxy: "http://127.0.0.1:8080/hunter2"`), true},
		{"several keys", "llama-swap", vllm("--api-key correcthorse correcthorse2 correcthorse3"), true},
		{"several keys of a container", "compose", composeOf(`command: ["--model", "a/b", "--api-key", "correcthorse", "correcthorse2"]`), true},
		{"a key that begins with a dash", "llama-swap", server("--api-key -hunter2"), false},
		{"a header", "llama-swap", server(`--header "X-Thing: hunter2"`), true},
		{"a short header", "llama-swap", server(`-H "X-Auth: hunter2"`), true},
		{"a middleware", "llama-swap", server("--middleware-auth admin:hunter2"), true},
		{"a short key", "llama-swap", server("-k hunter2"), true},
		{"a signed address", "llama-swap", server("-mu 'https://h/x.gguf?token=hunter2&X-Amz-Signature=abcdef123456'"), false},
		{"a query without a name", "llama-swap", server("-mu 'https://h/x.gguf?hunter2'"), false},
		{"a user", "llama-swap", server("-mu 'https://hunter2@h/x.gguf'"), false},
		{"JSON", "llama-swap", server(`--chat-template-kwargs '{"api_key":"hunter2"}'`), false},
		{"JSON with spaces", "llama-swap", server(`--chat-template-kwargs '{"a": {"apiKey" : "hunter2"}}'`), false},
		{"JSON in JSON", "llama-swap", server(`--x '{"a":"{\"password\":\"hunter2\"}"}'`), false},
		{"a list", "llama-swap", server("--x a=1,password=hunter2"), false},
		{"a pair in a pair", "llama-swap", server("--x=token=hunter2"), false},
		{"a variable as an argument", "llama-swap", server("HFTOKEN=hunter2"), false},
		{"basic", "llama-swap", server(`--x "Basic dXNlcjpodW50ZXIy"`), false},
		{"a set variable", "llama-swap", swapOf("env PGPASSWORD=hunter2 /x/llama-server --port 8080"), true},
		{"a variable of docker", "llama-swap", swapOf("docker run -e OLLAMA_TOKENS=hunter2 -e PGPASSWORD=hunter2 -p 8080:8080 ollama/ollama"), true},
		{"a mount's options", "llama-swap", swapOf("docker run --mount type=volume,target=/x,volume-opt=password=hunter2 -p 8080:8080 ollama/ollama"), true},
		{"variables of a container", "compose", composeOf("environment: {OLLAMA_TOKENS: hunter2, VLLM_AUTH: hunter2, JWT: hunter2, XYZ: hunter2}"), true},
		{"a health check", "compose", composeOf(`healthcheck: {test: "curl http://localhost:80/health?api_key=hunter2"}`, "ports: [\"80:80\"]"), true},
		{"a file of variables", "compose", composeOf(`env_file: ["token=hunter2"]`), true},
	}
	for _, key := range []string{
		"PGPASSWORD", "MYSQL_PWD", "HFTOKEN", "HF_TOKEN_READ", "API_TOKENS", "SECRETS", "CREDS", "JWT", "PASSWORD1", "OPENAIAPIKEY", "openaiApiKey", "ADMIN_PW", "MY_OWN", "X",
		"VLLM_API_KEY_2", "OLLAMA_TOKENS", "CUDA_PASSWORD",
	} {
		cases = append(cases, entry{"variable " + key, "llama-swap", variables(key + "=hunter2"), true})
	}
	cases = append(cases,
		entry{"a webhook", "llama-swap", variables("SLACK_WEBHOOK=https://hooks.example/services/hunter2"), true},
		entry{"a value with a pair", "llama-swap", variables("LLAMA_ARG_X=token=hunter2"), true},
		entry{"basic in a variable", "llama-swap", variables("LLAMA_ARG_X=Basic dXNlcjpodW50ZXIy"), true},
	)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			proposal, said := proposed(t, c.kind, c.text)
			if (said == "") != c.stays {
				t.Errorf("stays %v, left out: %q\n%s", c.stays, said, proposal)
			}
			if !c.stays && !strings.Contains(said, "looks like a secret") {
				t.Errorf("left out for another reason: %q", said)
			}
			for _, secret := range secrets {
				if strings.Contains(proposal+said, secret) {
					t.Errorf("%s is copied:\n%s\n%s", secret, proposal, said)
				}
			}
		})
	}
}

// proposed is what an import makes of a text, and what it says that it left out.
func proposed(t *testing.T, kind, text string) (made, left string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.yaml")
	testfile.Write(t, file, text)
	p := proposal.New(kind, nil, "x")
	must(t, read(p, kind, file))
	out, err := p.Settle(t.Context(), nil, host())
	if err != nil && len(p.LeftOut()) == 0 {
		t.Fatal(err)
	}
	var said []string
	for _, l := range p.LeftOut() {
		said = append(said, l.What+": "+l.Why)
	}
	return string(out), strings.Join(said, "\n")
}

// TestWhatIsNoSecretIsCopied is the control of TestNoSecretIsCopied: the same places, with what engines are told.
func TestWhatIsNoSecretIsCopied(t *testing.T) {
	t.Parallel()
	text := `models:
  m:
    name: "Coder: 30B, 32k tokens"
    description: "Writes code; authored by nobody"
    useModelName: coder
    env: ["CUDA_VISIBLE_DEVICES=0", "GGML_CUDA_ENABLE_UNIFIED_MEMORY=1", "TOKENIZERS_PARALLELISM=false", "LLAMA_ARG_CACHE_TYPE_K=q8_0", "OMP_NUM_THREADS=8"]
    cmd: |
      /x/llama-server --port 8080 -m /srv/m.gguf --image-max-tokens 1024 --override-kv tokenizer.ggml.add_bos_token=bool:false
      --override-kv x.attention.key_length=int:128 --chat-template-kwargs '{"max_tokens": 100000, "num_key_value_heads": 8, "enable_thinking": false}'
      --api-key-file /run/keys -mu 'https://h/x.gguf?download=true' --no-auth -k 40 --keep 8
`
	out, left := proposed(t, "llama-swap", text)
	if left != "" {
		t.Fatal(left)
	}
	for _, want := range []string{
		"name: \"Coder: 30B, 32k tokens\"", "Writes code", "served_name: coder", "CUDA_VISIBLE_DEVICES", "GGML_CUDA_ENABLE_UNIFIED_MEMORY", "TOKENIZERS_PARALLELISM", "LLAMA_ARG_CACHE_TYPE_K",
		"OMP_NUM_THREADS", "--image-max-tokens", "add_bos_token", "key_length", "max_tokens", "num_key_value_heads", "--api-key-file", "?download=true", "--no-auth", "--keep", "\"40\"",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is not in it:\n%s", want, out)
		}
	}
	if strings.Contains(out, "left out") {
		t.Errorf("something was left out:\n%s", out)
	}
}

// TestMountsThatAreRefused: what no container may have is not proposed, however it is asked for.
func TestMountsThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{
		"/home/ai/.ssh", "/home/ai/.aws", "/var/lib/containerd", "/var/lib/kubelet", "/var/spool/cron", "/var/lib/systemd", "/var/lib/durward", "/home/ai", "/home", "/var", "/srv/docker.sock",
	} {
		for _, way := range []struct{ kind, text string }{
			{"compose", composeOf("volumes: [\"" + folder + ":/x\"]")},
			{"compose", composeOf("volumes:", "- type: bind", "  source: "+folder, "  target: /x")},
			{"llama-swap", swapOf("docker run -p 80:80 -v " + folder + ":/x y")},
			{"llama-swap", swapOf("docker run -p 80:80 --mount type=bind,source=" + folder + ",target=/x y")},
		} {
			if out, left := proposed(t, way.kind, way.text); !strings.Contains(left, "the mount of "+folder+" is refused") || strings.Contains(out, folder) {
				t.Errorf("%s: left out %q\n%s", folder, left, out)
			}
		}
	}
	if out, left := proposed(t, "compose", composeOf(`volumes: ["/home/ai/.cache/huggingface:/x:ro", "/srv/models:/m"]`)); left != "" || !strings.Contains(out, "- /home/ai/.cache/huggingface") {
		t.Errorf("the control was left out: %q\n%s", left, out)
	}
}

// TestHomeIsGiven: ~ is what a human says that it is, and nothing else.
func TestHomeIsGiven(t *testing.T) {
	t.Setenv("HOME", "/from/the/environment")
	text := composeOf(`volumes: ["~/.cache/huggingface:/root/.cache/huggingface", "~/.ssh:/x"]`)
	for _, c := range []struct {
		given      Given
		text, want string
		refused    bool
	}{
		{Given{}, text, "The mount of ~/.ssh at /x was left out", false},
		{Given{Variables: map[string]string{"HOME": "relative"}}, text, "The mount of ~/.ssh at /x was left out", false},
		{Given{Variables: map[string]string{"HOME": "/home/ai"}}, text, "the mount of /home/ai/.ssh is refused", true},
		{Given{Variables: map[string]string{"HOME": "/home/ai"}}, strings.Replace(text, "~/.ssh", "~/models", 1), "source: /home/ai/.cache/huggingface", false},
	} {
		p := proposal.New("compose", nil, "x")
		must(t, composeData(t.Context(), newBuilder(p, c.given), map[string]bool{}, "x", "/base", []byte(c.text)))
		out, err := p.Settle(t.Context(), nil, host())
		for _, l := range p.LeftOut() {
			out = append(out, l.Why+"\n"...)
		}
		if (err != nil) != c.refused || !strings.Contains(string(out), c.want) || strings.Contains(string(out), "/from/the") {
			t.Errorf("%v %v\n%s", c.given, err, out)
		}
	}
}

// TestPathAsName: where requests name a model by its path, that is said.
func TestPathAsName(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]bool{
		"/x/vllm serve /srv/m --port 81": true, "/x/vllm serve /srv/m --port 81 --served-model-name m": false, "/x/vllm serve a/b --port 81": false, "/x/llama-server -m /srv/m.gguf": false,
	} {
		if out, left := proposed(t, "llama-swap", swapOf(command)); left != "" || strings.Contains(out, "by its path, which agents see") != want {
			t.Errorf("%s: %q\n%s", command, left, out)
		}
	}
}
