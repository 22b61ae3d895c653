package history

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/logproof"
)

const (
	vaultID    = "spiffe://durward.local/vault/main"
	executorID = "spiffe://durward.local/executor/local"
	gatewayID  = "spiffe://durward.local/gateway/main"
	changed    = "0123456789abcdef0123456789abcdef"
)

// step is one record of a story, before a test spoils it.
type step struct {
	writer string
	record *auditv1.Record
	// wait passes before the log takes it.
	wait time.Duration
	// ahead is how far the writer's clock is ahead.
	ahead time.Duration
	// pruned: what the record said is gone, and so is its salt.
	pruned bool
}

// whole is the story of a change that went as it has to.
func whole(id string) []step {
	const arguments = `{"service_id":"chat"}`
	of := func(kind auditv1.Kind, body *auditv1.Body) *auditv1.Record {
		body.Principal, body.Session, body.Source = "claude", "s-1", "native"
		return &auditv1.Record{Kind: kind, OperationId: id, Tool: "start_service", Tier: optionsv1.Tier_TIER_WRITE, RequestId: "r-1", Body: body}
	}
	signed := &callv1.HumanStatement{Statement: []byte("{}"), Signature: []byte("x")}
	details := func() map[string]string {
		return map[string]string{"arguments_digest": canonical.DigestText([]byte(arguments)), "audience": executorID, "grant": "g"}
	}
	return []step{
		{writer: vaultID, record: of(auditv1.Kind_KIND_ASKED, &auditv1.Body{Arguments: arguments, Details: details()})},
		{writer: vaultID, record: of(auditv1.Kind_KIND_APPROVED, &auditv1.Body{Action: "approve", Statement: signed, Details: details()})},
		{writer: vaultID, record: of(auditv1.Kind_KIND_GRANTED, &auditv1.Body{Details: details()})},
		{writer: vaultID, record: of(auditv1.Kind_KIND_REDEEMED, &auditv1.Body{Details: details()})},
		{writer: executorID, record: of(auditv1.Kind_KIND_INTENT, &auditv1.Body{Arguments: arguments, Statement: signed})},
		{writer: executorID, record: of(auditv1.Kind_KIND_OUTCOME, &auditv1.Body{Arguments: arguments})},
	}
}

// pause is a record about no change, after a while.
func pause(after time.Duration) step {
	return step{writer: gatewayID, record: &auditv1.Record{Kind: auditv1.Kind_KIND_REFUSED, Body: &auditv1.Body{}}, wait: after}
}

// entries makes a log of steps, a second apart.
func entries(steps []step) []*auditv1.Entry {
	var out []*auditv1.Entry
	at := testNow
	for i, s := range steps {
		at = at.Add(time.Second + s.wait)
		s.record.Time = timestamppb.New(at.Add(s.ahead))
		entry := &auditv1.Entry{Index: uint64(i), Writer: s.writer, Record: s.record, LoggedAt: timestamppb.New(at), Salt: make([]byte, logproof.SaltSize)}
		if s.pruned {
			entry.Record.Body, entry.Salt = nil, nil
		}
		out = append(out, entry)
	}
	return out
}

func completed(steps []step) Completed {
	c := NewCompleteness()
	for _, e := range entries(steps) {
		c.Add(e)
	}
	return c.Finish()
}

func without(kinds ...auditv1.Kind) func([]step) []step {
	return func(s []step) []step {
		return slices.DeleteFunc(s, func(one step) bool { return slices.Contains(kinds, one.record.GetKind()) })
	}
}

func change(kind auditv1.Kind, f func(*step)) func([]step) []step {
	return func(s []step) []step {
		for i := range s {
			if s[i].record.GetKind() == kind {
				f(&s[i])
			}
		}
		return s
	}
}

