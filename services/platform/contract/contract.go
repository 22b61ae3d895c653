// Package contract reads the tools that agents may call out of the compiled proto descriptors: names, tiers, schemas,
// digests, and the strict decoding of arguments. Edge and sink link it, so that everything is checked twice from one
// definition. It trusts the compiled contract and nothing that arrives.
package contract

import (
	"bytes"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
)

// SourceNative is the source of every tool that the compiled contract defines.
const SourceNative = "native"

// MostAlternatives is how many alternatives a simulation can be asked for: all that a switch can name.
const MostAlternatives = 10

// Tool is one RPC that agents can call. It is immutable; the maps are shared and must not be changed.
type Tool struct {
	Name        string
	Title       string
	Description string
	Tier        optionsv1.Tier
	Idempotent  bool
	// OpenResult: the result's shape is another tool's.
	OpenResult bool
	// OneCall: a READ tool that no permit covers; each call takes a grant of its own.
	OneCall bool
	Source  string
	// Tags are what policy knows the tool by beside its tier: "shell", "desktop:click". Sorted.
	Tags []string
	// Relieves: it takes load off the host and adds none.
	Relieves bool
	// Acts: a READ tool, since it asks nobody, that changes something all the same.
	Acts bool
	// Snapshot: a READ tool under a permit that its sink answers at once, from its own state and by its catalogue's words alone.
	Snapshot bool
	// Leaves: it sends something to other hosts: its intent is in the log before its handler runs, and a halt ends it.
	Leaves bool
	// Resource is the kind of thing that a call is about, and ResourceArgument the argument that names it: "Service", "service_id".
	// Both are empty where a call is about the host.
	Resource, ResourceArgument string
	// Method is the RPC; FullMethod its gRPC name, "/durward.executor.v1.ToolService/StartService".
	Method     protoreflect.MethodDescriptor
	FullMethod string
	// Sink is the role that answers the RPC, from the RPC's package.
	Sink optionsv1.Role
	// DefinitionDigest is SHA-256 of the RFC 8785 form of Definition.
	DefinitionDigest [32]byte
	// InputSchema and ResultSchema are JSON Schema 2020-12 objects of the arguments and of the RPC's response.
	InputSchema  map[string]any
	ResultSchema map[string]any
	// Foreign is what a tool of somebody else's MCP server is; nil for the contract's own.
	Foreign *Foreign
}

// Ref names the tool so that no other definition can stand in for it.
func (t Tool) Ref() *callv1.ToolRef {
	return &callv1.ToolRef{Name: t.Name, Source: t.Source, DefinitionDigest: t.DefinitionDigest[:]}
}

// Tagged reports whether the tool has a tag of that kind: "desktop" or "desktop:click" for "desktop".
func (t Tool) Tagged(kind string) bool {
	return slices.ContainsFunc(t.Tags, func(tag string) bool {
		before, _, _ := strings.Cut(tag, ":")
		return before == kind
	})
}

// ByPermit reports whether a session's permit covers the tool: a READ tool whose calls the vault need not see one by one.
func (t Tool) ByPermit() bool { return t.Tier == optionsv1.Tier_TIER_READ && !t.OneCall }

// ReasonArgument is the one argument that is not the tool's: it is shown to the human as the agent's, and is outside the digest
// that the human signs.
const ReasonArgument = "reason"

// TakesReason reports whether a call takes the agent's reason beside the tool's own arguments: one that a human may be asked about
// does, unless the tool has an argument of that name.
func (t Tool) TakesReason() bool {
	return (t.Tier != optionsv1.Tier_TIER_READ || t.Leaves) && !t.HasArgument(ReasonArgument)
}

// NewRequest returns an empty message of the tool's arguments.
func (t Tool) NewRequest() proto.Message { return newMessage(t.Method.Input()) }

// NewResponse returns an empty message of the tool's result.
func (t Tool) NewResponse() proto.Message { return newMessage(t.Method.Output()) }

// Definition is what agents and approvers see of a tool; its RFC 8785 form is what DefinitionDigest covers.
func (t Tool) Definition() map[string]any {
	return map[string]any{
		"name":          t.Name,
		"source":        t.Source,
		"title":         t.Title,
		"description":   t.Description,
		"tier":          TierName(t.Tier),
		"idempotent":    t.Idempotent,
		"one_call":      t.OneCall,
		"tags":          append([]string{}, t.Tags...),
		"input_schema":  t.InputSchema,
		"result_schema": t.ResultSchema,
	}
}

