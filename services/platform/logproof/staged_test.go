package logproof_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"durward.internal/services/platform/logproof"
)

// TestStagedIsNoCheckpoint: neither is taken for the other, and a staged one is as its log's key signed it.
func TestStagedIsNoCheckpoint(t *testing.T) {
	key, verifier := signer(t, "durward.local/audit/main")
	other, stranger := signer(t, "durward.local/audit/other")
	keys := []note.Verifier{verifier, stranger}
	c := logproof.Checkpoint{Origin: key.Name(), Size: 7, Root: [32]byte{1}}
	staged, err := logproof.SignStaged(c, key)
	must(t, err)
	if got, err := logproof.OpenStaged(staged, keys); err != nil || got != c {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := logproof.OpenCheckpoint(staged, keys); err == nil {
		t.Error("a staged one is taken for a checkpoint")
	}
	signed, err := logproof.SignCheckpoint(c, key)
	must(t, err)
	if _, err := logproof.OpenStaged(signed, keys); !errors.Is(err, logproof.ErrFormat) {
		t.Errorf("a checkpoint is taken for a staged one: %v", err)
	}
	if _, err := logproof.OpenStaged(bytes.Replace(staged, []byte("\n7\n"), []byte("\n8\n"), 1), keys); !errors.Is(err, logproof.ErrSignature) {
		t.Errorf("another size: %v", err)
	}
	if _, err := logproof.OpenStaged(staged, []note.Verifier{stranger}); !errors.Is(err, logproof.ErrSignature) {
		t.Errorf("a stranger's key: %v", err)
	}
	if _, err := logproof.OpenStaged(append(bytes.Clone(staged), "— "+strings.Repeat("w", 1<<17)+" 7PZPHVoI\n"...), keys); !errors.Is(err, logproof.ErrFormat) {
		t.Errorf("long: %v", err)
	}
	if _, err := logproof.SignStaged(c, other); err == nil {
		t.Error("another log's key signs")
	}
}