// TestFindings makes each thing that can be wrong with a change, and nothing else: it is found, by the record that shows it.
func TestFindings(t *testing.T) {
	const hours = 3 * time.Hour
	end := func(kind auditv1.Kind, action string) func([]step) []step {
		return func(s []step) []step {
			return append(s, step{writer: vaultID, record: &auditv1.Record{Kind: kind, OperationId: changed, Tool: "start_service", Tier: optionsv1.Tier_TIER_WRITE, Body: &auditv1.Body{Action: action}}})
		}
	}
	later := func(s []step) []step { return append(s, pause(hours)) }
	prune := func(s []step) []step {
		for i := range s {
			s[i].pruned = true
		}
		return s
	}
	move := func(kind auditv1.Kind, to int) func([]step) []step {
		return func(s []step) []step {
			i := slices.IndexFunc(s, func(one step) bool { return one.record.GetKind() == kind })
			one := s[i]
			return slices.Insert(slices.Delete(s, i, i+1), to, one)
		}
	}
	const (
		asked, approved, granted, redeemed = auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_REDEEMED
		intent, outcome                    = auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME
	)
	for name, tt := range map[string]struct {
		spoil []func([]step) []step
		want  []string // kind and index
		open  int
	}{
		"as it has to be":          {},
		"nobody approved it":       {spoil: []func([]step) []step{without(approved)}, want: []string{"not approved 3"}},
		"nobody asked for it":      {spoil: []func([]step) []step{without(asked)}, want: []string{"not asked for 0"}},
		"no grant":                 {spoil: []func([]step) []step{without(granted)}, want: []string{"not granted 3"}},
		"no redemption":            {spoil: []func([]step) []step{without(redeemed)}, want: []string{"not redeemed 3"}},
		"no word of the vault's":   {spoil: []func([]step) []step{without(asked, approved, granted, redeemed)}, want: []string{"not approved 0", "not granted 0", "not redeemed 0"}},
		"approved afterwards":      {spoil: []func([]step) []step{move(approved, 4)}, want: []string{"before its approval 3"}},
		"redeemed afterwards":      {spoil: []func([]step) []step{move(redeemed, 4)}, want: []string{"not redeemed 3"}},
		"no statement":             {spoil: []func([]step) []step{change(approved, func(s *step) { s.record.Body.Statement = nil })}, want: []string{"not approved 1"}},
		"no statement at the sink": {spoil: []func([]step) []step{change(intent, func(s *step) { s.record.Body.Statement = nil })}, want: []string{"not approved 4"}},
		"unattended": {spoil: []func([]step) []step{
			without(asked), change(approved, func(s *step) { s.record.Body.Statement, s.record.Body.Action = nil, "unattended" }),
			change(intent, func(s *step) {
				s.record.Body.Statement, s.record.Body.Details = nil, map[string]string{"unattended": "yes"}
			}),
		}},
		"no intent":           {spoil: []func([]step) []step{without(intent)}, want: []string{"outcome without intent 4"}},
		"no outcome":          {spoil: []func([]step) []step{without(outcome), later}, want: []string{"intent without outcome 4"}},
		"no outcome yet":      {spoil: []func([]step) []step{without(outcome)}, open: 1},
		"found after a crash": {spoil: []func([]step) []step{change(outcome, func(s *step) { s.record.Kind = auditv1.Kind_KIND_RECOVERED }), later}},
		"spent but not acted": {spoil: []func([]step) []step{change(outcome, func(s *step) {
			s.record.Kind, s.record.Body.Reason = auditv1.Kind_KIND_SINK_REFUSED, "spent but not acted: halted"
		}), later}},
		"a grant never redeemed":     {spoil: []func([]step) []step{without(redeemed, intent, outcome), later}, want: []string{"grant never redeemed 2"}},
		"a grant not redeemed yet":   {spoil: []func([]step) []step{without(redeemed, intent, outcome)}, open: 1},
		"a grant that expired":       {spoil: []func([]step) []step{without(redeemed, intent, outcome), end(auditv1.Kind_KIND_EXPIRED, "expire"), later}},
		"redeemed, not begun":        {spoil: []func([]step) []step{without(intent, outcome), later}, want: []string{"redeemed and not begun 3"}},
		"redeemed by nobody's grant": {spoil: []func([]step) []step{without(granted, intent, outcome), end(auditv1.Kind_KIND_EXPIRED, "expire")}, want: []string{"not granted 2"}},
		"approved, not taken up":     {spoil: []func([]step) []step{without(granted, redeemed, intent, outcome), later}, want: []string{"approved and never taken up 1"}},
		"approved in vain": {spoil: []func([]step) []step{
			without(granted, redeemed, intent, outcome), end(auditv1.Kind_KIND_DENIED, "approve-given-up"), later,
		}, want: []string{"never decided 0"}},
		"a run in vain": {spoil: []func([]step) []step{
			without(asked, granted, redeemed, intent, outcome), change(approved, func(s *step) { s.record.Body.Action = "dangerous" }),
			end(auditv1.Kind_KIND_DENIED, "dangerous-given-up"), later,
		}},
		"a value that could not be recorded": {spoil: []func([]step) []step{
			end(auditv1.Kind_KIND_DENIED, "deliver-given-up"), move(auditv1.Kind_KIND_DENIED, 5),
		}},
		"asked in vain": {spoil: []func([]step) []step{
			without(approved, granted, redeemed, intent, outcome), end(auditv1.Kind_KIND_DENIED, "ask-given-up"), later,
		}},
		"approved, it may be": {spoil: []func([]step) []step{
			without(granted, redeemed, intent, outcome), end(auditv1.Kind_KIND_DENIED, "approve-unknown"), later,
		}},
		"approved after all": {spoil: []func([]step) []step{end(auditv1.Kind_KIND_DENIED, "approve-unknown"), move(auditv1.Kind_KIND_DENIED, 2), later}},
		"asked, it may be": {spoil: []func([]step) []step{
			without(approved, granted, redeemed, intent, outcome), end(auditv1.Kind_KIND_DENIED, "ask-unknown"), later,
		}},
		"never decided": {spoil: []func([]step) []step{without(approved, granted, redeemed, intent, outcome), later}, want: []string{"never decided 0"}},
		"waits":         {spoil: []func([]step) []step{without(approved, granted, redeemed, intent, outcome)}, open: 1},
		"denied":        {spoil: []func([]step) []step{without(approved, granted, redeemed, intent, outcome), end(auditv1.Kind_KIND_DENIED, "deny"), later}},
		"done after a no": {spoil: []func([]step) []step{
			without(redeemed), end(auditv1.Kind_KIND_DENIED, "deny"), move(auditv1.Kind_KIND_DENIED, 2),
		}, want: []string{"after its end 4", "not redeemed 4"}},
		"done twice":                {spoil: []func([]step) []step{func(s []step) []step { return append(s, whole(changed)[4]) }}, want: []string{"carried out twice 6"}},
		"by another sink":           {spoil: []func([]step) []step{change(intent, func(s *step) { s.writer = "spiffe://durward.local/executor/other" })}, want: []string{"records differ 4"}},
		"with other arguments":      {spoil: []func([]step) []step{change(intent, func(s *step) { s.record.Body.Arguments = `{"service_id":"evil"}` })}, want: []string{"records differ 4"}},
		"with redacted arguments":   {spoil: []func([]step) []step{change(intent, func(s *step) { s.record.Body.Arguments = `{"token":"[redacted:0123456789abcdef]"}` })}},
		"another tool":              {spoil: []func([]step) []step{change(intent, func(s *step) { s.record.Tool = "stop_service" })}, want: []string{"records differ 4"}},
		"for another":               {spoil: []func([]step) []step{change(redeemed, func(s *step) { s.record.Body.Principal = "mallory" })}, want: []string{"records differ 3"}},
		"approved by the gateway":   {spoil: []func([]step) []step{change(approved, func(s *step) { s.writer = gatewayID })}, want: []string{"another writer's record 1", "not approved 4"}},
		"begun by the vault":        {spoil: []func([]step) []step{change(intent, func(s *step) { s.writer = vaultID })}, want: []string{"another writer's record 4", "outcome without intent 5"}},
		"a body is gone":            {spoil: []func([]step) []step{change(approved, func(s *step) { s.record.Body = nil })}, want: []string{"not approved 1"}},
		"pruned":                    {spoil: []func([]step) []step{prune, later}},
		"denied, and pruned":        {spoil: []func([]step) []step{without(approved, granted, redeemed, intent, outcome), end(auditv1.Kind_KIND_DENIED, "deny"), prune, later}},
		"never decided, and pruned": {spoil: []func([]step) []step{without(approved, granted, redeemed, intent, outcome), prune, later}, want: []string{"never decided 0"}},
		"spent but not acted, and pruned": {spoil: []func([]step) []step{change(outcome, func(s *step) {
			s.record.Kind, s.record.Body.Reason = auditv1.Kind_KIND_SINK_REFUSED, "spent but not acted: halted"
		}), prune, later}},
		"a read": {spoil: []func([]step) []step{without(approved, intent, outcome), func(s []step) []step {
			for _, one := range s {
				one.record.Tier, one.record.Tool = 0, "service_logs"
			}
			return s
		}, later}},
	} {
		t.Run(name, func(t *testing.T) {
			steps := whole(changed)
			for _, f := range tt.spoil {
				steps = f(steps)
			}
			got := completed(steps)
			var found []string
			for _, p := range got.Findings {
				found = append(found, fmt.Sprint(p.Kind, " ", p.Index))
				if p.Text == "" || p.Writer == "" || p.Operation != changed {
					t.Errorf("a finding that says too little: %+v", p)
				}
			}
			slices.Sort(found)
			slices.Sort(tt.want)
			if diff := cmp.Diff(tt.want, found); diff != "" || got.Open != tt.open || got.Count != len(tt.want) {
				t.Errorf("%d open, want %d; findings (-want +got):\n%s", got.Open, tt.open, diff)
			}
		})
	}
}

