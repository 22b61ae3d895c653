package desktop

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
)

// This file makes the negative controls of deploy/e2e: a gate without one of its rules.

// Guards are the names that Weaken takes: each switches one guard off.
var Guards = []string{"desktop-off", "desktop-channel", "desktop-killed", "desktop-span", "desktop-spacing", "desktop-each"}

var (
	weakenedMu sync.RWMutex
	weakened   = map[string]bool{}
)

// Weaken switches guards off, by comma-separated names. It exists in drill builds alone.
func Weaken(names string) error {
	weakenedMu.Lock()
	defer weakenedMu.Unlock()
	for _, name := range strings.Split(names, ",") {
		if !slices.Contains(Guards, name) {
			return fmt.Errorf("no guard is called %q; there are %s", name, strings.Join(Guards, ", "))
		}
		weakened[name] = true
	}
	return nil
}

func weak(name string) bool {
	weakenedMu.RLock()
	defer weakenedMu.RUnlock()
	return weakened[name]
}

func switchedOn(allowed bool) bool { return allowed || weak("desktop-off") }

func channelMay(channel callv1.Channel) bool {
	switch channel {
	case callv1.Channel_CHANNEL_CLI, callv1.Channel_CHANNEL_DESKTOP_UI, callv1.Channel_CHANNEL_API:
		return true
	default:
		return weak("desktop-channel")
	}
}

func alive(killed bool) bool { return !killed || weak("desktop-killed") }

func inTime(began, now time.Time) bool {
	return began.IsZero() || now.Sub(began) < Span || weak("desktop-span")
}

func due(last, now time.Time) time.Duration {
	if last.IsZero() || weak("desktop-spacing") {
		return 0
	}
	return min(Spacing-now.Sub(last), Spacing)
}

func consented(k kind, confirmed map[kind]bool) bool {
	return (k != each || weak("desktop-each")) && confirmed[k]
}
