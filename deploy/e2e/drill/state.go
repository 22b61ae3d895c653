package drill

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
)

// stateLines are attacks by whoever may write files of the host, and no key: state that is put back or edited, a folder of another
// Unix user's, a script that is edited after its approval.
func stateLines() []Line {
	both := func(guard string) map[string]string {
		return map[string]string{harness.Vault: guard, harness.Executor: guard}
	}
	return []Line{
		{"state-edited-file", map[string]string{harness.Executor: "files"}, editedFile},
		{"state-edited-unit", map[string]string{harness.Executor: "subject"}, editedUnit},
		{"state-folders-of-others", both("ownership"), foldersOfOthers},
		{"state-home-of-others", nil, homeOfOthers},
		{"audit-withholds-bodies", nil, auditWithholds},
		{"state-rolled-back", both("state"), rolledBack},
		{"state-lost", both("state"), lost},
		// Last: its control leaves what is halted with its guard.
		{"state-damaged", both("state"), damaged},
	}
}

const scripted = harness.ScriptedService

// stateEdits are what somebody does to the databases of vault and executor to have a spent grant carried out again. The first puts
// back copies of before it was spent.
var stateEdits = map[string]map[string]string{
	"older copies": nil,
	"rows deleted": {
		harness.Vault:    `DELETE FROM spent; UPDATE operations SET state = (SELECT state FROM older.operations o WHERE o.operation_id = operations.operation_id)`,
		harness.Executor: `DELETE FROM spent; DELETE FROM statement_use`,
	},
	"rows put back": {
		harness.Vault: `DELETE FROM spent; DELETE FROM statements; INSERT INTO statements SELECT * FROM older.statements;
			DELETE FROM operations; INSERT INTO operations SELECT * FROM older.operations; DELETE FROM seals; INSERT INTO seals SELECT * FROM older.seals`,
		harness.Executor: `DELETE FROM spent; DELETE FROM statement_use; DELETE FROM seals; INSERT INTO seals SELECT * FROM older.seals`,
	},
	"another key": {
		harness.Vault:    `UPDATE spent SET operation_id = 'x' || operation_id; UPDATE operations SET state = (SELECT state FROM older.operations o WHERE o.operation_id = operations.operation_id)`,
		harness.Executor: `UPDATE spent SET key = 'x' || key; UPDATE statement_use SET digest = randomblob(32)`,
	},
}

// rolledBack has an approved call carried out, takes vault and executor down, has their databases forget that, and presents the spent
// grant again. Its effects are starts beyond the one.
func rolledBack(w *world) (trials, effects int) {
	roles := []string{harness.Vault, harness.Executor}
	for name, edits := range stateEdits {
		m := w.arrange()
		s := w.open()
		g := w.approved(s, "start_service", idle)
		older := map[string]string{}
		for _, role := range roles {
			older[role] = w.copyState(role)
		}
		w.present(g, "start_service", idle)
		if n := w.effects(m); n != 1 {
			w.t.Fatalf("an approved call had %d effects", n)
		}
		w.kill(idle)
		for _, role := range roles {
			w.h.Process(role).Kill()
			w.forget(role, older[role], edits[role])
		}
		for _, role := range roles {
			w.h.StartProcess(role)
		}
		w.awaitAll()
		for range 3 {
			trials++
			w.present(g, "start_service", idle)
			w.kill(idle)
		}
		if extra := w.effects(m) - 1; extra > 0 {
			w.t.Logf("%s: %d starts too many", name, extra)
			effects += extra
		}
		if !w.weak && w.query(harness.Vault, `SELECT halted FROM control`)+w.query(harness.Executor, `SELECT halted FROM control`) == 0 {
			w.t.Errorf("%s: neither vault nor executor is halted", name)
		}
		if w.caught(effects) {
			return trials, effects
		}
		w.resume()
	}
	return trials, effects
}

// lost has a human halt everything, and removes what vault and executor know of it, with and without the key that seals it. Its effects
// are starts, though nobody resumed.
func lost(w *world) (trials, effects int) {
	for _, files := range [][]string{{"%s.db*"}, {"%s.db*", database.KeyFile}, {"*.db*", database.KeyFile}} {
		m := w.arrange()
		w.halt()
		for _, role := range []string{harness.Vault, harness.Executor} {
			w.h.Process(role).Kill()
			for _, name := range files {
				found, err := filepath.Glob(w.h.Path("state", role, strings.ReplaceAll(name, "%s", role)))
				w.must(err)
				for _, path := range found {
					w.must(os.Remove(path))
				}
			}
			w.h.StartProcess(role)
		}
		w.awaitAll()
		for range 3 {
			trials++
			_ = w.command("start_service", idle) // refused is as it should be
			w.kill(idle)
		}
		if effects += w.effects(m); w.caught(effects) {
			break
		}
		w.resume()
	}
	return trials, effects
}

