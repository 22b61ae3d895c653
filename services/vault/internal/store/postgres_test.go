//go:build real

package store

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/fault"
	installed "durward.internal/services/platform/platformtest/postgres"
	"durward.internal/services/platform/postgres"
)

const vaultDB = "durward_vault"

// settings are those of a vault on the server.
func settings(s *installed.Server) postgres.Settings {
	return postgres.Settings{Engine: postgres.Postgres, Addresses: []string{s.Socket()}, Name: vaultDB, User: vaultDB, PasswordFile: s.PasswordFile}
}

// empty makes the database an empty one.
func empty(t *testing.T, s *installed.Server) {
	t.Helper()
	s.SQL(t, vaultDB, "DROP SCHEMA public CASCADE")
	s.SQL(t, vaultDB, "CREATE SCHEMA public AUTHORIZATION "+vaultDB)
}

func standby(t *testing.T, s postgres.Settings, dir string) *Standby {
	t.Helper()
	b, err := OpenPostgres(t.Context(), s, dir, slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// takeOver leads when the server finds that the one before has ended, or is silent: within 5 s.
func takeOver(t *testing.T, b *Standby) *Store {
	t.Helper()
	for began := time.Now(); ; {
		s, err := b.Lead(t.Context())
		if err == nil {
			return s
		}
		if !errors.Is(err, ErrFollows) && !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		time.Sleep(50 * time.Millisecond) // the server's clock is what is waited for
	}
}

// TestPostgres runs the suite through the socket and through TLS.
func TestPostgres(t *testing.T) {
	s := installed.Start(t)
	remote := settings(s)
	remote.Addresses, remote.CA = []string{fmt.Sprintf("localhost:%d", s.Port)}, s.CA
	for name, how := range map[string]postgres.Settings{"socket": settings(s), "tls": remote} {
		t.Run(name, func(t *testing.T) {
			suite(t, func(t *testing.T) *Store {
				empty(t, s)
				return takeOver(t, standby(t, how, t.TempDir()))
			})
		})
	}
}

// TestFirstPostgresState: what the first vault on PostgreSQL wrote, which testdata/first keeps as it was, opens undamaged with the key of that
// time, as TestFirstState has it of SQLite.
func TestFirstPostgresState(t *testing.T) {
	s, dir := installed.Start(t), t.TempDir()
	db, err := postgres.Open(t.Context(), settings(s), "vault", slog.New(slog.DiscardHandler))
	must(t, err)
	must(t, db.Migrate(t.Context(), os.DirFS("testdata/first/postgres"), database.Newest))
	db.Pool.Close()
	key, err := hex.DecodeString("98beea6e5dd0b2d1cc50bf835a43173048280329fcef45e14a05f27e486254fb")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, database.KeyFile), key, 0o600))
	st := takeOver(t, standby(t, settings(s), dir))
	still(t, st)
	// From now on the tables that came later are held to their seals, too.
	must(t, st.Close())
	s.SQL(t, vaultDB, "DELETE FROM seals WHERE name = 'keyring'")
	st = takeOver(t, standby(t, settings(s), dir))
	if len(st.Damage()) == 0 {
		t.Error("control: a table that lost its row of seals is taken for a new one")
	}
}

// second writes a state of the second schema, as the vault of that time did, whose table credentials had two columns more.
func second(t *testing.T, s *installed.Server, dir string) {
	t.Helper()
	ctx := t.Context()
	migrate(t, s, 2)
	db, err := postgres.Open(ctx, settings(s), "vault", slog.New(slog.DiscardHandler))
	must(t, err)
	now, granted := tables, *credentials
	defer func() { tables = now }()
	granted.columns = words("name delivery variable sink services changed_at")
	tables = slices.DeleteFunc(slices.Clone(now), func(t *table) bool { return t == credentials || t == credentialGrants || t == tokens })
	tables = append(tables, &granted)
	e := &server{Database: db, lease: db.Lease(), dir: dir, lost: make(chan struct{})}
	_, err = e.lease.Lead(ctx)
	must(t, err)
	e.key, err = database.MakeSealKey(dir)
	must(t, err)
	must(t, e.accept(ctx))
	must(t, e.within(ctx, func(w writer) error {
		_, err := w.insert(ctx, &granted, "hf", "file", "HF_TOKEN", "spiffe://d/executor/local", "chat", int64(7))
		return err
	}))
	must(t, e.close())
}

