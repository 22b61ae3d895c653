// Command durward-list runs another people's MCP server once, in its sandbox, and writes which tools it lists. `durward server add` starts
// it, with the server's entry in its standard input, and shows what it says to the operator: package listing says what it trusts.
//
// It is a program of its own because it starts strangers' programs and speaks with them, which the operator's program, which opens the
// signing key, must not do.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"durward.internal/services/egress/internal/listing"
	"durward.internal/services/platform/release"
)

// version is the program's, as Git and the linker have it.
var version = release.Version()

func main() {
	syscall.Umask(0o077)
	// What is started ends with this process, and this process with what started it.
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	switch {
	case len(args) == 1 && args[0] == "-version":
		fmt.Fprintln(out, "durward-list", version)
		return 0
	case len(args) > 0:
		fmt.Fprintln(errs, "usage: durward-list <SERVER (durward server add starts it)")
		return 2
	}
	if err := listing.Run(ctx, in, out); err != nil {
		fmt.Fprintln(errs, "durward-list:", err)
		return 1
	}
	return 0
}
