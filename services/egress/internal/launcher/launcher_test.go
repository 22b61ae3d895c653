package launcher

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"durward.internal/services/egress/internal/sandbox"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/rpc"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// serve serves a launcher of plain processes, whose servers are scripts, and returns a client, where its socket is, and how it is ended.
func serve(t *testing.T, scripts map[string]string, wrap func(sandbox.Launcher) sandbox.Launcher) (Client, func()) {
	t.Helper()
	shell := testfile.Read(t, "/bin/sh")
	local, err := sandbox.NewLocal(sandbox.Config{State: filepath.Join(t.TempDir(), "state"), Development: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := rpc.Listen("unix:"+socket, false)
	if err != nil {
		t.Fatal(err)
	}
	var started sandbox.Launcher = local
	if wrap != nil {
		started = wrap(local)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, listener, Config{Sandbox: started, Logger: quiet, Pinned: func(id string) (*downstream.Pinned, error) {
			script, known := scripts[id]
			if !known {
				return nil, errors.New("there is no such server")
			}
			return &downstream.Pinned{ProgramDigest: sha256.Sum256(shell), Entry: downstream.Entry{
				ID: id, Program: &downstream.Program{Path: "/bin/sh", Args: []string{"-c", script}}, Shared: id == "shared",
				Sandbox: downstream.Sandbox{None: true, MemoryMiB: 256, CPU: 1, Processes: 32},
			}}, nil
		}})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		local.Close()
	})
	return Client{Address: fmt.Sprintf("unix:%s,user=%d", socket, os.Getuid())}, cancel
}

func named(id string) sandbox.Start {
	return sandbox.Start{Server: &downstream.Pinned{Entry: downstream.Entry{ID: id, Program: &downstream.Program{Path: "/bin/false"}}}, User: "ann"}
}

func TestChild(t *testing.T) {
	c, _ := serve(t, map[string]string{"demo": `read line; echo "$line $VALUE"; echo said >&2; read line; exit 3`}, nil)
	s := named("demo")
	s.Env = map[string]string{"VALUE": "of env"}
	p, err := c.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(p.Stdin, "hello")
	out, errs := bufio.NewReader(p.Stdout), bufio.NewReader(p.Stderr)
	first, _ := out.ReadString('\n')
	second, _ := errs.ReadString('\n')
	if first != "hello of env\n" || second != "said\n" {
		t.Errorf("%q, %q", first, second)
	}
	_ = p.Stdin.Close()
	if _, err := out.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("its end: %v", err)
	}
	if err := p.Wait(); err == nil || err.Error() != "exit status 3" {
		t.Errorf("it ends with %v", err)
	}
	p.Kill() // nothing is left to kill
	if err := p.Freeze(true); err != nil {
		t.Error(err)
	}
}

