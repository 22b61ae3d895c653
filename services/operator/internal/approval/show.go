package approval

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
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

// Destructive is what DESTRUCTIVE means, spelled out.
const Destructive = "DESTRUCTIVE: this takes something away and cannot simply be undone."

// Card is one operation that waits, as a person sees it in a list.
type Card struct {
	Number    string
	Operation *vaultv1.Operation
	// Session is the session that asks, where the vault tells; SessionNumber counts the client's open sessions, the oldest is 1.
	Session       *vaultv1.OpenSession
	SessionNumber int
	// Agent is the client's agent that asks, as the record of the request has it; for a session that has ended, of which the vault
	// tells nothing any more.
	Agent string
	// Preview is the executor's answer; nil when it could not be had, and Problem says why.
	Preview *executorv1.PreviewCallResponse
	Problem string
}

// Tier is the tier that a person is warned by: policy's, where that is above the contract's.
func (c Card) Tier() optionsv1.Tier { return max(c.Operation.GetTier(), c.Operation.GetPolicyTier()) }

// IsDestructive reports whether the card needs the banner.
func (c Card) IsDestructive() bool { return c.Tier() >= optionsv1.Tier_TIER_DESTRUCTIVE }

// Title is the card's first line: number, tier, call and where it would happen.
func (c Card) Title() string {
	op := c.Operation
	tier := contract.TierName(c.Tier())
	if c.Tier() != op.GetTier() {
		tier += " (by your rules; " + contract.TierName(op.GetTier()) + " by itself)"
	}
	return fmt.Sprintf("%s  %s  %s %s  on %s", c.Number, tier, clean.Visible(op.GetTool().GetName()), Arguments(op.GetArguments()), Place(op.GetAudience()))
}

// AgentName is which of the client's agents asks, where it has any.
func (c Card) AgentName() string {
	if c.Session != nil {
		return c.Session.GetAgent()
	}
	return c.Agent
}

// who says who asks, and how far what they are let reaches.
func (c Card) who() string {
	op := c.Operation
	who := clean.Visible(op.GetPrincipal())
	if agent := c.AgentName(); agent != "" {
		who += "/" + clean.Visible(agent)
	}
	if name := op.GetClientName(); name != "" && name != op.GetPrincipal() {
		who += fmt.Sprintf(" (calls itself %q)", clean.Visible(name))
	}
	who += ", session "
	if c.SessionNumber > 0 {
		who += fmt.Sprintf("%d, ", c.SessionNumber)
	}
	who += clean.Visible(op.GetSession())
	if sender := c.Session.GetSender(); sender != nil {
		who += fmt.Sprintf(", for %q in %q (untrusted)", clean.Visible(sender.GetUser()), clean.Visible(sender.GetRoom()))
	}
	return who + ", " + statement.ChannelName(op.GetChannel()) + ", " + Reach(op.GetKeyBound())
}

// Reach says how far "this session" reaches.
func Reach(keyBound bool) string {
	if keyBound {
		return "key-bound: one durward mcp"
	}
	return "bearer client: this one call"
}

// Lines lays the card out, whole. Everything of the client's and the agent's is made visible.
func (c Card) Lines(now time.Time) []string {
	op := c.Operation
	indent := strings.Repeat(" ", len(c.Number)+2)
	lines := []string{c.Title()}
	add := func(line string) { lines = append(lines, indent+line) }
	if c.IsDestructive() {
		add(Destructive)
	}
	add(fmt.Sprintf("%s  · asked %s ago · expires %s", c.who(), Duration(now.Sub(op.GetAskedAt().AsTime())), Duration(op.GetExpiresAt().AsTime().Sub(now))))
	if c.Problem != "" {
		add("no plan: " + clean.Visible(c.Problem))
	} else {
		for _, step := range c.Preview.GetPlan() {
			add(clean.Visible(step))
		}
		for _, line := range c.planLines() {
			add(line)
		}
		for _, line := range c.fitLines() {
			add(line)
		}
		if entry := c.Preview.GetSubject().GetEntry(); len(entry) > 0 {
			digest := canonical.Digest(entry)
			add(clean.Visible(c.Preview.GetSubject().GetLabel()) + " · digest " + ShortDigest(digest[:]))
		}
	}
	if rule := op.GetRule(); rule != "" {
		add("you are asked because of " + clean.Visible(rule))
	}
	if reason := op.GetAgentReason(); reason != "" {
		add(fmt.Sprintf("agent says (untrusted): \"%s\"", quoted(reason)))
	}
	return lines
}

// Sheet is Lines, each with how it is meant.
func (c Card) Sheet(now time.Time) []Line {
	var out []Line
	lines := c.Lines(now)
	for i, text := range lines {
		line := Line{Text: text}
		switch {
		case i == 0 && c.IsDestructive(), strings.TrimSpace(text) == Destructive, Unfit(text):
			line.Kind = Danger
		case i == 0:
			line.Kind = Heading
		case i == len(lines)-1 && c.Operation.GetAgentReason() != "":
			line.Kind = Said // the last line
		}
		out = append(out, line)
	}
	return out
}

// quoted is an agent's text between quotes that it cannot close, without the padding that would lay out a text of its own. What is
// signed and recorded is the text itself.
func quoted(text string) string {
	return folded(clean.Visible(escapeQuotes.Replace(text)))
}

// escapeQuotes also doubles what escapes, so that no text of its own makes a quote look like the last.
var escapeQuotes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// fitLines say whether it fits now; none where the executor answers for another plan than the one that was asked for.
func (c Card) fitLines() []string {
	if call := (Call{Arguments: c.Operation.GetArguments()}); !call.planIs(c.Preview.GetSubject().GetEntry()) {
		return nil
	}
	return FitLines(c.Preview.GetFit())
}

// gigabytes writes MiB as GPUs are sold: 24576 is "24.0".
func gigabytes(mib uint32) string { return strconv.FormatFloat(float64(mib)/1024, 'f', 1, 64) }

// ShortDigest is a digest for the eye, "9c1e·44b0": to recognise something by, never to decide on. The whole digest stands in
// what is signed.
func ShortDigest(digest []byte) string {
	text := hex.EncodeToString(digest)
	if len(text) < 8 {
		return text
	}
	return text[:4] + "·" + text[len(text)-4:]
}

// Person names who decided as people do: of a refusal, which nobody signs, the vault knows the operator's certificate alone.
func Person(decidedBy string) string {
	if id, err := identity.Parse(decidedBy); err == nil && id.Role() == optionsv1.Role_ROLE_OPERATOR {
		return id.Instance()
	}
	return clean.Line(decidedBy, 64)
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
