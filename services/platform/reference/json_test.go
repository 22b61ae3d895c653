package reference

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReferencesInJSON(t *testing.T) {
	a, b := Reference{Class: PII, Type: "EMAIL", ID: NewID()}, Reference{Class: Secret, Type: "KEY", ID: NewID()}
	raw := fmt.Sprintf(`{"a/b":["x",%q],"n":12345678901234567890,"t~":{"<&>":%q},"u":[true,null]}`, "to "+a.Marshal()+" and "+a.Marshal(), b.Marshal()+a.Marshal())
	got, err := InJSON([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	want := []Place{{"/a~1b/1", a}, {"/t~0/<&>", b}, {"/t~0/<&>", a}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	same, err := Fill([]byte(raw), func(p Place) (string, error) { return p.Marshal(), nil })
	if err != nil || string(same) != raw {
		t.Errorf("%s, %v", same, err)
	}
	filled, err := Fill([]byte(raw), func(p Place) (string, error) { return `"` + p.Type, nil })
	if want := `{"a/b":["x","to \"EMAIL and \"EMAIL"],"n":12345678901234567890,"t~":{"<&>":"\"KEY\"EMAIL"},"u":[true,null]}`; err != nil || string(filled) != want {
		t.Errorf("%s, %v", filled, err)
	}
	if _, err := Fill([]byte(raw), func(Place) (string, error) { return "", errors.New("no") }); err == nil {
		t.Error("a refusal is passed over")
	}
	for _, bad := range []string{"", "{", `"tkn_` + strings.Repeat("[", 10), `["tkn_",` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "]"} {
		if _, err := Fill([]byte(bad), func(Place) (string, error) { return "", nil }); err == nil {
			t.Errorf("%.40q is read", bad)
		}
	}
}
