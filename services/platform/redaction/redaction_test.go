package redaction

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/descriptorpb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

func of(arguments string) *auditv1.Record {
	return &auditv1.Record{Tool: "x", Body: &auditv1.Body{Arguments: arguments}}
}

// TestHides: none of these values is in what is recorded, audit refuses each of them, and takes what is left.
func TestHides(t *testing.T) {
	const random = "q8Zt3VbN1xLw0Yk7Rj5PmD2c"
	for _, tt := range []struct{ value, arguments string }{
		{"hunter2", `{"password":"hunter2"}`},
		{"hunter2", `{"dbPassword":"hunter2"}`},
		{"hunter2", `{"DB-PASSWORD":"hunter2"}`},
		{"12345678", `{"password":12345678}`},
		{"123456", `{"token":123456}`},
		{random, `{"token":"` + random + `"}`},
		{random, `{"env":{"HF_TOKEN":"` + random + `"}}`},
		{random, `{"list":[{"x":1},{"accessToken":"` + random + `"}]}`},
		{"hunter2", `{"secret":"hunter2"}`},
		{"hunter2", `{"client_secret":{"value":"hunter2"}}`},
		{"hunter2", `{"api_key":["a-name","hunter2"]}`},
		{"hunter2", `{"x-api-key":"hunter2"}`},
		{"hunter2", `{"auth":{"user":"ada","with":{"it":"hunter2"}}}`},
		{"hunter2", `{"credential":"hunter2"}`},
		{"hunter2", `{"credentials":{"a":"hunter2"}}`},
		{"abcdefgh", `{"header":"Authorization: Basic abcdefgh="}`},
		{"ghp_0123456789abcdefghijABCDEFGHIJ012345", `{"text":"use ghp_0123456789abcdefghijABCDEFGHIJ012345 for it"}`},
		{"ghp_0123456789abcdefghijABCDEFGHIJ012345", `{"ghp_0123456789abcdefghijABCDEFGHIJ012345":1}`},
		{"hunter2", `{"command":"serve --password hunter2"}`},
		{"hunter2", `{"url":"postgres://ada:hunter2@db/x"}`},
		{"hunter2", `{"body":"{\"password\":\"hunter2\"}"}`},
		{"hunter2", `no JSON: password=hunter2`},
		{"12345678", `{"auth":{"x":12345678}}`},
		{"hunter2", `{"password":"hunter2 [redacted:sensitive]"}`},
		{"hunter2", `{"password":"[redacted:sensitive] hunter2"}`},
		{"12345", `{"password":"12345"}`},
		{"1234567890123", `{"tokens":"1234567890123"}`},
		{"many", `{"token":{"tokens":"many"}}`},
		{"hunter2", `{"password":"hunter2"} {"a":1}`},
	} {
		record := of(tt.arguments)
		if name, found := New().Find(record); !found || name != "body.arguments" {
			t.Errorf("%s: Find = %q, %t", tt.arguments, name, found)
		}
		out, fields := New().Record(record)
		if got := out.GetBody().GetArguments(); strings.Contains(got, tt.value) || !strings.Contains(got, "[redacted:") || len(fields) != 1 {
			t.Errorf("%s is recorded as %s (%v)", tt.arguments, got, fields)
		}
		if record.GetBody().GetArguments() != tt.arguments {
			t.Errorf("%s: the caller's record was changed", tt.arguments)
		}
		if name, found := New().Find(out); found {
			t.Errorf("audit refuses what is left of %s in %s: %s", tt.arguments, name, out.GetBody().GetArguments())
		}
	}
}

