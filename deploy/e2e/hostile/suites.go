//go:build hostile

package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

// ownJSON stands in for the JSON parsing suite where there are no corpora: one of each kind.
var ownJSON = map[string]string{
	"y_object": `{"a":[1,-0.5e3,"\u00e9",true,false,null]}`, "y_array_nested": `[[],[[]]]`, "y_string_escapes": `"\"\\\/\b\f\n\r\t\uD834\uDD1E"`,
	"n_trailing_comma": `[1,]`, "n_single_quotes": `{'a':1}`, "n_comment": `[1]/**/`, "n_two": `1 2`, "n_unclosed": `[1`, "n_leading_zero": `[01]`, "n_nan": `[NaN]`,
	"n_not_utf8": "[\"\xff\"]", "n_control": "[\"\x01\"]", "n_bom": "\xef\xbb\xbf[1]", "n_nothing": "", "i_lone_surrogate": `["\uD800"]`, "i_huge_number": `[1e9999]`,
}

// duplicates are texts that the suite accepts and that are refused here on purpose: two readers could take them for two things.
func duplicates(name string) bool { return strings.HasPrefix(name, "y_object_duplicated_key") }

// testJSON sends every file of the JSON parsing suite, as a whole body and as an argument.
func testJSON(t *testing.T, g gateway, c client) {
	files := ownJSON
	if *corpora != "" {
		files = map[string]string{}
		paths, err := filepath.Glob(filepath.Join(*corpora, folderJSON, "test_parsing", "*.json"))
		if err != nil || len(paths) < 300 {
			t.Fatalf("%d files: %v", len(paths), err)
		}
		for _, path := range paths {
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files[strings.TrimSuffix(filepath.Base(path), ".json")] = string(raw)
		}
	}
	l := line{address: g.address}
	defer l.close()
	// refused sends a body and reports whether it was not even parsed.
	refused := func(e era, body string) bool {
		m := g.call(e, c, "gpu_status", `{}`)
		m.body = body
		a, err := l.send(m)
		if err != nil {
			t.Fatal(err)
		}
		if found := inspect(a.header, a.body, ""); len(found) > 0 {
			t.Errorf("%q is answered with %v", body, found)
		}
		return strings.Contains(a.outcome, "JSON-RPC -32700") || strings.Contains(a.outcome, "TOO_LARGE") || strings.Contains(a.outcome, "JSON-RPC -32600") && !parses(a)
	}
	counts := map[string]int{}
	var listed []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, e := range both {
			whole, within := refused(e, files[name]), refused(e, g.call(e, c, "gpu_status", `{"x":`+files[name]+`}`).body)
			switch {
			case duplicates(name):
				if !whole || !within {
					t.Errorf("%s (%s): duplicate keys are accepted", name, e)
				}
				counts["y_ refused for duplicate keys"]++
			case strings.HasPrefix(name, "y_"):
				if whole || within {
					t.Errorf("%s (%s) is not parsed: whole %t, as an argument %t", name, e, !whole, !within)
				}
				counts["y_ parsed"]++
			case strings.HasPrefix(name, "n_"):
				if !whole || !within {
					t.Errorf("%s (%s) is parsed: whole %t, as an argument %t", name, e, !whole, !within)
				}
				counts["n_ refused"]++
			default:
				verdict := "refused"
				if !within {
					verdict = "parsed"
				}
				counts["i_ "+verdict]++
				if e == stateless {
					listed = append(listed, name+" "+verdict)
				}
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		fmt.Printf("hostile: JSON suite, both eras: %d %s\n", counts[k], k)
	}
	fmt.Printf("hostile: JSON suite, left to the implementation: %s\n", strings.Join(listed, ", "))
}

// parses reports whether a refusal speaks of a message that was read as JSON.
func parses(a answer) bool {
	return bytes.Contains(a.body, []byte("JSON-RPC 2.0")) || bytes.Contains(a.body, []byte("Batches"))
}

// keywords are those that the schemas of tools use; a file of the suite is named like its keyword.
var keywords = []string{"type", "properties", "additionalProperties", "required", "pattern", "minLength", "maxLength", "minimum", "maximum", "enum",
	"items", "maxItems", "uniqueItems", "propertyNames", "maxProperties"}

// testSchemas sends each value of the JSON Schema suite as arguments, and as each argument, of every tool: what the gateway
// thinks of it has to agree with what the published schema says of it, by a validator that passes the suite for the keywords
// that are used.
func testSchemas(t *testing.T, g gateway, c client, list json.RawMessage) {
	var tools struct {
		Tools []struct {
			Name        string          `json:"name"`
			InputSchema json.RawMessage `json:"inputSchema"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(list, &tools); err != nil {
		t.Fatal(err)
	}
	values := []string{`null`, `true`, `0`, `-1.5`, `"x"`, `""`, `[]`, `["a"]`, `{}`, `{"a":1}`, `"foo\n"`, `1e3`, `"\ud83d\ude00"`}
	if *corpora != "" {
		values = append(values, sample(rand.New(rand.NewPCG(*seed, 3)), suiteValues(t), *schemaValues)...)
	}
	slices.Sort(values)
	values = slices.Compact(values)
	l := line{address: g.address}
	defer l.close()
	sent, valid := 0, 0
	for _, tool := range tools.Tools {
		schema := new(jsonschema.Schema)
		if err := json.Unmarshal(tool.InputSchema, schema); err != nil {
			t.Fatal(err)
		}
		for keyword := range used(t, tool.InputSchema) {
			if keyword != "$schema" && keyword != "description" && !slices.Contains(keywords, keyword) {
				t.Errorf("%s uses %s, which this test does not know", tool.Name, keyword)
			}
		}
		resolved, err := schema.Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, value := range values {
			candidates := []string{value}
			for name, property := range schema.Properties {
				candidates = append(candidates, `{`+quote(name)+`:`+value+`}`)
				switch property.Type {
				case "array":
					candidates = append(candidates, `{`+quote(name)+`:[`+value+`]}`, `{`+quote(name)+`:["a",`+value+`]}`, `{`+quote(name)+`:[`+value+`,`+value+`]}`)
				case "object":
					candidates = append(candidates, `{`+quote(name)+`:{"a":`+value+`}}`)
				}
				for other, filler := range fillers {
					if _, has := schema.Properties[other]; has && other != name {
						candidates = append(candidates, `{`+quote(other)+`:`+quote(filler)+`,`+quote(name)+`:`+value+`}`)
					}
				}
			}
			for _, arguments := range candidates {
				var instance any
				if err := json.Unmarshal([]byte(arguments), &instance); err != nil {
					t.Fatal(err)
				}
				fits := resolved.Validate(instance) == nil
				a, err := l.send(g.call(both[i%2], c, tool.Name, arguments))
				if err != nil {
					t.Fatal(err)
				}
				sent++
				if fits {
					valid++
				}
				// What a human lets an override do is narrower than what its schema can say, and not the contract's business.
				if limited := fits && strings.Contains(arguments, "_override"); limited {
					continue
				}
				if accepted := !strings.Contains(a.outcome, "INVALID_ARGUMENT"); accepted != fits {
					t.Errorf("%s with %.200s: the schema says %t, the gateway %s", tool.Name, arguments, fits, a.outcome)
				}
			}
		}
	}
	fmt.Printf("hostile: JSON Schema suite: %d values, %d calls, of which %d fit their schema; the gateway agrees\n", len(values), sent, valid)
}

// used returns the keywords of a schema.
func used(t *testing.T, raw json.RawMessage) map[string]bool {
	t.Helper()
	var schema map[string]json.RawMessage
	if err := json.Unmarshal(raw, &schema); err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for keyword, value := range schema {
		out[keyword] = true
		if value[0] == '{' && slices.Contains([]string{"items", "additionalProperties", "propertyNames"}, keyword) {
			maps.Copy(out, used(t, value))
		}
		if keyword == "properties" {
			var properties map[string]json.RawMessage
			if err := json.Unmarshal(value, &properties); err != nil {
				t.Fatal(err)
			}
			for _, property := range properties {
				for inner := range used(t, property) {
					out[inner] = true
				}
			}
		}
	}
	return out
}

// suiteValues returns every value that the suite validates, by keyword, and holds the validator to the suite for the keywords
// that our schemas use.
func suiteValues(t *testing.T) []stratum {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(*corpora, folderSchema, "tests", "draft2020-12", "*.json"))
	if err != nil || len(paths) < 40 {
		t.Fatalf("%d files: %v", len(paths), err)
	}
	var values []stratum
	checked := 0
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var groups []struct {
			Description string          `json:"description"`
			Schema      json.RawMessage `json:"schema"`
			Tests       []struct {
				Description string          `json:"description"`
				Data        json.RawMessage `json:"data"`
				Valid       bool            `json:"valid"`
			} `json:"tests"`
		}
		if err := json.Unmarshal(raw, &groups); err != nil {
			t.Fatal(err)
		}
		keyword := strings.TrimSuffix(filepath.Base(path), ".json")
		of := stratum{corpus: folderSchema, file: keyword}
		for _, group := range groups {
			schema := new(jsonschema.Schema)
			var resolved *jsonschema.Resolved
			if slices.Contains(keywords, keyword) {
				if err := json.Unmarshal(group.Schema, schema); err != nil {
					t.Fatalf("%s, %s: %v", keyword, group.Description, err)
				}
				if resolved, err = schema.Resolve(nil); err != nil {
					t.Fatalf("%s, %s: %v", keyword, group.Description, err)
				}
			}
			for _, test := range group.Tests {
				of.strings = append(of.strings, string(test.Data))
				if resolved == nil {
					continue
				}
				var instance any
				if err := json.Unmarshal(test.Data, &instance); err != nil {
					t.Fatal(err)
				}
				checked++
				if valid := resolved.Validate(instance) == nil; valid != test.Valid {
					t.Errorf("the validator fails the suite: %s, %s, %s", keyword, group.Description, test.Description)
				}
			}
		}
		values = append(values, of)
	}
	fmt.Printf("hostile: JSON Schema suite: the validator passes %d tests of %s\n", checked, strings.Join(keywords, ", "))
	return values
}

// whatwg is one test of the URL suite.
type whatwg struct {
	Input    string `json:"input"`
	Failure  bool   `json:"failure"`
	Origin   string `json:"origin"`
	Host     string `json:"host"`
	Hostname string `json:"hostname"`
	Pathname string `json:"pathname"`
}

// ownURLs stand in for the URL suite where there are no corpora.
var ownURLs = []whatwg{
	{Input: "http://localhost", Origin: "http://localhost", Host: "localhost", Hostname: "localhost", Pathname: "/"},
	{Input: "http://0x7f.1/", Origin: "http://127.0.0.1", Host: "127.0.0.1", Hostname: "127.0.0.1", Pathname: "/"},
	{Input: "http://evil.example\\@localhost/", Origin: "http://evil.example", Host: "evil.example", Hostname: "evil.example", Pathname: "/@localhost/"},
	{Input: "http://localhost:80@evil.example/", Origin: "http://evil.example", Host: "evil.example", Hostname: "evil.example", Pathname: "/"},
	{Input: "http://[::1]x", Failure: true}, {Input: "http://loc\talhost", Origin: "http://localhost", Host: "localhost", Hostname: "localhost", Pathname: "/"},
}

// testURLs sends the inputs of the URL suite where the gateway reads URLs: as Origin, their authority as Host, and as
// resources. Whatever it accepts has to be what the standard's parser makes of it; refusing is always right.
func testURLs(t *testing.T, g gateway, c client, allowed []string) {
	list := ownURLs
	if *corpora != "" {
		raw, err := os.ReadFile(filepath.Join(*corpora, folderURL, "testdata", "urltestdata.json"))
		if err != nil {
			t.Fatal(err)
		}
		var entries []json.RawMessage
		if err := json.Unmarshal(raw, &entries); err != nil {
			t.Fatal(err)
		}
		list = nil
		for _, entry := range entries {
			var test whatwg
			if json.Unmarshal(entry, &test) == nil && (test.Failure || test.Hostname+test.Pathname != "") {
				list = append(list, test)
			}
		}
	}
	local := func(host string) bool { return host == "localhost" || host == "127.0.0.1" || host == "[::1]" }
	l := line{address: g.address}
	defer l.close()
	counts := map[string]int{}
	for i, test := range list {
		e := both[i%2]
		send := func(where string, m *message) bool {
			a, err := l.send(m)
			if err != nil {
				t.Fatalf("%s %q: %v", where, test.Input, err)
			}
			if found := inspect(a.header, a.body, ""); len(found) > 0 {
				t.Errorf("%s %q is answered with %v", where, test.Input, found)
			}
			verdict := "refused"
			if a.ok() {
				verdict = "accepted"
			}
			counts[where+" "+verdict]++
			return a.ok()
		}
		m := g.call(e, c, "gpu_status", `{}`)
		m.set("Origin", test.Input)
		if send("Origin", m) && (test.Failure || !local(test.Hostname)) {
			t.Errorf("Origin %q is accepted; the standard says %q", test.Input, test.Origin)
		}
		m = g.call(e, c, "gpu_status", `{}`)
		m.host = authority(test.Input)
		if strings.HasPrefix(strings.ToLower(test.Input), "http") && send("Host", m) && (test.Failure || !local(test.Hostname)) {
			t.Errorf("Host %q is accepted; the standard says that %q is at %q", m.host, test.Input, test.Host)
		}
		for _, uri := range []string{test.Input, "durward://" + strings.TrimPrefix(strings.TrimPrefix(test.Input, "http://"), "https://"), "durward://services/" + test.Input, "durward://services" + test.Pathname} {
			if !send("URI", g.request(e, c, "resources/read", part{params: `"uri":` + quote(uri), name: uri})) {
				continue
			}
			u, err := url.Parse(uri)
			if err != nil || u.String() != uri || !known(u, allowed) {
				t.Errorf("the resource %q is accepted", uri)
			}
		}
	}
	fmt.Printf("hostile: URL suite: %d tests", len(list))
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		fmt.Printf("; %s %d", k, counts[k])
	}
	fmt.Println()
}

// authority is what stands between the scheme and the path, as it was written.
func authority(input string) string {
	_, rest, found := strings.Cut(input, "://")
	if !found {
		return input
	}
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	return rest
}

// known reports whether a URI is one of the product's.
func known(u *url.URL, allowed []string) bool {
	if u.Scheme != "durward" || u.RawQuery != "" || u.Fragment != "" || u.User != nil || u.Port() != "" {
		return false
	}
	if slices.Contains([]string{"help", "gpu", "services", "config"}, u.Host) && u.Path == "" {
		return true
	}
	return u.Host == "services" && slices.Contains(allowed, strings.TrimPrefix(u.Path, "/"))
}
