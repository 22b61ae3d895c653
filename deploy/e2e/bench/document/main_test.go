package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/platformtest/testfile"
)

func TestTablesTakeTheirPlaces(t *testing.T) {
	const document = "# A\n\n<!-- bench goals -->\nold\n<!-- end -->\nwords\n"
	const goals = `{"name": "goals", "columns": ["what", "reached"], "rows": [["a|b", ""], ["c", "2"]]}`
	for _, test := range []struct{ name, document, result, want, refused string }{
		{name: "a place without a table", document: document, result: `{"tables": []}`, refused: "no table goals"},
		{name: "the same place twice", document: document + document, result: `{"tables": [` + goals + `]}`, refused: "twice"},
		{name: "a table without a place", document: "words", result: `{"tables": [` + goals + `]}`, refused: `no place for the result's table "goals"`},
		{name: "a row too short", document: document, result: `{"tables": [{"name": "goals", "columns": ["a", "b"], "rows": [["c"]]}]}`, refused: "2 columns"},
		{name: "no columns", document: document, result: `{"tables": [{"name": "goals"}]}`, refused: "no columns"},
		{name: "an unknown member", document: document, result: `{"rows": []}`, refused: "unknown field"},
		{
			name: "a table in its place", document: document, result: `{"tables": [` + goals + `]}`,
			want: "# A\n\n<!-- bench goals -->\n| what | reached |\n|---|---|\n| a\\|b | |\n| c | 2 |\n<!-- end -->\nwords\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := fill([]byte(test.document), []byte(test.result))
			if test.refused != "" {
				if err == nil || !strings.Contains(err.Error(), test.refused) {
					t.Fatalf("%v, %q", err, got)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			again, err := fill(got, []byte(test.result))
			if err != nil || string(again) != string(got) {
				t.Errorf("filled once more it is another: %v\n%s", err, again)
			}
		})
	}
}

// TestPerformanceIsMade holds the tables of the published document against the result that is published beside it.
func TestPerformanceIsMade(t *testing.T) {
	docs := filepath.Join("..", "..", "..", "docs")
	text := testfile.Read(t, filepath.Join(docs, "performance.md"))
	measured := testfile.Read(t, filepath.Join(docs, "performance.json"))
	made, err := fill(text, measured)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(made), string(text)); diff != "" {
		t.Errorf("performance.md differs from performance.json; run make bench-document (-made +is):\n%s", diff)
	}
}
