package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"filippo.io/torchwood"

	"durward.internal/deploy/e2e/harness"
)

// daemon starts a shipped program that the harness does not know, until the test ends.
func daemon(t *testing.T, h *harness.Host, program string, args ...string) (stop func(), log func() string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, filepath.Join(harness.Binaries(t, harness.Build{}), program), args...)
	cmd.Env, cmd.Cancel = h.Environment(), func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	path := h.Path(program + ".log")
	out, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	var once bool
	stop = func() {
		if once {
			return
		}
		once = true
		cancel()
		var ended *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &ended) && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", program, err)
		}
		_ = out.Close()
	}
	t.Cleanup(stop)
	return stop, func() string {
		b, err := os.ReadFile(path)
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
}

// newWitness makes a witness's key and returns its public half, as verifiers' witnesses.yaml has it.
func newWitness(t *testing.T, h *harness.Host, name string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(harness.Binaries(t, harness.Build{}), "auditwitness"), "-new-key", name)
	var public bytes.Buffer
	cmd.Stderr = &public
	key, err := cmd.Output()
	must(t, err)
	h.WriteFile("witness.key", string(key))
	return strings.TrimSpace(public.String())
}

// TestWitnessed runs the whole of it with the built programs: a witness, the relay, changes that wait for the witness where a human
// demands it, and a log that is rewritten with its own stolen key.
func TestWitnessed(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{})
	vkey := newWitness(t, h, "witness.example/one")
	h.WriteFile("trust/witnesses.yaml", "quorum: 1\nrequired_within: 1m\nwitnesses:\n  - "+vkey+"\n")
	h.StartAll()
	agent := h.Connect(h.AddClient("agent"))
	change := func(tool string) harness.Envelope {
		t.Helper()
		asked := agent.Ask(tool, map[string]any{"service_id": harness.DemoService})
		if asked.Status != "pending_approval" {
			return asked // an approval that was not used up
		}
		h.Approve(asked.OperationID)
		return agent.Ask("wait_operation", asked.Next.Arguments)
	}
	witnesses := func() string {
		var status struct{ Witnesses string }
		// Its exit code is about the processes, some of which are put away at the end.
		out := h.Run("", "status", "--json")
		if err := json.Unmarshal([]byte(out.Stdout), &status); err != nil {
			t.Fatalf("%v: %s%s", err, out.Stdout, out.Stderr)
		}
		return status.Witnesses
	}

	// Nobody has cosigned: what adds load waits, and what takes load off does not.
	if done := change("start_service"); done.Status == "ok" || h.Starts(harness.DemoService) != 0 || !strings.Contains(string(done.Raw), "no quorum of witnesses") {
		t.Errorf("a start without a quorum: %s", done.Raw)
	}
	if done := change("stop_service"); done.Status != "ok" {
		t.Errorf("a stop without a quorum: %s", done.Raw)
	}
	if got := witnesses(); !strings.Contains(got, "CHANGES WAIT") {
		t.Errorf("status says of witnesses: %q", got)
	}

	// The witness and the relay.
	at := fmt.Sprintf("127.0.0.1:%d", h.Port(2))
	lines := strings.Split(strings.TrimSpace(h.ReadFile("trust/log_keys")), "\n")
	logKey := lines[len(lines)-1] // after the comment
	h.WriteFile("auditwitness.yaml", fmt.Sprintf("listen: %s\nstate_dir: %s\nkey: %s\nlogs: [%q]\n", at, h.Path("witness"), h.Path("witness.key"), logKey))
	_, seen := daemon(t, h, "auditwitness", "-config", h.Path("auditwitness.yaml"))
	must(t, os.Mkdir(h.Path("tls", "relay"), 0o700))
	h.Durward("cert", "renew")
	h.WriteFile("auditrelay.yaml", fmt.Sprintf("audit: {address: %q, identity: %q}\nwitnesses: [%q]\ninterval: 1s\ntrust_dir: %s\ntls: {certificate: %s, key: %s}\n",
		h.Address(harness.Audit), h.Identity(harness.Audit), "http://"+at, h.Path("trust"), h.Path("tls", "relay", "cert.pem"), h.Path("tls", "relay", "key.pem")))
	stopRelay, relayed := daemon(t, h, "auditrelay", "-development", "-config", h.Path("auditrelay.yaml"))
	harness.Eventually(t, "a quorum of witnesses", func() error {
		if got := witnesses(); !strings.HasPrefix(got, "cosigned by witness.example/one at ") || strings.Contains(got, "WAIT") {
			return fmt.Errorf("status says %q\n%s%s", got, relayed(), seen())
		}
		return nil
	})
	harness.Eventually(t, "a start with a quorum", func() error { // the executor asks audit each 5 s
		if done := change("start_service"); done.Status != "ok" {
			return fmt.Errorf("%s", done.Raw)
		}
		return nil
	})
	if n := h.Starts(harness.DemoService); n != 1 {
		t.Errorf("the service was started %d times", n)
	}
	if out := h.Durward("audit", "verify"); !strings.Contains(out, "as witness.example/one cosigned it when it had") {
		t.Errorf("verify says\n%s", out)
	}

	// Another implementation reads the evidence that the operator's program keeps.
	evidence, err := os.ReadFile(h.Path("state", "operator", "witnessed"))
	must(t, err)
	other, err := torchwood.NewCosignatureVerifier(vkey)
	must(t, err)
	key := h.Trust().Current().LogKeys[0]
	policy := torchwood.ThresholdPolicy(3, torchwood.OriginPolicy(key.Name()), torchwood.SingleVerifierPolicy(key), torchwood.SingleVerifierPolicy(other))
	if _, n, err := torchwood.VerifyCheckpoint(evidence, policy); err != nil {
		t.Errorf("the cosigned checkpoint: %v\n%s", err, evidence)
	} else if made, err := torchwood.CosignatureTimestamp(n.Sigs[len(n.Sigs)-1]); err != nil || time.Since(time.Unix(made, 0)) > time.Hour {
		t.Errorf("the cosignature is of %v: %v", time.Unix(made, 0), err)
	}

	// A stranger has the log's key and the witness's, and nothing of this installation: a record's receipt and a folder of tiles show
	// that the witness saw them, also to the other implementation.
	must(t, os.Mkdir(h.Path("stranger"), 0o700))
	h.WriteFile("stranger/log_keys", logKey+"\n")
	h.WriteFile("stranger/witnesses.yaml", "quorum: 1\nwitnesses:\n  - "+vkey+"\n")
	h.WriteFile("record.json", h.Durward("audit", "show", "3", "--json"))
	if out := h.Run("", "audit", "receipt", "--trust", h.Path("stranger"), "--witnessed", h.Path("record.json")); out.Code != 0 || !strings.Contains(out.Stdout, "witness.example/one cosigned it at") {
		t.Errorf("a record's receipt: exit status %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	if out := h.Durward("audit", "export", "--format", "tiles", h.Path("tiles")); !strings.Contains(out, "cosigned by witness.example/one") {
		t.Errorf("tiles: %s", out)
	}
	if _, _, err := torchwood.VerifyCheckpoint([]byte(h.ReadFile("tiles/checkpoint")), policy); err != nil {
		t.Errorf("the checkpoint of the tiles: %v", err)
	}

	// A thief of the log's key writes all of it anew. Its processes are put away, and whatever kept a checkpoint with them: who comes
	// now has seen nothing but what witnesses cosigned.
	stopRelay()
	h.Process(harness.Gateway).Stop()
	h.Process(harness.Executor).Stop()
	h.Process(harness.Vault).Stop()
	h.Process(harness.Audit).Stop()
	logs, err := filepath.Glob(h.Path("state", harness.Audit, "audit.db*"))
	if err != nil || len(logs) == 0 {
		t.Fatal(err)
	}
	for _, path := range append(logs, h.Path("state", "operator", "checkpoint")) {
		must(t, os.Remove(path))
	}
	h.StartProcess(harness.Audit)
	notes(t, h, "scribe", 1, 500) // more than the true log has
	rewritten := h.Path("rewritten.jsonl")
	if out := h.Run("", "audit", "export", rewritten); out.Code == 0 || !strings.Contains(out.Stderr, "NOT WHAT IT WAS") {
		t.Errorf("the operator's program, which kept what was cosigned: exit status %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	if got := witnesses(); !strings.Contains(got, "NO QUORUM") || !strings.Contains(got, "CHANGES WAIT") {
		t.Errorf("status says of the rewritten log's witnesses: %q", got)
	}
	_, relayed = daemon(t, h, "auditrelay", "-development", "-config", h.Path("auditrelay.yaml"))
	harness.Eventually(t, "the witness sees the other history", func() error {
		if said := relayed(); !strings.Contains(said, "ANOTHER HISTORY") && !strings.Contains(said, "THE LOG WAS PUT BACK") {
			return errors.New(said)
		}
		return nil
	})

	// The negative control: without what was cosigned the rewrite passes, and an auditor who has it finds it in the same file.
	witnessed := h.Path("state", "operator", "witnessed")
	must(t, os.Remove(witnessed))
	if out := h.Run("", "audit", "export", rewritten); out.Code != 0 {
		t.Fatalf("without the evidence: exit status %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	for _, held := range []bool{false, true} {
		if held {
			must(t, os.WriteFile(witnessed, evidence, 0o600))
		}
		if out := h.Run("", "audit", "verify", "--offline", rewritten); (out.Code == 0) == held {
			t.Errorf("offline, with what was cosigned: %v: exit status %d\n%s%s", held, out.Code, out.Stdout, out.Stderr)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
