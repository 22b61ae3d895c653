package contract

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/pattern"
)

// reference is the one message of another package that arguments may hold.
var reference = (&callv1.CredentialReference{}).ProtoReflect().Descriptor().FullName()

var credentialName = pattern.New(`\A[a-z0-9][a-z0-9_.\-]{0,63}\z`)

// IsReference reports whether a JSON object is a reference to a credential, {"$credential":"github"}, and returns its name.
func IsReference(object map[string]any) (string, bool) {
	name, ok := object["$credential"].(string)
	return name, ok && len(object) == 1 && credentialName().MatchString(name)
}

// References returns the names of the credentials that a decoded call refers to, in order and each once.
func References(m proto.Message) []string {
	var names []string
	var look func(m protoreflect.Message)
	look = func(m protoreflect.Message) {
		if of, ok := m.Interface().(*callv1.CredentialReference); ok {
			names = append(names, of.GetCredential())
			return
		}
		m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			switch {
			case fd.IsMap() && fd.MapValue().Message() != nil:
				v.Map().Range(func(_ protoreflect.MapKey, item protoreflect.Value) bool {
					look(item.Message())
					return true
				})
			case fd.IsMap() || fd.Message() == nil:
			case fd.IsList():
				for i := range v.List().Len() {
					look(v.List().Get(i).Message())
				}
			default:
				look(v.Message())
			}
			return true
		})
	}
	look(m.ProtoReflect())
	slices.Sort(names)
	return slices.Compact(names)
}