// TestClocks: a writer's clock may be an hour wrong, or be put right, and the order of the log says what came first. A single record
// whose time is not its writer's clock is a finding.
func TestClocks(t *testing.T) {
	story := func(ahead func(i int) time.Duration) []step {
		var out []step
		for n := range 4 {
			for i, s := range whole(strings.Repeat(fmt.Sprint(n), 32)) {
				if s.writer == executorID {
					s.ahead = ahead(6*n + i)
				}
				out = append(out, s)
			}
		}
		return out
	}
	for name, tt := range map[string]struct {
		ahead func(i int) time.Duration
		found []string
		clock []Clock
	}{
		"right":  {func(int) time.Duration { return 0 }, nil, nil},
		"ahead":  {func(int) time.Duration { return time.Hour }, nil, []Clock{{executorID, "1h0m0s", 0}}},
		"behind": {func(int) time.Duration { return -time.Hour }, nil, []Clock{{executorID, "-1h0m0s", 0}}},
		"put right": {func(i int) time.Duration {
			if i < 8 {
				return -time.Hour
			}
			return 0
		}, nil, []Clock{{executorID, "0s", 1}}},
		"one record": {func(i int) time.Duration {
			if i == 10 {
				return -time.Hour
			}
			return 0
		}, []string{"time of its own 10"}, nil},
		"one record of a clock that is wrong": {func(i int) time.Duration {
			if i == 10 {
				return 0
			}
			return -time.Hour
		}, []string{"time of its own 10"}, []Clock{{executorID, "-1h0m0s", 0}}},
	} {
		got := completed(story(tt.ahead))
		var found []string
		for _, p := range got.Findings {
			found = append(found, fmt.Sprint(p.Kind, " ", p.Index))
		}
		if diff := cmp.Diff(tt.found, found); diff != "" || cmp.Diff(tt.clock, got.Clocks) != "" {
			t.Errorf("%s: clocks %v (-want +got):\n%s", name, got.Clocks, diff)
		}
	}
	// The same hour does not hide an effect that came first.
	early := whole(changed)
	early[1], early[4] = early[4], early[1]
	early[1].ahead, early[4].ahead = time.Hour, -time.Hour
	if got := completed(early); got.Count == 0 || !slices.ContainsFunc(got.Findings, func(p Problem) bool { return p.Kind == FoundTooEarly && p.Index == 1 }) {
		t.Errorf("findings %v", got.Findings)
	}
}

