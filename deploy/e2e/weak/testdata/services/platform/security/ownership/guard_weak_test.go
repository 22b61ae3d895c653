package ownership_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"durward.internal/services/platform/security/ownership"
)

// TestFoldersOfOthersWithoutTheGuard is the negative control of TestRefusesWhatAnotherUserOwnsOrMayWrite.
func TestFoldersOfOthersWithoutTheGuard(t *testing.T) {
	shared := filepath.Join(t.TempDir(), "shared")
	if err := errors.Join(os.Mkdir(shared, 0o700), os.Chmod(shared, 0o777)); err != nil {
		t.Fatal(err)
	}
	if err := ownership.Own(shared); err == nil {
		t.Error("a folder that others may write is taken with the guard")
	}
	ownership.WeakenOwnership()
	if err := ownership.Own(shared); err != nil {
		t.Errorf("without the guard: %v", err)
	}
}
