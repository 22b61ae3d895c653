// Command vault authenticates clients, decides, queues approvals and signs grants. It listens for the gateway, the sinks
// and operators' programs, and dials audit alone, and a collector of traces where a human configured one. It never touches
// the host. Where the state is kept by a PostgreSQL server it dials that too, and stands by while another vault leads.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"durward.internal/services/platform/backup/statecopy"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/platform/release"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/issuer"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/metrics"
	"durward.internal/services/vault/internal/settings"
	"durward.internal/services/vault/internal/store"
)

// version is the program's, as Git and the linker have it.
var version = release.Version()

// closing is how long the last records may take to reach audit.
const closing = 2 * time.Second

func main() {
	// Other processes of its user do not look into it: in its memory are the keys of the stored credentials. Where the kernel refuses, root
	// or not, they could look before too.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	var s settings.Settings
	os.Exit(process.Main(program(&s), os.Args[1:], os.Stdout, os.Stderr))
}

func program(s *settings.Settings) process.Program {
	var aside statecopy.Command
	return process.Program{
		Name: "vault", Version: version, Settings: s,
		Check: func() error {
			err := s.Check()
			for _, warning := range s.Warnings() {
				fmt.Fprintf(os.Stderr, "vault: warning: %s\n", warning)
			}
			return err
		},
		Flags: func(f *flag.FlagSet) {
			f.BoolVar(&s.Development, "development", false, "one Unix user runs everything: gateway_user is not looked at")
			aside.Flags(f)
			guardFlags(f)
		},
		Instead: func(ctx context.Context) (bool, error) { return aside.Run(ctx, part(s), os.Stdin, os.Stdout) },
		Run: func(ctx context.Context, logger *slog.Logger) error {
			for {
				err := run(ctx, s, logger)
				if !errors.Is(err, store.ErrFollows) || ctx.Err() != nil {
					return err
				}
				logger.Warn("this vault leads no more: everything that it knew is forgotten, and it stands by", "cause", err.Error())
			}
		},
	}
}

// run opens what the vault stands on, and serves upon it for as long as it leads.
func run(ctx context.Context, s *settings.Settings, logger *slog.Logger) (err error) {
	// What watches files and certificates ends with the lead, too.
	ctx, end := context.WithCancel(ctx)
	defer end()
	unlock, err := process.LockState(s.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	roots, self, err := process.OpenIdentity(ctx, logger, s.Shared())
	if err != nil {
		return err
	}
	defer roots.Close()
	tel, err := telemetry.Open(telemetry.Config{Service: "vault", Version: version, Settings: s.Telemetry, Lifetime: self.Lifetime})
	if err != nil {
		return err
	}
	defer tel.Close()
	key, err := grant.LoadKey(s.GrantKey)
	if err != nil {
		return err
	}
	metrics.GrantKey(tel.Metrics, func() time.Time { return roots.Current().GrantSigner(key.KID).NotAfter })
	options, err := s.Security()
	if err != nil {
		return err
	}
	for _, warning := range s.Warnings() {
		logger.Warn(warning)
	}
	registry, err := clients.Open(clients.Config{Path: s.ClientsFile, Now: time.Now, Foreign: options.Foreign})
	if err != nil {
		return err
	}
	defer registry.Close()
	process.Watch(ctx, logger, "clients file", registry.Err)
	grants, err := issuer.New(issuer.Config{Key: key, Keys: roots, Now: time.Now, User: registry.User})
	if err != nil {
		return err
	}

	diskReserve, err := reserve.Open(s.StateDir, reserve.Default)
	if err != nil {
		return err
	}
	state, err := openState(ctx, s, diskReserve, tel, logger)
	if err != nil || state == nil {
		return err
	}
	ctx, lose := context.WithCancelCause(ctx)
	go func() { lose(state.Hold(ctx)) }()
	defer func() {
		lost := context.Cause(ctx)
		lose(nil)
		if err = errors.Join(err, state.Close()); errors.Is(lost, store.ErrFollows) {
			err = lost // whatever else failed failed for that
		}
	}()

	audit, err := s.AuditID()
	if err != nil {
		return err
	}
	conn, err := process.Dial(self, s.Audit, logger)
	if err != nil {
		return err
	}
	defer conn.Close()
	pending, err := reserve.ToStart(diskReserve, func() (*spool.Store, error) { return spool.Open(ctx, s.StateDir) })
	if err != nil {
		return err
	}
	records, err := recorder.Open(ctx, conn, audit.String(), roots, recorder.Config{
		Writer: self.ID().String(), Store: recorder.Reserved(pending, diskReserve), Logger: logger, Shared: s.Database.Shared(), OnAppend: tel.ObserveAppend,
	})
	if err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
		defer cancel()
		err = errors.Join(err, records.Close(last))
	}()
	tel.WatchRecorder(records)
	tel.WatchDisk(diskReserve.InUse)
	return ground{
		settings: s, self: self, roots: roots, tel: tel, security: options, clients: registry, grants: grants, state: state, reserve: diskReserve,
		records: records, log: journal.New(records, time.Now, logger), logger: logger,
	}.decide(ctx)
}
