// Package control is what every sink serves to humans: halts, standing statements, previews' arguments and the common half of its status.
// What differs from sink to sink is the sink's own.
//
// It runs in the sinks. Only operators reach it, by the contract; a resume takes a human's statement all the same.
package control

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/deepcheck"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/sink"
)

// Log is what is told of the audit log; the platform's recorder is one.
type Log interface {
	Reachable() bool
	Depth() int
	// Checkpoint is the newest one that was verified.
	Checkpoint() []byte
}

// Config is what a Sink is made of; everything but Deep is required.
type Config struct {
	Self      identity.ID
	Authority *sink.Authority
	Log       Log
	// VaultReachable asks the vault's connection.
	VaultReachable func() bool
	// Deep is the deep check; nil: none.
	Deep    *deepcheck.Checks
	Version string
}

// Sink implements what the control services of all sinks have in common. It is safe for concurrent use.
type Sink struct {
	Config
	started time.Time
}

// New returns it for one sink.
func New(cfg Config) *Sink { return &Sink{Config: cfg, started: time.Now()} }

// Halt stops every further effect, durably.
func (s *Sink) Halt(ctx context.Context, r *executorv1.HaltRequest) (*executorv1.HaltResponse, error) {
	epoch, err := s.Authority.Halt(ctx, r.GetReason(), r.GetEpoch())
	return &executorv1.HaltResponse{Epoch: epoch}, err
}

// EndStanding makes statements void here.
func (s *Sink) EndStanding(ctx context.Context, r *executorv1.EndStandingRequest) (*executorv1.EndStandingResponse, error) {
	return &executorv1.EndStandingResponse{}, s.Authority.EndStanding(ctx, r.GetStatements())
}

// Resume ends a halt, on a human's statement.
func (s *Sink) Resume(ctx context.Context, r *executorv1.ResumeRequest) (*executorv1.ResumeResponse, error) {
	epoch, err := s.Authority.Resume(ctx, r.GetStatement())
	return &executorv1.ResumeResponse{Epoch: epoch}, err
}

// Preview reads which call is to be previewed, strictly, and begins the answer.
func (s *Sink) Preview(r *executorv1.PreviewCallRequest) (tool contract.Tool, request proto.Message, out *executorv1.PreviewCallResponse, err error) {
	tool, ok := contract.Referred(r.GetTool())
	if !ok || tool.Sink != s.Self.Role() {
		return tool, nil, nil, fault.New(callv1.Code_CODE_NOT_FOUND, "this process has no such tool, or another definition of it", fault.WithField("tool"))
	}
	arguments, err := contract.CanonicalArguments(r.GetArguments())
	if err != nil {
		return tool, nil, nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "the arguments are not in canonical form", fault.WithField("arguments"), fault.WithCause(err))
	}
	request, err = tool.Decode(arguments)
	return tool, request, &executorv1.PreviewCallResponse{Epoch: s.Authority.Control().Epoch, Audience: s.Self.String()}, err
}

// Status fills what a sink's status says of halts, the other processes and itself into the answer, by the fields' names: each sink has
// a message of its own.
func (s *Sink) Status(ctx context.Context, into proto.Message) error {
	now := s.Authority.Control()
	unsettled, err := s.Authority.Unsettled(ctx)
	if err != nil {
		return err
	}
	common := &executorv1.GetStatusResponse{
		Halted: now.Halted, Epoch: now.Epoch, AuditReachable: s.Log.Reachable(), VaultReachable: s.VaultReachable(),
		SpooledRecords: uint32(max(s.Log.Depth(), 0)), Version: s.Version, StartedAt: timestamppb.New(s.started),
		Checkpoint: s.Log.Checkpoint(), Unsettled: uint32(unsettled), Problems: s.Deep.Problems(ctx),
	}
	if now.Halted {
		common.HaltedReason, common.HaltedBy = now.Reason, now.By
		if !now.At.IsZero() {
			common.HaltedAt = timestamppb.New(now.At)
		}
	}
	to := into.ProtoReflect()
	for field, value := range common.ProtoReflect().Range {
		to.Set(to.Descriptor().Fields().ByName(field.Name()), value)
	}
	return nil
}
