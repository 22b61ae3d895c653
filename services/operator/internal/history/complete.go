package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/logproof"
)

// Completed is what was found of the stories that a log tells: whether what each writer says of an operation fits what the others say.
type Completed struct {
	// Operations counts changes that somebody asked for or carried out.
	Operations int `json:"operations"`
	// Open counts those that may go on: they lack their end, and the log is not older than that allows.
	Open int `json:"open"`
	// Count is how many findings there are, and Findings lists the first of them.
	Count    int       `json:"findings_count"`
	Findings []Problem `json:"findings,omitempty"`
	// Clocks are the writers whose clocks differ from the log's. That is no finding: the order of records is the log's.
	Clocks []Clock `json:"clocks,omitempty"`
}

// Problem is a finding about an operation or a writer.
type Problem struct {
	// Kind is one word or a few for what it is, the same in each version.
	Kind string `json:"kind"`
	// Operation is "" where it is about a writer.
	Operation string `json:"operation,omitempty"`
	Index     uint64 `json:"index"`
	Writer    string `json:"writer"`
	Text      string `json:"text"`
}

// Clock is how far a writer's clock is ahead of the log's; negative: behind.
type Clock struct {
	Writer string `json:"writer"`
	Ahead  string `json:"ahead"`
	// Steps is how often it was put forward or back.
	Steps int `json:"steps,omitempty"`
}

// Kinds of findings.
const (
	FoundGap          = "gap"
	FoundNotApproved  = "not approved"
	FoundTooEarly     = "before its approval"
	FoundEnded        = "after its end"
	FoundNotGranted   = "not granted"
	FoundNotRedeemed  = "not redeemed"
	FoundGrantUnused  = "grant never redeemed"
	FoundNotBegun     = "redeemed and not begun"
	FoundNotAsked     = "not asked for"
	FoundUndecided    = "never decided"
	FoundUnclaimed    = "approved and never taken up"
	FoundNoIntent     = "outcome without intent"
	FoundNoOutcome    = "intent without outcome"
	FoundTwice        = "carried out twice"
	FoundMismatch     = "records differ"
	FoundWrongWriter  = "another writer's record"
	FoundBackdated    = "time of its own"
	maxProblems       = 200
	openFor           = time.Hour
	clockNoise        = 2 * time.Minute
	outlier           = 10 * time.Minute
	neverDecidedAfter = 2 * time.Hour
)

// Completeness follows every operation through the records of all writers. What comes before what is the order of the log; writers'
// clocks prove nothing. It runs beside a proof of the log, and is worth as much as that.
type Completeness struct {
	operations map[string]*operation
	writers    map[string]*clock
	found      []Problem
	count      int
	now        time.Time // the log's newest
}

// place is where a record is; the zero value is nowhere.
type place struct {
	index  uint64
	at     time.Time // by the log's clock
	writer string
	there  bool
}

func placeOf(e *auditv1.Entry) place {
	return place{e.GetIndex(), e.GetLoggedAt().AsTime(), e.GetWriter(), true}
}

// operation is what the log says of one.
type operation struct {
	first                                                        place
	asked, approved, granted, redeemed, intent, outcome, refused place
	// ended: by a human's no, by its time or by its agent.
	ended place
	// wants is what it was about when it was first heard of.
	tool, principal, session, arguments, audience string
}

// clock is a writer's, as its records tell.
type clock struct {
	ahead time.Duration // the most that a record's time was ahead of the log's: waiting makes it less
	any   bool
	steps int
	// before is the newest record that was sent at once and agrees with others; owing the one after it, if it does not agree.
	before, owing *sample
}

// sample is a record that its writer sent at once.
type sample struct {
	place
	ahead     time.Duration
	operation string
}

// NewCompleteness returns one that has seen nothing.
func NewCompleteness() *Completeness {
	return &Completeness{operations: map[string]*operation{}, writers: map[string]*clock{}}
}

