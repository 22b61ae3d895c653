// Package policy decides whether a call runs, waits for a human, or does not happen. The vault decides with it; the operator's
// program checks, explains and tests rules with it, so that both mean the same. It sees calls that are authenticated and validated
// already, and trusts nothing that an agent says about itself.
//
// The rules are Cedar (github.com/cedar-policy/cedar-go): what is built in (default.cedar), policy files, and what tools.yaml files
// compile to. Two questions are asked of a call, as two Cedar actions: may it be made at all (Action::"call:TOOL"), and may it run
// without a human (Action::"callWithoutApproval:TOOL"). What nothing permits is denied, and a forbid wins over any permit, so that
// no file lifts what is built in. A sink does not believe the answer Run for what changes the host: it asks for a human's statement
// or for an entry in its own file.
//
// Rules are text that people write, and files break: size, number and nesting are bounded before anything is parsed, every rule is
// checked against the contract's types before any of them counts, and a forbid that cannot be evaluated counts as matching.
package policy

import (
	"strings"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
)

// Verdict is what a policy says. The zero value denies.
type Verdict int

// The verdicts.
const (
	Deny Verdict = iota
	Run
	Ask
)

// String is the word that people see: "denied", "runs", "asks".
func (v Verdict) String() string {
	switch v {
	case Run:
		return "runs"
	case Ask:
		return "asks"
	default:
		return "denied"
	}
}

// freedom orders verdicts from the strictest to the loosest.
func (v Verdict) freedom() int {
	switch v {
	case Run:
		return 2
	case Ask:
		return 1
	default:
		return 0
	}
}

// Layer is where a rule comes from.
type Layer string

// The layers, in their order. Rules of all of them apply together.
const (
	BuiltIn Layer = "built-in"
	System  Layer = "system"
	// User binds the clients of one user.
	User Layer = "user"
	// Project binds the clients that a human trusted the project for, and can only tighten.
	Project Layer = "project"
)

func (l Layer) rank() int {
	switch l {
	case BuiltIn:
		return 0
	case System:
		return 1
	case User:
		return 2
	default:
		return 3
	}
}

// Source is one file of rules.
type Source struct {
	Layer Layer
	// User: whose clients the rules bind, in layer User.
	User string
	// Clients: whom the rules bind, in layer Project; empty: every client.
	Clients []string
	// Name stands for the file in rules and problems. It ends in ".cedar", or in ".yaml" for what tools.yaml may hold. A project has
	// YAML alone, with a key "settings" beside "tools" that is not looked at here.
	Name string
	Text []byte
}

// Rule says which rule decided, and where it stands. It is comparable.
type Rule struct {
	// ID is the rule's @id, "tools/TOOL/KEY" for what a tools.yaml says, or FILE#N for the Nth rule of a file that gives it none.
	ID    string
	Layer Layer
	// File and Line are empty and 0 for NoRule alone; a built-in rule stands in "default.cedar".
	File    string
	Line    int
	Forbids bool
	// Failed: the rule could not be evaluated on the call. A forbid counts as matching then, and a permit as not.
	Failed bool
}

// NoRule is the ID of what decides where no rule does: what nothing permits is denied.
const NoRule = "nothing-allows-it"

// Unreadable is the ID of what decides where a rule asks about arguments that policy cannot read.
const Unreadable = "unreadable-arguments"

// Counts say how often the client called the tool before this call, and when last; zero: never.
type Counts struct {
	Session, Day, Month uint32
	Last                time.Time
}

// Call is one call to decide on.
type Call struct {
	// Client, Agent and User are ids of clients.yaml; Agent and User may be empty.
	Client, Agent, User string
	Channel             callv1.Channel
	// ChannelName is the platform of a messaging client.
	ChannelName string
	KeyBound    bool
	// Remote: the caller reached this host from another machine, over whichever channel.
	Remote bool
	// Ceiling is the highest tier that the session may use.
	Ceiling optionsv1.Tier
	// Dangerous: the session is in dangerous mode now. For a tool that DangerousCovers does not take in it counts for nothing.
	Dangerous bool
	// DesktopAllowed: a human switched desktop control on for the client.
	DesktopAllowed bool
	Tool           contract.Tool
	// Arguments are in RFC 8785 form and validated; empty stands for {}.
	Arguments []byte
	Counts    Counts
	// Now is in the place whose days and hours rules mean.
	Now time.Time
}

// Decision is a verdict and why.
type Decision struct {
	Verdict Verdict
	Rule    Rule
	// Tier is the tool's, as policy sees it: the contract's, or a higher one that a tools.yaml gives.
	Tier optionsv1.Tier
	// RetryAfter is above zero with Deny alone, where only limits of a tools.yaml stand in the way; then the call may be made again.
	RetryAfter time.Duration
	// Reason is one clause for people: what the rule is about.
	Reason string
	// Silent: the rule says that agents are not told of it.
	Silent bool
}

// Told is what an agent is told of a denial: which rule, in words; empty for a silent one. Where a rule stands is not among it.
func (d Decision) Told() string {
	switch {
	case d.Silent:
		return ""
	case d.Rule.File != "" && strings.HasPrefix(d.Rule.ID, d.Rule.File+"#"):
		return strings.ReplaceAll(d.Reason, "the rule "+d.Rule.ID, "a rule without a name")
	case strings.Contains(d.Reason, d.Rule.ID):
		return d.Reason
	default:
		return d.Reason + " (" + d.Rule.ID + ")"
	}
}

// ActionName is the tool as actions and tools.yaml name it: a native tool's name, or SOURCE:NAME with the name that the source has for it.
func ActionName(tool contract.Tool) string {
	if tool.Foreign != nil {
		return tool.Source + ":" + tool.Foreign.Name
	}
	if tool.Source == contract.SourceNative || tool.Source == "" {
		return tool.Name
	}
	return tool.Source + ":" + tool.Name
}

// DangerousCovers reports whether dangerous mode is for the tool: for Durward's own alone, as every sink holds it to. What another's
// program does under a tool's name asks a human, whichever rule looks at dangerous mode.
func DangerousCovers(tool contract.Tool) bool {
	return tool.Source == contract.SourceNative || tool.Source == ""
}

// remote reports whether a call comes from elsewhere than the host; a channel that is not known counts as remote.
func remote(c *Call) bool {
	return c.Remote || c.Channel != callv1.Channel_CHANNEL_CLI && c.Channel != callv1.Channel_CHANNEL_DESKTOP_UI
}
