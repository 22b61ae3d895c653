package resource

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const operationID = "0123456789abcdef0123456789abcdef"

func TestParseRefuses(t *testing.T) {
	for name, uri := range map[string]string{
		"empty":                   "",
		"the scheme alone":        "durward://",
		"another scheme":          "file://help",
		"no scheme":               "help",
		"no scheme, with an id":   "services/chat",
		"upper case scheme":       "DURWARD://help",
		"one slash":               "durward:/help",
		"no slashes":              "durward:help",
		"three slashes":           "durward:///help",
		"upper case":              "durward://Help",
		"unknown":                 "durward://secrets",
		"trailing slash":          "durward://help/",
		"trailing newline":        "durward://help\n",
		"trailing NUL":            "durward://help\x00",
		"leading space":           " durward://help",
		"fragment":                "durward://help#top",
		"user":                    "durward://root@help",
		"port":                    "durward://help:80",
		"empty query":             "durward://help?",
		"another query":           "durward://help?format=xml",
		"the default, said":       "durward://help?format=markdown",
		"upper case query":        "durward://help?FORMAT=json",
		"two queries":             "durward://help?format=json?format=json",
		"a second parameter":      "durward://help?format=json&x=1",
		"a parameter before":      "durward://help?x=1&format=json",
		"query before the id":     "durward://services?format=json/chat",
		"escaped letter":          "durward://hel%70",
		"escaped slash":           "durward://services%2fchat",
		"escaped query":           "durward://help%3fformat=json",
		"dots":                    "durward://services/../config",
		"a dot":                   "durward://services/.",
		"dot in an id":            "durward://services/a.b",
		"no id":                   "durward://services/",
		"two ids":                 "durward://services/a/b",
		"id with a space":         "durward://services/a b",
		"id that is an option":    "durward://services/--force",
		"id that begins with _":   "durward://services/_a",
		"id of 65":                "durward://services/" + strings.Repeat("a", 65),
		"full-width id":           "durward://services/\uff41",
		"Cyrillic id":             "durward://services/\u0430bc",
		"id with a zero width":    "durward://services/a\u200bb",
		"invalid UTF-8":           "durward://services/a\xff",
		"operation too short":     "durward://operations/" + operationID[1:],
		"operation too long":      "durward://operations/" + operationID + "0",
		"operation in upper case": "durward://operations/" + strings.ToUpper(operationID),
		"operation is no hex":     "durward://operations/" + strings.Repeat("g", 32),
		"operations":              "durward://operations",
		"kind, not name":          "durward://service/chat",
		"kind, not name, either":  "durward://mode/night",
		"no mode":                 "durward://modes/",
		"mode with a dot":         "durward://modes/a.b",
		"mode with a slash":       "durward://modes/a/b",
		"no model":                "durward://models/",
		"model above":             "durward://models/a/../b",
		"model that is above":     "durward://models/..",
		"model at the root":       "durward://models//etc",
		"model with a space":      "durward://models/a b",
		"model, escaped":          "durward://models/a%2fb",
		"model of 129":            "durward://models/" + strings.Repeat("a", 129),
		"a template":              "durward://services/{service_id}",
	} {
		if u, err := Parse(uri); !errors.Is(err, ErrURI) || u != (URI{}) {
			t.Errorf("%s: %q became %+v, %v", name, uri, u, err)
		}
	}
}

func TestParse(t *testing.T) {
	for uri, want := range map[string]URI{
		"durward://help":                                       {Kind: Help},
		"durward://help?format=json":                           {Kind: Help, Format: JSON},
		"durward://gpu":                                        {Kind: GPU},
		"durward://services":                                   {Kind: Services},
		"durward://services?format=json":                       {Kind: Services, Format: JSON},
		"durward://services/demo-chat":                         {Kind: Service, ID: "demo-chat"},
		"durward://services/help":                              {Kind: Service, ID: "help"},
		"durward://services/0_-?format=json":                   {Kind: Service, ID: "0_-", Format: JSON},
		"durward://modes":                                      {Kind: Modes},
		"durward://modes/night?format=json":                    {Kind: Mode, ID: "night", Format: JSON},
		"durward://models?format=json":                         {Kind: Models, Format: JSON},
		"durward://models/meta-llama/Llama-3.1-8B":             {Kind: Model, ID: "meta-llama/Llama-3.1-8B"},
		"durward://models/a..b?format=json":                    {Kind: Model, ID: "a..b", Format: JSON},
		"durward://config":                                     {Kind: Config},
		"durward://operations/" + operationID:                  {Kind: Operation, ID: operationID},
		"durward://operations/" + operationID + "?format=json": {Kind: Operation, ID: operationID, Format: JSON},
	} {
		u, err := Parse(uri)
		if diff := cmp.Diff(want, u); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", uri, err, diff)
		}
		if u.String() != uri {
			t.Errorf("%s is written as %s", uri, u)
		}
		if changes := want.Kind != Help && want.Kind != Config; u.Changes() != changes {
			t.Errorf("%s changes: %v", uri, u.Changes())
		}
	}
}

// FuzzURI: a text is a URI's one spelling, or it is none, and no id gets through that SEC-V1 would refuse.
func FuzzURI(f *testing.F) {
	for _, seed := range []string{
		"durward://help", "durward://gpu?format=json", "durward://services", "durward://services/demo-chat", "durward://config",
		"durward://operations/" + operationID, "durward://services/..%2f..%2fetc%2fpasswd", "durward://services/a\u202e", "DURWARD://help",
		"durward://services/a?format=json#x", "durward://help/", "durward://help?format=json&format=json", "",
		"durward://modes/night", "durward://models/meta-llama/Llama-3.1-8B?format=json", "durward://models/a/../b",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := Parse(s)
		if err != nil {
			if u != (URI{}) {
				t.Errorf("%q is refused and is %+v", s, u)
			}
			return
		}
		if u.String() != s {
			t.Errorf("%q is written as %q", s, u)
		}
		if again, err := Parse(u.String()); err != nil || again != u {
			t.Errorf("%q read again is %+v, %v", s, again, err)
		}
		forbidden := "./%?#@: \\"
		if u.Kind == Model {
			forbidden = "%?#@: \\"
		}
		if strings.ContainsAny(u.ID, forbidden) || strings.HasPrefix(u.ID, "/") || strings.Contains("/"+u.ID+"/", "/../") || len(s) > 200 {
			t.Errorf("%q got through", s)
		}
	})
}
