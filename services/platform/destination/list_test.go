package destination

import (
	"strings"
	"testing"
)

func TestParseListRefuses(t *testing.T) {
	for text, why := range map[string]string{
		"allow: [":                        "domains.yaml",
		"allowed: []":                     `did you mean "allow"`,
		"allow: example.org":              "domains.yaml",
		"allow: [1]":                      "must be a domain",
		"allow: [{domains: example.org}]": "unknown key",
		"allow: [{clients: [cursor]}]":    "neither a name",
		"allow: [{domain: example.org, clients: []}]":     "clients",
		"allow: [{domain: example.org, clients: cursor}]": "clients",
		"allow: [{domain: example.org, agents: [1]}]":     "agents",
		"allow: [\"\"]":                    "neither a name",
		"allow: [\"*\"]":                   "neither a name",
		"allow: [\"*.com\"]":               "whatever anybody registers",
		"allow: [\"*.co.uk\"]":             "whatever anybody registers",
		"allow: [\"*.github.io\"]":         "whatever anybody registers",
		"allow: [\"a.*.org\"]":             "neither a name",
		"allow: [\"*.*.org\"]":             "neither a name",
		"allow: [\"*.10.0.0.1\"]":          "nothing is below",
		"allow: [Example.org]":             "write Example.org as example.org",
		"allow: [bücher.example]":          "write bücher.example as xn--",
		"allow: [example.org.]":            "write example.org. as",
		"allow: [\"https://example.org\"]": "the host alone",
		"allow: [example.org/x]":           "the host alone",
		"allow: [\"10.0.0.0/8\"]":          "no network",
		"allow: [\"example.org:0\"]":       "port",
		"allow: [\"example.org:080\"]":     "port",
		"allow: [\"::1\"]":                 "brackets",
		"allow: [\"0x7f.1\"]":              "unusual spelling",
	} {
		if _, err := ParseList(Source{File: "domains.yaml"}, []byte(text)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", text, err, why)
		}
	}
}

// TestAProjectOnlyBlocks: a project's file allows nothing, whatever it says, and what it blocks is blocked for its clients alone.
func TestAProjectOnlyBlocks(t *testing.T) {
	from := Source{Layer: "project", File: "projects/a.yaml"}
	for text, why := range map[string]string{
		"domains:\n  allow: [docs.example]\n":                        "projects/a.yaml:2:3: unknown key \"allow\" in domains",
		"domains:\n  block: [bad.example]\n  allow: [\"*.example\"]": "projects/a.yaml:3:3: unknown key \"allow\" in domains",
		"allow: [docs.example]\n":                                    "projects/a.yaml:1:1: unknown key \"allow\"",
		"domains: [docs.example]\n":                                  "projects/a.yaml:1:",
		"domains: {block: [{domain: a.example, clients: [none]}]}":   "projects/a.yaml:1:",
		"domains: {block: [a.example, A.example]}":                   "entry 2: write A.example as a.example",
		"domains: {block: [\"*\"]}":                                  "entry 1: ",
		"domains: {block: [a.example]}\ndomains: {block: []}\n":      "projects/a.yaml:2:1",
	} {
		if _, err := ParseProject(from, nil, []byte(text)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", text, err, why)
		}
	}
	system, err := ParseList(Source{File: File}, []byte("allow: [docs.example, \"*.wide.example\"]"))
	if err != nil {
		t.Fatal(err)
	}
	text := []byte("settings: {tier_ceiling: READ}\ntools: {}\ndomains: {block: [docs.example, \"*.wide.example:443\"]}\n")
	for _, clients := range [][]string{nil, {"cursor"}} {
		project, err := ParseProject(from, clients, text)
		if err != nil || len(project.Allow) > 0 {
			t.Fatal(project, err)
		}
		list := Join(system, project)
		for _, client := range []string{"cursor", "other", ""} {
			bound := clients == nil || client == "cursor"
			for to, blocked := range map[Destination]bool{
				{"docs.example", 80}: bound, {"a.wide.example", 443}: bound, {"a.wide.example", 80}: false, {"wide.example", 443}: false,
			} {
				verdict, by := list.Judge(Party{Client: client}, to)
				if (verdict == Blocked) != blocked || blocked && by.File != from.File {
					t.Errorf("%v, %q reaches %s: %d by %+v", clients, client, to, verdict, by)
				}
				if client == "" {
					continue // for a server it is any client's
				}
				if _, is := list.BlockedFor(client, to); is != blocked {
					t.Errorf("%v, a server for %q reaches %s: blocked %t", clients, client, to, is)
				}
			}
		}
	}
}

