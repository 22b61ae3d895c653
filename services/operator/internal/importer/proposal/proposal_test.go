package proposal

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"durward.internal/services/platform/catalog"
)

// TestModelsOfOneName: a model is another one where its file or source is, whatever it is called; estimates are made of the file.
func TestModelsOfOneName(t *testing.T) {
	t.Parallel()
	present, err := catalog.Parse("x", []byte("version: 1\nmodels: [{id: a/b, file: /srv/q4.gguf, source: \"hf:a/b\"}, {id: known}]\n"), catalog.Options{Development: true})
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string) Fields {
		return Fields{{Key: "file", Value: name}, {Key: "source", Value: "hf:a/b"}}
	}
	source := Fields{{Key: "source", Value: "hf:a/b"}}
	for _, c := range []struct {
		name    string
		present *Present
		put     []Fields
		want    string
	}{
		{"the same file", nil, []Fields{file("/srv/q4.gguf"), file("/srv/q4.gguf")}, "a/b a/b"},
		{"the same source", nil, []Fields{source, source}, "a/b a/b"},
		{"two files", nil, []Fields{file("/srv/q4.gguf"), file("/srv/q8.gguf"), file("/srv/q4.gguf"), file("/srv/q8.gguf")}, "a/b a/b-2 a/b a/b-2"},
		{"a file of a source", nil, []Fields{file("/srv/q4.gguf"), source}, "a/b a/b-2"},
		{"a source and a file of it", nil, []Fields{source, file("/srv/q4.gguf")}, "a/b a/b-2"},
		{"nothing is known", nil, []Fields{nil, nil}, "a/b a/b"},
		{"the catalogue's file", present, []Fields{file("/srv/q4.gguf")}, "a/b"},
		{"not the catalogue's file", present, []Fields{file("/srv/q8.gguf"), nil}, "a/b-2 a/b-3"},
	} {
		p := New("x", c.present, "x")
		var got []string
		for _, fields := range c.put {
			got = append(got, p.Model("a/b", fields))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	p := New("x", present, "x")
	if got := p.Model("known", file("/srv/x.gguf")); got != "known-2" {
		t.Errorf("a model of which the catalogue knows no file is %q", got)
	}
	long := strings.Repeat("m", 200)
	first, second := p.Model(long, file("/1")), p.Model(long, file("/2"))
	if first == second || len(second) > maxModelID || ModelID(second) != second {
		t.Errorf("%q %q", first, second)
	}
}

// TestServiceWithoutItsModel: a model that cannot be written leaves its service, without it.
func TestServiceWithoutItsModel(t *testing.T) {
	t.Parallel()
	p := New("x", nil, "x")
	model := p.Model("m", Fields{{Key: "served_name", Value: "sk-abcdefgh"}})
	p.Service("s", Fields{{Key: "driver", Value: "null"}}, model, nil)
	out, err := p.Settle(context.Background(), nil, catalog.Options{Development: true})
	if err != nil || len(p.Services()) != 1 || len(p.Models()) != 0 || strings.Contains(string(out), "model: m") {
		t.Errorf("%v %v\n%s", err, p.LeftOut(), out)
	}
}

func TestFreeID(t *testing.T) {
	t.Parallel()
	taken := map[string]bool{}
	for n := range 1100 {
		id := FreeID("a b", taken)
		if want := "a-b"; n == 0 && id != want || n == 1 && id != want+"-2" || n >= 999 && id != "" {
			t.Fatalf("number %d is %q", n, id)
		}
	}
}

// TestManyRounds: services that depend on each other in circles are found one by one, and all of them go.
func TestManyRounds(t *testing.T) {
	t.Parallel()
	p := New("x", nil, "x")
	for i := range 60 {
		a, b := fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)
		p.Service(a, Fields{{Key: "driver", Value: "null"}}, "", []string{b})
		p.Service(b, Fields{{Key: "driver", Value: "null"}}, "", []string{a})
	}
	p.Service("good", Fields{{Key: "driver", Value: "null"}}, "", nil)
	if _, err := p.Settle(context.Background(), nil, catalog.Options{Development: true}); err != nil || len(p.Services()) != 1 || len(p.LeftOut()) != 120 {
		t.Errorf("%v: %q, %d left out", err, p.Services(), len(p.LeftOut()))
	}
}

// TestNoSecretPasses: whoever makes an entry, the last look at it finds a secret.
func TestNoSecretPasses(t *testing.T) {
	t.Parallel()
	p := New("x", nil, "x")
	for i, fields := range []Fields{
		{{Key: "driver", Value: "null"}, {Key: "description", Value: "sk-abcdefgh"}},
		{{Key: "driver", Value: "process"}, {Key: "argv", Value: []any{"/x", "hf_abcdefghij"}}, {Key: "port", Value: 80}},
		{{Key: "driver", Value: "process"}, {Key: "argv", Value: []string{"/x"}}, {Key: "port", Value: 81}, {Key: "environment", Value: Fields{{Key: "A", Value: "https://u:p@h/"}}}},
	} {
		p.Service("s"+string(rune('a'+i)), fields, "", nil)
	}
	p.Service("good", Fields{{Key: "driver", Value: "null"}}, "", nil)
	text, err := p.Settle(context.Background(), nil, catalog.Options{Development: true})
	if err != nil || len(p.Services()) != 1 || len(p.LeftOut()) != 3 || !strings.Contains(p.LeftOut()[0].Why, "looks like a secret") {
		t.Errorf("%v %v\n%s", err, p.LeftOut(), text)
	}
}
