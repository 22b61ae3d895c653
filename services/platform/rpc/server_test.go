package rpc_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pki"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/platform/trust"
)

const (
	gateway  = optionsv1.Role_ROLE_GATEWAY
	vault    = optionsv1.Role_ROLE_VAULT
	executor = optionsv1.Role_ROLE_EXECUTOR
	operator = optionsv1.Role_ROLE_OPERATOR
	audit    = optionsv1.Role_ROLE_AUDIT
)

// tools is an executor whose handlers the test chooses.
type tools struct {
	executorv1.UnimplementedToolServiceServer
	info func(context.Context, *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error)
}

func (s *tools) ServiceInfo(ctx context.Context, r *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
	return s.info(ctx, r)
}

// log is an audit whose handlers the test chooses.
type history struct {
	auditv1.UnimplementedHistoryServiceServer
	tail func(*auditv1.TailRecordsRequest, grpc.ServerStreamingServer[auditv1.TailRecordsResponse]) error
}

func (s *history) TailRecords(r *auditv1.TailRecordsRequest, stream grpc.ServerStreamingServer[auditv1.TailRecordsResponse]) error {
	return s.tail(r, stream)
}

type logs struct {
	auditv1.UnimplementedLogServiceServer
	calls int
}

func (s *logs) Append(context.Context, *auditv1.AppendRequest) (*auditv1.AppendResponse, error) {
	s.calls++
	return &auditv1.AppendResponse{}, nil
}

// watch collects what a server logs and refuses.
type watch struct {
	mu       sync.Mutex
	log      bytes.Buffer
	refusals []string
}

func (w *watch) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *watch) configure(t *testing.T) func(*rpc.ServerConfig) {
	logger, err := telemetry.NewLogger(w, "test", "debug")
	must(t, err)
	return func(c *rpc.ServerConfig) {
		c.Logger = logger
		c.OnRefused = func(ctx context.Context, method string, caller identity.ID, err *fault.Error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.refusals = append(w.refusals, fmt.Sprintf("%s %s %s %v", method, caller, err.Code, err.Cause))
			if !rpc.ValidRequestID(rpc.RequestID(ctx)) {
				t.Errorf("a refusal without a request id")
			}
		}
	}
}

// lines returns the log's lines at a level.
func (w *watch) lines(t *testing.T, level string) []map[string]any {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []map[string]any
	for line := range strings.Lines(w.log.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("not JSON: %q", line)
		}
		if m["level"] == level {
			out = append(out, m)
		}
	}
	return out
}

func serviceID(id string) *executorv1.ServiceInfoRequest {
	return &executorv1.ServiceInfoRequest{ServiceId: proto.String(id)}
}

// Every registered method, called by every role: only the callers that the contract names get to the handler, and every
// refusal is the same to the one who is refused.
func TestCallers(t *testing.T) {
	kit := platformtest.New(t)
	var w watch
	addr := kit.Serve(t, executor, "local", func(r grpc.ServiceRegistrar) {
		executorv1.RegisterToolServiceServer(r, executorv1.UnimplementedToolServiceServer{})
		executorv1.RegisterControlServiceServer(r, executorv1.UnimplementedControlServiceServer{})
		vaultv1.RegisterApprovalServiceServer(r, vaultv1.UnimplementedApprovalServiceServer{})
		auditv1.RegisterLogServiceServer(r, auditv1.UnimplementedLogServiceServer{})
		auditv1.RegisterHistoryServiceServer(r, auditv1.UnimplementedHistoryServiceServer{})
	}, w.configure(t))

	methods := map[string][]optionsv1.Role{
		"/durward.executor.v1.NoService/NoMethod":   nil,
		"/durward.executor.v1.ToolService/NoMethod": nil,
		"/grpc.health.v1.Health/Check":              nil,
	}
	for _, service := range []string{"durward.executor.v1.ToolService", "durward.executor.v1.ControlService",
		"durward.vault.v1.ApprovalService", "durward.audit.v1.LogService", "durward.audit.v1.HistoryService"} {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoName(service))
		must(t, err)
		ms := serviceDescriptor(d).Methods()
		for i := range ms.Len() {
			roles, _ := proto.GetExtension(ms.Get(i).Options(), optionsv1.E_Callers).([]optionsv1.Role)
			if len(roles) == 0 {
				t.Errorf("%s.%s has no callers", service, ms.Get(i).Name())
			}
			methods["/"+service+"/"+string(ms.Get(i).Name())] = roles
		}
	}
	refusals, reached := 0, 0
	var sentence string
	for number := range optionsv1.Role_name {
		role := optionsv1.Role(number)
		if role == optionsv1.Role_ROLE_UNSPECIFIED {
			continue
		}
		conn := kit.Dial(t, kit.ID(role, "main"), addr, kit.ID(executor, "local"))
		for method, callers := range methods {
			for _, streaming := range []bool{false, true} {
				err := invoke(t, conn, method, streaming)
				allowed := false
				for _, c := range callers {
					allowed = allowed || c == role
				}
				if allowed {
					reached++
					// It went on to validation or to the (unimplemented) handler.
					if err == nil || fault.Is(err, callv1.Code_CODE_DENIED) {
						t.Errorf("%s may call %s and gets %v", role, method, err)
					}
					continue
				}
				refusals++
				if !fault.Is(err, callv1.Code_CODE_DENIED) {
					t.Errorf("%s may not call %s and gets %v", role, method, err)
					continue
				}
				// Alike to the last bit but the request id.
				st := status.Convert(errors.Unwrap(err)).Proto()
				var f callv1.Fault
				must(t, st.GetDetails()[0].UnmarshalTo(&f))
				f.RequestId = ""
				got := fmt.Sprint(st.GetCode(), st.GetMessage(), len(st.GetDetails()), &f)
				if sentence == "" {
					sentence = got
				}
				if got != sentence {
					t.Errorf("a refusal that differs: %q, %q", got, sentence)
				}
			}
		}
	}
	if !strings.Contains(sentence, "not allowed") || refusals < 100 || reached < 20 {
		t.Errorf("%d refusals, %d reached, sentence %q", refusals, reached, sentence)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	denials := 0
	for _, r := range w.refusals {
		if strings.Contains(r, "CODE_DENIED") {
			denials++
		}
	}
	if denials != refusals {
		t.Errorf("the service heard of %d of %d refusals", denials, refusals)
	}
}

func invoke(t *testing.T, conn *grpc.ClientConn, method string, streaming bool) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	in, out := &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{}
	if !streaming {
		return conn.Invoke(ctx, method, in, out)
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	_ = s.SendMsg(in) // a refusal is read below
	_ = s.CloseSend()
	return s.RecvMsg(out)
}

