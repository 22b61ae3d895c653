// Package relay speaks to the processes behind the gateway: sessions, permits, decisions and operations at the vault,
// tools at the sinks. It runs in the untrusted edge and decides nothing: it passes on a client's credential and proofs,
// and what the vault signed. Handles and permits stay in memory and are never logged.
//
// Everything is safe for concurrent use. Errors are *fault.Error.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
)

// Config is what New needs.
type Config struct {
	// Vault and Executor are connections that reconnect by themselves and fail at once while the peer is away.
	Vault, Executor grpc.ClientConnInterface
	// Egress is the same; nil: there is none here, and the vault offers no tool of its.
	Egress grpc.ClientConnInterface
	// Waits is another connection to the vault, for the calls that the vault holds: a connection carries so many calls at a
	// time, and no decision may stand in line behind those who wait.
	Waits  grpc.ClientConnInterface
	Logger *slog.Logger
	// DecideTimeout bounds every call to the vault but the wait for an operation; 0: 1.9 s, so that an agent learns within
	// 2 s that the vault is away.
	DecideTimeout time.Duration
	// ReadTimeout bounds a READ tool's call; 0: 15 s.
	ReadTimeout time.Duration
	// RunTimeout bounds the call that carries out a mutation; 0: 10 min.
	RunTimeout time.Duration
	// Fresh is how old a permit may be for a sink's denial to be taken as the last word, and for lists to be made of what came with it;
	// 0: 2 s. An older one is renewed first.
	Fresh time.Duration
	// Joined, where set, is called when a further caller joins an operation that is under way; it returns at once.
	Joined func()
}

// Relay is the gateway's side of the other processes.
type Relay struct {
	conf     Config
	sessions vaultv1.SessionServiceClient
	decide   vaultv1.AuthorityServiceClient
	wait     vaultv1.ToolServiceClient
	stands   vaultv1.OperationServiceClient
	changes  vaultv1.OperationServiceClient
	watched  vaultv1.SessionServiceClient
	events   executorv1.EventServiceClient
	flights  flights
	looks    looks
	dangers  dangers
	lists    lists
	// listeners are the streams under way, each a *listener.
	listeners sync.Map
}

// New returns a Relay over the connections of conf.
func New(conf Config) (*Relay, error) {
	if conf.Vault == nil || conf.Waits == nil || conf.Executor == nil || conf.Logger == nil {
		return nil, errors.New("relay: both connections to the vault, the executor and a logger are required")
	}
	conf.DecideTimeout = orDefault(conf.DecideTimeout, 1900*time.Millisecond)
	conf.ReadTimeout = orDefault(conf.ReadTimeout, 15*time.Second)
	conf.RunTimeout = orDefault(conf.RunTimeout, 10*time.Minute)
	conf.Fresh = orDefault(conf.Fresh, 2*time.Second)
	return &Relay{
		conf:     conf,
		sessions: vaultv1.NewSessionServiceClient(conf.Vault),
		decide:   vaultv1.NewAuthorityServiceClient(conf.Vault),
		wait:     vaultv1.NewToolServiceClient(conf.Waits),
		stands:   vaultv1.NewOperationServiceClient(conf.Vault),
		changes:  vaultv1.NewOperationServiceClient(conf.Waits),
		watched:  vaultv1.NewSessionServiceClient(conf.Waits),
		events:   executorv1.NewEventServiceClient(conf.Executor),
		flights:  flights{joined: conf.Joined},
		looks:    newLooks(),
	}, nil
}

func orDefault(d, standard time.Duration) time.Duration {
	if d <= 0 {
		return standard
	}
	return d
}

// Reply is a sink's answer: the tool's own response, and what the sink says about how the call went.
type Reply struct {
	Response proto.Message
	Outcome  *callv1.Outcome
}

