package statement

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/platformtest/full"
	"durward.internal/services/platform/trust"
)

const (
	// coverMutations and signedMutations are how many single fields are changed; together 100,000 with package grant's. The few
	// are samples.
	coverMutations, fewCover   = 60_000, 9_000
	signedMutations, fewSigned = 20_000, 6_000
)

// covered are fields of a grant that a statement does not speak of: the vault's signature over the whole grant is what keeps them
// (package grant's test of mutations). Any other field, a new one too, has to be refused here. Agent and user are the vault's word
// alone (SECURITY.md): which of one client's agents asks, and whose client it is, decides at egress between lists of domains.
var covered = []protoreflect.Name{"agent", "user", "version", "id", "policy_digest", "issued_at", "not_before", "expires_at", "statements", "request_id"}

// unspoken are covered, and those that one kind alone leaves open.
func unspoken(k Kind) []protoreflect.Name {
	switch k {
	case KindScope: // its uses are counted, whatever their number; dangerous is compared where the discipline is
		return append([]protoreflect.Name{"operation_id", "use", "dangerous", "subject_digest"}, covered...)
	case KindDangerous:
		return append([]protoreflect.Name{"operation_id", "use", "subject_digest"}, covered...)
	}
	return append([]protoreflect.Name{"dangerous"}, covered...)
}

// another is a value of the field's kind that is not v.
func another(r *rand.Rand, fd protoreflect.FieldDescriptor, v protoreflect.Value) protoreflect.Value {
	text := func(b []byte) []byte {
		b = bytes.Clone(b)
		switch n := r.IntN(4); {
		case len(b) == 0 || n == 0:
			return append(b, byte('a'+r.IntN(26)))
		case n == 1:
			return b[:r.IntN(len(b))]
		case n == 2:
			return append([]byte{byte('a' + r.IntN(26))}, b...)
		}
		b[r.IntN(len(b))] ^= 1 << r.IntN(6)
		return b
	}
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(string(text([]byte(v.String()))))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(text(v.Bytes()))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(!v.Bool())
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum((v.Enum() + 1 + protoreflect.EnumNumber(r.IntN(3))) % 5)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(v.Uint()) ^ 1<<r.IntN(32))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(v.Uint() ^ 1<<r.IntN(64))
	}
	panic("a field of kind " + fd.Kind().String() + " that this test knows no other value of")
}

// mutate changes one field of a grant that is not left out, however deep, and says which; "" if it did not change anything.
func mutate(r *rand.Rand, m protoreflect.Message, out []protoreflect.Name) string {
	fields := m.Descriptor().Fields()
	for {
		fd := fields.Get(r.IntN(fields.Len()))
		switch {
		case slices.Contains(out, fd.Name()):
			continue
		case fd.Message() != nil:
			return string(fd.Name()) + "." + mutate(r, m.Mutable(fd).Message(), nil)
		}
		was := m.Get(fd)
		now := another(r, fd, was)
		if now.Equal(was) {
			continue
		}
		m.Set(fd, now)
		return string(fd.Name())
	}
}

// TestNoChangedGrantIsCovered: 60,000 grants that differ in one field from the one that a human's statement is for.
func TestNoChangedGrantIsCovered(t *testing.T) {
	tier := optionsv1.Tier_TIER_WRITE
	t.Parallel()
	seed, size := full.Sample(t, coverMutations, fewCover)
	for name, s := range map[string]*Statement{"approve": approve(), "scope": scope(), "dangerous": plain(KindDangerous)} {
		v := verified(t, s)
		own := grantOf()
		own.Dangerous = s.Kind == KindDangerous
		if err := v.Covers(own, toolRef(), tier, []byte(arguments), digest("entry")); err != nil {
			t.Fatalf("%s: its own call: %v", name, err)
		}
		r := rand.New(rand.NewPCG(1, seed+uint64(len(name))))
		seen := map[string]int{}
		for range size / 3 {
			g := proto.CloneOf(own)
			field := mutate(r, g.ProtoReflect(), unspoken(s.Kind))
			seen[field]++
			if err := v.Covers(g, toolRef(), tier, []byte(arguments), digest("entry")); !errors.Is(err, ErrCover) {
				t.Fatalf("%s: a grant with another %s is covered: %v", name, field, g)
			}
		}
		if len(seen) < 8 {
			t.Errorf("%s: only %v were changed", name, seen)
		}
	}
}

