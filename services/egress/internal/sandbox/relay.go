package sandbox

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
)

// RelayWord is the first argument by which a program of ours is the relay in a child's sandbox; see Relay.
const RelayWord = "relay-in-sandbox"

// Where a child's way out is, inside its sandbox.
const (
	relayPath   = "/run/relay"
	proxySocket = "/run/egress.sock"
	proxyAddr   = "127.0.0.1:3128"
)

// maxRelayed is how many connections a child has at once; egress' proxy has a bound of its own.
const maxRelayed = 64

// Relay runs within a sandbox: it passes what comes to a port of loopback on to egress' proxy, becomes the parent of the server, hands it
// signals, and ends as the server ends. Its arguments are the server's command. It has no power: the server can speak to the socket itself.
func Relay(command []string) int {
	listener, err := net.Listen("tcp4", proxyAddr)
	if err != nil || len(command) == 0 {
		fmt.Fprintln(os.Stderr, "the relay of this sandbox does not start:", err)
		return 126
	}
	go func() {
		slots := make(chan struct{}, maxRelayed)
		for {
			slots <- struct{}{}
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { pass(conn.(*net.TCPConn)); <-slots }()
		}
	}()
	cmd := exec.Command(command[0], command[1:]...) //nolint:gosec // what the human's file says
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "the server does not start:", err)
		return 127
	}
	_ = os.Stdin.Close() // the server alone holds them: they end when it ends
	_ = os.Stdout.Close()
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	if exit, is := errors.AsType[*exec.ExitError](err); is {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal())
		}
		return exit.ExitCode()
	}
	return 0
}

// pass carries one connection.
func pass(from *net.TCPConn) {
	defer func() { _ = from.Close() }()
	to, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: proxySocket, Net: "unix"})
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(to, from); _ = to.CloseWrite() })
	both.Go(func() { _, _ = io.Copy(from, to); _ = from.CloseWrite() })
	both.Wait()
}