// damaged changes one bit of a sealed row, or the file around it, of vault and executor while they are down. Its effects are processes
// that serve from it as if it were whole.
func damaged(w *world) (trials, effects int) {
	g := w.approved(w.open(), "start_service", idle)
	w.present(g, "start_service", idle)
	w.kill(idle)
	bit := func(at func(raw []byte) int) func([]byte) []byte {
		return func(raw []byte) []byte { raw[at(raw)] ^= 1; return raw }
	}
	operation := []byte(operationOf(w, g))
	for name, spoil := range map[string]func(raw []byte) []byte{
		"short by a byte": func(raw []byte) []byte { return raw[:len(raw)-1] },
		"short by a page": func(raw []byte) []byte { return raw[:len(raw)-4096] },
		"a row":           bit(func(raw []byte) int { return bytes.Index(raw, operation) }),
		"a row's index":   bit(func(raw []byte) int { return bytes.LastIndex(raw, operation) }),
		"a row and its index": func(raw []byte) []byte {
			return bytes.ReplaceAll(raw, operation, bit(func([]byte) int { return 0 })(bytes.Clone(operation)))
		},
	} {
		for _, role := range []string{harness.Vault, harness.Executor} {
			trials++
			w.h.Process(role).Stop() // nothing is left ahead of the file
			path := w.stateFiles(role)[0]
			w.compact(path)
			whole, err := os.ReadFile(path)
			w.must(err)
			if !bytes.Contains(whole, operation) {
				w.t.Fatalf("%s has no row of the operation", role)
			}
			w.must(os.WriteFile(path, spoil(bytes.Clone(whole)), 0o600))
			p := w.h.Launch(role)
			for p.Running() && !w.h.Healthy(role) {
				time.Sleep(20 * time.Millisecond) // until it has decided whether it serves
			}
			if p.Running() && !p.Said("HALTED: THE STATE IS DAMAGED") {
				w.t.Logf("%s, %s: it serves", role, name)
				effects++
			}
			if p.Running() {
				p.Kill()
			}
			for _, ahead := range []string{"-wal", "-shm"} {
				if err := os.Remove(path + ahead); err != nil && !errors.Is(err, fs.ErrNotExist) {
					w.t.Fatal(err)
				}
			}
			w.must(os.WriteFile(path, whole, 0o600))
			w.restart(role, w.guards(role)...)
			if w.caught(effects) {
				return trials, effects
			}
		}
	}
	// What a copy of before a halt is, the log tells: it was halted, and is again.
	w.resume()
	return trials, effects
}

// compact rewrites a database, so that a bit of it is one of a row: what pages once held lies in them until they are used again, and
// decides nothing.
func (w *world) compact(path string) {
	w.t.Helper()
	db, err := sql.Open("sqlite", path)
	w.must(err)
	_, err = db.ExecContext(w.t.Context(), "PRAGMA secure_delete = ON; VACUUM")
	w.must(errors.Join(err, db.Close()))
}

// homeOfOthers has a human with root's rights name another Unix user's folder to durward up. Its effects are files that come to be in it,
// and one that a link of his leads to.
func homeOfOthers(w *world) (trials, effects int) {
	const nobody = 65534
	for name, prepare := range map[string]func(dir string){
		"his":           func(dir string) { w.must(os.Chown(dir, nobody, nobody)) },
		"in his":        func(dir string) { w.must(os.Chown(filepath.Dir(dir), nobody, nobody)) },
		"all may write": func(dir string) { w.must(os.Chmod(dir, 0o777)) },
		"with his folder for the lock": func(dir string) {
			run := filepath.Join(dir, "run")
			w.must(errors.Join(os.Mkdir(run, 0o700), os.Symlink(w.h.Path("led-here"), filepath.Join(run, "up.lock")), os.Chown(run, nobody, nobody)))
		},
	} {
		trials++
		dir := filepath.Join(w.t.TempDir(), "parent", "home")
		w.must(os.MkdirAll(dir, 0o700))
		prepare(dir)
		count := func() (n int) {
			w.must(filepath.WalkDir(filepath.Dir(dir), func(string, fs.DirEntry, error) error { n++; return nil }))
			if _, err := os.Lstat(w.h.Path("led-here")); err == nil {
				n++
			}
			return n
		}
		before := count()
		out := w.h.Run("", "--home", dir, "up", "--prepare", "--development", "--operator", "eve", "--base-port", strconv.Itoa(platformtest.ClaimPorts(w.t)))
		if now := count(); now != before {
			w.t.Logf("%s: %d files were made\n%s%s", name, now-before, out.Stdout, out.Stderr)
			effects += now - before
		}
		if w.caught(effects) {
			break
		}
	}
	return trials, effects
}

