// Package client is how an internal program uses Durward over gRPC: as a client of the vault that its certificate proves, with a session,
// permits and grants of its own. It needs no gateway, and has no way around what binds an agent.
//
//	cfg, err := client.Load("/etc/durward/tls/tools/reporter/connect.json")
//	c, err := client.Open(ctx, cfg)
//	list, err := executorv1.NewToolServiceClient(c).ListServices(ctx, &executorv1.ListServicesRequest{})
//
// A Client is the connection of the contract's generated clients: it knows of each RPC which process serves it and what it takes. A call
// that a human has to agree to returns when that is decided and the call was carried out; ctx bounds the wait.
//
// It runs in the program's own process. It trusts the trust folder, and of the processes what their certificates say.
package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/trust"
)

// Config is connect.json, as `durward client add-tool` writes it.
type Config struct {
	// TrustDir is the folder of trust roots. Required, absolute.
	TrustDir string `json:"trust_dir" yaml:"trust_dir"`
	// Certificate and Key are of spiffe://TRUST_DOMAIN/tool/NAME, and are read again when they are renewed. Required, absolute.
	Certificate string `json:"certificate" yaml:"certificate"`
	Key         string `json:"key" yaml:"key"`
	// Vault and Executor are where the processes listen and who they must prove to be. Required.
	Vault    Process `json:"vault" yaml:"vault"`
	Executor Process `json:"executor" yaml:"executor"`
	// Egress is the same for the process that reaches other hosts. Optional: without it there is none here.
	Egress *Process `json:"egress,omitempty" yaml:"egress"`
	// Tools are the digests of the definitions of the tools that it may call, in hex, for programs in other languages: an Authorise names a
	// tool by it. Optional: a Client takes them from the contract that it is built with.
	Tools map[string]string `json:"tools,omitempty" yaml:"tools"`

	// Name is what the program calls itself, for people. Optional.
	Name string `json:"-" yaml:"-"`
	// Reason is why it asks, for who approves: untrusted, and shown so. Optional.
	Reason string `json:"-" yaml:"-"`
	// Waiting is called when a call waits for a human, who decides until that time. Optional.
	Waiting func(operationID string, until time.Time) `json:"-" yaml:"-"`
}

// Process is one of Durward's.
type Process struct {
	Address  string   `json:"address" yaml:"address"`
	Identity string   `json:"identity" yaml:"identity"`
	Standbys []string `json:"standbys,omitempty" yaml:"standbys"`
}

// Load reads connect.json.
func Load(path string) (Config, error) {
	var c Config
	return c, config.Load(path, &c)
}

const (
	// askTime bounds a call that decides or looks, waitTime one that the vault holds, and runTime one that changes something: the catalog
	// allows an hour for a start.
	askTime  = 15 * time.Second
	waitTime = 50 * time.Second
	runTime  = 70 * time.Minute
	// renewBefore is how much life a permit must have left.
	renewBefore = 15 * time.Second
	// fresh is how long a permit counts as fresh: a call that is denied with an older one is tried again with another.
	fresh = time.Second
)

// Client is a session of an internal program. It is safe for concurrent use. Its errors are *fault.Error.
type Client struct {
	conf      Config
	trust     *trust.Folder
	conns     map[optionsv1.Role]*rpc.Any
	sessions  vaultv1.SessionServiceClient
	authority vaultv1.AuthorityServiceClient
	waits     vaultv1.ToolServiceClient

	mu      sync.Mutex
	session *vaultv1.OpenSessionResponse
	permits map[optionsv1.Role]permit
}

type permit struct {
	signed  string
	tools   []string
	got     time.Time
	expires time.Time
}

var _ grpc.ClientConnInterface = (*Client)(nil)

// Open connects to the processes and opens a session. The caller closes it.
func Open(ctx context.Context, conf Config) (_ *Client, err error) {
	c := &Client{conf: conf, conns: map[optionsv1.Role]*rpc.Any{}}
	if c.trust, err = trust.Open(conf.TrustDir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	source, err := identity.Open(identity.Files{Certificate: conf.Certificate, Key: conf.Key}, c.trust)
	if err != nil {
		return nil, err
	}
	processes := []Process{conf.Vault, conf.Executor}
	if conf.Egress != nil {
		processes = append(processes, *conf.Egress)
	}
	for _, p := range processes {
		id, err := identity.Parse(p.Identity)
		if err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
		conn, err := rpc.DialAny(rpc.ClientConfig{Identity: source, Address: p.Address, Server: id, Logger: slog.New(slog.DiscardHandler)}, p.Standbys)
		if err != nil {
			return nil, err
		}
		c.conns[id.Role()] = conn
	}
	vault := c.conns[optionsv1.Role_ROLE_VAULT]
	if vault == nil || c.conns[optionsv1.Role_ROLE_EXECUTOR] == nil {
		return nil, errors.New("client: vault and executor must have the identities of a vault and of an executor")
	}
	c.sessions, c.authority, c.waits = vaultv1.NewSessionServiceClient(vault), vaultv1.NewAuthorityServiceClient(vault), vaultv1.NewToolServiceClient(vault)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c, c.open(ctx)
}

// Close ends the session and the connections.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var problems []error
	if c.session != nil {
		ctx, cancel := context.WithTimeout(context.Background(), askTime)
		defer cancel()
		_, err := c.sessions.CloseSession(ctx, &vaultv1.CloseSessionRequest{SessionId: c.session.GetSessionId()})
		problems = append(problems, err)
		c.session = nil
	}
	for _, conn := range c.conns {
		problems = append(problems, conn.Close())
	}
	c.trust.Close()
	return errors.Join(problems...)
}

