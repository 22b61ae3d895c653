package rpc_test

import (
	"fmt"
	"os"
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
		if err != nil {
			t.Fatal(err)
		}
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
