package toolsearch

import (
	"strings"
	"testing"

	"durward.internal/services/platform/contract"
)

func TestBest(t *testing.T) {
	tools := []contract.Tool{
		{Name: "fs__read_text_file", Title: "Read text file", Description: "Reads a file of the allowed folders as text."},
		{Name: "fs__list_directory", Title: "List directory", Description: "Lists what a directory holds: files and folders."},
		{Name: "web__browserNavigate", Title: "Navigate", Description: "Opens a URL in the browser."},
		{Name: "memory__createEntities", Title: "Create entities", Description: "Creates entities in the knowledge graph."},
	}
	for words, want := range map[string]string{
		"read files":          "fs__read_text_file",
		"directories folders": "fs__list_directory",
		"open a url":          "web__browserNavigate",
		"navigate browser":    "web__browserNavigate",
		"entity graph":        "memory__createEntities",
		"CREATE":              "memory__createEntities",
	} {
		found := Best(words, tools, 10)
		if len(found) == 0 || found[0].Name != want {
			t.Errorf("%q finds %v first, want %s", words, names(found), want)
		}
	}
	if found := Best("zebra", tools, 10); len(found) != 0 {
		t.Errorf("a word that stands nowhere finds %v", names(found))
	}
	if found := Best("file folder url", tools, 1); len(found) != 1 {
		t.Errorf("one was asked for, and %v came", names(found))
	}
	if found := Best("anything", nil, 10); found != nil {
		t.Errorf("among no tools %v are found", names(found))
	}
}

func names(tools []contract.Tool) (out []string) {
	for _, t := range tools {
		out = append(out, t.Name)
	}
	return out
}

// TestDescribed: a list has the beginning of a long description, and describe_tool all of what was accepted.
func TestDescribed(t *testing.T) {
	t.Parallel()
	long := contract.Tool{Name: "web__get", Description: strings.Repeat("a", 4000) + ". The end.", Foreign: &contract.Foreign{Server: "web"}}
	whole, err := Described("web__get", []contract.Tool{long})
	if listed := contract.Told(long); err != nil || !strings.HasSuffix(whole.GetDescription(), "The end.") || len(listed) != 600 || !strings.HasPrefix(whole.GetDescription(), listed) {
		t.Errorf("%v: described with %d characters, listed with %d", err, len(whole.GetDescription()), len(listed))
	}
}
