package contract

import (
	"testing"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// TestBeside: a URI or a prompt's name leads to the pinned entry that stands for it, or nowhere.
func TestBeside(t *testing.T) {
	free := func([]byte) error { return nil }
	err := Pin([]Definition{
		{Foreign: Foreign{Server: "shelf", Name: "resources.read", Check: free}, Tier: optionsv1.Tier_TIER_READ, URL: "uri"},
		{Foreign: Foreign{Server: "shelf", Name: "prompts.sum", Check: free}, Tier: optionsv1.Tier_TIER_READ},
		{Foreign: Foreign{Server: "shelf", Name: "sum", Check: free}, Tier: optionsv1.Tier_TIER_WRITE},
		{Foreign: Foreign{Server: "shut", Name: "sum", Check: free}, Tier: optionsv1.Tier_TIER_WRITE},
	})
	must(t, err)
	t.Cleanup(func() { _ = Pin(nil) }) // no tools are always taken
	for _, uri := range []string{
		"", "shelf/shelf:///a", "durward://help", "durward://servers/", "durward://servers/shelf", "durward://servers/shut/shelf:///a", "durward://servers/none/x:y",
		"durward://servers/shelf__sum/x:y", "Durward://servers/shelf/x:y", "durward://servers/durward://servers/shelf/x:y", "file:///durward://servers/shelf/x:y",
	} {
		if tool, arguments, is := ResourceCall(uri); is {
			t.Errorf("%s is %s %s", uri, tool.Name, arguments)
		}
	}
	for uri, want := range map[string]string{
		"durward://servers/shelf/": `{}`, "durward://servers/shelf/file:///a%20b/../c?d#e": `{"uri":"file:///a%20b/../c?d#e"}`, "durward://servers/shelf/no uri": `{"uri":"no uri"}`,
	} {
		if tool, arguments, is := ResourceCall(uri); !is || tool.Name != "shelf__resources.read" || string(arguments) != want || tool.IsTool() || tool.ByPermit() {
			t.Errorf("%s: %s %s", uri, tool.Name, arguments)
		}
	}
	for _, name := range []string{"", "sum", "shelf", "shelf__", "shelf__read", "shelf__prompts.sum", "shut__sum", "look"} {
		if tool, arguments, is := PromptCall(name, nil); is {
			t.Errorf("%s is %s %s", name, tool.Name, arguments)
		}
	}
	if tool, arguments, is := PromptCall("shelf__sum", map[string]string{"book": "Emma"}); !is || tool.PromptName() != "shelf__sum" || string(arguments) != `{"book":"Emma"}` || tool.IsTool() {
		t.Errorf("a prompt is %s %s", tool.Name, arguments)
	}
	if tool, _ := Pinned("shelf__sum"); !tool.IsTool() || tool.PromptName() != "" || tool.ResourcesURI() != "" {
		t.Error("a tool is none")
	}
	// A URI of the web leads where it says; every other means what the server makes of it.
	reader, _ := Pinned("shelf__resources.read")
	for arguments, host := range map[string]string{
		`{}`: "", `{"uri":"file:///a"}`: "", `{"uri":"httpx://a"}`: "", `{"uri":"https://a.example/x"}`: "a.example", `{"uri":"http:/a"}`: "refused", `{"uri":"https://u:p@a.example"}`: "refused",
	} {
		m, err := reader.Decode([]byte(arguments))
		if host == "refused" {
			if err == nil {
				t.Errorf("%s leads somewhere", arguments)
			}
			continue
		}
		if err != nil {
			t.Fatal(arguments, err)
		}
		if to, leads, err := reader.Destination(m); err != nil || leads != (host != "") || to.Host != host {
			t.Errorf("%s leads to %v, %t, %v", arguments, to, leads, err)
		}
	}
}
