package discover

import (
	_ "embed"
	"encoding/json"
	"strings"
	"testing"
)

// adoptCases are containers with the verdict that each must get. The executor's package docker/policy reads the same file in its
// found_test.go, so that the two sets of rules cannot drift apart unseen.
type adoptCases struct {
	Rules struct {
		Mounts, Environment, GPUs []string
		Port                      uint32
		HostPort                  uint32 `json:"host_port"`
	}
	Image json.RawMessage
	Base  any
	Cases []struct {
		Name  string
		Good  bool
		Patch any
	}
}

//go:embed testdata/adopt.json
var adopt []byte

func readAdoptCases(t testing.TB) adoptCases {
	t.Helper()
	var out adoptCases
	if err := json.Unmarshal(adopt, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// merged is RFC 7396's merge of a patch into a value.
func merged(value, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	out := map[string]any{}
	if old, ok := value.(map[string]any); ok {
		for key, v := range old {
			out[key] = v
		}
	}
	for key, change := range changes {
		if change == nil {
			delete(out, key)
		} else {
			out[key] = merged(out[key], change)
		}
	}
	return out
}

func TestRules(t *testing.T) {
	t.Parallel()
	cases := readAdoptCases(t)
	var base image
	if err := json.Unmarshal(cases.Image, &base); err != nil {
		t.Fatal(err)
	}
	rules := Rules{Mounts: cases.Rules.Mounts, Environment: cases.Rules.Environment, GPUs: cases.Rules.GPUs}
	good := 0
	for _, tc := range cases.Cases {
		raw, err := json.Marshal(merged(cases.Base, tc.Patch))
		if err != nil {
			t.Fatal(err)
		}
		var seen inspection
		if err := json.Unmarshal(raw, &seen); err != nil {
			t.Fatal(err)
		}
		c := Container{Inside: cases.Rules.Port}
		c.Port = cases.Rules.HostPort
		wrong := rules.check(seen, base, c)
		if (len(wrong) == 0) != tc.Good {
			t.Errorf("%s: good %v, found %q", tc.Name, tc.Good, wrong)
		}
		if tc.Good {
			good++
		}
	}
	if good == 0 || good == len(cases.Cases) {
		t.Errorf("%d of %d cases are good: both kinds must be there", good, len(cases.Cases))
	}
	if got := rules.check(inspection{}, base, Container{}); len(got) == 0 {
		t.Error("nothing at all is no container")
	}
}

// What is refused is named, and never with more than a line.
func TestRulesSay(t *testing.T) {
	t.Parallel()
	seen := inspection{Config: map[string]json.RawMessage{"Evil\u202e\x1b[31m": json.RawMessage(`1`)}, HostConfig: map[string]json.RawMessage{
		"Privileged": json.RawMessage(`true`), "Binds": json.RawMessage(`["/\u001b]0;x\u0007` + strings.Repeat("y", 5000) + `:/a"]`),
	}}
	all := Rules{}.check(seen, image{}, Container{})
	text := strings.Join(all, "\n")
	for _, want := range []string{"HostConfig.Privileged: privileged containers are the host", "Config.Evil: no rule allows it"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, all)
		}
	}
	if strings.ContainsAny(text, "\x1b\u202e") {
		t.Errorf("it is not clean: %q", text)
	}
	for _, one := range all {
		if len(one) > 400 {
			t.Errorf("%d bytes: %.80q", len(one), one)
		}
	}
}

// TestUnsafe: what a new container of the same image would have is refused by name. The first has nothing of it.
func TestUnsafe(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ config, mounts, want string }{
		{`{"Cmd":["--model","a/b","--max-num-batched-tokens","8192","--tokenizer","x"]}`, `[{"Type":"bind","Source":"/home/ai/.cache/huggingface","Destination":"/m"}]`, ""},
		{`{}`, `[{"Type":"bind","Source":"/home/ai/.ssh","Destination":"/m"}]`, "hidden folder .ssh"},
		{`{}`, `[{"Type":"bind","Source":"/home/ai","Destination":"/m"}]`, "a user's own folder"},
		{`{}`, `[{"Type":"bind","Source":"/var/lib/durward","Destination":"/m"}]`, "lies in /var/lib/durward"},
		{`{}`, `[{"Type":"bind","Source":"/var/spool/cron","Destination":"/m"}]`, "lies in /var/spool"},
		{`{}`, `[{"Type":"bind","Source":"/var","Destination":"/m"}]`, "holds /var/"},
		{`{"Cmd":["--api-key","a","hunter2"]}`, `[]`, "holds a secret"},
		{`{"Cmd":["--x","{\"password\":\"hunter2\"}"]}`, `[]`, "holds a secret"},
		{`{"Cmd":["-mu","https://h/x?sig=hunter2"]}`, `[]`, "holds a secret"},
		{`{"Cmd":["sh","-c","curl http://h | sh"]}`, `[]`, "run by a shell"},
	} {
		var seen inspection
		if err := json.Unmarshal([]byte(`{"Config":`+tc.config+`,"Mounts":`+tc.mounts+`}`), &seen); err != nil {
			t.Fatal(err)
		}
		said := strings.Join(seen.unsafe(image{}), "\n")
		if tc.want == "" && said != "" || !strings.Contains(said, tc.want) || strings.Contains(said, "hunter2") {
			t.Errorf("%s %s: %q, want %q", tc.config, tc.mounts, said, tc.want)
		}
	}
}

// TestEnvironmentIsNamed: of what a unit or container is given, values of a few keys alone are kept, and of those no secrets.
func TestEnvironmentIsNamed(t *testing.T) {
	t.Parallel()
	values, withheld := environment([]string{
		"OLLAMA_HOST=127.0.0.1:1", "OLLAMA_KEEP_ALIVE=token=hunter2", "LLAMA_ARG_MODEL=https://h/x?sig=hunter2", "PGPASSWORD=hunter2", "LLAMA_ARG_HOST=sk-abcdef123456",
	})
	if len(values) != 1 || values["OLLAMA_HOST"] == "" || len(withheld) != 4 {
		t.Errorf("%q, withheld %q", values, withheld)
	}
}

// FuzzInspection: no answer of a daemon makes the rules panic, and what is privileged is never let through.
func FuzzInspection(f *testing.F) {
	f.Add([]byte(`{"Config":{"User":"1000"},"HostConfig":{"Privileged":true}}`))
	f.Add([]byte(`{"Config":{"Env":[1]},"HostConfig":{"Mounts":[null],"PortBindings":[],"Ulimits":[null]},"NetworkSettings":{"Ports":{"x":null}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var seen inspection
		if json.Unmarshal(raw, &seen) != nil {
			return
		}
		wrong := Rules{Mounts: []string{"/srv"}}.check(seen, image{}, Container{})
		if part[bool](seen.HostConfig, "Privileged") && len(wrong) == 0 {
			t.Errorf("%s is let through", raw)
		}
		_ = seen.unsafe(image{})
		c, _ := Docker{}.container(t.Context(), seen, image{}, "x", processes{})
		_ = c.words()
	})
}
