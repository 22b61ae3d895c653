package main

import (
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"
)

// Each package under testdata says in its comments what is reported; nothing is reported of accept.
func TestAnalyzers(t *testing.T) {
	// One analyzer runs them all, so that the packages are loaded once.
	all := &analysis.Analyzer{Name: "all", Doc: "every rule", FactTypes: asserts.FactTypes, Run: func(pass *analysis.Pass) (any, error) {
		for _, a := range []*analysis.Analyzer{asserts, dropped, constant, slept} {
			if _, err := a.Run(pass); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}}
	var packages []string
	for _, name := range []string{"asserts", "dropped", "constant", "slept", "accept"} {
		packages = append(packages, ours+name)
	}
	for _, result := range analysistest.Run(diagnosticsOnly{t}, analysistest.TestData(), all, packages...) {
		if result.Err != nil {
			t.Error(result.Err)
		}
	}
}

// diagnosticsOnly leaves facts alone, which are an inner matter.
type diagnosticsOnly struct{ *testing.T }

func (d diagnosticsOnly) Errorf(format string, args ...any) {
	if format != "%v: unexpected %s: %v" || args[1] != "fact" {
		d.T.Errorf(format, args...)
	}
}
