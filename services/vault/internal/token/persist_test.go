package token

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/reference"
	"durward.internal/services/vault/internal/store"
)

const session1, session2 = "s-aaaaaaaaaaaaaaaaaaaaaaaaaa", "s-bbbbbbbbbbbbbbbbbbbbbbbbbb"

// disk is a vault's state folder, and a clock.
type disk struct {
	t   *testing.T
	dir string
	now time.Time
}

// run lets one process of a vault run on the disk.
func (d *disk) run(f func(v *Values)) {
	d.t.Helper()
	state, err := store.Open(d.t.Context(), d.dir, nil)
	must(d.t, err)
	v := personal(d.t, func(c *Config) {
		c.Store, c.Dir = state, filepath.Join(d.dir, Folder)
		c.Now = func() time.Time { return d.now }
		c.Owner = func(session string) string { return "claude" }
	})
	f(v)
	must(d.t, state.Close())
}

// holds counts the files of the disk that have the text in them.
func (d *disk) holds(text string) (n int) {
	d.t.Helper()
	err := filepath.WalkDir(d.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if bytes.Contains(raw, []byte(text)) {
			n++
		}
		return err
	})
	must(d.t, err)
	return n
}

// copy writes the files of the disk to another, as private as they are.
func (d *disk) copy(to *disk) {
	d.t.Helper()
	err := filepath.WalkDir(d.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.Join(to.dir, strings.TrimPrefix(path, d.dir))
		if entry.IsDir() {
			return os.MkdirAll(name, 0o700)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(name, raw, 0o600)
	})
	must(d.t, err)
}

func idOf(t *testing.T, text string) reference.ID {
	t.Helper()
	r, err := reference.Parse(references.FindString(text))
	must(t, err)
	return r.ID
}

func all(string) bool  { return true }
func none(string) bool { return false }

// TestWhatAnEarlyEndHeldOutlivesTheProcess: a request that ended while its texts were looked through leaves no value that is held in
// memory alone.
func TestWhatAnEarlyEndHeldOutlivesTheProcess(t *testing.T) {
	d := &disk{t, t.TempDir(), time.Now()}
	var refs []string
	d.run(func(v *Values) {
		for n := range 40 {
			ctx := &endsAfter{t.Context(), n}
			texts := []string{fmt.Sprintf("mail a%d@example.org", n), fmt.Sprintf("mail b%d@example.org", n)}
			_, err := v.Tokenise(ctx, session1, OriginSink, texts)
			if n == 0 && err == nil {
				t.Fatal("no request ends early, so that nothing is proved")
			}
			refs = append(refs, tokenise(t, v, session1, texts...)...)
		}
	})
	d.run(func(v *Values) {
		for i, ref := range refs {
			if _, ok := v.Value(t.Context(), session1, idOf(t, ref)); !ok {
				t.Errorf("after %d looks: %s stands for nothing", i/2, ref)
			}
		}
	})
}

func TestValuesOutliveTheProcessWithinTheirSession(t *testing.T) {
	d := &disk{t, t.TempDir(), time.Now()}
	var was string
	d.run(func(v *Values) { was = tokenise(t, v, session1, "mail "+mail+", password=s3cr3t-value")[0] })
	if n := d.holds("maria.gonzalez") + d.holds("s3cr3t"); n != 0 {
		t.Errorf("the values are in %d files", n)
	}
	d.run(func(v *Values) {
		v.Forget(t.Context(), none)
		if got := tokenise(t, v, session1, was, "mail "+mail+", s3cr3t-value"); got[0] != was || got[1] != strings.Replace(was, "password=", "", 1) {
			t.Errorf("%q became %q", was, got)
		}
		if held, ok := v.Value(t.Context(), session1, idOf(t, was)); !ok || held.Text != mail {
			t.Errorf("it stands for %+v, %t", held, ok)
		}
		v.Forget(t.Context(), none) // the session itself ended with the process; its gateway may come back for it
		for name, c := range map[string]struct{ from, by string }{
			"another client": {session1, "cursor"}, "nobody": {session1, ""}, "no session": {session2, "claude"}, "no name": {"../../x", "claude"},
		} {
			if ok, err := v.Adopt(t.Context(), c.from, session2, c.by); ok || err != nil {
				t.Errorf("%s takes it up: %v", name, err)
			}
		}
		if ok, err := v.Adopt(t.Context(), session1, session2, "claude"); !ok || err != nil {
			t.Fatalf("it is not taken up: %v", err)
		}
		if held, ok := v.Value(t.Context(), session2, idOf(t, was)); !ok || held.Text != mail {
			t.Errorf("taken up it stands for %+v, %t", held, ok)
		}
		if _, ok := v.Value(t.Context(), session1, idOf(t, was)); ok {
			t.Error("the session before holds it still")
		}
		if ok, _ := v.Adopt(t.Context(), session2, session1, "claude"); ok {
			t.Error("a session of this process is taken up")
		}
	})
}

