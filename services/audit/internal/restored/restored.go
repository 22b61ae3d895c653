// Package restored is the log's side of backups: what of it is copied, and how one that was put back goes on. A log that goes on from a copy
// forks from what others saw of it, and takes a human's statement, which names the head that the log had and how many records are
// lost. It is the first record of the log that goes on; without it audit does not start.
//
// It belongs to the audit process and trusts its trust folder.
package restored

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/backup"
	"durward.internal/services/platform/backup/statecopy"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// file holds, in the state folder, the statement that the log's next record has to carry.
const file = "restored"

// Roots are what is trusted now.
type Roots struct {
	Keys      []note.Verifier
	Operators *trust.AllowedSigners
}

// evidence is what file holds.
type evidence struct {
	Statement []byte `json:"statement"`
	Signature []byte `json:"signature"`
}

// Part is what a backup has of the log. What witnesses cosigned is in none: the relay brings it again.
func Part(p statecopy.Part, cosigned string, roots func() (Roots, error)) statecopy.Part {
	p.Databases, p.Ends = []string{store.File}, []string{cosigned}
	p.Head = func(ctx context.Context, folder string, h *backup.Head) error {
		c, err := head(ctx, folder, roots)
		h.Origin, h.Size, h.Root = c.Origin, c.Size, hex.EncodeToString(c.Root[:])
		return err
	}
	p.Check = func(ctx context.Context, folder string, given backup.Given) error {
		c, err := head(ctx, folder, roots)
		if err != nil {
			return err
		}
		trusted, err := roots()
		if err != nil {
			return err
		}
		v, err := statement.Verify(&callv1.HumanStatement{Statement: given.Statement, Signature: given.Signature}, trusted.Operators, given.At)
		if err != nil {
			return fmt.Errorf("no operator's statement lets the log go on from here: %w", err)
		}
		if err := covers(v.Statement, c); err != nil {
			return err
		}
		raw, err := json.Marshal(evidence{given.Statement, given.Signature})
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(folder, file), raw, 0o600)
	}
	return p
}

// head reads the head of the log in a folder, whose tree has to have the sum that a trusted key signed.
func head(ctx context.Context, folder string, roots func() (Roots, error)) (c logproof.Checkpoint, err error) {
	trusted, err := roots()
	if err != nil {
		return c, err
	}
	db, err := store.Open(ctx, folder)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	stored, err := db.Head(ctx)
	if err != nil {
		return c, err
	}
	if stored.Checkpoint == nil {
		return c, errors.New("the log has no record yet")
	}
	if c, err = log.OpenStored(stored.Checkpoint, trusted.Keys); err != nil {
		return c, fmt.Errorf("the log is not signed by a key in the trust folder's log_keys: %w", err)
	}
	root, err := tlog.TreeHash(int64(c.Size), store.Hashes{Ctx: ctx, From: db})
	if err != nil || root != c.Root || stored.Entries != int64(c.Size) {
		return c, errors.Join(err, errors.New("the log does not add up to what its key signed"))
	}
	return c, nil
}

// covers reports why a statement is not for the log with that head.
func covers(st *statement.Statement, c logproof.Checkpoint) error {
	switch {
	case st.Kind != statement.KindRestore || st.Audience != "spiffe://"+c.Origin:
		return errors.New("the operator's statement is not about this log")
	case st.Restore.Size != c.Size || st.Restore.Root != hex.EncodeToString(c.Root[:]):
		return errors.New("the operator's statement is for another backup")
	}
	return nil
}

// Waits returns an error while a log that was put back did not go on yet: who opens it elsewhere would go on without an operator's statement.
func Waits(stateDir string) error {
	if _, err := os.Lstat(filepath.Join(stateDir, file)); err == nil {
		return errors.New("a backup of it was put back, and audit has not recorded that yet: start audit once, and stop it")
	}
	return nil
}

// Accept records what the log was put back by, where it was and that is not recorded yet. Nothing else is recorded before.
func Accept(ctx context.Context, stateDir string, history *log.Log, roots Roots, entry func(context.Context, uint64) (*auditv1.Entry, error),
	record func(context.Context, *auditv1.Record) error) error {
	path := filepath.Join(stateDir, file)
	raw, err := os.ReadFile(path) // #nosec G304 -- in the state folder
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var e evidence
	if err == nil {
		err = json.Unmarshal(raw, &e)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	h := &callv1.HumanStatement{Statement: e.Statement, Signature: e.Signature}
	st, err := statement.Parse(e.Statement)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	// By the keys of the time when it was signed: the restore judged its own time.
	if st, err = statement.VerifySignature(h, roots.Operators, st.Expires()); err != nil {
		return fmt.Errorf("%s: no operator's statement lets the log go on: %w", path, err)
	}
	_, signed := history.Newest()
	now, err := logproof.OpenCheckpoint(signed, roots.Keys)
	if err != nil {
		return err
	}
	if now.Size > st.Restore.Size { // the process ended after it was recorded
		first, err := entry(ctx, st.Restore.Size)
		if err != nil || first.GetRecord().GetKind() != auditv1.Kind_KIND_RESTORED {
			return errors.Join(err, fmt.Errorf("%s: the log has gone on from its backup without a record of that", path))
		}
		return os.Remove(path)
	}
	if err := covers(st, now); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	r := st.Restore
	if err := record(ctx, &auditv1.Record{
		Kind: auditv1.Kind_KIND_RESTORED, Status: auditv1.Status_STATUS_OK,
		Body: &auditv1.Body{
			Principal: statement.CommandPrincipal(st.Operator), Statement: h,
			Summary: clean.Line(fmt.Sprintf("the log goes on from the backup of %s: what came after it is lost, %d records of it known", r.Made, r.Lost), 500),
			Details: map[string]string{"size": strconv.FormatUint(r.Size, 10), "old_size": strconv.FormatUint(r.OldSize, 10), "old_root": r.OldRoot, "lost": strconv.FormatUint(r.Lost, 10)},
		},
	}); err != nil {
		return fmt.Errorf("record that the log was put back: %w", err)
	}
	return os.Remove(path)
}
