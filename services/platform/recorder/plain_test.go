package recorder

import (
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	validate "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
)

// TestPlain takes each field of the contract through values at its rule's bound, beyond it and far from it: what is called plain is what
// protovalidate accepts, and an ordinary record is.
func TestPlain(t *testing.T) {
	good := func() *auditv1.Record {
		return &auditv1.Record{
			Sequence: 1, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), RequestId: "r-1", Tool: "list_modes",
			Body: &auditv1.Body{Principal: "claude", Arguments: "{}", Details: map[string]string{"caller": "gateway"}},
		}
	}
	if !plain(good()) {
		t.Fatal("an ordinary read is not plain")
	}
	tried, refused := 0, 0
	hold := func(what protoreflect.FullName, r *auditv1.Record) {
		t.Helper()
		tried++
		err := protovalidate.Validate(r)
		if err != nil {
			refused++
		}
		if got := plain(r); got && err != nil {
			t.Errorf("%s: plain, and %v", what, err)
		} else if !got && err == nil && r.GetBody().GetStatement() == nil && !wide(r) {
			t.Errorf("%s: not plain, and within the contract", what)
		}
	}
	of := func(r *auditv1.Record, body bool) protoreflect.Message {
		if body {
			return r.GetBody().ProtoReflect()
		}
		return r.ProtoReflect()
	}
	for _, body := range []bool{false, true} {
		fields := of(good(), body).Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			try := func(values ...protoreflect.Value) {
				t.Helper()
				for _, v := range values {
					r := good()
					of(r, body).Set(f, v)
					hold(f.FullName(), r)
				}
			}
			r := good()
			of(r, body).Clear(f)
			hold(f.FullName(), r)
			rules, _ := proto.GetExtension(f.Options(), validate.E_Field).(*validate.FieldRules)
			switch {
			case f.IsMap():
				for _, n := range []int{1, 32, 33} {
					for _, key := range []int{0, 63, 64, 65} {
						for _, value := range []int{0, 1024, 1025} {
							r := good()
							r.Body.Details = map[string]string{}
							for j := range n {
								r.Body.Details[strings.Repeat(string(rune('0'+j)), key)] = strings.Repeat("v", value)
							}
							hold(f.FullName(), r)
						}
					}
				}
			case f.Kind() == protoreflect.StringKind:
				most := int(rules.GetString().GetMaxLen())
				if most == 0 {
					t.Errorf("%s is a text without a bound", f.FullName())
				}
				for _, letter := range []string{"a", " ", "\n", "~", "!", "\x7f", "é", "\xff"} {
					for _, n := range []int{1, most / 2, most, most + 1} {
						try(protoreflect.ValueOfString(strings.Repeat(letter, n)))
					}
				}
			case f.Kind() == protoreflect.BytesKind:
				most := int(rules.GetBytes().GetMaxLen())
				try(protoreflect.ValueOfBytes(make([]byte, most)), protoreflect.ValueOfBytes(make([]byte, most+1)))
			case f.Kind() == protoreflect.EnumKind:
				for n := protoreflect.EnumNumber(-1); n < 200; n++ {
					try(protoreflect.ValueOfEnum(n))
				}
			case f.Kind() == protoreflect.Uint64Kind:
				try(protoreflect.ValueOfUint64(0), protoreflect.ValueOfUint64(1), protoreflect.ValueOfUint64(1<<63))
			case f.Kind() == protoreflect.Uint32Kind:
				try(protoreflect.ValueOfUint32(0), protoreflect.ValueOfUint32(1<<31))
			case f.Kind() == protoreflect.BoolKind:
				try(protoreflect.ValueOfBool(true))
			default:
				switch f.Message().FullName() {
				case "google.protobuf.Timestamp", "durward.audit.v1.Body":
				case "durward.call.v1.HumanStatement":
					try(protoreflect.ValueOfMessage((&callv1.HumanStatement{}).ProtoReflect()), protoreflect.ValueOfMessage((&callv1.HumanStatement{Statement: make([]byte, 1<<20)}).ProtoReflect()))
				default:
					t.Errorf("%s is of a type that no record had: does plain look at it?", f.FullName())
				}
			}
		}
	}
	if tried < 500 || refused < 200 {
		t.Errorf("%d records, %d of them against the contract", tried, refused)
	}
	for _, r := range []*auditv1.Record{nil, {}} {
		hold("empty", r)
	}
}

// wide reports a text with characters of more than a byte, which plain counts too high.
func wide(r *auditv1.Record) bool {
	return strings.ContainsFunc(r.String(), func(c rune) bool { return c > '~' })
}
