package audit

import (
	"errors"
	"os"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/installdir"
)

// TestCopyInACopiedHome: a copy of a home does not move the log of the home that it was copied from.
func TestCopyInACopiedHome(t *testing.T) {
	core, _, _ := clitest.Printing(false)
	home := installdir.Home{Dir: t.TempDir()}
	core.Home = installdir.Home{Dir: t.TempDir()}
	if _, err := home.Init(installdir.Options{Development: true, Operator: "alice"}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.CopyFS(core.Home.Dir, os.DirFS(home.Dir)), os.Chmod(core.Home.Dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	err := (&app{App: core}).copyLog(t.Context(), "", core.Home.Config(keeper), false)
	if err == nil || !strings.Contains(err.Error(), "is a copy of "+home.Dir) {
		t.Errorf("%v", err)
	}
}
