// Package damage examines a log as it is stored, record by record, and names what of it is no longer what was written: records that
// cannot be read, that do not match what the tree commits to, or that are missing, and places of the tree that do not add up. It belongs
// to the audit process and changes nothing. What it calls sound is sound by the stored tree, which the log holds against the signed
// checkpoint.
package damage

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/logproof"
)

const (
	// page bounds one read of the store, in records and bytes.
	page      = 256
	pageBytes = 4 << 20
	// most bounds the findings that a report names.
	most = 20
	// wordy bounds what is shown of a cause.
	wordy = 200
)

// Store is what is examined.
type Store interface {
	Entry(ctx context.Context, index uint64) (*auditv1.Entry, error)
	Range(ctx context.Context, from, end uint64, limit, maxBytes int) ([]*auditv1.Entry, error)
	ReadHashes(ctx context.Context, indexes []int64) ([]tlog.Hash, error)
	Misfiled(ctx context.Context, from, end uint64) (first, last uint64, found bool, err error)
}

// Finding is records in a row with which the same is wrong.
type Finding struct {
	First, Last uint64
	// Writer and Sequence are what the header of a single record says; "": it cannot be read.
	Writer   string
	Sequence uint64
	What     string
}

func (f Finding) String() string {
	if f.First != f.Last {
		return fmt.Sprintf("records %d to %d: %s", f.First, f.Last, f.What)
	}
	if f.Writer == "" {
		return fmt.Sprintf("record %d: %s", f.First, f.What)
	}
	return fmt.Sprintf("record %d (%s's %d): %s", f.First, clean.Line(f.Writer, wordy), f.Sequence, f.What)
}

// Report is what an examination found. The zero value has seen nothing.
type Report struct {
	// Seen is how many records were looked at, Wrong how many of them are damaged, Absent how many of those only lack their body, so
	// that the log goes on, and Lost how many lack their header, without which no copy of the log can be made.
	Seen, Wrong, Absent, Lost uint64
	// Hidden is how many blocks of reads search does not find all of; their records are sound.
	Hidden uint64
	// Findings are the first of all this, in order.
	Findings []Finding
	// Cause is what the database says of the first one that it cannot read; "": it can.
	Cause string
	// open: the last finding goes on with the next record.
	open bool
}

// Sound reports whether nothing is wrong.
func (r *Report) Sound() bool { return r.Wrong+r.Hidden == 0 }

func (r *Report) String() string {
	named := make([]string, len(r.Findings))
	var in uint64
	for i, f := range r.Findings {
		named[i] = f.String()
		in += f.Last - f.First + 1
	}
	if more := r.Wrong - min(in, r.Wrong); more > 0 {
		named = append(named, fmt.Sprintf("and %d more records", more))
	}
	return fmt.Sprintf("%s; %d of %d records that were read are sound", strings.Join(named, "; "), r.Seen-r.Wrong, r.Seen)
}

func (r *Report) add(index uint64, e *auditv1.Entry, what string) {
	r.Seen++
	if what == "" {
		r.open = false
		return
	}
	r.Wrong++
	switch what {
	case absent:
		r.Absent++
	case missing, unread, altered:
		r.Lost++
	}
	if n := len(r.Findings); r.open && e == nil && r.Findings[n-1].Writer == "" && r.Findings[n-1].What == what {
		r.Findings[n-1].Last = index
		return
	}
	if len(r.Findings) == most {
		r.open = false
		return
	}
	r.Findings = append(r.Findings, Finding{First: index, Last: index, Writer: e.GetWriter(), Sequence: e.GetRecord().GetSequence(), What: what})
	r.open = true
}

