package contract

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// TestFreeTextIsNamed: what an agent may write into arguments as it likes is looked through for personal data, whoever adds a tool.
func TestFreeTextIsNamed(t *testing.T) {
	named := 0
	for _, tool := range Tools() {
		walkFields(tool.Method.Input(), func(path string, fd protoreflect.FieldDescriptor) {
			value, rules := fd, fieldRules(fd).GetString()
			if fd.IsMap() {
				value, rules = fd.MapValue(), fieldRules(fd).GetMap().GetValues().GetString()
			}
			switch plain := rules.GetPattern() == "" && len(rules.GetIn()) == 0; {
			case value.Kind() != protoreflect.StringKind || fd.IsList():
				if freeText(fd) {
					t.Errorf("%s: %s is no string or map of strings, so that FreeText does not see it", tool.Name, path)
				}
			case freeText(fd):
				named++
				if strings.Contains(path, ".") || Sensitive(fd) {
					t.Errorf("%s: %s is within another field, or kept out of records already", tool.Name, path)
				}
			case plain && !Sensitive(fd):
				t.Errorf("%s: %s takes any text: free_text says what becomes of personal data in it", tool.Name, path)
			}
		})
	}
	if named != 3 {
		t.Errorf("%d arguments are free text; adding one changes what is disclosed", named)
	}
}

func TestFreeText(t *testing.T) {
	tool, _ := Lookup("http_request")
	m, err := tool.Decode([]byte(`{"url":"https://example.org/maria","method":"POST","headers":{"prefer":"b","accept":"a"},"body":"c"}`))
	must(t, err)
	before, refused := proto.CloneOf(m), errors.New("refused")
	if err := FreeText(m, func([]string) ([]string, error) { return nil, refused }); !errors.Is(err, refused) || !proto.Equal(before, m) {
		t.Errorf("refused: %v, %v", err, m)
	}
	var seen []string
	err = FreeText(m, func(texts []string) ([]string, error) {
		seen = slices.Clone(texts)
		for i := range texts {
			texts[i] += "!"
		}
		return texts, nil
	})
	raw, failed := Canonical(m)
	if want := `{"body":"c!","headers":{"accept":"a!","prefer":"b!"},"method":"POST","url":"https://example.org/maria"}`; err != nil || failed != nil || string(raw) != want ||
		!slices.Equal(seen, []string{"a", "b", "c"}) {
		t.Errorf("%q became %s: %v, %v", seen, raw, err, failed)
	}
	other, _ := Lookup("start_service")
	if m, err = other.Decode([]byte(`{"service_id":"demo-chat"}`)); err != nil {
		t.Fatal(err)
	}
	if err := FreeText(m, func([]string) ([]string, error) { return nil, refused }); err != nil {
		t.Errorf("a tool without: %v", err)
	}
}
