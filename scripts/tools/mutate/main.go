// Command mutate takes guards away, one at a time, and says which test fails without each:
//
//	mutate [-list] [-only REGEXP] FOLDER=PACKAGES...
//
// A guard is a condition of FOLDER's code whose branch refuses: it ends with an error that is not nil. The mutant takes that branch
// never. That an error is passed on (err != nil, also but for some, or with an end that is none) is no guard: where it was made, one stands. PACKAGES, separated
// by commas, are those whose tests run against each mutant, in that order, until one fails; they are compiled once, and a variable of the
// environment says which guard is away. -only takes the guards whose line "FILE:LINE CONDITION" matches. GOFLAGS=-tags=real has it run the
// tests on real servers. The tree is not touched: the compiler reads the changed files as an overlay. The exit code is 1 when a guard can be
// taken away and no test says so.
package main

import (
	"bytes"
	"cmp"
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
}

func run(targets []string, list bool, only string) (survivors int, err error) {
	chosen, err := regexp.Compile(only)
	if err != nil {
		return 0, err
	}
	for _, target := range targets {
		folder, packages, ok := strings.Cut(target, "=")
		if !ok {
			return 0, fmt.Errorf("%q is not FOLDER=PACKAGES", target)
		}
		name, found, err := guards(folder)
		if err != nil {
			return 0, err
		}
		found = slices.DeleteFunc(found, func(g guard) bool {
			return !chosen.MatchString(fmt.Sprintf("%s:%d %s", g.file, g.line, g.condition))
		})
		if list {
			for _, g := range found {
				fmt.Printf("%s:%d\t%s\n", g.file, g.line, g.condition)
			}
			continue
		}
		n, err := tryAll(name, folder, found, strings.Split(packages, ","))
		if err != nil {
			return 0, err
		}
		survivors += n
	}
	return survivors, nil
}

// tryAll compiles the packages' tests with a switch at each guard and runs them once for each, and once with all guards in place.
func tryAll(name, folder string, found []guard, packages []string) (survivors int, err error) {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	overlay, err := switched(dir, name, folder, found)
	if err != nil {
		return 0, err
	}
	var tests []compiled
	for i, p := range packages {
		t := compiled{program: filepath.Join(dir, fmt.Sprintf("%d.test", i))}
		if out, err := exec.Command("go", "test", "-c", "-o", t.program, "-overlay", overlay, "-vet=off", p).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("%s: %w: %s", p, err, out)
		}
		out, err := exec.Command("go", "list", "-f", "{{.Dir}}", p).Output()
		if err != nil {
			return 0, fmt.Errorf("%s: %w", p, err)
		}
		t.dir = strings.TrimSpace(string(out))
		if caught := t.run(0); caught != "" {
			return 0, fmt.Errorf("%s: %s fails with every guard in its place", p, caught)
		}
		tests = append(tests, t)
	}
	for i, g := range found {
		caught := ""
		for _, t := range tests {
			if caught = t.run(i + 1); caught != "" {
				break
			}
		}
		if caught == "" {
			survivors++
		}
		fmt.Printf("%s:%d\t%s\t%s\n", g.file, g.line, g.condition, cmp.Or(caught, "SURVIVED"))
	}
	return survivors, nil
}

// away is the variable that numbers the guard to take away, from 1.
const away = "MUTATE_AWAY"

