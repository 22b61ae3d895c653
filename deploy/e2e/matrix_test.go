package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	_ "durward.internal/proto/gen/durward/audit/v1"
	_ "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	_ "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pki"

	"durward.internal/deploy/e2e/harness"
)

// method is an RPC of the contract and the process that serves it.
type method struct {
	protoreflect.MethodDescriptor
	server string
}

func (m method) name() string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

func (m method) callers() map[optionsv1.Role]bool {
	roles, _ := proto.GetExtension(m.Options(), optionsv1.E_Callers).([]optionsv1.Role)
	set := map[optionsv1.Role]bool{}
	for _, role := range roles {
		set[role] = true
	}
	return set
}

// contract returns every RPC, read from the compiled descriptors.
func contract(t *testing.T) []method {
	t.Helper()
	var methods []method
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		parts := strings.Split(string(file.Package()), ".") // durward.vault.v1
		if parts[0] != "durward" || len(parts) != 3 {
			return true
		}
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				methods = append(methods, method{service.Methods().Get(j), parts[1]})
			}
		}
		return true
	})
	if len(methods) < 25 {
		t.Fatalf("the contract has only %d RPCs", len(methods))
	}
	return methods
}

// invoke calls an RPC with an empty request and returns how it ended. A stream that is let in and says nothing for as long as open
// counts as a success.
func invoke(t *testing.T, conn *grpc.ClientConn, m method, open time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	// The handshake is no part of the call's time: on a busy machine it may take longer.
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready && state != connectivity.TransientFailure; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			break
		}
	}
	if !m.IsStreamingServer() {
		return conn.Invoke(ctx, m.name(), &emptypb.Empty{}, &emptypb.Empty{})
	}
	ctx, cancel = context.WithTimeout(ctx, open)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, m.name())
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&emptypb.Empty{}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	err = stream.RecvMsg(&emptypb.Empty{})
	if err == nil || errors.Is(err, io.EOF) || status.Code(err) == codes.DeadlineExceeded {
		return nil
	}
	return err
}

