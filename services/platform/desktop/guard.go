package desktop

import (
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clock"
)

// The rules of DSK-1, one small function each, so that a drill can show what happens without one (deploy/e2e/weak).

// switchedOn reports whether a human has allowed desktop control at all.
func switchedOn(allowed bool) bool { return allowed }

// channelMay reports whether a channel may control a desktop. Messaging never may, nor a channel that is not known.
func channelMay(channel callv1.Channel) bool {
	switch channel {
	case callv1.Channel_CHANNEL_CLI, callv1.Channel_CHANNEL_DESKTOP_UI, callv1.Channel_CHANNEL_API:
		return true
	default:
		return false
	}
}

// alive reports whether nobody has ended the session's desktop control.
func alive(killed bool) bool { return !killed }

// inTime reports whether the Span that began then, zero if none did, goes on.
func inTime(began, now time.Time) bool { return began.IsZero() || clock.Passed(began, now) < Span }

// due returns how long an action after that last one, zero if there was none, has to wait. A clock that went back waits.
func due(last, now time.Time) time.Duration {
	if last.IsZero() {
		return 0
	}
	return min(Spacing-now.Sub(last), Spacing)
}

// consented reports whether actions of this kind need no further yes in a session that confirmed those.
func consented(k kind, confirmed map[kind]bool) bool { return k != each && confirmed[k] }