// Gap takes an entry whose sequence is not the one after the writer's last.
func (c *Completeness) Gap(e *auditv1.Entry, last uint64) {
	sequence := e.GetRecord().GetSequence()
	text := fmt.Sprintf("it wrote %d after %d: %s not in the log", sequence, last, clean.Count(sequence-last-1, "record of it is", "records of it are"))
	if sequence <= last {
		text = fmt.Sprintf("it wrote %d after %d: a sequence came twice", sequence, last)
	}
	c.report(FoundGap, "", placeOf(e), "%s", text)
}

func (c *Completeness) report(kind, id string, at place, format string, args ...any) {
	c.count++
	if len(c.found) < maxProblems {
		c.found = append(c.found, Problem{kind, id, at.index, at.writer, clean.Line(fmt.Sprintf(format, args...), 300)})
	}
}

// vaultKinds and sinkKinds are the steps of an operation, by whoever writes them.
var (
	vaultKinds = []auditv1.Kind{
		auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_REDEEMED, auditv1.Kind_KIND_DENIED,
		auditv1.Kind_KIND_EXPIRED, auditv1.Kind_KIND_WITHDRAWN,
	}
	sinkKinds = []auditv1.Kind{auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_RECOVERED, auditv1.Kind_KIND_SINK_REFUSED}
)

// Add takes the next entry of the log.
func (c *Completeness) Add(e *auditv1.Entry) {
	r := e.GetRecord()
	c.now = e.GetLoggedAt().AsTime()
	c.time(e)
	id, kind := r.GetOperationId(), r.GetKind()
	vaults, sinks := slices.Contains(vaultKinds, kind), slices.Contains(sinkKinds, kind)
	if id == "" || !vaults && !sinks {
		return
	}
	role := optionsv1.Role_ROLE_UNSPECIFIED
	if who, err := identity.Parse(e.GetWriter()); err == nil {
		role = who.Role()
	}
	if vaults && role != optionsv1.Role_ROLE_VAULT || sinks && role != optionsv1.Role_ROLE_EXECUTOR && role != optionsv1.Role_ROLE_EGRESS {
		c.report(FoundWrongWriter, id, placeOf(e), "it does not write records of kind %s", contract.WordOf(kind))
		return
	}
	if looks(r) {
		return // nobody has to agree to a read
	}
	o := c.operations[id]
	if o == nil {
		o = &operation{first: placeOf(e)}
		c.operations[id] = o
	}
	c.step(id, o, e)
	c.compare(id, o, e)
}

// looks reports whether a record is about a tool that changes nothing.
func looks(r *auditv1.Record) bool {
	if r.GetTier() != optionsv1.Tier_TIER_UNSPECIFIED {
		return r.GetTier() == optionsv1.Tier_TIER_READ
	}
	tool, known := contract.Lookup(r.GetTool())
	return known && tool.Tier == optionsv1.Tier_TIER_READ
}

// step writes down what the record is in the operation's story, and reports what cannot come where it comes.
func (c *Completeness) step(id string, o *operation, e *auditv1.Entry) {
	at, body := placeOf(e), e.GetRecord().GetBody()
	pruned := logproof.BodyMissing(e) // whether that was signed for is held against each record elsewhere
	first := func(p *place) {
		if !p.there {
			*p = at
		}
	}
	switch e.GetRecord().GetKind() {
	case auditv1.Kind_KIND_ASKED:
		first(&o.asked)
	case auditv1.Kind_KIND_APPROVED:
		first(&o.approved)
		if body.GetAction() == "approve" && !o.asked.there {
			c.report(FoundNotAsked, id, at, "it was approved, and nobody had asked for it")
		}
		if o.intent.there {
			c.report(FoundTooEarly, id, o.intent, "the effect began before anybody had approved it: that came with record %d", at.index)
		}
		if !pruned && body.GetStatement() == nil && body.GetAction() != "unattended" {
			c.report(FoundNotApproved, id, at, "no human's statement comes with the approval, and no file of theirs is named")
		}
	case auditv1.Kind_KIND_GRANTED:
		first(&o.granted)
		o.audience = cmp.Or(o.audience, body.GetDetails()["audience"])
	case auditv1.Kind_KIND_REDEEMED:
		first(&o.redeemed)
	case auditv1.Kind_KIND_DENIED:
		switch action := body.GetAction(); {
		case pruned || action == "deny":
			first(&o.ended)
		case action == "ask"+logproof.GivenUp:
			o.asked = place{} // it never waited for a human
		case !o.granted.there && strings.HasSuffix(action, logproof.GivenUp):
			o.approved = place{} // the approval came to nothing; what is given up behind a grant is a redemption or a value
		case strings.HasSuffix(action, logproof.Unknown):
			first(&o.refused) // it may have been done: nothing has to follow, and what does is judged as ever
		}
	case auditv1.Kind_KIND_EXPIRED, auditv1.Kind_KIND_WITHDRAWN:
		first(&o.ended)
	case auditv1.Kind_KIND_INTENT:
		c.intent(id, o, e)
	case auditv1.Kind_KIND_OUTCOME:
		if !o.intent.there {
			c.report(FoundNoIntent, id, at, "it ended, and no record says that it began")
		}
		first(&o.outcome)
	case auditv1.Kind_KIND_RECOVERED:
		first(&o.outcome)
	case auditv1.Kind_KIND_SINK_REFUSED:
		first(&o.refused)
		if o.intent.there && o.intent.writer == at.writer && (pruned || strings.HasPrefix(body.GetReason(), "spent but not acted")) {
			first(&o.outcome)
		}
	default:
	}
}

