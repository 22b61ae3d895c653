//go:build drill

package drill_test

import (
	"os"
	"regexp"
	"testing"

	"durward.internal/deploy/e2e/drill"
)

func TestDrillNetwork(t *testing.T) {
	t.Parallel()
	chosen, err := regexp.Compile(*lines)
	if err != nil {
		t.Fatal(err)
	}
	if chosen.MatchString(drill.NetworkLine) {
		drill.RunNetwork(t, full)
	}
}

func TestDrillExposure(t *testing.T) {
	t.Parallel()
	chosen, err := regexp.Compile(*lines)
	if err != nil {
		t.Fatal(err)
	}
	if chosen.MatchString(drill.ExposureLine) {
		drill.RunExposure(t, full)
	}
}

func TestDrillMixed(t *testing.T) {
	t.Parallel()
	chosen, err := regexp.Compile(*lines)
	if err != nil {
		t.Fatal(err)
	}
	if older := os.Getenv("OLDER"); chosen.MatchString(drill.MixedLine) && older != "" {
		drill.RunMixed(t, older, full)
	}
}
