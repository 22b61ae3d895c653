package history

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/redaction"
)

const (
	// refusedFolder keeps, in the state folder, the records that audit refused for good.
	refusedFolder = "refused"
	// maxAppendBytes bounds one append, well below what a message may be.
	maxAppendBytes = 2 << 20
	maxReason      = 300
)

// Refusal is a record that audit refuses for good. It is in no log: it is kept in a file, for a human to look at.
type Refusal struct {
	// Action is what the record tells of, Reason audit's sentence; neither holds anything hostile.
	Action, Reason string
	// File is where the record is kept.
	File string
}

// Error implements error.
func (r *Refusal) Error() string {
	return fmt.Sprintf("audit refuses the record of %s for good (%s); it is kept in %s", r.Action, r.Reason, r.File)
}

// delivery sends records in order. What audit refuses for good is found by halves and set aside; the rest goes on.
type delivery struct {
	log *Log
	// next is the number of the next record, last the last one that the log has of this writer.
	next, last uint64
	// own is the record that the caller waits for; nil if there is none.
	own *auditv1.Record
}

// run returns what still waits: all from the first record on that audit neither took nor refused for good, and what was refused
// and could not be set aside.
func (d *delivery) run(ctx context.Context, records []*auditv1.Record) (waits []*auditv1.Record, err error) {
	todo := batches(records)
	for len(todo) > 0 {
		batch := todo[0]
		answer, refused := d.append(ctx, batch)
		switch {
		case refused == nil:
			if untrue := d.log.accept(ctx, batch, answer); untrue != nil {
				return slices.Concat(waits, slices.Concat(todo...)), errors.Join(err, untrue)
			}
			d.next += uint64(len(batch))
			d.last = max(d.last, d.next-1)
			todo = todo[1:]
		case !final(refused):
			return slices.Concat(waits, slices.Concat(todo...)), err
		case len(batch) > 1: // nothing of it was written
			half := len(batch) / 2
			todo = slices.Insert(todo[1:], 0, batch[:half], batch[half:])
		case redactAsked(batch[0], refused):
			// It goes again, under the same number.
		default:
			kept, failed := d.setAside(batch[0], refused)
			err = errors.Join(err, failed)
			if !kept {
				waits = append(waits, batch[0])
			}
			todo = todo[1:]
		}
	}
	return waits, err
}

// redactAsked redacts the field in which audit found a credential; false where it found none, or the field is redacted already.
func redactAsked(record *auditv1.Record, cause error) bool {
	name, asked := redaction.Asked(cause)
	if !asked {
		return false
	}
	redacted, done := redaction.Field(record, name)
	if done {
		proto.Reset(record)
		proto.Merge(record, redacted)
	}
	return done
}

// append sends a batch under the next numbers, and under new ones where those are taken.
func (d *delivery) append(ctx context.Context, batch []*auditv1.Record) (*auditv1.AppendResponse, error) {
	answer, err := d.log.append(ctx, batch, d.next)
	if fault.Is(err, callv1.Code_CODE_CONFLICT) && d.next != d.last+1 {
		d.next = d.last + 1
		answer, err = d.log.append(ctx, batch, d.next)
	}
	return answer, err
}

// final reports whether audit refuses what was sent whenever it is sent: platform/recorder goes by the same two codes.
func final(err error) bool {
	return fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) || fault.Is(err, callv1.Code_CODE_TOO_LARGE)
}

// batches cuts the records into what one append may hold.
func batches(records []*auditv1.Record) [][]*auditv1.Record {
	var out [][]*auditv1.Record
	from, size := 0, 0
	for i, r := range records {
		n := proto.Size(r)
		if i > from && size+n > maxAppendBytes {
			out = append(out, records[from:i])
			from, size = i, 0
		}
		size += n
	}
	return append(out, records[from:])
}

// setAside keeps a refused record in a file of its own and tells of it. kept is false where there is no such file: then the
// record has to wait on, so that it is not lost.
func (d *delivery) setAside(record *auditv1.Record, cause error) (kept bool, err error) {
	record.Sequence = 0 // it never had one
	f := fault.From(cause)
	refusal := &Refusal{Action: clean.Line(record.GetBody().GetAction(), maxReason), Reason: clean.Line(f.Message, maxReason)}
	refusal.Action = cmp.Or(refusal.Action, record.GetKind().String())
	if refusal.File, err = d.log.keepRefused(record, refusal.Reason, clean.Line(f.Field, maxReason)); err != nil {
		return false, fmt.Errorf("audit refuses the record of %s for good (%s), and it cannot be set aside: %w", refusal.Action, refusal.Reason, err)
	}
	if record == d.own {
		return true, refusal
	}
	if d.log.cfg.OnRefused != nil {
		d.log.cfg.OnRefused(refusal)
	}
	return true, nil
}

// keepRefused writes the record down for a human to read. Nothing reads it back.
func (l *Log) keepRefused(record *auditv1.Record, reason, field string) (path string, err error) {
	text, err := protojson.Marshal(record)
	if err != nil {
		return "", err
	}
	file, err := json.MarshalIndent(struct {
		Reason string          `json:"reason"`
		Field  string          `json:"field,omitempty"`
		Record json.RawMessage `json:"record"`
	}{reason, field, text}, "", "  ")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(l.cfg.StateDir, refusedFolder)
	stamp := l.cfg.Now().UTC().Format("20060102T150405")
	err = asOwner(l.cfg.StateDir, func() error {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		for n := 1; ; n++ {
			path = filepath.Join(dir, fmt.Sprintf("%s-%d.json", stamp, n))
			if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
				return installdir.WriteFile(path, append(file, '\n'), 0o600)
			} else if err != nil {
				return err
			}
		}
	})
	return path, err
}
