package drill

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/identity"
)

// rewrittenLines are attacks by somebody with the log's key. They have an installation of their own: a witness sees each of its
// checkpoints. The control has no witness.
func rewrittenLines() []Line {
	return []Line{{"log-rewritten", nil, rewritten}}
}

// notTrusted is what a process logs of a log that does not extend what it keeps.
const notTrusted = "the audit log's answer does not verify"

// rewritten writes the whole log anew, longer than it was and signed by its own key, and takes away whatever processes and the operator's
// program had seen of the true one, but for what a quorum of witnesses cosigned. Its effects are those who take it for the log: vault and
// executor, changes that run, the operator's program, the proof of an export, and the witness itself.
func rewritten(w *world) (trials, effects int) {
	relayed := func() string { return "" }
	if !w.weak {
		relayed = w.witnessed()
	}
	for range w.size(10, 2) {
		m := w.arrange()
		state := w.h.Path("state")
		roles := []string{harness.Gateway, harness.Executor, harness.Vault, harness.Audit}
		for _, role := range roles {
			w.h.Process(role).Stop()
		}
		kept := filepath.Join(w.t.TempDir(), "state")
		w.copy(state, kept)

		// The thief.
		logs, err := filepath.Glob(w.h.Path("state", harness.Audit, "audit.db*"))
		w.must(err)
		for _, path := range append(logs, w.h.Path("state", "operator", "checkpoint")) {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				w.t.Fatal(err)
			}
		}
		for _, role := range []string{harness.Vault, harness.Executor} {
			w.unsee(role)
		}
		w.h.StartProcess(harness.Audit)
		w.scribble(2000)

		// Those who might be taken in.
		for _, role := range []string{harness.Vault, harness.Executor, harness.Gateway} {
			w.h.Launch(role)
		}
		count := func(who string, takenIn bool) {
			trials++
			if takenIn {
				w.t.Logf("%s takes the rewritten log for the log", who)
				effects++
			}
		}
		for _, role := range []string{harness.Vault, harness.Executor} {
			count("the "+role, w.trusts(role))
		}
		trials++
		_ = w.command("start_service", idle) // refused is as it should be
		w.kill(idle)
		if n := w.effects(m); n > 0 {
			w.t.Logf("%d changes run", n)
			effects += n
		}
		count("durward audit verify", w.h.Run("", "audit", "verify").Code == 0)
		export := filepath.Join(w.t.TempDir(), "log.jsonl")
		// What its export is, who holds a cosigned checkpoint says, on another machine too.
		if err := os.Remove(w.h.Path("state", "operator", "checkpoint")); err != nil && !errors.Is(err, os.ErrNotExist) {
			w.t.Fatal(err) // who refuses the log keeps none
		}
		w.exportAsThief(export)
		count("durward audit verify --offline", w.h.Run("", "audit", "verify", "--offline", export).Code == 0)
		if !w.weak {
			harness.Eventually(w.t, "the witness judges", func() error {
				if said := relayed(); !strings.Contains(said, "ANOTHER HISTORY") && !strings.Contains(said, "THE LOG WAS PUT BACK") {
					return errors.New(said)
				}
				return nil
			})
		}

		for _, role := range roles {
			if p := w.h.Process(role); p.Running() {
				p.Kill()
			}
		}
		w.must(os.RemoveAll(state))
		w.copy(kept, state)
		for _, role := range []string{harness.Audit, harness.Vault, harness.Executor, harness.Gateway} {
			w.h.StartProcess(role)
		}
		w.awaitAll()
		if w.caught(effects) {
			break
		}
		w.settle()
	}
	return trials, effects
}

// witnessed gives the installation a witness and a relay, waits until everybody has kept what it cosigned, and returns what reads the
// relay's log.
func (w *world) witnessed() (relayed func() string) {
	w.t.Helper()
	public, _ := w.witnessFiles()
	w.h.WriteFile("trust/witnesses.yaml", "quorum: 1\nwitnesses:\n  - "+public+"\n")
	start := func(name string, args ...string) string {
		log := w.h.Path(name + ".log")
		out, err := os.Create(log)
		w.must(err)
		ctx, cancel := context.WithCancel(context.Background())
		cmd := exec.CommandContext(ctx, filepath.Join(w.h.Bin, name), args...)
		cmd.Env, cmd.Stdout, cmd.Stderr = w.h.Environment(), out, out
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		w.must(cmd.Start())
		w.t.Cleanup(func() { cancel(); _ = cmd.Wait(); _ = out.Close() })
		return log
	}
	start("auditwitness", "-config", w.h.Path("auditwitness.yaml"))
	log := start("auditrelay", "-development", "-config", w.h.Path("auditrelay.yaml"))
	relayed = func() string {
		b, err := os.ReadFile(log)
		w.must(err)
		return string(b)
	}
	harness.Eventually(w.t, "vault, executor and the operator's program keep what the witness cosigned", func() error {
		w.h.Run("", "audit", "search", "--limit", "1")
		if _, err := os.Stat(w.h.Path("state", "operator", "witnessed")); err != nil {
			return fmt.Errorf("%w\n%s", err, relayed())
		}
		for _, role := range []string{harness.Vault, harness.Executor} {
			if n, err := w.spooled(role, `SELECT count(*) FROM checkpoint WHERE only = 2`); err != nil || n == 0 {
				return fmt.Errorf("the %s has kept none: %w", role, err)
			}
		}
		return nil
	})
	return relayed
}

