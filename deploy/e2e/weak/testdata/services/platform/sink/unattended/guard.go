package unattended

import (
	"encoding/json"
	"time"

	"durward.internal/services/platform/weakness"
)

// Guards are those that a drill build may lack.
var Guards = weakness.Of("unattended-arguments", "unattended-until")

func argumentListed(values []json.RawMessage, own json.RawMessage) bool {
	return Guards.Off("unattended-arguments") || contains(values, own)
}

func entryEnded(until, now time.Time) bool {
	return !Guards.Off("unattended-until") && !until.IsZero() && !now.Before(until)
}
