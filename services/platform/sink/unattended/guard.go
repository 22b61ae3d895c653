package unattended

import (
	"encoding/json"
	"time"
)

// These two are functions of their own so that a negative control can remove them: deploy/e2e/weak holds their twins.

// argumentListed reports whether an argument has one of the values that this sink's file lists.
func argumentListed(values []json.RawMessage, own json.RawMessage) bool { return contains(values, own) }

// entryEnded reports whether an entry of this sink's file has ended; the zero time never comes.
func entryEnded(until, now time.Time) bool { return !until.IsZero() && !now.Before(until) }