// TestEveryField: a credential is found in each text of a record but the human's statement.
func TestEveryField(t *testing.T) {
	const token = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
	filled := &auditv1.Record{RequestId: token, OperationId: token, Tool: token, Body: &auditv1.Body{
		Principal: token, Session: token, Source: token, Arguments: `{"a":"` + token + `"}`, Summary: "with " + token, ParentRequestId: token,
		Action: token, Reason: "it said password=hunter2", DecisionSource: token, Details: map[string]string{"a": token, "api_key": "hunter2", token: "named so"},
	}}
	texts := func(m proto.Message) (n int) {
		m.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
			if fd.Kind() == protoreflect.StringKind && !fd.IsMap() {
				n++
			}
			return true
		})
		return n
	}
	all := func(m proto.Message) (n int) {
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if fd := fields.Get(i); fd.Kind() == protoreflect.StringKind && !fd.IsMap() {
				n++
			}
		}
		return n
	}
	if got, want := texts(filled)+texts(filled.GetBody()), all(filled)+all(filled.GetBody()); got != want {
		t.Fatalf("the test fills %d texts of %d", got, want)
	}
	out, fields := New().Record(filled)
	if len(fields) != 15 {
		t.Errorf("redacted: %v", fields)
	}
	if text := out.String(); strings.Contains(text, token) || strings.Contains(text, "hunter2") || !strings.Contains(text, "named so") {
		t.Errorf("recorded: %s", text)
	}
	for _, name := range fields {
		whole, ok := Field(filled, name)
		if _, again := Field(whole, name); !ok || again {
			t.Errorf("Field(%s) = %t, and again %t", name, ok, again)
		}
	}
	if name, found := New().Find(out); found {
		t.Errorf("audit refuses what is left: %s", name)
	}
}

// TestKeepsWhatIsNone: what is redacted too often says nothing.
func TestKeepsWhatIsNone(t *testing.T) {
	for _, arguments := range []string{
		`{"max_tokens":131072,"token_count":4096,"prompt_tokens":"32768","tokens":131072,"tokens_per_second":41.5}`,
		`{"service_id":"vllm-chat","mode_id":"night","plan_digest":"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}`,
		`{"author":"ada","authority":"standing","keyboard":"de","sort_key":"name","public_key":"x","tokenizer":"bpe"}`,
		`{"password":"","token":null,"auth":false,"secret":"none"}`,
		`{"key_path":"/run/keys/a","token_file":"/run/token"}`,
		`{"reason":"the token is missing, ask for a new password"}`,
		`{"text":"<b>&</b> \u2028 é"}`,
		`{}`, ``, `[]`, `null`,
	} {
		record := of(arguments)
		if out, fields := New().Record(record); out != record {
			t.Errorf("%s is recorded as %s (%v)", arguments, out.GetBody().GetArguments(), fields)
		}
		if name, found := New().Find(record); found {
			t.Errorf("audit refuses %s in %s", arguments, name)
		}
	}
}

// TestKeepsIDs: an id that was redacted would tear a story in two.
func TestKeepsIDs(t *testing.T) {
	random := func(n int) []byte {
		b := make([]byte, n)
		_, _ = rand.Read(b)
		return b
	}
	for range 20_000 {
		short := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(random(16)))
		operation := hex.EncodeToString(random(16))
		record := &auditv1.Record{RequestId: "r-" + short, OperationId: operation, Tool: "start_service", Body: &auditv1.Body{
			Principal: "claude", Session: "s-" + short, ParentRequestId: "r-" + short, Source: "native",
			Details: map[string]string{
				"grant": operation, "statement": operation, "statement_digest": "sha256:" + hex.EncodeToString(random(32)), "authority": "standing",
				"caller": "spiffe://durward.local/executor/main", "digest": hex.EncodeToString(random(32)), "rows": "123456 credential_versions, 3 credentials",
			},
		}}
		if out, fields := New().Record(record); out != record {
			t.Fatalf("redacted %v of %v", fields, record)
		}
	}
}