// Session is the session's public name, as it is in records and on screens.
func (c *Client) Session() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session.GetSession()
}

// Invoke implements grpc.ClientConnInterface, for the RPCs that an internal program may call.
func (c *Client) Invoke(ctx context.Context, method string, request, response any, _ ...grpc.CallOption) error {
	in, ok1 := request.(proto.Message)
	out, ok2 := response.(proto.Message)
	tool, found := contract.PermitOf(method)
	if !ok1 || !ok2 || !found {
		return fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "an internal program calls tools, and what takes a tool's permit")
	}
	own := tool.FullMethod == method
	p, err := c.permit(ctx, tool.Sink, false)
	if err != nil {
		return err
	}
	for renewed := false; ; renewed = true {
		if own && !slices.Contains(p.tools, tool.Name) {
			return c.ask(ctx, tool, in, out)
		}
		if err = c.read(ctx, tool, method, in, out, p); renewed || !p.stale(err) {
			return err
		}
		if p, err = c.permit(ctx, tool.Sink, true); err != nil {
			return err
		}
	}
}

// stale reports whether a fresh permit could change what became of a call with this one: a sink found it too old, or refused it for a
// reason that it keeps to itself, as after a halt, whose epoch makes older permits void.
func (p permit) stale(err error) bool {
	return fault.Is(err, callv1.Code_CODE_EXPIRED) || fault.Is(err, callv1.Code_CODE_DENIED) && time.Since(p.got) > fresh
}

func (c *Client) read(ctx context.Context, tool contract.Tool, method string, in, out proto.Message, p permit) error {
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	defer cancel()
	return c.call(ctx, tool, method, in, out, rpc.MetadataPermit, p.signed)
}

// NewStream implements grpc.ClientConnInterface. A stream ends with CODE_EXPIRED when its permit does: open it again. One that is opened
// just after an operator's halt can end with CODE_DENIED once.
func (c *Client) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	tool, found := contract.PermitOf(method)
	if !found {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "an internal program opens streams that take a tool's permit")
	}
	p, err := c.permit(ctx, tool.Sink, false)
	if err != nil {
		return nil, err
	}
	conn, err := c.conn(tool)
	if err != nil {
		return nil, err
	}
	stream, err := conn.NewStream(metadata.AppendToOutgoingContext(ctx, rpc.MetadataPermit, p.signed), desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &permitStream{stream, c, tool.Sink, p}, nil
}

// permitStream lets go of its permit when that has ended, which it can before its time, so that the next stream takes another.
type permitStream struct {
	grpc.ClientStream
	client *Client
	role   optionsv1.Role
	permit permit
}

func (s *permitStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if s.permit.stale(err) {
		s.client.mu.Lock()
		defer s.client.mu.Unlock()
		if p := s.client.permits[s.role]; p.signed == s.permit.signed {
			p.expires = time.Time{}
			s.client.permits[s.role] = p
		}
	}
	return err
}

func (c *Client) conn(tool contract.Tool) (*rpc.Any, error) {
	if conn := c.conns[tool.Sink]; conn != nil {
		return conn, nil
	}
	return nil, fault.New(callv1.Code_CODE_UNAVAILABLE, "the process that serves this tool is not connected")
}

func (c *Client) call(ctx context.Context, tool contract.Tool, method string, in, out proto.Message, key, permission string) error {
	conn, err := c.conn(tool)
	if err != nil {
		return err
	}
	_, err = rpc.Invoke(ctx, conn, method, in, out, key, permission)
	return err
}

// ask has a call decided, waits for a human if it has to, and carries it out.
func (c *Client) ask(ctx context.Context, tool contract.Tool, in, out proto.Message) error {
	arguments, err := contract.Canonical(in)
	if err != nil {
		return fault.From(err)
	}
	var answer *vaultv1.AuthoriseResponse
	err = c.inSession(ctx, func(ctx context.Context, id string) (err error) {
		answer, err = c.authority.Authorise(ctx, &vaultv1.AuthoriseRequest{SessionId: id, Tool: tool.Ref(), Arguments: arguments, Reason: c.conf.Reason})
		return err
	})
	if err != nil {
		return err
	}
	switch answer.GetDecision() {
	case vaultv1.AuthoriseResponse_DECISION_GRANTED:
		if len(answer.GetArguments()) > 0 {
			arguments = answer.GetArguments()
		}
		return c.carryOut(ctx, tool, arguments, answer.GetGrant(), out)
	case vaultv1.AuthoriseResponse_DECISION_PENDING:
		if c.conf.Waiting != nil {
			c.conf.Waiting(answer.GetOperationId(), answer.GetExpiresAt().AsTime())
		}
		return c.wait(ctx, tool, answer.GetOperationId(), out)
	default:
		return fault.New(callv1.Code_CODE_DENIED, sentence("the call is denied", answer.GetReason()))
	}
}