// TierName is the word for a tier that people see: READ, WRITE, DESTRUCTIVE.
func TierName(t optionsv1.Tier) string { return strings.TrimPrefix(t.String(), "TIER_") }

// packages are the contracts that can hold tools, with the role that serves each. Listing their file descriptors links
// them in.
var packages = map[protoreflect.FullName]optionsv1.Role{
	executorv1.File_durward_executor_v1_tools_proto.Package(): optionsv1.Role_ROLE_EXECUTOR,
	egressv1.File_durward_egress_v1_tools_proto.Package():     optionsv1.Role_ROLE_EGRESS,
	vaultv1.File_durward_vault_v1_session_proto.Package():     optionsv1.Role_ROLE_VAULT,
}

// catalog is derived once from the compiled descriptors, which never change.
var catalog = sync.OnceValue(func() []Tool {
	var tools []Tool
	for m, sink := range methods(protoregistry.GlobalFiles) {
		if option := toolOption(m); option != nil {
			tools = append(tools, newTool(m, option, sink))
		}
	}
	slices.SortFunc(tools, byName)
	return tools
})

// methods are the RPCs of those packages, each with its process's role.
func methods(files *protoregistry.Files) iter.Seq2[protoreflect.MethodDescriptor, optionsv1.Role] {
	return func(yield func(protoreflect.MethodDescriptor, optionsv1.Role) bool) {
		files.RangeFiles(func(file protoreflect.FileDescriptor) bool {
			role, ok := packages[file.Package()]
			for i := 0; ok && i < file.Services().Len(); i++ {
				of := file.Services().Get(i).Methods()
				for j := range of.Len() {
					if !yield(of.Get(j), role) {
						return false
					}
				}
			}
			return true
		})
	}
}

// Tools returns every tool of the compiled contract, sorted by name. The slice is the caller's.
func Tools() []Tool { return slices.Clone(catalog()) }

// Lookup finds a tool by name: one of the contract's own, or one that is pinned in this process.
func Lookup(name string) (Tool, bool) {
	if t, ok := Native(name); ok {
		return t, true
	}
	return Pinned(name)
}

// Native finds a tool of the compiled contract alone.
func Native(name string) (Tool, bool) { return among(catalog(), name) }

func among(tools []Tool, name string) (Tool, bool) {
	i, ok := slices.BinarySearchFunc(tools, name, func(t Tool, name string) int { return strings.Compare(t.Name, name) })
	if !ok {
		return Tool{}, false
	}
	return tools[i], true
}

// Referred finds the tool that a reference names, in this very definition.
func Referred(ref *callv1.ToolRef) (Tool, bool) {
	t, ok := Lookup(ref.GetName())
	if !ok || t.Source != ref.GetSource() || !bytes.Equal(t.DefinitionDigest[:], ref.GetDefinitionDigest()) {
		return Tool{}, false
	}
	return t, true
}

// ByMethod finds a tool by its gRPC name.
func ByMethod(fullMethod string) (Tool, bool) {
	i := slices.IndexFunc(catalog(), func(t Tool) bool { return t.FullMethod == fullMethod })
	if i < 0 {
		return Tool{}, false
	}
	return catalog()[i], true
}

// PermitOf finds the tool whose permit an RPC takes: the tool itself, or the one that the RPC names.
func PermitOf(fullMethod string) (Tool, bool) {
	if t, ok := ByMethod(fullMethod); ok {
		return t, true
	}
	service, method, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + method))
	if err != nil {
		return Tool{}, false
	}
	m, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return Tool{}, false
	}
	return underPermit(m)
}

// underPermit finds the tool that an RPC names: a READ tool of the same sink that a permit covers. An RPC that is a tool itself
// names none.
func underPermit(m protoreflect.MethodDescriptor) (Tool, bool) {
	t, ok := Lookup(permitName(m))
	return t, ok && toolOption(m) == nil && t.ByPermit() && t.Sink == packages[m.ParentFile().Package()]
}

func permitName(m protoreflect.MethodDescriptor) string {
	name, _ := proto.GetExtension(m.Options(), optionsv1.E_Permit).(string)
	return name
}

// OperatorStreams returns the streams of a sink that operators alone may call and that name no permit, by gRPC name.
func OperatorStreams(sink optionsv1.Role) map[string]bool {
	out := map[string]bool{}
	for m, role := range methods(protoregistry.GlobalFiles) {
		stream := Permitted{Method: m}.Stream()
		if role == sink && stream && permitName(m) == "" && slices.Equal(callers(m), []optionsv1.Role{optionsv1.Role_ROLE_OPERATOR}) {
			out[fullMethod(m)] = true
		}
	}
	return out
}

