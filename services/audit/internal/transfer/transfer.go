// Package transfer moves a log from one database to another: every entry is verified, the tree is computed anew and must have the
// sum that the log's key signed. It belongs to the audit process, and trusts neither database.
//
// The source is closed first, so that no process adds to it any more, and stays so. The target is closed until all of it is there, so
// that no process begins a fork of the log on a part of it, and is opened after the source says that all of its log is in it and in no
// other. What broke off goes on when it is run again; what was copied whole is not copied a second time.
//
// A damaged log can be copied without the bodies that are not what was committed to: its headers and its tree have to be there, and each
// verifier names the records that lack a body.
package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/logproof"
)

// Why the databases are closed.
const (
	moving  = "its log is on its way to another database by durward audit copy: run that again"
	moved   = "all of its log was moved to %s by durward audit copy; the configuration must name that database"
	filling = "durward audit copy has not brought all of the log here: run it again"
)

// Bounds of a part, which is one transaction.
const (
	partRecords = 1000
	partBytes   = 4 << 20
)

// holdEvery is how often the databases hear that the copy goes on: well under postgres.LeaseTime.
const holdEvery = 500 * time.Millisecond

// Config is what Run needs.
type Config struct {
	From, To *store.Store
	// Place is where To is, for humans; no two databases have the same.
	Place  string
	Signer note.Signer
	// Keys are the trusted log keys.
	Keys   []note.Verifier
	Logger *slog.Logger
	// Damaged leaves out bodies that are not what was committed to, and changes nothing in From, which is one of store.OpenDamaged's or store.OpenDamagedPostgres'.
	Damaged bool
	// Progress is told after each part how many entries are there, of how many; nil: nobody is.
	Progress func(done, all int64)

	// part bounds a part's records; 0: partRecords.
	part int
}

// Run moves the log. Its errors are plain sentences for the human who runs it.
func Run(ctx context.Context, cfg Config) error {
	closed, err := cfg.From.Closed(ctx)
	switch {
	case err != nil && !cfg.Damaged:
		return fmt.Errorf("the log to be copied: %w", err)
	case closed == fmt.Sprintf(moved, cfg.Place) && !cfg.Damaged:
		return finish(ctx, cfg)
	case closed != "" && closed != moving: // a second copy of what was moved, or a copy of a part, would go on as another history
		return fmt.Errorf("the log to be copied: %w: %s", store.ErrClosed, closed)
	}
	if !cfg.Damaged {
		cfg.From.Fill(moving) // an earlier run may have closed it
		if err := cfg.From.Lead(ctx); err != nil {
			return fmt.Errorf("the log to be copied: %w: stop every audit process, and any other copy, first", err)
		}
	}
	if err := prepare(ctx, cfg.To); err != nil {
		return err
	}
	if !cfg.Damaged {
		if err := cfg.From.SetClosed(ctx, moving); err != nil {
			return fmt.Errorf("close the log to be copied: %w", err)
		}
	}
	return cfg.hold(ctx, cfg.fill)
}

// hold keeps the lead over the databases while it calls f, so that no audit and no other copy takes it from this one in between.
func (cfg Config) hold(ctx context.Context, f func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	done := make(chan struct{})
	group.Go(func() error {
		defer close(done)
		return f(ctx)
	})
	group.Go(func() error {
		tick := time.NewTicker(holdEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return nil
			case <-tick.C:
			}
			err := cfg.To.Hold(ctx)
			if err == nil && !cfg.Damaged {
				err = cfg.From.Hold(ctx)
			}
			if err != nil {
				return fmt.Errorf("the copy lost its lead over a database: run it again (%w)", err)
			}
		}
	})
	return group.Wait()
}

// fill copies all of the log, and opens the copy.
func (cfg Config) fill(ctx context.Context) error {
	source, err := cfg.From.Head(ctx)
	if err != nil {
		return err
	}
	if lost, err := cfg.From.Unread(ctx); cfg.Damaged && err == nil && lost > 0 {
		cfg.Logger.Warn("the newest records cannot be read and are not copied: every process that saw them refuses the shorter log. A backup may have them",
			"first", source.Entries, "records", lost)
	}
	var whole logproof.Checkpoint
	if source.Checkpoint != nil {
		if whole, err = log.OpenStored(source.Checkpoint, cfg.Keys); err != nil {
			return fmt.Errorf("the log to be copied is not signed by a key in the trust folder's log_keys: %w", err)
		}
	}
	if int64(whole.Size) != source.Entries {
		return fmt.Errorf("the log to be copied has %d entries, and its key signed %d: it was damaged or altered", source.Entries, whole.Size)
	}
	if err := copyEntries(ctx, cfg, source, whole); err != nil {
		return err
	}
	copied, err := cfg.To.Head(ctx)
	if err != nil {
		return err
	}
	if copied.Entries != source.Entries || copied.Hashes != source.Hashes || !maps.Equal(copied.Last, source.Last) {
		return errors.New("the copy does not count what the log counts: begin again with an empty database")
	}
	if !cfg.Damaged { // before the copy is opened: else another one could be made
		if err := cfg.From.SetClosed(ctx, fmt.Sprintf(moved, cfg.Place)); err != nil {
			return fmt.Errorf("close the log to be copied: %w", err)
		}
	}
	return open(ctx, cfg.To)
}

