package server

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
)

// Every RPC that this server holds, called by every role over real mutual TLS: let in exactly where the contract says so.
func TestEveryMethodByEveryRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVault(t)
		files := []protoreflect.FileDescriptor{
			vaultv1.File_durward_vault_v1_session_proto, vaultv1.File_durward_vault_v1_redeem_proto, vaultv1.File_durward_vault_v1_operator_proto,
			vaultv1.File_durward_vault_v1_privacy_proto,
		}
		methods := 0
		// A tool of the vault's own takes a permit: without one its caller would be refused for that.
		permitted := withPermit(t.Context(), permitFor(optionsv1.Role_ROLE_VAULT, v.open(bearer).GetPermits()))
		v.addTool("main", "")
		toolPermitted := withPermit(t.Context(), v.openTool("main").permit())
		for _, file := range files {
			for i := range file.Services().Len() {
				service := file.Services().Get(i)
				for j := range service.Methods().Len() {
					method := service.Methods().Get(j)
					methods++
					callers := proto.GetExtension(method.Options(), optionsv1.E_Callers).([]optionsv1.Role)
					for number := range optionsv1.Role_name {
						role := optionsv1.Role(number)
						if identity.RoleName(role) == "" {
							continue
						}
						name := string(service.Name()) + "/" + string(method.Name()) + "/" + identity.RoleName(role)
						ctx := permitted
						if role == internal {
							ctx = toolPermitted
						}
						err := invoke(ctx, v.as(role, "main"), service, method)
						// A caller that is let in is refused for its empty request, or served; never for who it is.
						refused := fault.Is(err, callv1.Code_CODE_DENIED)
						if allowed := slices.Contains(callers, role); allowed == refused {
							t.Errorf("%s: allowed %v by the contract, and the answer is %v", name, allowed, err)
						}
					}
				}
			}
		}
		if methods != 44 {
			t.Errorf("%d methods were called; adding one is a decision about who may call it", methods)
		}
	})
}

func invoke(ctx context.Context, conn *grpc.ClientConn, service protoreflect.ServiceDescriptor, method protoreflect.MethodDescriptor) error {
	return invokeWith(ctx, conn, service, method, func(protoreflect.Message) {})
}

// invokeWith calls an RPC with what prepare makes of its request.
func invokeWith(ctx context.Context, conn *grpc.ClientConn, service protoreflect.ServiceDescriptor, method protoreflect.MethodDescriptor, prepare func(protoreflect.Message)) error {
	full := "/" + string(service.FullName()) + "/" + string(method.Name())
	request, response := dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output())
	prepare(request)
	if !method.IsStreamingServer() {
		return conn.Invoke(ctx, full, request, response)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, full)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(request); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	// Nothing waits, so a caller that is let in hears nothing: its headers do not come either.
	received := make(chan error, 1)
	go func() { received <- stream.RecvMsg(response) }()
	select {
	case err := <-received:
		return err
	case <-time.After(200 * time.Millisecond):
		return nil
	}
}
