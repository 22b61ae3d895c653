package main

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

var dropped = &analysis.Analyzer{
	Name: "dropped",
	Doc:  "report errors that a test drops without a comment that says why\n\nThe comment stands on the same line or on the line above. Closing, killing and removing in a deferred call or a cleanup need none.",
	Run:  runDropped,
}

func runDropped(pass *analysis.Pass) (any, error) {
	for _, f := range testFiles(pass) {
		reasons := reasonsOf(pass, f)
		cleanups := map[*ast.FuncLit]bool{}
		var stack []ast.Node
		ast.Inspect(f, func(n ast.Node) bool {
			if n == nil {
				stack = stack[:len(stack)-1]
				return true
			}
			stack = append(stack, n)
			var call *ast.CallExpr
			switch n := n.(type) {
			case *ast.DeferStmt:
				markCleanup(n.Call.Fun, cleanups)
			case *ast.CallExpr:
				if isFunc(called(pass, n), "testing", "Cleanup") {
					markCleanup(n.Args[0], cleanups)
				}
			case *ast.ExprStmt:
				call, _ = n.X.(*ast.CallExpr)
			case *ast.AssignStmt:
				if len(n.Rhs) == 1 && allBlank(n) {
					call, _ = n.Rhs[0].(*ast.CallExpr)
				}
			}
			if call == nil || !returnsError(pass, call) || cannotFail(pass, call) || reasons.given(n) {
				return true
			}
			if name := calleeName(call); name != nil && slices.Contains(tidying, name.Name) && inCleanup(stack, cleanups) {
				return true
			}
			pass.Reportf(n.Pos(), "the error of %s is dropped: check it, or say why it does not matter", types.ExprString(call.Fun))
			return true
		})
	}
	return nil, nil
}

// tidying names what leaves nothing behind. It may find its work done already.
var tidying = []string{"Close", "Kill", "Remove", "RemoveAll"}

func markCleanup(e ast.Expr, cleanups map[*ast.FuncLit]bool) {
	if lit, ok := e.(*ast.FuncLit); ok {
		cleanups[lit] = true
	}
}

func inCleanup(stack []ast.Node, cleanups map[*ast.FuncLit]bool) bool {
	for _, n := range stack {
		if lit, ok := n.(*ast.FuncLit); ok && cleanups[lit] {
			return true
		}
	}
	return false
}

func returnsError(pass *analysis.Pass, call *ast.CallExpr) bool {
	switch t := pass.TypesInfo.TypeOf(call).(type) {
	case *types.Tuple:
		return t.Len() > 0 && isError(t.At(t.Len()-1).Type())
	default:
		return t != nil && isError(t) && !pass.TypesInfo.Types[call.Fun].IsType()
	}
}

func isError(t types.Type) bool { return types.Identical(t, types.Universe.Lookup("error").Type()) }

// cannotFail reports whether the error of a call says nothing that a test must know: it prints, closes what is not ours (our
// Close may report a record that was not written), serves (which always ends in an error, and whose clients see any other), or
// writes to memory or to a reply that the test reads.
func cannotFail(pass *analysis.Pass, call *ast.CallExpr) bool {
	fn := called(pass, call)
	if fn == nil || fn.Pkg() == nil {
		return false
	}
	path, name := fn.Pkg().Path(), fn.Name()
	if path == "fmt" || path == "crypto/rand" && name == "Read" || name == "Close" && !strings.HasPrefix(path, ours) {
		return true
	}
	if serves := name == "Serve" || name == "ListenAndServe"; serves && (path == "net/http" || path == "google.golang.org/grpc") {
		return true
	}
	var writer types.Type
	if selection, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok && fn.Signature().Recv() != nil {
		writer = pass.TypesInfo.TypeOf(selection.X)
	} else if path == "io" && name == "WriteString" {
		writer = pass.TypesInfo.TypeOf(call.Args[0])
	}
	if p, ok := writer.(*types.Pointer); ok {
		writer = p.Elem()
	}
	if writer == nil {
		return false
	}
	switch writer.String() {
	case "strings.Builder", "bytes.Buffer", "hash.Hash", "hash.Hash32", "hash.Hash64", "net/http.ResponseWriter", "net/http/httptest.ResponseRecorder":
		return true
	}
	return false
}
