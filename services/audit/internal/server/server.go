// Package server is audit's gRPC surface: LogService for whoever writes, HistoryService and RetentionService for operators,
// WitnessService and ForwardService for the relay. Who may call what is the contract's business and checked before a handler runs; what a
// handler adds is that a role writes its own kinds of records alone, under the identity of its certificate.
package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/cosigned"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/retention"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/deepcheck"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/redaction"
	"durward.internal/services/platform/trust"
)

// Config is what the services need; all of it is required.
type Config struct {
	Log     *log.Log
	Store   *store.Store
	Version string
	// Identity is audit's own, under which it records its start and stop.
	Identity identity.ID
	// Deep is the deep check; nil: none.
	Deep *deepcheck.Checks
	// Cosigned is what witnesses cosigned; nil: nothing is.
	Cosigned *cosigned.Keeper
	// Allowed returns the operators' keys; nil: there are none, and nobody decides about what the log keeps.
	Allowed func() *trust.AllowedSigners
	Logger  *slog.Logger
	// Forwarding says what is forwarded; nil: nothing is.
	Forwarding *Forwarding
}

// Server holds the services.
type Server struct {
	cfg      Config
	started  time.Time
	redactor *redaction.Redactor
	// recording is held while this process writes a record of its own.
	recording sync.Mutex
	// searching holds one value for each search or count that goes on.
	searching chan struct{}
	retention *retention.Keeper
}

// New returns the services.
func New(cfg Config) (*Server, error) {
	if cfg.Log == nil || cfg.Store == nil || cfg.Identity.IsZero() {
		return nil, errors.New("audit's server needs a log, a store and its identity")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Allowed == nil {
		cfg.Allowed = func() *trust.AllowedSigners { return nil }
	}
	s := &Server{cfg: cfg, started: time.Now(), redactor: redaction.New(), searching: make(chan struct{}, searches)}
	s.retention = retention.New(retention.Config{
		Log: cfg.Log, Store: cfg.Store, Identity: cfg.Identity, Allowed: cfg.Allowed, Logger: cfg.Logger, Now: time.Now, Record: s.write,
	})
	return s, nil
}

// Retain removes what humans let go of the log, until ctx ends.
func (s *Server) Retain(ctx context.Context) { s.retention.Run(ctx) }

// Register puts the services on a server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	auditv1.RegisterLogServiceServer(r, logService{Server: s})
	auditv1.RegisterHistoryServiceServer(r, historyService{Server: s})
	auditv1.RegisterRetentionServiceServer(r, retentionService{Server: s})
	auditv1.RegisterWitnessServiceServer(r, witnessService{Server: s})
	auditv1.RegisterForwardServiceServer(r, forwardService{Server: s})
}

// RecordStart writes that this process started.
func (s *Server) RecordStart(ctx context.Context) error {
	return s.Record(ctx, s.process(auditv1.Kind_KIND_STARTED))
}

// RecordStop writes that it stops.
func (s *Server) RecordStop(ctx context.Context) error {
	return s.Record(ctx, s.process(auditv1.Kind_KIND_STOPPED))
}

func (s *Server) process(kind auditv1.Kind) *auditv1.Record {
	return &auditv1.Record{Kind: kind, Status: auditv1.Status_STATUS_OK, Body: &auditv1.Body{Details: map[string]string{"version": s.cfg.Version}}}
}

// Record writes a record of this process itself, one after the other.
func (s *Server) Record(ctx context.Context, r *auditv1.Record) error {
	_, err := s.write(ctx, r)
	return err
}

// write returns the record's index.
func (s *Server) write(ctx context.Context, r *auditv1.Record) (uint64, error) {
	s.recording.Lock()
	defer s.recording.Unlock()
	writer := s.cfg.Identity.String()
	head, err := s.cfg.Log.Head(ctx, writer, 0)
	if err != nil {
		return 0, err
	}
	r, _ = s.redactor.Record(r)
	r.Sequence, r.Time = head.GetLastSequence()+1, timestamppb.Now()
	answer, err := s.cfg.Log.Append(ctx, writer, []*auditv1.Record{r}, 0)
	if err != nil {
		return 0, err
	}
	return answer.GetReceipts()[0].GetIndex(), nil
}

// leads refuses what only the process that leads is asked for. What the relay brings is kept where it is brought, and everybody else asks the
// one that leads for it; a client of both processes goes on to the other by this answer.
func (s *Server) leads() error {
	if s.cfg.Log.Follows() {
		return unreadable(store.ErrFollows)
	}
	return nil
}

func notFound() *fault.Error {
	return fault.New(callv1.Code_CODE_NOT_FOUND, "the log has no such entry", fault.WithField("index"))
}

func unreadable(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "the audit log cannot be read now", fault.WithRetry(time.Second), fault.WithCause(err))
}