// A call of an internal program beyond those that it may have under way reaches no handler.
func TestCallsBeyondTheLimit(t *testing.T) {
	const open = 64
	kit := platformtest.New(t)
	var w watch
	var reached atomic.Int32
	inside, release := make(chan struct{}), make(chan struct{})
	addr := kit.Serve(t, executor, "local", func(r grpc.ServiceRegistrar) {
		executorv1.RegisterToolServiceServer(r, &tools{info: func(context.Context, *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
			if reached.Add(1) <= open {
				inside <- struct{}{}
				<-release
			}
			return &executorv1.ServiceInfoResponse{}, nil
		}})
	}, w.configure(t))
	client := executorv1.NewToolServiceClient(kit.Dial(t, kit.ID(optionsv1.Role_ROLE_TOOL, "busy"), addr, kit.ID(executor, "local")))
	ended := make(chan error, open)
	for range open {
		go func() {
			_, err := client.ServiceInfo(t.Context(), serviceID("a"))
			ended <- err
		}()
		<-inside
	}
	if _, err := client.ServiceInfo(t.Context(), serviceID("a")); !fault.Is(err, callv1.Code_CODE_RATE_LIMITED) {
		t.Errorf("one more: %v", err)
	}
	close(release)
	for range open {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if _, err := client.ServiceInfo(t.Context(), serviceID("a")); err != nil {
		t.Errorf("after they ended: %v", err)
	}
	if n := reached.Load(); n != open+1 || len(w.refusals) != 1 {
		t.Errorf("%d calls reached the handler, refused %v", n, w.refusals)
	}
}

func TestPeersWithoutIdentity(t *testing.T) {
	kit, impostor := platformtest.New(t), platformtest.New(t)
	called := false
	addr := kit.Serve(t, executor, "local", func(r grpc.ServiceRegistrar) {
		executorv1.RegisterToolServiceServer(r, &tools{info: func(context.Context, *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
			called = true
			return &executorv1.ServiceInfoResponse{}, nil
		}})
	})
	noCert := kit.Identity(gateway, "main").ClientTLS(kit.ID(executor, "local"))
	noCert.GetClientCertificate = nil
	foreign := impostor.Identity(gateway, "main").ClientTLS(kit.ID(executor, "local"))
	foreign.VerifyPeerCertificate = nil
	for name, creds := range map[string]credentials.TransportCredentials{
		"plain text":        insecure.NewCredentials(),
		"no certificate":    credentials.NewTLS(noCert),
		"another authority": credentials.NewTLS(foreign),
	} {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		if _, err := executorv1.NewToolServiceClient(conn).ServiceInfo(ctx, serviceID("a")); err == nil {
			t.Errorf("%s: answered", name)
		}
		cancel()
		_ = conn.Close()
	}
	// A client that dials the right address and finds another server says nothing to it.
	for role, name := range map[optionsv1.Role]string{vault: "the vault", optionsv1.Role_ROLE_AUDIT: "audit", optionsv1.Role_ROLE_EGRESS: "egress"} {
		wrong := kit.Dial(t, kit.ID(gateway, "main"), addr, kit.ID(role, "main"))
		_, err := executorv1.NewToolServiceClient(wrong).ServiceInfo(t.Context(), serviceID("a"))
		if !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) || err.Error() != name+" cannot be reached" {
			t.Errorf("the wrong server: %v", err)
		}
	}
	if called {
		t.Error("a handler ran")
	}
}

// A revoked caller is refused on the connection it already has.
func TestRevocationOnALiveConnection(t *testing.T) {
	kit := platformtest.New(t)
	addr := kit.Serve(t, executor, "local", func(r grpc.ServiceRegistrar) {
		executorv1.RegisterToolServiceServer(r, &tools{info: func(context.Context, *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
			return &executorv1.ServiceInfoResponse{}, nil
		}})
	})
	client := executorv1.NewToolServiceClient(kit.Dial(t, kit.ID(gateway, "main"), addr, kit.ID(executor, "local")))
	if _, err := client.ServiceInfo(t.Context(), serviceID("a")); err != nil {
		t.Fatal(err)
	}
	kit.Revoke(kit.ID(gateway, "main"))
	if _, err := client.ServiceInfo(t.Context(), serviceID("a")); !fault.Is(err, callv1.Code_CODE_DENIED) {
		t.Errorf("a revoked caller gets %v", err)
	}
}

// Nothing more goes to a server that was revoked, nor is taken from it, on the connection that there is.
func TestRevokedServerOnALiveConnection(t *testing.T) {
	kit := platformtest.New(t)
	var calls atomic.Int32
	revoked := make(chan struct{})
	addr := kit.Serve(t, executor, "local", func(r grpc.ServiceRegistrar) {
		executorv1.RegisterToolServiceServer(r, &tools{info: func(context.Context, *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
			calls.Add(1)
			return &executorv1.ServiceInfoResponse{}, nil
		}})
		auditv1.RegisterHistoryServiceServer(r, &history{tail: func(_ *auditv1.TailRecordsRequest, s grpc.ServerStreamingServer[auditv1.TailRecordsResponse]) error {
			calls.Add(1)
			if err := s.Send(&auditv1.TailRecordsResponse{}); err != nil {
				return err
			}
			<-revoked
			return s.Send(&auditv1.TailRecordsResponse{})
		}})
	})
	conn := kit.Dial(t, kit.ID(operator, platformtest.Operator), addr, kit.ID(executor, "local"))
	gatewayConn := kit.Dial(t, kit.ID(gateway, "main"), addr, kit.ID(executor, "local"))
	client, tail := executorv1.NewToolServiceClient(gatewayConn), auditv1.NewHistoryServiceClient(conn)
	if _, err := client.ServiceInfo(t.Context(), serviceID("a")); err != nil {
		t.Fatal(err)
	}
	stream, err := tail.TailRecords(t.Context(), &auditv1.TailRecordsRequest{})
	must(t, err)
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	kit.Revoke(kit.ID(executor, "local"))
	close(revoked)
	refused := func(what string, err error) {
		t.Helper()
		if !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) || err.Error() != "the executor cannot be reached" || !strings.Contains(fault.From(err).Cause.Error(), "revoked") {
			t.Errorf("%s a revoked server: %v", what, err)
		}
	}
	_, err = stream.Recv()
	refused("a message of", err)
	_, err = client.ServiceInfo(t.Context(), serviceID("a"))
	refused("a call of", err)
	_, err = tail.TailRecords(t.Context(), &auditv1.TailRecordsRequest{})
	refused("a stream from", err)
	if n := calls.Load(); n != 2 {
		t.Errorf("the server saw %d calls, want the 2 from before", n)
	}
}

