//go:build real

package discover

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"durward.internal/services/operator/internal/importer/proposal"
)

// These tests run inside scripts/systemd-sandbox.sh, or beside the daemon that scripts/real-docker.sh starts, and nowhere else.

// TestMain is also the engine that the units run.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "llama-server" {
		serve(os.Args[len(os.Args)-1])
	}
	if os.Getenv("SANDBOX") != "1" && os.Getenv("DURWARD_DOCKER_SOCKET") == "" {
		fmt.Fprintln(os.Stderr, "run scripts/real-systemd.sh or scripts/real-docker.sh")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func serve(port string) {
	http.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"data":[{"id":"tiny","owned_by":"llamacpp"}]}`))
	})
	http.HandleFunc("GET /props", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"default_generation_settings":{"n_ctx":2048},"total_slots":2,"build_info":"b1-abc"}`))
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe("127.0.0.1:"+port, nil))
	os.Exit(1)
}

func do(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// What systemd itself says through busctl, and the kernel through /proc, is read as the tests without systemd believe: variables filled
// in, arguments with spaces whole, an engine found behind a script, nothing of the environment beyond the list.
func TestRealUnits(t *testing.T) {
	if os.Getenv("SANDBOX") != "1" {
		t.Skip("systemd is another script's")
	}
	do(t, "useradd", "--system", "models")
	self, err := os.Executable()
	must(t, err)
	do(t, "cp", self, "/usr/local/bin/llama-server")
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		must(t, os.WriteFile(name, []byte(text), mode))
	}
	write("/usr/local/bin/start-it", "#!/bin/sh\n/usr/local/bin/llama-server -m /srv/b.gguf --port 9392\n", 0o755)
	const units = "/etc/systemd/system/"
	write(units+"llm@a.service", `[Service]
User=models
Environment=PORT=9391 "SECRET_TOKEN=do not tell" CUDA_VISIBLE_DEVICES=0
ExecStart=/usr/local/bin/llama-server -m "/srv/with space/a.gguf" --alias tiny -c 4096 --port ${PORT}
`, 0o644)
	write(units+"wrapped.service", "[Service]\nDynamicUser=yes\nExecStart=/usr/local/bin/start-it\n", 0o644)
	write(units+"other.service", "[Service]\nUser=models\nExecStart=/bin/sleep 1h\n", 0o644)
	do(t, "systemctl", "daemon-reload")
	do(t, "systemctl", "start", "llm@a.service", "wrapped.service", "other.service")
	prober := NewProber()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) { // no event: systemd does it in its own time
		if prober.Ask(t.Context(), 9391).Answered && prober.Ask(t.Context(), 9392).Answered {
			break
		}
	}
	servers, passed, err := Systemd{Manager: "system", Prober: prober}.Servers(t.Context())
	must(t, err)
	found := map[string]Server{}
	for _, s := range servers {
		found[s.Subject] = s
	}
	a := found["llm@a.service"]
	if !a.Running || !a.Recognised || a.Port != 9391 || a.Command.Model != "/srv/with space/a.gguf" || a.Answer.Context != 4096 || len(a.Answer.Models) != 1 {
		t.Errorf("llm@a: %+v", a)
	}
	if strings.Join(a.Withheld, " ") != "PORT SECRET_TOKEN" || len(a.Environment) != 1 || len(a.Remarks) != 0 {
		t.Errorf("llm@a: its environment %q and %q, remarks %q", a.Environment, a.Withheld, a.Remarks)
	}
	if w := found["wrapped.service"]; !w.Running || !w.Recognised || w.Port != 9392 || !w.Answer.Answered {
		t.Errorf("wrapped: %+v, passed %+v", w, passed)
	}
	if _, ok := found["other.service"]; ok {
		t.Error("other.service is no server")
	}
	p := proposal.New("systemd", nil, "this host")
	Host{}.Units(p, servers, passed)
	for _, l := range append(p.LeftOut(), proposal.LeftOut{What: strings.Join(p.Services(), " ")}) {
		if strings.Contains(l.What+l.Why, "do not tell") {
			t.Errorf("a secret is told: %+v", l)
		}
	}
	// Nothing was touched.
	if state := strings.Fields(do(t, "systemctl", "show", "--property=ActiveState", "--value", "llm@a.service", "wrapped.service", "other.service")); strings.Join(state, " ") != "active active active" {
		t.Errorf("the units are %q", state)
	}
}
