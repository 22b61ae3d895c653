// Package rpc builds every gRPC server and client of Durward, so that there is one chain and no way round it. It is linked
// by every process. A server trusts its compiled contract (who may call what, which input is valid) and what mutual TLS
// proves of the peer; of the request it trusts nothing. A client trusts the one server identity that it was given.
//
// The chain, the same for unary calls, streams and methods that do not exist: request id, log and public error → recover →
// caller → unknown fields and contract rules → the service's own interceptors → handler. What comes back is always a fault
// with a public half; the cause is logged here, once. go-grpc-middleware recovers from panics and validates. Its logging and
// auth are not used: they cost more than the whole chain, and let a service decide by itself who may call it.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	validating "github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/protovalidate"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
)

const (
	// DefaultMessageBytes and MaxMessageBytes bound one message, in bytes.
	DefaultMessageBytes = 4 << 20
	MaxMessageBytes     = 16 << 20
	// maxHeaderBytes leaves room for a grant with the human's statements.
	maxHeaderBytes = 1 << 20
	// maxStreams bounds the calls of one connection at a time.
	maxStreams = 1024
	// streamWorkers is how many goroutines are kept for calls: a call's own would grow its stack each time anew. Further
	// calls get further goroutines.
	streamWorkers = 8
	// windowBytes is how much a peer may send ahead, per call and connection. A fixed size turns off gRPC's estimator, which
	// would answer every message with a ping.
	windowBytes = 1 << 20
	// maxConnectionAge makes every peer prove itself again.
	maxConnectionAge = time.Hour
	// connectionGrace is how long a call that has begun may still take: longer than the longest, a mutation's ten minutes.
	connectionGrace = 11 * time.Minute
	// drainTime is how long calls may take to end once the server is told to.
	drainTime = 5 * time.Second
	// handshakeTime bounds TLS and HTTP/2 set-up.
	handshakeTime = 5 * time.Second
	// askInterval is how soon a stream that says nothing ends after a change of trust was read.
	askInterval = 500 * time.Millisecond
	// unrootedTime is how long a connection stays whose root was taken away, so that its peer hears that it is refused.
	unrootedTime = 2 * time.Second
)

// ServerConfig is what a server needs. Identity and Logger are required.
type ServerConfig struct {
	Identity *identity.Source
	Logger   *slog.Logger
	// Foreign names who may call the methods ("/package.Service/Method") of protos that are not ours and so carry no
	// callers option.
	Foreign map[string][]optionsv1.Role
	// OnRefused is called for every call that is refused before the service sees it, so that the service can record it: by the chain,
	// or by gRPC, which cannot read it; and, without a method, for every peer that does not prove who it is. err.Cause says why; the
	// caller is zero if it could not be told. It must not block for long.
	OnRefused func(ctx context.Context, method string, caller identity.ID, err *fault.Error)
	// Unary and Stream run after authorisation and validation, first to last.
	Unary  []grpc.UnaryServerInterceptor
	Stream []grpc.StreamServerInterceptor
	// Tracer makes the spans of calls whose caller traces them, and of calls that change something though nobody traced
	// them before. Nil: none.
	Tracer trace.Tracer
	// MaxMessageBytes bounds a request; 0 means 4 MB, more than 16 MB is cut to that.
	MaxMessageBytes int
}

// Server is a gRPC server on which services are registered (it is a grpc.ServiceRegistrar) before Serve.
type Server struct {
	grpc.ServiceRegistrar
	cfg      ServerConfig
	grpc     *grpc.Server
	callers  map[string][]optionsv1.Role // by full method; complete before the first connection
	changes  map[string]bool             // the methods of tools beyond READ
	rules    *rules
	draining context.Context
	tools    toolCalls

	mu    sync.Mutex
	open  map[*checkedStream]struct{}
	conns map[*peerConn]struct{}
}