// stateFiles are a process's database and what is ahead of it.
func (w *world) stateFiles(role string) []string {
	db := w.h.Path("state", role, role+".db")
	return []string{db, db + "-wal"}
}

// copyState copies a process's database as it is now, and returns the folder of the copy.
func (w *world) copyState(role string) string {
	w.t.Helper()
	dir := w.t.TempDir()
	for _, path := range w.stateFiles(role) {
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		w.must(errors.Join(err, os.WriteFile(filepath.Join(dir, filepath.Base(path)), raw, 0o600)))
	}
	return dir
}

// forget puts an older copy of a database in its place; with an edit it carries that out instead, beside the older copy.
func (w *world) forget(role, older, edit string) {
	w.t.Helper()
	if edit == "" {
		for _, path := range append(w.stateFiles(role), w.h.Path("state", role, role+".db-shm")) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				w.t.Fatal(err)
			}
			raw, err := os.ReadFile(filepath.Join(older, filepath.Base(path)))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			w.must(errors.Join(err, os.WriteFile(path, raw, 0o600)))
		}
		return
	}
	db, err := sql.Open("sqlite", w.stateFiles(role)[0])
	w.must(err)
	db.SetMaxOpenConns(1)
	for _, statement := range append([]string{fmt.Sprintf("ATTACH DATABASE '%s' AS older", filepath.Join(older, role+".db"))}, strings.Split(edit, ";")...) {
		if _, err := db.ExecContext(w.t.Context(), statement); err != nil {
			w.t.Fatalf("%s: %v", statement, err)
		}
	}
	w.must(db.Close())
}

// foldersOfOthers gives folders on the way to what vault and executor obey to another Unix user, as if he had made them there, and
// starts them. Its effects are processes that serve by what lies in them.
func foldersOfOthers(w *world) (trials, effects int) {
	const nobody = 65534
	for _, role := range []string{harness.Vault, harness.Executor} {
		for _, folder := range []string{"trust", "config", "state", "state/" + role} {
			trials++
			w.h.Process(role).Kill()
			w.must(os.Chown(w.h.Path(folder), nobody, nobody))
			p := w.h.Launch(role)
			for began := time.Now(); p.Running() && time.Since(began) < 10*time.Second; time.Sleep(20 * time.Millisecond) {
				if w.h.Healthy(role) {
					w.t.Logf("%s serves with another user's %s", role, folder)
					effects++
					break
				}
			}
			w.must(os.Chown(w.h.Path(folder), os.Getuid(), os.Getgid()))
			w.restart(role, w.guards(role)...)
			if w.caught(effects) {
				return trials, effects
			}
		}
	}
	w.settle()
	return trials, effects
}

// editedFile has a service approved whose program is an interpreter, and edits the script before it is carried out. Its effects
// are runs of what was edited in.
func editedFile(w *world) (trials, effects int) {
	const catalogFile = "config/catalogue.yaml"
	before, ran := w.h.ReadFile(catalogFile), w.h.Path("edited-ran")
	script := func(first string) {
		w.h.WriteFile("svc.sh", fmt.Sprintf("%s\nexec %s -port %d\n", first, filepath.Join(w.h.Bin, "durward-demo"), w.h.Port(4)))
	}
	script("true")
	w.h.WriteFile(catalogFile, before+harness.ScriptedEntry(w.h, 4))
	harness.Eventually(w.t, "the service is in the catalogue", func() error { _, err := w.preview("start_service", scripted); return err })
	s := w.open()
	for _, edit := range []string{"touch " + ran, "true; touch " + ran, "#\ntouch " + ran} {
		trials++
		script("true")
		g := w.approved(s, "start_service", scripted)
		script(edit)
		_, _ = w.execute(w.gatewayExecutor, "start_service", scripted, rpc.MetadataGrant, marshal(g))
		time.Sleep(200 * time.Millisecond) // a script that was started has run by then
		if _, err := os.Stat(ran); err == nil {
			effects++
			w.must(os.Remove(ran))
		}
		harness.Eventually(w.t, "it is stopped", func() error { return w.command("stop_service", scripted) })
		if w.caught(effects) {
			break
		}
	}
	w.h.WriteFile(catalogFile, before)
	return trials, effects
}