// intent holds the beginning of an effect to what has to come before it.
func (c *Completeness) intent(id string, o *operation, e *auditv1.Entry) {
	at, body := placeOf(e), e.GetRecord().GetBody()
	if o.intent.there {
		c.report(FoundTwice, id, at, "it began with record %d already", o.intent.index)
		return
	}
	o.intent = at
	if o.ended.there && !o.redeemed.there {
		c.report(FoundEnded, id, at, "the effect began after record %d had ended the operation", o.ended.index)
	}
	if !logproof.BodyMissing(e) && body.GetStatement() == nil && body.GetDetails()["unattended"] == "" {
		c.report(FoundNotApproved, id, at, "the process that carried it out recorded no human's statement")
	}
	if o.audience != "" && o.audience != at.writer {
		c.report(FoundMismatch, id, at, "the grant was for %s", o.audience)
	}
}

// compare holds what writers say of an operation to each other.
func (c *Completeness) compare(id string, o *operation, e *auditv1.Entry) {
	r, at := e.GetRecord(), placeOf(e)
	differs := func(what string, known *string, says string) {
		switch {
		case says == "" || strings.Contains(says, "[redacted:"):
		case *known == "":
			*known = says
		case *known != says:
			c.report(FoundMismatch, id, at, "its %s is %q, and was %q in record %d", what, clean.Line(says, 80), clean.Line(*known, 80), o.first.index)
		}
	}
	switch r.GetKind() {
	case auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_REDEEMED, auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME:
	default:
		return // another session may ask for the same, and a refused grant may say anything
	}
	differs("tool", &o.tool, r.GetTool())
	b := r.GetBody()
	differs("client", &o.principal, b.GetPrincipal())
	differs("session", &o.session, b.GetSession())
	differs("arguments' digest", &o.arguments, b.GetDetails()["arguments_digest"])
	// What was left out of a record is not what was done.
	if text := b.GetArguments(); r.GetKind() == auditv1.Kind_KIND_INTENT && text != "" && !strings.Contains(text, "[redacted:") {
		digest := canonical.DigestText([]byte(text))
		differs("arguments' digest", &o.arguments, digest)
	}
}

