package history

import (
	"fmt"
	"strings"
	"time"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/trust"
)

// WitnessLine says in a few words how the log stands with its witnesses: how many there are, when a quorum of them cosigned it last, and
// what that means. signed is what audit shows, nil for nothing.
func WitnessLine(roots *trust.Snapshot, signed []byte, now time.Time) (line string, good bool) {
	witnesses := roots.Witnesses
	if witnesses.Quorum == 0 {
		return "no witnesses", true
	}
	newest, err := witnesses.OpenWitnessed(signed, roots.LogKeys, now)
	if err != nil {
		newest = logproof.Witnessed{}
		line = fmt.Sprintf("COSIGNED BY NO QUORUM OF ITS %d WITNESSES", len(witnesses.Keys))
	} else {
		line = fmt.Sprintf("cosigned by %s at %d records, %s ago", clean.Line(strings.Join(newest.By, ", "), 200), newest.Size, now.Sub(newest.At).Round(time.Second))
	}
	if fresh := witnesses.Fresh(newest, now); fresh != nil {
		return line + "; CHANGES WAIT: " + fresh.Error(), false
	}
	return line, err == nil
}
