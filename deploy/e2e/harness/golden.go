package harness

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Dialogue runs durward at a pseudo-terminal of 120 columns and returns what its screen shows at the end. Each line of says is
// "waits TEXT", or "types TEXT", which ends with enter.
func (h *Host) Dialogue(says []string, args ...string) Output {
	h.t.Helper()
	must := func(err error) {
		h.t.Helper()
		if err != nil {
			h.t.Fatal(err)
		}
	}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	must(err)
	defer master.Close()
	must(unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(err)
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(err)
	must(unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120}))
	cmd := exec.CommandContext(h.t.Context(), filepath.Join(h.Bin, "durward"), append([]string{"--home", h.Dir}, args...)...)
	cmd.Env = append(h.Environment(), "TERM=xterm-256color")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(cmd.Start())
	must(slave.Close())
	var mu sync.Mutex
	var drawn bytes.Buffer
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			mu.Lock()
			drawn.Write(b[:n])
			mu.Unlock()
			if err != nil { // the last program at the terminal ended
				_ = cmd.Wait()
				return
			}
		}
	}()
	text := func() string {
		mu.Lock()
		defer mu.Unlock()
		return drawn.String()
	}
	seen := 0
	for _, line := range says {
		verb, what, _ := strings.Cut(line, " ")
		switch verb {
		case "waits":
			Eventually(h.t, fmt.Sprintf("durward %s shows %q", strings.Join(args, " "), what), func() error {
				all := text()
				at := strings.Index(all[seen:], what)
				if at < 0 {
					return fmt.Errorf("it shows %q", all[seen:])
				}
				seen += at + len(what)
				return nil
			})
		case "types":
			_, err := master.WriteString(what + "\n")
			must(err)
		default:
			h.t.Fatalf("unknown verb %q", verb)
		}
	}
	select {
	case <-ended:
	case <-time.After(Patience):
		_ = cmd.Process.Kill()
		h.t.Fatalf("durward %s does not end:\n%s", strings.Join(args, " "), text())
	}
	return Output{Stdout: strings.ReplaceAll(text(), "\r\n", "\n"), Code: cmd.ProcessState.ExitCode()}
}
