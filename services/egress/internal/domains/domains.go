// Package domains keeps egress' own copy of the list of domains as a human's file says it, read again when it changes. Egress holds every
// request to it, whatever the vault says.
//
// It trusts the file where nobody but a human could have written it; one that is broken changes nothing.
package domains

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync/atomic"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/filewatch"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/security/ownership"
)

// maxFile bounds the file, as the vault does.
const maxFile = 256 << 10

// Live is the list as it was last good. It is safe for concurrent use.
type Live struct {
	path    string
	foreign *ownership.Foreign
	log     process.Log
	logger  *slog.Logger
	current atomic.Pointer[destination.List]
	refused atomic.Pointer[string]
	// digest is that of the file as it was taken over last.
	digest string
}

// Open reads the file for the first time. One that is not there is a list without entries; a broken one is an error.
func Open(ctx context.Context, path string, foreign *ownership.Foreign, log process.Log, logger *slog.Logger) (*Live, error) {
	l := &Live{path: path, foreign: foreign, log: log, logger: logger}
	l.refused.Store(new(string))
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// Current is the list in force.
func (l *Live) Current() *destination.List { return l.current.Load() }

// Refused says why the file that is there now is not in force; "" where it is.
func (l *Live) Refused() string { return *l.refused.Load() }

// Watch takes over what changes until ctx ends.
func (l *Live) Watch(ctx context.Context) {
	filewatch.New(func() filewatch.Stamps {
		s := filewatch.Paths(l.path)()
		if l.foreign != nil {
			s.Above(l.path)
		}
		return s
	}, func() error { return l.check(ctx) }).Run(ctx)
}

// check takes over what changed. An error says that it has to be tried again.
func (l *Live) check(ctx context.Context) error {
	raw, err := ownership.ReadFile(l.path, maxFile, l.foreign)
	switch {
	case errors.Is(err, ownership.ErrUnsteady):
		return err
	case errors.Is(err, fs.ErrNotExist):
		raw, err = nil, nil
	}
	digest := canonical.DigestText(raw)
	if err == nil && (digest != l.digest || l.current.Load() == nil) {
		err = l.adopt(ctx, raw, digest)
	}
	problem := ""
	if err != nil {
		problem = clean.Line(err.Error(), 500)
	}
	if problem != l.Refused() && problem != "" {
		l.logger.Error("NOT TAKEN OVER: what was in force stays", "file", destination.File, "error", problem)
		if err := l.note(ctx, auditv1.Kind_KIND_CONFIG_REFUSED, digest, problem); err != nil {
			l.logger.Error("a refused list could not be recorded", "error", err)
		}
	}
	l.refused.Store(&problem)
	return err
}

// adopt puts a changed list into force. It is recorded before it counts.
func (l *Live) adopt(ctx context.Context, raw []byte, digest string) error {
	list, err := destination.ParseList(destination.File, raw)
	if err != nil {
		return err
	}
	if l.current.Load() != nil {
		what := fmt.Sprintf("%d domains allowed, %d blocked", len(list.Allow), len(list.Block))
		if err := l.note(ctx, auditv1.Kind_KIND_CONFIG_FOUND, digest, what); err != nil {
			return fmt.Errorf("it cannot be recorded: %w", err)
		}
		l.logger.Warn("the list of domains has changed", "allowed", len(list.Allow), "blocked", len(list.Block))
	}
	l.digest = digest
	l.current.Store(list)
	return nil
}

func (l *Live) note(ctx context.Context, kind auditv1.Kind, digest, what string) error {
	r := &auditv1.Record{Kind: kind, Time: timestamppb.Now(), Status: auditv1.Status_STATUS_OK, Body: &auditv1.Body{
		Summary: destination.File + ": " + what, Details: map[string]string{"file": destination.File, "before": l.digest, "after": digest},
	}}
	if kind == auditv1.Kind_KIND_CONFIG_REFUSED {
		r.Status, r.Body.Summary, r.Body.Reason = auditv1.Status_STATUS_ERROR, destination.File+" was refused", what
	}
	return l.log.Spool(ctx, r)
}
