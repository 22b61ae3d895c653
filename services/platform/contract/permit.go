package contract

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

// Permitted is an RPC that is no tool and takes a READ tool's permit.
type Permitted struct {
	Tool   Tool
	Method protoreflect.MethodDescriptor
}

// Stream reports whether the RPC streams, either way.
func (p Permitted) Stream() bool { return p.Method.IsStreamingServer() || p.Method.IsStreamingClient() }

// UnderPermit returns the RPCs of a sink that take a tool's permit, by gRPC name. What nothing would judge is an error: an RPC
// that names a permit it cannot have, and a stream that a gateway or an internal program may call and that names none.
func UnderPermit(sink optionsv1.Role) (map[string]Permitted, error) {
	return underPermits(protoregistry.GlobalFiles, sink)
}

func underPermits(files *protoregistry.Files, sink optionsv1.Role) (map[string]Permitted, error) {
	out := map[string]Permitted{}
	var open []string
	for m, role := range methods(files) {
		p := Permitted{Method: m}
		if role != sink || permitName(m) == "" && (!p.Stream() || sessions(m) || !slices.ContainsFunc(callers(m), permitted)) {
			continue
		}
		var ok bool
		if p.Tool, ok = underPermit(m); ok {
			out[fullMethod(m)] = p
		} else {
			open = append(open, fullMethod(m))
		}
	}
	if len(open) > 0 {
		slices.Sort(open)
		return nil, fmt.Errorf("contract: RPCs under no permit: %s", strings.Join(open, ", "))
	}
	return out, nil
}

// permitted reports whether a role calls by permits.
func permitted(role optionsv1.Role) bool {
	return role == optionsv1.Role_ROLE_GATEWAY || role == optionsv1.Role_ROLE_TOOL
}

// sessions reports whether an RPC is where sessions, and so permits, come from: it can have none.
func sessions(m protoreflect.MethodDescriptor) bool {
	return m.Parent().FullName() == vaultv1.File_durward_vault_v1_session_proto.Package()+".SessionService"
}
