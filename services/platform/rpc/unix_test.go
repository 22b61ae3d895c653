package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
)

// socketFolder is short, since a socket's path must be, and open to other users.
func socketFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "rpc")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // others must reach the socket, and be refused
		t.Fatal(err)
	}
	return dir
}

func TestListenUnixRefuses(t *testing.T) {
	dir := socketFolder(t)
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	open := filepath.Join(dir, "open")
	must(t, os.Mkdir(open, 0o700))
	if err := os.Chmod(open, 0o777); err != nil { // this is what must be refused
		t.Fatal(err)
	}
	below := filepath.Join(open, "below")
	must(t, os.Mkdir(below, 0o700))
	first, err := rpc.Listen("unix:"+filepath.Join(dir, "taken"), false)
	must(t, err)
	defer first.Close()
	// Listen knocks at a taken address; the listener's end ends Accept with an error.
	go func() { _, _ = first.Accept() }()
	other, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "datagrams"), Net: "unixgram"})
	must(t, err)
	defer other.Close()
	for addr, want := range map[string]string{
		"unix:" + dir + "/datagrams": "wrong type",
		"unix:":                      "absolute path",
		"unix:@abstract":             "absolute path",
		"unix:" + dir + "/x,user=nobody-of-that-name": "there is no user nobody-of-that-name",
		"unix:" + dir + "/x,group=no-such-group":      "there is no group no-such-group",
		"unix:" + file:                                "is no socket",
		"unix:" + open + "/x":                         "others may write to " + open,
		"unix:" + below + "/x":                        "others may write to " + open,
		"unix:" + dir + "/missing/x":                  "no such file",
		"unix:" + dir + "/taken":                      fmt.Sprintf("is in use by user %d (group %d, process %d)", os.Getuid(), os.Getgid(), os.Getpid()),
	} {
		lis, err := rpc.Listen(addr, false)
		if err == nil {
			_ = lis.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, not %q", addr, err, want)
		}
	}
}

// TestUnixSocketStays is about what a killed process leaves behind, and a closed one does not.
func TestUnixSocketStays(t *testing.T) {
	addr := "unix:" + filepath.Join(socketFolder(t), "s")
	path := strings.TrimPrefix(addr, "unix:")
	// A socket that is closed without its file being removed is what a killed process leaves.
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	left.SetUnlinkOnClose(false)
	must(t, left.Close())
	lis, err := rpc.Listen(addr, false)
	if err != nil {
		t.Fatalf("a socket that nobody listens on is in the way: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a socket for our own user alone: %v, %v", info.Mode(), err)
	}
	must(t, lis.Close())
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a closed socket is left behind: %v", err)
	}
}

// serveUnix serves the executor's tools on a socket.
func serveUnix(t *testing.T, kit *platformtest.Kit, addr string) {
	t.Helper()
	lis, err := rpc.Listen(addr, false)
	must(t, err)
	server := rpc.NewServer(rpc.ServerConfig{Identity: kit.Identity(executor, "local"), Logger: platformtest.Logger()})
	executorv1.RegisterToolServiceServer(server, &tools{info: func(context.Context, *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
		return &executorv1.ServiceInfoResponse{}, nil
	}})
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, lis) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// TestUnixIsMutualTLSAllTheSame calls over a socket, as who may and as who may not.
func TestUnixIsMutualTLSAllTheSame(t *testing.T) {
	kit := platformtest.New(t)
	addr := "unix:" + filepath.Join(socketFolder(t), "grpc.sock")
	serveUnix(t, kit, addr)
	me := fmt.Sprint(os.Getuid())
	call := func(conn *grpc.ClientConn) error {
		_, err := executorv1.NewToolServiceClient(conn).ServiceInfo(t.Context(), serviceID("demo"))
		return err
	}
	mine := addr + ",user=" + me
	if err := call(kit.Dial(t, kit.ID(gateway, "main"), mine, kit.ID(executor, "local"))); err != nil {
		t.Errorf("%s: %v", mine, err)
	}
	if err := call(kit.Dial(t, kit.ID(gateway, "main"), addr, kit.ID(executor, "local"))); err == nil {
		t.Error("whoever listens there is believed")
	}
	if err := call(kit.Dial(t, kit.ID(gateway, "main"), mine, kit.ID(executor, "other"))); err == nil {
		t.Error("a server of another identity is believed because it has the socket")
	}
	if err := call(kit.Dial(t, kit.ID(audit, "main"), mine, kit.ID(executor, "local"))); err == nil {
		t.Error("a role that is no caller is let in because it has the socket")
	}
	if err := call(kit.Dial(t, kit.ID(gateway, "main"), addr+",user=12345", kit.ID(executor, "local"))); err == nil {
		t.Error("a server of another Unix user is believed")
	}
}

