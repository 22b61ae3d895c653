package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

const (
	pending  = vaultv1.OperationState_OPERATION_STATE_PENDING
	approved = vaultv1.OperationState_OPERATION_STATE_APPROVED
	running  = vaultv1.OperationState_OPERATION_STATE_RUNNING
	done     = vaultv1.OperationState_OPERATION_STATE_DONE
	denied   = vaultv1.OperationState_OPERATION_STATE_DENIED
)

// suite is what every engine does alike. open opens an empty database, which this process leads.
func suite(t *testing.T, open func(t *testing.T) *Store) {
	for name, test := range map[string]func(*testing.T, *Store){
		"life of an operation": testLifeOfAnOperation, "a statement works once": testStatementWorksOnce, "end moves all or none": testEndMovesAllOrNone,
		"the epoch never falls": testEpochNeverFalls, "prune": testPrune, "newest first": testOperationsAreNewestFirst, "in pages": testOperationsInPages, "standing": testStanding,
		"uses": testUses, "in force": testInForce, "state": testState, "one of many spends": testOneSpends, "any text": testAnyText,
		"credentials": testCredentials, "tokens": testTokens,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func full(id string) *Operation {
	now := time.Unix(1_800_000_000, 123).UTC()
	return &Operation{
		ID: id, State: pending, Principal: "claude", Session: "s-1", Channel: callv1.Channel_CHANNEL_CLI, ClientName: "Claude",
		KeyBound: true, ToolName: "start_service", ToolSource: "native", ToolDigest: []byte{1}, Tier: optionsv1.Tier_TIER_WRITE,
		Arguments: []byte(`{"service_id":"a'; DROP TABLE operations; --"}`), ArgumentsDigest: []byte{2}, AgentReason: "why",
		Audience: "spiffe://d/executor/local", Epoch: 7, PolicyDigest: []byte{3}, RequestID: "r-1", AskedAt: now,
		ExpiresAt: now.Add(time.Hour), Joined: 4, Authority: ByScope, Dangerous: true, PolicyTier: optionsv1.Tier_TIER_DESTRUCTIVE, Rule: "rule",
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testLifeOfAnOperation(t *testing.T, s *Store) {
	ctx := t.Context()
	o := full("one")
	must(t, s.Insert(ctx, o))
	got, err := s.Operation(ctx, "one")
	must(t, err)
	if diff := cmp.Diff(o, got); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	if _, err := s.Operation(ctx, "two"); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown operation: %v", err)
	}
	if err := s.Insert(ctx, o); err == nil {
		t.Error("inserted twice")
	}
	when := o.AskedAt.Add(time.Minute)
	if err := s.Settle(ctx, "one", true, when); !errors.Is(err, ErrState) {
		t.Errorf("settled while pending: %v", err)
	}
	o.DecidedAt, o.DecidedBy, o.Statement, o.Signature, o.SubjectDigest = when, "alice", []byte("{}"), []byte("sig"), []byte{9}
	o.ExpiresAt = o.ExpiresAt.Add(-time.Minute)
	used := UsedStatement{Digest: []byte{5}, OperationID: "one", Kind: "approve", Operator: "alice", UsedAt: when}
	must(t, s.Approve(ctx, o, &used))
	o.State = approved
	got, err = s.Operation(ctx, "one")
	must(t, err)
	if diff := cmp.Diff(o, got); diff != "" {
		t.Errorf("approved (-want +got):\n%s", diff)
	}
	used.Digest = []byte{6}
	if err := s.Approve(ctx, o, &used); !errors.Is(err, ErrState) {
		t.Errorf("approved twice: %v", err)
	}
	spend := Spend{OperationID: "one", Use: 1, GrantID: "g", Audience: "x", At: when}
	must(t, s.Spend(ctx, spend))
	if err := s.Spend(ctx, spend); !errors.Is(err, ErrSpent) {
		t.Errorf("spent twice: %v", err)
	}
	back, err := s.Spent(ctx, "one", 1)
	must(t, err)
	if diff := cmp.Diff(spend, back); diff != "" {
		t.Errorf("spend (-want +got):\n%s", diff)
	}
	must(t, s.Settle(ctx, "one", true, when))
	if got, _ = s.Operation(ctx, "one"); got.State != done || !got.SettledOK || got.RedeemedAt != when || got.SettledAt != when {
		t.Errorf("settled as %+v", got)
	}
}

// A statement works once, over every operation and kind, and what fails with it changes nothing.
func testStatementWorksOnce(t *testing.T, s *Store) {
	ctx := t.Context()
	must(t, s.Insert(ctx, full("one")))
	must(t, s.Insert(ctx, full("two")))
	used := UsedStatement{Digest: []byte{5}, OperationID: "one", Kind: "approve", Operator: "alice", UsedAt: time.Unix(1, 0)}
	must(t, s.Approve(ctx, full("one"), &used))
	if err := s.Approve(ctx, full("two"), &used); !errors.Is(err, ErrStatementUsed) {
		t.Errorf("a second operation: %v", err)
	}
	if err := s.InsertCommand(ctx, full("three"), used); !errors.Is(err, ErrStatementUsed) {
		t.Errorf("a command: %v", err)
	}
	if err := s.SetControl(ctx, Control{Epoch: 2}, &used); !errors.Is(err, ErrStatementUsed) {
		t.Errorf("a resume: %v", err)
	}
	if o, err := s.Operation(ctx, "two"); err != nil || o.State != pending {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := s.Operation(ctx, "three"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the command's operation is there: %v", err)
	}
	if c, err := s.Control(ctx); err != nil || c.Epoch != 1 {
		t.Errorf("%+v, %v", c, err)
	}
}

func testEndMovesAllOrNone(t *testing.T, s *Store) {
	ctx := t.Context()
	must(t, s.Insert(ctx, full("one")))
	one, two := full("one"), full("two")
	one.State, two.State = denied, denied
	if err := s.End(ctx, pending, one, two); !errors.Is(err, ErrState) {
		t.Errorf("with one that is not there: %v", err)
	}
	if o, _ := s.Operation(ctx, "one"); o.State != pending {
		t.Errorf("moved to %s", o.State)
	}
	must(t, s.End(ctx, pending, one))
	if err := s.End(ctx, pending, one); !errors.Is(err, ErrState) {
		t.Errorf("twice: %v", err)
	}
}

func testEpochNeverFalls(t *testing.T, s *Store) {
	ctx := t.Context()
	want := Control{Epoch: 5, Halted: true, Reason: "why", ChangedBy: "alice", ChangedAt: time.Unix(9, 0).UTC()}
	must(t, s.SetControl(ctx, want, nil))
	got, err := s.Control(ctx)
	must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, epoch := range []uint64{4, 5} {
		if err := s.SetControl(ctx, Control{Epoch: epoch}, nil); !errors.Is(err, ErrState) {
			t.Errorf("epoch %d after 5: %v", epoch, err)
		}
	}
}

func testPrune(t *testing.T, s *Store) {
	ctx := t.Context()
	old, young := full("old"), full("young")
	young.AskedAt = old.AskedAt.Add(time.Hour)
	for _, o := range []*Operation{old, young} {
		must(t, s.InsertCommand(ctx, o, UsedStatement{Digest: []byte(o.ID), OperationID: o.ID, UsedAt: o.AskedAt}))
		must(t, s.Spend(ctx, Spend{OperationID: o.ID, Use: 1, At: o.AskedAt}))
	}
	must(t, s.Prune(ctx, old.AskedAt.Add(time.Minute)))
	for _, o := range []*Operation{old, young} {
		kept := o == young
		if _, err := s.Operation(ctx, o.ID); errors.Is(err, ErrNotFound) == kept {
			t.Errorf("the operation %s: %v", o.ID, err)
		}
		if _, err := s.Spent(ctx, o.ID, 1); errors.Is(err, ErrNotFound) == kept {
			t.Errorf("the spend key of %s: %v", o.ID, err)
		}
		if used, err := s.StatementUsed(ctx, []byte(o.ID)); err != nil || used != kept {
			t.Errorf("the statement of %s: %v, %v", o.ID, used, err)
		}
	}
}

func testOperationsAreNewestFirst(t *testing.T, s *Store) {
	ctx := t.Context()
	for i, id := range []string{"a", "b", "c"} {
		o := full(id)
		o.AskedAt = o.AskedAt.Add(time.Duration(i) * time.Second)
		must(t, s.Insert(ctx, o))
	}
	list, more, err := s.Operations(ctx, Page{Limit: 2}, pending, running)
	must(t, err)
	if len(list) != 2 || list[0].ID != "c" || list[1].ID != "b" || more {
		t.Errorf("%v, %v", list, more)
	}
	if list, _, err := s.Operations(ctx, Page{Limit: 2}); err != nil || len(list) != 0 {
		t.Errorf("no state: %v, %v", list, err)
	}
}

// Pages that follow each other hold everything once, also of what was asked for at the same moment.
func testOperationsInPages(t *testing.T, s *Store) {
	ctx := t.Context()
	for i, id := range []string{"d", "b", "c", "a", "e"} {
		o := full(id)
		o.AskedAt = o.AskedAt.Add(time.Duration(i/3) * time.Second)
		o.Arguments = make([]byte, 1000)
		must(t, s.Insert(ctx, o))
	}
	one := full("d")
	one.Arguments = make([]byte, 1000)
	for _, bytes := range []int{1, 2*one.size() + 1, 1 << 20} {
		var got []string
		for page, more := (Page{Limit: 10, Bytes: bytes}), true; more && len(got) < 10; {
			var list []*Operation
			var err error
			list, more, err = s.Operations(ctx, page, pending)
			must(t, err)
			if n := len(list); n == 0 || n > max(1, bytes/one.size()) {
				t.Fatalf("%d bytes: a page of %d operations", bytes, n)
			}
			for _, o := range list {
				got = append(got, o.ID)
			}
			page.After = got[len(got)-1]
		}
		if want := []string{"a", "e", "b", "c", "d"}; !slices.Equal(got, want) {
			t.Errorf("pages of %d bytes: %v, want %v", bytes, got, want)
		}
	}
	if _, _, err := s.Operations(ctx, Page{Limit: 10, After: "unknown"}, pending); !errors.Is(err, ErrNotFound) {
		t.Errorf("behind what there is not: %v", err)
	}
}

// What is counted of a day is changed as a whole, and other days stay as they are.
func testUses(t *testing.T, s *Store) {
	ctx := t.Context()
	for _, day := range []string{"2026-01-31", "2026-02-01", "2026-02-01"} {
		must(t, s.ChangeUse(ctx, "claude", "switch_mode", day, func(u *Use) { u.Calls, u.Last = u.Calls+1, u.Last+10 }))
	}
	must(t, s.ChangeUse(ctx, "other", "switch_mode", "2026-02-01", func(u *Use) { u.Calls = 9 }))
	want := []Use{{"2026-01-31", 1, 10}, {"2026-02-01", 2, 20}}
	got, err := s.Uses(ctx, "claude", "switch_mode")
	must(t, err)
	slices.SortFunc(got, func(a, b Use) int { return strings.Compare(a.Day, b.Day) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	must(t, s.PruneUses(ctx, "2026-02-01"))
	if got, err := s.Uses(ctx, "claude", "switch_mode"); err != nil || len(got) != 1 {
		t.Errorf("after a prune: %v, %v", got, err)
	}
}

func testInForce(t *testing.T, s *Store) {
	ctx, now := t.Context(), time.Unix(9, 0)
	for _, digest := range []string{"one", "two"} {
		must(t, s.SetInForce(ctx, "security.yaml", "system", digest, now))
	}
	must(t, s.SetInForce(ctx, "tools.yaml", "system", "one", now))
	must(t, s.SetInForce(ctx, "tools.yaml", "", "", now))
	got, err := s.InForce(ctx)
	must(t, err)
	if diff := cmp.Diff(map[string]string{"security.yaml": "two"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Each change of what carries authority is counted, and what is refused is not.
func testState(t *testing.T, s *Store) {
	ctx := t.Context()
	before, err := s.State(ctx)
	must(t, err)
	must(t, s.Insert(ctx, full("one")))
	must(t, s.Spend(ctx, Spend{OperationID: "read", Use: 1}))
	after, err := s.State(ctx)
	must(t, err)
	if after.Revision != before.Revision+2 || after.Digest == before.Digest || after.Rows["operations"] != 1 || after.Rows["spent"] != 1 {
		t.Errorf("%+v after %+v", after, before)
	}
	if err := s.Spend(ctx, Spend{OperationID: "read", Use: 1}); !errors.Is(err, ErrSpent) {
		t.Error(err)
	}
	if err := s.Settle(ctx, "one", true, time.Now()); !errors.Is(err, ErrState) {
		t.Error(err)
	}
	if again, err := s.State(ctx); err != nil || !cmp.Equal(after, again) {
		t.Errorf("after what was refused: %v, %s", err, cmp.Diff(after, again))
	}
	if s.Digest("user", "a") == s.Digest("room", "a") || len(s.Digest("user", "a")) != 32 {
		t.Error("digests of two purposes are alike")
	}
}

// Of any number that redeem one key at once, one does.
func testOneSpends(t *testing.T, s *Store) {
	var spent, refused atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			switch err := s.Spend(t.Context(), Spend{OperationID: "one", Use: 1, GrantID: "g", At: time.Now()}); {
			case err == nil:
				spent.Add(1)
			case errors.Is(err, ErrSpent):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if spent.Load() != 1 || refused.Load() != 19 {
		t.Errorf("%d spent it, %d were refused", spent.Load(), refused.Load())
	}
}

// What strangers call themselves is kept, whatever it is, and the row stays sound.
func testAnyText(t *testing.T, s *Store) {
	for i, name := range []string{"", "'; DROP TABLE operations; --", "a\x00b", "\xff\xfe", "?", "$1", "\U0001F600"} {
		o := full(fmt.Sprint(i))
		o.ClientName, o.Arguments = name, []byte(name)
		must(t, s.Insert(t.Context(), o))
		got, err := s.Operation(t.Context(), o.ID)
		must(t, err)
		if string(got.Arguments) != name || name != got.ClientName && utf8.ValidString(name) && !strings.Contains(name, "\x00") {
			t.Errorf("%q is %q", name, got.ClientName)
		}
	}
}

func testTokens(t *testing.T, s *Store) {
	ctx := t.Context()
	when := time.Unix(1_800_000_000, 5).UTC()
	list := []Token{{Ref: "tkn_a", Value: []byte{1, 0, 2}, At: when}, {Ref: "tkn_b", Value: []byte{3}, At: when.Add(time.Second)}}
	must(t, s.KeepTokens(ctx, "s-1", list))
	must(t, s.KeepTokens(ctx, "s-1", []Token{{Ref: "tkn_a", Value: []byte{9}, At: when}})) // stays
	must(t, s.KeepTokens(ctx, "s-2", list[:1]))
	read := func(session string, want ...Token) {
		t.Helper()
		got, err := s.Tokens(ctx, session)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s has, %v (-want +got):\n%s", session, err, diff)
		}
	}
	read("s-1", list...)
	sessions, err := s.TokenSessions(ctx)
	if slices.Sort(sessions); err != nil || !slices.Equal(sessions, []string{"s-1", "s-2"}) {
		t.Errorf("sessions: %v, %v", sessions, err)
	}
	must(t, s.ForgetTokens(ctx, "s-2", "s-9"))
	read("s-2")
	read("s-1", list...)
}
