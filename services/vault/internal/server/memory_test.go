package server

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/store"
)

// chronicle is a History.
type chronicle struct {
	control  recorder.Control
	told     recorder.State
	approved *auditv1.Entry
	redeemed *auditv1.Entry
	ended    *auditv1.Entry
	err      error // of the switch
}

func (c chronicle) LastControl(context.Context) (recorder.Control, error) { return c.control, c.err }

func (c chronicle) LastState(context.Context) (recorder.State, uint64, error) { return c.told, 9, nil }

func (c chronicle) Last(_ context.Context, kind auditv1.Kind, _ string) (*auditv1.Entry, error) {
	if kind == auditv1.Kind_KIND_REDEEMED {
		return c.redeemed, nil
	}
	if kind == auditv1.Kind_KIND_DENIED {
		return c.ended, nil
	}
	return c.approved, nil
}

// knows has the vault compare itself with that log.
func (v *vault) knows(log chronicle) {
	v.server.History = log
	v.server.keeper = v.server.newKeeper()
}

// A vault whose database knows less than the log has of it is halted above every epoch that the log knows.
func TestStateThatLostItsMemoryIsHalted(t *testing.T) {
	for name, c := range map[string]struct {
		log   func(now time.Time) chronicle
		epoch uint64 // 1: it is not halted
	}{
		"nothing happened yet": {func(time.Time) chronicle { return chronicle{} }, 1},
		"an epoch is gone":     {func(time.Time) chronicle { return chronicle{control: recorder.Control{Index: 3, Epoch: 6}} }, 7},
		"a halt is gone": {func(time.Time) chronicle {
			return chronicle{control: recorder.Control{Index: 3, Epoch: 1, Halted: true}}
		}, 2},
		"an operation is gone": {func(now time.Time) chronicle { return chronicle{approved: approval(now, time.Hour)} }, 2},
		"an operation that was given up, before anything was spent": {func(now time.Time) chronicle {
			return chronicle{approved: approval(now, time.Hour), ended: gave("given-up", 10)}
		}, 1},
		"an operation of which nothing says how it ended": {func(now time.Time) chronicle {
			return chronicle{approved: approval(now, time.Hour), ended: gave("unknown", 10)}
		}, 2},
		"an operation that was given up before its approval": {func(now time.Time) chronicle {
			return chronicle{approved: approval(now, time.Hour), ended: gave("given-up", 8)}
		}, 2},
		"an operation that was given up, and a spend key is gone": {func(now time.Time) chronicle {
			return chronicle{approved: approval(now, time.Hour), redeemed: redemption(now, 2*time.Hour, "2"), ended: gave("given-up", 10)}
		}, 2},
		"an operation and a spend key are gone": {func(now time.Time) chronicle {
			return chronicle{approved: approval(now, time.Hour), redeemed: redemption(now, 2*time.Hour, "2")}
		}, 2},
		"an operation is gone, and who knows what was spent": {func(now time.Time) chronicle {
			return chronicle{approved: approval(now, time.Hour), redeemed: redemption(now, 2*time.Hour, "one")}
		}, 2},
		"the operation was never there, and what was spent is": {func(now time.Time) chronicle {
			return chronicle{approved: approval(now, time.Hour), redeemed: redemption(now, 2*time.Hour, "1")}
		}, 1},
		"the operation was never there, and what was spent was pruned": {func(now time.Time) chronicle {
			return chronicle{approved: approval(now, time.Hour), redeemed: redemption(now, operation.Kept+time.Hour, "2")}
		}, 1},
		"an older state": {func(time.Time) chronicle { return chronicle{told: recorder.State{Revision: 1 << 40}} }, 2},
		"a human resumed since": {func(now time.Time) chronicle {
			return chronicle{control: recorder.Control{Index: 12, Epoch: 1}, told: recorder.State{Revision: 1 << 40}, approved: approval(now, time.Hour)}
		}, 1},
		"it may be pruned": {func(now time.Time) chronicle { return chronicle{approved: approval(now, 6*24*time.Hour)} }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newVault(t)
			f.must(f.store.Spend(t.Context(), store.Spend{OperationID: "spent", Use: 1, At: f.clock.Now()}))
			f.knows(c.log(f.clock.Now()))
			if err := f.server.Compare(t.Context()); err != nil {
				t.Fatal(err)
			}
			now := f.server.Halt.Now()
			if now.Epoch != c.epoch || now.Halted != (c.epoch > 1) {
				t.Errorf("it is %+v", now)
			}
			if recorded := f.audit.of(auditv1.Kind_KIND_HALTED); now.Halted && (len(recorded) == 0 || recorded[0].GetBody().GetReason() == "") {
				t.Errorf("it recorded %v", recorded)
			}
		})
	}
}

