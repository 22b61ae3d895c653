package catalog

import (
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// position finds the line and column of a YAML path such as $.services[1].port. A path that is not in the document (a
// missing key) gives the place of the nearest parent that is.
func position(raw []byte, path string) (line, column int) {
	return positionIn(parsed(raw), path)
}

// parsed is a file's tree, or nil.
func parsed(raw []byte) *ast.File {
	file, err := parser.ParseBytes(raw, 0)
	if err != nil {
		return nil
	}
	return file
}

func positionIn(file *ast.File, path string) (line, column int) {
	for file != nil && path != "$" && path != "" {
		if p, err := yaml.PathString(path); err == nil {
			if node, err := p.FilterFile(file); err == nil && node != nil && node.GetToken() != nil {
				at := node.GetToken().Position
				return at.Line, at.Column
			}
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 1, 1
}
