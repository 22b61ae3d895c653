package changelog

import (
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/statement"
)

// tellsOf reports whether an announcement is of exactly the change that was seen.
func tellsOf(announced statement.Change, seen security.Change) bool {
	return announced.File == seen.File && announced.Before == seen.Before && announced.After == seen.After
}