// An older copy that a human resumes before it was held against the log is halted then, above what was signed for: what the log knew before the
// resumption would be no matter afterwards.
func TestAnOlderCopyIsNotResumedUnseen(t *testing.T) {
	v := newVault(t)
	_, err := v.control().Halt(t.Context(), &vaultv1.HaltRequest{Reason: "panic"})
	v.must(err)
	resume := func() error {
		_, err := v.control().Resume(t.Context(), &vaultv1.ResumeRequest{Statement: v.resumption(func(s *statement.Statement) { s.Epoch = 9 })})
		return err
	}
	v.knows(chronicle{told: recorder.State{Revision: 1 << 40}, err: errors.New("audit is away")})
	wantCode(t, resume(), callv1.Code_CODE_AUDIT_UNAVAILABLE)
	v.knows(chronicle{told: recorder.State{Revision: 1 << 40}})
	wantCode(t, resume(), callv1.Code_CODE_CONFLICT)
	if now := v.server.Halt.Now(); !now.Halted || now.Epoch != 3 || !strings.Contains(now.Reason, "older copy: the log has revision") {
		t.Errorf("after it: %+v", now)
	}
	if recorded := v.audit.of(auditv1.Kind_KIND_RESUMED); len(recorded) > 0 {
		t.Errorf("it recorded %v", recorded)
	}
	v.must(resume())
}

func gave(how string, later uint64) *auditv1.Entry {
	return &auditv1.Entry{Index: later, Record: &auditv1.Record{Body: &auditv1.Body{Action: "approve-" + how}}}
}

// An operation that the log knows and the state too is nothing that was lost.
func TestAnApprovalThatIsKnownIsNotLost(t *testing.T) {
	v := newVault(t)
	entry := approval(v.clock.Now(), time.Hour)
	entry.Record.OperationId = v.ask(v.open(bearer).GetSessionId(), "a").GetOperationId()
	v.knows(chronicle{approved: entry})
	v.must(v.server.Compare(t.Context()))
	if now := v.server.Halt.Now(); now.Halted {
		t.Errorf("it is %+v", now)
	}
}

// A vault that finds out late, while it serves, ends what an operator's halt ends: scopes at once, and desktop control for good.
func TestALateLossEndsWhatAHaltEnds(t *testing.T) {
	v := newVault(t)
	opened := v.openBound(1)
	_, err := v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: v.sign(v.scope(opened.GetSession(), bound, 10))})
	v.must(err)
	click, _ := contract.Lookup("start_service")
	click.Tags = []string{"desktop:click"}
	v.server.Desktop.Confirmed(opened.GetSession(), click)
	if _, active := v.server.Desktop.Active(opened.GetSession()); !active {
		t.Fatal("no desktop is controlled")
	}
	v.knows(chronicle{control: recorder.Control{Index: 3, Epoch: 6}})
	v.must(v.server.Compare(t.Context()))
	if ended := v.audit.of(auditv1.Kind_KIND_STANDING_ENDED); len(ended) != 1 || ended[0].GetBody().GetReason() != "everything was halted" {
		t.Errorf("what stood: %v", ended)
	}
	if _, active := v.server.Desktop.Active(opened.GetSession()); active {
		t.Error("a desktop is controlled")
	}
}