// What the launcher does not know it does not start, and it says why.
func TestRefused(t *testing.T) {
	c, _ := serve(t, map[string]string{"demo": "sleep 60"}, nil)
	if _, err := c.Start(t.Context(), named("other")); err == nil || err.Error() != "there is no such server" {
		t.Errorf("an unknown server: %v", err)
	}
	p, err := c.Start(t.Context(), named("demo"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Start(t.Context(), named("demo")); err == nil || !strings.Contains(err.Error(), "it runs already") {
		t.Errorf("a second instance: %v", err)
	}
	p.Kill()
	if err := p.Wait(); err == nil {
		t.Error("killed, and well")
	}
	if _, err := (Client{Address: c.Address + "1"}).Start(t.Context(), named("demo")); err == nil {
		t.Error("another user is taken for the launcher")
	}
}

// held starts a child that says its number, and returns it.
func held(t *testing.T, c Client, id string) (p *sandbox.Process, pid int, lines *bufio.Reader) {
	t.Helper()
	p, err := c.Start(t.Context(), named(id))
	if err != nil {
		t.Fatal(err)
	}
	lines = bufio.NewReader(p.Stdout)
	line, _ := lines.ReadString('\n')
	if _, err := fmt.Sscan(line, &pid); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return p, pid, lines
}

const ticks = `echo $$; while :; do echo tick; sleep 0.01; done`

func TestFreeze(t *testing.T) {
	c, _ := serve(t, map[string]string{"demo": ticks}, nil)
	p, pid, lines := held(t, c, "demo")
	state := func() string {
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, _ := strings.Cut(string(raw), ") ")
		return rest[:min(1, len(rest))]
	}
	for range 2 {
		if err := p.Freeze(true); err != nil || state() != "T" && state() != "D" {
			t.Errorf("frozen: %v, it is %s", err, state())
		}
		if err := p.Freeze(false); err != nil || state() == "T" {
			t.Errorf("thawed: %v, it is %s", err, state())
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Error(err)
		}
	}
	if err := p.Freeze(true); err != nil {
		t.Error(err)
	}
	p.Kill()
	_ = p.Wait() // it was killed
}

// A child ends with egress' end of the connection, and with the launcher.
func TestEnds(t *testing.T) {
	for name, end := range map[string]func(p *sandbox.Process, stop func()){
		"egress ends":       func(p *sandbox.Process, _ func()) { _ = p.Control.(*remote).conn.Close() },
		"the launcher ends": func(_ *sandbox.Process, stop func()) { stop() },
	} {
		c, stop := serve(t, map[string]string{"demo": ticks}, nil)
		p, _, lines := held(t, c, "demo")
		end(p, stop)
		if err := p.Wait(); err == nil {
			t.Errorf("%s: the child ended well", name)
		}
		// Each of its processes holds its output until it is gone.
		if _, err := io.Copy(io.Discard, lines); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// networking gives each child a socket.
type networking struct {
	sandbox.Launcher

	folder string
	users  chan string
}

func (n networking) Start(ctx context.Context, s sandbox.Start) (*sandbox.Process, error) {
	n.users <- s.User
	p, err := n.Launcher.Start(ctx, s)
	if err == nil {
		p.Proxy, err = net.Listen("unix", filepath.Join(n.folder, "proxy"))
		if l, ok := p.Proxy.(*net.UnixListener); ok {
			l.SetUnlinkOnClose(false)
		}
	}
	return p, err
}

// A child's socket is handed over, and one that is shared has no user.
func TestSocket(t *testing.T) {
	folder, users := t.TempDir(), make(chan string, 1)
	c, _ := serve(t, map[string]string{"shared": ticks}, func(l sandbox.Launcher) sandbox.Launcher { return networking{l, folder, users} })
	p, _, _ := held(t, c, "shared")
	if user := <-users; user != "" {
		t.Errorf("a shared server is %s's", user)
	}
	go func() {
		if conn, err := p.Proxy.Accept(); err == nil {
			_, _ = io.WriteString(conn, "egress") // what arrives is compared below
			_ = conn.Close()
		}
	}()
	conn, err := net.Dial("unix", filepath.Join(folder, "proxy"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); string(got) != "egress" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	_ = p.Proxy.Close()
	p.Kill()
	_ = p.Wait() // it was killed
}

// A frame that is too long, or has more descriptors than one can have, is refused before what follows is read.
func TestFramesThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		head        uint32
		descriptors int
		why         string
	}{
		"too long":             {maxFrame + 1, 0, "too much"},
		"too many descriptors": {2, 5, "more descriptors"},
	} {
		var ends [2]*net.UnixConn
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i, fd := range pair {
			f := os.NewFile(uintptr(fd), "")
			conn, err := net.FileConn(f)
			if err = errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			ends[i] = conn.(*net.UnixConn)
		}
		frame, rights := append(binary.BigEndian.AppendUint32(nil, c.head), "{}"...), []byte(nil)
		if c.descriptors > 0 {
			rights = unix.UnixRights(make([]int, c.descriptors)...) // standard input, again and again
		}
		if _, _, err := ends[0].WriteMsgUnix(frame, rights, nil); err != nil {
			t.Fatal(err)
		}
		_ = ends[0].Close()
		if files, err := read(ends[1], &order{}); files != nil || err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v, %v", name, files, err)
		}
		_ = ends[1].Close()
	}
	if err := write(nil, strings.Repeat("x", maxFrame)); err == nil || !strings.Contains(err.Error(), "bytes to say") {
		t.Errorf("what is too long is said: %v", err)
	}
}

// stubborn starts children that cannot be frozen.
type stubborn struct{ sandbox.Launcher }

type restless struct{ sandbox.Control }

func (s stubborn) Start(ctx context.Context, start sandbox.Start) (*sandbox.Process, error) {
	p, err := s.Launcher.Start(ctx, start)
	if err == nil {
		p.Control = restless{p.Control}
	}
	return p, err
}

func (restless) Freeze(bool) error { return errors.New("it does not stop") }

// An order that the launcher cannot carry out fails for egress too, which would take the child for frozen.
func TestAnOrderThatFails(t *testing.T) {
	c, _ := serve(t, map[string]string{"demo": "sleep 60"}, func(l sandbox.Launcher) sandbox.Launcher { return stubborn{l} })
	p, err := c.Start(t.Context(), named("demo"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Freeze(true); err == nil || err.Error() != "it does not stop" {
		t.Errorf("it is frozen: %v", err)
	}
	p.Kill()
	_ = p.Wait() // it was killed
}
