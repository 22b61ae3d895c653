package main

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// ours begins the path of every package that this repository holds.
const ours = "durward.internal/"

// testFiles returns the files of a package that only tests are built with: the _test.go files, and every file that imports testing.
func testFiles(pass *analysis.Pass) []*ast.File {
	var files []*ast.File
	for _, f := range pass.Files {
		if isTestFile(pass, f) || slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` }) {
			files = append(files, f)
		}
	}
	return files
}

func isTestFile(pass *analysis.Pass, f *ast.File) bool {
	return strings.HasSuffix(pass.Fset.File(f.FileStart).Name(), "_test.go")
}

// reasons holds the lines of a file that a comment ends on. A reason is a comment on the same line or on the line above that is
// not meant for a program.
type reasons struct {
	pass  *analysis.Pass
	lines map[int]bool
}

func reasonsOf(pass *analysis.Pass, f *ast.File) reasons {
	r := reasons{pass, map[int]bool{}}
	for _, group := range f.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//nolint") || strings.HasPrefix(c.Text, "// want ") {
				continue
			}
			r.lines[pass.Fset.Position(c.End()).Line] = true
		}
	}
	return r
}

func (r reasons) given(n ast.Node) bool {
	first, last := r.pass.Fset.Position(n.Pos()).Line, r.pass.Fset.Position(n.End()).Line
	return r.lines[first-1] || r.lines[first] || r.lines[last]
}

// called returns the function or method that a call names, nil for a call of a function value.
func called(pass *analysis.Pass, call *ast.CallExpr) *types.Func {
	fn, _ := typeutil.Callee(pass.TypesInfo, call).(*types.Func)
	if fn == nil {
		return nil
	}
	return fn.Origin()
}

// isFunc reports whether fn is one of the named functions or methods of a package.
func isFunc(fn *types.Func, path string, names ...string) bool {
	return fn != nil && fn.Pkg() != nil && fn.Pkg().Path() == path && slices.Contains(names, fn.Name())
}
