package main

import (
	"go/ast"
	"go/types"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

var asserts = &analysis.Analyzer{
	Name:      "asserts",
	Doc:       "report tests, fuzz targets and subtests that reach no assertion\n\nA helper that returns a value is a fixture: what it asserts is about the fixture, not about what the test does with the value.",
	Run:       runAsserts,
	FactTypes: []analysis.Fact{new(mayFail)},
}

// mayFail is the fact that a function fails the test that calls it, or a function that it calls does.
type mayFail struct{}

func (*mayFail) AFact()         {}
func (*mayFail) String() string { return "may fail a test" }

var (
	failures = []string{"Error", "Errorf", "Fail", "FailNow", "Fatal", "Fatalf"}
	testName = regexp.MustCompile(`^(Test|Fuzz)([^a-z].*)?$`)
)

func runAsserts(pass *analysis.Pass) (any, error) {
	if !strings.HasPrefix(pass.Pkg.Path(), ours) {
		return nil, nil
	}
	g := graph{pass: pass, failing: map[types.Object]bool{}}
	// A function may fail a test when one that it uses does: repeat until nothing is added.
	for before := -1; before < len(g.failing); {
		before = len(g.failing)
		for _, f := range pass.Files {
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					g.define(n.Name, n.Body)
				case *ast.AssignStmt:
					for i, value := range n.Rhs {
						g.defineLiteral(n.Lhs[i], value)
					}
				case *ast.ValueSpec:
					for i, value := range n.Values {
						g.defineLiteral(n.Names[i], value)
					}
				}
				return true
			})
		}
	}
	for o := range g.failing {
		if _, ok := o.(*types.Func); ok {
			pass.ExportObjectFact(o, new(mayFail))
		}
	}
	for _, f := range pass.Files {
		if !isTestFile(pass, f) {
			continue
		}
		for _, d := range f.Decls {
			if decl, ok := d.(*ast.FuncDecl); ok && decl.Body != nil {
				g.check(decl)
			}
		}
	}
	return nil, nil
}

type graph struct {
	pass    *analysis.Pass
	failing map[types.Object]bool // functions, and the variables that hold a function literal
}

// define notes that a function, or a variable that holds one, may fail a test.
func (g graph) define(name *ast.Ident, body *ast.BlockStmt) {
	if o := g.pass.TypesInfo.ObjectOf(name); o != nil && body != nil && !g.failing[o] && g.mayFail(body) {
		g.failing[o] = true
	}
}

func (g graph) defineLiteral(name, value ast.Expr) {
	id, ok := name.(*ast.Ident)
	if lit, isLit := value.(*ast.FuncLit); ok && isLit {
		g.define(id, lit.Body)
	}
}

// check reports the subtests of a function that cannot fail, and the function itself if it is a test and none of them is reported.
func (g graph) check(decl *ast.FuncDecl) {
	reported := false
	ast.Inspect(decl.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 || !isFunc(called(g.pass, call), "testing", "Run", "Fuzz") {
			return true
		}
		if g.isBenchmark(call) {
			return false
		}
		if body, ok := call.Args[len(call.Args)-1].(*ast.FuncLit); ok && !g.mayFail(body.Body) {
			g.pass.Reportf(call.Pos(), "this subtest of %s asserts nothing", decl.Name.Name)
			reported = true
			return false
		}
		return true
	})
	params := decl.Type.Params.List
	isTest := decl.Recv == nil && testName.MatchString(decl.Name.Name) && len(params) == 1 && isTB(g.pass.TypesInfo.TypeOf(params[0].Type))
	if isTest && !reported && !g.mayFail(decl.Body) {
		g.pass.Reportf(decl.Name.Pos(), "%s asserts nothing", decl.Name.Name)
	}
}

