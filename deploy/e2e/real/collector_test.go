//go:build real

package real

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// TestCollector sends spans of every process, and audit's log through auditrelay, to OpenTelemetry's own collector, which is ended and begun
// again meanwhile: it takes both as they are, the log from its first record, and no human's statement is in it.
func TestCollector(t *testing.T) {
	h := harness.New(t, harness.Options{})
	address := fmt.Sprintf("127.0.0.1:%d", h.Port(0))
	h.WriteFile("collector.yaml", fmt.Sprintf(`receivers: {otlp: {protocols: {grpc: {endpoint: %q}}}}
exporters: {debug: {verbosity: detailed, sampling_initial: 1000000, sampling_thereafter: 1}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {traces: {receivers: [otlp], exporters: [debug]}, logs: {receivers: [otlp], exporters: [debug]}}
`, address))
	collector := begin(t, h, "collector", "--config=file:"+h.Path("collector.yaml"))
	for _, role := range harness.Roles() {
		file := "config/" + role + ".yaml"
		text := h.ReadFile(file) + "\ntelemetry: {sample_ratio: 1, otlp: {endpoint: " + address + "}}\n"
		if role == harness.Audit {
			text += "forward: records\n"
		}
		h.WriteFile(file, text)
	}
	must(t, os.Mkdir(h.Path("tls", "relay"), 0o700))
	h.StartAll()
	h.Durward("cert", "renew")
	h.WriteFile("auditrelay.yaml", fmt.Sprintf(`audit: {address: %q, identity: %q}
trust_dir: %s
tls: {certificate: %s, key: %s}
state_dir: %s
forward: [{name: lake, otlp: %q}]
`, h.Address(harness.Audit), h.Identity(harness.Audit), h.Path("trust"), h.Path("tls", "relay", "cert.pem"), h.Path("tls", "relay", "key.pem"),
		h.Path("forwarded"), address))
	begin(t, h, filepath.Join(harness.Binaries(t, harness.Build{}), "auditrelay"), "-development", "-config", h.Path("auditrelay.yaml"))

	agent := h.Connect(h.AddClient("agent"))
	change := func(tool string) {
		t.Helper()
		agent.Ask(tool, map[string]any{"service_id": harness.DemoService})
		h.Approve(h.AwaitApproval(tool).OperationID)
	}
	whole := func(said func() string) {
		t.Helper()
		var status struct{ Audit struct{ Size uint64 } }
		h.DurwardJSON(&status, "status")
		harness.Eventually(t, "the collector has the whole log", func() error {
			text := said()
			for i := range status.Audit.Size {
				if !strings.Contains(text, fmt.Sprintf("durward.index: Str(%d)", i)) {
					return fmt.Errorf("record %d of %d is not there\n%s", i, status.Audit.Size, h.Run("", "status").Stdout)
				}
			}
			return nil
		})
	}
	change("start_service")
	harness.Eventually(t, "the collector has spans of every process", func() error {
		for _, role := range harness.Roles() {
			if !strings.Contains(collector.said(), "service.name: Str(durward-"+role+")") {
				return errors.New(role)
			}
		}
		return nil
	})
	whole(collector.said)
	before := collector.said()
	collector.end()
	change("stop_service")
	collector = begin(t, h, "collector", "--config=file:"+h.Path("collector.yaml"))
	whole(func() string { return before + collector.said() })
	for _, sign := range []string{"SSH SIGNATURE", "durward-approval"} {
		if strings.Contains(before+collector.said(), sign) {
			t.Errorf("a human's statement left the host: %q", sign)
		}
	}
}

// running is a program beside an installation.
type running struct {
	end  func()
	said func() string
}

// begin starts a program of the PATH, or at its path; it ends with the test at the latest.
func begin(t *testing.T, h *harness.Host, program string, args ...string) running {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "said")
	must(t, err)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = h.Environment(), out, out
	must(t, cmd.Start())
	ended := false
	r := running{
		end: func() {
			if ended {
				return
			}
			ended = true
			_ = cmd.Process.Kill() // it may have ended by itself
			_ = cmd.Wait()         // it was killed
		},
		said: func() string {
			text, err := os.ReadFile(out.Name())
			must(t, err)
			return string(bytes.ToValidUTF8(text, nil))
		},
	}
	t.Cleanup(func() {
		r.end()
		if t.Failed() {
			text := r.said()
			t.Logf("the end of what %s said:\n%s", program, text[max(0, len(text)-3000):])
		}
		_ = out.Close()
	})
	return r
}
