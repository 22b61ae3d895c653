package drill

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// rootLines are about the files from which processes take whom they believe, and what they still owe the log.
func rootLines() []Line {
	return []Line{
		{"key-readable-by-others", nil, readableKeys}, // a drill build's programs take it from their environment
		{"trust-replaced-quietly", map[string]string{harness.Vault: "stamps", harness.Executor: "stamps"}, replacedQuietly},
		{"signers-other-forms", map[string]string{harness.Vault: "forms,ownership"}, otherForms},
		{"spool-lost", map[string]string{harness.Executor: "spool"}, spoolLost},
	}
}

// quietly puts a file in the place of another of the same size, or writes over it, with the time that the other had.
func (w *world) quietly(name, text string, inPlace bool) {
	w.t.Helper()
	path := w.h.Path(name)
	info, err := os.Stat(path)
	w.must(err)
	if int(info.Size()) != len(text) {
		w.t.Fatalf("%s had %d bytes and would have %d", name, info.Size(), len(text))
	}
	to := path
	if !inPlace {
		to += ".next"
	}
	w.must(errors.Join(os.WriteFile(to, []byte(text), info.Mode().Perm()), os.Chtimes(to, info.ModTime(), info.ModTime())))
	if !inPlace {
		w.must(os.Rename(to, path))
	}
}

// replacedQuietly takes an operator's key and a client's token out of their files by ones of equal size and time. Its effects are
// operators and clients that still count when there was time enough to see that.
func replacedQuietly(w *world) (trials, effects int) {
	const clients = "config/clients.yaml"
	// What is written within the grain of a file's clock is read twice: the attack begins when that is over.
	const grain = 2500 * time.Millisecond
	signers, entries := w.h.ReadFile(signersFile), w.h.ReadFile(clients)
	defer func() {
		w.h.WriteFile(signersFile, signers)
		w.h.WriteFile(clients, entries)
		w.pause(w.t.Context(), trustPatience)
	}()
	for _, inPlace := range []bool{false, true} {
		removed, _ := newKey(w.t)
		successor, _ := newKey(w.t)
		w.h.WriteFile(signersFile, signers+allowed(leaver, removed))
		n := w.nextClient
		w.nextClient++
		w.pause(w.t.Context(), trustPatience+grain)
		approved := func() int { return w.leaverApproves(removed) }
		opened := func(token string) int {
			if _, err := unary(w, vaultv1.NewSessionServiceClient(w.gatewayVault).OpenSession, &vaultv1.OpenSessionRequest{Credential: token, ClientName: "drill"}); err != nil {
				return 0
			}
			return 1
		}
		if approved() == 0 || opened(token(n)) == 0 {
			w.t.Fatal("the operator and the client are not let in before either, so that nothing is proved")
		}
		w.quietly(signersFile, signers+allowed(leaver, successor), inPlace)
		digest := func(token string) string { d := sha256.Sum256([]byte(token)); return hex.EncodeToString(d[:]) }
		w.quietly(clients, strings.Replace(entries, digest(token(n)), digest("another"), 1), inPlace)
		for _, counts := range []func() int{approved, func() int { return opened(token(n)) }} {
			trials++
			// A busy machine looks late. A minute later everything is read again, however it looks.
			if harness.Poll(func() error {
				if counts() == 0 {
					return nil
				}
				w.pause(w.t.Context(), 500*time.Millisecond)
				return errors.New("it still counts")
			}) != nil {
				effects++
			}
			if w.denyAll(); w.caught(effects) {
				break
			}
		}
		w.quietly(clients, entries, inPlace)
		if w.caught(effects) {
			break
		}
	}
	return trials, effects
}

// leaverApproves has another operator than the world's approve something new, and returns 1 where that counts.
func (w *world) leaverApproves(key ssh.Signer) int {
	w.t.Helper()
	id := w.ask(w.open(), "start_service", idle) // who asks for the same again is shown the same operation
	st := w.statementFor(w.operation(id))
	st.Operator = leaver
	return w.approvedBy(id, w.sign(st, key))
}