// mayFail reports whether a body uses a function that may fail a test, or hands the test to a function value.
func (g graph) mayFail(body *ast.BlockStmt) (found bool) {
	fixtures := map[*ast.Ident]bool{}
	var stack []ast.Node
	ast.Inspect(body, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		if found {
			return false
		}
		switch n := n.(type) {
		case *ast.CallExpr:
			fn := called(g.pass, n)
			switch {
			case fn != nil && !isStatement(stack[len(stack)-1]) && returnsValue(fn):
				fixtures[calleeName(n)] = true
			case fn == nil || types.IsInterface(receiver(fn)) || isForeign(fn):
				found = !g.pass.TypesInfo.Types[n.Fun].IsType() && slices.ContainsFunc(n.Args, func(a ast.Expr) bool { return isTB(g.pass.TypesInfo.TypeOf(a)) })
			}
		case *ast.Ident:
			if o := g.pass.TypesInfo.Uses[n]; o != nil && !fixtures[n] {
				found = found || g.fails(o)
			}
		}
		stack = append(stack, n)
		return true
	})
	return found
}

// isBenchmark reports whether a call runs a part of a benchmark, which measures and may assert nothing.
func (g graph) isBenchmark(call *ast.CallExpr) bool {
	run, ok := call.Fun.(*ast.SelectorExpr)
	return ok && g.pass.TypesInfo.TypeOf(run.X).String() == "*testing.B"
}

func (g graph) fails(o types.Object) bool {
	fn, ok := o.(*types.Func)
	if !ok {
		return g.failing[o]
	}
	fn = fn.Origin()
	return g.failing[fn] || isFunc(fn, "testing", failures...) && fn.Signature().Recv() != nil || g.pass.ImportObjectFact(fn, new(mayFail))
}

// isStatement reports whether a call directly below this node gives its results to nobody.
func isStatement(parent ast.Node) bool {
	switch p := parent.(type) {
	case *ast.ExprStmt, *ast.GoStmt, *ast.DeferStmt:
		return true
	case *ast.AssignStmt:
		return allBlank(p)
	}
	return false
}

func allBlank(a *ast.AssignStmt) bool {
	return !slices.ContainsFunc(a.Lhs, func(e ast.Expr) bool {
		id, ok := e.(*ast.Ident)
		return !ok || id.Name != "_"
	})
}

// returnsValue reports whether a function returns something else than a verdict.
func returnsValue(fn *types.Func) bool {
	for v := range fn.Signature().Results().Variables() {
		if !types.Identical(v.Type(), types.Universe.Lookup("error").Type()) && !types.Identical(v.Type(), types.Typ[types.Bool]) {
			return true
		}
	}
	return false
}

func calleeName(call *ast.CallExpr) *ast.Ident {
	fun := ast.Unparen(call.Fun)
	switch f := fun.(type) {
	case *ast.IndexExpr:
		fun = f.X
	case *ast.IndexListExpr:
		fun = f.X
	}
	switch f := fun.(type) {
	case *ast.Ident:
		return f
	case *ast.SelectorExpr:
		return f.Sel
	}
	return nil
}

// isForeign reports whether a function's source is not ours: one that takes a test is taken to judge it. Running a part of a test
// is no judgement.
func isForeign(fn *types.Func) bool {
	path := fn.Pkg().Path()
	return !strings.HasPrefix(path, ours) && path != "testing" && path != "testing/synctest"
}

func receiver(fn *types.Func) types.Type {
	if recv := fn.Signature().Recv(); recv != nil {
		return recv.Type()
	}
	return types.Typ[types.Invalid]
}

// isTB reports whether a value of this type can fail a test.
func isTB(t types.Type) bool {
	if t == nil {
		return false
	}
	for _, method := range []string{"FailNow", "Helper"} {
		if fn, _, _ := types.LookupFieldOrMethod(t, true, nil, method); !isMethod(fn) {
			return false
		}
	}
	return true
}

func isMethod(o types.Object) bool {
	fn, ok := o.(*types.Func)
	return ok && fn.Pkg() != nil && fn.Pkg().Path() == "testing"
}
