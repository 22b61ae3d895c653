// Command audit writes history: an append-only Merkle log with signed checkpoints, which every process of Durward must
// reach before it acts and which nobody needs to believe. It dials nobody but a collector of traces and a database server, where a
// human configured them.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"durward.internal/services/audit/internal/cosigned"
	"durward.internal/services/audit/internal/damage"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/metrics"
	"durward.internal/services/audit/internal/restored"
	"durward.internal/services/audit/internal/server"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/audit/internal/transfer"
	"durward.internal/services/platform/backup/statecopy"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/deepcheck"
	"durward.internal/services/platform/keyfile"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/postgres"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/release"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/platform/trust"
)

// version is the program's, as Git and the linker have it.
var version = release.Version()

// settings is audit.yaml.
type settings struct {
	config.Common  `yaml:",inline"`
	config.Guarded `yaml:",inline"`
	// LogKey is the file of the key that signs checkpoints: a sumdb/note signer key named like the log, which is audit's
	// identity without "spiffe://". Its public half stands in the trust folder's log_keys. Required, absolute, 0600.
	LogKey string `yaml:"log_key"`
	// Database is where the log is kept. Optional; a file in the state folder.
	Database postgres.Settings `yaml:"database"`
	// Forward is what auditrelay may read, to forward it to collectors of others': "headers", or "records" with their redacted bodies.
	// Optional; nothing.
	Forward string `yaml:"forward"`

	// copyTo is set by -copy, keyOfCopy by -log-key, damaged by -damaged.
	copyTo, keyOfCopy string
	damaged           bool
	// development is set by -development and by nothing else.
	development bool
}

// InDevelopment and Obeyed implement process.Guarded.
func (s *settings) InDevelopment() bool { return s.development }
func (s *settings) Obeyed() []string    { return nil }

// Validate checks the whole file.
func (s *settings) Validate() error {
	var forward error
	switch s.Forward {
	case server.ForwardNothing, server.ForwardHeaders, server.ForwardRecords:
	default:
		forward = fmt.Errorf("forward: must be %s or %s, or be left out", server.ForwardHeaders, server.ForwardRecords)
	}
	return errors.Join(s.Common.Validate(), config.CheckAbsolute(map[string]string{"log_key": s.LogKey}, nil), s.Database.Validate(), forward)
}