// alter changes one leaf of a JSON value in place and reports whether it did.
func alter(r *rand.Rand, v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer:
		return !v.IsNil() && alter(r, v.Elem())
	case reflect.Struct:
		return alter(r, v.Field(r.IntN(v.NumField())))
	case reflect.Slice:
		if v.Len() == 0 {
			return false
		}
		if v.Type().Elem().Kind() == reflect.Uint8 {
			b := bytes.Clone(v.Bytes())
			b[r.IntN(len(b))]++
			v.SetBytes(b)
			return true
		}
		if r.IntN(4) == 0 {
			v.Set(reflect.AppendSlice(v.Slice(0, v.Len()), v.Slice(0, 1)))
			return true
		}
		return alter(r, v.Index(r.IntN(v.Len())))
	case reflect.String:
		text := []byte(v.String())
		if len(text) == 0 {
			v.SetString("x")
			return true
		}
		text[r.IntN(len(text))] ^= 1 << r.IntN(5)
		v.SetString(string(text))
		return true
	case reflect.Int:
		v.SetInt(v.Int() + 1 + int64(r.IntN(9)))
		return true
	case reflect.Uint64:
		v.SetUint(v.Uint() ^ 1<<r.IntN(50))
		return true
	case reflect.Bool:
		v.SetBool(!v.Bool())
		return true
	case reflect.Map: // of counts
		if v.Len() == 0 {
			return false
		}
		m, key := reflect.MakeMap(v.Type()), v.MapKeys()[0]
		for _, k := range v.MapKeys() {
			m.SetMapIndex(k, v.MapIndex(k))
		}
		m.SetMapIndex(key, reflect.ValueOf(v.MapIndex(key).Uint()+1))
		v.Set(m)
		return true
	}
	panic("a field of kind " + v.Kind().String() + " that this test knows no other value of")
}

// TestNoChangedStatementVerifies: 20,000 statements that differ in one field, or one byte of the signature, from what was signed. The
// signature is a human's, and the verifier knows the key.
func TestNoChangedStatementVerifies(t *testing.T) {
	t.Parallel()
	ada := signer(t, 1)
	allowed := operators(t, trust.FormatSigner("ada", ada.PublicKey(), Namespace))
	seed, size := full.Sample(t, signedMutations, fewSigned)
	var all sync.WaitGroup
	for name, s := range kinds() {
		all.Go(func() {
			h, err := Sign(s, ada)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			r := rand.New(rand.NewPCG(2, seed+uint64(len(name))))
			formed := 0
			// A sample by an unlucky seed goes on, so that enough of it is well formed.
			share := size / len(kinds())
			for n := 0; n < share || formed < share/8 && n < 2*share; {
				changed := proto.CloneOf(h)
				if n%10 == 0 {
					// Spaces and line ends of the armour may be read in more than one way; what it holds may not.
					at := bytes.IndexByte(changed.Signature, '\n') + 1
					at += r.IntN(bytes.LastIndexByte(changed.Signature[:len(changed.Signature)-1], '\n') - at - 4)
					if changed.Signature[at] == '\n' {
						continue
					}
					changed.Signature[at] = "ABCDEFGHabcdefgh0123"[r.IntN(20)]
					if bytes.Equal(changed.Signature, h.Signature) {
						continue
					}
				} else {
					var next Statement
					if err := json.Unmarshal(h.Statement, &next); err != nil {
						t.Error(err)
						return
					}
					if !alter(r, reflect.ValueOf(&next)) {
						continue
					}
					// What Marshal would not let through is signed by nobody; a verifier may be handed it all the same.
					raw, err := next.Marshal()
					if err != nil {
						if raw, err = json.Marshal(&next); err != nil {
							continue
						}
					} else {
						formed++
					}
					if bytes.Equal(raw, h.Statement) {
						continue
					}
					changed.Statement = raw
				}
				n++
				if _, err := Verify(changed, allowed, now); err == nil {
					t.Errorf("%s: this verifies: %s", name, changed.Statement)
					return
				}
			}
			if formed < share/8 {
				t.Errorf("%s: only %d were well formed", name, formed)
			}
		})
	}
	all.Wait()
}

// FuzzCovers: whatever the arguments, a scope covers them only if each is pinned to its value, or free, and none that is pinned is
// missing.
func FuzzCovers(f *testing.F) {
	f.Add(`{"service_id":"demo-chat"}`)
	f.Add(`{"service_id":"demo-chat","wait":true}`)
	f.Add(`{"service_id":"demo-chat","service_id":"x"}`)
	f.Add(`{"Service_id":"demo-chat"}`)
	f.Add(`[]`)
	free := scope()
	free.Free = []string{"/wait"}
	v := &Verified{Statement: free}
	f.Fuzz(func(t *testing.T, args string) {
		g := grantOf()
		g.SubjectDigest, g.ArgumentsDigest = nil, digest(args)
		if v.Covers(g, toolRef(), optionsv1.Tier_TIER_WRITE, []byte(args), digest("entry")) != nil {
			return
		}
		var object map[string]any
		if err := json.Unmarshal([]byte(args), &object); err != nil {
			t.Fatalf("%q is covered: %v", args, err)
		}
		delete(object, "wait")
		if want := map[string]any{"service_id": "demo-chat"}; !reflect.DeepEqual(object, want) {
			t.Fatalf("%q is covered: %s", args, fmt.Sprint(object))
		}
	})
}
