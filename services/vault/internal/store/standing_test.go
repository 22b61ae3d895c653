package store

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What a human let a session do is evidence: it is kept once, with its end, and its statement works once.
func testStanding(t *testing.T, s *Store) {
	ctx := t.Context()
	at := time.Unix(1_800_000_000, 5).UTC()
	g := &Standing{
		ID: "one", Digest: []byte{1}, Kind: "scope", Operator: "alice", Principal: "claude", Session: "s-1", GrantedAt: at,
		Statement: []byte("{}"), Signature: []byte("sig"),
	}
	used := &UsedStatement{Digest: g.Digest, Kind: g.Kind, Operator: g.Operator, UsedAt: at}
	if was, err := s.StatementUsed(ctx, g.Digest); err != nil || was {
		t.Errorf("used before: %v, %v", was, err)
	}
	must(t, s.InsertStanding(ctx, g, used))
	again := *g
	again.ID = "two"
	if err := s.InsertStanding(ctx, &again, used); !errors.Is(err, ErrStatementUsed) {
		t.Errorf("used twice: %v", err)
	}
	if err := s.UseStatement(ctx, *used); !errors.Is(err, ErrStatementUsed) {
		t.Errorf("used twice: %v", err)
	}
	if was, err := s.StatementUsed(ctx, g.Digest); err != nil || !was {
		t.Errorf("used afterwards: %v, %v", was, err)
	}
	open, err := s.OpenStanding(ctx)
	must(t, err)
	if diff := cmp.Diff([]*Standing{g}, open); diff != "" {
		t.Errorf("open (-want +got):\n%s", diff)
	}
	must(t, s.EndStanding(ctx, "one", 3, "its time is over", at.Add(time.Hour)))
	must(t, s.EndStanding(ctx, "one", 4, "another reason", at.Add(2*time.Hour))) // it ended before
	kept, err := s.StandingOf(ctx, "s-1")
	must(t, err)
	g.Used, g.EndedAt, g.EndedWhy = 3, at.Add(time.Hour), "its time is over"
	if diff := cmp.Diff([]*Standing{g}, kept); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	if open, err := s.OpenStanding(ctx); err != nil || len(open) != 0 {
		t.Errorf("open after its end: %v, %v", open, err)
	}
	must(t, s.Prune(ctx, at.Add(time.Hour)))
	if kept, err := s.StandingOf(ctx, "s-1"); err != nil || len(kept) != 1 {
		t.Errorf("forgotten too early: %v, %v", kept, err)
	}
	must(t, s.Prune(ctx, at.Add(2*time.Hour)))
	if kept, err := s.StandingOf(ctx, "s-1"); err != nil || len(kept) != 0 {
		t.Errorf("%v left, %v", kept, err)
	}
}
