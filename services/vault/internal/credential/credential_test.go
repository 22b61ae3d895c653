package credential

import (
	"testing"

	"durward.internal/services/vault/internal/safe"
	"durward.internal/services/vault/internal/store"
)

// TestArgumentsThatSendNothing: a credential goes where a call's own arguments refer to it and send it, and to no other origin.
func TestArgumentsThatSendNothing(t *testing.T) {
	t.Parallel()
	ask := safe.Ask{Origin: "https://a.example", Names: []string{"hf"}}
	const url = `{"url":"https://a.example/x"}`
	for name, c := range map[string]struct {
		arguments string
		names     []string
	}{
		"no reference":     {url, nil},
		"another":          {url, []string{"github"}},
		"another origin":   {`{"url":"https://b.example/x"}`, []string{"hf"}},
		"another port":     {`{"url":"https://a.example:8443/x"}`, []string{"hf"}},
		"without TLS":      {`{"url":"http://a.example/x"}`, []string{"hf"}},
		"no url":           {`{}`, []string{"hf"}},
		"no url's text":    {`{"url":"::"}`, []string{"hf"}},
		"no JSON":          {`{`, []string{"hf"}},
		"a user's name":    {`{"url":"https://a.example@b.example/x"}`, []string{"hf"}},
		"a url that is no": {`{"url":7}`, []string{"hf"}},
	} {
		if err := refers([]byte(c.arguments), c.names, ask); err == nil {
			t.Errorf("%s: it is sent", name)
		}
	}
	if err := refers([]byte(url), []string{"github", "hf"}, ask); err != nil {
		t.Errorf("nothing is sent, so that nothing is proved: %v", err)
	}
	if err := new(Service).sendsNow(&store.Operation{ToolName: "none", Arguments: []byte(url)}, ask); err == nil || err.Error() != "its tool is not known" {
		t.Errorf("a tool that there is not: %v", err)
	}
}
