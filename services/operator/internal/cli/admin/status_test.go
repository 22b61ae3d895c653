package admin

import (
	"strings"
	"testing"

	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/installdir"
)

// TestWhyNotWell: what does not run is to be started, what runs is not.
func TestWhyNotWell(t *testing.T) {
	h, err := installdir.At(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Init(installdir.Options{Development: true, Operator: "alice", BasePort: 29430}); err != nil {
		t.Fatal(err)
	}
	core, _, _ := clitest.Printing(false)
	core.Home = h
	a := &app{core}
	if got := a.whyNot(processStatus{Role: "vault"}); !strings.HasPrefix(got, "Start it: durward up. Why it stopped: ") {
		t.Errorf("%q", got)
	}
	if got := a.whyNot(processStatus{Role: "gateway", answers: true}); strings.Contains(got, "Start it") || !strings.HasPrefix(got, "It runs. Why it is not well: ") {
		t.Errorf("%q", got)
	}
}
