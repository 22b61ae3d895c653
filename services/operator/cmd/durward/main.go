// Command durward is the human's side of Durward: it runs the processes in the foreground, shows what waits for a person,
// signs what that person allows, and verifies history. It holds no standing authority.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/root"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/release"
)

// version is the program's, as Git and the linker have it.
var version = release.Version()

func main() {
	_ = process.NoCoreDumps() // to lower a limit is never refused
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := root.Main(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv, Version: version})
	stop()
	os.Exit(code)
}
