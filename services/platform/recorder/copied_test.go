package recorder

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
)

// TestCopied copies a record with every field set, and one with none: what changes in the first afterwards changes nothing in the copy.
func TestCopied(t *testing.T) {
	record := &auditv1.Record{Time: timestamppb.Now(), Body: &auditv1.Body{Statement: &callv1.HumanStatement{Statement: []byte("signed")}, Details: map[string]string{"a": "b"}}}
	for _, m := range []protoreflect.Message{record.ProtoReflect(), record.GetBody().ProtoReflect()} {
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			set(m, fields.Get(i))
			if !m.Has(fields.Get(i)) {
				t.Errorf("%s is not set", fields.Get(i).FullName())
			}
		}
	}
	want := proto.CloneOf(record)
	own := copied(record)
	if !proto.Equal(own, want) {
		t.Errorf("copied as %v, want %v", own, want)
	}
	record.Time.Seconds++
	record.Body.Details["a"] = "c"
	record.Body.ResultDigest[0]++
	record.Body.Statement.Statement[0]++
	record.Body.Summary = "another"
	if !proto.Equal(own, want) {
		t.Errorf("the copy changed with its original: %v", own)
	}
	for _, empty := range []*auditv1.Record{nil, {}, {Body: &auditv1.Body{}}} {
		if own := copied(empty); own == nil || (own.GetBody() == nil) != (empty.GetBody() == nil) || proto.Size(own) != proto.Size(empty) {
			t.Errorf("%v was copied as %v", empty, own)
		}
	}
}

// set gives a scalar field a value.
func set(m protoreflect.Message, f protoreflect.FieldDescriptor) {
	switch {
	case f.IsMap() || f.Message() != nil:
	case f.Kind() == protoreflect.StringKind:
		m.Set(f, protoreflect.ValueOfString("text of "+f.TextName()))
	case f.Kind() == protoreflect.BytesKind:
		m.Set(f, protoreflect.ValueOfBytes([]byte(f.TextName())))
	case f.Kind() == protoreflect.BoolKind:
		m.Set(f, protoreflect.ValueOfBool(true))
	case f.Kind() == protoreflect.EnumKind:
		m.Set(f, protoreflect.ValueOfEnum(1))
	case f.Kind() == protoreflect.Uint32Kind:
		m.Set(f, protoreflect.ValueOfUint32(7))
	case f.Kind() == protoreflect.Uint64Kind:
		m.Set(f, protoreflect.ValueOfUint64(8))
	}
}
