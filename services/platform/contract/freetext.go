package contract

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
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