// TestMarks: the mark of a value tells its shape and length class where it could not be guessed, and nothing where it could. Equal
// values of one process have equal marks; two processes' marks say nothing of each other.
func TestMarks(t *testing.T) {
	one, two := New(), New()
	for value, want := range map[string]string{
		"hunter2":                      "[redacted:",
		"correct horse battery staple": "[redacted:",
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa11111": "[redacted:",
		"20260131":                         "[redacted:",
		"qwertzuiopasdfghjklyxcvb":         "[redacted:",
		"834027156983402715690213a":        "[redacted:",
		"q8zt3vbn1xlw0yk7rj5pmd2c":         "[redacted:alnum:20-32:",
		"q8Zt3VbN1xLw0Yk7Rj5":              "[redacted:",
		"9F86D081884C7D659A2FEAA0C55AD015": "[redacted:hex:20-32:",
		"9f86D081884C7D659A2FEAA0C55AD015": "[redacted:alnum:20-32:",
		"q8Zt3VbN1xLw0Yk7Rj5PmD2c":         "[redacted:alnum:20-32:",
		"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08": "[redacted:hex:33-64:",
		"q8Zt3VbN1xLw0Yk7Rj5PmD2c+/8aB3dE5fG7hI9j==":                       "[redacted:base64:33-64:",
	} {
		got := one.mark(value)
		digest := strings.TrimSuffix(strings.TrimPrefix(got, want), "]")
		if raw, err := hex.DecodeString(digest); err != nil || len(raw) != 8 {
			t.Errorf("mark(%s) = %s, want %s and a digest", value, got, want)
		}
		if got != one.mark(value) || got == two.mark(value) || digest == strings.TrimSuffix(strings.TrimPrefix(one.mark(value+"x"), want), "]") {
			t.Errorf("marks of %s: %s, again %s, another process's %s", value, got, one.mark(value), two.mark(value))
		}
		if mark().FindString(got) != got {
			t.Errorf("%s is not known for a mark", got)
		}
	}
}

// TestSensitive: what the contract marks is redacted whatever it is called.
func TestSensitive(t *testing.T) {
	options := &descriptorpb.FieldOptions{}
	proto.SetExtension(options, optionsv1.E_Sensitive, true)
	member := func(name string, n int32, kind descriptorpb.FieldDescriptorProto_Type, message string, o *descriptorpb.FieldOptions) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{Name: &name, Number: &n, Type: &kind, Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), Options: o}
		if message != "" {
			f.TypeName = &message
		}
		return f
	}
	const text, message = descriptorpb.FieldDescriptorProto_TYPE_STRING, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("t.proto"), Package: proto.String("t"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: proto.String("Inner"), Field: []*descriptorpb.FieldDescriptorProto{member("note", 1, text, "", options), member("plain", 2, text, "", nil), member("count", 3, descriptorpb.FieldDescriptorProto_TYPE_INT32, "", options)}},
			{Name: proto.String("Outer"), Field: []*descriptorpb.FieldDescriptorProto{member("inner", 1, message, ".t.Inner", nil), member("all", 2, message, ".t.Inner", options)}},
		},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	values := json.NewDecoder(strings.NewReader(`{"inner":{"note":"my cat","plain":"a dog","count":4711},"all":{"plain":"a cow"}}`))
	values.UseNumber()
	if err := values.Decode(&tree); err != nil {
		t.Fatal(err)
	}
	w := walk{redactor: New()}
	got, err := json.Marshal(w.value(tree, "", file.Messages().ByName("Outer"), false))
	if err != nil {
		t.Fatal(err)
	}
	if s := string(got); strings.Contains(s, "cat") || strings.Contains(s, "cow") || strings.Contains(s, "4711") || !strings.Contains(s, "a dog") || !w.changed {
		t.Errorf("recorded: %s", s)
	}
}

// TestFits: what is left fits into its field, however short that is.
func TestFits(t *testing.T) {
	r := New()
	record := &auditv1.Record{RequestId: strings.Repeat("a", 20) + ":password=hunter2!", Body: &auditv1.Body{
		Summary: strings.Repeat("password=hunter2 ", 29), Session: "token=" + strings.Repeat("a1", 29),
		Arguments: `{"a":[` + strings.TrimSuffix(strings.Repeat(`{"token":"x1"},`, 4000), ",") + `]}`,
	}}
	out, _ := r.Record(record)
	if b := out.GetBody(); len(b.GetSummary()) > 500 || len(b.GetSession()) > 64 || len(out.GetRequestId()) > 64 || len(b.GetArguments()) > 65536 {
		t.Errorf("too long: %v", out)
	}
	if name, found := New().Find(out); found {
		t.Errorf("audit refuses %s", name)
	}
}

