// Package input makes files that Go's test cache never looks at, those outside of a test's module, inputs of the test. It links
// nothing, so that every package's tests may use it.
package input

import (
	"os"
	"testing"
	"time"
)

// Outside is called by tests that use files of the repository outside of their module, at which Go's test cache never looks: it
// reads DURWARD_OUTSIDE, where scripts/inputs.sh puts a digest of those files, so that the test runs again after a change of any.
// Without a digest the test's result is not cached.
func Outside(t testing.TB) { digest(t, "DURWARD_OUTSIDE") }

// Transcripts is Outside for the operator's transcripts, which change far more often than the other files do.
func Transcripts(t testing.TB) { digest(t, "DURWARD_TRANSCRIPTS") }

// Compiled is Outside for the tests of other modules that a test compiles.
func Compiled(t testing.TB) { digest(t, "DURWARD_COMPILED") }

// Corpora returns the folder of hostile and sample inputs that the environment names in CORPORA; "" without one. The scripts put
// a digest of its files beside it, for Go's test cache.
func Corpora(t testing.TB) string {
	dir := os.Getenv("CORPORA")
	if dir != "" {
		digest(t, "CORPORA_DIGEST")
	}
	return dir
}

// digest makes an environment variable an input of the test. If it is empty, the test's result is not cached.
func digest(t testing.TB, variable string) {
	t.Helper()
	if os.Getenv(variable) == "" {
		Uncached(t)
	}
}

// Uncached keeps Go from caching the result of this test: the cache remembers no test that read a file of its module which is
// newer than the test's end.
func Uncached(t testing.TB) {
	t.Helper()
	const name = ".uncached"
	future := time.Now().Add(24 * time.Hour)
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(name, future, future); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(name); err != nil {
		t.Fatal(err)
	}
}
