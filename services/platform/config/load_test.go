package config_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/platformtest/testfile"
)

type service struct {
	ID      string            `yaml:"id"`
	Argv    []string          `yaml:"argv"`
	GPUs    []int             `yaml:"gpus"`
	Port    uint16            `yaml:"port"`
	Timeout time.Duration     `yaml:"timeout"`
	Env     map[string]string `yaml:"env"`
	Share   float64           `yaml:"share"`
	On      bool              `yaml:"on"`
}

type file struct {
	config.Common `yaml:",inline"`
	Audit         *config.Peer `yaml:"audit"`
	Services      []service    `yaml:"services"`
}

func TestParseRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"unknown key":              {"listn: x", `f.yaml:1:1: unknown key "listn"; did you mean "listen"?`},
		"unknown, deeper":          {"services:\n  - id: a\n    agrv: [x]", `f.yaml:3:5: unknown key "agrv" in services; did you mean "argv"?`},
		"unknown, in inline":       {"tls:\n  certificat: x", `f.yaml:2:3: unknown key "certificat" in tls; did you mean "certificate"?`},
		"unknown, nothing near":    {"zzzzzz: 1", `f.yaml:1:1: unknown key "zzzzzz"`},
		"unknown, hidden field":    {"allowremote: true", `f.yaml:1:1: unknown key "allowremote"`},
		"unknown, hostile":         {"\"a\\u202E\\e[2J\": 1", `f.yaml:1:1: unknown key "a"`},
		"case differs":             {"Listen: x", `f.yaml:1:1: unknown key "Listen"; did you mean "listen"?`},
		"duplicate":                {"listen: a\nlisten: b", `already`},
		"duplicate, deeper":        {"services:\n  - id: a\n    id: b", `f.yaml:3:5:`},
		"duplicate in a map":       {"services:\n  - env: {A: x, A: y}", `f.yaml:2:`},
		"duplicate, quoted":        {"listen: a\n\"listen\": b", `f.yaml:2:1:`},
		"second document":          {"listen: a\n---\nlisten: b", `document`},
		"end marker, second":       {"listen: a\n...\n---\nlog_level: b", `document`},
		"anchor":                   {"state_dir: &a x", `f.yaml:1:12: anchors, aliases and merges are not accepted; write the value out`},
		"alias":                    {"state_dir: &a x\ntrust_dir: *a", `anchors, aliases and merges`},
		"merge":                    {"tls:\n  <<: {key: x}", `anchors, aliases and merges`},
		"tag":                      {"listen: !!binary aGk=", `tags are not accepted`},
		"empty":                    {"", "f.yaml: the file is empty"},
		"comments alone":           {"# nothing\n", "f.yaml: the file is empty"},
		"a list":                   {"- a", "f.yaml:1:1: the file must be keys with values, not a list"},
		"a word":                   {"hello", "f.yaml:1:1: the file must be keys with values"},
		"null":                     {"null", "f.yaml:1:1: the file has no value"},
		"no value":                 {"listen:", "listen has no value"},
		"number for text":          {"listen: 7431", `f.yaml:1:9: listen must be text (put it in quotes if it looks like a number)`},
		"bool for text":            {"log_level: true", `log_level must be text`},
		"text for number":          {"gogc: many", `f.yaml:1:7: gogc must be a whole number`},
		"quoted number":            {`gogc: "800"`, `gogc must be a whole number`},
		"fraction for number":      {"gogc: 1.5", `gogc must be a whole number`},
		"overflow":                 {"services: [{port: 70000}]", `f.yaml:1:19: a number that is out of range`},
		"negative for unsigned":    {"services: [{port: -1}]", `f.yaml:1:19:`},
		"number for bool":          {"services: [{on: 1}]", `services.on must be true or false`},
		"yes for bool":             {"services: [{on: yes}]", `services.on must be true or false`},
		"number for duration":      {"services: [{timeout: 5}]", `services.timeout must be a length of time like "30s"`},
		"nonsense for duration":    {"services: [{timeout: soon}]", `f.yaml:1:22:`},
		"map for list":             {"services: {id: a}", `services must be a list, not keys with values`},
		"list for text":            {"listen: [a]", `listen must be text (put it in quotes if it looks like a number), not a list`},
		"text for map":             {"tls: none", `tls must be keys with values`},
		"number in a list of text": {"services: [{argv: [run, 1]}]", `services.argv must be text`},
		"list as key":              {"? [a]\n: b", `found an invalid key`},
		"not UTF-8":                {"listen: \xff", "f.yaml: not UTF-8 text"},
		"unclosed":                 {"listen: [a", "f.yaml:1:"},
		"bad indentation":          {"tls:\n  key: a\n certificate: b", "f.yaml:"},
		"tab indentation":          {"tls:\n\tkey: a", "f.yaml:"},
		"deep flow":                {"services: " + strings.Repeat("[", 100000), "nested deeper than 32 levels"},
		"deep, closed":             {"services: " + strings.Repeat("[", 60) + strings.Repeat("]", 60), "f.yaml:1:"},
		"too large":                {"# " + strings.Repeat("x", 1<<20), "f.yaml: larger than 1 MB"},
	} {
		t.Run(name, func(t *testing.T) {
			var got file
			err := config.Parse("f.yaml", []byte(tc.in), &got)
			if err == nil {
				t.Fatalf("accepted: %+v", got)
			}
			if !strings.HasPrefix(err.Error(), "f.yaml:") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("says %q, not %q", err, tc.want)
			}
			if strings.ContainsAny(err.Error(), "\n\x1b") || strings.Contains(err.Error(), "Go ") || strings.Contains(err.Error(), "struct") {
				t.Errorf("not a plain sentence: %q", err)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.yaml")
	content := `# A comment.
listen: 127.0.0.1:7431
health_listen: "127.0.0.1:7441"
state_dir: /var/lib/durward
trust_dir: /etc/durward/trust
tls: {certificate: /c.pem, key: /k.pem}
gogc: 400
audit:
  address: 127.0.0.1:7433
  identity: spiffe://durward.local/audit/main
services:
  - id: demo
    argv: [python3, "-m", http.server]
    gpus: [0, 1]
    port: 8000
    timeout: 30s
    share: 0.5
    on: true
    env:
      A: "1"
      B: |
        two
        lines
  - id: empty
    argv:
`
	testfile.Write(t, path, content)
	var got file
	if err := config.Load(path, &got); err != nil {
		t.Fatal(err)
	}
	want := file{
		Common: config.Common{Listen: "127.0.0.1:7431", HealthListen: "127.0.0.1:7441", StateDir: "/var/lib/durward",
			TrustDir: "/etc/durward/trust", TLS: config.OwnTLS{TLS: config.TLS{Certificate: "/c.pem", Key: "/k.pem"}}, GOGC: 400},
		Audit: &config.Peer{Address: "127.0.0.1:7433", Identity: "spiffe://durward.local/audit/main"},
		Services: []service{
			{ID: "demo", Argv: []string{"python3", "-m", "http.server"}, GPUs: []int{0, 1}, Port: 8000, Timeout: 30 * time.Second,
				Share: 0.5, On: true, Env: map[string]string{"A": "1", "B": "two\nlines\n"}},
			{ID: "empty"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := config.Load(filepath.Dir(path), &got); err == nil {
		t.Error("loaded a folder")
	}
	if err := config.Load(path+".none", &got); err == nil {
		t.Error("loaded what is not there")
	}
	if err := config.Load(path, got); err == nil {
		t.Error("loaded into a value")
	}
}

// Whatever the file, the answer is a value or one line that begins with the file's name.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "listen: 127.0.0.1:7431", "services: [{id: a, argv: [b], env: {C: d}}]", "a: &x [*x]", "? a\n: b", "--- \n...\n---\n",
		"listen: |\n  a\n", "<<: {}", "tls: !!map {}", "\"\\x00\": 1", "services:\n- - -", "{", "listen: >-\n", "a: b: c", "%YAML 1.2\n---\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var got file
		if err := config.Parse("f.yaml", data, &got); err != nil {
			if !strings.HasPrefix(err.Error(), "f.yaml:") || strings.ContainsAny(err.Error(), "\n\r\x1b") {
				t.Fatalf("%q", err)
			}
		}
	})
}

func TestWhere(t *testing.T) {
	text := []byte("# c\nservices:\n  - id: a\n  - id: b\n    env: {A: x}\n")
	for want, path := range map[string][]string{
		"f:4:5":  {"services", "1", "id"},
		"f:5:11": {"services", "1", "env", "A"},
		"f:5:5":  {"services", "1", "env", "B"},
		"f:2:1":  {"services", "7", "id"},
	} {
		if got := config.Where("f", text, path...); got != want {
			t.Errorf("%v: %s, want %s", path, got, want)
		}
	}
	if got := config.Where("f", []byte("\t{"), "a"); got != "f" {
		t.Errorf("no YAML: %s", got)
	}
}
