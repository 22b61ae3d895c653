package life

import (
	"os"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/installdir"
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
