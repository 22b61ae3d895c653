package retention

import (
	"fmt"
	"strings"

	"durward.internal/services/platform/statement"
)

// summary is a record's line for a statement.
func summary(st *statement.Statement) string {
	switch {
	case st.Prune != nil:
		return fmt.Sprintf("the bodies of %d records from before %s go; %d are held", st.Prune.Sum(), st.Prune.Before, st.Prune.Held)
	case st.Hold != nil && len(st.Hold.IDs) == 0:
		return fmt.Sprintf("a legal hold keeps what was written from %s to %s", st.Hold.Since, st.Hold.Until)
	case st.Hold != nil:
		text := "a legal hold keeps the records of " + strings.Join(st.Hold.IDs[:min(len(st.Hold.IDs), 3)], ", ")
		if more := len(st.Hold.IDs) - 3; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		if st.Hold.Since != "" {
			text += fmt.Sprintf(", and what was written from %s to %s", st.Hold.Since, st.Hold.Until)
		}
		return text
	default:
		return "the legal hold " + st.Releases + " ends"
	}
}
