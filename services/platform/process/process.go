// Package process is the part that the main functions of the server programs share: flags, configuration, logger, signals
// and exit codes. It starts nothing and knows no service. It trusts the command line and the file that it names.
package process

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/coredump"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/health"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/keyfile"
	"durward.internal/services/platform/lifelog"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/platform/trust"
)

// Exit codes of every server program.
const (
	ExitOK               = 0
	ExitFailure          = 1
	ExitBadConfiguration = 2
)

// Settings is a pointer to a program's configuration struct, which embeds config.Common.
type Settings interface {
	// Shared returns the common part (config.Common has it). A program that speaks to none of Durward's processes has no trust folder
	// and no certificate there.
	Shared() *config.Common
	// Validate checks the whole, the common part included.
	Validate() error
}

// Guarded is a Settings of a process that obeys files which the gateway's user must not reach.
type Guarded interface {
	// Gateways is gateway_user (config.Guarded has it).
	Gateways() string
	// InDevelopment reports whether one Unix user runs everything, so that gateway_user is not looked at.
	InDevelopment() bool
	// Obeyed are files and folders that it obeys beside its own file and the trust folder.
	Obeyed() []string
}

// guard refuses files that the gateway's user could have written.
func guard(s Settings, path string) (err error) {
	g, is := s.(Guarded)
	if !is {
		return nil
	}
	common := s.Shared()
	if common.Gateway, err = ownership.Gateway(g.Gateways(), g.InDevelopment()); err != nil {
		return err
	}
	return common.Gateway.Refuse(append(g.Obeyed(), path, common.TrustDir)...)
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
	// Instead does what one of these flags asks for in the place of Run, and reports whether one does; it may be nil. Its error is for the
	// human who gave the flag.
	Instead func(ctx context.Context) (bool, error)
	// Run serves until ctx ends (SIGINT or SIGTERM) and then drains. An error is logged and makes the exit code 1.
	Run func(ctx context.Context, logger *slog.Logger) error
}