// Examine looks at every record from one index to below another, and adds what it finds to the report. pause is called between pages;
// nil: there is none. An error says that the store could not be asked, and that the report ends there.
func (r *Report) Examine(ctx context.Context, s Store, from, end uint64, pause func(context.Context) error) error {
	for from < end {
		begin, to := from, min(end, from+page)
		entries, err := s.Range(ctx, from, to, page, pageBytes)
		if err != nil && !store.Damaged(err) {
			return err
		}
		for at := 0; at < len(entries) && entries[at].GetIndex() == from; at++ {
			what, err := r.judge(ctx, s, entries[at])
			if err != nil {
				return err
			}
			r.add(from, entries[at], what)
			from++
		}
		if n := len(entries); err == nil && n > 0 && entries[n-1].GetIndex()+1 == from {
			to = from // all that came is in order; a page may be cut short by its bytes
		}
		for ; from < to; from++ {
			if err := r.one(ctx, s, from); err != nil {
				return err
			}
		}
		if err := r.filed(ctx, s, begin, from); err != nil {
			return err
		}
		if pause != nil && from < end {
			if err := pause(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// filed looks whether search finds the reads of the blocks that begin there.
func (r *Report) filed(ctx context.Context, s Store, from, end uint64) error {
	first, last, found, err := s.Misfiled(ctx, from, end)
	if err != nil || !found {
		return err
	}
	if r.Hidden++; len(r.Findings) == most {
		return nil
	}
	r.Findings, r.open = append(r.Findings, Finding{First: first, Last: last, What: "sound, but search does not find all of the reads among them"}), false
	return nil
}

// unreadable keeps the cause and returns what.
func (r *Report) unreadable(what string, cause error) string {
	r.Cause = cmp.Or(r.Cause, clean.Line(cause.Error(), wordy))
	return what
}

// one looks at a record by itself.
func (r *Report) one(ctx context.Context, s Store, index uint64) error {
	e, err := s.Entry(ctx, index)
	what := ""
	switch {
	case errors.Is(err, store.ErrNotFound):
		what = missing
	case store.Damaged(err):
		what = r.unreadable(unread, err)
	case err != nil:
		return err
	default:
		if what, err = r.judge(ctx, s, e); err != nil {
			return err
		}
	}
	r.add(index, e, what)
	return nil
}

const (
	// absent is said of a record without its body: each verifier says so too.
	absent = "its body is missing, and it names no operator's statement that let it go"
	// These are said of records whose header is gone.
	missing = "missing"
	unread  = "cannot be read"
	altered = "its header is not what was committed to"
)

// judge says what is wrong with a record; "": nothing.
func (r *Report) judge(ctx context.Context, s Store, e *auditv1.Entry) (string, error) {
	if err := verified(e); err != nil {
		leaf := logproof.LeafHash(e.GetLeaf())
		if len(e.GetLeaf()) > 0 && bytes.Equal(leaf[:], e.GetLeafHash()) {
			return "its body is not what was committed to", nil
		}
		return altered, nil
	}
	n := int64(e.GetIndex())
	first, next := tlog.StoredHashIndex(0, n), tlog.StoredHashIndex(0, n+1)
	indexes := make([]int64, 0, next-first)
	for i := first; i < next; i++ {
		indexes = append(indexes, i)
	}
	stored, err := s.ReadHashes(ctx, indexes)
	var want []tlog.Hash
	if err == nil {
		if want, err = tlog.StoredHashesForRecordHash(n, tlog.Hash(e.GetLeafHash()), store.Hashes{Ctx: ctx, From: s}); err == nil {
			for i := range want {
				switch {
				case agree(want[i], stored[i]):
				case i == 0:
					return "it is not the record that the tree has in its place", nil
				default:
					return fmt.Sprintf("the tree's hash over the %d records up to it is another one", 1<<i), nil
				}
			}
			if logproof.BodyMissing(e) && e.PrunedBy == nil {
				return absent, nil
			}
			return "", nil
		}
	}
	if store.Damaged(err) {
		return r.unreadable("it is sound, but the tree above it cannot be read", err), nil
	}
	return "", err
}
