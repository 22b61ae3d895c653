package contract

import (
	"errors"
	"strings"
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/fault"
)

func pinning(t *testing.T) Tool {
	t.Helper()
	definition := Definition{
		Foreign: Foreign{Server: "web", Name: "open", Check: func(arguments []byte) error {
			if strings.Contains(string(arguments), "unfit") {
				return errors.New("the arguments do not fit the pinned schema")
			}
			return nil
		}},
		Tier: optionsv1.Tier_TIER_WRITE, Digest: [32]byte{1}, URL: "url", Shell: true,
		Input: map[string]any{"type": "object", "properties": map[string]any{"url": map[string]any{"type": "string"}}},
	}
	must(t, Pin([]Definition{definition}))
	t.Cleanup(func() { _ = Pin(nil) }) // no tools are always taken
	tool, ok := Lookup("web__open")
	if !ok {
		t.Fatal("a pinned tool is not found")
	}
	return tool
}

// A pinned tool is a tool like any other, by its own definition; the contract's own stay what they are.
func TestPin(t *testing.T) {
	tool := pinning(t)
	if tool.Source != "mcp:web" || !tool.OneCall || tool.ByPermit() || tool.Sink != ServersSink || tool.Foreign.Name != "open" || len(tool.Tags) != 1 {
		t.Errorf("pinned as %+v", tool)
	}
	if _, ok := Referred(tool.Ref()); !ok {
		t.Error("it is not found by its own reference")
	}
	other := tool.Ref()
	other.DefinitionDigest = make([]byte, 32)
	if _, ok := Referred(other); ok {
		t.Error("another definition is taken for it")
	}
	if _, own := Native("web__open"); own || len(All()) != len(Tools())+1 {
		t.Error("it is one of ours")
	}
	if err := Pin([]Definition{{Foreign: Foreign{Server: "a", Name: "b"}}, {Foreign: Foreign{Server: "a", Name: "b"}}}); err == nil {
		t.Error("two tools of one name are pinned")
	}
	if _, still := Lookup("web__open"); !still {
		t.Error("a refused list took the place of the one in force")
	}
	must(t, Pin(nil))
	if _, there := Lookup("web__open"); there {
		t.Error("it is found when nobody pins it any more")
	}
}

// Who calls a tool, and who serves it, agree on whether an argument is the agent's reason or the tool's own.
func TestTakesReason(t *testing.T) {
	own := map[string]any{"properties": map[string]any{ReasonArgument: map[string]any{}}}
	for name, want := range map[string]bool{"list_services": false, "start_service": true, "fetch_url": true, "http_request": true} {
		if tool, ok := Native(name); !ok || tool.TakesReason() != want {
			t.Errorf("%s takes a reason: %t", name, !want)
		}
	}
	must(t, Pin([]Definition{
		{Foreign: Foreign{Server: "web", Name: "look"}, Tier: optionsv1.Tier_TIER_READ},
		{Foreign: Foreign{Server: "web", Name: "close"}, Tier: optionsv1.Tier_TIER_WRITE, Input: own},
	}))
	t.Cleanup(func() { _ = Pin(nil) }) // no tools are always taken
	for name, want := range map[string]bool{"web__look": true, "web__close": false} {
		if tool, ok := Lookup(name); !ok || tool.TakesReason() != want {
			t.Errorf("%s takes a reason: %t", name, !want)
		}
	}
}

// Arguments leave in their one form, and those whose meaning that form would change do not.
func TestPinnedArguments(t *testing.T) {
	tool := pinning(t)
	m, err := tool.Decode([]byte(`{ "url": "https://example.org/a", "n": 1.0e1, "list": ["x", {"k": "y"}] }`))
	must(t, err)
	form, err := Canonical(m)
	if want := `{"list":["x",{"k":"y"}],"n":10,"url":"https://example.org/a"}`; err != nil || string(form) != want {
		t.Fatalf("%s, %v, want %s", form, err, want)
	}
	if to, leads, err := tool.Destination(m); err != nil || !leads || to.Host != "example.org" {
		t.Errorf("it leads to %v, %t, %v", to, leads, err)
	}
	err = FreeText(m, func(texts []string) ([]string, error) {
		if strings.Join(texts, " ") != "x y https://example.org/a" {
			t.Errorf("the texts are %q", texts)
		}
		return []string{"x", `"quoted"`, "https://example.org/a"}, nil
	})
	form, again := Canonical(m)
	if err != nil || again != nil || !strings.Contains(string(form), `{"k":"\"quoted\""}`) {
		t.Errorf("replaced: %s, %v, %v", form, err, again)
	}
	if found, is, err := OfServers(m); !is || err != nil || found.Name != tool.Name {
		t.Errorf("the request is one of %s, %t, %v", found.Name, is, err)
	}
	for _, raw := range []string{
		`[]`, `"x"`, `{"a":1,"a":2}`, `{"n":9007199254740993}`, `{"n":1e400}`, `{"n":1e99999999}`, `{"unfit":1}`, `{"url":"file:///etc/passwd"}`, `{"url":"javascript:alert(1)"}`, `{"url":["https://example.org/"]}`, `{"url":7}`,
		`{"a":"` + strings.Repeat("x", maxSigned) + `"}`, `{"a":1} `, ` `, `{"a":"\ud800"}`,
	} {
		m, err := tool.Decode([]byte(raw))
		if raw == `{"a":1} ` {
			if err != nil {
				t.Errorf("%q: %v", raw, err)
			}
			continue
		}
		if f := fault.From(err); err == nil || f.Code != callv1.Code_CODE_INVALID_ARGUMENT && f.Code != callv1.Code_CODE_TOO_LARGE {
			t.Errorf("%.60s is %v, %v", raw, m, err)
		}
	}
	name, unpinned, arguments := "web__other", "start_service", "{}"
	for _, tool := range []*string{&name, &unpinned} {
		if _, is, err := OfServers(&egressv1.CallServerToolRequest{Tool: tool, ArgumentsJcs: &arguments}); !is || !fault.Is(err, callv1.Code_CODE_DENIED) {
			t.Errorf("%s by the RPC of pinned tools: %t, %v", *tool, is, err)
		}
	}
}