// TestSecondPostgresState: a state opens undamaged whose sealed columns a migration takes away, because its seals are looked at before; what
// was changed behind the vault's back, in those columns too, is found all the same. Where a migration ended before the new seals were made
// nothing tells, and a human decides.
func TestSecondPostgresState(t *testing.T) {
	s := installed.Start(t)
	for name, c := range map[string]struct {
		schema      int64
		spoil, want string
	}{
		"as it was":       {2, "SELECT 1", ""},
		"another service": {2, "UPDATE credentials SET services = 'chat other'", "credentials: the row hf was changed"},
		"no credentials":  {2, "DELETE FROM credentials", "credentials: it has 0 rows of 1"},
		"broken off":      {database.Newest, "SELECT 1", "credentials: columns of it are gone"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			empty(t, s)
			second(t, s, dir)
			s.SQL(t, vaultDB, c.spoil)
			migrate(t, s, c.schema)
			st := takeOver(t, standby(t, settings(s), dir))
			if got := strings.Join(st.Damage(), "; "); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
				t.Fatalf("found %q, want %q", got, c.want)
			}
			must(t, st.Accept(t.Context()))
			if kept, err := st.Credential(t.Context(), "hf"); name == "as it was" && (err != nil || len(kept.Grants) != 1 || !slices.Equal(kept.Grants[0].Services, []string{"chat"})) {
				t.Errorf("what was granted: %+v, %v", kept, err)
			}
			must(t, st.Close())
			if again := takeOver(t, standby(t, settings(s), dir)); len(again.Damage()) != 0 {
				t.Errorf("once it is accepted: %q", again.Damage())
			}
		})
	}
}

// migrate brings the database to a schema.
func migrate(t *testing.T, s *installed.Server, schema int64) {
	t.Helper()
	db, err := postgres.Open(t.Context(), settings(s), "vault", slog.New(slog.DiscardHandler))
	must(t, err)
	defer db.Pool.Close()
	files, err := fs.Sub(postgresFiles, "migrations/postgres")
	must(t, err)
	must(t, db.Migrate(t.Context(), files, schema))
}

// leaders are a vault that led and says nothing, and the one that took over.
func leaders(t *testing.T, s *installed.Server) (stale, leader *Store) {
	t.Helper()
	dir := t.TempDir()
	first, second := standby(t, settings(s), dir), standby(t, settings(s), dir)
	stale = takeOver(t, first)
	if _, err := second.Lead(t.Context()); !errors.Is(err, ErrFollows) {
		t.Fatalf("two lead: %v", err)
	}
	if !stale.Leads() {
		t.Error("the one that leads does not know")
	}
	must(t, stale.Insert(t.Context(), full("one")))
	approved := full("two")
	must(t, stale.Insert(t.Context(), approved))
	must(t, stale.Approve(t.Context(), approved, nil))
	return stale, takeOver(t, second)
}

