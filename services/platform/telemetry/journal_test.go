package telemetry_test

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"durward.internal/services/platform/telemetry"
)

// stream is a file as systemd hands it out, and what JOURNAL_STREAM says of it.
func stream(t *testing.T) (file *os.File, name string) {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	t.Cleanup(func() { _ = file.Close() })
	var stat syscall.Stat_t
	must(t, syscall.Fstat(int(file.Fd()), &stat))
	return file, fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}

// TestJournal: each line has its level's priority, also where a value holds another's name; a line that is none of the logger's is an error.
func TestJournal(t *testing.T) {
	file, name := stream(t)
	t.Setenv("JOURNAL_STREAM", name)
	w := telemetry.Journal(file)
	logger, err := telemetry.NewLogger(w, "vault", "debug")
	must(t, err)
	logger.Debug("d")
	logger.Info(`{"level":"ERROR"}`, "level", "ERROR")
	logger.With("level", "DEBUG").Warn("w\n<7>{\"level\":\"INFO\"}")
	logger.Error("e")
	fmt.Fprintf(w, "vault: two\nproblems \"level\":\"INFO\"\n")
	text, err := os.ReadFile(file.Name())
	must(t, err)
	var got string
	for line := range strings.Lines(string(text)) {
		got += line[:3]
	}
	if want := "<7><6><4><3><3><3>"; got != want {
		t.Errorf("priorities %s, want %s:\n%s", got, want, text)
	}
}

// TestNoJournal: nothing is written before a line where nobody takes it away again.
func TestNoJournal(t *testing.T) {
	file, name := stream(t)
	other, _ := stream(t)
	for what, c := range map[string]struct {
		w      io.Writer
		stream string
	}{"no service": {file, ""}, "a child with a stream of its own": {other, name}, "no file": {&strings.Builder{}, name}} {
		t.Setenv("JOURNAL_STREAM", c.stream)
		if w := telemetry.Journal(c.w); w != c.w {
			t.Errorf("%s: it is taken for the journal", what)
		}
	}
}
