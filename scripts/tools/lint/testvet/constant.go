package main

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

// constant leaves binary comparisons of equal operands to staticcheck.
var constant = &analysis.Analyzer{
	Name: "constant",
	Doc:  "report comparisons in tests that have one outcome only, and conditions that decide nothing",
	Run:  runConstant,
}

// comparisons are the functions whose first two arguments are compared.
var comparisons = map[string][]string{
	"bytes":                            {"Equal", "Compare"},
	"errors":                           {"Is"},
	"github.com/google/go-cmp/cmp":     {"Diff", "Equal"},
	"google.golang.org/protobuf/proto": {"Equal"},
	"maps":                             {"Equal"},
	"reflect":                          {"DeepEqual"},
	"slices":                           {"Equal", "Compare"},
	"strings":                          {"EqualFold", "Compare", "Contains", "HasPrefix", "HasSuffix"},
}

func runConstant(pass *analysis.Pass) (any, error) {
	for _, f := range testFiles(pass) {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				fn := called(pass, n)
				if fn == nil || fn.Pkg() == nil || len(n.Args) < 2 || !isFunc(fn, fn.Pkg().Path(), comparisons[fn.Pkg().Path()]...) {
					return true
				}
				if same := types.ExprString(ast.Unparen(n.Args[0])); same == types.ExprString(ast.Unparen(n.Args[1])) && !calls(n.Args[0]) {
					pass.Reportf(n.Pos(), "%s compares %s with itself", fn.Name(), same)
				}
			case *ast.IfStmt:
				if v := pass.TypesInfo.Types[n.Cond].Value; v != nil {
					pass.Reportf(n.Cond.Pos(), "the condition is always %v", v)
				}
			case *ast.FuncDecl:
				checkLast(pass, n.Body)
			case *ast.FuncLit:
				checkLast(pass, n.Body)
			}
			return true
		})
	}
	return nil, nil
}

// checkLast reports a condition at a function's end that chooses between returning and returning.
func checkLast(pass *analysis.Pass, body *ast.BlockStmt) {
	if body == nil || len(body.List) == 0 {
		return
	}
	last, ok := body.List[len(body.List)-1].(*ast.IfStmt)
	if !ok || last.Else != nil {
		return
	}
	if len(last.Body.List) == 1 {
		if _, ok := last.Body.List[0].(*ast.ReturnStmt); !ok {
			return
		}
	} else if len(last.Body.List) > 0 {
		return
	}
	pass.Reportf(last.Pos(), "the condition decides nothing: the function ends either way")
}

func calls(e ast.Expr) (found bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		_, ok := n.(*ast.CallExpr)
		found = found || ok
		return !found
	})
	return found
}
