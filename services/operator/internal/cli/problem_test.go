package cli

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"
)

// TestTakenIsBounded: an address that takes no connection and refuses none, as that of a host that is off, is not waited for.
func TestTakenIsBounded(t *testing.T) {
	t.Parallel()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(fd) }()
	var at syscall.Sockaddr = &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	if err := syscall.Bind(fd, at); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	if at, err = syscall.Getsockname(fd); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
	for full := false; !full; { // what waits to be accepted fills the queue
		conn, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if full = err != nil; !full {
			defer func() { _ = conn.Close() }()
		}
	}
	said := make(chan bool, 1)
	go func() { said <- Taken(t.Context(), address) }()
	select {
	case taken := <-said:
		if taken {
			t.Error("it took a connection")
		}
	case <-time.After(StatusPatience + 3*time.Second):
		t.Error("it is waited for")
	}
}
