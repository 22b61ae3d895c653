// Command testvet reports tests that cannot fail for the reason that they were written for:
//
//	testvet [-tags LIST] [-sleeps [-sleepers LIST]] PACKAGES
//
// It reports a test, a fuzz target or a subtest that reaches no assertion (asserts.go), an error that a test drops without a
// reason beside it (dropped.go), and a comparison that has one outcome only (constant.go). With -sleeps it also reports a sleep
// without a reason beside it, but in the packages of -sleepers. Packages that import each other's helpers are named in one call: what a helper asserts is known
// only where its source is loaded.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/packages"
)

func main() {
	tags := flag.String("tags", "", "build `tags`, separated by commas")
	sleeps := flag.Bool("sleeps", false, "report sleeps in tests")
	excepted := flag.String("sleepers", "", "`paths` of packages whose sleeps are not reported, separated by commas")
	flag.Parse()
	sleepers = strings.Split(*excepted, ",")
	analyzers := []*analysis.Analyzer{asserts, dropped, constant}
	if *sleeps {
		analyzers = append(analyzers, slept)
	}
	if err := run(analyzers, *tags, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "testvet:", err)
		os.Exit(1)
	}
}

func run(analyzers []*analysis.Analyzer, tags string, patterns []string) error {
	pkgs, err := packages.Load(&packages.Config{Mode: packages.LoadSyntax | packages.NeedModule, Tests: true, BuildFlags: []string{"-tags", tags}}, patterns...)
	if err != nil {
		return err
	}
	// A package that is loaded with its tests too need not stand without them.
	tested := map[string]bool{}
	for _, p := range pkgs {
		tested[p.PkgPath] = tested[p.PkgPath] || p.ID != p.PkgPath
	}
	pkgs = slices.DeleteFunc(pkgs, func(p *packages.Package) bool { return p.ID == p.PkgPath && tested[p.PkgPath] })
	failed := false
	for _, p := range pkgs {
		for _, err := range p.Errors {
			fmt.Fprintln(os.Stderr, err)
			failed = true
		}
	}
	if failed {
		return errors.New("the packages do not load")
	}
	graph, err := checker.Analyze(analyzers, pkgs, nil)
	if err != nil {
		return err
	}
	if err := graph.PrintText(os.Stderr, -1); err != nil {
		return err
	}
	for _, root := range graph.Roots {
		if root.Err != nil {
			return root.Err
		}
		if len(root.Diagnostics) > 0 {
			return errors.New("mend the tests above")
		}
	}
	return nil
}
