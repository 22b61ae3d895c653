package approval

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/statement"
)

// saidLines is how many lines of an agent's words a brief shows that has no room for all of them.
const saidLines = 2

// Brief lays out, on one screen of so many columns and lines, what the documents' statements let happen: who asks, the call with its
// arguments, its target and plan, the fit, the risk, uses and end, and the agent's words, which alone are cut where there is no room.
// whole is false where the rest does not fit: then nothing is signed before the documents' Lines were shown. The lines are broken.
func Brief(now time.Time, width, height int, documents ...Document) (lines []Line, whole bool) {
	var said [][2]int // where an agent's words begin and end in lines
	for _, d := range documents {
		for _, line := range append(d.About[:len(d.About):len(d.About)], d.terms(now)...) {
			begin := len(lines)
			for _, text := range output.Wrap(line.Text, width) {
				lines = append(lines, Line{line.Kind, text})
			}
			if line.Kind == Said {
				said = append(said, [2]int{begin, len(lines)})
			}
		}
	}
	for i := len(said) - 1; i >= 0 && len(lines) > height; i-- {
		begin, end := said[i][0], said[i][1]
		left := fmt.Sprintf("      … %d more lines of these words: v", end-begin-saidLines+1)
		if end-begin <= saidLines || len(output.Wrap(left, width)) > 1 {
			continue
		}
		lines = append(append(lines[:begin+saidLines-1:begin+saidLines-1], Line{Said, left}), lines[end:]...)
	}
	return lines, len(lines) <= height
}

// terms say how often and until when what is signed holds. They are read from the statement.
func (s Document) terms(now time.Time) []Line {
	st := s.Statement
	var out []Line
	switch st.Kind {
	case statement.KindScope, statement.KindDangerous:
		for i, text := range Words(st, now) {
			line := Line{Plain, text}
			switch {
			case st.Kind == statement.KindDangerous:
				line.Kind = Danger
			case i == 0:
				line.Kind = Heading
			}
			out = append(out, line)
		}
	case statement.KindResume:
		out = append(out, Line{Plain, fmt.Sprintf("You sign: the halt ends and epoch %d begins, at %s, %s", st.Epoch, clean.Visible(st.Audience), until(st, now))})
	case statement.KindPrune:
		out = append(out, Line{Danger, "You sign: " + clean.Count(st.Prune.Sum(), "record loses for ever what it said, and keeps its place", "records lose for ever what they said, and keep their place") +
			" in the log; " + clean.Count(st.Prune.Held, "is held and stays", "are held and stay")})
	case statement.KindRestore:
		r := st.Restore
		out = append(out, Line{Danger, fmt.Sprintf("You sign: the log goes on from the backup of %s, at %d records; of those behind them %d are known, up to the head %s, and all are lost", r.Made, r.Size, r.Lost, clean.Visible(r.OldRoot))})
	case statement.KindServers:
		for _, id := range slices.Sorted(maps.Keys(st.Servers.Tools)) {
			out = append(out, Line{Plain, fmt.Sprintf("You sign: the server %s has %s displayed", clean.Visible(id), clean.Count(st.Servers.Tools[id], "tool, as it was", "tools, as they were"))})
		}
	case statement.KindHold:
		out = append(out, Line{Plain, "You sign: no pruning reaches these records until this hold is released, for: " + clean.Visible(st.Hold.Reason)})
	case statement.KindRelease:
		out = append(out, Line{Danger, "You sign: the hold ends, and what it kept may be pruned"})
	case statement.KindCredential:
		c := st.Credential
		what := map[string]string{
			statement.CredentialAdd: "a credential is stored", statement.CredentialRotate: "a credential gets a new value",
			statement.CredentialGrant: "from now on it may be had by " + Granted(c.Services, c.Origins, c.Place, c.Scheme, c.Agents, c.Unattended, c.Until),
		}[c.Action]
		switch c.Delivery {
		case statement.DeliveryFile:
			what += ", given as a file at $" + c.Variable
		case statement.DeliveryEnvironment:
			what += ", given as $" + c.Variable
		}
		out = append(out, Line{Plain, fmt.Sprintf("You sign: %s: %s", clean.Visible(c.Name), clean.Visible(what))})
	default:
		times := "once"
		if st.Uses != 1 {
			times = fmt.Sprintf("%d times", st.Uses)
		}
		out = append(out, Line{Plain, fmt.Sprintf("You sign: %s on %s, %s, %s", clean.Visible(st.Tool.Name), clean.Visible(strings.TrimSpace(st.Target)), times, until(st, now))})
		for _, d := range st.Disclosures {
			out = append(out, Line{Danger, fmt.Sprintf("It gives %s the %s %s, in the place of %s at %s", clean.Visible(st.Audience), clean.Visible(d.Type),
				clean.Visible(d.Hint), clean.Visible(d.Ref), clean.Visible(d.Pointer))})
		}
	}
	return out
}

// Granted says to whom a credential is granted: to services or for requests to origins, by whose calls, and until when.
func Granted(services, origins []string, place, scheme string, agents []string, unattended bool, until string) string {
	out := strings.Join(services, ", ")
	if len(origins) > 0 {
		where := strings.TrimSpace(place + ": " + scheme)
		if strings.HasPrefix(place, "/") {
			where = place + " of their JSON bodies"
		}
		out = fmt.Sprintf("requests to %s, as %s", strings.Join(origins, ", "), where)
	}
	if unattended {
		out += ", without a call too"
	}
	if len(agents) > 0 {
		out += ", in calls of " + strings.Join(agents, ", ")
	}
	if until != "" {
		out += ", until " + until
	}
	return clean.Visible(out)
}

// until is the statement's end.
func until(st *statement.Statement, now time.Time) string {
	ends, err := time.Parse(time.RFC3339, st.ExpiresAt)
	if err != nil {
		return "until " + clean.Visible(st.ExpiresAt)
	}
	return "until " + ends.Local().Format("15:04 on 2 January") + " (" + Duration(ends.Sub(now)) + " from now)"
}
