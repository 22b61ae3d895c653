package life

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/backupfile"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/statement"
)

// TestRestoreNeedsASigner: root, whom sudo gave no operator, and who has no key, is told what to do.
func TestRestoreNeedsASigner(t *testing.T) {
	core, _, errs := clitest.Printing(false)
	core.Home = installdir.Home{Dir: t.TempDir()}
	if _, err := core.Home.Init(installdir.Options{Development: true, Operator: "alice"}); err != nil {
		t.Fatal(err)
	}
	cfg, err := core.Home.Load()
	if err == nil {
		err = os.Remove(cfg.SigningKey)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = (&app{core}).operatorConfig()
	if code := core.Explain(err); code != cli.ExitDenied || !strings.Contains(errs.String(), "\n  Run it with sudo, as an operator.") {
		t.Errorf("exit code %d, %q", code, errs)
	}
}

// TestCopiedHome: of a copy of a home nothing is backed up: its configuration names the state of the home that it was copied from.
func TestCopiedHome(t *testing.T) {
	core, _, _ := clitest.Printing(false)
	home, copied := installdir.Home{Dir: t.TempDir()}, installdir.Home{Dir: t.TempDir()}
	if _, err := home.Init(installdir.Options{Development: true, Operator: "alice"}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.CopyFS(copied.Dir, os.DirFS(home.Dir)), os.Chmod(copied.Dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	a := &app{core}
	core.Home = home
	if found, err := a.programs(); err != nil || len(found) == 0 {
		t.Errorf("the home: %v, %v", found, err)
	}
	core.Home = copied
	if err := a.backup(t.Context(), filepath.Join(t.TempDir(), "b"), nil, 0); err == nil || !strings.Contains(err.Error(), "is a copy of "+home.Dir) {
		t.Errorf("the copy: %v", err)
	}
}

// TestWhatIsLost: who kept no checkpoint as new as the backup does not sign that nothing is lost.
func TestWhatIsLost(t *testing.T) {
	for known, want := range map[uint64]string{0: "is not known here", 4: "is not known here", 5: "", 7: "2 records are lost"} {
		r := &statement.Restore{Size: 5, OldSize: max(known, 5), Lost: max(known, 5) - 5}
		said := ""
		for _, line := range about("b", backupfile.List{}, r, known) {
			if line.Kind == approval.Danger {
				said += line.Text
			}
		}
		if said != "" != (want != "") || !strings.Contains(said, want) {
			t.Errorf("%d are known: it says %q, want %q", known, said, want)
		}
	}
}
