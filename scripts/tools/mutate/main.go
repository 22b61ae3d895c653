// Command mutate takes guards away, one at a time, and says which test fails without each:
//
//	mutate [-list] [-only REGEXP] FOLDER=PACKAGES...
//
// A guard is a condition of FOLDER's code whose branch refuses: it ends with an error that is not nil. The mutant takes that branch
// never. That an error is passed on (err != nil) is no guard: where it was made, one stands. PACKAGES, separated by commas, are
// those whose tests run against each mutant, in that order, until one fails. -only takes the guards whose line "FILE:LINE CONDITION"
// matches. GOFLAGS=-tags=real has it run the tests on real servers. The tree is not touched: the compiler reads the mutant as an overlay. The exit code is 1 when a guard can be taken away and no test says so.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	list := flag.Bool("list", false, "print the guards, and run nothing")
	only := flag.String("only", "", "take the guards alone whose line \"FILE:LINE CONDITION\" matches this expression")
	flag.Parse()
	survivors, err := run(flag.Args(), *list, *only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	}
	if survivors > 0 {
		os.Exit(1)
	}
}

// guard is one condition, by its place in a file.
type guard struct {
	file      string
	line      int
	from, to  int
	condition string
	packages  []string
	clause    bool // of a switch: it may hold several conditions
}

func run(targets []string, list bool, only string) (survivors int, err error) {
	chosen, err := regexp.Compile(only)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	for _, target := range targets {
		folder, packages, ok := strings.Cut(target, "=")
		if !ok {
			return 0, fmt.Errorf("%q is not FOLDER=PACKAGES", target)
		}
		found, err := guards(folder)
		if err != nil {
			return 0, err
		}
		for _, g := range found {
			if !chosen.MatchString(fmt.Sprintf("%s:%d %s", g.file, g.line, g.condition)) {
				continue
			}
			g.packages = strings.Split(packages, ",")
			caught := ""
			if !list {
				if caught, err = g.try(dir); err != nil {
					return 0, err
				}
				if caught == "" {
					caught = "SURVIVED"
					survivors++
				}
			}
			fmt.Printf("%s:%d\t%s\t%s\n", g.file, g.line, g.condition, caught)
		}
	}
	return survivors, nil
}

// guards finds the guards of a folder's code.
func guards(folder string) ([]guard, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}
	var out []guard
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, file, source, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		add := func(from, to ast.Expr, clause bool) {
			a, b := fset.Position(from.Pos()), fset.Position(to.End())
			if string(source[a.Offset:b.Offset]) == "err != nil" {
				return
			}
			out = append(out, guard{file: file, line: a.Line, from: a.Offset, to: b.Offset, clause: clause,
				condition: strings.Join(strings.Fields(string(source[a.Offset:b.Offset])), " ")})
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.IfStmt:
				if refuses(n.Body.List) {
					add(n.Cond, n.Cond, false)
				}
			case *ast.SwitchStmt:
				if n.Tag != nil {
					break
				}
				for _, c := range n.Body.List {
					if c := c.(*ast.CaseClause); len(c.List) > 0 && refuses(c.Body) {
						add(c.List[0], c.List[len(c.List)-1], true)
					}
				}
			}
			return true
		})
	}
	return out, nil
}

// refuses reports whether a branch ends by returning an error that is made there or came from a call.
func refuses(body []ast.Stmt) bool {
	if len(body) == 0 {
		return false
	}
	end, ok := body[len(body)-1].(*ast.ReturnStmt)
	if !ok || len(end.Results) == 0 {
		return false
	}
	switch last := end.Results[len(end.Results)-1].(type) {
	case *ast.Ident:
		return strings.HasPrefix(strings.ToLower(last.Name), "err") || last.Name == "refusal" || last.Name == "no"
	case *ast.CallExpr:
		name := ""
		switch f := last.Fun.(type) {
		case *ast.Ident:
			name = f.Name
		case *ast.SelectorExpr:
			name = f.Sel.Name
			if x, ok := f.X.(*ast.Ident); ok && (x.Name == "fault" || x.Name == "errors") {
				return true
			}
		}
		return refusal.MatchString(name)
	case *ast.SelectorExpr:
		return strings.HasPrefix(last.Sel.Name, "Err")
	case *ast.UnaryExpr: // &conflictError{…}
		if made, ok := last.X.(*ast.CompositeLit); ok {
			name, ok := made.Type.(*ast.Ident)
			return ok && strings.HasSuffix(name.Name, "Error")
		}
	}
	return false
}

var refusal = regexp.MustCompile(`(?i)err|refus|den[iy]|fault|invalid|bad|not|required|wrong`)

var (
	failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	broken = regexp.MustCompile(`(?m)^panic: .*`)
)

// try compiles the packages' tests without the guard and returns the test that fails first, or "".
func (g guard) try(dir string) (string, error) {
	source, err := os.ReadFile(g.file)
	if err != nil {
		return "", err
	}
	var mutant bytes.Buffer
	mutant.Write(source[:g.from])
	if g.clause {
		// Each condition of the clause is looked at as before, for what it declares and imports, and none is taken.
		fmt.Fprintf(&mutant, "func(...bool) bool { return false }(%s)", source[g.from:g.to])
	} else {
		fmt.Fprintf(&mutant, "func(bool) bool { return false }(%s)", source[g.from:g.to])
	}
	mutant.Write(source[g.to:])
	copied, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(copied, mutant.Bytes(), 0o600); err != nil {
		return "", err
	}
	whole, err := filepath.Abs(g.file)
	if err != nil {
		return "", err
	}
	replaced, err := json.Marshal(map[string]any{"Replace": map[string]string{whole: copied}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, replaced, 0o600); err != nil {
		return "", err
	}
	for _, p := range g.packages {
		out, err := exec.Command("go", "test", "-overlay", overlay, "-vet=off", "-failfast", "-count=1", "-timeout", "2m", p).CombinedOutput()
		if err == nil {
			continue
		}
		if names := failed.FindAllSubmatch(out, -1); names != nil {
			// The deepest name says most.
			name := slices.MaxFunc(names, func(a, b [][]byte) int { return bytes.Count(a[1], []byte("/")) - bytes.Count(b[1], []byte("/")) })
			return string(name[1]), nil
		}
		if first := broken.Find(out); first != nil {
			return fmt.Sprintf("%s (%s)", p, bytes.TrimSpace(first)), nil
		}
		return "", fmt.Errorf("%s:%d: %s: %s", g.file, g.line, p, out)
	}
	return "", nil
}
