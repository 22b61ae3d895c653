// Package peers connects the operator's program to Durward's processes over mutual TLS, with the operator's own
// certificate. It trusts the trust folder; of the processes it believes only who their certificates say they are.
package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/trust"
)

// Vault is the vault's side that faces the operator.
type Vault struct {
	vaultv1.ApprovalServiceClient
	Control     vaultv1.ControlServiceClient
	Standing    vaultv1.StandingServiceClient
	Policy      vaultv1.PolicyServiceClient
	Credentials vaultv1.CredentialServiceClient
	Privacy     vaultv1.PrivacyServiceClient
	conn        *rpc.Any
}

// Spoken reports whether the vault was talked to over this connection and can be still.
func (v Vault) Spoken() bool { return v.conn.Spoken() }

// Executor is the executor's side that faces the operator.
type Executor struct {
	executorv1.ControlServiceClient
	Tools  executorv1.ToolServiceClient
	Events executorv1.EventServiceClient
}

// Audit is audit's side that faces the operator.
type Audit struct {
	auditv1.HistoryServiceClient
	Log       auditv1.LogServiceClient
	Retention auditv1.RetentionServiceClient
	Witness   auditv1.WitnessServiceClient
}

// SinkControl is the human's side of every sink.
type SinkControl interface {
	PreviewCall(ctx context.Context, in *executorv1.PreviewCallRequest, opts ...grpc.CallOption) (*executorv1.PreviewCallResponse, error)
	Halt(ctx context.Context, in *executorv1.HaltRequest, opts ...grpc.CallOption) (*executorv1.HaltResponse, error)
	Resume(ctx context.Context, in *executorv1.ResumeRequest, opts ...grpc.CallOption) (*executorv1.ResumeResponse, error)
	EndStanding(ctx context.Context, in *executorv1.EndStandingRequest, opts ...grpc.CallOption) (*executorv1.EndStandingResponse, error)
}

// Sink is one process where effects happen.
type Sink struct {
	SinkControl
	// Name is its role in words, "executor".
	Name string
	ID   identity.ID
	Conn grpc.ClientConnInterface
	// Control is its panic switch, as GetStatus shows it.
	Control func(ctx context.Context) (halted bool, epoch uint64, err error)
}

// Peers holds lazy connections to the processes: opening it dials nobody, and a process that is down fails only the calls
// that need it. It is safe for concurrent use.
type Peers struct {
	Vault    Vault
	Executor Executor
	Audit    Audit
	// Egress is nil where there is none.
	Egress egressv1.ControlServiceClient
	// Sinks are all of them, the executor first.
	Sinks []Sink
	// Trust is the operator's own trust folder.
	Trust *trust.Folder

	source *identity.Source
	stop   context.CancelFunc
	conns  []io.Closer
}

// Open reads the operator's identity and trust folder and prepares the connections; an identity that others supply is awaited for no
// longer than ctx, and followed until Close.
func Open(ctx context.Context, cfg installdir.Config) (*Peers, error) {
	folder, err := trust.Open(cfg.TrustDir)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	p := &Peers{Trust: folder, stop: stop}
	p.source, err = rpc.OpenIdentity(ctx, cfg.TLS, optionsv1.Role_ROLE_OPERATOR, folder)
	if err != nil {
		stop()
		folder.Close()
		return nil, err
	}
	dial := func(peer config.Peer) (_ *rpc.Any, server identity.ID) {
		if err != nil {
			return nil, server
		}
		if server, err = identity.Parse(peer.Identity); err != nil {
			return nil, server
		}
		var conn *rpc.Any
		if conn, err = rpc.DialAny(rpc.ClientConfig{
			Identity: p.source, Address: peer.Address, Server: server, Logger: slog.New(slog.DiscardHandler),
		}, peer.Standbys); err != nil {
			return nil, server
		}
		p.conns = append(p.conns, conn)
		return conn, server
	}
	vault, _ := dial(cfg.Vault)
	executor, executorID := dial(cfg.Executor)
	audit, _ := dial(cfg.Audit)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect: %w", err), p.Close())
	}
	p.Vault = Vault{vaultv1.NewApprovalServiceClient(vault), vaultv1.NewControlServiceClient(vault),
		vaultv1.NewStandingServiceClient(vault), vaultv1.NewPolicyServiceClient(vault), vaultv1.NewCredentialServiceClient(vault),
		vaultv1.NewPrivacyServiceClient(vault), vault}
	p.Executor = Executor{executorv1.NewControlServiceClient(executor), executorv1.NewToolServiceClient(executor),
		executorv1.NewEventServiceClient(executor)}
	p.Sinks = []Sink{{p.Executor, "executor", executorID, executor, func(ctx context.Context) (bool, uint64, error) {
		s, err := p.Executor.GetStatus(ctx, &executorv1.GetStatusRequest{})
		return s.GetHalted(), s.GetEpoch(), err
	}}}
	if cfg.Egress != nil {
		egress, egressID := dial(*cfg.Egress)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("connect: %w", err), p.Close())
		}
		p.Egress = egressv1.NewControlServiceClient(egress)
		p.Sinks = append(p.Sinks, Sink{p.Egress, "egress", egressID, egress, func(ctx context.Context) (bool, uint64, error) {
			s, err := p.Egress.GetStatus(ctx, &egressv1.GetStatusRequest{})
			return s.GetHalted(), s.GetEpoch(), err
		}})
	}
	p.Audit = Audit{auditv1.NewHistoryServiceClient(audit), auditv1.NewLogServiceClient(audit), auditv1.NewRetentionServiceClient(audit),
		auditv1.NewWitnessServiceClient(audit)}
	return p, nil
}

// SinkOf returns the sink that serves a role's tools; the executor where there is none.
func (p *Peers) SinkOf(role optionsv1.Role) Sink {
	for _, s := range p.Sinks {
		if s.ID.Role() == role {
			return s
		}
	}
	return p.Sinks[0]
}

// Identity is who the operator's program is.
func (p *Peers) Identity() identity.ID { return p.source.ID() }

// Close ends the connections and stops watching the trust folder.
func (p *Peers) Close() error {
	var problems []error
	for _, conn := range p.conns {
		problems = append(problems, conn.Close())
	}
	p.stop()
	p.Trust.Close()
	return errors.Join(problems...)
}
