package constant

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"testing"
)

func TestConstant(t *testing.T) {
	got, want := []byte("x"), []byte("x")
	if !bytes.Equal(got, got) { // want "Equal compares got with itself"
		t.Error(want)
	}
	if !reflect.DeepEqual(want, (want)) && !slices.Equal(want, want) { // want "DeepEqual compares want with itself" "Equal compares want with itself"
		t.Error(want)
	}
	if err := errors.New("x"); !errors.Is(err, err) { // want "Is compares err with itself"
		t.Error(err)
	}
	if len("abc") != 3 { // want "the condition is always false"
		t.Error("abc")
	}
	if got == nil { // want "the condition decides nothing"
		return
	}
}

func TestEmpty(t *testing.T) {
	t.Error("asserts")
	if t.Name() != "TestEmpty" { // want "the condition decides nothing"
	}
}