// A process that ends while it gives what a session held to another leaves it to the session before: its gateway comes back for it.
func TestWhatWasNotTakenUpWhollyStays(t *testing.T) {
	d := &disk{t, t.TempDir(), time.Now()}
	const session3 = "s-cccccccccccccccccccccccccc"
	var was string
	d.run(func(v *Values) { was = tokenise(t, v, session1, "mail "+mail)[0] })
	d.run(func(v *Values) {
		if err := os.Mkdir(filepath.Join(d.dir, Folder, session2+".key"), 0o700); err != nil { // the key cannot be moved
			t.Fatal(err)
		}
		if ok, err := v.Adopt(t.Context(), session1, session2, "claude"); ok || err == nil {
			t.Fatalf("it is taken up: %v", err)
		}
	})
	d.run(func(v *Values) {
		if ok, err := v.Adopt(t.Context(), session1, session3, "claude"); !ok || err != nil {
			t.Fatalf("it is not taken up: %v", err)
		}
		if held, ok := v.Value(t.Context(), session3, idOf(t, was)); !ok || held.Text != mail {
			t.Errorf("it stands for %+v, %t", held, ok)
		}
		if rows, err := v.cfg.Store.Tokens(t.Context(), session1); err != nil || len(rows) != 0 {
			t.Errorf("the session before has %d rows left, %v", len(rows), err)
		}
	})
}

// Once a session has ended, what its bytes on the disk were opens for nobody, whoever copied the database before.
func TestTheKeyIsDestroyed(t *testing.T) {
	d := &disk{t, t.TempDir(), time.Now()}
	var was string
	d.run(func(v *Values) { was = tokenise(t, v, session1, "mail "+mail)[0] })
	copied, whole := &disk{t, t.TempDir(), d.now}, &disk{t, t.TempDir(), d.now}
	for _, to := range []*disk{copied, whole} {
		d.copy(to)
	}
	key := filepath.Join(Folder, session1+".key")
	d.run(func(v *Values) {
		if ok, err := v.Adopt(t.Context(), session1, session2, "claude"); !ok || err != nil {
			t.Fatal(ok, err)
		}
		file, err := os.Open(filepath.Join(d.dir, Folder, session2+".key"))
		must(t, err)
		defer file.Close()
		v.Forget(t.Context(), none)
		left := make([]byte, fileSize+1)
		if n, err := file.Read(left); n != fileSize || err != nil || !bytes.Equal(left[:n], make([]byte, fileSize)) {
			t.Errorf("of the removed key are left %x, %v", left[:n], err)
		}
		if _, ok := v.Value(t.Context(), session2, idOf(t, was)); ok {
			t.Error("it stands for something after the end")
		}
	})
	if files, err := os.ReadDir(filepath.Join(d.dir, Folder)); err != nil || len(files) != 0 {
		t.Errorf("keys are left: %v, %v", files, err)
	}
	// The database as it was, with what the folder of keys is now.
	must(t, os.Remove(filepath.Join(copied.dir, key)))
	opens := func(d *disk) (ok bool) {
		d.run(func(v *Values) {
			_, ok = v.Value(t.Context(), session1, idOf(t, was))
			rows, err := v.cfg.Store.Tokens(t.Context(), session1)
			if err != nil || len(rows) != 1 {
				t.Fatalf("%d rows, %v", len(rows), err)
			}
		})
		return ok
	}
	if opens(copied) {
		t.Error("an old copy of the database opens without the key")
	}
	if !opens(whole) {
		t.Error("a copy of everything does not open: this test proves nothing")
	}
}

