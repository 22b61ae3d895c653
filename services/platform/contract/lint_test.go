package contract

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// lint returns what is wrong with the contract's tools, a sentence each: what would make arguments ambiguous, a schema
// unsayable, or a description too long for a model's economy. A test of the contract demands that it is empty.
func lint() []string {
	var problems []string
	for _, t := range Tools() {
		complain := func(format string, args ...any) {
			problems = append(problems, t.Name+": "+fmt.Sprintf(format, args...))
		}
		if t.Tier == optionsv1.Tier_TIER_UNSPECIFIED {
			complain("has no tier")
		}
		if t.OneCall && t.Tier != optionsv1.Tier_TIER_READ {
			complain("takes a grant for each call as every tool beyond READ does, and says so")
		}
		if t.Snapshot && (!t.ByPermit() || t.OpenResult || t.Acts) {
			complain("is answered from a snapshot, and is no plain READ tool under a permit")
		}
		if t.Snapshot && !(Permitted{Method: t.Method}).AllCatalogue() {
			complain("is answered from a snapshot, and returns what is not the catalogue's")
		}
		if t.HasArgument(ReasonArgument) {
			complain("has an argument of the name that is the agent's reason")
		}
		if t.Title == "" {
			complain("has no title")
		}
		if n := len([]rune(t.Description)); n == 0 || n > 600 {
			complain("its description has %d characters, not 1 to 600", n)
		}
		if !strings.HasPrefix(t.Description, TierName(t.Tier)+":") {
			complain("its description does not begin with its tier")
		}
		if t.Method.IsStreamingClient() || t.Method.IsStreamingServer() {
			complain("is a stream")
		}
		seen := map[protoreflect.FullName]bool{}
		var lintMessage func(d protoreflect.MessageDescriptor)
		lintMessage = func(d protoreflect.MessageDescriptor) {
			if d.FullName() == reference {
				return
			}
			if seen[d.FullName()] {
				complain("%s is recursive or used twice", d.FullName())
				return
			}
			seen[d.FullName()] = true
			if d.Oneofs().Len() > 0 {
				for i := range d.Oneofs().Len() {
					if !d.Oneofs().Get(i).IsSynthetic() {
						complain("%s has a oneof", d.FullName())
					}
				}
			}
			for i := range d.Fields().Len() {
				lintArgument(d.Fields().Get(i), complain, lintMessage)
			}
		}
		lintMessage(t.Method.Input())
	}
	return problems
}

func lintArgument(fd protoreflect.FieldDescriptor, complain func(string, ...any), descend func(protoreflect.MessageDescriptor)) {
	kind := fd
	if fd.IsMap() {
		kind = fd.MapValue()
		if fd.MapKey().Kind() != protoreflect.StringKind {
			complain("%s has keys that are not strings", fd.FullName())
		}
	}
	switch kind.Kind() {
	case protoreflect.BoolKind, protoreflect.StringKind, protoreflect.EnumKind,
		protoreflect.Int32Kind, protoreflect.Uint32Kind, protoreflect.Sint32Kind, protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind:
		if !fd.IsList() && !fd.IsMap() && !fd.HasOptionalKeyword() {
			complain("%s is not optional, so that unset and zero look alike", fd.FullName())
		}
	case protoreflect.MessageKind:
		if kind.Message().FullName() != reference && kind.Message().ParentFile().Package() != fd.ParentFile().Package() {
			complain("%s is a %s, which has no canonical form", fd.FullName(), kind.Message().FullName())
			return
		}
		descend(kind.Message())
	default:
		complain("%s is a %s, which has no canonical form", fd.FullName(), kind.Kind())
	}
}
