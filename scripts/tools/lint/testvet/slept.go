package main

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// sleepers are the paths of packages whose sleeps are not reported.
var sleepers []string

var slept = &analysis.Analyzer{
	Name: "slept",
	Doc:  "report sleeps in tests without a comment that says why there is no event to wait for\n\nA sleep in a bubble of testing/synctest takes no time and needs none: in a function that synctest.Test is given, or that a function is given which has synctest.Test call it.",
	Run:  runSlept,
}

func runSlept(pass *analysis.Pass) (any, error) {
	if slices.Contains(sleepers, strings.TrimSuffix(pass.Pkg.Path(), "_test")) {
		return nil, nil
	}
	bubbles := bubblesOf(pass)
	for _, f := range testFiles(pass) {
		reasons := reasonsOf(pass, f)
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if isFunc(called(pass, call), "time", "Sleep") && !reasons.given(call) {
				pass.Reportf(call.Pos(), "the test sleeps: wait for an event, or say why there is none")
			}
			return !isFunc(called(pass, call), "testing/synctest", "Test") && !bubbles[called(pass, call)]
		})
	}
	return nil, nil
}

// bubblesOf returns the package's functions that run a function which they are given in a bubble of testing/synctest.
func bubblesOf(pass *analysis.Pass) map[*types.Func]bool {
	bubbles := map[*types.Func]bool{}
	for _, f := range testFiles(pass) {
		for _, d := range f.Decls {
			decl, ok := d.(*ast.FuncDecl)
			if !ok || decl.Body == nil {
				continue
			}
			fn, _ := pass.TypesInfo.Defs[decl.Name].(*types.Func)
			ast.Inspect(decl.Body, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || !isFunc(called(pass, call), "testing/synctest", "Test") {
					return true
				}
				ast.Inspect(call, func(n ast.Node) bool {
					inner, ok := n.(*ast.CallExpr)
					if !ok {
						return true
					}
					if name, ok := inner.Fun.(*ast.Ident); ok && isParameter(fn, pass.TypesInfo.Uses[name]) {
						bubbles[fn] = true
					}
					return true
				})
				return false
			})
		}
	}
	return bubbles
}

func isParameter(fn *types.Func, object types.Object) bool {
	for parameter := range fn.Signature().Params().Variables() {
		if parameter == object {
			return true
		}
	}
	return false
}