// TestComplete proves a log with a gap, online and as a file: the gap is named, the rest is proved, and without asking for it a gap is
// an error as ever.
func TestComplete(t *testing.T) {
	l := newLog(t)
	for _, s := range whole(changed) {
		s.record.Time = timestamppb.New(testNow)
		s.record.Body.Statement = nil
		l.addBy(s.writer, s.record)
	}
	hole := &auditv1.Record{Kind: auditv1.Kind_KIND_NOTE, Sequence: 3, Time: timestamppb.New(testNow), Body: &auditv1.Body{}}
	l.add(hole) // the operator's first record is its third
	check := func(report Report, err error) {
		t.Helper()
		if err != nil || report.Complete == nil || report.Complete.Operations != 1 {
			t.Fatalf("%+v, %v", report, err)
		}
		var found []string
		for _, p := range report.Complete.Findings {
			found = append(found, p.Kind)
		}
		if diff := cmp.Diff([]string{FoundNotApproved, FoundNotApproved, FoundGap}, found); diff != "" || report.Complete.Findings[2].Writer != writer {
			t.Errorf("findings %v: %s", report.Complete.Findings, diff)
		}
	}
	own := l.open(t.TempDir())
	check(own.Verify(context.Background(), l.export(0), own.Verifier().Complete()))
	if _, err := own.Verify(context.Background(), l.export(0), own.Verifier()); err == nil {
		t.Error("a gap passes")
	}
	l.must(own.Close())
	var file bytes.Buffer
	l.must(WriteHead(&file, l.checkpoint()))
	for _, e := range l.entries {
		l.must(WriteEntry(&file, e))
	}
	check(VerifyFile(&file, NewVerifier(l.kit.Trust.Current()).Complete()))
}