// Read calls a READ tool under the session's permit: one hop while the permit is warm.
func (r *Relay) Read(ctx context.Context, s *Session, by Caller, tool contract.Tool, request proto.Message) (Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, r.conf.ReadTimeout)
	defer cancel()
	var reply Reply
	err := r.withPermit(ctx, s, by, tool.Sink, func(permit string) (err error) {
		reply, err = r.invoke(ctx, tool, request, rpc.MetadataPermit, permit)
		return err
	})
	return reply, err
}

// ReadOnce calls a READ tool with a grant for this one call. It is not tried again: the grant is spent.
func (r *Relay) ReadOnce(ctx context.Context, tool contract.Tool, request proto.Message, signed *callv1.SignedGrant) (Reply, error) {
	grant, err := proto.Marshal(signed)
	if err != nil {
		return Reply{}, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(fmt.Errorf("encode grant: %w", err)))
	}
	most := r.conf.ReadTimeout
	if tool.Foreign != nil {
		most = r.conf.RunTimeout // egress bounds it by the server's entry
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return r.invoke(ctx, tool, request, rpc.MetadataGrant, string(grant))
}

// late tells a peer that let our time run out from one that is not there: what it was asked for may still happen. The peer's
// side of the connection keeps the deadline too, and may be the first to say so.
func late(ctx context.Context, err error) error {
	if !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) {
		return err
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) && status.Code(fault.From(err).Cause) != codes.DeadlineExceeded {
		return err
	}
	return fault.New(callv1.Code_CODE_TIMEOUT, fault.From(err).Message, fault.WithRetry(time.Second), fault.WithCause(err))
}

// Authorise asks the vault for leave to make one call. arguments is the RFC 8785 form of the request. With joinOnly it is
// CODE_CONFLICT unless an identical call waits or runs.
func (r *Relay) Authorise(ctx context.Context, s *Session, by Caller, tool contract.Tool, arguments []byte, reason string, joinOnly bool) (*vaultv1.AuthoriseResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, r.conf.DecideTimeout)
	defer cancel()
	var out *vaultv1.AuthoriseResponse
	err := r.withSession(ctx, s, by, func(handle string) error {
		var err error
		asked := time.Now()
		out, err = r.decide.Authorise(ctx, &vaultv1.AuthoriseRequest{
			SessionId: handle, Tool: tool.Ref(), Arguments: arguments, Proof: by.proof(callv1.Proof_PURPOSE_CALL), Reason: reason,
			JoinOnly: joinOnly,
		})
		if until := out.GetDangerousUntil(); err == nil && until != nil {
			r.dangers.hear(s.Ref(), until.AsTime(), asked) // that it is over is for the stream to say
		}
		if f := fault.From(err); f != nil && f.Code == callv1.Code_CODE_PROOF_REQUIRED {
			return fault.New(f.Code, f.Message, fault.WithRetry(f.RetryAfter), fault.WithCause(ProofNeeded{callv1.Proof_PURPOSE_CALL}))
		}
		return late(ctx, err)
	})
	return out, err
}

// Wait asks the vault once where an operation stands; the vault answers when that changes, or after a while of its own, or
// shortly before ctx ends.
func (r *Relay) Wait(ctx context.Context, s *Session, by Caller, operationID string) (*vaultv1.WaitOperationResponse, error) {
	var out *vaultv1.WaitOperationResponse
	err := r.withPermit(ctx, s, by, optionsv1.Role_ROLE_VAULT, func(permit string) (err error) {
		ctx := metadata.AppendToOutgoingContext(ctx, rpc.MetadataPermit, permit)
		out, err = r.wait.WaitOperation(ctx, &vaultv1.WaitOperationRequest{OperationId: &operationID})
		return err
	})
	return out, err
}

