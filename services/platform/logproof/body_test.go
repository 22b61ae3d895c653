package logproof_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/logproof"
)

// generic is a body's commitment by reflection over the message.
func generic(t testing.TB, salt []byte, body *auditv1.Body) [32]byte {
	t.Helper()
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(body)
	must(t, err)
	text, err := canonical.Transform(raw)
	must(t, err)
	return sha256.Sum256(bytes.Join([][]byte{[]byte("durward.body.v1\x00"), salt, text}, nil))
}

func checkBody(t testing.TB, body *auditv1.Body) {
	t.Helper()
	salt := bytes.Repeat([]byte{7}, logproof.SaltSize)
	got, err := logproof.BodyCommitment(salt, body)
	if err != nil {
		t.Fatalf("%v: %v", body, err)
	}
	if got != generic(t, salt, body) {
		t.Errorf("another commitment than to the JSON of %v", body)
	}
}

// TestBodyIsItsJSON sets every field of the message, alone and beside the others, so that one that is added later is not left out.
func TestBodyIsItsJSON(t *testing.T) {
	all := &auditv1.Body{}
	fields := all.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		alone := &auditv1.Body{}
		for _, body := range []*auditv1.Body{alone, all} {
			m := body.ProtoReflect()
			switch {
			case field.IsMap():
				list := m.Mutable(field).Map()
				for _, key := range []string{"b", "a", "", "é", "\U0001F680", "\uffee", "\"quoted\"", "\u2028", "a\x01"} {
					list.Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString("<"+key+">"))
				}
			case field.Message() != nil:
				m.Set(field, protoreflect.ValueOfMessage((&callv1.HumanStatement{Statement: []byte("{}"), Signature: []byte("x")}).ProtoReflect()))
			case field.Kind() == protoreflect.StringKind:
				m.Set(field, protoreflect.ValueOfString(field.TextName()+" <&> \"\\\b\t\n\f\r\x00\x1f\x7f é\u2028\U0001F680"))
			case field.Kind() == protoreflect.BytesKind:
				m.Set(field, protoreflect.ValueOfBytes([]byte{0xfe, 0xff, 0}))
			case field.Kind() == protoreflect.BoolKind:
				m.Set(field, protoreflect.ValueOfBool(true))
			case field.Kind() == protoreflect.Uint32Kind:
				m.Set(field, protoreflect.ValueOfUint32(4294967295))
			case field.Kind() == protoreflect.EnumKind:
				m.Set(field, protoreflect.ValueOfEnum(1))
			default:
				t.Fatalf("%s has a kind that a body has not had", field.TextName())
			}
		}
		checkBody(t, alone)
		checkBody(t, all)
	}
	checkBody(t, nil)
	checkBody(t, &auditv1.Body{})
	checkBody(t, &auditv1.Body{Channel: 99, Statement: &callv1.HumanStatement{}, Details: map[string]string{}})
	if _, err := logproof.BodyCommitment(make([]byte, logproof.SaltSize), &auditv1.Body{Summary: "\xff"}); err == nil {
		t.Error("text that is not UTF-8 has a commitment")
	}
	if _, err := logproof.BodyCommitment(make([]byte, logproof.SaltSize), &auditv1.Body{Arguments: strings.Repeat("x", canonical.MaxBytes+1)}); err == nil {
		t.Error("a body without bounds has a commitment")
	}
}

func FuzzBody(f *testing.F) {
	for _, body := range []*auditv1.Body{{}, {Summary: "<\u2028\U0001F680>", Details: map[string]string{"\uffee": "1", "\U0001F680": "2"}}} {
		raw, _ := proto.Marshal(body)
		f.Add(raw)
	}
	for _, r := range records() {
		raw, _ := proto.Marshal(r.GetBody())
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		body := &auditv1.Body{}
		if proto.Unmarshal(raw, body) == nil && len(raw) < 1<<16 {
			checkBody(t, body)
		}
	})
}

// FuzzLeaf: a leaf is canonical JSON that says what the header says.
func FuzzLeaf(f *testing.F) {
	f.Add(uint64(0), "spiffe://durward.local/vault/main", uint64(1), int32(1), "", "", "", int32(0), int32(0))
	f.Add(uint64(1<<63), "a\"b\\", uint64(1<<63), int32(40), "r<&>", "\u2028", "\U0001F680", int32(2), int32(5))
	f.Fuzz(func(t *testing.T, index uint64, writer string, sequence uint64, kind int32, request, operation, tool string, tier, status int32) {
		entry := &auditv1.Entry{
			Index: index, Writer: writer, LoggedAt: at(1), BodyCommitment: make([]byte, sha256.Size),
			Record: &auditv1.Record{
				Sequence: sequence, Kind: auditv1.Kind(kind), Time: at(0), RequestId: request, OperationId: operation, Tool: tool,
				Tier: optionsv1.Tier(tier), Status: auditv1.Status(status),
			},
		}
		leaf, err := logproof.Leaf(entry)
		if err != nil {
			return
		}
		if err := canonical.Check(leaf); err != nil {
			t.Fatalf("%s: %v", leaf, err)
		}
		said := map[string]any{}
		must(t, json.Unmarshal(leaf, &said))
		for name, value := range map[string]string{"writer": writer, "request_id": request, "operation_id": operation, "tool": tool} {
			if got, _ := said[name].(string); got != value {
				t.Errorf("%s: %s is %q, not %q", leaf, name, got, value)
			}
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	entry := newFixture(b, records()[1]).entries[0]
	for b.Loop() {
		if err := logproof.Seal(entry); err != nil {
			b.Fatal(err)
		}
	}
}

// TestLeafTimes holds the leaf's times against the layout that the package comment promises.
func TestLeafTimes(t *testing.T) {
	entry := newFixture(t, records()[1]).entries[0]
	for _, at := range []time.Time{
		time.Unix(0, 0), time.Unix(-1, 1), time.Unix(1, 999_999_999), time.Unix(2, 120_000_000),
		time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC),
	} {
		entry.Record.Time, entry.LoggedAt = timestamppb.New(at), timestamppb.New(at)
		leaf, err := logproof.Leaf(entry)
		must(t, err)
		want := at.UTC().Format("2006-01-02T15:04:05.000000000Z")
		for _, name := range []string{"time", "logged_at"} {
			if !bytes.Contains(leaf, []byte(`"`+name+`":"`+want+`"`)) {
				t.Errorf("%s is not %s in %s", name, want, leaf)
			}
		}
	}
}
