package store

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/database"
	"github.com/pressly/goose/v3"
)

const (
	pending  = vaultv1.OperationState_OPERATION_STATE_PENDING
	approved = vaultv1.OperationState_OPERATION_STATE_APPROVED
	running  = vaultv1.OperationState_OPERATION_STATE_RUNNING
	done     = vaultv1.OperationState_OPERATION_STATE_DONE
	denied   = vaultv1.OperationState_OPERATION_STATE_DENIED
)

func open(t *testing.T) (*Store, *sql.DB) {
	t.Helper()
	dir := t.TempDir()
	db, err := database.Open(t.Context(), database.Config{
		Path: filepath.Join(dir, "vault.db"), StateDir: dir, Migrations: Migrations(), Service: "the vault",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s, err := New(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	return s, db
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

func TestLifeOfAnOperation(t *testing.T) {
	s, _ := open(t)
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
func TestStatementWorksOnce(t *testing.T) {
	s, _ := open(t)
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

func TestEndMovesAllOrNone(t *testing.T) {
	s, _ := open(t)
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

func TestEpochNeverFalls(t *testing.T) {
	s, _ := open(t)
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

func TestPrune(t *testing.T) {
	s, db := open(t)
	ctx := t.Context()
	old, young := full("old"), full("young")
	young.AskedAt = old.AskedAt.Add(time.Hour)
	for _, o := range []*Operation{old, young} {
		must(t, s.InsertCommand(ctx, o, UsedStatement{Digest: []byte(o.ID), OperationID: o.ID, UsedAt: o.AskedAt}))
		must(t, s.Spend(ctx, Spend{OperationID: o.ID, Use: 1, At: o.AskedAt}))
	}
	must(t, s.Prune(ctx, old.AskedAt.Add(time.Minute)))
	for _, table := range []string{"operations", "spent", "statements"} {
		var left string
		must(t, db.QueryRowContext(ctx, "SELECT group_concat(operation_id) FROM "+table).Scan(&left))
		if left != "young" {
			t.Errorf("%s holds %q", table, left)
		}
	}
}

func TestOperationsAreNewestFirst(t *testing.T) {
	s, _ := open(t)
	ctx := t.Context()
	for i, id := range []string{"a", "b", "c"} {
		o := full(id)
		o.AskedAt = o.AskedAt.Add(time.Duration(i) * time.Second)
		must(t, s.Insert(ctx, o))
	}
	list, err := s.Operations(ctx, 2, pending, running)
	must(t, err)
	if len(list) != 2 || list[0].ID != "c" || list[1].ID != "b" {
		t.Errorf("%v", list)
	}
	if list, err := s.Operations(ctx, 2); err != nil || len(list) != 0 {
		t.Errorf("no state: %v, %v", list, err)
	}
}

// Each migration can be taken back, and taken again, without a trace.
func TestMigrationsDownAndUp(t *testing.T) {
	_, db := open(t)
	ctx := t.Context()
	before := schema(t, db)
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, Migrations(), goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	must(t, err)
	if _, err := provider.DownTo(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if left := schema(t, db); len(left) != 0 {
		t.Errorf("left after going down: %v", left)
	}
	if _, err := provider.Up(ctx); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, schema(t, db)); diff != "" {
		t.Errorf("after down and up (-want +got):\n%s", diff)
	}
}

func schema(t *testing.T, db *sql.DB) map[string]string {
	t.Helper()
	rows, err := db.QueryContext(context.Background(), `SELECT name, coalesce(sql, '') FROM sqlite_master
		WHERE name NOT LIKE 'goose%' AND name NOT LIKE 'sqlite_%'`)
	must(t, err)
	defer rows.Close()
	out := map[string]string{}
	for rows.Next() {
		var name, text string
		must(t, rows.Scan(&name, &text))
		out[name] = text
	}
	must(t, rows.Err())
	return out
}

func TestNewerStateIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "vault.db")
	newer := fstest.MapFS{"00001_vault.sql": &fstest.MapFile{Data: []byte("-- +goose Up\nSELECT 1;\n")}, "00999_future.sql": &fstest.MapFile{Data: []byte("-- +goose Up\nSELECT 1;\n")}}
	db, err := database.Open(t.Context(), database.Config{Path: path, StateDir: dir, Migrations: newer, Service: "the vault"})
	must(t, err)
	must(t, db.Close())
	_, err = database.Open(t.Context(), database.Config{Path: path, StateDir: dir, Migrations: Migrations(), Service: "the vault"})
	if !errors.Is(err, database.ErrNewerSchema) {
		t.Errorf("error %v", err)
	}
}