// Run carries out an operation with its grant. The call to the sink outlives ctx, since a sink that has recorded an intent
// finishes whoever waits: when ctx ends first, Run returns ErrRunning, and a later Run of the same operation joins the call
// that is under way.
func (r *Relay) Run(ctx context.Context, tool contract.Tool, request proto.Message, operationID string, signed *callv1.SignedGrant) (Reply, error) {
	grant, err := proto.Marshal(signed)
	if err != nil {
		return Reply{}, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(fmt.Errorf("encode grant: %w", err)))
	}
	return r.flights.do(ctx, operationID, func() (Reply, error) {
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.conf.RunTimeout)
		defer cancel()
		return r.invoke(detached, tool, request, rpc.MetadataGrant, string(grant))
	})
}

// Tools are the contract's tools but those of a process that is not connected: nobody is shown what he cannot call.
func (r *Relay) Tools() []contract.Tool {
	return slices.DeleteFunc(contract.Tools(), func(t contract.Tool) bool { return !r.connected(t) })
}

// own leaves out of a session's tools those that Tools leaves out.
func (r *Relay) own(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		t, ok := contract.Lookup(name)
		return !ok || !r.connected(t)
	})
}

// Pinned finds a tool of somebody else's MCP server.
func (r *Relay) Pinned(name string) (contract.Tool, bool) {
	t, ok := contract.Lookup(name)
	return t, ok && t.Foreign != nil && r.connected(t)
}

// connected reports whether the process that serves a tool is.
func (r *Relay) connected(t contract.Tool) bool {
	return t.Sink != optionsv1.Role_ROLE_EGRESS || r.conf.Egress != nil
}

// invoke calls a tool's RPC with one permission in the metadata.
func (r *Relay) invoke(ctx context.Context, tool contract.Tool, request proto.Message, key, permission string) (Reply, error) {
	var conn grpc.ClientConnInterface
	switch tool.Sink {
	case optionsv1.Role_ROLE_EXECUTOR:
		conn = r.conf.Executor
	case optionsv1.Role_ROLE_VAULT:
		conn = r.conf.Vault
	case optionsv1.Role_ROLE_EGRESS:
		conn = r.conf.Egress
	default: // no other role serves tools
	}
	if conn == nil {
		return Reply{}, fault.New(callv1.Code_CODE_UNAVAILABLE, "the process that serves this tool is not connected")
	}
	response := tool.NewResponse()
	outcome, err := rpc.Invoke(ctx, conn, tool.FullMethod, request, response, key, permission)
	if err != nil {
		return Reply{Outcome: outcome}, fault.From(late(ctx, err))
	}
	return Reply{Response: response, Outcome: outcome}, nil
}

// ErrRunning is returned when a caller stopped waiting for an operation that goes on.
var ErrRunning = errors.New("the operation is still running")

// flights joins calls that carry out the same operation: one of them speaks to the sink, all of them get its answer,
// which none of them may change.
type flights struct {
	mu   sync.Mutex
	byID map[string]*flight
	// joined, where set, is called when a further caller joins a flight that is under way.
	joined func()
}

type flight struct {
	done  chan struct{}
	reply Reply
	err   error
}

// do runs fn for id, unless it is under way, and waits for its end or for ctx. fn is not cancelled with ctx. An operation
// id is the vault's unguessable one, which it gave to this caller too.
func (f *flights) do(ctx context.Context, id string, fn func() (Reply, error)) (Reply, error) {
	f.mu.Lock()
	if f.byID == nil {
		f.byID = map[string]*flight{}
	}
	current, joined := f.byID[id]
	if !joined {
		current = &flight{done: make(chan struct{})}
		f.byID[id] = current
		go func() {
			current.reply, current.err = fn()
			f.mu.Lock()
			delete(f.byID, id)
			f.mu.Unlock()
			close(current.done)
		}()
	}
	f.mu.Unlock()
	if joined && f.joined != nil {
		f.joined()
	}
	select {
	case <-current.done:
		return current.reply, current.err
	case <-ctx.Done():
		return Reply{}, ErrRunning
	}
}
