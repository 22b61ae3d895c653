package backupfile

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"durward.internal/services/platform/backup"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/platformtest/testfile"
)

func keys(t *testing.T) (note.Signer, note.Verifier) {
	t.Helper()
	secret, public, err := note.GenerateKey(rand.Reader, "durward.local/audit/main")
	must(t, err)
	signer, err := note.NewSigner(secret)
	must(t, err)
	verifier, err := note.NewVerifier(public)
	must(t, err)
	return signer, verifier
}

// part writes what a program writes.
func part(service string) func(io.Writer) error {
	return func(out io.Writer) error {
		_, err := fmt.Fprintf(out, "{\"format\":%q,\"service\":%q,\"epoch\":3,\"size\":9}\n%s", backup.Format, service, strings.Repeat(service+" sealed ", 1000))
		return err
	}
}

func TestOpenRefuses(t *testing.T) {
	signer, verifier := keys(t)
	stranger, _ := keys(t)
	path := filepath.Join(t.TempDir(), "backup")
	w, err := Create(path, "1", time.Unix(1_700_000_000, 0))
	must(t, err)
	for _, service := range []string{"vault", "audit"} {
		must(t, w.Add(service, part(service)))
	}
	if err := w.Add("egress", part("executor")); err == nil {
		t.Error("another service's part was taken")
	}
	if _, err := w.Finish(signer); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	if _, err := Create(path, "1", time.Now()); err == nil {
		t.Error("a file was begun over another")
	}
	f, err := Open(path, []note.Verifier{verifier})
	must(t, err)
	if f.Epoch() != 3 || f.Log().Size != 9 || !f.Has("vault") || f.Has("egress") {
		t.Errorf("%+v", f.List)
	}
	must(t, f.Close())
	whole := testfile.Read(t, path)
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"nothing":    {nil, "not written to its end"},
		"cut short":  {whole[:len(whole)-1], "not written to its end"},
		"a part":     {bytes.Replace(whole, []byte("vault sealed"), []byte("vault seal3d"), 1), "is not the one that was made"},
		"the list":   {bytes.Replace(whole, []byte(`"epoch":3,"size":9},"bytes"`), []byte(`"epoch":4,"size":9},"bytes"`), 1), "list"},
		"one swap":   {bytes.ReplaceAll(whole, []byte("vault.part"), []byte("v4ult.part")), "the part of vault is missing"},
		"no list":    {bytes.ReplaceAll(whole, []byte(listName), []byte("parts.siqned")), "no list"},
		"a log head": {[]byte("durward.local/audit/main\n9\n"), "not written to its end"},
	} {
		altered := filepath.Join(t.TempDir(), "altered")
		testfile.Write(t, altered, c.file)
		if _, err := Open(altered, []note.Verifier{verifier}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w, err = Create(path+"2", "1", time.Now())
	must(t, err)
	must(t, w.Add("audit", part("audit")))
	if _, err := w.Finish(stranger); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path+"2", []note.Verifier{verifier}); err == nil || !strings.Contains(err.Error(), "not signed by a key") {
		t.Errorf("somebody else's list: %v", err)
	}
}

// TestPartIsTheOneThatWasVerified: a file that is another after it was opened gives nobody the end of a part that was not listed.
func TestPartIsTheOneThatWasVerified(t *testing.T) {
	signer, verifier := keys(t)
	path := filepath.Join(t.TempDir(), "backup")
	w, err := Create(path, "1", time.Now())
	must(t, err)
	for service, lines := range map[string]int{"vault": 1, "executor": 100_000} {
		must(t, w.Add(service, func(out io.Writer) error {
			return errors.Join(part(service)(out), func() error { _, err := io.WriteString(out, strings.Repeat("sealed\n", lines)); return err }())
		}))
	}
	_, err = w.Finish(signer)
	must(t, err)
	f, err := Open(path, []note.Verifier{verifier})
	must(t, err)
	defer f.Close()
	for _, p := range f.Parts {
		in, err := f.Part(p.Head.Service)
		must(t, err)
		if whole, err := io.ReadAll(in); err != nil || int64(len(whole)) != p.Bytes {
			t.Errorf("%s: %d bytes, %v", p.Head.Service, len(whole), err)
		}
		must(t, in.Close())
	}
	whole := testfile.Read(t, path)
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	defer file.Close()
	for _, p := range f.Parts {
		at := bytes.Index(whole, []byte(p.Head.Service+" sealed "))
		_, err := file.WriteAt([]byte("X"), int64(at))
		must(t, err)
		in, err := f.Part(p.Head.Service)
		must(t, err)
		given, err := io.ReadAll(in)
		if most := max(p.Bytes-keptBack, 0); err == nil || !strings.Contains(err.Error(), "is not the one that was made") || int64(len(given)) > most {
			t.Errorf("%s: %d bytes of %d were given, at most %d should be: %v", p.Head.Service, len(given), p.Bytes, most, err)
		}
		must(t, in.Close())
	}
	if _, err := f.Part("egress"); err == nil {
		t.Error("a part that is not there")
	}
}