// witnessFiles writes what a witness and a relay start from, and returns the witness's public key and where it listens.
func (w *world) witnessFiles() (public, at string) {
	w.t.Helper()
	key := exec.CommandContext(w.t.Context(), filepath.Join(w.h.Bin, "auditwitness"), "-new-key", "witness.example/one")
	var half strings.Builder
	key.Stderr = &half
	secret, err := key.Output()
	w.must(err)
	w.h.WriteFile("witness.key", string(secret))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	at = lis.Addr().String()
	w.must(lis.Close())
	lines := strings.Split(strings.TrimSpace(w.h.ReadFile("trust/log_keys")), "\n")
	w.h.WriteFile("auditwitness.yaml", fmt.Sprintf("listen: %s\nstate_dir: %s\nkey: %s\nlogs: [%q]\n", at, w.h.Path("witness"), w.h.Path("witness.key"), lines[len(lines)-1]))
	w.must(os.Mkdir(w.h.Path("tls", "relay"), 0o700))
	w.h.Durward("cert", "renew")
	w.h.WriteFile("auditrelay.yaml", fmt.Sprintf("audit: {address: %q, identity: %q}\nwitnesses: [%q]\ninterval: 1s\ntrust_dir: %s\ntls: {certificate: %s, key: %s}\n",
		w.h.Address(harness.Audit), w.h.Identity(harness.Audit), "http://"+at, w.h.Path("trust"), w.h.Path("tls", "relay", "cert.pem"), w.h.Path("tls", "relay", "key.pem")))
	return strings.TrimSpace(half.String()), at
}

// copy copies a folder with the modes of what is in it.
func (w *world) copy(from, to string) {
	w.t.Helper()
	out, err := exec.CommandContext(w.t.Context(), "cp", "-a", from, to).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
}

func (w *world) spool(role string) *sql.DB {
	w.t.Helper()
	db, err := sql.Open("sqlite", w.h.Path("state", role, "spool.db"))
	w.must(err)
	return db
}

// spooled is what a query counts in the spool of a process that runs, and holds it locked: in a copy, which may be one of no moment.
func (w *world) spooled(role, query string) (n int, err error) {
	w.t.Helper()
	there := w.h.Path("state", role, "spool.db")
	here := filepath.Join(w.t.TempDir(), "spool.db")
	w.copy(there, here)
	w.copy(there+"-wal", here+"-wal")
	db, err := sql.Open("sqlite", here)
	w.must(err)
	defer db.Close()
	err = db.QueryRowContext(w.t.Context(), query).Scan(&n)
	return n, err
}

// unsee takes from a process what it had seen of the log, but for what was cosigned.
func (w *world) unsee(role string) {
	w.t.Helper()
	db := w.spool(role)
	for _, statement := range []string{`DELETE FROM checkpoint WHERE only = 1`, `DELETE FROM spool`} {
		_, err := db.ExecContext(w.t.Context(), statement)
		w.must(err)
	}
	w.must(db.Close())
}

// scribble writes records as an operator whom nobody knows.
func (w *world) scribble(n int) {
	w.t.Helper()
	id, err := identity.New(identity.DefaultTrustDomain, optionsv1.Role_ROLE_OPERATOR, "scribe")
	w.must(err)
	client := auditv1.NewLogServiceClient(w.h.DialAs(id, harness.Audit))
	for from := 1; from <= n; {
		request := &auditv1.AppendRequest{}
		for ; from <= n && len(request.GetRecords()) < 500; from++ {
			request.Records = append(request.Records, &auditv1.Record{Sequence: uint64(from), Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.Now()})
		}
		_, err := client.Append(w.t.Context(), request)
		w.must(err)
	}
}

// trusts reports whether a process that just started takes audit's log for the true one: it says either in its metrics or in its log.
func (w *world) trusts(role string) (trusts bool) {
	w.t.Helper()
	harness.Eventually(w.t, "the "+role+" has judged the log", func() error {
		request, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://"+w.h.HealthAddress(role)+"/metrics", nil)
		w.must(err)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		metrics, err := io.ReadAll(answer.Body)
		if err != nil {
			return err
		}
		if trusts = strings.Contains(string(metrics), "\ndurward_recorder_audit_reachable 1\n"); trusts || w.h.Process(role).Said(notTrusted) {
			return nil
		}
		return errors.New(w.h.Process(role).Log())
	})
	return trusts
}

// exportAsThief writes the log as `durward audit export` does, and proves nothing.
func (w *world) exportAsThief(path string) {
	w.t.Helper()
	stream, err := auditv1.NewHistoryServiceClient(w.operatorAudit).ExportLog(w.t.Context(), &auditv1.ExportLogRequest{})
	w.must(err)
	var out strings.Builder
	for first := true; ; first = false {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		w.must(err)
		if first {
			head, err := json.Marshal(map[string]string{"checkpoint": string(part.GetCheckpoint())})
			w.must(err)
			out.Write(append(head, '\n'))
		}
		for _, e := range part.GetEntries() {
			line, err := protojson.Marshal(e)
			w.must(err)
			out.Write(append(line, '\n'))
		}
	}
	w.must(os.WriteFile(path, []byte(out.String()), 0o600))
}