func TestJudgeByList(t *testing.T) {
	list, err := ParseList(Source{File: "domains.yaml"}, []byte(`
allow:
  - example.org
  - "*.wide.example"
  - {domain: mine.example, clients: [cursor]}
  - {domain: research.example, clients: [cursor], agents: [reader]}
  - 127.0.0.1:8080
  - "[::1]:8080"
  - api.example:8443
  - bad.wide.example
block:
  - bad.wide.example
  - "*.zip"
  - {domain: "*.example.org", agents: [intern]}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		client, agent, url string
		want               Verdict
		by                 string
	}{
		{"any", "", "https://example.org/", Allowed, "example.org"},
		{"any", "", "https://EXAMPLE.ORG./", Allowed, "example.org"},
		{"any", "", "https://www.example.org/", Unknown, ""},
		{"any", "", "https://notexample.org/", Unknown, ""},
		{"any", "", "https://example.org.evil.test/", Unknown, ""},
		{"any", "", "https://a.b.wide.example/", Allowed, "*.wide.example"},
		{"any", "", "https://wide.example/", Unknown, ""},
		{"any", "", "https://bad.wide.example/", Blocked, "bad.wide.example"},
		{"any", "", "https://report.zip/", Blocked, "*.zip"},
		{"cursor", "", "https://mine.example/", Allowed, "mine.example"},
		{"other", "", "https://mine.example/", Unknown, ""},
		{"cursor", "reader", "https://research.example/", Allowed, "research.example"},
		{"cursor", "", "https://research.example/", Unknown, ""},
		{"other", "reader", "https://research.example/", Unknown, ""},
		{"any", "intern", "https://www.example.org/", Blocked, "*.example.org"},
		{"any", "", "http://127.0.0.1:8080/", Allowed, "127.0.0.1:8080"},
		{"any", "", "http://127.0.0.1:8081/", Unknown, ""},
		{"any", "", "http://[::1]:8080/", Allowed, "[::1]:8080"},
		{"any", "", "https://api.example:8443/", Allowed, "api.example:8443"},
		{"any", "", "https://api.example/", Unknown, ""},
	} {
		_, to, err := ParseURL(c.url)
		if err != nil {
			t.Fatal(err)
		}
		if got, by := list.Judge(Party{Client: c.client, Agent: c.agent}, to); got != c.want || by.Domain != c.by {
			t.Errorf("%s of %s/%s: %d by %q, want %d by %q", c.url, c.client, c.agent, got, by.Domain, c.want, c.by)
		}
	}
	if v, _ := (&List{}).Judge(Party{Client: "c"}, Destination{Host: "example.org", Port: 443}); v != Unknown {
		t.Error("a list without entries knows a domain")
	}
	if l, err := ParseList(Source{File: "domains.yaml"}, []byte("# nothing yet\n")); err != nil || len(l.Allow) != 0 {
		t.Errorf("comments alone: %v, %v", l, err)
	}
}

// TestLayersOfLists: each layer's entries count, a user's for that user's clients alone, what any of them blocks is blocked, and the
// entry that decides says where it stands.
func TestLayersOfLists(t *testing.T) {
	var lists []*List
	for _, layer := range []struct {
		from Source
		text string
	}{
		{Source{"system", File, ""}, "allow: [docs.example, shared.example, metadata.google.internal]\nblock: [bad.example]\n"},
		{Source{"user", "users/alice/domains.yaml", "alice"}, "allow: [hers.example, bad.example, {domain: cursors.example, clients: [cursor]}]\nblock: [shared.example]\n"},
		{Source{"user", "users/bob/domains.yaml", "bob"}, "allow: [hers.example]\n"},
	} {
		l, err := ParseList(layer.from, []byte(layer.text))
		if err != nil {
			t.Fatal(err)
		}
		lists = append(lists, l)
	}
	list := Join(append(lists, BuiltIn())...)
	for _, c := range []struct {
		of   Party
		host string
		want Verdict
		file string
	}{
		{Party{Client: "cursor", User: "alice"}, "docs.example", Allowed, File},
		{Party{Client: "cursor", User: "alice"}, "hers.example", Allowed, "users/alice/domains.yaml"},
		{Party{Client: "other", User: "bob"}, "hers.example", Allowed, "users/bob/domains.yaml"},
		{Party{Client: "other"}, "hers.example", Unknown, ""},
		{Party{Client: "cursor", User: "alice"}, "cursors.example", Allowed, "users/alice/domains.yaml"},
		{Party{Client: "other", User: "alice"}, "cursors.example", Unknown, ""},
		{Party{Client: "cursor", User: "bob"}, "cursors.example", Unknown, ""},
		{Party{Client: "cursor", User: "alice"}, "bad.example", Blocked, File},
		{Party{Client: "cursor", User: "alice"}, "shared.example", Blocked, "users/alice/domains.yaml"},
		{Party{Client: "other", User: "bob"}, "shared.example", Allowed, File},
		{Party{Client: "other"}, "metadata.google.internal", Blocked, ""},
	} {
		if got, by := list.Judge(c.of, Destination{Host: c.host, Port: 443}); got != c.want || by.File != c.file {
			t.Errorf("%s for %+v: %d by %+v, want %d by %q", c.host, c.of, got, by, c.want, c.file)
		}
	}
	only, err := ParseList(Source{File: File}, []byte("block: [{domain: cursors.example, clients: [cursor]}, {domain: readers.example, agents: [reader]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	list = Join(list, only)
	for _, c := range []struct {
		client, host string
		want         bool
	}{
		{"cursor", "bad.example", true}, {"cursor", "shared.example", true}, {"cursor", "readers.example", true}, {"cursor", "metadata.google.internal", true},
		{"cursor", "cursors.example", true}, {"", "cursors.example", true}, {"other", "cursors.example", false}, {"cursor", "docs.example", false},
	} {
		if _, got := list.BlockedFor(c.client, Destination{Host: c.host, Port: 443}); got != c.want {
			t.Errorf("%s is blocked for %q: %v", c.host, c.client, got)
		}
	}
	if n := len(BuiltIn().Block); n == 0 || n != len(BuiltIn().block) || BuiltIn().Block[0].Layer != "built-in" {
		t.Errorf("built in are %d", n)
	}
	if len(lists[0].Allow) != 3 || len(lists[0].allow) != 3 {
		t.Error("to join lists changes one")
	}
}

// TestAListIsBounded: what has more entries than are ever looked through is refused as a whole.
func TestAListIsBounded(t *testing.T) {
	list := func(allow, block int) string {
		entries := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("example.org, ", n), ", ") + "]\n" }
		return "allow: " + entries(allow) + "block: " + entries(block)
	}
	if _, err := ParseList(Source{File: File}, []byte(list(1, maxEntries))); err == nil || !strings.Contains(err.Error(), "more than 20000 entries") {
		t.Errorf("one too many: %v", err)
	}
	project := "domains: {block: [" + strings.Repeat("example.org, ", maxEntries) + "example.org]}"
	if _, err := ParseProject(Source{File: "projects/a.yaml"}, nil, []byte(project)); err == nil || !strings.Contains(err.Error(), "more than 20000 entries") {
		t.Errorf("one too many in a project: %v", err)
	}
	if _, err := ParseList(Source{File: File}, []byte(list(1, 1))); err != nil {
		t.Error(err)
	}
}
