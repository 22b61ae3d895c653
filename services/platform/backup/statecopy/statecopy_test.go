package statecopy

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"filippo.io/age"

	"durward.internal/services/platform/backup"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/process"
)

const schema = "-- +goose Up\nCREATE TABLE control (epoch INTEGER); INSERT INTO control VALUES (7);\nCREATE TABLE pairs (a INTEGER, b INTEGER); INSERT INTO pairs VALUES (0, 0);\n"

func openAt(t *testing.T, folder string) *sql.DB {
	t.Helper()
	db, err := database.Open(t.Context(), database.Config{
		Path: filepath.Join(folder, "x.db"), StateDir: folder, Service: "x", Migrations: fstest.MapFS{"00001_x.sql": {Data: []byte(schema)}},
	})
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// part is of a service x, whose halt sets its epoch.
func part(folder string) Part {
	return Part{
		Service: "x", StateDir: folder, Databases: []string{"x.db"}, Files: []string{"x.key"}, Anew: []string{"spool.db"}, Ends: []string{"privacy"}, Control: "x.db",
		Halt: func(ctx context.Context, stage string, epoch uint64) error {
			db, err := sql.Open("sqlite", filepath.Join(stage, "x.db"))
			if err != nil {
				return err
			}
			_, err = db.ExecContext(ctx, `UPDATE control SET epoch = ?`, epoch)
			return errors.Join(err, db.Close())
		},
	}
}

func identity(t *testing.T) *age.X25519Identity {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	must(t, err)
	return id
}

func write(t *testing.T, p Part, to age.Recipient) []byte {
	t.Helper()
	var out bytes.Buffer
	must(t, p.Write(t.Context(), &out, []age.Recipient{to}))
	return out.Bytes()
}

func number(t *testing.T, folder, query string) int64 {
	t.Helper()
	n, err := database.Number(t.Context(), filepath.Join(folder, "x.db"), query)
	must(t, err)
	return n
}

// The copy is of one moment, whoever writes meanwhile; what is put back has an epoch above the copy's and the one that was there; keys of
// personal data are in no copy and are gone afterwards; what was there before is kept.
func TestCopyAndRestore(t *testing.T) {
	dir, key := t.TempDir(), identity(t)
	db, p := openAt(t, dir), part(dir)
	for name, content := range map[string]string{"x.key": "the key", "spool.db": "waits", "privacy/s.key": "personal", "other": "stays"} {
		must(t, errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700), os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for ctx.Err() == nil {
			err := database.Within(ctx, db, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `UPDATE pairs SET a = a + 1`)
				_, err2 := tx.ExecContext(ctx, `UPDATE pairs SET b = b + 1`)
				return errors.Join(err, err2)
			})
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	var copied []byte
	for range 5 {
		copied = write(t, p, key.Recipient())
	}
	cancel()
	writing.Wait()
	if bytes.Contains(copied, []byte("the key")) || bytes.Contains(copied, []byte("SQLite")) {
		t.Error("the part has the state in the clear")
	}
	head, err := backup.ReadHead(bufio.NewReaderSize(bytes.NewReader(copied), backup.MaxLine))
	if err != nil || head.Epoch != 7 || head.Service != "x" {
		t.Errorf("%+v, %v", head, err)
	}
	if _, err := db.ExecContext(t.Context(), `UPDATE control SET epoch = 40`); err != nil {
		t.Fatal(err)
	}
	must(t, db.Close())
	// A part that is judged alone changes nothing.
	must(t, p.Restore(t.Context(), bufio.NewReader(bytes.NewReader(copied)), backup.Given{Identities: []age.Identity{key}, Judge: true}, time.Now()))
	if n := number(t, dir, `SELECT epoch FROM control`); n != 40 || len(p.aside()) != 0 {
		t.Errorf("judged alone: the epoch is %d, aside %v", n, p.aside())
	}
	yearAgo := time.Now().AddDate(-1, 0, 0) // nothing goes by the clock
	must(t, p.Restore(t.Context(), bufio.NewReader(bytes.NewReader(copied)), backup.Given{Identities: []age.Identity{key}}, yearAgo))
	if n := number(t, dir, `SELECT epoch FROM control`); n != 40+backup.EpochJump {
		t.Errorf("the epoch is %d", n)
	}
	if n := number(t, dir, `SELECT a - b FROM pairs`); n != 0 {
		t.Error("the copy has half of a transaction")
	}
	for name, there := range map[string]bool{"x.key": true, "other": true, "spool.db": false, "privacy": false, process.Unfinished: false, stageFolder: false, copyFolder: false} {
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
	if kept, _ := filepath.Glob(filepath.Join(dir, asidePrefix+"*", "*.db")); len(kept) != 2 {
		t.Errorf("kept: %v", kept)
	}
	if kept, _ := filepath.Glob(filepath.Join(dir, asidePrefix+"*", "privacy*")); len(kept) != 0 {
		t.Errorf("keys of personal data are kept: %v", kept)
	}
}

// A key that comes while what it opens is copied may be the one that opens it: the copy is none, and is made again.
func TestAKeyComesMeanwhile(t *testing.T) {
	dir, key := t.TempDir(), identity(t)
	openAt(t, dir)
	p := part(dir)
	p.Databases, p.Files = append(p.Databases, "y.db"), []string{"x.key-next", "x.key"}
	must(t, os.WriteFile(filepath.Join(dir, "x.key"), []byte("the key"), 0o600))
	db, err := sql.Open("sqlite", filepath.Join(dir, "y.db")) // whose writer keeps who copies it waiting
	must(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, statement := range []string{"CREATE TABLE t (n)", "BEGIN EXCLUSIVE"} {
		_, err := db.ExecContext(t.Context(), statement)
		must(t, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Write(t.Context(), io.Discard, []age.Recipient{key.Recipient()}) }()
	for {
		if _, err := os.Lstat(filepath.Join(dir, copyFolder, "x.key")); err == nil {
			break
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "x.key-next"), []byte("the next"), 0o600))
	_, err = db.ExecContext(t.Context(), "COMMIT")
	must(t, err)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "x.key-next was replaced while the copy was made: try again") {
		t.Errorf("the copy: %v", err)
	}
}

// Backups at once take turns, and each is whole: the folder of a copy goes with the one that made it.
func TestBackupsAtOnce(t *testing.T) {
	dir, key := t.TempDir(), identity(t)
	_, p := openAt(t, dir), part(dir)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5 {
				var out bytes.Buffer
				if err := p.Write(t.Context(), &out, []age.Recipient{key.Recipient()}); err != nil && !strings.Contains(err.Error(), "another backup of it is being made") {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// Whatever is wrong with a part, the state stays as it is.
func TestRestoreRefuses(t *testing.T) {
	dir, key := t.TempDir(), identity(t)
	db := openAt(t, dir)
	p := part(dir)
	good := write(t, p, key.Recipient())
	must(t, db.Close())
	line := bytes.IndexByte(good, '\n') + 1
	for name, c := range map[string]struct {
		part []byte
		key  *age.X25519Identity
		p    func(*Part)
		want string
	}{
		"nothing":           {nil, key, nil, "no part of a backup"},
		"cut short":         {good[:len(good)-10], key, nil, "not written to its end"},
		"a bit":             {append(append(bytes.Clone(good[:len(good)-2000]), good[len(good)-2000]^1), good[len(good)-1999:]...), key, nil, "damaged"},
		"another key":       {good, identity(t), nil, "does not open this backup"},
		"another service's": {bytes.Replace(good, []byte(`"service":"x"`), []byte(`"service":"y"`), 1), key, nil, `the part is "y"'s`},
		"another format":    {append([]byte("{}\n"), good[line:]...), key, nil, "no part of a backup"},
		"unknown files":     {good, key, func(p *Part) { p.Databases = []string{"y.db"} }, "does not keep"},
		"a missing file":    {good, key, func(p *Part) { p.Databases = append(p.Databases, "y.db") }, "lacks y.db"},
		"a failing halt": {good, key, func(p *Part) {
			p.Halt = func(context.Context, string, uint64) error { return errors.New("the halt fails") }
		}, "the halt fails"},
		"elsewhere": {good, key, func(p *Part) { p.Elsewhere = "it is elsewhere" }, "it is elsewhere"},
	} {
		q := p
		if c.p != nil {
			c.p(&q)
		}
		err := q.Restore(t.Context(), bufio.NewReader(bytes.NewReader(c.part)), backup.Given{Identities: []age.Identity{c.key}}, time.Now())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if n := number(t, dir, `SELECT epoch FROM control`); n != 7 {
			t.Errorf("%s: the epoch is %d", name, n)
		}
	}
	unlock, err := process.LockState(dir)
	must(t, err)
	if err := p.Restore(t.Context(), bufio.NewReader(bytes.NewReader(good)), backup.Given{Identities: []age.Identity{key}}, time.Now()); err == nil || !strings.Contains(err.Error(), "another running process") {
		t.Errorf("a running process: %v", err)
	}
	must(t, unlock())
	// A restore that broke off in its last step: the process does not start, and another restore mends it, above the epoch that was put aside.
	aside := filepath.Join(dir, asidePrefix+"20260101T000000.000Z")
	must(t, errors.Join(os.Mkdir(aside, 0o700), os.WriteFile(filepath.Join(dir, process.Unfinished), nil, 0o600)))
	db = openAt(t, dir)
	if _, err := db.ExecContext(t.Context(), `UPDATE control SET epoch = 3000000`); err != nil {
		t.Fatal(err)
	}
	must(t, errors.Join(db.Close(), os.Rename(filepath.Join(dir, "x.db"), filepath.Join(aside, "x.db"))))
	if _, err := process.LockState(dir); err == nil || !strings.Contains(err.Error(), "run durward restore again") {
		t.Errorf("after a restore that broke off: %v", err)
	}
	must(t, p.Restore(t.Context(), bufio.NewReader(bytes.NewReader(good)), backup.Given{Identities: []age.Identity{key}}, time.Now()))
	if n := number(t, dir, `SELECT epoch FROM control`); n != 3_000_000+backup.EpochJump {
		t.Errorf("after a restore that broke off: the epoch is %d", n)
	}
	unlock, err = process.LockState(dir)
	must(t, err)
	if err := unlock(); err != nil {
		t.Error(err)
	}
}

// A full disk, at a backup and at a restore, is said in one sentence and leaves nothing behind.
func TestFullDisk(t *testing.T) {
	dir := platformtest.SmallDisk(t, 4<<20)
	if dir == "" {
		return
	}
	key := identity(t)
	db, p := openAt(t, dir), part(dir)
	good := write(t, p, key.Recipient())
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE large AS SELECT randomblob(1500000) AS b`); err != nil {
		t.Fatal(err)
	}
	platformtest.Fill(t, filepath.Join(dir, "ballast"))
	var out bytes.Buffer
	if err := p.Write(t.Context(), &out, []age.Recipient{key.Recipient()}); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("a backup: %v", err)
	}
	must(t, db.Close())
	if err := p.Restore(t.Context(), bufio.NewReader(bytes.NewReader(good)), backup.Given{Identities: []age.Identity{key}}, time.Now()); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("a restore: %v", err)
	}
	for _, name := range []string{copyFolder, stageFolder} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
}

// brokenPipe names, for this test's own program, the state folder to copy and the recipient.
const brokenPipe = "DURWARD_TEST_BROKEN_PIPE"

// Whoever reads a copy may break off, as where the disk is full that it goes to: nothing is left in the clear.
func TestWhoReadsBreaksOff(t *testing.T) {
	if asked := os.Getenv(brokenPipe); asked != "" {
		dir, recipient, _ := strings.Cut(asked, "=")
		_, err := (&Command{recipients: recipient}).Run(t.Context(), part(dir), nil, os.Stdout)
		if err == nil {
			t.Error("the copy was written")
		}
		return
	}
	dir := t.TempDir()
	db := openAt(t, dir)
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE large AS SELECT randomblob(1500000) AS b`); err != nil {
		t.Fatal(err)
	}
	self := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWhoReadsBreaksOff$")
	self.Env = append(os.Environ(), brokenPipe+"="+dir+"="+identity(t).Recipient().String())
	out, err := self.StdoutPipe()
	must(t, err)
	must(t, self.Start())
	_, readErr := io.ReadFull(out, make([]byte, 10))
	if err := errors.Join(readErr, out.Close()); err != nil {
		t.Error(err)
	}
	ended := self.Wait()
	if _, err := os.Lstat(filepath.Join(dir, copyFolder)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v, %v", copyFolder, err, ended)
	}
}

// What the operator's program writes before a part is what the program reads.
func TestPreface(t *testing.T) {
	key := identity(t)
	in := bufio.NewReaderSize(strings.NewReader(backup.Preface([]string{key.String()}, []byte("said"), []byte("signed"))+"rest"), backup.MaxLine)
	given, err := backup.ReadGiven(in)
	if err != nil || len(given.Identities) != 1 || string(given.Statement) != "said" || string(given.Signature) != "signed" {
		t.Errorf("%+v, %v", given, err)
	}
	if given.Judge {
		t.Error("it is judged alone")
	}
	if given, err = backup.ReadGiven(bufio.NewReader(strings.NewReader(backup.Judge + backup.Preface(nil, nil, nil)))); err != nil || !given.Judge {
		t.Errorf("to be judged alone: %+v, %v", given, err)
	}
	for _, bad := range []string{"", "identity x\n\n", "word x\n\n", "statement ?\n\n", fmt.Sprintf("identity %s\n", key)} {
		if _, err := backup.ReadGiven(bufio.NewReader(strings.NewReader(bad))); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
