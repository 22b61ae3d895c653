package main

import (
	"go/ast"

	"golang.org/x/tools/go/analysis"
)

var slept = &analysis.Analyzer{
	Name: "slept",
	Doc:  "report sleeps in tests without a comment that says why there is no event to wait for\n\nA sleep in a bubble of testing/synctest takes no time and needs none.",
	Run:  runSlept,
}

func runSlept(pass *analysis.Pass) (any, error) {
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
			return !isFunc(called(pass, call), "testing/synctest", "Test")
		})
	}
	return nil, nil
}
