package approval

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/statement"
)

// Lines lays JSON out over several lines, whole, every hostile character made visible. What is not JSON comes out as one
// visible line.
func Lines(raw []byte) []string {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return []string{clean.Visible(string(raw))}
	}
	lines := strings.Split(b.String(), "\n")
	for i, line := range lines {
		lines[i] = clean.Visible(line)
	}
	return lines
}

// Arguments writes canonical arguments as "name=value name=value", every value as JSON unless it is a plain word.
func Arguments(raw []byte) string {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil {
		return clean.Visible(string(raw))
	}
	parts := make([]string, 0, len(object))
	for name, value := range object {
		text := string(value)
		var word string
		if json.Unmarshal(value, &word) == nil && word != "" && strings.Trim(word, plain) == "" {
			text = word
		}
		parts = append(parts, clean.Visible(name)+"="+clean.Visible(text))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:"

// Place is a sink's role and instance: "executor/local".
func Place(audience string) string {
	id, err := identity.Parse(audience)
	if err != nil {
		return clean.Visible(audience)
	}
	return identity.RoleName(id.Role()) + "/" + id.Instance()
}

// Duration writes minutes and seconds, "29:20", or hours before them.
func Duration(d time.Duration) string {
	s := int(max(d, 0) / time.Second)
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// Card is one operation that waits, as a person sees it in a list.
type Card struct {
	Number    string
	Operation *vaultv1.Operation
	// Preview is the executor's answer; nil when it could not be had, and Problem says why.
	Preview *executorv1.PreviewCallResponse
	Problem string
}

// Lines lays the card out. Everything of the client's and the agent's is made visible.
func (c Card) Lines(now time.Time) []string {
	op := c.Operation
	first := fmt.Sprintf("%s  %s  %s %s  on %s", c.Number, contract.TierName(op.GetTier()), clean.Visible(op.GetTool().GetName()),
		Arguments(op.GetArguments()), Place(op.GetAudience()))
	indent := strings.Repeat(" ", len(c.Number)+2)
	who := clean.Visible(op.GetPrincipal())
	if name := op.GetClientName(); name != "" && name != op.GetPrincipal() {
		who += fmt.Sprintf(" (calls itself %q)", clean.Visible(name))
	}
	how := "bearer client: this one call"
	if op.GetKeyBound() {
		how = "key-bound"
	}
	lines := []string{first, fmt.Sprintf("%s%s, session %s, %s, %s  · asked %s ago · expires %s", indent, who, clean.Visible(op.GetSession()),
		statement.ChannelName(op.GetChannel()), how, Duration(now.Sub(op.GetAskedAt().AsTime())), Duration(op.GetExpiresAt().AsTime().Sub(now)))}
	if c.Problem != "" {
		lines = append(lines, indent+"no plan: "+clean.Visible(c.Problem))
	} else {
		for _, step := range c.Preview.GetPlan() {
			lines = append(lines, indent+clean.Visible(step))
		}
		for _, line := range c.planLines() {
			lines = append(lines, indent+line)
		}
	}
	if reason := op.GetAgentReason(); reason != "" {
		lines = append(lines, indent+fmt.Sprintf("agent says (untrusted): \"%s\"", clean.Visible(reason)))
	}
	return lines
}

// shortDigest is how many characters of a plan's digest people are shown; `durward switch --plan` takes them.
const shortDigest = 12

// ShortPlan is the beginning of a plan's digest, for people.
func ShortPlan(digest string) string {
	digest = clean.Visible(digest)
	return digest[:min(len(digest), shortDigest)]
}

// planLines say what the steps of the plan that was asked for run, and whether it is still what the executor would do; none
// where no plan is named.
func (c Card) planLines() []string {
	call := Call{Arguments: c.Operation.GetArguments()}
	named := call.planDigest()
	if named == "" || c.Preview == nil {
		return nil
	}
	if !call.planIs(c.Preview.GetSubject().GetEntry()) {
		return []string{"NOT THE PLAN " + ShortPlan(named) + " THAT WAS ASKED FOR: the host or its catalogue has changed since; " +
			"it cannot be approved"}
	}
	steps, err := call.Steps(c.Preview)
	if err != nil {
		return []string{"IT CANNOT BE APPROVED: the executor does not show what the plan's steps would run"}
	}
	return append(StepLines(steps), "plan "+ShortPlan(named)+": what the executor would do now is what was asked for")
}
