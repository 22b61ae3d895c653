// Package forward brings the log to collectors of others': by syslog (RFC 5424 over TLS) and by OTLP. It is linked by the program
// auditrelay alone, which asks audit for what its file lets be forwarded. What is at a destination is remembered in a file, written after
// the destination has it: a record may come twice, with the same index, and none is left out. Audit waits for nothing of this.
//
// It trusts its configuration and audit; what a record says is anybody's, and what a collector answers is a stranger's.
package forward

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/durable"
	"durward.internal/services/platform/fault"
)

const (
	// batch is how many records go at once.
	batch = 256
	// poll is how long a forwarder waits for the next record, minPause and maxPause how long after a failure.
	poll     = time.Second
	minPause = time.Second
	maxPause = time.Minute
	// patience bounds one batch, from audit's answer to the destination's.
	patience = 30 * time.Second
	// maxProblem is the contract's bound.
	maxProblem = 300
)

// Destination is a collector.
type Destination interface {
	// Send returns when the collector has all of the records, in order. A *Refused means that it is there and does not take them.
	Send(ctx context.Context, records []*auditv1.ForwardedRecord) error
}

// Refused is what a collector does not take.
type Refused struct{ Why string }

func (r *Refused) Error() string { return "the collector refuses: " + r.Why }

// Config is what a Forwarder needs; all of it is required.
type Config struct {
	Audit auditv1.ForwardServiceClient
	// Name is the destination's, in the relay's file.
	Name string
	To   Destination
	// Origin is the log's name, and Dir the folder that keeps how far the destination is.
	Origin string
	Dir    string
	Logger *slog.Logger
}

// Forwarder forwards to one destination. Run it once.
type Forwarder struct {
	cfg Config
	at  cursor
	// limit is how many records are tried at once: fewer after a refusal, so that the one that is not taken is found.
	limit int
	// problem is what keeps it, as the operator reads it.
	problem string
}

// cursor is the file: every record below Next is at the destination, and Leaf is the leaf hash of the last of them.
type cursor struct {
	Log  string `json:"log"`
	Next uint64 `json:"next"`
	Leaf []byte `json:"leaf"`
}

// New reads how far the destination is; a new one begins at the log's first record.
func New(cfg Config) (*Forwarder, error) {
	f := &Forwarder{cfg: cfg, limit: batch, at: cursor{Log: cfg.Origin}}
	raw, err := os.ReadFile(f.path())
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &f.at)
	}
	if err == nil && f.at.Log != cfg.Origin {
		err = fmt.Errorf("it is of the log %q", clean.Line(f.at.Log, 100))
	}
	if err != nil {
		return nil, fmt.Errorf("how far the destination %s is cannot be read; remove %s, and all records go there again: %w", cfg.Name, f.path(), err)
	}
	return f, nil
}

// again is what a human does about another log than the one that is at the destination.
func (f *Forwarder) again() string {
	return ". Once you know why: stop auditrelay, remove " + f.path() + ", and start it, and all of this log goes there"
}

func (f *Forwarder) path() string { return filepath.Join(f.cfg.Dir, "forwarded-"+f.cfg.Name) }

// Run forwards until ctx ends.
func (f *Forwarder) Run(ctx context.Context) {
	pause := time.Duration(0)
	for {
		more, err := f.Step(ctx)
		if ctx.Err() != nil {
			return
		}
		f.say(ctx, err)
		switch {
		case err != nil:
			pause = min(max(2*pause, minPause), maxPause)
			// Not all forwarders at once.
			if !clock.Sleep(ctx, pause/2+rand.N(pause/2)) { //nolint:gosec // nothing depends on who foresees it
				return
			}
			continue
		case !more && !clock.Sleep(ctx, poll):
			return
		}
		pause = 0
	}
}

// Step brings the next records to the destination and reports whether there were any.
func (f *Forwarder) Step(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := f.cfg.Audit.ReadRecords(ctx, &auditv1.ReadRecordsRequest{
		Destination: f.cfg.Name, FromIndex: f.at.Next, Limit: uint32(f.limit), Problem: f.problem,
	})
	switch {
	case fault.Is(err, callv1.Code_CODE_CONFLICT):
		return false, fmt.Errorf("THE LOG WAS PUT BACK: it has fewer records than the %d that are at the destination%s", f.at.Next, f.again())
	case err != nil:
		return false, fmt.Errorf("audit: %w", err)
	case f.at.Next > 0 && !bytes.Equal(answer.GetBefore(), f.at.Leaf):
		return false, fmt.Errorf("THE LOG WAS REWRITTEN: its record %d is another one than the one at the destination%s", f.at.Next-1, f.again())
	}
	records := answer.GetRecords()
	for i, r := range records {
		if r.GetIndex() != f.at.Next+uint64(i) {
			return false, fmt.Errorf("audit leaves out records: %d where %d comes next", r.GetIndex(), f.at.Next+uint64(i))
		}
	}
	if len(records) == 0 {
		return false, nil
	}
	if err := f.cfg.To.Send(ctx, records); err != nil {
		if refused := (*Refused)(nil); errors.As(err, &refused) {
			f.limit = max(len(records)/2, 1)
			err = fmt.Errorf("record %d, or one of the %d after it: %w", f.at.Next, len(records)-1, err)
		}
		return false, err
	}
	last := records[len(records)-1]
	next := cursor{Log: f.cfg.Origin, Next: last.GetIndex() + 1, Leaf: last.GetLeafHash()}
	raw, err := json.Marshal(next)
	if err == nil {
		err = durable.Replace(f.path(), append(raw, '\n'))
	}
	if err != nil {
		return false, fmt.Errorf("what is at the destination cannot be kept, and will go there again: %w", err)
	}
	f.at, f.limit = next, min(2*f.limit, batch)
	return true, nil
}

// say logs what changed, and keeps it for audit's status.
func (f *Forwarder) say(ctx context.Context, err error) {
	text := ""
	if err != nil {
		text = clean.Line(err.Error(), maxProblem)
	}
	if text == f.problem {
		return
	}
	f.problem = text
	if err != nil {
		f.cfg.Logger.ErrorContext(ctx, "not forwarded", "destination", f.cfg.Name, "next", f.at.Next, "cause", text)
		return
	}
	f.cfg.Logger.InfoContext(ctx, "forwarded again", "destination", f.cfg.Name, "next", f.at.Next)
}
