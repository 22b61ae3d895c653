package root

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestGroupsDoNotKnowEachOther: a group of commands imports no other group and not the root, and what the groups share imports
// none of them. This package links every group, so that Go's test cache sees a change of any of them.
func TestGroupsDoNotKnowEachOther(t *testing.T) {
	const base = "durward.internal/services/operator/internal/cli/"
	groups := map[string]bool{"root": true}
	folders, err := os.ReadDir("..")
	must(t, err)
	for _, f := range folders {
		if _, err := os.Stat(filepath.Join("..", f.Name(), "commands.go")); err == nil {
			groups[f.Name()] = true
		}
	}
	if len(groups) < 8 {
		t.Fatalf("only %d packages with commands were found", len(groups))
	}
	files, err := filepath.Glob("../*.go")
	must(t, err)
	below, err := filepath.Glob("../*/*.go")
	must(t, err)
	for _, file := range append(files, below...) {
		own := filepath.Base(filepath.Dir(file))
		if own == "root" {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		must(t, err)
		for _, spec := range parsed.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			must(t, err)
			other, is := strings.CutPrefix(path, base)
			if is && groups[other] && other != own {
				t.Errorf("%s imports %s: what two groups need belongs in package cli", file, path)
			}
		}
	}
}
