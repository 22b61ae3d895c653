package e2e

import (
	"bytes"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// TestBackup copies a running installation, under load, and puts the copy back: whatever is wrong with the file or the host changes
// nothing and is one sentence; what was put back is halted at an epoch above every other, the log says what it lost, and everything
// works again once a human resumes.
func TestBackup(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{})
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
	if err := os.Chmod(h.Path("config", "backup-recipients"), 0o666); err != nil {
		t.Fatal(err)
	}
	refused("can be written by others", "backup", file)
	if err := os.Chmod(h.Path("config", "backup-recipients"), 0o644); err != nil {
		t.Fatal(err)
	}

	// Changes go on meanwhile.
	begun, stop, ended := make(chan struct{}), make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				ended <- n
				return
			default:
			}
			if h.Run("", []string{"stop", "start"}[n%2], harness.DemoService, "--yes").Code == 0 {
				if n++; n == 1 {
					close(begun)
				}
			}
		}
	}()
	<-begun
	h.Durward("backup", file)
	close(stop)
	if n := <-ended; n%2 == 1 {
		h.Durward("start", harness.DemoService, "--yes")
	}
	refused("is there already", "backup", file)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
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
	before := h.Digest("state")
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
	refused("does not open this backup", "restore", file, "--key", h.Path("other.key"), "--yes")
	keys := h.ReadFile("trust/log_keys")
	h.WriteFile("trust/log_keys", strings.Replace(keys, "+", "+0", 1))
	refused("log_keys", restore(file)...)
	h.WriteFile("trust/log_keys", keys)
	refused("there is no terminal to ask at", "restore", file, "--key", key)
	after := h.Digest("state")
	for path, digest := range before {
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
	h.StartAll()
	for _, role := range []string{harness.Vault, harness.Executor} {
		db, err := sql.Open("sqlite", "file:"+h.Path("state", role, role+".db")+"?mode=ro")
		if err != nil {
			t.Fatal(err)
		}
		var epoch int
		var halted bool
		if err := db.QueryRowContext(t.Context(), `SELECT epoch, halted FROM control`).Scan(&epoch, &halted); err != nil || epoch <= 1_000_000 || !halted {
			t.Errorf("%s: epoch %d, halted %v, %v", role, epoch, halted, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if out := h.Ask("start", harness.DemoService, "--yes"); out.Code == 0 {
		t.Errorf("a restored installation starts services before anybody resumed: %+v", out)
	}
	h.Durward("resume", "--yes")
	restored := h.Records(&auditv1.SearchRecordsRequest{Kinds: []auditv1.Kind{auditv1.Kind_KIND_RESTORED}})
	if len(restored) != 1 || restored[0].GetRecord().GetBody().GetDetails()["lost"] == "0" || restored[0].GetRecord().GetBody().GetStatement() == nil {
		t.Errorf("the log says of the restore: %v", restored)
	}
	if out := h.Durward("audit", "verify"); !strings.Contains(out, "signed statements") {
		t.Errorf("verify:\n%s", out)
	}
	mutate(t, h, h.Connect(h.AddClient("newcomer")), "start_service")
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
	if err != nil {
		t.Fatal(err)
	}
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
