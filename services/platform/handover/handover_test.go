package handover

import (
	"bytes"
	"testing"
)

func TestHandover(t *testing.T) {
	t.Parallel()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	const name = "hf-canary-8d21" // a short one stands among random bytes now and then
	secret := []byte("canary-3f7a1c")
	sealed, err := Seal(key.Public(), "llm", []Value{{Name: name, File: true, Variable: "HF_TOKEN_PATH", Value: bytes.Clone(secret)}})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed, secret) || bytes.Contains(sealed, []byte(name)) {
		t.Error("what a carrier sees holds the value, or its name")
	}
	other, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Open(sealed, "llm"); err == nil {
		t.Error("another start's key opens it")
	}
	if _, err := key.Open(sealed, "other"); err == nil {
		t.Error("it opens for another service")
	}
	for i := range sealed {
		edited := bytes.Clone(sealed)
		edited[i] ^= 1
		if _, err := key.Open(edited, "llm"); err == nil {
			t.Fatalf("it opens with byte %d changed", i)
		}
	}
	values, err := key.Open(sealed, "llm")
	if err != nil || len(values) != 1 || !bytes.Equal(values[0].Value, secret) || !values[0].File || values[0].Variable != "HF_TOKEN_PATH" {
		t.Fatalf("%+v, %v", values, err)
	}
	if Clear(values); !bytes.Equal(values[0].Value, make([]byte, len(secret))) {
		t.Error("the value is not wiped")
	}
	if _, err := Seal([]byte("short"), "llm", nil); err == nil {
		t.Error("it is sealed to what is no key")
	}
}
