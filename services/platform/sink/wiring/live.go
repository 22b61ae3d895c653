package wiring

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync/atomic"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/filewatch"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/security/ownership"
)

// LiveConfig is what a Live is made of; Set, Optional, Late and Foreign may be left out.
type LiveConfig[T any] struct {
	// Name is what records call the file, wherever it is; Path is the file, of at most Max bytes.
	Name, Path string
	Max        int64
	// Optional: a file that is not there is an empty one.
	Optional bool
	// Late: the process runs already, so that nothing is in force of the file before Watch takes it over, as a change.
	Late bool
	// Foreign could not have written the file; nil: not checked.
	Foreign *ownership.Foreign
	// Parse reads the whole file, strictly.
	Parse func(raw []byte) (T, error)
	// Tell is what the record of a change says; "": nothing that counts has changed.
	Tell func(before, after T) string
	// Set puts into force what the file says, or refuses it. nil: it is in force as Current.
	Set    func(T) error
	Log    process.Log
	Logger *slog.Logger
}

// Live is what a human's file says, read again when it changes. No RPC changes it. A file that is broken, or that Foreign could have
// written, changes nothing; a change is recorded before it counts. Current and Refused are safe for concurrent use.
type Live[T any] struct {
	cfg     LiveConfig[T]
	current atomic.Pointer[T]
	refused atomic.Pointer[string]
	// digest is that of the file as it was taken over last.
	digest string
}

// OpenLive reads the file for the first time; it has to be good.
func OpenLive[T any](cfg LiveConfig[T]) (*Live[T], error) {
	l := &Live[T]{cfg: cfg}
	l.refused.Store(new(string))
	var err error
	if l.cfg.Path, err = filepath.Abs(cfg.Path); err != nil {
		return nil, err
	}
	var value T
	digest := canonical.DigestText(nil)
	if cfg.Late {
		value, err = cfg.Parse(nil)
	} else {
		value, digest, err = l.read()
	}
	if err == nil {
		err = l.force(value, digest)
	}
	return l, err
}

// Current is what is in force.
func (l *Live[T]) Current() T { return *l.current.Load() }

// Refused says why the file that is there now is not in force; "" where it is.
func (l *Live[T]) Refused() string { return *l.refused.Load() }

// Watch takes over what changes until ctx ends.
func (l *Live[T]) Watch(ctx context.Context) {
	filewatch.New(func() filewatch.Stamps {
		s := filewatch.Paths(l.cfg.Path)()
		if l.cfg.Foreign != nil {
			s.Above(l.cfg.Path)
		}
		return s
	}, func() error { return l.check(ctx) }).Run(ctx)
}

// read reads the file. A link is followed only where nobody's rights matter, as those of a cluster's configuration are.
func (l *Live[T]) read() (value T, digest string, err error) {
	path := l.cfg.Path
	if l.cfg.Foreign == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
	}
	raw, err := ownership.ReadFile(path, l.cfg.Max, l.cfg.Foreign)
	if err != nil && (!l.cfg.Optional || !errors.Is(err, fs.ErrNotExist)) {
		return value, "", err
	}
	value, err = l.cfg.Parse(raw)
	return value, canonical.DigestText(raw), err
}

func (l *Live[T]) force(value T, digest string) error {
	if l.cfg.Set != nil {
		if err := l.cfg.Set(value); err != nil {
			return err
		}
	}
	l.current.Store(&value)
	l.digest = digest
	return nil
}

// check takes over what changed. An error says that it has to be tried again.
func (l *Live[T]) check(ctx context.Context) error {
	value, digest, err := l.read()
	if errors.Is(err, ownership.ErrUnsteady) {
		return err // it is being written; the next look finds it whole
	}
	if err == nil && digest != l.digest {
		err = l.adopt(ctx, value, digest)
	}
	problem := ""
	if err != nil {
		problem = clean.Line(err.Error(), 500)
	}
	switch problem {
	case l.Refused():
	case "":
		l.cfg.Logger.Info(l.cfg.Name + " is good again")
	default:
		l.cfg.Logger.Error("NOT TAKEN OVER: what was in force stays", "file", l.cfg.Name, "error", problem)
		if err := l.note(ctx, auditv1.Kind_KIND_CONFIG_REFUSED, digest, problem); err != nil {
			l.cfg.Logger.Error("a refused file could not be recorded", "file", l.cfg.Name, "error", err)
		}
	}
	l.refused.Store(&problem)
	return err
}

// adopt puts a changed file into force.
func (l *Live[T]) adopt(ctx context.Context, value T, digest string) error {
	what := l.cfg.Tell(l.Current(), value)
	if what != "" {
		if err := l.note(ctx, auditv1.Kind_KIND_CONFIG_FOUND, digest, what); err != nil {
			return fmt.Errorf("it cannot be recorded: %w", err)
		}
	}
	if err := l.force(value, digest); err != nil || what == "" {
		return err
	}
	l.cfg.Logger.Warn(l.cfg.Name + " has changed: " + what)
	return nil
}

// note records what became of a change: who announced it is in the vault's records, by the digest.
func (l *Live[T]) note(ctx context.Context, kind auditv1.Kind, digest, what string) error {
	r := &auditv1.Record{Kind: kind, Time: timestamppb.Now(), Status: auditv1.Status_STATUS_OK, Body: &auditv1.Body{
		Summary: l.cfg.Name + ": " + what, Details: map[string]string{"file": l.cfg.Name, "before": l.digest, "after": digest},
	}}
	if kind == auditv1.Kind_KIND_CONFIG_REFUSED {
		r.Status, r.Body.Summary, r.Body.Reason = auditv1.Status_STATUS_ERROR, l.cfg.Name+" was refused", what
	}
	return l.cfg.Log.Spool(ctx, r)
}
