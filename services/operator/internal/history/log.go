// Package history is the operator's side of the audit log: it writes what the operator changed, keeps the newest checkpoint
// that it verified, and proves a whole log against it.
//
// It runs in the operator's process. It trusts the log keys in the trust folder and its own kept checkpoint; audit's
// answers are believed only as far as they are proved.
package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/redaction"
	"durward.internal/services/platform/trust"
)

// Config is what a Log needs; everything but OnRefused is required.
type Config struct {
	Client auditv1.LogServiceClient
	// Audit and Writer are SPIFFE IDs: the log's keeper, and who this program is.
	Audit, Writer string
	Trust         *trust.Folder
	// StateDir keeps the checkpoint and what could not be sent yet.
	StateDir string
	Now      func() time.Time
	// OnRefused is told once of each record that had waited, and that audit then refused for good. Nil: nobody.
	OnRefused func(*Refusal)
}

// Log is the operator's view of the audit log. It holds a lock on its state folder, so that two commands do not write or
// judge at once; Close gives it back.
type Log struct {
	cfg    Config
	keeper *logproof.Keeper
	lock   *os.File
	// before is what was held when the log was opened.
	before logproof.Checkpoint
}

const (
	checkpointFile = "checkpoint"
	// witnessedFile keeps the newest checkpoint that a quorum of the trusted witnesses cosigned, with their cosignatures: evidence,
	// against whoever holds the log's key too.
	witnessedFile = "witnessed"
	unsentFile    = "unsent"
	// lockPatience is how long a command waits for another to finish with the log.
	lockPatience = 5 * time.Second
	// maxUnsent bounds what waits for audit: as many records as one append takes.
	maxUnsent = 512
)

// store keeps the checkpoints in files of a folder.
type store struct{ dir string }

// files are where each is.
var files = map[logproof.Kept]string{logproof.KeptSeen: checkpointFile, logproof.KeptWitnessed: witnessedFile}

func (s store) LoadCheckpoint(_ context.Context, which logproof.Kept) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, files[which]))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

func (s store) SaveCheckpoint(_ context.Context, which logproof.Kept, checkpoint []byte) error {
	return asOwner(s.dir, func() error { return installdir.WriteFile(filepath.Join(s.dir, files[which]), checkpoint, 0o600) })
}

// Open prepares the log; it asks audit nothing yet.
func Open(ctx context.Context, cfg Config) (*Log, error) {
	lock, err := lockFolder(ctx, cfg.StateDir)
	if err != nil {
		return nil, err
	}
	keeper, err := logproof.NewKeeper(ctx, logproof.KeeperConfig{
		Origin: logproof.Origin(cfg.Audit),
		Keys:   func() []note.Verifier { return cfg.Trust.Current().LogKeys },
		Store:  store{cfg.StateDir},

		Witnesses: func() logproof.Witnesses { return cfg.Trust.Current().Witnesses },
	})
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &Log{cfg: cfg, keeper: keeper, lock: lock, before: keeper.Held()}, nil
}

// Close gives the lock back.
func (l *Log) Close() error { return l.lock.Close() }

func lockFolder(ctx context.Context, dir string) (f *os.File, err error) {
	err = asOwner(dir, func() error {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		f, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("operator state: %w", err)
	}
	deadline := time.After(lockPatience)
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), ErrBusy, f.Close())
		case <-deadline:
			return nil, errors.Join(ErrBusy, f.Close())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Held is the newest checkpoint that was verified, zero before the first.
func (l *Log) Held() logproof.Checkpoint { return l.keeper.Held() }

// Witnessed is the newest checkpoint that a quorum of witnesses cosigned, zero before the first.
func (l *Log) Witnessed() logproof.Witnessed {
	newest, _ := l.keeper.Witnessed(l.cfg.Now())
	return newest
}

// Verifier returns a verifier that holds a log against the checkpoint that was kept before this program started, against the
// newest one that it kept since, and against what others have seen.
func (l *Log) Verifier(seen ...Seen) *Verifier {
	witnessed := l.Witnessed()
	earlier := []logproof.Checkpoint{l.before, l.keeper.Held(), witnessed.Checkpoint}
	for _, s := range seen {
		earlier = append(earlier, s.Checkpoint)
	}
	v := NewVerifier(l.cfg.Trust.Current(), earlier...)
	v.report.WitnessedSize, v.report.WitnessedBy = witnessed.Size, witnessed.By
	return v
}

// Keep asks audit for its head and keeps it, if it extends what is held.
func (l *Log) Keep(ctx context.Context) (lastSequence uint64, err error) {
	head, err := l.cfg.Client.GetHead(ctx, &auditv1.GetHeadRequest{KnownSize: l.keeper.Held().Size})
	if err != nil {
		return 0, err
	}
	if err := l.keeper.AcceptAnswer(ctx, head, l.cfg.Now()); err != nil {
		return 0, err
	}
	return head.GetLastSequence(), nil
}

// Write appends a record of the operator's, with what waited before it. What cannot be sent now is kept in the state folder
// and goes with the next write; sent says whether it went. A record that audit refuses for good is set aside: a *Refusal if it
// is this one. An answer that does not prove itself is an error.
func (l *Log) Write(ctx context.Context, kind auditv1.Kind, requestID string, body *auditv1.Body) (sent bool, err error) {
	waiting, err := l.unsent()
	if err != nil {
		return false, err
	}
	own := newRecord(l.cfg.Now(), kind, requestID, body)
	return l.send(ctx, append(waiting, own), own)
}

