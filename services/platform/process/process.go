// Package process is the part that the main functions of the server programs share: flags, configuration, logger, signals
// and exit codes. It starts nothing and knows no service. It trusts the command line and the file that it names.
package process

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"runtime/debug"
	"syscall"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/keyfile"
	"durward.internal/services/platform/telemetry"
)

// Exit codes of every server program.
const (
	ExitOK               = 0
	ExitFailure          = 1
	ExitBadConfiguration = 2
)

// Settings is a pointer to a program's configuration struct, which embeds config.Common.
type Settings interface {
	// Shared returns the common part (config.Common has it).
	Shared() *config.Common
	// Validate checks the whole, the common part included.
	Validate() error
}

// Program is a server program.
type Program struct {
	// Name is the service's name, "vault"; Version what -version prints.
	Name    string
	Version string
	// Settings is filled from the file that -config names.
	Settings Settings
	// Check looks, with -check, at the files that the configuration names, beyond what Validate does; it may be nil.
	Check func() error
	// Flags adds the program's own flags; it may be nil.
	Flags func(*flag.FlagSet)
	// Run serves until ctx ends (SIGINT or SIGTERM) and then drains. An error is logged and makes the exit code 1.
	Run func(ctx context.Context, logger *slog.Logger) error
}

// Main runs the program with its arguments (os.Args[1:]) and returns its exit code. Every program takes -config FILE,
// -check (validate and exit), -version and -dangerous-allow-remote. Logs go to stderr.
func Main(p Program, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	path := flags.String("config", "", "configuration `file` (YAML)")
	check := flags.Bool("check", false, "validate the configuration and exit")
	version := flags.Bool("version", false, "print the version and exit")
	remote := flags.Bool("dangerous-allow-remote", false, "let the address under the key listen be one that other machines reach; health_listen stays on loopback")
	if p.Flags != nil {
		p.Flags(flags)
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return ExitOK
		}
		return ExitBadConfiguration
	}
	if *version {
		fmt.Fprintf(stdout, "%s %s\n", p.Name, p.Version)
		return ExitOK
	}
	if err := load(p, flags, *path, *remote); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
		return ExitBadConfiguration
	}
	common := p.Settings.Shared()
	logger, err := telemetry.NewLogger(stderr, p.Name, common.LogLevel)
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
		return ExitBadConfiguration
	}
	if *check {
		err := keyfile.Check(common.TLS.Key)
		if p.Check != nil {
			err = errors.Join(err, p.Check())
		}
		if err != nil {
			fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
			return ExitBadConfiguration
		}
		fmt.Fprintf(stdout, "%s: ok\n", *path)
		return ExitOK
	}
	if err := NoCoreDumps(); err != nil {
		logger.Warn("a crash may leave secrets in a file", "error", err)
	}
	limitMemory(common)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	logger.Info("starting", "version", p.Version)
	if *remote {
		logger.Warn("DANGEROUS: this process may be reached from other machines")
	}
	if err := p.Run(ctx, logger); err != nil {
		logger.Error("failed", "error", err)
		return ExitFailure
	}
	logger.Info("stopped")
	return ExitOK
}

func load(p Program, flags *flag.FlagSet, path string, remote bool) error {
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case path == "":
		return errors.New("-config FILE is required")
	}
	if err := config.Load(path, p.Settings); err != nil {
		return err
	}
	p.Settings.Shared().AllowRemote = remote
	if err := p.Settings.Validate(); err != nil {
		return fmt.Errorf("%s:\n%w", path, err)
	}
	return nil
}

// limitMemory lets the heap grow between collections as far as a soft limit allows: throughput without the memory.
func limitMemory(c *config.Common) {
	limit, percent := c.MemoryLimitMiB, c.GOGC
	if limit == 0 {
		limit = config.DefaultMemoryLimitMiB
	}
	if percent == 0 {
		percent = config.DefaultGOGC
	}
	debug.SetMemoryLimit(int64(limit) << 20)
	debug.SetGCPercent(percent)
}
