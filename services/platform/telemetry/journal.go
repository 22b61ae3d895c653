package telemetry

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"syscall"
)

// Journal returns what writes lines to systemd's journal with their priorities, as sd-daemon(3) has them, where w is the stream that
// systemd connected to it; elsewhere it returns w. NewLogger's lines have the priority of their level. Any other line says why
// a program did not start, and is an error.
func Journal(w io.Writer) io.Writer {
	file, ok := w.(*os.File)
	if !ok {
		return w
	}
	info, err := file.Stat()
	if err != nil {
		return w
	}
	// A child inherits the variable, and often not the stream.
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Getenv("JOURNAL_STREAM") != fmt.Sprintf("%d:%d", stat.Dev, stat.Ino) {
		return w
	}
	return journal{w}
}

type journal struct{ w io.Writer }

// Write writes whole lines.
func (j journal) Write(text []byte) (int, error) {
	var out []byte
	for line := range bytes.Lines(text) {
		out = append(append(out, priority(line)...), line...)
	}
	if _, err := j.w.Write(out); err != nil {
		return 0, err
	}
	return len(text), nil
}

// priority looks for the level where slog's JSON has it: behind the time, before anything that somebody chose.
func priority(line []byte) string {
	_, rest, _ := bytes.Cut(line, []byte(`"level":"`))
	level, _, _ := bytes.Cut(rest, []byte(`"`))
	if !bytes.HasPrefix(line, []byte("{")) {
		return "<3>"
	}
	switch string(level) {
	case "DEBUG":
		return "<7>"
	case "INFO":
		return "<6>"
	case "WARN":
		return "<4>"
	}
	return "<3>"
}