// wait returns when an operation was carried out, or will not be.
func (c *Client) wait(ctx context.Context, tool contract.Tool, operationID string, out proto.Message) error {
	for {
		stands, err := c.stands(ctx, operationID)
		switch {
		case fault.Is(err, callv1.Code_CODE_EXPIRED) && ctx.Err() == nil:
			if _, err := c.permit(ctx, optionsv1.Role_ROLE_VAULT, true); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case stands.GetGrant() != nil:
			return c.carryOut(ctx, tool, stands.GetArguments(), stands.GetGrant(), out)
		}
		switch stands.GetState() {
		case vaultv1.OperationState_OPERATION_STATE_PENDING:
			continue
		case vaultv1.OperationState_OPERATION_STATE_DENIED:
			return fault.New(callv1.Code_CODE_DENIED, sentence("a human denied the call", stands.GetReason()))
		case vaultv1.OperationState_OPERATION_STATE_RUNNING, vaultv1.OperationState_OPERATION_STATE_DONE:
			return fault.New(callv1.Code_CODE_UNKNOWN_OUTCOME, "the call was approved and begun, and how it ended is not told to this session")
		default:
			if stands.GetHalted() {
				return fault.New(callv1.Code_CODE_HALTED, "everything was halted, and nothing was done; ask again when that is over")
			}
			return fault.New(callv1.Code_CODE_EXPIRED, "nobody decided on the call in time, or it was taken back")
		}
	}
}

func (c *Client) stands(ctx context.Context, operationID string) (*vaultv1.WaitOperationResponse, error) {
	p, err := c.permit(ctx, optionsv1.Role_ROLE_VAULT, false)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, rpc.MetadataPermit, p.signed), waitTime)
	defer cancel()
	return c.waits.WaitOperation(ctx, &vaultv1.WaitOperationRequest{OperationId: &operationID})
}

func (c *Client) carryOut(ctx context.Context, tool contract.Tool, arguments []byte, signed *callv1.SignedGrant, out proto.Message) error {
	in, err := tool.Decode(arguments)
	if err != nil {
		return err
	}
	grant, err := proto.Marshal(signed)
	if err != nil {
		return fault.From(err)
	}
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	return c.call(ctx, tool, tool.FullMethod, in, out, rpc.MetadataGrant, string(grant))
}

func sentence(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}

// open opens a session. The caller holds the lock.
func (c *Client) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	opened, err := c.sessions.OpenSession(ctx, &vaultv1.OpenSessionRequest{ClientName: c.conf.Name})
	if err != nil {
		return err
	}
	c.session = opened
	return c.keep(opened.GetPermits())
}

// keep keeps permits. The caller holds the lock.
func (c *Client) keep(signed []*vaultv1.AddressedPermit) error {
	c.permits = map[optionsv1.Role]permit{}
	for _, p := range signed {
		raw, err := proto.Marshal(p.GetPermit())
		payload := &callv1.Permit{}
		if err = errors.Join(err, proto.Unmarshal(p.GetPermit().GetPayload(), payload)); err != nil {
			return fault.From(err)
		}
		c.permits[p.GetRole()] = permit{string(raw), payload.GetTools(), time.Now(), p.GetExpiresAt().AsTime()}
	}
	return nil
}

// permit is the session's permit for a process, renewed if it is about to end, or must be.
func (c *Client) permit(ctx context.Context, role optionsv1.Role, renew bool) (permit, error) {
	c.mu.Lock()
	p, ok := c.permits[role]
	c.mu.Unlock()
	if !renew && (!ok || time.Until(p.expires) > renewBefore) {
		return p, nil
	}
	err := c.inSession(ctx, func(ctx context.Context, id string) error {
		answer, err := c.sessions.RenewPermits(ctx, &vaultv1.RenewPermitsRequest{SessionId: id})
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.keep(answer.GetPermits())
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.permits[role], err
}

// inSession does something with the session, and once more with another where the vault knows it no more.
func (c *Client) inSession(ctx context.Context, do func(ctx context.Context, id string) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	c.mu.Lock()
	id := c.session.GetSessionId()
	c.mu.Unlock()
	err := do(ctx, id)
	if !fault.Is(err, callv1.Code_CODE_UNAUTHENTICATED) {
		return err
	}
	c.mu.Lock()
	if c.session.GetSessionId() == id {
		err = c.open(ctx)
	} else {
		err = nil // another call opened one
	}
	id = c.session.GetSessionId()
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return do(ctx, id)
}
