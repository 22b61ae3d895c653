package main

import (
	"fmt"
	"os"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/identity"
)

const apiHead = `# The gRPC APIs

Generated from the contract (` + "`make generate`" + `): every RPC, who may call it, what the call needs, and the errors. Messages and their rules are
in [proto](../../proto). [connect.md](connect.md#an-internal-program) says how a program of yours becomes a caller of the role *tool*.

A call is refused as ` + "`CODE_DENIED`" + ` ("not allowed") unless the certificate on its connection has one of the roles in the table.

Each process answers gRPC reflection (` + "`grpc.reflection.v1`" + `) for an operator's certificate alone. Any other caller of grpcurl or its like takes
the descriptor set, ` + "`proto/durward.binpb`" + `: ` + "`grpcurl -protoset`" + `.

`

// api is the reference of the contract in a descriptor set with comments, as ` + "`buf build`" + ` makes it.
func api(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	set := &descriptorpb.FileDescriptorSet{}
	if err := proto.Unmarshal(raw, set); err != nil {
		return "", err
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(apiHead)
	for _, file := range ours(files) {
		for i := range file.Services().Len() {
			service(&b, file.Services().Get(i))
		}
	}
	d, err := files.FindDescriptorByName("durward.call.v1.Code")
	codes, ok := d.(protoreflect.EnumDescriptor)
	if err != nil || !ok {
		return "", fmt.Errorf("the contract has no codes: %w", err)
	}
	b.WriteString("## Errors\n\nA failed call carries a `durward.call.v1.Fault` among its status' details: a code, a sentence, whether and when to try again.\n" +
		"[refused.md](refused.md) says what to do about each.\n\n| code | means |\n|---|---|\n")
	for i := range codes.Values().Len() {
		if value := codes.Values().Get(i); value.Number() != 0 {
			fmt.Fprintf(&b, "| %s | %s |\n", value.Name(), comment(value))
		}
	}
	return b.String(), nil
}

func service(b *strings.Builder, s protoreflect.ServiceDescriptor) {
	fmt.Fprintf(b, "## %s\n\n", s.FullName())
	if text := comment(s); text != "" {
		b.WriteString(text + "\n\n")
	}
	b.WriteString("| RPC | callers | needs | does |\n|---|---|---|---|\n")
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		fmt.Fprintf(b, "| %s%s | %s | %s | %s |\n", m.Name(), streams(m), roleNames(m), needs(m), does(m))
	}
	b.WriteString("\n")
}

func streams(m protoreflect.MethodDescriptor) string {
	if m.IsStreamingServer() || m.IsStreamingClient() {
		return " (stream)"
	}
	return ""
}

func roleNames(m protoreflect.MethodDescriptor) string {
	roles, _ := proto.GetExtension(m.Options(), optionsv1.E_Callers).([]optionsv1.Role)
	var names []string
	for _, r := range roles {
		names = append(names, identity.RoleName(r))
	}
	return strings.Join(names, ", ")
}

// needs is what a call carries beside its certificate.
func needs(m protoreflect.MethodDescriptor) string {
	tool, _ := proto.GetExtension(m.Options(), optionsv1.E_Tool).(*optionsv1.Tool)
	permit, _ := proto.GetExtension(m.Options(), optionsv1.E_Permit).(string)
	switch {
	case permit != "":
		return "the permit of `" + permit + "`"
	case tool.GetName() == "":
		return ""
	case tool.GetTier() > optionsv1.Tier_TIER_READ, tool.GetOneCall():
		return "a grant"
	default:
		return "a permit"
	}
}

// does is what the contract says of an RPC: its comment, or a tool's description.
func does(m protoreflect.MethodDescriptor) string {
	if tool, _ := proto.GetExtension(m.Options(), optionsv1.E_Tool).(*optionsv1.Tool); tool.GetName() != "" {
		return "`" + tool.GetName() + "`. " + tool.GetDescription()
	}
	return comment(m)
}

// comment is the one before a declaration, on one line.
func comment(d protoreflect.Descriptor) string {
	text := d.ParentFile().SourceLocations().ByDescriptor(d).LeadingComments
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "\\|")
}