// TestPostgresLead: one vault leads. One that was silent, and does not know that it leads no more, writes nothing: it spends nothing after a halt
// that it did not see, and nothing that was spent.
func TestPostgresLead(t *testing.T) {
	s := installed.Start(t)
	stale, leader := leaders(t, s)
	ctx := t.Context()
	if stale.Leads() {
		t.Error("one that was silent for the time of its lease believes that it leads")
	}
	must(t, leader.SetControl(ctx, Control{Epoch: 2, Halted: true}, nil))
	before, err := leader.State(ctx)
	must(t, err)
	for name, write := range map[string]func() error{
		"a redemption":  func() error { return stale.Spend(ctx, Spend{OperationID: "two", Use: 1, GrantID: "g"}) },
		"an approval":   func() error { return stale.Approve(ctx, full("one"), nil) },
		"a new request": func() error { return stale.Insert(ctx, full("three")) },
		"a resume": func() error {
			return stale.SetControl(ctx, Control{Epoch: 3}, &UsedStatement{Digest: []byte{1}})
		},
		"a count":          func() error { return stale.ChangeUse(ctx, "c", "t", "d", func(u *Use) { u.Calls++ }) },
		"what is in force": func() error { return stale.SetInForce(ctx, "f", "l", "d", time.Now()) },
		"seals":            func() error { return stale.Accept(ctx) },
	} {
		err := write()
		if !errors.Is(err, ErrFollows) || !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) || fault.From(err).RetryAfter == 0 {
			t.Errorf("%s of one that lost its lead: %v", name, err)
		}
	}
	if after, err := leader.State(ctx); err != nil || after.Revision != before.Revision {
		t.Errorf("it left something: %v, %v, %v", before, after, err)
	}
	if err := stale.Hold(ctx); !errors.Is(err, ErrFollows) {
		t.Errorf("it holds its lead: %v", err)
	}
	must(t, leader.Close())
	again := standby(t, settings(s), filepath.Dir(sealKey(t, leader)))
	if s := takeOver(t, again); len(s.Damage()) != 0 {
		t.Errorf("damage: %q", s.Damage())
	}
	s.SQL(t, vaultDB, "UPDATE sequencer SET closed = 'it was moved'")
	must(t, again.Close())
	if _, err := standby(t, settings(s), t.TempDir()).Lead(ctx); !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), "it was moved") {
		t.Errorf("a database that is closed: %v", err)
	}
}

// TestPostgresUnknownCommit: of a commit whose answer did not come in time, the error says that it may hold; this one does.
func TestPostgresUnknownCommit(t *testing.T) {
	s := installed.Start(t)
	dir := t.TempDir()
	first := takeOver(t, standby(t, settings(s), dir))
	// Commits now wait for a standby that is not there. The server needs a moment to read that.
	s.SQL(t, vaultDB, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	s.SQL(t, vaultDB, "SELECT pg_reload_conf()")
	var err error
	id := ""
	for n := 0; err == nil && n < 10_000; n++ {
		id = fmt.Sprint("o", n)
		err = first.Insert(t.Context(), full(id))
	}
	if !errors.Is(err, ErrUnknown) || !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) {
		t.Errorf("a commit without an answer: %v", err)
	}
	s.SQL(t, vaultDB, "ALTER SYSTEM RESET synchronous_standby_names")
	s.SQL(t, vaultDB, "SELECT pg_reload_conf()")
	must(t, first.Close())
	next := takeOver(t, standby(t, settings(s), dir))
	if _, err := next.Operation(t.Context(), id); err != nil {
		t.Errorf("it does not hold: %v", err)
	}
	if err := first.Insert(t.Context(), full("after")); err == nil || errors.Is(err, ErrUnknown) {
		t.Errorf("what was never sent to be committed: %v", err)
	}
}