// FuzzRedact: whatever a record holds, audit takes what the writer left of it, and redacting it again changes nothing.
func FuzzRedact(f *testing.F) {
	for _, seed := range []string{`{"password":"x"}`, "Authorization: Bearer [redacted:0123456789abcdef] abcdefgh1", "://a:b@ ://c:d@", "password=[redacted:", "token: [redacted:refused]x1"} {
		f.Add(seed, seed)
	}
	r := New()
	f.Fuzz(func(t *testing.T, arguments, text string) {
		record := &auditv1.Record{Body: &auditv1.Body{Arguments: arguments, Summary: text, Details: map[string]string{"a": text, "token": text}}}
		out, _ := r.Record(record)
		if name, found := New().Find(out); found {
			t.Fatalf("audit refuses %s of %v", name, out)
		}
		again, fields := r.Record(out)
		if diff := cmp.Diff(out, again, protocmp.Transform()); diff != "" {
			t.Fatalf("redacted twice (%v): %s", fields, diff)
		}
	})
}

func BenchmarkRecord(b *testing.B) {
	record := &auditv1.Record{RequestId: "r-mjvkgvr7lpgguo3f3awaxmx5p4", Tool: "list_services", Body: &auditv1.Body{
		Principal: "claude", Session: "s-mjvkgvr7lpgguo3f3awaxmx5p4", Source: "native", Arguments: `{"service_id":"vllm-chat"}`,
		Summary: "answered", Details: map[string]string{"caller": "spiffe://durward.local/gateway/main"},
	}}
	r := New()
	for b.Loop() {
		r.Record(record)
	}
}

// TestAReferenceIsNoCredential: what stands for one is shown, signed and recorded as it is.
func TestAReferenceIsNoCredential(t *testing.T) {
	t.Parallel()
	for arguments, holds := range map[string]bool{
		`{"headers":[{"credential":{"$credential":"github"},"name":"Authorization"}]}`: false,
		`{"password":{"$credential":"github"}}`:                                        false,
		`{"credential":"github-of-mine"}`:                                              true,
		`{"x":{"$credential":"Not A Name"}}`:                                           true,
		`{"x":{"$credential":"github","y":"z"}}`:                                       true,
		`{"x":"ghp_` + strings.Repeat("A1b2", 9) + `"}`:                                true,
		`{"service_id":"llm"}`:                                                         false,
	} {
		if got := Holds("http_request", arguments); got != holds {
			t.Errorf("%s: %v", arguments, got)
		}
	}
}

// TestWhatIsRemembered: what was found clean once counts for the same field alone, and own ids are told by every character.
func TestWhatIsRemembered(t *testing.T) {
	r := New()
	say := func(key, value string) *auditv1.Record {
		return &auditv1.Record{Body: &auditv1.Body{Details: map[string]string{key: value}}}
	}
	for range 2 {
		if name, found := r.Find(say("note", "correct horse")); found {
			t.Fatalf("%s holds no credential", name)
		}
		if _, found := r.Find(say("password", "correct horse")); !found {
			t.Fatal("a password is clean because it was a note")
		}
		if _, found := r.Find(say("password", strings.Repeat("0f", 16))); !found {
			t.Fatal("a password is clean because it is spelt like an id")
		}
	}
	for i := range 5000 { // more than are remembered
		if _, found := r.Find(say("note", fmt.Sprint("note ", i))); found {
			t.Fatal(i)
		}
	}
	if n := len(r.clean.new) + len(r.clean.old); n > 2*remembered {
		t.Errorf("%d texts are remembered", n)
	}
	was := regexp.MustCompile(`\A(?:` + OwnHandle + `|[0-9a-f]{32})\z`)
	for _, sound := range []string{"r-" + strings.Repeat("a", 26), "s-" + strings.Repeat("7", 26), strings.Repeat("0f", 16)} {
		for at := range sound {
			for _, c := range []byte("azgf02789-A{`/:") {
				id := sound[:at] + string(c) + sound[at+1:]
				if ownID(id) != was.MatchString(id) {
					t.Errorf("%q is an id: %v", id, ownID(id))
				}
			}
			if ownID(sound[:at]) {
				t.Errorf("%q is an id", sound[:at])
			}
		}
	}
}
