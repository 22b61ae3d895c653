package contract

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
)

// TestCredentialReference: {"$credential":"name"} is one member of that very name, and its canonical form is itself.
func TestCredentialReference(t *testing.T) {
	t.Parallel()
	d := (&callv1.CredentialReference{}).ProtoReflect().Descriptor()
	for _, wrong := range []map[string]any{
		{"credential": "github"}, {"$credential": 1}, {"$credential": nil}, {"$credential": "github", "credential": "other"}, {"$Credential": "github"},
		{"$credential": "github", "x": "y"},
	} {
		if err := checkMessage(d, wrong, "value"); err == nil {
			t.Errorf("%v is taken", wrong)
		}
	}
	if err := checkMessage(d, map[string]any{"$credential": "github"}, "value"); err != nil {
		t.Error(err)
	}
	text := []byte(`{"$credential":"github"}`)
	names, err := Names(d, text)
	must(t, err)
	ref := &callv1.CredentialReference{}
	if err := protojson.Unmarshal(names, ref); err != nil || ref.GetCredential() != "github" {
		t.Fatalf("%s: %v, %v", names, ref, err)
	}
	if form, err := Canonical(ref); err != nil || string(form) != string(text) {
		t.Errorf("%s, %v", form, err)
	}
	if s := messageSchema(d, true); s["properties"].(map[string]any)["$credential"] == nil || !slices.Equal(s["required"].([]string), []string{"$credential"}) {
		t.Errorf("%v", s)
	}
	if names := References(ref); !slices.Equal(names, []string{"github"}) {
		t.Errorf("%q", names)
	}
	for _, t2 := range Tools() {
		if names := References(t2.NewRequest()); names != nil {
			t.Errorf("%s refers to %q", t2.Name, names)
		}
	}
	for _, name := range []string{"", "A", "../x", "a b", "$x"} {
		if err := Validate(&callv1.CredentialReference{Credential: proto.String(name)}); err == nil {
			t.Errorf("%q is a credential's name", name)
		}
	}
}