// Main runs the program with its arguments (os.Args[1:]) and returns its exit code. Every program takes -config FILE,
// -check (validate and exit), -healthy (ask the one that runs and exit), -version and -dangerous-allow-remote. Logs go to stderr, with
// priorities where that is the journal.
func Main(p Program, args []string, stdout, stderr io.Writer) int {
	stderr = telemetry.Journal(stderr)
	flags := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	path := flags.String("config", "", "configuration `file` (YAML)")
	check := flags.Bool("check", false, "validate the configuration and exit")
	healthy := flags.Bool("healthy", false, "ask the process that runs with this configuration whether it is well, and exit with 0 or 1")
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
	fail := func(code int, err error) int {
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
		return code
	}
	if *version {
		fmt.Fprintf(stdout, "%s %s\n", p.Name, p.Version)
		return ExitOK
	}
	if err := load(p, flags, *path, *remote); err != nil {
		return fail(ExitBadConfiguration, err)
	}
	common := p.Settings.Shared()
	if *healthy {
		if err := ask(p.Name, common); err != nil {
			return fail(ExitFailure, err)
		}
		return ExitOK
	}
	logger, err := telemetry.NewLogger(stderr, p.Name, common.LogLevel)
	if err != nil {
		return fail(ExitBadConfiguration, err)
	}
	if *check {
		var err error
		if common.TLS.Key != "" {
			err = keyfile.Check(common.TLS.Key)
		}
		// Where there is no trust folder yet nothing is installed, the gateway's user neither.
		if _, missing := os.Lstat(common.TrustDir); missing == nil {
			err = errors.Join(err, guard(p.Settings, *path))
		}
		if p.Check != nil {
			err = errors.Join(err, p.Check())
		}
		if err != nil {
			return fail(ExitBadConfiguration, err)
		}
		fmt.Fprintf(stdout, "%s: ok\n", *path)
		return ExitOK
	}
	if err := guard(p.Settings, *path); err != nil {
		return fail(ExitBadConfiguration, err)
	}
	if g, is := p.Settings.(Guarded); is && common.Gateway == nil && !g.InDevelopment() {
		logger.Warn("DANGEROUS: without gateway_user nobody checks whether the gateway could have written what this process obeys")
	}
	if err := coredump.Off(); err != nil {
		logger.Warn("a crash may leave secrets in a file", "error", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := sleepLong(); err != nil {
		logger.Debug("sleeping threads wake as often as by default", "cause", err)
	}
	if err := limitMemory(ctx, common, logger); err != nil {
		logger.Error(lifelog.Failed, "error", err)
		return ExitFailure
	}
	if p.Instead != nil {
		if did, err := p.Instead(ctx); err != nil {
			return fail(ExitFailure, err)
		} else if did {
			return ExitOK
		}
	}
	logger.Info(lifelog.Starting, "version", p.Version)
	if *remote {
		logger.Warn("DANGEROUS: this process may be reached from other machines")
	}
	switch err := p.Run(ctx, logger); {
	case err == nil:
		logger.Info(lifelog.Stopped)
	case ctx.Err() != nil && errors.Is(err, context.Canceled): // it was told to while it started
		logger.Info(lifelog.Stopped, failure(err)...)
	default:
		logger.Error(lifelog.Failed, failure(err)...)
		return ExitFailure
	}
	return ExitOK
}

// failure is what the log says of an error that ends a process: its private half too, which a sentence for callers leaves out.
func failure(err error) []any {
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Cause != nil {
		return []any{"error", err.Error(), "cause", f.Cause.Error()}
	}
	return []any{"error", err}
}

// askPatience is how long a process may take to say that it is well.
const askPatience = 2 * time.Second

// ask reports why the process that runs with this configuration, as this user, is not well.
func ask(name string, c *config.Common) error {
	address := c.HealthListen
	if u, err := config.ParseUnix(address); err == nil {
		address = config.Unix{Path: u.Path, Users: []string{strconv.Itoa(os.Geteuid())}}.String()
	}
	if ok, _ := health.Healthy(context.Background(), &http.Client{Timeout: askPatience}, address, name); !ok {
		return fmt.Errorf("nothing at %s says that it is well", c.HealthListen)
	}
	return nil
}

func load(p Program, flags *flag.FlagSet, path string, remote bool) error {
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case path == "":
		return errors.New("-config FILE is required")
	}
	if err := ownership.Own(path); err != nil {
		return err
	}
	if err := config.Load(path, p.Settings); err != nil {
		return err
	}
	common := p.Settings.Shared()
	common.AllowRemote = remote
	if err := p.Settings.Validate(); err != nil {
		return fmt.Errorf("%s:\n%w", path, err)
	}
	return ownership.Own(slices.DeleteFunc([]string{common.StateDir, common.TrustDir}, func(path string) bool { return path == "" })...)
}

// OpenIdentity opens the trust folder and the certificate that a configuration names, and says in the log, until ctx ends,
// when a change of either could not be taken up, the Workload API does not answer, or the certificate ends soon. There is no way to start
// without them. The caller closes the folder when nothing uses either any more.
func OpenIdentity(ctx context.Context, logger *slog.Logger, c *config.Common) (roots *trust.Folder, self *identity.Source, err error) {
	if roots, err = trust.OpenGuarded(c.TrustDir, c.Gateway); err != nil {
		return nil, nil, fmt.Errorf("trust folder: %w", err)
	}
	if self, err = rpc.OpenIdentity(ctx, c.TLS, optionsv1.Role_ROLE_UNSPECIFIED, roots); err != nil {
		roots.Close()
		return nil, nil, err
	}
	Watch(ctx, logger, "trust folder", roots.Err)
	WatchCertificate(ctx, logger, self)
	return roots, self, nil
}

// Listen listens where a configuration says that the process serves, and where it tells how it is.
func Listen(c *config.Common) (serve, health net.Listener, err error) {
	if serve, err = rpc.Listen(c.Listen, c.AllowRemote); err != nil {
		return nil, nil, err
	}
	if health, err = rpc.Listen(c.HealthListen, false); err != nil {
		return nil, nil, errors.Join(err, serve.Close())
	}
	return serve, health, nil
}

// WatchCertificate says in the log, until ctx ends, why a newer certificate could not be taken up, and when the one in use ends soon.
func WatchCertificate(ctx context.Context, logger *slog.Logger, self *identity.Source) {
	Watch(ctx, logger, "certificate", func() error { return cmp.Or(self.Err(), self.Ending()) })
}

// Dial begins to connect to a peer that a configuration names, which may be several processes, and does not wait until that is done.
func Dial(self *identity.Source, peer config.Peer, logger *slog.Logger) (*rpc.Any, error) {
	id, err := identity.Parse(peer.Identity)
	if err != nil {
		return nil, err
	}
	conn, err := rpc.DialAny(rpc.ClientConfig{Identity: self, Address: peer.Address, Server: id, Logger: logger}, peer.Standbys)
	if err != nil {
		return nil, err
	}
	conn.Connect()
	return conn, nil
}

// Log takes records that need not be durable when it returns; recorder.Recorder is one.
type Log interface {
	Spool(ctx context.Context, record *auditv1.Record) error
}

// Note records that a program starts or stops. What cannot be recorded is logged.
func Note(ctx context.Context, log Log, logger *slog.Logger, program string, kind auditv1.Kind) {
	err := log.Spool(ctx, &auditv1.Record{
		Kind: kind, Time: timestamppb.Now(), Status: auditv1.Status_STATUS_OK, Body: &auditv1.Body{Summary: program},
	})
	if err != nil {
		logger.ErrorContext(ctx, "a start or stop could not be recorded", "kind", kind.String(), "error", err)
	}
}

// lockPatience is how long LockState waits for a process that has just ended, and lockPoll how often it looks.
const (
	lockPatience = 500 * time.Millisecond
	lockPoll     = 5 * time.Millisecond
)

// LockState makes the state folder if need be and takes it for this process alone, until release or the process's end. A process
// that keeps state calls it before it opens any: two that write to one folder would each spend what the other spent.
//
// The lock is on the folder itself. A file could be a link, could be removed and made anew beside a running process, and could
// not be made on a full disk.
func LockState(dir string) (release func() error, err error) {
	if release, err = LockUnfinished(dir); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(filepath.Join(dir, Unfinished)); err == nil {
		return nil, errors.Join(fmt.Errorf("a restore of a backup to %s broke off: run durward restore again", dir), release())
	}
	return release, nil
}

// Unfinished is a file in the state folder while a backup takes the state's place.
const Unfinished = "restore.unfinished"

// LockUnfinished is LockState of a folder in which a restore may have broken off.
func LockUnfinished(dir string) (release func() error, err error) {
	for {
		f, err := lockFolder(dir)
		if err != nil {
			return nil, err
		}
		locked, err1 := f.Stat()
		named, err2 := os.Stat(dir)
		if errors.Join(err1, err2) == nil && os.SameFile(locked, named) {
			// A program that is being started holds a copy of the file for a moment; closing ours alone would leave the lock with it.
			return func() error { return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close()) }, nil
		}
		// Who held the lock has removed the folder with it, as a backup does its own: this lock keeps nobody out.
		_ = f.Close()
		if err := errors.Join(err1, err2); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("state folder: %w", err)
		}
	}
}

