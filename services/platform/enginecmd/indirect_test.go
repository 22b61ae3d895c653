package enginecmd

import (
	"strings"
	"testing"
)

func TestIndirect(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"sh -c x":                          "a shell, sh",
		"/bin/bash start.sh":               "a shell, bash",
		"env A=b nice -n 5 dash -c x":      "a shell, dash",
		"timeout 5 sh -c x":                "by timeout",
		"/usr/bin/sudo -u ai llama-server": "by sudo",
		"xargs sh":                         "by xargs",
		"ssh host llama-server":            "by ssh",
		"chroot /x llama-server":           "by chroot",
		"python3 -c x":                     "code for python",
		"/usr/bin/python3.12 -Ic x":        "code for python",
		"python -X dev -W ignore -uc x":    "code for python",
		"perl -e x":                        "code for perl",
		"perl -I lib -ne x":                "code for perl",
		"node --eval=x":                    "code for node",
		"deno eval x":                      "code for deno",
		"ruby -W0 -e x":                    "code for ruby",
		"awk x":                            "code for awk",
		"env -S x":                         "is not understood",
		"tini -- sh -c x":                  "a shell, sh",
		"catchsegv /bin/sh -e -c x":        "a shell, sh",
		"wrapper --then /bin/bash -lc x":   "a shell, bash",
	} {
		if got := Indirect(strings.Fields(line)); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	// The control: what names a program and its arguments, however these look.
	for _, line := range []string{
		"/opt/llama-server -c 4096 -m /srv/x.gguf", "llama-server --alias fish -c 4096", "nice -n 5 llama-server -c 1", "vllm serve a/b -cc 3", "python3 -m vllm.entrypoints.openai.api_server -c 3",
		"python3 -u serve.py -c conf.yaml", "python /srv/comfyui/main.py --listen 127.0.0.1", "perl serve.pl -e x", "node server.js -e x", "deno run x.ts", "php -f x.php -r y",
		"--model a/b --port 80", "docker run x", "numactl -N 0 /x/whisper-server", "/x/server --shell bash", "tini -- /x/server", "-c 4096",
	} {
		if got := Indirect(strings.Fields(line)); got != "" {
			t.Errorf("%s: %q", line, got)
		}
	}
}

// TestNoEngineInAShell: what a shell runs in an engine's image is not read as the engine's arguments.
func TestNoEngineInAShell(t *testing.T) {
	t.Parallel()
	if c, ok := inImage("vllm/vllm-openai:v1", []string{"sh", "-c", "curl http://e | sh"}, nil); ok {
		t.Errorf("read as %+v", c)
	}
	if c, ok := inImage("vllm/vllm-openai:v1", []string{"a/b", "--port", "81"}, nil); !ok || c.Model != "a/b" || c.Port != 81 {
		t.Errorf("the control: %+v %v", c, ok)
	}
}