// A stream ends soon after its caller is let in no more, whether or not it has something to say, and calls on the same
// connection are refused; others go on.
func TestStreamsEndWithTheirCallersTrust(t *testing.T) {
	for name, change := range map[string]struct {
		trust func(t *testing.T, kit *platformtest.Kit)
		cause string
	}{
		"revoked": {func(_ *testing.T, kit *platformtest.Kit) {
			kit.WriteTrust(trust.FileRevoked, []byte("revoked: ["+kit.ID(operator, "mallory").String()+"]\n"))
		}, "revoked"},
		"its root is removed": {func(_ *testing.T, kit *platformtest.Kit) {
			kit.WriteTrust(trust.FileCA, kit.CA.CertificatePEM())
		}, "not trusted any more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				kit := platformtest.New(t, platformtest.InMemory())
				second, err := pki.NewCA(kit.TrustDomain)
				must(t, err)
				kit.WriteTrust(trust.FileCA, append(kit.CA.CertificatePEM(), second.CertificatePEM()...))
				must(t, kit.Trust.Reload())
				w := &watch{}
				say, sent := make(chan struct{}), make(chan error, 1)
				addr := kit.Serve(t, audit, "main", func(r grpc.ServiceRegistrar) {
					auditv1.RegisterHistoryServiceServer(r, &history{tail: func(r *auditv1.TailRecordsRequest, s grpc.ServerStreamingServer[auditv1.TailRecordsResponse]) error {
						if err := s.Send(&auditv1.TailRecordsResponse{}); err != nil {
							return err
						}
						if r.GetFromIndex() == talking {
							<-say
							err := s.Send(&auditv1.TailRecordsResponse{})
							sent <- err
							return nil // what the handler makes of it does not matter
						}
						<-s.Context().Done()
						return s.Context().Err()
					}})
				}, w.configure(t))
				mallory := issued(t, kit, second, kit.ID(operator, "mallory"))
				conn := kit.DialWith(t, mallory, addr, kit.ID(audit, "main"))
				open := func(conn *grpc.ClientConn, from uint64) grpc.ServerStreamingClient[auditv1.TailRecordsResponse] {
					t.Helper()
					stream, err := auditv1.NewHistoryServiceClient(conn).TailRecords(t.Context(), &auditv1.TailRecordsRequest{FromIndex: from})
					must(t, err)
					if _, err := stream.Recv(); err != nil {
						t.Fatal(err)
					}
					return stream
				}
				quiet, loud := open(conn, 0), open(conn, talking)
				honest := open(kit.Dial(t, kit.ID(operator, "alice"), addr, kit.ID(audit, "main")), 0)

				change.trust(t, kit)
				began := time.Now()
				before := kit.Trust.Current()
				<-time.After(time.Second) // the folder is looked at once a second
				synctest.Wait()
				if kit.Trust.Current() == before {
					t.Fatal("the change of trust is not taken up")
				}
				close(say)
				if err := <-sent; !fault.Is(err, callv1.Code_CODE_DENIED) {
					t.Errorf("a message after the change: %v", err)
				}
				for what, stream := range map[string]grpc.ServerStreamingClient[auditv1.TailRecordsResponse]{"quiet": quiet, "loud": loud} {
					if m, err := stream.Recv(); !fault.Is(err, callv1.Code_CODE_DENIED) || err.Error() != fault.NotAllowed {
						t.Errorf("the %s stream got %v, %v", what, m, err)
					}
				}
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("the streams ended after %v", took)
				}
				if _, err := auditv1.NewHistoryServiceClient(conn).GetRecord(t.Context(), &auditv1.GetRecordRequest{}); !fault.Is(err, callv1.Code_CODE_DENIED) {
					t.Errorf("a call on the same connection: %v", err)
				}
				w.mu.Lock()
				refusals := slices.Clone(w.refusals)
				w.mu.Unlock()
				if len(refusals) != 3 || !strings.Contains(refusals[0], "TailRecords "+kit.ID(operator, "mallory").String()) || !strings.Contains(refusals[0], change.cause) {
					t.Errorf("refusals: %q, want one for each stream and one for the call", refusals)
				}
				if err := honest.Context().Err(); err != nil {
					t.Errorf("another's stream: %v", err)
				}
				ended := make(chan error, 1)
				go func() { _, err := honest.Recv(); ended <- err }()
				select {
				case err := <-ended:
					t.Errorf("another's stream ended: %v", err)
				case <-time.After(5 * time.Second):
				}
			})
		})
	}
}

// A peer whose root is taken away and that has another certificate by then comes back with it: it is not refused for as long as its old
// connection would last.
func TestAnotherRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kit := platformtest.New(t, platformtest.InMemory())
		second, err := pki.NewCA(kit.TrustDomain)
		must(t, err)
		trusted := func(roots ...*pki.CA) {
			var bundle []byte
			for _, ca := range roots {
				bundle = append(bundle, ca.CertificatePEM()...)
			}
			kit.WriteTrust(trust.FileCA, bundle)
			must(t, kit.Trust.Reload())
		}
		trusted(kit.CA, second)
		calls := 0
		addr := kit.Serve(t, executor, "local", func(r grpc.ServiceRegistrar) {
			executorv1.RegisterToolServiceServer(r, &tools{info: func(context.Context, *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
				calls++
				return &executorv1.ServiceInfoResponse{}, nil
			}})
		})
		id := kit.ID(gateway, "main")
		client := executorv1.NewToolServiceClient(kit.Dial(t, id, addr, kit.ID(executor, "local")))
		call := func() error { _, err := client.ServiceInfo(t.Context(), serviceID("a")); return err }
		must(t, call())
		for _, to := range []identity.ID{id, kit.ID(executor, "local")} {
			certificate, key, err := second.Issue(to, 0)
			if err == nil {
				err = pki.WriteLeaf(filepath.Join(kit.Dir, "tls", identity.RoleName(to.Role()), to.Instance()), certificate, key)
			}
			must(t, err)
		}
		time.Sleep(2 * time.Second) // both read their files again
		if err := call(); err != nil {
			t.Errorf("while both roots are trusted: %v", err)
		}
		trusted(second)
		if err := call(); !fault.Is(err, callv1.Code_CODE_DENIED) {
			t.Errorf("on the old connection: %v", err)
		}
		time.Sleep(4 * time.Second)
		if err := call(); err != nil || calls != 3 {
			t.Errorf("with the new certificate: %v, %d calls", err, calls)
		}
	})
}

// talking asks the test's history to send once more when it is told to.
const talking = 7

// issued returns an identity from a second authority.
func issued(t *testing.T, kit *platformtest.Kit, ca *pki.CA, id identity.ID) *identity.Source {
	t.Helper()
	cert, key, err := ca.Issue(id, 0)
	must(t, err)
	dir := t.TempDir()
	must(t, pki.WriteLeaf(dir, cert, key))
	source, err := identity.Open(identity.Files{Certificate: filepath.Join(dir, pki.FileCertificate), Key: filepath.Join(dir, pki.FileKey)}, kit.Trust)
	must(t, err)
	return source
}