func main() {
	s := &settings{}
	var aside statecopy.Command
	os.Exit(process.Main(process.Program{
		Name: "audit", Version: version, Settings: s,
		Flags: func(f *flag.FlagSet) {
			f.BoolVar(&s.development, "development", false, "one Unix user runs everything: gateway_user is not looked at")
			f.StringVar(&s.copyTo, "copy", "", "copy the log to the empty database that this other configuration `file` names, close the one that it is in, and exit (durward audit copy)")
			f.StringVar(&s.keyOfCopy, "log-key", "", "with -copy: the `file` of the log's key, in log_key's place (durward audit copy)")
			f.BoolVar(&s.damaged, "damaged", false, "with -copy: leave out bodies that are not what was recorded, and leave the damaged database as it is")
			aside.Flags(f)
			guardFlags(f)
		},
		Instead: func(ctx context.Context) (bool, error) { return aside.Run(ctx, s.part(), os.Stdin, os.Stdout) },
		Check:   func() error { return errors.Join(keyfile.Check(s.LogKey), postgres.Check(s.Database)) },
		Run: func(ctx context.Context, logger *slog.Logger) error {
			if s.copyTo != "" {
				return copyLog(ctx, s, logger)
			}
			return run(ctx, s, logger)
		},
	}, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, s *settings, logger *slog.Logger) (err error) {
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
	tel, err := telemetry.Open(telemetry.Config{Service: "audit", Version: version, Settings: s.Telemetry, Lifetime: self.Lifetime})
	if err != nil {
		return err
	}
	defer tel.Close()
	signer, err := log.LoadSigner(s.LogKey)
	if err != nil {
		return err
	}
	if name := logproof.Origin(self.ID().String()); signer.Name() != name {
		return fmt.Errorf("log_key: the key is named %q; the log of this process is %q", signer.Name(), name)
	}
	db, diskReserve, err := openStore(ctx, s, logger)
	if err != nil {
		return damage.Explain(ctx, nil, s.StateDir, err)
	}
	defer func() { _ = db.Close() }() // everything that matters was committed
	history, err := log.Open(ctx, log.Config{
		Store: db, Signer: signer, Reserve: diskReserve, Logger: logger, Keys: func() []note.Verifier { return roots.Current().LogKeys },
	})
	if err != nil {
		return damage.Explain(ctx, db, s.StateDir, err)
	}
	defer history.Close()
	if err := damage.Newest(ctx, db, history.Size()); err != nil {
		return err
	}
	watch := damage.NewWatch(db, history.Size, logger)
	deep := deepcheck.New(logger,
		deepcheck.Check{Problem: "the log cannot be written", Ask: diskReserve.Writable(func(ctx context.Context) error { return errors.Join(history.Ready(), db.Probe(ctx)) })},
		deepcheck.Check{Problem: "the log is damaged", Ask: watch.Ask})
	seen, err := cosigned.Open(ctx, cosigned.Config{
		Log: history, Dir: s.StateDir,
		Keys:      func() []note.Verifier { return roots.Current().LogKeys },
		Witnesses: func() logproof.Witnesses { return roots.Current().Witnesses },
	})
	if err != nil {
		return err
	}
	forwarding := server.NewForwarding(s.Forward)
	behind := func() (records uint64, waits time.Duration) {
		if history.Follows() {
			return 0, 0 // the relay asks the process that leads
		}
		return forwarding.Behind(history.Size(), time.Now())
	}
	tel.WatchDisk(diskReserve.InUse)
	tel.Gauge("durward_audit_forward_lag_records", "Records that are not yet at the destination, of those that the relay forwards to, which has the fewest.", func() float64 {
		records, _ := behind()
		return float64(records)
	})
	tel.Gauge("durward_audit_forward_lag_seconds", "For how long the first of those records waits; 0: there is none.", func() float64 {
		_, waits := behind()
		return waits.Seconds()
	})
	tel.Gauge("durward_audit_cosigned_age_seconds", "How long ago a quorum of witnesses cosigned the log last, or this process began and has nothing of theirs; 0: there are no witnesses.", func() float64 {
		if history.Follows() {
			return 0 // the relay brings what they say to the process that leads
		}
		return seen.Silent(time.Now()).Seconds()
	})
	services, err := server.New(server.Config{
		Log: history, Store: db, Version: version, Identity: self.ID(), Deep: deep, Cosigned: seen, Forwarding: forwarding,
		Logger: logger, Allowed: func() *trust.AllowedSigners { return roots.Current().AllowedSigners },
	})
	if err != nil {
		return err
	}
	refusals := services.Refusals(logger)
	grpcServer := rpc.NewServer(rpc.ServerConfig{
		Identity: self, Logger: logger, Tracer: tel.Tracer(), OnRefused: refusals.Refused,
		Unary: []grpc.UnaryServerInterceptor{metrics.New(tel.Metrics, history, db).Unary()},
	})
	services.Register(grpcServer)
	listener, health, err := process.Listen(s.Shared())
	if err != nil {
		return err
	}
	follows := history.Follows()
	if !follows {
		if err := restored.Accept(ctx, s.StateDir, history, restored.Roots{Keys: roots.Current().LogKeys, Operators: roots.Current().AllowedSigners},
			db.Entry, services.Record); err != nil {
			return errors.Join(err, listener.Close(), health.Close())
		}
		if err := services.RecordStart(ctx); err != nil {
			return errors.Join(fmt.Errorf("record the start: %w", err), listener.Close(), health.Close())
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return grpcServer.Serve(ctx, listener) })
	group.Go(func() error { return tel.Serve(ctx, health, history.Ready) })
	group.Go(func() error { refusals.Run(ctx); return nil })
	group.Go(func() error { services.Retain(ctx); return nil })
	group.Go(func() error { watch.Run(ctx); return nil })
	group.Go(func() error { return history.Outdated(ctx) })
	if follows {
		group.Go(func() error { recordLead(ctx, history, services, logger); return nil })
	}
	err = group.Wait()
	if history.Follows() {
		return err // another process goes on
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return errors.Join(err, services.RecordStop(last))
}

// openStore opens the database that the settings name. The reserve is nil where the database is a server's, whose disk it is.
func openStore(ctx context.Context, s *settings, logger *slog.Logger) (*store.Store, *reserve.Reserve, error) {
	if s.Database.Shared() {
		db, err := store.OpenPostgres(ctx, s.Database, logger)
		return db, nil, err
	}
	disk, err := reserve.Open(s.StateDir, reserve.Default)
	if err != nil {
		return nil, nil, err
	}
	// A full disk is no reason not to start: what stops things has to be recorded.
	db, err := reserve.ToStart(disk, func() (*store.Store, error) { return store.Open(ctx, s.StateDir) })
	return db, disk, err
}

// part is what a backup has of the log.
func (s *settings) part() statecopy.Part {
	p := statecopy.Part{Service: "audit", Version: version, StateDir: s.StateDir}
	if s.Database.Shared() {
		p.Elsewhere = "the log is in PostgreSQL, and its owner backs it up (pg_dump); durward audit export keeps what it says and proves"
	}
	return restored.Part(p, cosigned.File, func() (restored.Roots, error) {
		folder, err := trust.Open(s.TrustDir)
		if err != nil {
			return restored.Roots{}, err
		}
		defer folder.Close()
		return restored.Roots{Keys: folder.Current().LogKeys, Operators: folder.Current().AllowedSigners}, nil
	})
}

// place names the database that the log is in.
func (s *settings) place() string {
	if s.Database.Shared() {
		return fmt.Sprintf("the database %s at %s", s.Database.Name, strings.Join(s.Database.Addresses, " or "))
	}
	return filepath.Join(s.StateDir, store.File)
}

// copyLog moves the log to the database of another configuration.
func copyLog(ctx context.Context, s *settings, logger *slog.Logger) (err error) {
	target := &settings{}
	if err := config.Load(s.copyTo, target); err != nil {
		return err
	}
	if err := target.Validate(); err != nil {
		return fmt.Errorf("%s:\n%w", s.copyTo, err)
	}
	if s.place() == target.place() {
		return fmt.Errorf("%s names the database that the log is in, %s: there is nothing to copy", s.copyTo, s.place())
	}
	roots, err := trust.Open(s.TrustDir)
	if err != nil {
		return err
	}
	defer roots.Close()
	signer, err := log.LoadSigner(cmp.Or(s.keyOfCopy, s.LogKey))
	if err != nil {
		return err
	}
	var stores [2]*store.Store
	for i, side := range []*settings{s, target} {
		if !side.Database.Shared() {
			unlock, err := process.LockState(side.StateDir)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, unlock()) }()
			if err := restored.Waits(side.StateDir); err != nil {
				return fmt.Errorf("the log in %s: %w", side.place(), err)
			}
		}
		switch {
		case i > 0 || !s.damaged:
			stores[i], _, err = openStore(ctx, side, logger)
		case side.Database.Shared():
			stores[i], err = store.OpenDamagedPostgres(ctx, side.Database, logger)
		default:
			stores[i], err = store.OpenDamaged(ctx, side.StateDir)
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stores[i].Close()) }()
	}
	p := progress{began: time.Now()}
	if err := transfer.Run(ctx, transfer.Config{
		From: stores[0], To: stores[1], Place: target.place(), Signer: signer, Keys: roots.Current().LogKeys, Logger: logger, Damaged: s.damaged, Progress: p.print,
	}); err != nil {
		return err
	}
	size, err := stores[1].Extent(ctx)
	if err == nil {
		fmt.Printf("the log is copied: %s\n", clean.Count(size, "record"))
	}
	return err
}

// progress prints how far a copy is, once a second.
type progress struct{ began, printed time.Time }

func (p *progress) print(done, all int64) {
	if done < all && time.Since(p.printed) < time.Second {
		return
	}
	p.printed = time.Now()
	fmt.Printf("%d of %d records are there, after %s\n", done, all, time.Since(p.began).Round(time.Second))
}

// recordLead records the start of a process that stood by, when it leads.
func recordLead(ctx context.Context, history *log.Log, services *server.Server, logger *slog.Logger) {
	select {
	case <-history.Leads():
	case <-ctx.Done():
		return
	}
	if err := services.RecordStart(ctx); err != nil {
		logger.ErrorContext(ctx, "that this process took the lead could not be recorded", "error", err)
	}
}