// finish opens the copy that an earlier run made whole, and changes nothing in one that is open.
func finish(ctx context.Context, cfg Config) error {
	cfg.To.Fill(filling)
	if err := cfg.To.Lead(ctx); err != nil {
		return fmt.Errorf("the database to copy to: %w", err)
	}
	source, err := cfg.From.Head(ctx)
	if err != nil {
		return err
	}
	if err := cfg.same(ctx, source.Entries); err != nil {
		return fmt.Errorf("all of the log was moved to %s, where it is no more: put a backup of that database back (%w)", cfg.Place, err)
	}
	return open(ctx, cfg.To)
}

func open(ctx context.Context, to *store.Store) error {
	if err := to.SetClosed(ctx, ""); err != nil {
		return fmt.Errorf("open the copy: %w", err)
	}
	to.Fill("")
	return nil
}

// prepare closes a target that is empty, or finds one that an earlier run began.
func prepare(ctx context.Context, to *store.Store) error {
	to.Fill(filling)
	if err := to.Lead(ctx); err != nil {
		return fmt.Errorf("the database to copy to: %w", err)
	}
	closed, err := to.Closed(ctx)
	if err != nil {
		return err
	}
	head, err := to.Head(ctx)
	if err != nil {
		return err
	}
	if closed == "" && head.Entries > 0 {
		return fmt.Errorf("the database to copy to has a log of %d entries: give it an empty one", head.Entries)
	}
	return to.SetClosed(ctx, filling)
}

// copyEntries adds to the target what it lacks.
func copyEntries(ctx context.Context, cfg Config, source store.Head, whole logproof.Checkpoint) error {
	has, err := cfg.To.Head(ctx)
	if err != nil {
		return err
	}
	size := has.Entries
	if size > source.Entries || has.Hashes != tlog.StoredHashCount(size) {
		return errors.New("the database to copy to holds another log: begin again with an empty one")
	}
	if !cfg.Damaged { // a damaged tree is made anew, and at its end held against what was signed
		if err := cfg.same(ctx, size); err != nil {
			return fmt.Errorf("%w: begin again with an empty one", err)
		}
	}
	for size < source.Entries {
		entries, err := cfg.next(ctx, uint64(size), uint64(source.Entries))
		if err != nil {
			return err
		}
		batch := store.Batch{Entries: entries, FirstHash: tlog.StoredHashIndex(0, size)}
		fresh := store.Recent{First: batch.FirstHash}
		for _, e := range entries {
			err := cfg.verify(e)
			if e.GetIndex() != uint64(size) {
				err = errors.New("it is missing")
			}
			if err != nil {
				return refused(size, err)
			}
			hashes, err := tlog.StoredHashesForRecordHash(size, tlog.Hash(e.GetLeafHash()), store.Hashes{Ctx: ctx, From: cfg.To, Fresh: &fresh})
			if err != nil {
				return err
			}
			fresh.Hashes = append(fresh.Hashes, hashes...)
			size++
		}
		if len(entries) == 0 {
			return refused(size, errors.New("it is missing"))
		}
		batch.Hashes = fresh.Hashes
		part := logproof.Checkpoint{Origin: whole.Origin, Size: uint64(size)}
		if part.Root, err = tlog.TreeHash(size, store.Hashes{Ctx: ctx, From: cfg.To, Fresh: &fresh}); err != nil {
			return err
		}
		if size == source.Entries && part != whole {
			return errors.New("the log to be copied does not add up to what its key signed: restore that database from a backup, and begin again")
		}
		if batch.Checkpoint, err = logproof.SignStaged(part, cfg.Signer); err != nil {
			return err
		}
		if err := cfg.To.Commit(ctx, batch); err != nil {
			return fmt.Errorf("write the copy: %w", err)
		}
		if cfg.Progress != nil {
			cfg.Progress(size, source.Entries)
		}
	}
	return nil
}

// same returns an error unless both databases have the same entries up to that size.
func (cfg Config) same(ctx context.Context, size int64) error {
	from, err1 := tlog.TreeHash(size, store.Hashes{Ctx: ctx, From: cfg.From})
	to, err2 := tlog.TreeHash(size, store.Hashes{Ctx: ctx, From: cfg.To})
	if err := errors.Join(err1, err2); err != nil || from != to {
		return errors.Join(err, errors.New("the database to copy to holds another log"))
	}
	return nil
}

// next reads the next part. Where it cannot be read as a whole, less of it is, so that all before the damage is copied.
func (cfg Config) next(ctx context.Context, from, end uint64) ([]*auditv1.Entry, error) {
	for limit := cmp.Or(cfg.part, partRecords); ; limit /= 2 {
		entries, err := cfg.From.Range(ctx, from, end, limit, partBytes)
		if err == nil || !store.Damaged(err) {
			return entries, err
		}
		if limit <= 1 {
			return nil, refused(int64(from), err)
		}
	}
}

// verify checks an entry, and leaves out a body that is not what was committed to, where that is asked for.
func (cfg Config) verify(e *auditv1.Entry) error {
	err := logproof.VerifyEntry(e)
	if err == nil || !cfg.Damaged {
		return err
	}
	without := &auditv1.Entry{}
	proto.Merge(without, e)
	without.Salt, without.Record.Body = nil, nil
	if logproof.VerifyEntry(without) != nil {
		return err
	}
	e.Salt, e.Record.Body = nil, nil
	cfg.Logger.Warn("a record is copied without its body", "index", e.GetIndex(), "writer", e.GetWriter(), "sequence", e.GetRecord().GetSequence())
	return nil
}

func refused(index int64, err error) error {
	return fmt.Errorf("record %d of the log to be copied: %w: put a backup of that database back, and begin again", index, err)
}