func approval(now time.Time, ago time.Duration) *auditv1.Entry {
	return &auditv1.Entry{Index: 9, LoggedAt: timestamppb.New(now.Add(-ago)), Record: &auditv1.Record{
		OperationId: "0123456789abcdef0123456789abcdef", Body: &auditv1.Body{Action: "approve"},
	}}
}

func redemption(now time.Time, ago time.Duration, use string) *auditv1.Entry {
	return &auditv1.Entry{LoggedAt: timestamppb.New(now.Add(-ago)), Record: &auditv1.Record{OperationId: "spent", Body: &auditv1.Body{Details: map[string]string{"use": use}}}}
}

// A vault whose database was edited is halted before it acts by it, says which rows, and takes them as they are once it is: a
// second start finds nothing, and the halt stays. The control is a vault without the seals, which goes on.
func TestDamagedStateIsHalted(t *testing.T) {
	for edit, named := range map[string]string{
		`DELETE FROM spent`:                                                   "spent: it has 0 rows of 1",
		`UPDATE statements SET digest = x'00'`:                                "statements: the row 00 was changed",
		`UPDATE standing SET ended_at = 0`:                                    "standing: the row g was changed",
		`UPDATE operations SET state = 2 WHERE operation_id = 'o'`:            "operations: the row o was changed",
		`UPDATE control SET epoch = 9007199254740990`:                         "control: the row 1 was changed",
		`DELETE FROM control`:                                                 "control: it has 0 rows of 1",
		`UPDATE seals SET rows = 0, sum = zeroblob(32) WHERE name = 'spent'`:  "seals: the row spent was changed",
		`DROP TABLE seals; DELETE FROM goose_db_version WHERE version_id > 4`: "",
	} {
		t.Run(edit, func(t *testing.T) {
			dir, ctx := t.TempDir(), t.Context()
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			cfg := database.Config{Path: filepath.Join(dir, "vault.db"), StateDir: dir, Migrations: store.Migrations(), Service: "the vault"}
			begin := func() (*halt.Switch, *store.Store, *fakeAudit, func()) {
				state, err := store.Open(ctx, dir, nil)
				must(err)
				control, err := halt.New(ctx, state)
				must(err)
				log := &fakeAudit{t: t}
				must(HaltDamaged(ctx, state, control, journal.New(log, time.Now, platformtest.Logger()), "itself", platformtest.Logger()))
				return control, state, log, func() { must(state.Close()) }
			}
			_, state, _, end := begin()
			o := &store.Operation{ID: "o", AskedAt: time.Now()}
			must(state.Insert(ctx, o))
			must(state.Spend(ctx, store.Spend{OperationID: "o", Use: 1, At: time.Now()}))
			must(state.InsertStanding(ctx, &store.Standing{ID: "g", Digest: []byte{1}}, &store.UsedStatement{Digest: []byte{1}}))
			must(state.EndStanding(ctx, "g", 1, "revoked", time.Now()))
			end()
			plain, err := database.Open(ctx, cfg)
			must(err)
			_, err = plain.ExecContext(ctx, edit)
			must(err)
			var halted bool
			if err := plain.QueryRowContext(ctx, `SELECT halted FROM control`).Scan(&halted); err == nil && halted {
				t.Error("the control: it is halted without the seals")
			}
			must(plain.Close())
			if named == "" {
				if _, err := store.Open(ctx, dir, nil); err == nil {
					t.Error("a schema without its seals was opened")
				}
				return
			}
			for start := range 2 {
				control, state, log, end := begin()
				now := control.Now()
				if !now.Halted || now.Epoch < 2 || now.Epoch > 10 || !strings.Contains(now.Reason, named) || now.ChangedBy != "itself" {
					t.Errorf("start %d: it is %+v, want %q", start, now, named)
				}
				if recorded := log.records; start == 0 && (len(recorded) != 1 || recorded[0].GetKind() != auditv1.Kind_KIND_HALTED || !strings.Contains(recorded[0].GetBody().GetReason(), named)) || start == 1 && len(recorded) != 0 {
					t.Errorf("start %d: it recorded %v", start, recorded)
				}
				if _, err := state.Operation(ctx, "o"); err != nil {
					t.Error(err)
				}
				end()
			}
		})
	}
}