// What is no backup of such a name stays, whatever it is called.
func TestKeep(t *testing.T) {
	dir, at := t.TempDir(), time.Date(2026, 1, 31, 3, 0, 0, 0, time.UTC)
	var ours []string
	for n := range 4 {
		ours = append(ours, Name(at.AddDate(0, 0, n)))
	}
	others := []string{"durward-20200101T030000Z.backup.age", "durward-2020-01-01", "durward-20209901T030000Z.backup", "notes"}
	for _, name := range append(others, ours...) {
		testfile.Write(t, filepath.Join(dir, name), "")
	}
	folder := Name(at.AddDate(-1, 0, 0))
	must(t, os.Mkdir(filepath.Join(dir, folder), 0o700))
	for _, c := range []struct {
		made string
		n    int
		want []string
	}{
		{ours[3], 9, nil}, {ours[3], 4, nil}, {ours[3], 3, ours[:1]}, {ours[3], 3, nil},
		{ours[1], 2, ours[2:3]}, {ours[1], 1, ours[3:]}, // the clock was set back meanwhile
	} {
		if removed, err := Keep(filepath.Join(dir, c.made), c.n); err != nil || !slices.Equal(removed, c.want) {
			t.Errorf("keep %d with %s: %v, %v", c.n, c.made, removed, err)
		}
	}
	for _, name := range append(others, folder, ours[1]) {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// TestFullDestination: where the disk is full that a backup is written to, that is the reason, and not the broken pipe of the program that
// writes the part; nothing is left there.
func TestFullDestination(t *testing.T) {
	disk := platformtest.SmallDisk(t, 1<<20)
	if disk == "" {
		return
	}
	signer, _ := keys(t)
	program := func(bytes string) func(io.Writer) error {
		return func(out io.Writer) error {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\n' "$1"; exec head -c "$2" /dev/zero`, "-",
				fmt.Sprintf("{\"format\":%q,\"service\":\"audit\",\"epoch\":3,\"size\":9}", backup.Format), bytes)
			cmd.Stdout = out
			return cmd.Run()
		}
	}
	begin := func(name string) *Writer {
		t.Helper()
		w, err := Create(filepath.Join(disk, name), "1", time.Now())
		must(t, err)
		return w
	}
	left := func(want ...string) {
		t.Helper()
		entries, err := os.ReadDir(disk)
		if err != nil || len(entries) != len(want) || len(want) > 0 && entries[0].Name() != want[0] {
			t.Errorf("on the disk are %v, %v", entries, err)
		}
	}
	w := begin("large")
	if err := w.Add("audit", program("4000000")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a part without room: %v", err)
	}
	w.Abort()
	left()
	w = begin("control")
	must(t, w.Add("audit", program("1000")))
	if _, err := w.Finish(signer); err != nil {
		t.Fatalf("control: %v", err)
	}
	left("control")
	w = begin("late") // its part is in memory still
	must(t, w.Add("audit", program("1000")))
	ballast := filepath.Join(disk, "ballast")
	platformtest.Fill(t, ballast)
	if _, err := w.Finish(signer); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a list without room: %v", err)
	}
	must(t, os.Remove(ballast))
	left("control")
}

// TestNoLinks: a file system without hard links holds backups too, and none is written over a file that came meanwhile.
func TestNoLinks(t *testing.T) {
	signer, _ := keys(t)
	link = func(string, string) error { return &os.LinkError{Op: "link", Err: syscall.EPERM} }
	defer func() { link = os.Link }()
	folder := t.TempDir()
	for _, came := range []bool{false, true} {
		path := filepath.Join(folder, fmt.Sprint(came))
		w, err := Create(path, "1", time.Now())
		must(t, err)
		if came {
			must(t, os.WriteFile(path, []byte("mine"), 0o600))
		}
		if _, err := w.Finish(signer); errors.Is(err, fs.ErrExist) != came || err != nil && !came {
			t.Errorf("somebody's is there: %v: %v", came, err)
		}
		if raw, err := os.ReadFile(path); err != nil || (string(raw) == "mine") != came || len(raw) == 0 {
			t.Errorf("it holds %d bytes, %v", len(raw), err)
		}
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != 2 {
		t.Errorf("in the folder are %v, %v", entries, err)
	}
}

// TestLeft: what a program that was killed left unfinished goes with the next backup, and nothing else does.
func TestLeft(t *testing.T) {
	folder := t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	running, err := Create(at("first"), "1", time.Now())
	must(t, err)
	killed, err := Create(at("second"), "1", time.Now())
	must(t, err)
	left := killed.file.Name()
	if err := errors.Join(killed.file.Close(), // as the kernel does
		os.WriteFile(at(unfinished+"notes"), nil, 0o600), os.WriteFile(at(".first.123"), nil, 0o600),
		os.Symlink("first", at(unfinished+"7")), os.Mkdir(at(unfinished+"8"), 0o700), syscall.Mkfifo(at(unfinished+"9"), 0o600)); err != nil {
		t.Fatal(err)
	}
	third, err := Create(at("third"), "1", time.Now())
	must(t, err)
	defer third.Abort()
	if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was left is still there: %v", err)
	}
	for _, path := range []string{running.file.Name(), third.file.Name(), at(unfinished + "notes"), at(".first.123"), at(unfinished + "7"), at(unfinished + "8"), at(unfinished + "9")} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("it was removed: %v", err)
		}
	}
	signer, _ := keys(t)
	if _, err := running.Finish(signer); err != nil {
		t.Errorf("one that was still written: %v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