// time compares the record's own time with the log's.
func (c *Completeness) time(e *auditv1.Entry) {
	w := c.writers[e.GetWriter()]
	if w == nil {
		w = &clock{}
		c.writers[e.GetWriter()] = w
	}
	ahead := e.GetRecord().GetTime().AsTime().Sub(e.GetLoggedAt().AsTime())
	if !w.any || ahead > w.ahead {
		w.ahead, w.any = ahead, true
	}
	switch e.GetRecord().GetKind() {
	case auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_REDEEMED, auditv1.Kind_KIND_INTENT:
	default:
		return // it may have waited in a spool
	}
	now := &sample{placeOf(e), ahead, e.GetRecord().GetOperationId()}
	switch {
	case w.before == nil:
		w.before = now
	case w.owing == nil && far(now.ahead, w.before.ahead):
		w.owing = now // a step, or a record with a time of its own: the next one tells
	case w.owing == nil:
		w.before = now
	case !far(now.ahead, w.before.ahead):
		c.report(FoundBackdated, w.owing.operation, w.owing.place, "its time is %s off its writer's clock, by the records before and after it", (w.owing.ahead - w.before.ahead).Round(time.Second))
		w.before, w.owing = now, nil
	default:
		w.steps++
		w.before, w.owing = now, nil
	}
}

func far(a, b time.Duration) bool { return (a - b).Abs() > outlier }

// Finish reports what is left open.
func (c *Completeness) Finish() Completed {
	out := Completed{Operations: len(c.operations)}
	ids := slices.SortedFunc(maps.Keys(c.operations), func(a, b string) int {
		return cmp.Compare(c.operations[a].first.index, c.operations[b].first.index)
	})
	for _, id := range ids {
		if c.finish(id, c.operations[id]) {
			out.Open++
		}
	}
	for _, who := range slices.Sorted(maps.Keys(c.writers)) {
		w := c.writers[who]
		if w.before != nil {
			w.ahead = w.before.ahead
		}
		if w.ahead.Abs() > clockNoise || w.steps > 0 {
			out.Clocks = append(out.Clocks, Clock{who, w.ahead.Round(time.Second).String(), w.steps})
		}
	}
	out.Count, out.Findings = c.count, c.found
	slices.SortStableFunc(out.Findings, func(a, b Problem) int { return cmp.Compare(a.Index, b.Index) })
	return out
}

// finish reports what an operation's story lacks, and whether it may go on.
func (c *Completeness) finish(id string, o *operation) (open bool) {
	if o.intent.there {
		c.justified(id, o)
	}
	young := func(p place) bool { return c.now.Sub(p.at) < openFor }
	switch {
	case o.intent.there && !o.outcome.there:
		if young(o.intent) {
			return true
		}
		c.report(FoundNoOutcome, id, o.intent, "it began, and nothing says how it ended")
	case o.intent.there || o.outcome.there || o.ended.there || o.refused.there:
		// It has its end, or a sink said why not.
	case o.redeemed.there:
		if young(o.redeemed) {
			return true
		}
		c.report(FoundNotBegun, id, o.redeemed, "the grant was spent, and no record says what became of it")
	case o.granted.there:
		if young(o.granted) {
			return true
		}
		c.report(FoundGrantUnused, id, o.granted, "a grant was given out and never redeemed, and no record ends the operation")
	case o.approved.there:
		if young(o.approved) {
			return true
		}
		c.report(FoundUnclaimed, id, o.approved, "it was approved and neither granted nor ended")
	case o.asked.there:
		if c.now.Sub(o.asked.at) < neverDecidedAfter {
			return true
		}
		c.report(FoundUndecided, id, o.asked, "it was asked for, and neither decided nor ended")
	}
	if o.redeemed.there && !o.granted.there && !o.intent.there {
		c.report(FoundNotGranted, id, o.redeemed, "a grant was redeemed that nobody gave out")
	}
	return false
}

// justified reports what an effect lacks of what has to come before it in the log.
func (c *Completeness) justified(id string, o *operation) {
	for _, step := range []struct {
		kind, text string
		place
	}{
		{FoundNotApproved, "the effect began, and nobody had approved it", o.approved},
		{FoundNotGranted, "the effect began without a grant", o.granted},
		{FoundNotRedeemed, "the effect began, and its grant was not redeemed", o.redeemed},
	} {
		switch {
		case !step.there:
			c.report(step.kind, id, o.intent, "%s", step.text)
		case step.index > o.intent.index && step.kind != FoundNotApproved: // that is reported as too early
			c.report(step.kind, id, o.intent, "%s before that: it came with record %d", step.text, step.index)
		}
	}
}