// TestMatrix calls every RPC as every role and with every kind of certificate that must not be let in, over real mutual
// TLS, against the running processes. What may call what is read from the contract alone.
func TestMatrix(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{Egress: true})
	ca := h.CA()
	elsewhere, err := pki.NewCA(identity.DefaultTrustDomain)
	must(t, err)
	roles := []string{harness.Gateway, harness.Vault, harness.Executor, harness.Egress, harness.Audit, "operator/" + h.Operator, "tool/reporter"}
	methods := contract(t)

	var revoked strings.Builder
	revoked.WriteString("revoked:\n")
	for _, role := range roles {
		name, _, _ := strings.Cut(role, "/")
		fmt.Fprintf(&revoked, "  - %s\n", h.Identity(name+"/dismissed"))
	}
	h.WriteFile("trust/revoked.yaml", revoked.String())

	// strangers make a certificate that must not be let in, for a role.
	strangers := map[string]func(role string) *tls.Certificate{
		"no certificate": func(string) *tls.Certificate { return nil },
		"wrong CA":       func(role string) *tls.Certificate { return issue(t, elsewhere, h.Identity(role), 0) },
		"expired":        func(role string) *tls.Certificate { return issue(t, ca, h.Identity(role), time.Nanosecond) },
		"revoked": func(role string) *tls.Certificate {
			name, _, _ := strings.Cut(role, "/")
			return issue(t, ca, h.Identity(name+"/dismissed"), 0)
		},
	}
	// Each process reads the list of revoked identities again within a second.
	for _, role := range append(harness.Roles()[:3], harness.Egress) {
		harness.Eventually(t, role+" knows who is revoked", func() error {
			conn := h.DialWith(strangers["revoked"](harness.Gateway), role)
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
			defer cancel()
			if err := conn.Invoke(ctx, "/durward/Nothing", &emptypb.Empty{}, &emptypb.Empty{}); status.Code(err) != codes.Unavailable {
				return fmt.Errorf("a revoked identity gets through the handshake: %w", err)
			}
			return nil
		})
	}

	var calls atomic.Int64
	t.Cleanup(func() {
		if n := h.Starts(harness.DemoService); n != 0 {
			t.Errorf("%d calls started the service %d times", calls.Load(), n)
		}
		t.Logf("%d calls of %d RPCs", calls.Load(), len(methods))
	})
	for kind, make := range strangers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for _, role := range roles {
				certificate := make(role)
				for _, m := range methods {
					conn := h.DialWith(certificate, m.server)
					// The connection itself fails: not one byte of an RPC is answered.
					if err := invoke(t, conn, m, harness.Patience); status.Code(err) != codes.Unavailable {
						t.Errorf("%s as %s: %v, want no connection", m.name(), role, err)
					}
					_ = conn.Close()
					calls.Add(1)
				}
			}
		})
	}

	t.Run("wrong role", func(t *testing.T) {
		t.Parallel()
		conns := map[string]*grpc.ClientConn{}
		for _, role := range roles {
			for _, m := range methods {
				id := h.Identity(role)
				if m.callers()[id.Role()] {
					continue
				}
				key := role + " " + m.server
				if conns[key] == nil {
					conns[key] = h.DialWith(issue(t, ca, id, 0), m.server)
				}
				if err := invoke(t, conns[key], m, harness.Patience); status.Code(err) != codes.PermissionDenied {
					t.Errorf("%s as %s: %v, want PermissionDenied", m.name(), role, err)
				}
				calls.Add(1)
			}
		}
	})

	// The control: with the right role an RPC gets past authorisation, to whatever the service says of an empty request.
	t.Run("right role", func(t *testing.T) {
		t.Parallel()
		for _, role := range roles {
			for _, m := range methods {
				id := h.Identity(role)
				if !m.callers()[id.Role()] || m.Name() == "Halt" || proto.HasExtension(m.Options(), optionsv1.E_Tool) || proto.HasExtension(m.Options(), optionsv1.E_Permit) {
					continue // a halt would halt; what wants a permit or a grant says the same as a refusal
				}
				conn := h.DialWith(issue(t, ca, id, 0), m.server)
				if err := invoke(t, conn, m, 500*time.Millisecond); status.Code(err) == codes.PermissionDenied || status.Code(err) == codes.Unavailable {
					t.Errorf("%s as %s: %v", m.name(), role, err)
				}
				_ = conn.Close()
				calls.Add(1)
			}
		}
	})

	t.Run("no such method", func(t *testing.T) {
		t.Parallel()
		for _, role := range roles {
			for _, server := range []string{harness.Vault, harness.Executor, harness.Audit} {
				conn := h.DialWith(issue(t, ca, h.Identity(role), 0), server)
				for _, name := range []string{"/durward.vault.v1.Nothing/Do", "/grpc.health.v1.Health/Check", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"} {
					ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
					if err := conn.Invoke(ctx, name, &emptypb.Empty{}, &emptypb.Empty{}); status.Code(err) != codes.PermissionDenied {
						t.Errorf("%s at %s as %s: %v, want PermissionDenied", name, server, role, err)
					}
					cancel()
				}
			}
		}
	})

	t.Run("reflection", func(t *testing.T) {
		t.Parallel()
		for _, role := range roles {
			for _, server := range []string{harness.Vault, harness.Executor, harness.Egress, harness.Audit} {
				conn := h.DialWith(issue(t, ca, h.Identity(role), 0), server)
				stream, err := reflection.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
				must(t, err)
				// A refusal may come before it; then receiving says why.
				_ = stream.Send(&reflection.ServerReflectionRequest{MessageRequest: &reflection.ServerReflectionRequest_ListServices{}})
				switch list, err := stream.Recv(); {
				case h.Identity(role).Role() != optionsv1.Role_ROLE_OPERATOR:
					if status.Code(err) != codes.PermissionDenied {
						t.Errorf("%s as %s: %v, want PermissionDenied", server, role, err)
					}
				case err != nil || !strings.Contains(list.String(), "durward."+server+".v1."):
					t.Errorf("%s: %v, %v", server, list, err)
				}
				_ = conn.Close()
			}
		}
	})

	t.Run("TLS 1.2", func(t *testing.T) {
		t.Parallel()
		for _, server := range []string{harness.Vault, harness.Executor, harness.Audit} {
			certificate := issue(t, ca, h.OperatorIdentity(), 0)
			conn, err := grpc.NewClient("passthrough:///"+h.Address(server), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
				InsecureSkipVerify: true,
				MinVersion:         tls.VersionTLS12, MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*certificate},
			})))
			must(t, err)
			if err := conn.Invoke(t.Context(), "/durward.audit.v1.HistoryService/GetStatus", &emptypb.Empty{}, &emptypb.Empty{}); status.Code(err) != codes.Unavailable {
				t.Errorf("%s over TLS 1.2: %v, want no connection", server, err)
			}
			_ = conn.Close()
		}
	})
}

func issue(t *testing.T, ca *pki.CA, id identity.ID, ttl time.Duration) *tls.Certificate {
	t.Helper()
	certificate := harness.Issue(t, ca, id, ttl)
	return &certificate
}