// knocker makes this test binary connect to a socket and say whether it was let in; see TestMain.
const knocker = "DURWARD_TEST_KNOCK"

func TestMain(m *testing.M) {
	if path := os.Getenv(knocker); path != "" {
		os.Exit(knock(path))
	}
	if addr := os.Getenv(heir); addr != "" {
		os.Exit(inherit(addr))
	}
	os.Exit(m.Run())
}

// knock reports by its exit code whether whoever listens keeps the connection: 0 yes, 10 no, 11 the kernel refused.
func knock(path string) int {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return 11
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return 12
	}
	if b, err := io.ReadAll(conn); err == nil && string(b) == "welcome" {
		return 0
	}
	return 10
}

// TestUnixPeers connects as several users. Only root can be several users; the weaker half of it runs as anybody.
func TestUnixPeers(t *testing.T) {
	const alice, bob, friends, others = 64001, 64002, 64010, 64011
	if os.Getuid() != 0 {
		t.Skip("needs root, to be other users")
	}
	self, err := os.Executable()
	must(t, err)
	for _, test := range []struct {
		name   string
		listen string
		as     syscall.Credential
		want   int
	}{
		{"another user, where nobody is named", "", syscall.Credential{Uid: alice, Gid: others}, 11},
		{"another user than the one who is named", ",user=64001", syscall.Credential{Uid: bob, Gid: others}, 10},
		{"a group of that number as a user", ",user=64010", syscall.Credential{Uid: bob, Gid: friends}, 10},
		{"a user of that number as a group", ",group=64001", syscall.Credential{Uid: alice, Gid: others}, 10},
		{"nobody of the group", ",group=64010", syscall.Credential{Uid: alice, Gid: others, Groups: []uint32{1, 2, 3}}, 10},
		{"the user", ",user=64001", syscall.Credential{Uid: alice, Gid: others}, 0},
		{"the second user", ",user=64001,user=64002", syscall.Credential{Uid: bob, Gid: others}, 0},
		{"the group", ",group=64010", syscall.Credential{Uid: bob, Gid: friends}, 0},
		{"one of many further groups", ",user=64001,group=64010", syscall.Credential{Uid: bob, Gid: others, Groups: manyGroups(friends)}, 0},
		{"root", "", syscall.Credential{}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(socketFolder(t), "s")
			lis, err := rpc.Listen("unix:"+path+test.listen, false)
			must(t, err)
			defer lis.Close()
			go func() {
				for {
					conn, err := lis.Accept()
					if err != nil {
						return
					}
					// The program that knocked reads it, or fails the test.
					_, _ = io.WriteString(conn, "welcome")
					_ = conn.Close()
				}
			}()
			program := filepath.Join(filepath.Dir(path), "knock")
			copyProgram(t, self, program)
			cmd := exec.CommandContext(t.Context(), program)
			cmd.Env = []string{knocker + "=" + path}
			cmd.Dir = "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &test.as}
			err = cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != test.want {
				t.Errorf("ended with %d (%v), not %d", got, err, test.want)
			}
		})
	}
}

// manyGroups are more than the first try has room for.
func manyGroups(last uint32) []uint32 {
	var groups []uint32
	for i := range uint32(200) {
		groups = append(groups, 70000+i)
	}
	return append(groups, last)
}

// copyProgram copies this test binary to where other users can start it.
func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	if os.Link(from, to) == nil {
		return
	}
	b, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, b, 0o755))
}
