package grant

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/platformtest/full"
)

// mutations is how many single fields are changed; with those of package statement they are 100,000. fewMutations are a sample.
const (
	mutations    = 20_000
	fewMutations = 4_000
)

// mutate changes one field of a message, however deep, and says which.
func mutate(r *rand.Rand, m protoreflect.Message) string {
	fields := m.Descriptor().Fields()
	fd := fields.Get(r.IntN(fields.Len()))
	text := func(b []byte) []byte {
		if len(b) > 0 && r.IntN(2) == 0 {
			return b[:r.IntN(len(b))]
		}
		return append(bytes.Clone(b), byte('a'+r.IntN(26)))
	}
	was := m.Get(fd)
	var now protoreflect.Value
	switch {
	case fd.IsList():
		list := m.Mutable(fd).List()
		if list.Len() > 0 && r.IntN(2) == 0 {
			return string(fd.Name()) + "." + mutate(r, list.Get(r.IntN(list.Len())).Message())
		}
		list.Append(list.NewElement())
		return string(fd.Name())
	case fd.Message() != nil:
		return string(fd.Name()) + "." + mutate(r, m.Mutable(fd).Message())
	case fd.Kind() == protoreflect.StringKind:
		now = protoreflect.ValueOfString(string(text([]byte(was.String()))))
	case fd.Kind() == protoreflect.BytesKind:
		now = protoreflect.ValueOfBytes(text(was.Bytes()))
	case fd.Kind() == protoreflect.BoolKind:
		now = protoreflect.ValueOfBool(!was.Bool())
	case fd.Kind() == protoreflect.EnumKind:
		now = protoreflect.ValueOfEnum(was.Enum() + 1 + protoreflect.EnumNumber(r.IntN(3)))
	case fd.Kind() == protoreflect.Uint32Kind:
		now = protoreflect.ValueOfUint32(uint32(was.Uint()) ^ 1<<r.IntN(32))
	case fd.Kind() == protoreflect.Uint64Kind:
		now = protoreflect.ValueOfUint64(was.Uint() ^ 1<<r.IntN(64))
	case fd.Kind() == protoreflect.Int32Kind:
		now = protoreflect.ValueOfInt32(int32(was.Int()) ^ 1<<r.IntN(30))
	case fd.Kind() == protoreflect.Int64Kind:
		now = protoreflect.ValueOfInt64(was.Int() ^ 1<<r.IntN(60))
	default:
		panic("a field of kind " + fd.Kind().String() + " that this test knows no other value of")
	}
	m.Set(fd, now)
	return string(fd.Name())
}

// TestNoChangedGrantVerifies: 20,000 grants that differ in one field from the one that the vault signed, under its signature.
func TestNoChangedGrantVerifies(t *testing.T) {
	t.Parallel()
	signed, err := Sign(testKey, sampleGrant())
	if err != nil {
		t.Fatal(err)
	}
	seed, size := full.Sample(t, mutations, fewMutations)
	r := rand.New(rand.NewPCG(3, seed))
	seen := map[string]bool{}
	for n := 0; n < size; {
		g := sampleGrant()
		field := mutate(r, g.ProtoReflect())
		payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(g)
		if err != nil || bytes.Equal(payload, signed.GetPayload()) {
			continue
		}
		n++
		seen[field] = true
		if _, err := Verify(&callv1.SignedGrant{Payload: payload, Kid: signed.GetKid(), Signature: signed.GetSignature()}, keys, now); err == nil {
			t.Fatalf("a grant with another %s verifies", field)
		}
	}
	if want := sampleGrant().ProtoReflect().Descriptor().Fields().Len(); len(seen) < want {
		t.Errorf("only %d fields were changed, want all %d", len(seen), want)
	}
}