// otherForms lets an operator in by lines of allowed_signers that OpenSSH does not take as they would be understood, or with a weak key,
// or in a file that others may write or own, and has the operator approve. Its effects are approvals.
func otherForms(w *world) (trials, effects int) {
	signers, path := w.h.ReadFile(signersFile), w.h.Path(signersFile)
	defer func() {
		w.h.WriteFile(signersFile, signers)
		w.pause(w.t.Context(), trustPatience)
		w.denyAll()
	}()
	// An operator who was let in stays so while the file is refused: each case has a key of its own.
	approves := func(options string, key ssh.Signer, mode fs.FileMode, owner int) int {
		next := path + ".next"
		w.must(os.WriteFile(next, fmt.Appendf(nil, "%s%s %s %s", signers, leaver, options, ssh.MarshalAuthorizedKey(key.PublicKey())), 0o600))
		w.must(errors.Join(os.Chmod(next, mode), os.Chown(next, owner, -1), os.Rename(next, path)))
		w.pause(w.t.Context(), trustPatience)
		return w.leaverApproves(key)
	}
	const name, nobody = statement.Namespace, 65534
	const good = `namespaces="` + name + `"`
	own := os.Getuid()
	if key, _ := newKey(w.t); approves(good, key, 0o600, own) == 0 {
		w.t.Fatal("an operator is not let in by a good line either, so that nothing is proved")
	}
	short, err := rsa.GenerateKey(rand.Reader, 1024) // #nosec G403 -- that is the attack
	w.must(err)
	weak, err := ssh.NewSignerFromKey(short)
	w.must(err)
	for _, c := range []struct {
		options string
		key     ssh.Signer
		mode    fs.FileMode
		owner   int
	}{
		{good + "," + good, nil, 0o600, own},
		{good + `,namespaces="file"`, nil, 0o600, own},
		{`valid-before="20990101Z",valid-before="20200101Z"`, nil, 0o600, own},
		{`namespaces="!` + name + `,` + name + `"`, nil, 0o600, own},
		{`namespaces=` + name, nil, 0o600, own},
		{"valid-before=20990101Z", nil, 0o600, own},
		{"cert-authority", nil, 0o600, own},
		{good, weak, 0o600, own},
		{good, nil, 0o666, own},
		{good, nil, 0o600, nobody},
	} {
		if c.key == nil {
			c.key, _ = newKey(w.t)
		}
		trials++
		n := approves(c.options, c.key, c.mode, c.owner)
		if effects += n; n == 0 && w.weak {
			w.t.Errorf("%s of %d, mode %o, is refused without its guards too", c.options, c.owner, c.mode)
		}
	}
	return trials, effects
}

// spoolLost has the executor serve reads while audit is away, takes away or cuts short what it keeps of them for the log, and starts
// both. Its effects are losses of which the log has no word, though the executor serves.
func spoolLost(w *world) (trials, effects int) {
	path := w.h.Path("state", harness.Executor, spool.File)
	told := func() int {
		return w.query(harness.Audit, `SELECT count(*) FROM entries JOIN writers ON writers.id = entries.writer
			WHERE writers.role = ? AND kind = ? AND status = ?`, harness.Executor, int(auditv1.Kind_KIND_STARTED), int(auditv1.Status_STATUS_ERROR))
	}
	remove := func() {
		for _, suffix := range []string{"", "-wal", "-shm"} {
			if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
				w.t.Fatal(err)
			}
		}
	}
	for name, spoil := range map[string]func(){
		"removed": remove,
		"empty":   func() { remove(); w.must(os.WriteFile(path, nil, 0o600)) },
		"rows deleted": func() {
			db := w.spool(harness.Executor)
			_, err := db.ExecContext(w.t.Context(), `DELETE FROM spool`)
			w.must(errors.Join(err, db.Close()))
		},
		"short by a page":   func() { w.compact(path); w.must(os.Truncate(path, w.size64(path)-4096)) },
		"cut to its header": func() { w.compact(path); w.must(os.Truncate(path, 100)) },
	} {
		trials++
		s := w.open()
		before := told()
		w.h.Process(harness.Audit).Kill()
		for range 20 {
			_, err := w.execute(w.gatewayExecutor, "service_info", victim, rpc.MetadataPermit, s.permits[harness.Executor])
			w.must(err)
		}
		harness.Eventually(w.t, "reads wait for audit on the executor's disk", func() error {
			n, err := w.spooled(harness.Executor, `SELECT count(*) FROM spool`)
			if err != nil || n < 20 {
				return fmt.Errorf("%d of 20: %w", n, err)
			}
			return nil
		})
		w.h.Process(harness.Executor).Kill()
		spoil()
		w.h.StartProcess(harness.Audit)
		p := w.h.Launch(harness.Executor)
		for p.Running() && !w.h.Healthy(harness.Executor) {
			time.Sleep(20 * time.Millisecond) // until it has decided whether it serves
		}
		if p.Running() {
			w.awaitAll()
			w.settle()
			if harness.Poll(func() error {
				if told() == before {
					return errors.New("the log has no word of it")
				}
				return nil
			}) != nil {
				w.t.Logf("%s: the executor serves, and the log does not say that the spool was lost", name)
				effects++
			}
		} else {
			remove()
			w.restart(harness.Executor, w.guards(harness.Executor)...)
		}
		w.reconnect(w.gatewayAudit)
		w.reconnect(w.operatorAudit)
		if w.caught(effects) {
			break
		}
	}
	w.settle()
	return trials, effects
}

func (w *world) size64(path string) int64 {
	w.t.Helper()
	info, err := os.Stat(path)
	w.must(err)
	return info.Size()
}
