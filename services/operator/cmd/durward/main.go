// Command durward is the human's side of Durward: it runs the processes in the foreground, shows what waits for a person,
// signs what that person allows, and verifies history. It holds no standing authority.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/root"
	"durward.internal/services/platform/coredump"
	"durward.internal/services/platform/release"
)

// version is the program's, as Git and the linker have it.
var version = release.Version()

func main() {
	_ = coredump.Off() // to lower a limit is never refused
	// What changes something is carried out whether or not anybody reads what it says: a closed pipe is an error of writing, and no end.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	collectLate()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := root.Main(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv, Version: version})
	stop()
	os.Exit(code)
}

// collectLate puts the first collection of garbage off, from 4 MiB of it to 16. Most commands have ended by then: a collection takes a tenth
// of one. Those that go on, such as the supervisor, collect as usual after it.
func collectLate() {
	usual := debug.SetGCPercent(400)
	runtime.AddCleanup(&struct{ _ *byte }{}, func(usual int) { debug.SetGCPercent(usual) }, usual)
}