// What a handler's error carries inside never reaches the peer; what it says in public does.
func TestFaultRoundTrip(t *testing.T) {
	kit := platformtest.New(t)
	inner := errors.New("open /var/lib/durward/executor.db: near SELECT: syntax error")
	public := fault.New(callv1.Code_CODE_CONFLICT, "the service is being stopped", fault.WithField("service_id"),
		fault.WithRetry(3*time.Second), fault.WithSuggestions("demo-chat"), fault.WithCause(inner))
	failures := map[string]error{
		"public":  public,
		"wrapped": fmt.Errorf("start %w: %w", inner, public),
		"private": inner,
		"status":  status.Error(codes.NotFound, inner.Error()),
		"timeout": fmt.Errorf("%w: %w", inner, context.DeadlineExceeded),
	}
	var w watch
	addr := kit.Serve(t, executor, "local", func(r grpc.ServiceRegistrar) {
		executorv1.RegisterToolServiceServer(r, &tools{info: func(ctx context.Context, m *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
			if m.GetServiceId() == "panic" {
				panic(inner)
			}
			return &executorv1.ServiceInfoResponse{}, failures[m.GetServiceId()]
		}})
	}, w.configure(t))
	client := executorv1.NewToolServiceClient(kit.Dial(t, kit.ID(gateway, "main"), addr, kit.ID(executor, "local")))
	internal := fault.Error{Code: callv1.Code_CODE_INTERNAL, Message: "internal error"}
	conflict := fault.Error{Code: callv1.Code_CODE_CONFLICT, Message: "the service is being stopped", Field: "service_id", Retryable: true, RetryAfter: 3 * time.Second, DidYouMean: []string{"demo-chat"}}
	for name, want := range map[string]fault.Error{
		"public": conflict, "wrapped": conflict, "private": internal, "status": internal, "panic": internal,
		"timeout": {Code: callv1.Code_CODE_TIMEOUT, Message: "the call took too long", Retryable: true},
	} {
		_, err := client.ServiceInfo(rpc.WithRequestID(t.Context(), "r-"+name), serviceID(name))
		var got *fault.Error
		if !errors.As(err, &got) {
			t.Fatalf("%s: a %T", name, err)
		}
		wire := fmt.Sprint(status.Convert(got.Cause).Proto())
		if strings.Contains(wire, "SELECT") || strings.Contains(wire, "/var") || strings.Contains(wire, "goroutine") {
			t.Errorf("%s: the peer sees %s", name, wire)
		}
		if !strings.Contains(wire, "r-"+name) {
			t.Errorf("%s: no request id in %s", name, wire)
		}
		flat := *got
		flat.Cause = nil
		if diff := cmp.Diff(want, flat); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	// Our own log has the cause, once, and a panic's stack.
	byRequest := map[string]int{}
	for _, line := range w.lines(t, "ERROR") {
		id, _ := line["request_id"].(string)
		byRequest[id]++
		if !strings.Contains(fmt.Sprint(line), "SELECT") {
			t.Errorf("an error line without its cause: %v", line)
		}
		if _, has := line["stack"]; has != (id == "r-panic") {
			t.Errorf("stack in %s: %v", id, has)
		}
	}
	if diff := cmp.Diff(map[string]int{"r-private": 1, "r-status": 1, "r-panic": 1}, byRequest); diff != "" {
		t.Error(diff)
	}
}

func TestRequestID(t *testing.T) {
	kit := platformtest.New(t)
	var seen string
	var who identity.ID
	addr := kit.Serve(t, executor, "local", func(r grpc.ServiceRegistrar) {
		executorv1.RegisterToolServiceServer(r, &tools{info: func(ctx context.Context, _ *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
			seen = rpc.RequestID(ctx)
			who, _ = rpc.Caller(ctx)
			return &executorv1.ServiceInfoResponse{}, nil
		}})
	})
	client := executorv1.NewToolServiceClient(kit.Dial(t, kit.ID(operator, "alice"), addr, kit.ID(executor, "local")))
	call := func(ctx context.Context) string {
		t.Helper()
		if _, err := client.ServiceInfo(ctx, serviceID("a")); err != nil {
			t.Fatal(err)
		}
		return seen
	}
	if got := call(rpc.WithRequestID(t.Context(), "r-given")); got != "r-given" {
		t.Errorf("the given id became %q", got)
	}
	if who != kit.ID(operator, "alice") {
		t.Errorf("the caller is %q", who)
	}
	if a, b := call(t.Context()), call(t.Context()); a == b || len(a) != 28 || !rpc.ValidRequestID(a) {
		t.Errorf("new ids %q, %q", a, b)
	}
	for _, bad := range []string{"", "UPPER", "a b", "a\u202e", "a\n", strings.Repeat("a", 65)} {
		if got := call(rpc.WithRequestID(t.Context(), bad)); got == bad || !rpc.ValidRequestID(got) {
			t.Errorf("%q was sent as %q", bad, got)
		}
	}
	twice := metadata.AppendToOutgoingContext(t.Context(), rpc.MetadataRequestID, "r-one", rpc.MetadataRequestID, "r-two")
	if got := call(rpc.WithRequestID(twice, "r-three")); got != "r-three" {
		t.Errorf("metadata won over the context: %q", got)
	}

	// A client that is not ours may send anything.
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(
		kit.Identity(gateway, "main").ClientTLS(kit.ID(executor, "local")))))
	must(t, err)
	defer conn.Close()
	for _, ids := range [][]string{nil, {""}, {"UPPER"}, {"a b"}, {"../x"}, {strings.Repeat("a", 65)}, {"r_1"}, {"r-one", "r-two"}} {
		ctx := metadata.NewOutgoingContext(t.Context(), metadata.MD{rpc.MetadataRequestID: ids})
		if _, err := executorv1.NewToolServiceClient(conn).ServiceInfo(ctx, serviceID("a")); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(seen, "r-") || len(seen) != 28 {
			t.Errorf("%q was taken over as %q", ids, seen)
		}
	}
}

func TestRequestsAreChecked(t *testing.T) {
	kit := platformtest.New(t)
	var w watch
	service := &logs{}
	addr := kit.Serve(t, audit, "main", func(r grpc.ServiceRegistrar) {
		auditv1.RegisterLogServiceServer(r, service)
		auditv1.RegisterHistoryServiceServer(r, &history{tail: func(*auditv1.TailRecordsRequest, grpc.ServerStreamingServer[auditv1.TailRecordsResponse]) error {
			service.calls++
			return nil
		}})
	}, w.configure(t))
	client := auditv1.NewLogServiceClient(kit.Dial(t, kit.ID(vault, "main"), addr, kit.ID(audit, "main")))
	request := func(change func(*auditv1.AppendRequest)) *auditv1.AppendRequest {
		r := &auditv1.AppendRequest{Records: []*auditv1.Record{{Sequence: 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.Now(), Body: &auditv1.Body{
			Statement: &callv1.HumanStatement{Statement: []byte("{}"), Signature: []byte("x")}, Details: map[string]string{"a": "b"}}}}}
		change(r)
		return r
	}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 5000, protowire.VarintType), 1)
	for name, tc := range map[string]struct {
		change      func(*auditv1.AppendRequest)
		field, text string
	}{
		"unknown field":                 {func(r *auditv1.AppendRequest) { r.ProtoReflect().SetUnknown(unknown) }, "", "the request holds a field that is not in the contract"},
		"unknown field, nested":         {func(r *auditv1.AppendRequest) { r.Records[0].Body.Statement.ProtoReflect().SetUnknown(unknown) }, "records.body.statement", "records.body.statement holds a field that is not in the contract"},
		"unknown, in a well-known type": {func(r *auditv1.AppendRequest) { r.Records[0].Time.ProtoReflect().SetUnknown(unknown) }, "records.time", "records.time holds a field that is not in the contract"},
		"rule":                          {func(r *auditv1.AppendRequest) { r.Records = nil }, "records", "records has too few entries, the least is 1"},
		"rule, nested":                  {func(r *auditv1.AppendRequest) { r.Records[0].Body.Details["x"] = strings.Repeat("SECRET", 500) }, "records.body.details", "records.body.details is too long, the most is 1024"},
	} {
		_, err := client.Append(t.Context(), request(tc.change))
		var f *fault.Error
		if !errors.As(err, &f) || f.Code != callv1.Code_CODE_INVALID_ARGUMENT || f.Field != tc.field || f.Message != tc.text {
			t.Errorf("%s: %+v", name, f)
		}
	}
	// The same for a message on a stream.
	stream, err := auditv1.NewHistoryServiceClient(kit.Dial(t, kit.ID(operator, "alice"), addr, kit.ID(audit, "main"))).
		TailRecords(t.Context(), func() *auditv1.TailRecordsRequest {
			r := &auditv1.TailRecordsRequest{}
			r.ProtoReflect().SetUnknown(unknown)
			return r
		}())
	if err == nil {
		_, err = stream.Recv()
	}
	if !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) {
		t.Errorf("a stream's message: %v", err)
	}
	if service.calls > 0 {
		t.Errorf("%d handlers ran", service.calls)
	}
	if _, err := client.Append(t.Context(), request(func(*auditv1.AppendRequest) {})); err != nil || service.calls != 1 {
		t.Errorf("a good request: %v", err)
	}
	if len(w.refusals) != 6 || len(w.lines(t, "WARN")) != 6 {
		t.Errorf("recorded %v, logged %d", w.refusals, len(w.lines(t, "WARN")))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.Contains(w.log.String(), "SECRET") {
		t.Error("the log repeats a value")
	}
}

