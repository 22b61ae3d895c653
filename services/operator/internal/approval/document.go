package approval

import (
	"fmt"
	"slices"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/statement"
)

// Kind is how a line of a document is meant.
type Kind int

// The kinds of line.
const (
	Plain Kind = iota
	Heading
	Danger
	// Said is what somebody says who is not trusted.
	Said
)

// Line is one line of a document. It holds no hostile character.
type Line struct {
	Kind Kind
	Text string
}

// Document is everything that a person is shown before a statement is signed. Nothing of it is cut but in a Brief.
type Document struct {
	Statement *statement.Statement
	// About is what the statement is about: an agent's request, as its card has it, or a command.
	About []Line
	// Entries are the definitions whose digests the statement pins, or that stand behind a plan's digest.
	Entries []Entry
}

// Entry is one definition, as the sink has it, under a title.
type Entry struct {
	Title string
	JSON  []byte
}

// DocumentOf lays out a statement about one call: its target, and what each step of a plan runs.
func DocumentOf(st *statement.Statement, entry []byte, steps ...Step) Document {
	s := Document{Statement: st}
	if entry != nil {
		s.Entries = append(s.Entries, Entry{"What it acts on", entry})
	}
	for i, step := range steps {
		if step.Runs() {
			s.Entries = append(s.Entries, Entry{fmt.Sprintf("Step %d, %s %s", i+1, clean.Visible(step.Action), clean.Visible(step.Service.ID)), step.Entry})
		}
	}
	return s
}

// ScopeSheet lays out a scope: each definition that it may act on, once, where it names them; what it would act on now, where
// any will do.
func ScopeSheet(st *statement.Statement, previews []*executorv1.PreviewCallResponse) Document {
	s := Document{Statement: st}
	seen := map[[32]byte]bool{}
	for _, p := range previews {
		entry := p.GetSubject().GetEntry()
		if digest := canonical.Digest(entry); !seen[digest] {
			seen[digest] = true
			title := "It may act on " + clean.Visible(p.GetSubject().GetLabel())
			if st.AnySubject {
				title = "It would act now on " + clean.Visible(p.GetSubject().GetLabel())
			}
			s.Entries = append(s.Entries, Entry{title, entry})
		}
	}
	return s
}

// Lines lays the document out whole: what it is about, its entries, and the statement last.
func (s Document) Lines(now time.Time) ([]Line, error) {
	raw, err := s.Statement.Marshal()
	if err != nil {
		return nil, err
	}
	out := slices.Concat(s.About, s.terms(now))
	for _, e := range s.Entries {
		out = append(out, Line{Heading, e.Title + ", as " + s.keeper() + " has it (" + canonical.DigestText(e.JSON) + "):"})
		for _, text := range Lines(e.JSON) {
			out = append(out, Line{Plain, "  " + text})
		}
	}
	out = append(out, Line{Heading, "The statement that you sign, whole:"})
	for _, text := range Lines(raw) {
		out = append(out, Line{Plain, "  " + text})
	}
	if s.destructive() {
		out = append(out, Line{Danger, Destructive})
	}
	return out, nil
}

// keeper is what said what the entries are: what the operator accepted, of servers' tools, or the process that the statement is for.
func (s Document) keeper() string {
	if st := s.Statement; st.Tool != nil && contract.IsServerSource(st.Tool.Source) || len(st.Tools) > 0 && contract.IsServerSource(st.Tools[0].Source) {
		return downstream.LockFile
	}
	if id, err := identity.Parse(s.Statement.Audience); err == nil && id.Role() == optionsv1.Role_ROLE_EGRESS {
		return "egress"
	}
	return "the executor"
}

// destructive reports whether what the statement lets happen takes something away.
func (s Document) destructive() bool {
	if s.Statement.Tier == contract.TierName(optionsv1.Tier_TIER_DESTRUCTIVE) {
		return true
	}
	return slices.ContainsFunc(s.Statement.Tools, takesAway)
}

// takesAway reports whether a scope's tool is DESTRUCTIVE.
func takesAway(t statement.Tool) bool {
	tool, ok := contract.Lookup(t.Name)
	return ok && tool.Tier == optionsv1.Tier_TIER_DESTRUCTIVE
}