func TestWhatNobodyComesBackForIsDestroyed(t *testing.T) {
	d := &disk{t, t.TempDir(), time.Now()}
	d.run(func(v *Values) { tokenise(t, v, session1, "mail "+mail) })
	d.run(func(v *Values) {
		for _, c := range []struct {
			after time.Duration
			want  int
		}{{0, 1}, {restTime - time.Second, 1}, {time.Second, 0}} {
			d.now = d.now.Add(c.after)
			must(t, v.Reclaim(t.Context()))
			if list, err := v.keys().list(); err != nil || len(list) != c.want {
				t.Errorf("after %s there are %d keys, %v", c.after, len(list), err)
			}
		}
		// In use, a day is the end, whether the machine was awake or not.
		tokenise(t, v, session2, "mail "+mail)
		d.now = platformtest.Suspended(d.now.Add(time.Hour), lifeTime-time.Hour-time.Second)
		v.Forget(t.Context(), all)
		if len(v.Sessions()) != 1 {
			t.Error("it ended early")
		}
		d.now = d.now.Add(time.Second)
		v.Forget(t.Context(), all)
		if stored, err := v.cfg.Store.TokenSessions(t.Context()); err != nil || len(stored)+len(v.Sessions()) != 0 {
			t.Errorf("after a day %v are left, %v", stored, err)
		}
	})
}

// A session whose texts are looked through ends a little later, and nobody waits for it: neither other sessions nor who puts away what ended.
func TestASessionAtWorkHoldsUpNobody(t *testing.T) {
	v := personal(t)
	for _, session := range []string{session1, session2} {
		tokenise(t, v, session, "mail "+mail)
	}
	working := v.holding(t.Context(), session1)
	working.mu.Lock()
	v.Forget(t.Context(), none)
	if _, left := v.sessions[session1]; !left || len(v.sessions) != 1 {
		t.Errorf("%d sessions are left, that at work among them: %t", len(v.sessions), left)
	}
	tokenise(t, v, session2, "mail "+mail)
	working.mu.Unlock()
	v.Forget(t.Context(), none)
	if held := v.Sessions(); len(held) != 0 {
		t.Errorf("afterwards %v are left", held)
	}
}

// TestAValueOfAnotherForm, under the right key, is none.
func TestAValueOfAnotherForm(t *testing.T) {
	h := newHolding()
	ref := reference.ID{}.String()
	for plain, whole := range map[string]bool{"sink\x00PII\x00EMAIL\x00" + mail: true, "sink\x00PII\x00" + mail: false, "": false} {
		held, err := open(h.aead(), store.Token{Ref: ref, Value: h.aead().Seal(nil, nil, []byte(plain), []byte(ref))})
		if (err == nil) != whole || whole && held.Text != mail {
			t.Errorf("%q: %+v, %v", plain, held, err)
		}
	}
}

// TestAKeyIsAFileOfItsSession: no name leads out of the keys' folder, and a file that was cut short is no key.
func TestAKeyIsAFileOfItsSession(t *testing.T) {
	dir := filepath.Join(t.TempDir(), Folder)
	k := keys{dir}
	must(t, k.write(session1, sessionKey{born: time.Now()}))
	raw, err := os.ReadFile(filepath.Join(dir, session1+".key"))
	must(t, err)
	if _, err := k.read(session1); err != nil {
		t.Fatalf("%v: nothing is proved", err)
	}
	for name, content := range map[string][]byte{"../" + session1: raw, session2: raw[:len(raw)-1], session2 + "x": raw, "": raw} {
		must(t, os.WriteFile(filepath.Join(dir, name+".key"), content, 0o600))
		if _, err := k.read(name); err == nil {
			t.Errorf("%q has a key of %d bytes", name, len(content))
		}
	}
}

// TestKeyOnAFullDisk: of a key that does not fit nothing is left, so that the next try makes it once there is room.
func TestKeyOnAFullDisk(t *testing.T) {
	dir := platformtest.SmallDisk(t, 64<<10)
	if dir == "" {
		return
	}
	k, ballast := keys{dir}, filepath.Join(dir, "ballast")
	platformtest.Fill(t, ballast)
	if err := k.write(session1, sessionKey{born: time.Now()}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
	must(t, os.Remove(ballast))
	must(t, k.write(session1, sessionKey{born: time.Now()}))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