// A panic ends one call. Its text and its stack are in our log, and nowhere else.
func TestPanics(t *testing.T) {
	const secret = "near SELECT: /var/lib/durward"
	kit := platformtest.New(t)
	var w watch
	addr := kit.Serve(t, audit, "main", func(r grpc.ServiceRegistrar) {
		auditv1.RegisterLogServiceServer(r, &logs{})
		auditv1.RegisterHistoryServiceServer(r, &history{tail: func(_ *auditv1.TailRecordsRequest, s grpc.ServerStreamingServer[auditv1.TailRecordsResponse]) error {
			if err := s.Send(&auditv1.TailRecordsResponse{}); err != nil {
				return err
			}
			panic(secret)
		}})
	}, w.configure(t), func(c *rpc.ServerConfig) {
		c.Unary = append(c.Unary, func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
			panic(errors.New(secret))
		})
		c.OnRefused = func(context.Context, string, identity.ID, *fault.Error) { panic(secret) }
	})
	vaults := auditv1.NewLogServiceClient(kit.Dial(t, kit.ID(vault, "main"), addr, kit.ID(audit, "main")))
	operators := auditv1.NewHistoryServiceClient(kit.Dial(t, kit.ID(operator, "alice"), addr, kit.ID(audit, "main")))
	calls := map[string]func(context.Context) error{
		"interceptor": func(ctx context.Context) error { _, err := vaults.GetHead(ctx, &auditv1.GetHeadRequest{}); return err },
		"refused":     func(ctx context.Context) error { _, err := vaults.Append(ctx, &auditv1.AppendRequest{}); return err },
		"stream": func(ctx context.Context) error {
			return drain(operators.TailRecords(ctx, &auditv1.TailRecordsRequest{}))
		},
		"refused-a-stream": func(ctx context.Context) error {
			return drain(auditv1.NewHistoryServiceClient(kit.Dial(t, kit.ID(gateway, "main"), addr, kit.ID(audit, "main"))).TailRecords(ctx, &auditv1.TailRecordsRequest{}))
		},
	}
	for name, call := range calls {
		err := call(rpc.WithRequestID(t.Context(), "r-"+name))
		var got *fault.Error
		if !errors.As(err, &got) || got.Code != callv1.Code_CODE_INTERNAL || got.Message != fault.Internal {
			t.Fatalf("%s: %v", name, err)
		}
		if wire := fmt.Sprint(status.Convert(got.Cause).Proto()); strings.Contains(wire, "SELECT") || strings.Contains(wire, "goroutine") || !strings.Contains(wire, "r-"+name) {
			t.Errorf("%s: the peer sees %s", name, wire)
		}
	}
	logged := map[string]int{}
	for _, line := range w.lines(t, "ERROR") {
		logged[fmt.Sprint(line["request_id"])]++
		text, stack := fmt.Sprint(line["fault"]), fmt.Sprint(line["stack"])
		if line["msg"] != "call panicked" || !strings.Contains(text, secret) || !strings.Contains(stack, "TestPanics") || line["caller"] == nil || line["method"] == nil {
			t.Errorf("logged as %v", line)
		}
	}
	if diff := cmp.Diff(map[string]int{"r-interceptor": 1, "r-refused": 1, "r-stream": 1, "r-refused-a-stream": 1}, logged); diff != "" {
		t.Error(diff)
	}
}

// drain reads a stream to its end.
func drain[T any](stream grpc.ServerStreamingClient[T], err error) error {
	for err == nil {
		_, err = stream.Recv()
	}
	return err
}

// What protovalidate says of a request stays here: its text repeats the key of a map.
func TestViolationsAreOurs(t *testing.T) {
	kit := platformtest.New(t)
	var w watch
	addr := kit.Serve(t, audit, "main", func(r grpc.ServiceRegistrar) {
		auditv1.RegisterLogServiceServer(r, &logs{})
		executorv1.RegisterControlServiceServer(r, executorv1.UnimplementedControlServiceServer{})
	}, w.configure(t))
	details := map[string]string{"SECRET": strings.Repeat("x", 2000)}
	_, unary := auditv1.NewLogServiceClient(kit.Dial(t, kit.ID(vault, "main"), addr, kit.ID(audit, "main"))).Append(t.Context(),
		&auditv1.AppendRequest{Records: []*auditv1.Record{{Sequence: 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.Now(), Body: &auditv1.Body{Details: details}}}})
	stream := drain(executorv1.NewControlServiceClient(kit.Dial(t, kit.ID(operator, "alice"), addr, kit.ID(audit, "main"))).
		FollowLogs(t.Context(), &executorv1.FollowLogsRequest{ServiceId: "a;SECRET"}))
	for text, err := range map[string]error{"records.body.details is too long, the most is 1024": unary, "service_id does not match the pattern of an id": stream} {
		var got *fault.Error
		if !errors.As(err, &got) || got.Code != callv1.Code_CODE_INVALID_ARGUMENT || got.Message != text || !strings.HasPrefix(text, got.Field+" ") {
			t.Errorf("%+v, want %s", got, text)
			continue
		}
		if st := status.Convert(got.Cause).Proto(); len(st.GetDetails()) != 1 || st.GetMessage() != text || strings.Contains(fmt.Sprint(st), "SECRET") {
			t.Errorf("the peer sees %v", st)
		}
	}
	if len(w.refusals) != 2 || !strings.Contains(fmt.Sprint(w.refusals), "rule string.max_len") || !strings.Contains(fmt.Sprint(w.refusals), "rule string.pattern") || strings.Contains(w.log.String(), "SECRET") {
		t.Errorf("recorded %q, logged %s", w.refusals, &w.log)
	}
}

