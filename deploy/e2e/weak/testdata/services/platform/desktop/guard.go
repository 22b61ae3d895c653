package desktop

import (
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/weakness"
)

// This file makes the negative controls of deploy/e2e: a gate without one of its rules.

// Guards are those that a drill build may lack.
var Guards = weakness.Of("desktop-off", "desktop-channel", "desktop-killed", "desktop-span", "desktop-spacing", "desktop-each")

func switchedOn(allowed bool) bool { return allowed || Guards.Off("desktop-off") }

func channelMay(channel callv1.Channel) bool {
	switch channel {
	case callv1.Channel_CHANNEL_CLI, callv1.Channel_CHANNEL_DESKTOP_UI, callv1.Channel_CHANNEL_API:
		return true
	default:
		return Guards.Off("desktop-channel")
	}
}

func alive(killed bool) bool { return !killed || Guards.Off("desktop-killed") }

func inTime(began, now time.Time) bool {
	return began.IsZero() || clock.Passed(began, now) < Span || Guards.Off("desktop-span")
}

func due(last, now time.Time) time.Duration {
	if last.IsZero() || Guards.Off("desktop-spacing") {
		return 0
	}
	return min(Spacing-now.Sub(last), Spacing)
}

func consented(k kind, confirmed map[kind]bool) bool {
	return (k != each || Guards.Off("desktop-each")) && confirmed[k]
}
