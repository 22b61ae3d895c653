package discover

import (
	"encoding/json"
	"strings"
	"testing"
)

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
		if part[bool](seen.HostConfig, "Privileged") && len(seen.unsafe(image{})) == 0 {
			t.Errorf("%s is let through", raw)
		}
		c, _ := Docker{}.container(t.Context(), seen, image{}, "x", processes{})
		_ = c.words()
	})
}