// An outcome that cannot be read is no success: what was done is not known.
func TestInvoke(t *testing.T) {
	kit := platformtest.New(t)
	trailers := map[string]metadata.MD{
		"none": nil, "good": metadata.Pairs(rpc.TrailerOutcome, "\x12\x02ok"), "broken": metadata.Pairs(rpc.TrailerOutcome, "\x12\x7fok"),
		"two": metadata.Pairs(rpc.TrailerOutcome, "\x12\x02ok", rpc.TrailerOutcome, "\x12\x02ok"),
	}
	addr := kit.Serve(t, executor, "local", func(r grpc.ServiceRegistrar) {
		executorv1.RegisterToolServiceServer(r, &tools{info: func(ctx context.Context, m *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			if diff := cmp.Diff([]string{"a permit"}, md.Get(rpc.MetadataPermit)); diff != "" {
				t.Error(diff)
			}
			trailer, known := trailers[m.GetServiceId()]
			if strings.HasPrefix(m.GetServiceId(), "recorded") {
				err := fault.New(callv1.Code_CODE_NOT_FOUND, "no such service")
				return nil, errors.Join(err, grpc.SetTrailer(ctx, trailers[strings.TrimPrefix(m.GetServiceId(), "recorded-")]))
			}
			if !known {
				return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "no such service")
			}
			return &executorv1.ServiceInfoResponse{}, grpc.SetTrailer(ctx, trailer)
		}})
	})
	conn := kit.Dial(t, kit.ID(gateway, "main"), addr, kit.ID(executor, "local"))
	// What failed after it was recorded has an outcome too, where it can be read.
	for name, summary := range map[string]string{"good": "ok", "broken": "", "two": ""} {
		outcome, err := rpc.Invoke(t.Context(), conn, executorv1.ToolService_ServiceInfo_FullMethodName, serviceID("recorded-"+name), &executorv1.ServiceInfoResponse{}, rpc.MetadataPermit, "a permit")
		if !fault.Is(err, callv1.Code_CODE_NOT_FOUND) || outcome.GetSummary() != summary || (outcome != nil) != (summary != "") {
			t.Errorf("recorded, then %s: %v, %v", name, outcome, err)
		}
	}
	for name, want := range map[string]callv1.Code{"none": 0, "good": 0, "broken": callv1.Code_CODE_UNKNOWN_OUTCOME, "two": callv1.Code_CODE_UNKNOWN_OUTCOME, "failed": callv1.Code_CODE_NOT_FOUND} {
		outcome, err := rpc.Invoke(t.Context(), conn, executorv1.ToolService_ServiceInfo_FullMethodName, serviceID(name), &executorv1.ServiceInfoResponse{}, rpc.MetadataPermit, "a permit")
		if (want == 0) != (err == nil) || err != nil && !fault.Is(err, want) || (err == nil) != (outcome != nil) {
			t.Errorf("%s: %v, %v", name, outcome, err)
		}
		if name == "good" && outcome.GetSummary() != "ok" {
			t.Errorf("the outcome is %v", outcome)
		}
	}
}

func TestTooLarge(t *testing.T) {
	kit := platformtest.New(t)
	service := &logs{}
	addr := kit.Serve(t, audit, "main", func(r grpc.ServiceRegistrar) { auditv1.RegisterLogServiceServer(r, service) },
		func(c *rpc.ServerConfig) { c.MaxMessageBytes = 1000 })
	client := auditv1.NewLogServiceClient(kit.Dial(t, kit.ID(vault, "main"), addr, kit.ID(audit, "main")))
	_, err := client.Append(t.Context(), &auditv1.AppendRequest{Records: []*auditv1.Record{{Sequence: 1, Kind: auditv1.Kind_KIND_NOTE,
		Time: timestamppb.Now(), Body: &auditv1.Body{Arguments: strings.Repeat("x", 2000)}}}})
	if !fault.Is(err, callv1.Code_CODE_TOO_LARGE) || service.calls > 0 {
		t.Errorf("%v, %d calls", err, service.calls)
	}
}

// garbled sends bytes that are no message.
type garbled struct{}

func (garbled) Marshal(any) ([]byte, error)       { return []byte{0xff, 0xff}, nil }
func (garbled) Unmarshal(raw []byte, v any) error { return nil }
func (garbled) Name() string                      { return "proto" }

// What gRPC or TLS refuses before the chain sees it is told of all the same, once each, with who asked; a peer that hangs up without a
// word, and one that goes away while it asks, is not.
func TestWhatTheChainNeverSeesIsToldOf(t *testing.T) {
	kit := platformtest.New(t)
	service := &logs{}
	var mu sync.Mutex
	var told []string
	addr := kit.Serve(t, audit, "main", func(r grpc.ServiceRegistrar) {
		auditv1.RegisterLogServiceServer(r, service)
		auditv1.RegisterHistoryServiceServer(r, auditv1.UnimplementedHistoryServiceServer{})
	}, func(c *rpc.ServerConfig) {
		c.MaxMessageBytes = 1000
		c.OnRefused = func(_ context.Context, method string, caller identity.ID, err *fault.Error) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf("%s %s: %v", method, caller, err.Cause))
		}
	})
	const method = "/durward.audit.v1.LogService/Append"
	conn := kit.Dial(t, kit.ID(vault, "main"), addr, kit.ID(audit, "main"))
	large := &auditv1.AppendRequest{Records: []*auditv1.Record{{Body: &auditv1.Body{Arguments: strings.Repeat("x", 2000)}}}}
	if err := conn.Invoke(t.Context(), method, large, &auditv1.AppendResponse{}); !fault.Is(err, callv1.Code_CODE_TOO_LARGE) {
		t.Errorf("too large: %v", err)
	}
	if err := conn.Invoke(t.Context(), method, large, &auditv1.AppendResponse{}, grpc.ForceCodec(garbled{})); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
		t.Errorf("no message: %v", err)
	}
	const stream = "/durward.audit.v1.HistoryService/TailRecords"
	tail, err := kit.Dial(t, kit.ID(operator, "ada"), addr, kit.ID(audit, "main")).NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, stream, grpc.ForceCodec(garbled{}))
	if err == nil {
		err = errors.Join(tail.SendMsg(large), tail.CloseSend())
	}
	must(t, err)
	if err := tail.RecvMsg(large); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
		t.Errorf("no message, in a stream: %v", err)
	}
	plain, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err == nil { // in TLS 1.3 the client hears of it with its first read
		_, _ = plain.Read(make([]byte, 1))
		_ = plain.Close()
	}
	silent, err := net.Dial("tcp", addr)
	must(t, err)
	_ = silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := conn.Invoke(ctx, method, &auditv1.AppendRequest{}, &auditv1.AppendResponse{}); err == nil {
		t.Error("a caller that is gone is answered")
	}
	id := kit.ID(vault, "main").String()
	want := []string{" : the peer did not prove who it is", method + " " + id + ": the message cannot be read", method + " " + id + ": the message is too large",
		stream + " " + kit.ID(operator, "ada").String() + ": the message cannot be read"}
	slices.Sort(want)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) { // the end of a call is told when it is over, on the server's side
		mu.Lock()
		got := slices.Sorted(slices.Values(told))
		mu.Unlock()
		if slices.Equal(got, want) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("told of %q, want %q", got, want)
		}
	}
	if service.calls > 0 {
		t.Errorf("%d calls", service.calls)
	}
}

func TestInterceptorsRunAfterTheChecks(t *testing.T) {
	kit := platformtest.New(t)
	ran := 0
	service := &logs{}
	addr := kit.Serve(t, audit, "main", func(r grpc.ServiceRegistrar) { auditv1.RegisterLogServiceServer(r, service) }, func(c *rpc.ServerConfig) {
		c.Unary = append(c.Unary, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			ran++
			if id, ok := rpc.Caller(ctx); !ok || id != kit.ID(vault, "main") {
				t.Errorf("the caller is %q", id)
			}
			return nil, fault.New(callv1.Code_CODE_HALTED, "halted")
		})
	})
	client := auditv1.NewLogServiceClient(kit.Dial(t, kit.ID(vault, "main"), addr, kit.ID(audit, "main")))
	if _, err := client.Append(t.Context(), &auditv1.AppendRequest{}); !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) || ran != 0 {
		t.Errorf("an invalid request: %v, ran %d", err, ran)
	}
	if _, err := client.GetHead(t.Context(), &auditv1.GetHeadRequest{}); !fault.Is(err, callv1.Code_CODE_HALTED) || ran != 1 {
		t.Errorf("a valid request: %v, ran %d", err, ran)
	}
}