func callers(m protoreflect.MethodDescriptor) []optionsv1.Role {
	roles, _ := proto.GetExtension(m.Options(), optionsv1.E_Callers).([]optionsv1.Role)
	return roles
}

func fullMethod(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

func toolOption(m protoreflect.MethodDescriptor) *optionsv1.Tool {
	option, _ := proto.GetExtension(m.Options(), optionsv1.E_Tool).(*optionsv1.Tool)
	if option.GetName() == "" {
		return nil
	}
	return option
}

func newTool(m protoreflect.MethodDescriptor, option *optionsv1.Tool, sink optionsv1.Role) Tool {
	t := Tool{
		Name:        option.GetName(),
		Title:       option.GetTitle(),
		Description: option.GetDescription(),
		Tier:        option.GetTier(),
		Idempotent:  option.GetIdempotent(),
		OpenResult:  option.GetOpenResult(),
		OneCall:     option.GetOneCall(),
		Source:      SourceNative,
		Tags:        slices.Sorted(slices.Values(option.GetTags())),
		Relieves:    option.GetRelieves(),
		Acts:        option.GetActs(),
		Snapshot:    option.GetSnapshot(),
		Leaves:      option.GetLeaves(),
		Method:      m,
		FullMethod:  fullMethod(m),
		Sink:        sink,
		InputSchema: inputSchema(m.Input()),
	}
	t.Resource, t.ResourceArgument = resource(m.Input())
	if t.OpenResult {
		t.ResultSchema = map[string]any{"type": "object"}
	} else {
		t.ResultSchema = Schema(m.Output())
	}
	definition, err := canonical.Marshal(t.Definition())
	if err != nil {
		// The definition is made of strings, bools and maps of our own: this cannot depend on input.
		panic(fmt.Sprintf("contract: tool %s has no canonical form: %v", t.Name, err))
	}
	t.DefinitionDigest = canonical.Digest(definition)
	return t
}

// resource finds the argument that names what a call is about.
func resource(arguments protoreflect.MessageDescriptor) (kind, argument string) {
	for i := range arguments.Fields().Len() {
		field := arguments.Fields().Get(i)
		if kind, _ := proto.GetExtension(field.Options(), optionsv1.E_Resource).(string); kind != "" {
			return kind, string(field.Name())
		}
	}
	return "", ""
}

func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(fmt.Sprintf("contract: %s is not linked in: %v", d.FullName(), err))
	}
	return mt.New().Interface()
}

var canonicalJSON = protojson.MarshalOptions{UseProtoNames: true}

// Canonical returns a message's RFC 8785 form: protojson with proto names, the words of enums, and unset fields omitted. For a tool's request its
// SHA-256 is the arguments digest. Of a pinned tool's request it is the arguments themselves.
func Canonical(m proto.Message) ([]byte, error) {
	if call, ok := m.(*egressv1.CallServerToolRequest); ok {
		return CanonicalArguments([]byte(call.GetArgumentsJcs()))
	}
	raw, err := canonicalJSON.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	if raw, err = Words(m.ProtoReflect().Descriptor(), raw); err != nil {
		return nil, err
	}
	return canonical.Transform(raw)
}

// Digest is SHA-256 of b; over Canonical(request) it is the arguments digest.
func Digest(b []byte) [32]byte { return canonical.Digest(b) }

// CanonicalArguments returns raw if it is a JSON object in its own RFC 8785 form, and an error otherwise.
func CanonicalArguments(raw []byte) ([]byte, error) {
	if err := canonical.Check(raw); err != nil {
		return nil, err
	}
	if raw[0] != '{' {
		return nil, canonical.ErrMalformed
	}
	return raw, nil
}

// redacted is the mark of a sensitive field that was set, as package redaction knows it.
const redacted = "[redacted:sensitive]"

// Redact returns a copy of m in which every field marked sensitive is cleared, however deep; a text that was set says so.
func Redact(m proto.Message) proto.Message {
	out := proto.Clone(m)
	redact(out.ProtoReflect())
	return out
}

func redact(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case Sensitive(fd) && fd.Kind() == protoreflect.StringKind && fd.Cardinality() != protoreflect.Repeated:
			m.Set(fd, protoreflect.ValueOfString(redacted))
		case Sensitive(fd):
			m.Clear(fd)
		case fd.IsMap():
			if fd.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, item protoreflect.Value) bool {
					redact(item.Message())
					return true
				})
			}
		case fd.Message() != nil && fd.IsList():
			for i := range v.List().Len() {
				redact(v.List().Get(i).Message())
			}
		case fd.Message() != nil:
			redact(v.Message())
		}
		return true
	})
}