// NewServer returns a server without services. Mistakes in cfg are reported by Serve.
func NewServer(cfg ServerConfig) *Server {
	s := &Server{cfg: cfg, callers: map[string][]optionsv1.Role{}, changes: map[string]bool{}, rules: &rules{}, open: map[*checkedStream]struct{}{}, conns: map[*peerConn]struct{}{}}
	limit := cfg.MaxMessageBytes
	if limit <= 0 {
		limit = DefaultMessageBytes
	}
	recovered := recovery.WithRecoveryHandlerContext(s.panicked)
	var streams []grpc.StreamServerInterceptor
	for _, own := range cfg.Stream {
		streams = append(streams, besidesReflection(own))
	}
	opts := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(s.unary, recovery.UnaryServerInterceptor(recovered), s.admitUnary, validating.UnaryServerInterceptor(s.rules)),
		grpc.ChainUnaryInterceptor(cfg.Unary...),
		grpc.ChainStreamInterceptor(s.stream, recovery.StreamServerInterceptor(recovered), s.admitStream, validating.StreamServerInterceptor(s.rules)),
		grpc.ChainStreamInterceptor(streams...),
		// Without it a method that does not exist would skip the chain, and whoever asks would learn that.
		grpc.StatsHandler(unseen{s}),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return denied(errors.New("no such method")) }),
		grpc.MaxRecvMsgSize(min(limit, MaxMessageBytes)),
		grpc.MaxSendMsgSize(MaxMessageBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.InitialWindowSize(windowBytes),
		grpc.InitialConnWindowSize(windowBytes),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: maxConnectionAge, MaxConnectionAgeGrace: connectionGrace,
			Time: time.Minute, Timeout: 10 * time.Second,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
	if cfg.Identity != nil {
		opts = append(opts, grpc.Creds(peers{credentials.NewTLS(cfg.Identity.ServerTLS()), s}))
	}
	s.grpc = grpc.NewServer(opts...)
	s.ServiceRegistrar = s.grpc
	reflection.RegisterV1(s.grpc)
	return s
}

// Serve checks the server and serves on lis until ctx ends, then lets calls finish for at most 5 s (streams are told at
// once) and returns nil. It refuses to start, naming them all, when a registered method has no callers or a request type
// has a broken rule. It closes lis in every case.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	if err := s.check(); err != nil {
		return errors.Join(err, lis.Close())
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	draining, drain := context.WithCancel(context.WithoutCancel(ctx))
	defer drain()
	s.draining = draining
	asking.Go(func() { s.askAgain(draining) })

	if l, ok := lis.(*unixListener); ok {
		refused := func(peer unixPeer) {
			s.cfg.Logger.WarnContext(ctx, "connection refused: the Unix user may not connect", "uid", peer.uid, "pid", peer.pid)
		}
		l.refused.Store(&refused)
	}
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(lis) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	drain()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.grpc.GracefulStop()
	}()
	select {
	case <-stopped:
	case <-time.After(drainTime):
		s.cfg.Logger.WarnContext(ctx, "calls did not end in time and were cut off")
		// GracefulStop goes on waiting for handlers that ignore their context; the process is about to end without them.
		s.grpc.Stop()
	}
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// check reads the callers of every registered method.
func (s *Server) check() error {
	if s.cfg.Identity == nil || s.cfg.Logger == nil {
		return errors.New("rpc: a server needs an identity and a logger")
	}
	var open []string
	for service, info := range s.grpc.GetServiceInfo() {
		for _, method := range info.Methods {
			full := "/" + service + "/" + method.Name
			descriptor := findMethod(service, method.Name)
			if descriptor == nil {
				open = append(open, full)
				continue
			}
			callers := callersOf(descriptor)
			if len(callers) == 0 {
				callers = known(s.cfg.Foreign[full])
			}
			if full == reflectionMethod {
				callers = []optionsv1.Role{optionsv1.Role_ROLE_OPERATOR}
			}
			if len(callers) == 0 {
				open = append(open, full)
				continue
			}
			s.callers[full] = callers
			if tool, ok := proto.GetExtension(descriptor.Options(), optionsv1.E_Tool).(*optionsv1.Tool); ok {
				s.changes[full] = tool.GetTier() > optionsv1.Tier_TIER_READ
			}
		}
	}
	if len(open) > 0 {
		slices.Sort(open)
		return fmt.Errorf("rpc: methods without callers: %s", strings.Join(open, ", "))
	}
	return nil
}

func findMethod(service, method string) protoreflect.MethodDescriptor {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil
	}
	sd, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil
	}
	return sd.Methods().ByName(protoreflect.Name(method))
}

func callersOf(m protoreflect.MethodDescriptor) []optionsv1.Role {
	roles, _ := proto.GetExtension(m.Options(), optionsv1.E_Callers).([]optionsv1.Role)
	return known(roles)
}

// known leaves out what is not the name of a role: nobody can be it.
func known(roles []optionsv1.Role) []optionsv1.Role {
	return slices.DeleteFunc(slices.Clone(roles), func(r optionsv1.Role) bool { return identity.RoleName(r) == "" })
}
