// Package helper is what tests of other packages call.
package helper

import "testing"

func Start(t testing.TB) *int {
	if t.Name() == "" {
		t.Fatal("no name")
	}
	return new(int)
}

func Quiet(t testing.TB) { t.Log("nothing") }

func Must(t testing.TB, err error) { fail(t, err) }

func fail(t testing.TB, err error) {
	if err != nil {
		t.Fatal(err)
	}
}
