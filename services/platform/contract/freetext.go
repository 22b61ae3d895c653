package contract

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/pattern"
)

// FreeText puts what replace returns in the places of the texts of an agent's own making in a tool's arguments. Their order is always the
// same. It calls nothing where there are none.
func FreeText(m proto.Message, replace func(texts []string) ([]string, error)) error {
	if call, ok := m.(*egressv1.CallServerToolRequest); ok {
		return freeTextForeign(call, replace)
	}
	var texts []string
	var put []func(text string)
	r := m.ProtoReflect()
	for i := range r.Descriptor().Fields().Len() {
		fd := r.Descriptor().Fields().Get(i)
		switch {
		case !freeText(fd) || !r.Has(fd):
		case fd.IsMap():
			items := r.Get(fd).Map()
			named := map[string]protoreflect.MapKey{}
			items.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
				named[k.String()] = k
				return true
			})
			for _, name := range slices.Sorted(maps.Keys(named)) {
				texts = append(texts, items.Get(named[name]).String())
				put = append(put, func(text string) { items.Set(named[name], protoreflect.ValueOfString(text)) })
			}
		default:
			texts = append(texts, r.Get(fd).String())
			put = append(put, func(text string) { r.Set(fd, protoreflect.ValueOfString(text)) })
		}
	}
	if len(texts) == 0 {
		return nil
	}
	replaced, err := replace(texts)
	if err != nil {
		return err
	}
	for i, text := range replaced {
		put[i](text)
	}
	return nil
}

func freeText(fd protoreflect.FieldDescriptor) bool {
	free, _ := proto.GetExtension(fd.Options(), optionsv1.E_FreeText).(bool)
	return free
}

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
