package rpc_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"durward.internal/services/platform/rpc"
)

func TestListenRefuses(t *testing.T) {
	for _, addr := range []string{"", ":0", "0.0.0.0:0", "[::]:0", "localhost:0", "example.org:80", "127.0.0.1", "192.0.2.1:0", "169.254.169.254:80"} {
		if lis, err := rpc.Listen(addr, false); err == nil {
			t.Errorf("listens on %q (%s)", addr, lis.Addr())
			_ = lis.Close()
		}
	}
}

func TestListenNamesTheHolder(t *testing.T) {
	for _, first := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		lis, err := rpc.Listen(first, true)
		must(t, err)
		defer lis.Close()
		_, port, _ := strings.Cut(lis.Addr().String(), "]")
		if port == "" {
			port = lis.Addr().String()
		}
		addr := "127.0.0.1:" + port[strings.LastIndex(port, ":")+1:]
		_, err = rpc.Listen(addr, false)
		if err == nil {
			t.Fatalf("%s was bound twice", addr)
		}
		comm, readErr := os.ReadFile("/proc/self/comm")
		if readErr != nil {
			t.Fatal(readErr)
		}
		want := fmt.Sprintf("%s is in use by %s (pid %d)", addr, strings.TrimSpace(string(comm)), os.Getpid())
		if err.Error() != want {
			t.Errorf("says %q, not %q", err, want)
		}
	}
}

// heir makes this test binary a process that systemd has handed a socket to; see TestMain.
const heir = "DURWARD_TEST_LISTEN"

// inherit listens at an address, and reports by its exit code whether it served one connection there.
func inherit(addr string) int {
	// As sd_listen_fds(3) has it: the number of the process that is meant.
	if err := os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid())); err != nil {
		return 2
	}
	lis, err := rpc.Listen(addr, false)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	conn, err := lis.Accept()
	if err != nil {
		return 3
	}
	_, err = conn.Write([]byte("served"))
	if errors.Join(err, conn.Close()) != nil {
		return 4
	}
	return 0
}

// TestListenTakesWhatSystemdHolds starts a process that is handed a socket, and finds the port held before and after.
func TestListenTakesWhatSystemdHolds(t *testing.T) {
	held, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer held.Close()
	file, err := held.(*net.TCPListener).File()
	must(t, err)
	defer file.Close()
	run := func(addr string) ([]byte, error) {
		program, err := os.Executable()
		must(t, err)
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), heir+"="+addr, "LISTEN_FDS=1")
		cmd.ExtraFiles = []*os.File{file}
		return cmd.CombinedOutput()
	}
	conn, err := net.Dial("tcp", held.Addr().String())
	must(t, err)
	defer conn.Close()
	if out, err := run(held.Addr().String()); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if said, err := io.ReadAll(conn); err != nil || string(said) != "served" {
		t.Errorf("%q, %v", said, err)
	}
	// The port is still held, and a socket at another address is not taken for one's own.
	other, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer other.Close()
	if out, err := run(other.Addr().String()); err == nil || !strings.Contains(string(out), "is in use by") {
		t.Errorf("another address: %v, %s", err, out)
	}
	if _, err := rpc.Listen(held.Addr().String(), false); err == nil {
		t.Error("the port was let go")
	}
}