// TestPostgresLateCommit: a commit that takes longer than its caller waits is no unknown one, and does not end the lead.
func TestPostgresLateCommit(t *testing.T) {
	s := installed.Start(t)
	first := takeOver(t, standby(t, settings(s), t.TempDir()))
	s.SQL(t, vaultDB, `CREATE TABLE done (x int); GRANT SELECT, INSERT ON done TO PUBLIC;
		CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN WHILE NOT EXISTS (SELECT FROM done) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER late AFTER INSERT ON tokens DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()`)
	e, ok := first.engine.(*server)
	if !ok {
		t.Fatal("not on a server")
	}
	other, err := e.Alone(t.Context())
	must(t, err)
	defer other.Close(context.WithoutCancel(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- first.KeepTokens(ctx, "s", []Token{{Ref: "r", Value: []byte("v"), At: time.Now()}}) }()
	for committing := 0; committing == 0; {
		must(t, other.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'commit' AND state = 'active'`).Scan(&committing))
		select {
		case err := <-kept:
			t.Fatalf("it ended before its commit began: %v", err)
		default:
		}
	}
	cancel()
	_, err = other.Exec(t.Context(), `INSERT INTO done VALUES (1)`)
	must(t, err)
	if err := <-kept; err != nil {
		t.Errorf("a commit that its caller did not wait for: %v", err)
	}
	must(t, first.Insert(t.Context(), full("after")))
	if list, err := first.Tokens(t.Context(), "s"); err != nil || len(list) != 1 {
		t.Errorf("kept: %v, %v", list, err)
	}
}

func sealKey(t *testing.T, s *Store) string {
	t.Helper()
	e, ok := s.engine.(*server)
	if !ok {
		t.Fatal("not on a server")
	}
	return filepath.Join(e.dir, database.KeyFile)
}

// TestPostgresHold: a vault keeps its lead for as long as it speaks, and learns that it lost it.
func TestPostgresHold(t *testing.T) {
	s := installed.Start(t)
	first := takeOver(t, standby(t, settings(s), t.TempDir()))
	held := make(chan error, 1)
	go func() { held <- first.Hold(context.WithoutCancel(t.Context())) }()
	second := standby(t, settings(s), t.TempDir())
	for began := time.Now(); time.Since(began) < postgres.LeaseTime+time.Second; time.Sleep(100 * time.Millisecond) { // a lease's time has to pass
		if _, err := second.Lead(t.Context()); !errors.Is(err, ErrFollows) {
			t.Fatalf("it leads beside one that speaks: %v", err)
		}
		if !first.Leads() {
			t.Fatal("one that speaks believes that it does not lead")
		}
	}
	s.Kill(t)
	if err := <-held; !errors.Is(err, ErrFollows) {
		t.Errorf("when the server ends: %v", err)
	}
	if err := first.Insert(t.Context(), full("x")); !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) {
		t.Errorf("a request meanwhile: %v", err)
	}
	s.Run(t)
	if err := first.Insert(t.Context(), full("x")); !errors.Is(err, ErrFollows) {
		t.Errorf("a request of one that lost its lead, on the server that is back: %v", err)
	}
}

// TestSealsOnPostgres: what was changed behind the vault's back is found when a vault takes over, and not served while one leads.
func TestSealsOnPostgres(t *testing.T) {
	s := installed.Start(t)
	for name, tc := range map[string]struct{ spoil, want string }{
		"nothing":              {"SELECT 1", ""},
		"a principal":          {"UPDATE operations SET principal = 'other' WHERE operation_id = 'one'", "operations: the row one was changed"},
		"a row that is new":    {"INSERT INTO spent VALUES ('x', 1, 'g', 'a', 0, '')", "spent: the row x/1 was changed"},
		"a row that is gone":   {"DELETE FROM spent", "spent: it has 0 rows of 1"},
		"an older copy":        {"UPDATE operations o SET (state, seal) = (SELECT state, seal FROM old) WHERE operation_id = 'one'", "operations: a row of it is an older copy"},
		"a statement":          {"UPDATE statements SET digest = '\\x06'", "statements: the row 06 was changed"},
		"the switch":           {"UPDATE control SET halted = false, epoch = 1", "control: the row 1 was changed"},
		"no switch":            {"DELETE FROM control", "control: it has 0 rows of 1"},
		"totals":               {"UPDATE seals SET rows = 0 WHERE name = 'spent'", "seals: the row spent was changed or is missing"},
		"no totals":            {"DELETE FROM seals WHERE name = 'spent'", "seals: the row spent was changed or is missing"},
		"none of a late table": {"DELETE FROM seals WHERE name = 'keyring'", "seals: the row keyring was changed or is missing"},
		"the columns of them":  {"UPDATE seals SET columns = 'digest' WHERE name = 'statements'", "seals: the row statements was changed or is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, dir := t.Context(), t.TempDir()
			empty(t, s)
			first := takeOver(t, standby(t, settings(s), dir))
			must(t, first.Insert(ctx, full("one")))
			s.SQL(t, vaultDB, "CREATE TABLE old AS SELECT state, seal FROM operations")
			must(t, first.Approve(ctx, full("one"), &UsedStatement{Digest: []byte{5}}))
			must(t, first.Spend(ctx, Spend{OperationID: "one", Use: 1}))
			must(t, first.SetControl(ctx, Control{Epoch: 7, Halted: true}, nil))
			s.SQL(t, vaultDB, tc.spoil)
			if name == "a principal" {
				if _, err := first.Operation(ctx, "one"); !errors.Is(err, database.ErrDamaged) {
					t.Errorf("it is served: %v", err)
				}
				if err := first.Settle(ctx, "one", true, time.Now()); err != nil {
					t.Error(err) // and stays without a seal
				}
			}
			must(t, first.Close())
			second := takeOver(t, standby(t, settings(s), dir))
			if got := strings.Join(second.Damage(), "; "); !strings.Contains(got, tc.want) || (tc.want == "") != (got == "") {
				t.Fatalf("found %q, want %q", got, tc.want)
			}
			if c, err := second.Control(ctx); err != nil || tc.want != "" && !c.Halted && name != "the switch" {
				t.Errorf("%+v, %v", c, err)
			}
			must(t, second.Accept(ctx))
			must(t, second.Insert(ctx, full("after")))
			must(t, second.Close())
			if third := takeOver(t, standby(t, settings(s), dir)); len(third.Damage()) != 0 {
				t.Errorf("after it was accepted: %q", third.Damage())
			}
		})
	}
}

// TestPostgresSealKey: a vault without the key of the rows' seals, or with another, takes nothing over and seals nothing anew.
func TestPostgresSealKey(t *testing.T) {
	s := installed.Start(t)
	dir := t.TempDir()
	first := takeOver(t, standby(t, settings(s), dir))
	must(t, first.Insert(t.Context(), full("one")))
	must(t, first.Close())
	other := t.TempDir()
	for _, want := range []string{"copy it from the state folder", "sealed with another key"} {
		b := standby(t, settings(s), other)
		if _, err := b.Lead(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		must(t, b.Close())
		must(t, os.WriteFile(filepath.Join(other, database.KeyFile), make([]byte, 32), 0o600))
	}
	key, err := os.ReadFile(filepath.Join(dir, database.KeyFile))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(other, database.KeyFile), key, 0o600))
	b := takeOver(t, standby(t, settings(s), other))
	if len(b.Damage()) != 0 {
		t.Errorf("with the key: %q", b.Damage())
	}
	must(t, b.Close())
	// What cannot be read is neither a database that was never sealed nor a key that is not there.
	refused := func(what, dir string) {
		b := standby(t, settings(s), dir)
		if _, err := b.Lead(t.Context()); err == nil {
			t.Errorf("%s: it leads", what)
		}
		must(t, b.Close())
	}
	s.SQL(t, vaultDB, "ALTER TABLE seals RENAME TO elsewhere")
	refused("seals that cannot be read", other)
	empty(t, s)
	must(t, os.WriteFile(filepath.Join(other, database.KeyFile), []byte{1}, 0o600))
	refused("a key that cannot be read, of a database without seals", other)
}

// TestAVaultMovesToPostgres: a vault whose folder has the key of an earlier state leads on an empty database too, as one that lost its state,
// until a human accepts that.
func TestAVaultMovesToPostgres(t *testing.T) {
	s, dir := installed.Start(t), t.TempDir()
	_, err := database.MakeSealKey(dir)
	must(t, err)
	must(t, database.KeepSealKey(dir))
	used := UsedStatement{Digest: []byte("x"), Kind: "open", UsedAt: time.Now()}
	for _, accepted := range []bool{false, true} {
		st := takeOver(t, standby(t, settings(s), dir))
		c, err := st.Control(t.Context())
		if err != nil || len(st.Damage()) == 0 || !c.Halted {
			t.Errorf("damage %q, halted %t, %v", st.Damage(), c.Halted, err)
		}
		if accepted {
			must(t, st.Accept(t.Context()))
			must(t, st.UseStatement(t.Context(), used))
		}
		must(t, st.Close())
	}
	st := takeOver(t, standby(t, settings(s), dir))
	if err := st.UseStatement(t.Context(), used); len(st.Damage()) > 0 || !errors.Is(err, ErrStatementUsed) {
		t.Errorf("once it was accepted: damage %q, %v", st.Damage(), err)
	}
}

// TestUnsafePostgresIsRefused: the vault keeps nothing on a server that forgets what it acknowledged.
func TestUnsafePostgresIsRefused(t *testing.T) {
	s := installed.Start(t)
	s.SQL(t, "postgres", "ALTER ROLE "+vaultDB+" SET synchronous_commit = off")
	if _, err := OpenPostgres(t.Context(), settings(s), t.TempDir(), slog.New(slog.DiscardHandler)); !errors.Is(err, postgres.ErrUnsafe) {
		t.Errorf("%v", err)
	}
}