// switched writes an overlay in which each guard, where it is the one that is away, is never met. Its conditions are looked at as before,
// for what they declare and import.
func switched(dir, name, folder string, found []guard) (overlay string, err error) {
	whole, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	replaced := map[string]string{}
	write := func(file string, content []byte) error {
		copied := filepath.Join(dir, file)
		replaced[filepath.Join(whole, file)] = copied
		return os.WriteFile(copied, content, 0o600)
	}
	if err := write("zz_mutate.go", fmt.Appendf(nil, `package %s

import "os"

var mutateAway = os.Getenv(%q)

func mutateGuard(n string, conditions ...bool) bool {
	for _, c := range conditions {
		if c {
			return n != mutateAway
		}
	}
	return false
}
`, name, away)); err != nil {
		return "", err
	}
	sources := map[string][]byte{}
	// From the end, so that the places before stay what they are.
	for i, g := range slices.Backward(found) {
		if sources[g.file] == nil {
			if sources[g.file], err = os.ReadFile(g.file); err != nil {
				return "", err
			}
		}
		s := sources[g.file]
		sources[g.file] = slices.Concat(s[:g.from], fmt.Appendf(nil, "mutateGuard(\"%d\", %s)", i+1, s[g.from:g.to]), s[g.to:])
	}
	for file, source := range sources {
		if err := write(filepath.Base(file), source); err != nil {
			return "", err
		}
	}
	content, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, content, 0o600)
}

// compiled is a package's tests, and the folder in which they run.
type compiled struct{ program, dir string }

// run returns the test that fails first without a guard, or "".
func (t compiled) run(guard int) string {
	c := exec.Command(t.program, "-test.failfast", "-test.timeout", "2m")
	c.Dir, c.Env = t.dir, append(os.Environ(), fmt.Sprintf("%s=%d", away, guard))
	out, err := c.CombinedOutput()
	if err == nil {
		return ""
	}
	if names := failed.FindAllSubmatch(out, -1); names != nil {
		// The deepest name says most.
		return string(slices.MaxFunc(names, func(a, b [][]byte) int { return bytes.Count(a[1], []byte("/")) - bytes.Count(b[1], []byte("/")) })[1])
	}
	if first := broken.Find(out); first != nil {
		return string(bytes.TrimSpace(first))
	}
	return err.Error()
}

// guards finds the guards of a folder's code, in order, and the name of its package.
func guards(folder string) (name string, out []guard, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return "", nil, err
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return "", nil, err
		}
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, file, source, parser.SkipObjectResolution)
		if err != nil {
			return "", nil, err
		}
		name = tree.Name.Name
		add := func(conditions []ast.Expr, body []ast.Stmt) {
			if !refuses(body) || len(conditions) == 1 && passes(conditions[0], body) {
				return
			}
			a, b := fset.Position(conditions[0].Pos()), fset.Position(conditions[len(conditions)-1].End())
			out = append(out, guard{file: file, line: a.Line, from: a.Offset, to: b.Offset,
				condition: strings.Join(strings.Fields(string(source[a.Offset:b.Offset])), " ")})
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.IfStmt:
				add([]ast.Expr{n.Cond}, n.Body.List)
			case *ast.SwitchStmt:
				if n.Tag != nil {
					break
				}
				for _, c := range n.Body.List {
					if c := c.(*ast.CaseClause); len(c.List) > 0 {
						add(c.List, c.Body)
					}
				}
			}
			return true
		})
	}
	slices.SortFunc(out, func(a, b guard) int { return cmp.Or(strings.Compare(a.file, b.file), a.from-b.from) })
	return name, out, nil
}

// passes reports whether a condition is that there is an error, perhaps but for some, or that there is one or nothing more to do, in
// which case the branch returns err itself.
func passes(condition ast.Expr, body []ast.Stmt) bool {
	c, ok := condition.(*ast.BinaryExpr)
	if !ok {
		return false
	}
	switch c.Op {
	case token.LAND:
		return passes(c.X, body)
	case token.LOR:
		returned := body[len(body)-1].(*ast.ReturnStmt).Results // refuses saw it
		last, ok := returned[len(returned)-1].(*ast.Ident)
		return ok && last.Name == "err" && passes(c.X, body)
	}
	x, ok := c.X.(*ast.Ident)
	y, nothing := c.Y.(*ast.Ident)
	return ok && nothing && c.Op == token.NEQ && x.Name == "err" && y.Name == "nil"
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
		return refusal.MatchString(strings.TrimPrefix(name, "Default")) // which holds "fault", and is none
	case *ast.SelectorExpr:
		return strings.HasPrefix(last.Sel.Name, "Err")
	case *ast.UnaryExpr: // &ConflictError{…}
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