func TestServeRefuses(t *testing.T) {
	registerBroken(t)
	kit := platformtest.New(t)
	base := rpc.ServerConfig{Identity: kit.Identity(executor, "local"), Logger: platformtest.Logger()}
	for name, tc := range map[string]struct {
		cfg      rpc.ServerConfig
		register func(grpc.ServiceRegistrar)
		says     []string
	}{
		"no identity": {rpc.ServerConfig{Logger: base.Logger}, nil, []string{"needs an identity"}},
		"no logger":   {rpc.ServerConfig{Identity: base.Identity}, nil, []string{"needs an identity and a logger"}},
		"foreign services without callers": {base, func(r grpc.ServiceRegistrar) {
			executorv1.RegisterToolServiceServer(r, executorv1.UnimplementedToolServiceServer{})
			healthpb.RegisterHealthServer(r, health.NewServer())
		}, []string{"methods without callers: /grpc.health.v1.Health/Check, /grpc.health.v1.Health/List, /grpc.health.v1.Health/Watch"}},
		"foreign, partly named": {rpc.ServerConfig{Identity: base.Identity, Logger: base.Logger, Foreign: map[string][]optionsv1.Role{
			"/grpc.health.v1.Health/Check": {operator}, "/grpc.health.v1.Health/List": {}, "/grpc.health.v1.Health/Watch": {optionsv1.Role_ROLE_UNSPECIFIED, 77}}},
			func(r grpc.ServiceRegistrar) { healthpb.RegisterHealthServer(r, health.NewServer()) },
			[]string{"without callers: /grpc.health.v1.Health/List, /grpc.health.v1.Health/Watch"}},
		"our own without callers, or unknown": {base, func(r grpc.ServiceRegistrar) { registerService(r, "rpctest.OpenService", "Do", "Gone") },
			[]string{"/rpctest.OpenService/Do", "/rpctest.OpenService/Gone"}},
		"no descriptor at all": {base, func(r grpc.ServiceRegistrar) { registerService(r, "nowhere.Service", "Do") }, []string{"/nowhere.Service/Do"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := rpc.NewServer(tc.cfg)
			if tc.register != nil {
				tc.register(server)
			}
			lis, err := rpc.Listen("127.0.0.1:0", false)
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			err = server.Serve(ctx, lis)
			if err == nil {
				t.Fatal("it served")
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("says %q, not %q", err, want)
				}
			}
			if _, err := lis.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("the listener is open: %v", err)
			}
		})
	}
}

// A rule that does not compile lets nothing through: what it would refuse is not known.
func TestABrokenRuleRefusesTheCall(t *testing.T) {
	registerBroken(t)
	kit := platformtest.New(t)
	const method = "/rpctest.BrokenService/Do"
	kind, err := protoregistry.GlobalTypes.FindMessageByName("rpctest.Broken")
	must(t, err)
	addr := kit.Serve(t, executor, "local", func(r grpc.ServiceRegistrar) {
		r.RegisterService(&grpc.ServiceDesc{ServiceName: "rpctest.BrokenService", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
			MethodName: "Do",
			Handler: func(_ any, ctx context.Context, decode func(any) error, chain grpc.UnaryServerInterceptor) (any, error) {
				m := kind.New().Interface()
				if err := decode(m); err != nil {
					return nil, err
				}
				return chain(ctx, m, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) {
					t.Error("a call whose rules are broken reached the service")
					return m, nil
				})
			},
		}}}, nil)
	})
	conn := kit.Dial(t, kit.ID(gateway, "main"), addr, kit.ID(executor, "local"))
	for range 2 {
		if err := conn.Invoke(t.Context(), method, kind.New().Interface(), kind.New().Interface()); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
			t.Errorf("the call ends with %v", err)
		}
	}
}

func TestForeign(t *testing.T) {
	kit := platformtest.New(t)
	addr := kit.Serve(t, executor, "local", func(r grpc.ServiceRegistrar) { healthpb.RegisterHealthServer(r, health.NewServer()) }, func(c *rpc.ServerConfig) {
		c.Foreign = map[string][]optionsv1.Role{"/grpc.health.v1.Health/Check": {operator}, "/grpc.health.v1.Health/List": {operator}, "/grpc.health.v1.Health/Watch": {operator}}
	})
	call := func(role optionsv1.Role) error {
		_, err := healthpb.NewHealthClient(kit.Dial(t, kit.ID(role, "main"), addr, kit.ID(executor, "local"))).Check(t.Context(), &healthpb.HealthCheckRequest{})
		return err
	}
	if err := call(operator); err != nil {
		t.Error(err)
	}
	if err := call(gateway); !fault.Is(err, callv1.Code_CODE_DENIED) {
		t.Errorf("the gateway gets %v", err)
	}
}

// An operator, and nobody else, may ask a server what it serves; a service's own interceptors have no part in that.
func TestReflection(t *testing.T) {
	kit := platformtest.New(t)
	addr := kit.Serve(t, executor, "local", func(r grpc.ServiceRegistrar) { executorv1.RegisterToolServiceServer(r, &tools{}) }, func(c *rpc.ServerConfig) {
		c.Stream = append(c.Stream, func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error {
			return errors.New("not without a permit")
		})
	})
	for value := range optionsv1.Role_name {
		role := optionsv1.Role(value)
		if identity.RoleName(role) == "" {
			continue
		}
		stream, err := reflectionpb.NewServerReflectionClient(kit.Dial(t, kit.ID(role, "main"), addr, kit.ID(executor, "local"))).ServerReflectionInfo(t.Context())
		must(t, err)
		ask := func(r *reflectionpb.ServerReflectionRequest) (*reflectionpb.ServerReflectionResponse, error) {
			if err := stream.Send(r); err != nil && !errors.Is(err, io.EOF) {
				return nil, err
			}
			return stream.Recv()
		}
		list, err := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
		if role != operator {
			if !fault.Is(err, callv1.Code_CODE_DENIED) {
				t.Errorf("%s: %v, %v", role, list, err)
			}
			continue
		}
		file, err2 := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: "durward.executor.v1.ToolService",
		}})
		if err != nil || err2 != nil || !strings.Contains(list.String(), "durward.executor.v1.ToolService") || len(file.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("%v, %v; %v, %v", list, err, file, err2)
		}
	}
}

// A server that is told to stop lets a call finish, ends streams, and takes no new calls.
func TestDrain(t *testing.T) {
	kit := platformtest.New(t)
	entered, release, streaming := make(chan struct{}), make(chan struct{}), make(chan struct{})
	server := rpc.NewServer(rpc.ServerConfig{Identity: kit.Identity(executor, "local"), Logger: platformtest.Logger()})
	executorv1.RegisterToolServiceServer(server, &tools{info: func(ctx context.Context, _ *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
		close(entered)
		<-release
		return &executorv1.ServiceInfoResponse{}, ctx.Err()
	}})
	auditv1.RegisterHistoryServiceServer(server, &history{tail: func(_ *auditv1.TailRecordsRequest, s grpc.ServerStreamingServer[auditv1.TailRecordsResponse]) error {
		close(streaming)
		<-s.Context().Done()
		return s.Context().Err()
	}})
	lis, err := rpc.Listen("127.0.0.1:0", false)
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, lis) }()
	conn := kit.Dial(t, kit.ID(operator, "alice"), lis.Addr().String(), kit.ID(executor, "local"))
	answered, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_, err := executorv1.NewToolServiceClient(conn).ServiceInfo(ctx, serviceID("a"))
		answered <- err
	}()
	go func() {
		s, err := auditv1.NewHistoryServiceClient(conn).TailRecords(context.Background(), &auditv1.TailRecordsRequest{})
		if err == nil {
			_, err = s.Recv()
		}
		ended <- err
	}()
	<-entered
	<-streaming
	stop()
	if err := <-ended; err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("the call that was running: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := executorv1.NewToolServiceClient(conn).ServiceInfo(t.Context(), serviceID("a")); !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) {
		t.Errorf("a new call: %v", err)
	}
}