func newRecord(now time.Time, kind auditv1.Kind, requestID string, body *auditv1.Body) *auditv1.Record {
	own := &auditv1.Record{Kind: kind, Time: timestamppb.New(now), RequestId: requestID, Status: auditv1.Status_STATUS_OK, Body: body}
	own, _ = redaction.New().Record(own)
	return own
}

// Flush sends what waited.
func (l *Log) Flush(ctx context.Context) error {
	waiting, err := l.unsent()
	if err != nil || len(waiting) == 0 {
		return err
	}
	_, err = l.send(ctx, waiting, nil)
	return err
}

// send delivers the records, oldest first. It tells of every record that it sets aside, but for own, whose refusal it returns.
func (l *Log) send(ctx context.Context, records []*auditv1.Record, own *auditv1.Record) (bool, error) {
	last, err := l.Keep(ctx)
	if err != nil {
		if isProof(err) {
			return false, errors.Join(err, l.keepUnsent(records))
		}
		return false, l.keepUnsent(records)
	}
	d := delivery{log: l, next: records[0].GetSequence(), last: last, own: own}
	// An append whose answer was lost may have been durable. Such records go again under their old numbers: the log does
	// not write them twice, and its receipt, not its last sequence, says that it has them. Where other records have those
	// numbers they get new ones: twice is better than not at all.
	d.next = cmp.Or(d.next, last+1)
	waits, err := d.run(ctx, records)
	return len(waits) == 0 && err == nil, errors.Join(err, l.keepUnsent(waits))
}

// append sends the records, numbered from first on.
func (l *Log) append(ctx context.Context, records []*auditv1.Record, first uint64) (*auditv1.AppendResponse, error) {
	for i, r := range records {
		r.Sequence = first + uint64(i)
	}
	return l.cfg.Client.Append(ctx, &auditv1.AppendRequest{Records: records, KnownSize: l.keeper.Held().Size})
}

// accept checks that the log took exactly these records.
func (l *Log) accept(ctx context.Context, records []*auditv1.Record, answer *auditv1.AppendResponse) error {
	if len(answer.GetReceipts()) != len(records) || len(answer.GetPlacements()) != len(records) {
		return logproof.ErrInclusion
	}
	if err := l.keeper.Accept(ctx, answer); err != nil {
		return err
	}
	for i, r := range records {
		if err := logproof.VerifyPlacement(l.cfg.Writer, r, answer.GetPlacements()[i], answer.GetReceipts()[i]); err != nil {
			return err
		}
	}
	return nil
}

// isProof reports whether audit answered, and the answer was not what it has to be.
func isProof(err error) bool {
	return slices.ContainsFunc([]error{logproof.ErrSignature, logproof.ErrFormat, logproof.ErrOrigin, logproof.ErrRollback, logproof.ErrFork, logproof.ErrInclusion},
		func(target error) bool { return errors.Is(err, target) })
}

// Seen is a checkpoint of the log that a process keeps, signed by a key of the log's.
type Seen struct {
	// By names the process, "the vault".
	By         string
	Checkpoint logproof.Checkpoint
}

// Altered is a log that does not extend what was seen of it. It wraps logproof.ErrRollback, ErrFork or ErrOrigin.
type Altered struct {
	text  string
	cause error
}

func (a *Altered) Error() string { return a.text }

func (a *Altered) Unwrap() error { return a.cause }

// Kept returns the signed checkpoint that the operator's commands keep in their state folder, nil for none.
func Kept(ctx context.Context, stateDir string) ([]byte, error) {
	return store{stateDir}.LoadCheckpoint(ctx, logproof.KeptSeen)
}

// Prover proves that one tree of the log extends another, as audit does.
type Prover interface {
	GetConsistency(ctx context.Context, in *auditv1.GetConsistencyRequest, opts ...grpc.CallOption) (*auditv1.GetConsistencyResponse, error)
}

// Extends asks audit for proofs that its log extends all that was seen of it: one head for all, so that who keeps two histories cannot
// answer for what was seen of either out of that one. An *Altered says, in one sentence with both sizes, that it does not; any other error,
// that there was no answer.
func Extends(ctx context.Context, log auditv1.LogServiceClient, proofs Prover, open func([]byte) (logproof.Checkpoint, error), seen ...Seen) error {
	known := uint64(0) // audit that follows another one looks again before it shows less
	for _, s := range seen {
		known = max(known, s.Checkpoint.Size)
	}
	if known == 0 {
		return nil
	}
	head, err := log.GetHead(ctx, &auditv1.GetHeadRequest{KnownSize: known})
	if err != nil {
		return err
	}
	now, err := open(head.GetCheckpoint())
	if err != nil {
		return &Altered{"audit shows a log that no key in the trust folder's log_keys signed", err}
	}
	for _, s := range seen {
		proof := head.GetConsistency()
		if s.Checkpoint.Size < min(known, now.Size) {
			answer, err := proofs.GetConsistency(ctx, &auditv1.GetConsistencyRequest{OldSize: s.Checkpoint.Size, NewSize: now.Size})
			if err != nil {
				return err
			}
			proof = answer.GetConsistency()
		}
		switch err := logproof.VerifyConsistency(s.Checkpoint, now, proof); {
		case errors.Is(err, logproof.ErrRollback):
			return &Altered{fmt.Sprintf("the log was put back: it has %s, and %s has seen %d", clean.Count(now.Size, "record"), s.By, s.Checkpoint.Size), err}
		case err != nil:
			return &Altered{fmt.Sprintf("the log was replaced: its %s not go on from the %d that %s has seen", clean.Count(now.Size, "record does", "records do"), s.Checkpoint.Size, s.By), err}
		}
	}
	return nil
}
