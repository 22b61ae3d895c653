package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/fault"
)

// vaultSchema changes what the vault's state says of its schema, while nothing runs.
func vaultSchema(t *testing.T, h *harness.Host, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", h.Path("state", "vault", "vault.db"))
	if err == nil {
		_, err = db.ExecContext(t.Context(), statement)
		err = errors.Join(err, db.Close())
	}
	must(t, err)
}

// TestBackup copies a running installation, under load, and puts the copy back: whatever is wrong with the file or the host changes
// nothing and is one sentence; what was put back is halted at an epoch above every other, the log says what it lost, and everything
// works again once a human resumes.
func TestBackup(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{Catalog: changedCatalog})
	letChange(h)
	h.StartAll()
	agent := h.Connect(h.AddClient("agent"))
	mutate(t, h, agent, "start_service")
	refused := func(sentence string, args ...string) {
		t.Helper()
		if out := h.Run("", args...); out.Code == 0 || !strings.Contains(out.Stderr, sentence) {
			t.Errorf("durward %s: %+v, want %q", strings.Join(args, " "), out, sentence)
		}
	}
	key, file := h.Path("backup.key"), h.Path("backup")
	refused("nobody is named to encrypt to", "backup", file)
	recipient := strings.TrimSpace(h.Durward("backup", "--new-key", key))
	refused("the key was not written", "backup", "--new-key", key)
	h.WriteFile("config/backup-recipients", "# the safe's\n"+recipient+"\n")
	must(t, os.Chmod(h.Path("config", "backup-recipients"), 0o666))
	refused("can be written by others", "backup", file)
	must(t, os.Chmod(h.Path("config", "backup-recipients"), 0o644))

	// Changes go on meanwhile.
	load := changing(t, h)
	before, began := load.count(), time.Now()
	h.Durward("backup", file)
	during, took := load.count()-before, time.Since(began)
	load.end()
	t.Logf("%d changes in the %s of the backup, %.0f a second", during, took.Round(time.Millisecond), float64(during)/took.Seconds())
	if during == 0 {
		t.Error("no change was made while the backup was")
	}
	harness.Eventually(t, "every change that was answered is in the log, once", func() error {
		if n := int64(len(logged(h))); n != load.count() {
			return fmt.Errorf("%d of %d are", n, load.count())
		}
		return nil
	})
	made := logged(h)
	for id, c := range made {
		if c != (change{intents: 1, ends: 1}) {
			t.Errorf("the operation %s: %+v", id, c)
		}
	}
	refused("is there already", "backup", file)
	refused("--keep is for the backups in a folder", "backup", h.Path("another"), "--keep", "1")
	old := h.Path("backups", "durward-20260131T030000Z.backup")
	must(t, os.Mkdir(filepath.Dir(old), 0o700))
	h.WriteFile("backups/"+filepath.Base(old), "")
	h.Durward("backup", filepath.Dir(old), "--keep", "1")
	if kept, _ := filepath.Glob(h.Path("backups", "*")); len(kept) != 1 || kept[0] == old {
		t.Errorf("of two backups are kept: %v", kept)
	}
	whole, err := os.ReadFile(file)
	must(t, err)
	for _, secret := range []string{"SQLite format 3", "seal.key", "start_service"} {
		if bytes.Contains(whole, []byte(secret)) {
			t.Errorf("the file has %q in the clear", secret)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(h.Path("state", "*", "backup.new")); len(left) > 0 {
		t.Errorf("copies are left in the clear: %v", left)
	}

	mutate(t, h, agent, "stop_service")
	h.Durward("audit", "verify") // a checkpoint that is newer than the backup
	restore := func(file string) []string { return []string{"restore", file, "--key", key, "--yes"} }
	refused("is running", restore(file)...)
	roles := []string{harness.Gateway, harness.Executor, harness.Vault, harness.Audit}
	for _, role := range roles {
		h.Process(role).Stop()
	}
	newer := h.Path("newer") // of programs that are newer than these: the vault's part alone tells
	vaultSchema(t, h, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)`)
	h.Durward("backup", newer)
	vaultSchema(t, h, `DELETE FROM goose_db_version WHERE version_id = 999`)
	digests := h.Digest("state")
	refused("written by a newer version of the vault", restore(newer)...)
	write := func(name string, content []byte) string {
		t.Helper()
		h.WriteFile(name, string(content))
		return h.Path(name)
	}
	refused("was not written to its end", restore(write("half", whole[:len(whole)/2]))...)
	flipped := bytes.Clone(whole)
	flipped[len(whole)/3] ^= 1
	refused("is not the one that was made", restore(write("flipped", flipped))...)
	refused("--key is missing", "restore", file, "--yes")
	h.Durward("backup", "--new-key", h.Path("other.key"))
	refused("does not open this backup", "restore", file, "--key", h.Path("other.key")) // before it asks anybody to sign
	keys := h.ReadFile("trust/log_keys")
	h.WriteFile("trust/log_keys", strings.Replace(keys, "+", "+0", 1))
	refused("log_keys", restore(file)...)
	h.WriteFile("trust/log_keys", keys)
	must(t, os.Rename(h.Path("trust"), h.Path("trust.away")))
	refused("Bring that folder back", restore(file)...)
	must(t, os.Rename(h.Path("trust.away"), h.Path("trust")))
	refused("there is no terminal to ask at", "restore", file, "--key", key)
	egress := write("config/egress.yaml", []byte("state_dir: "+h.Path("state", "egress")+"\n")) // which was added after the backup
	refused("move "+egress+" away", restore(file)...)
	must(t, os.Remove(egress))
	after := h.Digest("state")
	for path, digest := range digests {
		if after[path] != digest && !strings.Contains(path, "operator") {
			t.Errorf("%s was changed by a restore that was refused", path)
		}
	}

	if out := h.Durward(restore(file)...); !strings.Contains(out, "durward resume") {
		t.Errorf("the restore said:\n%s", out)
	}
	if left, _ := filepath.Glob(h.Path("state", "vault", "before-restore-*", "vault.db")); len(left) != 1 {
		t.Errorf("the state before is kept at %v", left)
	}
	h.Durward(restore(file)...) // once more, as after one whose end was not seen: what is lost stays so
	h.StartAll()
	for _, role := range []string{harness.Vault, harness.Executor} {
		db, err := sql.Open("sqlite", "file:"+h.Path("state", role, role+".db")+"?mode=ro")
		must(t, err)
		var epoch int
		var halted bool
		if err := db.QueryRowContext(t.Context(), `SELECT epoch, halted FROM control`).Scan(&epoch, &halted); err != nil || epoch <= 1_000_000 || !halted {
			t.Errorf("%s: epoch %d, halted %v, %v", role, epoch, halted, err)
		}
		must(t, db.Close())
	}
	if out := h.Ask("start", harness.DemoService, "--yes"); out.Code == 0 {
		t.Errorf("a restored installation starts services before anybody resumed: %+v", out)
	}
	h.Durward("resume", "--yes")
	restored := h.Records(&auditv1.SearchRecordsRequest{Kinds: []auditv1.Kind{auditv1.Kind_KIND_RESTORED}})
	if len(restored) != 1 || restored[0].GetRecord().GetBody().GetDetails()["lost"] == "0" || restored[0].GetRecord().GetBody().GetStatement() == nil {
		t.Errorf("the log says of the restore: %v", restored)
	}
	// Of each program one change may have been under way when the log was copied.
	unended := 0
	for id, c := range logged(h) {
		if _, known := made[id]; !known || c.intents != 1 || c.ends > 1 {
			t.Errorf("the operation %s after the restore: %+v", id, c)
		}
		unended += 1 - c.ends
	}
	if unended > changers {
		t.Errorf("%d changes have no end in the restored log", unended)
	}
	if out := h.Durward("audit", "verify"); !strings.Contains(out, "signed statements") {
		t.Errorf("verify:\n%s", out)
	}
	mutate(t, h, h.Connect(h.AddClient("newcomer")), "start_service")
	added(t, h)
}

// added is egress beside a restored installation: it begins at the first epoch, and takes up the others' when a human resumes.
func added(t *testing.T, h *harness.Host) {
	t.Helper()
	h.Durward("up", "--prepare", "--development", "--egress")
	w := newWeb(t)
	h.WriteFile("config/egress.yaml", strings.Replace(h.ReadFile("config/egress.yaml"), "\nlocal: []\n", "\nlocal: [\""+w.address()+"\"]\n", 1))
	h.WriteFile("config/security/domains.yaml", "allow: [\""+w.address()+"\"]\n")
	for _, role := range []string{harness.Gateway, harness.Vault} {
		h.Process(role).Stop()
	}
	for _, role := range []string{harness.Vault, harness.Egress, harness.Gateway} {
		h.StartProcess(role)
	}
	page := map[string]any{"url": w.URL + "/guide"}
	agent := h.Connect(h.AddClient("reader"))
	if e := agent.Ask("fetch_url", page); e.Status != "denied" || w.asked.Load() != 0 {
		t.Errorf("before a human resumed: %s, and %d requests", e.Raw, w.asked.Load())
	}
	if out := h.Durward("status"); !strings.Contains(out, "egress REFUSES EVERY CALL: it is at epoch 1,") || !strings.Contains(out, "durward resume") {
		t.Errorf("status says\n%s", out)
	}
	h.Durward("resume", "--yes")
	if out := h.Durward("status"); strings.Contains(out, "REFUSES") {
		t.Errorf("status says\n%s", out)
	}
	soon(t, "ok", func() harness.Envelope { return h.Connect(h.AddClient("later")).Ask("fetch_url", page) })
}

// TestSupportBundle: the list comes before the file; nothing in it names the operator, and no secret of the installation is there.
func TestSupportBundle(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	token := h.AddClient("agent")
	h.Connect(token).Ask("gpu_status", nil)
	file := h.Path("support.tar.gz")
	if out := h.Run("", "support", "bundle", file); out.Code == 0 || !strings.Contains(out.Stdout+out.Stderr, "logs/vault.log") {
		t.Errorf("without an answer: %+v", out)
	}
	if _, err := os.Lstat(file); err == nil {
		t.Error("it was written before anybody saw the list")
	}
	h.Durward("support", "bundle", file, "--yes")
	unpacked, err := h.Command("tar", "xzOf", file).Output()
	must(t, err)
	for _, there := range []string{"durward_", "grant_key", `"findings"`, "the log"} {
		if !bytes.Contains(unpacked, []byte(there)) {
			t.Errorf("%q is not in it", there)
		}
	}
	for _, secret := range []string{token, h.ReadFile("keys/grant.key"), h.ReadFile("keys/log.key"), "operator/" + h.Operator} {
		if bytes.Contains(unpacked, []byte(strings.TrimSpace(secret))) {
			t.Errorf("%.20q… is in it", secret)
		}
	}
}

// changers are so many internal programs, each with a service of its own: one may make 50 changes a second.
const changers = 4

// changedCatalog adds their services, behind which there is no program.
func changedCatalog(h *harness.Host) string {
	var b strings.Builder
	b.WriteString(harness.DemoCatalog(h))
	for n := range changers {
		fmt.Fprintf(&b, "  - {id: null-%d, name: Nothing, driver: \"null\"}\n", n)
	}
	return b.String()
}

// letChange lets them change what they like unasked. Nothing runs yet.
func letChange(h *harness.Host) {
	var rule, list strings.Builder
	for n := range changers {
		for _, tool := range []string{"start_service", "stop_service"} {
			fmt.Fprintf(&rule, "permit (principal in Client::\"changer-%d\", action == Action::\"callWithoutApproval:%s\", resource);\n", n, tool)
			fmt.Fprintf(&list, "  - {tool: %s, clients: [changer-%d]}\n", tool, n)
		}
	}
	h.WriteFile("config/security/policy/changers.cedar", rule.String())
	const file = "config/executor.yaml"
	h.WriteFile(file, strings.Replace(h.ReadFile(file), "unattended: []", "unattended:\n"+strings.TrimSuffix(list.String(), "\n"), 1))
}

// change is what the log has of one.
type change struct{ intents, ends int }

// logged are the changes of the programs that the log has, by operation.
func logged(h *harness.Host) map[string]change {
	out := map[string]change{}
	for n := range changers {
		query := &auditv1.SearchRecordsRequest{
			Principal: fmt.Sprintf("changer-%d", n), Limit: 1000,
			Kinds: []auditv1.Kind{auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_RECOVERED},
		}
		for page := h.Records(query); len(page) > 0; page = h.Records(query) {
			for _, e := range page {
				id := e.GetRecord().GetOperationId()
				c := out[id]
				if e.GetRecord().GetKind() == auditv1.Kind_KIND_INTENT {
					c.intents++
				} else {
					c.ends++
				}
				out[id] = c
			}
			if query.Before = page[0].GetIndex(); query.Before == 0 {
				break
			}
		}
	}
	return out
}

// ongoing are changes that are made until end is called.
type ongoing struct {
	made atomic.Int64
	end  func()
}

func (c *ongoing) count() int64 { return c.made.Load() }

// changing begins them, and returns when each program has made one.
func changing(t *testing.T, h *harness.Host) *ongoing {
	t.Helper()
	c := &ongoing{}
	ctx, stop := context.WithCancel(t.Context())
	var running, begun sync.WaitGroup
	c.end = func() { stop(); running.Wait() }
	for n := range changers {
		program := executorv1.NewToolServiceClient(program(t, h, fmt.Sprintf("changer-%d", n), "start_service,stop_service", func(id string) { t.Errorf("%s waits for a human", id) }))
		service := proto.String(fmt.Sprintf("null-%d", n))
		begun.Add(1)
		running.Go(func() {
			first := sync.OnceFunc(begun.Done)
			defer first()
			for i := 0; ctx.Err() == nil; i++ {
				var err error
				if i%2 == 0 {
					_, err = program.StartService(t.Context(), &executorv1.StartServiceRequest{ServiceId: service})
				} else {
					_, err = program.StopService(t.Context(), &executorv1.StopServiceRequest{ServiceId: service})
				}
				switch {
				case fault.Is(err, callv1.Code_CODE_RATE_LIMITED):
					i--
					time.Sleep(20 * time.Millisecond) // as it is told to
				case err != nil:
					t.Error(err)
					return
				default:
					c.made.Add(1)
					first()
				}
			}
		})
	}
	begun.Wait()
	return c
}
