//go:build drill

package drill_test

import (
	"os"
	"testing"

	"durward.internal/deploy/e2e/drill"
	"durward.internal/services/platform/platformtest/full"
)

func TestDrillNetwork(t *testing.T) {
	t.Parallel()
	chosen := chosenLines(t)
	if chosen.MatchString(drill.NetworkLine) {
		drill.RunNetwork(t, full.Set())
	}
}

func TestDrillExposure(t *testing.T) {
	t.Parallel()
	chosen := chosenLines(t)
	if chosen.MatchString(drill.ExposureLine) {
		drill.RunExposure(t, full.Set())
	}
}

func TestDrillMixed(t *testing.T) {
	t.Parallel()
	chosen := chosenLines(t)
	if older := os.Getenv("OLDER"); chosen.MatchString(drill.MixedLine) && older != "" {
		drill.RunMixed(t, older, full.Set())
	}
}
