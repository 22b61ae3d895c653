package sandbox

import (
	"bufio"
	"errors"
	"io"
	"os/exec"
	"testing"
)

// BenchmarkStart is how long a program takes from nothing to its first answer and its end: in the sandbox, within its filter and its control
// group, and by fork and exec alone.
func BenchmarkStart(b *testing.B) {
	const program = "/bin/cat"
	l, server := local(b, nil), pinned(b, program)
	answer := func(in io.WriteCloser, out io.Reader) {
		_, err := io.WriteString(in, "a line\n")
		if err == nil {
			_, err = bufio.NewReader(out).ReadString('\n')
		}
		if err = errors.Join(err, in.Close()); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("sandbox", func(b *testing.B) {
		for b.Loop() {
			p, err := l.Start(b.Context(), Start{Server: server, User: "bench"})
			if err != nil {
				b.Fatal(err)
			}
			answer(p.Stdin, p.Stdout)
			if err := p.Wait(); err != nil {
				b.Fatal(err)
			}
			_, _ = p.Stdout.Close(), p.Stderr.Close()
		}
	})
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			cmd := exec.Command(program)
			in, err := cmd.StdinPipe()
			if err != nil {
				b.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			answer(in, out)
			if err := cmd.Wait(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