// lockFolder takes the lock of the folder that has this name when it begins.
func lockFolder(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	// A program that a killed process was about to start holds the lock for a moment longer than the process itself.
	for began := time.Now(); errors.Is(err, syscall.EWOULDBLOCK) && time.Since(began) < lockPatience; {
		time.Sleep(lockPoll)
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("another running process keeps its state in %s: stop that one, or give this one a state_dir of its own", dir)
		}
		return nil, fmt.Errorf("state folder %s: %w", dir, err)
	}
	return f, nil
}

// watchInterval is how soon a file that was not taken up is complained of.
const watchInterval = 2 * time.Second

// Watch says in the log when something that is read again while the process runs (the trust folder, a certificate)
// could not be taken up, and when that is over: the last good state stays in use, and nobody would know. It returns at
// once and watches until ctx ends.
func Watch(ctx context.Context, logger *slog.Logger, what string, failure func() error) {
	go func() {
		said := ""
		for clock.Every(ctx, watchInterval) {
			now := ""
			if err := failure(); err != nil {
				now = err.Error()
			}
			switch now {
			case said:
			case "":
				logger.Info("taken up", "what", what)
			default:
				logger.Error("not taken up: the last good state stays in use", "what", what, "error", now)
			}
			said = now
		}
	}()
}
