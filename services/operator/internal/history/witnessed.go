package history

import (
	"errors"
	"fmt"
	"strings"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/trust"
)

// NoWitnesses is what WitnessLine says of a log that has none.
const NoWitnesses = "no witnesses"

// silence is how old a cosignature may be until that is a finding: the relay asks for new ones all the time.
const silence = time.Hour

// WitnessLine says in a few words how the log stands with its witnesses: how many there are, when a quorum of them cosigned it last, and
// what that means. signed is what audit shows, nil for nothing.
func WitnessLine(roots *trust.Snapshot, signed []byte, now time.Time) (line string, good bool) {
	witnesses := roots.Witnesses
	if witnesses.Quorum == 0 {
		return NoWitnesses, true
	}
	newest, err := witnesses.OpenWitnessed(signed, roots.LogKeys, now)
	if err != nil {
		newest = logproof.Witnessed{}
		line = fmt.Sprintf("COSIGNED BY NO QUORUM OF ITS %d WITNESSES", len(witnesses.Keys))
		if errors.Is(err, logproof.ErrFuture) {
			line += ": " + logproof.ErrFuture.Error()
		}
	} else {
		line = fmt.Sprintf("cosigned by %s at %s, %s ago", clean.Line(strings.Join(newest.By, ", "), 200), clean.Count(newest.Size, "record"), now.Sub(newest.At).Round(time.Second))
	}
	if fresh := witnesses.Fresh(newest, now); fresh != nil {
		return line + "; CHANGES WAIT: " + fresh.Error(), false
	}
	return line, err == nil && now.Sub(newest.At) < silence
}

// behindFor is how long a record may wait for a destination until that is a finding.
const behindFor = time.Minute

// ForwardLine says in a few words how far the log is forwarded, by audit's status: "" where nothing is.
func ForwardLine(s *auditv1.GetStatusResponse, now time.Time) (line string, good bool) {
	if s.GetForward() == "" {
		return "", true
	}
	if len(s.GetForwarding()) == 0 {
		return "FORWARDED NOWHERE: no auditrelay has come for records", false
	}
	var parts []string
	good = true
	for _, d := range s.GetForwarding() {
		name := clean.Line(d.GetDestination(), 32)
		records, waits := logproof.Behind(d, s.GetSize(), now)
		switch {
		case d.GetProblem() != "":
			good = false
			parts = append(parts, fmt.Sprintf("NOT FORWARDED to %s, %s behind: %s", name, clean.Count(records, "record"), clean.Line(d.GetProblem(), 300)))
		case waits > behindFor:
			good = false
			parts = append(parts, fmt.Sprintf("NOT FORWARDED to %s for %s, %s behind", name, waits.Round(time.Second), clean.Count(records, "record")))
		case records > 0:
			parts = append(parts, fmt.Sprintf("forwarded to %s, %s behind", name, clean.Count(records, "record")))
		default:
			parts = append(parts, "forwarded to "+name)
		}
	}
	return strings.Join(parts, "; "), good
}
