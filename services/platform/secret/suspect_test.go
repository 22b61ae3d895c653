package secret

import (
	"strings"
	"testing"
)

func TestSecrets(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		"hf_abcdefgh", "sk-abcdef", "x=ghp_abcdefghijklmnopqrst", "https://u:pass@h/x", "Bearer abcdefghij", "AKIAABCDEFGHIJKLMNOP", "a1B2c3D4e5F6g7H8i9J0k1L2",
		"-----BEGIN OPENSSH PRIVATE KEY-----", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx",
	} {
		if !Suspect(value) {
			t.Errorf("%q is taken for no secret", value)
		}
	}
	for _, value := range []string{
		"", "0", "/srv/models/DeepSeek-R1-Distill-Qwen-32B-Instruct-Q4_K_M.gguf", "DeepSeekR1DistillQwen32BInstruct", "GPU-11111111-2222-3333-4444-555555555555",
		"http://127.0.0.1:8000/v1", "--max-num-batched-tokens", "/cache/hub/models--a--b/snapshots/0123456789abcdef0123456789abcdef01234567", "127.0.0.1:8080",
		"x@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "expandable_segments:True",
	} {
		if Suspect(value) {
			t.Errorf("%q is taken for a secret", value)
		}
	}
	for _, key := range []string{"HF_TOKEN", "OPENAI_API_KEY", "password", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "x-api-key", "GITHUB_PAT", "VLLM_API_KEY"} {
		if !Name(key) {
			t.Errorf("%s is taken for no secret", key)
		}
	}
	for _, key := range []string{"TOKENIZERS_PARALLELISM", "OLLAMA_KEEP_ALIVE", "MAX_TOKENS", "HF_HOME", "KEYBOARD", "PATH", "LLAMA_ARG_N_PARALLEL"} {
		if Name(key) {
			t.Errorf("%s is taken for a secret", key)
		}
	}
	if got := Redact("a sk-abcdefgh b a1B2c3D4e5F6g7H8i9J0k1L2 x/0123456789abcdef0123456789abcdef01234567"); strings.Contains(got, "abcdefgh b") || strings.Contains(got, "c3D4") ||
		!strings.HasSuffix(got, "x/0123456789abcdef0123456789abcdef01234567") {
		t.Errorf("redacted to %q", got)
	}
	kept, named, ok := WithoutArguments([]string{"x", "--api-key", "k", "--hf-token=k", "-hft", "k", "--api-key-file", "/f", "--tokenizer", "t"})
	if !ok || strings.Join(kept, " ") != "x --api-key-file /f --tokenizer t" || len(named) != 3 {
		t.Errorf("%q %q %v", kept, named, ok)
	}
}

func TestSecretArguments(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"--api-key x", "--admin-api-key x", "--api-key=x", "--api-keys x", "--hf-api-token x", "--hf-token x", "-hft x", "--ssl-keyfile-password x", "--password x", "--auth x", "--api-key",
		"--basic-auth x:y", "--header x", "--x api_key=y",
	} {
		if !InArguments(strings.Fields(line)) {
			t.Errorf("%s is taken for no secret", line)
		}
	}
	for _, line := range []string{
		"", "--tokenizer x", "--tokenizer-mode auto", "--max-num-batched-tokens 8192", "--max-total-tokens=4096", "--max-batch-prefill-tokens 1", "--ssl-keyfile /x/key.pem", "--ssl-key-file /x",
		"--api-key-file /x", "--skip-tokenizer-init", "--allow-credentials", "--return-tokens-as-token-ids", "--long-prefill-token-threshold 5", "--speculative-token-map /x", "--tokenization-workers 4",
		"--key-value-dtype x", "-k 40", "-ctk q8_0", "--keep 4", "--served-model-name author/x", "--enable-auto-tool-choice", "--lora-modules sql=/srv/lora",
	} {
		if InArguments(strings.Fields(line)) {
			t.Errorf("%s is taken for a secret", line)
		}
	}
}

// TestRedact: remarks keep their words, and lose what is a
func TestRedact(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"HF_TOKEN was left out: it holds a secret: see the key: it": "HF_TOKEN was left out: it holds a secret: see the key: it",
		"type=volume,password=hunter2,x=y":                          "type=volume,password=…,x=y",
		`{"api_key":"hunter2"} stays`:                               `{"api_key":"…"} stays`,
		"at https://h/x?token=hunter2 it is":                        "at https://h/x?… it is",
		"token=" + strings.Repeat("z", 200) + " end":                "token=… end",
		"a=b=token=hunter2":                                         "a=b=token=…",
		"--set API_KEY=… gives a value":                             "--set API_KEY=… gives a value",
	} {
		if got := Redact(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// TestOptionNames: what an option is called is no secret; what it is set to may be one.
func TestOptionNames(t *testing.T) {
	for text, want := range map[string]bool{
		"--hf_overrides": false, "--hf_overrides={}": false, "--hf-config-path=x": false, "--hf_abcDEF12345": true, "--x=hf_abcdefghijkl": true,
		"--api-key=hunter2": true, "hf_overridesxyz": true,
	} {
		if Suspect(text) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
}