// Sensitive reports whether the field's value must never reach a log, a trace, a metric, an error or a record.
func Sensitive(fd protoreflect.FieldDescriptor) bool {
	sensitive, _ := proto.GetExtension(fd.Options(), optionsv1.E_Sensitive).(bool)
	return sensitive
}

// FromCatalog reports whether the contract says that a response field's text is ours or was written in the catalog by a
// human. Any other text is a program's or a stranger's.
func FromCatalog(fd protoreflect.FieldDescriptor) bool {
	origin, _ := proto.GetExtension(fd.Options(), optionsv1.E_Origin).(optionsv1.Origin)
	return origin == optionsv1.Origin_ORIGIN_CATALOGUE
}

// unseen reports whether the contract lets bytes of a stranger's leave that nobody can look through.
func unseen(fd protoreflect.FieldDescriptor) bool {
	origin, _ := proto.GetExtension(fd.Options(), optionsv1.E_Origin).(optionsv1.Origin)
	return origin == optionsv1.Origin_ORIGIN_UNSEEN && fd.Kind() == protoreflect.BytesKind
}

// OutsideFields returns the response fields of the RPC whose text a program or a stranger wrote. A sink that cannot tokenise must not
// serve one that has any.
func (p Permitted) OutsideFields() []string { return outsideFields(p.Method) }

// AllCatalogue reports whether no text of the RPC's response is from outside, however deep: not in messages of other packages either,
// whose fields have no origin.
func (p Permitted) AllCatalogue() bool {
	all := len(outsideFields(p.Method)) == 0
	walkFields(p.Method.Output(), func(_ string, fd protoreflect.FieldDescriptor) {
		if fd.IsMap() {
			fd = fd.MapValue()
		}
		if m := fd.Message(); m != nil && m.ParentFile().Package() != p.Method.ParentFile().Package() && holdsText(m) {
			all = false
		}
	})
	return all
}

// Opaque returns the fields of a message, however deep, whose content from outside is no text: bytes, numbers, which may be somebody's, and
// messages of other packages that hold text. Nothing could look through them, or put a reference in their place.
func Opaque(d protoreflect.MessageDescriptor) []string {
	var out []string
	walkFields(d, func(path string, fd protoreflect.FieldDescriptor) {
		value := fd
		if fd.IsMap() {
			value = fd.MapValue()
		}
		foreign := value.Message() != nil && value.Message().ParentFile().Package() != d.ParentFile().Package() && holdsText(value.Message())
		if !FromCatalog(fd) && !unseen(fd) && (!lookedThrough(value.Kind()) || foreign) {
			out = append(out, path)
		}
	})
	return out
}

// lookedThrough reports whether a field of the kind has text, or holds no value at all.
func lookedThrough(k protoreflect.Kind) bool {
	switch k {
	case protoreflect.StringKind, protoreflect.BoolKind, protoreflect.EnumKind, protoreflect.MessageKind, protoreflect.GroupKind:
		return true
	}
	return false
}

// holdsText reports whether a message has a field of its own that is more than a number.
func holdsText(d protoreflect.MessageDescriptor) bool {
	for i := range d.Fields().Len() {
		switch d.Fields().Get(i).Kind() {
		case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind, protoreflect.GroupKind:
			return true
		}
	}
	return false
}

func outsideFields(m protoreflect.MethodDescriptor) []string {
	var out []string
	walkFields(m.Output(), func(path string, fd protoreflect.FieldDescriptor) {
		if !FromCatalog(fd) {
			out = append(out, path)
		}
	})
	return out
}

// walkFields visits the fields of our own messages, depth first; messages of other packages (timestamps, grants) are
// leaves.
func walkFields(d protoreflect.MessageDescriptor, visit func(path string, fd protoreflect.FieldDescriptor)) {
	var walk func(d protoreflect.MessageDescriptor, prefix string)
	walk = func(d protoreflect.MessageDescriptor, prefix string) {
		for i := range d.Fields().Len() {
			fd := d.Fields().Get(i)
			path := prefix + string(fd.Name())
			visit(path, fd)
			if fd.IsMap() {
				fd = fd.MapValue()
			}
			if sub := fd.Message(); sub != nil && sub.ParentFile().Package() == d.ParentFile().Package() {
				walk(sub, path+".")
			}
		}
	}
	walk(d, "")
}