// A handler that ignores everything holds the server up for 5 s and no longer.
func TestDrainIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kit := platformtest.New(t, platformtest.InMemory())
		entered, release := make(chan struct{}), make(chan struct{})
		defer close(release)
		server := rpc.NewServer(rpc.ServerConfig{Identity: kit.Identity(executor, "local"), Logger: platformtest.Logger()})
		executorv1.RegisterToolServiceServer(server, &tools{info: func(context.Context, *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
			close(entered)
			<-release
			return nil, nil
		}})
		lis, addr := kit.Listen(t)
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- server.Serve(ctx, lis) }()
		conn := kit.Dial(t, kit.ID(gateway, "main"), addr, kit.ID(executor, "local"))
		// The server is stopped while it answers: the call may be answered or cut.
		go func() { _, _ = executorv1.NewToolServiceClient(conn).ServiceInfo(t.Context(), serviceID("a")) }()
		<-entered
		began := time.Now()
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("it served for another %v", took)
		}
	})
}

// A connection outlives its server, and the first call finds the next one, however long the pause between two tries has become;
// meanwhile calls fail soon.
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kit := platformtest.New(t, platformtest.InMemory())
		serve := func(lis net.Listener) func() {
			server := rpc.NewServer(rpc.ServerConfig{Identity: kit.Identity(executor, "local"), Logger: slog.New(slog.DiscardHandler)})
			executorv1.RegisterToolServiceServer(server, &tools{info: func(context.Context, *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
				return &executorv1.ServiceInfoResponse{}, nil
			}})
			ctx, stop := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- server.Serve(ctx, lis) }()
			return func() { stop(); <-served }
		}
		lis, addr := kit.Listen(t)
		stop := serve(lis)
		client := executorv1.NewToolServiceClient(kit.Dial(t, kit.ID(gateway, "main"), addr, kit.ID(executor, "local")))
		if _, err := client.ServiceInfo(t.Context(), serviceID("a")); err != nil {
			t.Fatal(err)
		}
		stop()
		start := time.Now()
		_, err := client.ServiceInfo(t.Context(), serviceID("a"))
		if !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) || err.Error() != "the executor cannot be reached" || time.Since(start) > 0 {
			t.Errorf("without a server: %v after %s", err, time.Since(start))
		}
		<-time.After(10 * time.Second) // the pause between two tries has its full length
		start = time.Now()
		_, err = client.ServiceInfo(t.Context(), serviceID("a"))
		if !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) || time.Since(start) > 250*time.Millisecond {
			t.Errorf("still without a server: %v after %s", err, time.Since(start))
		}
		<-time.After(10 * time.Second)
		defer serve(kit.ListenAgain(addr))()
		if _, err = client.ServiceInfo(t.Context(), serviceID("a")); err != nil {
			t.Fatalf("not found again: %v", err)
		}
	})
}

// A call without a deadline gets one.
func TestDefaultDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kit := platformtest.New(t, platformtest.InMemory())
		addr := kit.Serve(t, executor, "local", func(r grpc.ServiceRegistrar) {
			executorv1.RegisterToolServiceServer(r, &tools{info: func(ctx context.Context, _ *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
				deadline, ok := ctx.Deadline()
				if !ok || time.Until(deadline) > rpc.DefaultDeadline {
					t.Errorf("deadline %v, %v", deadline, ok)
				}
				<-ctx.Done()
				<-time.After(time.Millisecond) // the client gives up first
				return nil, ctx.Err()
			}})
		})
		client := executorv1.NewToolServiceClient(kit.Dial(t, kit.ID(gateway, "main"), addr, kit.ID(executor, "local")))
		start := time.Now()
		_, err := client.ServiceInfo(context.Background(), serviceID("a"))
		if err == nil || time.Since(start) != rpc.DefaultDeadline {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		if !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) || err.Error() != "the executor did not answer in time" {
			t.Errorf("%v: %v", fault.From(err).Code, err)
		}
	})
}

func TestDialRefuses(t *testing.T) {
	kit := platformtest.New(t)
	good := rpc.ClientConfig{Identity: kit.Identity(gateway, "main"), Address: "127.0.0.1:1", Server: kit.ID(vault, "main")}
	for name, spoil := range map[string]func(*rpc.ClientConfig){
		"no identity": func(c *rpc.ClientConfig) { c.Identity = nil },
		"no address":  func(c *rpc.ClientConfig) { c.Address = "" },
		"any server":  func(c *rpc.ClientConfig) { c.Server = identity.ID{} },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := rpc.Dial(cfg); err == nil {
			t.Errorf("%s: a connection", name)
		}
	}
}

// registerBroken links a contract with a service whose method has no callers and one whose request has a broken rule.
var registerBroken = func() func(t *testing.T) {
	var once sync.Once
	return func(t *testing.T) {
		t.Helper()
		once.Do(func() {
			rules := &descriptorpb.FieldOptions{}
			proto.SetExtension(rules, validate.E_Field, &validate.FieldRules{Type: &validate.FieldRules_String_{String_: &validate.StringRules{Pattern: proto.String("(")}}})
			callers := &descriptorpb.MethodOptions{}
			proto.SetExtension(callers, optionsv1.E_Callers, []optionsv1.Role{gateway})
			method := func(in string, options *descriptorpb.MethodOptions) []*descriptorpb.MethodDescriptorProto {
				return []*descriptorpb.MethodDescriptorProto{{Name: proto.String("Do"), InputType: proto.String(in), OutputType: proto.String(in), Options: options}}
			}
			file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
				Name: proto.String("rpctest/broken.proto"), Package: proto.String("rpctest"), Syntax: proto.String("proto3"),
				Dependency: []string{"buf/validate/validate.proto", "durward/options/v1/options.proto"},
				MessageType: []*descriptorpb.DescriptorProto{
					{Name: proto.String("Fine")},
					{Name: proto.String("Broken"), Field: []*descriptorpb.FieldDescriptorProto{{
						Name: proto.String("a"), Number: proto.Int32(1), Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
						Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), Options: rules}}},
				},
				Service: []*descriptorpb.ServiceDescriptorProto{
					{Name: proto.String("OpenService"), Method: method(".rpctest.Fine", nil)},
					{Name: proto.String("BrokenService"), Method: method(".rpctest.Broken", callers)},
				},
			}, protoregistry.GlobalFiles)
			must(t, err)
			must(t, protoregistry.GlobalFiles.RegisterFile(file))
			for i := range file.Messages().Len() {
				must(t, protoregistry.GlobalTypes.RegisterMessage(dynamicpb.NewMessageType(file.Messages().Get(i))))
			}
		})
	}
}()

func registerService(r grpc.ServiceRegistrar, service string, methods ...string) {
	desc := &grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil)}
	for _, m := range methods {
		desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: m})
	}
	r.RegisterService(desc, nil)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
