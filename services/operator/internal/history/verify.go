package history

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/retention"
	"durward.internal/services/platform/trust"
)

// Report is what a verification found.
type Report struct {
	Records  uint64 `json:"records"`
	Root     string `json:"root"`
	SignedBy string `json:"signed_by"`
	// Statements are counted once each, however many records carry them; bad ones are not among them.
	Statements int `json:"statements"`
	// Unjudged are those of them whose signer is no longer, or not yet, in allowed_signers.
	Unjudged int `json:"statements_of_unknown_signers"`
	// BadStatements counts the records whose statement does not stand: no human signed what they say. The log is whole all
	// the same. Bad lists the first of them.
	BadStatements int       `json:"bad_statements"`
	Bad           []Finding `json:"bad,omitempty"`
	// MissingBodies counts the records that come without their body, of which the tree holds the commitment alone: what they
	// said is gone, or is withheld. Missing lists the first of them.
	MissingBodies int       `json:"missing_bodies"`
	Missing       []Finding `json:"missing,omitempty"`
	// PrunedBodies counts the records whose body is gone as an operator signed.
	PrunedBodies int `json:"pruned_bodies,omitempty"`
	// Complete is what was found of the stories that the log tells, where that was asked for.
	Complete *Completed `json:"complete,omitempty"`
	// KeptSize is the size of the checkpoint that was kept before; 0 for none.
	KeptSize uint64 `json:"kept_checkpoint_size"`
	// WitnessedSize is the size of the newest checkpoint that a quorum of witnesses cosigned, and that the log extends; WitnessedBy are
	// those witnesses. 0: none.
	WitnessedSize uint64   `json:"witnessed_size,omitempty"`
	WitnessedBy   []string `json:"witnessed_by,omitempty"`
}

// Finding is a record with which something is wrong.
type Finding struct {
	Index   uint64 `json:"index"`
	Writer  string `json:"writer"`
	Problem string `json:"problem"`
}

// maxFindings bounds each list of findings: a hostile writer can make any number of them.
const maxFindings = 20

func found(list []Finding, entry *auditv1.Entry, problem string) []Finding {
	if len(list) == maxFindings {
		return list
	}
	return append(list, Finding{entry.GetIndex(), entry.GetWriter(), clean.Line(problem, 200)})
}

// Evidence returns the human's statement that an entry carries: nil for none, and for one in a record that has none to
// carry, which is no evidence, whatever it says.
func Evidence(e *auditv1.Entry) *callv1.HumanStatement {
	statement := e.GetRecord().GetBody().GetStatement()
	if statement == nil {
		return nil
	}
	if writer, err := identity.Parse(e.GetWriter()); err != nil || !logproof.CarriesStatement(writer.Role(), e.GetRecord().GetKind()) {
		return nil
	}
	return statement
}

// Verifier proves a whole log: every leaf rebuilt, every body against its commitment, the tree against the signed
// checkpoint and against the one kept before. It judges every human's statement by its signature; one that does not stand
// is reported, and the proof goes on.
type Verifier struct {
	keys    []note.Verifier
	allowed *trust.AllowedSigners
	replay  logproof.Replay
	ledger  retention.Ledger
	head    logproof.Checkpoint
	report  Report
	// seen are the statements that were counted, by digest; true: among the unjudged too.
	seen map[[sha256.Size]byte]bool
	// complete follows the log's stories; nil: nobody asked for that.
	complete *Completeness
}

// Complete makes the verifier also hold what each writer says of an operation to what the others say. A gap in a writer's sequence is
// then a finding, and the proof goes on. Call it before Add.
func (v *Verifier) Complete() *Verifier {
	v.complete = NewCompleteness()
	v.replay.OnGap = v.complete.Gap
	return v
}

// NewVerifier returns a verifier with the keys of a trust snapshot. earlier are checkpoints seen before; zero ones count for
// nothing, and the report speaks of the first.
func NewVerifier(roots *trust.Snapshot, earlier ...logproof.Checkpoint) *Verifier {
	v := &Verifier{keys: roots.LogKeys, allowed: roots.AllowedSigners, seen: map[[sha256.Size]byte]bool{}}
	v.ledger.Allowed = v.allowed
	for i, c := range earlier {
		if i == 0 {
			v.report.KeptSize = c.Size
		}
		if !c.IsZero() {
			v.replay.Expect(c)
		}
	}
	return v
}

// Head takes the signed checkpoint that the log must add up to.
func (v *Verifier) Head(checkpoint []byte) error {
	head, err := logproof.OpenCheckpoint(checkpoint, v.keys)
	if err != nil {
		return err
	}
	v.head = head
	v.report.Records, v.report.Root = head.Size, fmt.Sprintf("%x", head.Root)
	v.report.SignedBy, err = signedBy(checkpoint, v.keys)
	return err
}

// signedBy is the log key that signed a checkpoint, as NAME+HASH.
func signedBy(checkpoint []byte, keys []note.Verifier) (string, error) {
	n, err := note.Open(checkpoint, note.VerifierList(keys...))
	if err != nil {
		return "", fmt.Errorf("checkpoint: %w", err)
	}
	return fmt.Sprintf("%s+%08x", n.Sigs[0].Name, n.Sigs[0].Hash), nil
}

// Add checks the next entry, which logproof.Check looked at.
func (v *Verifier) Add(checked logproof.Checked) error {
	entry := checked.Entry()
	var before [sha256.Size]byte
	if entry.GetRecord().GetKind() == auditv1.Kind_KIND_RESTORED {
		before = v.replay.Root()
	}
	if err := v.replay.AddChecked(checked); err != nil {
		return err
	}
	if v.complete != nil {
		v.complete.Add(entry)
	}
	refused := v.retained(v.ledger.Add(entry))
	switch {
	case withheld(entry):
		v.report.MissingBodies++
		v.report.Missing = found(v.report.Missing, entry, "its body is missing")
	case logproof.BodyMissing(entry):
		v.report.PrunedBodies++
	case refused:
	default:
		if evidence := Evidence(entry); evidence != nil {
			v.judge(entry, evidence, before)
		}
	}
	return nil
}

// retained counts what the ledger found, and reports whether a decision does not stand.
func (v *Verifier) retained(problems []retention.Problem) (refused bool) {
	for _, p := range problems {
		entry := &auditv1.Entry{Index: p.Index, Writer: p.Writer}
		if p.Gone {
			v.report.MissingBodies++
			v.report.PrunedBodies--
			v.report.Missing = found(v.report.Missing, entry, p.Text)
			continue
		}
		refused = true
		v.report.BadStatements++
		v.report.Bad = found(v.report.Bad, entry, p.Text)
	}
	return refused
}

// Finish compares the whole with the checkpoint.
func (v *Verifier) Finish() (Report, error) {
	if v.head.IsZero() {
		return Report{}, errors.New("the log holds no checkpoint")
	}
	if err := v.replay.Finish(v.head); err != nil {
		return Report{}, err
	}
	v.retained(v.ledger.Finish())
	if v.complete != nil {
		completed := v.complete.Finish()
		v.report.Complete = &completed
	}
	return v.report, nil
}

// exporter is audit's ExportLog.
type exporter interface {
	Recv() (*auditv1.ExportLogResponse, error)
}

// Fetch asks audit for its log from an index on, and for the proof that the log extends what its reader knows. An audit from before bodies
// came apart refuses the field that asks for them so, as it refuses all that it does not know, and sends each in its entry.
func Fetch(ctx context.Context, audit interface {
	ExportLog(ctx context.Context, in *auditv1.ExportLogRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[auditv1.ExportLogResponse], error)
}, from, known uint64) (exporter, error) {
	req := &auditv1.ExportLogRequest{FromIndex: from, KnownSize: known, Bare: true, BodiesApart: true}
	stream, err := audit.ExportLog(ctx, req)
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if status.Code(err) == codes.InvalidArgument {
		req.BodiesApart = false
		return audit.ExportLog(ctx, req)
	}
	return &begun{stream, func() (*auditv1.ExportLogResponse, error) { return first, err }}, nil
}

// begun is an export of which the first message was received.
type begun struct {
	exporter
	first func() (*auditv1.ExportLogResponse, error)
}

func (b *begun) Recv() (*auditv1.ExportLogResponse, error) {
	if first := b.first; first != nil {
		b.first = nil
		return first()
	}
	return b.exporter.Recv()
}

// ahead is how many messages, or batches of lines, are looked at before the one that is added.
const ahead = 4

// Each reads an export: the checkpoint first, then every entry. What an entry consists of is checked while others are read and added. An
// export that ends early may be read for one more message after Each has returned.
func Each(stream exporter, head func(checkpoint []byte, consistency [][]byte) error, entry func(logproof.Checked) error) error {
	first := true
	return inOrder(stream.Recv, logproof.CheckPage, func(part *auditv1.ExportLogResponse, checked []logproof.Checked) error {
		if first {
			first = false
			if err := head(part.GetCheckpoint(), part.GetConsistency()); err != nil {
				return err
			}
		}
		for _, c := range checked {
			if err := entry(c); err != nil {
				return err
			}
		}
		return nil
	})
}

// inOrder reads parts until io.EOF, has work done on several at once, and gives each with what came of it to use, in the order in which
// they were read, until that returns an error.
func inOrder[P, R any](read func() (P, error), work func(P) R, use func(P, R) error) error {
	type job struct {
		part P
		err  error
		done chan R // holds one
	}
	jobs, stop := make(chan job, ahead), make(chan struct{})
	defer close(stop)
	go func() {
		defer close(jobs)
		for {
			part, err := read()
			j := job{part, err, make(chan R, 1)}
			select {
			case jobs <- j:
			case <-stop:
				return
			}
			if err != nil {
				return
			}
			go func() { j.done <- work(part) }()
		}
	}()
	for j := range jobs {
		if errors.Is(j.err, io.EOF) {
			return nil
		}
		if j.err != nil {
			return j.err
		}
		if err := use(j.part, <-j.done); err != nil {
			return err
		}
	}
	return nil
}

// Verify proves the log as audit exports it with one of the log's verifiers, and keeps its checkpoint.
func (l *Log) Verify(ctx context.Context, stream exporter, v *Verifier) (Report, error) {
	var raw []byte
	var proof [][]byte
	err := Each(stream, func(checkpoint []byte, consistency [][]byte) error {
		raw, proof = checkpoint, consistency
		return v.Head(checkpoint)
	}, v.Add)
	if err != nil {
		return Report{}, err
	}
	report, err := v.Finish()
	if err != nil {
		return Report{}, err
	}
	if _, err := l.keeper.AcceptHead(ctx, raw, proof); err != nil {
		return Report{}, err
	}
	return report, nil
}

// An exported file is JSON lines: the checkpoint as an object with the member "checkpoint", then an entry a line in
// protobuf's JSON with proto names.

// maxLine bounds a line of an exported file: a record with its statement and arguments.
const maxLine = 4 << 20

// WriteHead and WriteEntry write the lines of an exported file.
func WriteHead(w io.Writer, checkpoint []byte) error {
	return json.NewEncoder(w).Encode(map[string]string{"checkpoint": string(checkpoint)})
}

// WriteEntry writes one entry's line.
func WriteEntry(w io.Writer, e *auditv1.Entry) error {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode entry: %w", err)
	}
	var line bytes.Buffer
	if err := json.Compact(&line, b); err != nil {
		return fmt.Errorf("encode entry: %w", err)
	}
	line.WriteByte('\n')
	_, err = w.Write(line.Bytes())
	return err
}

// linesAtOnce is how many lines of a file are looked at together.
const linesAtOnce = 128

// ErrNoExport means that a file was not written by an export.
var ErrNoExport = errors.New("the file does not begin with a checkpoint")

// VerifyFile proves an exported file offline. Where it finds an error, more of the file may be read after it has returned.
func VerifyFile(r io.Reader, v *Verifier) (Report, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	if lines.Scan() {
		var head struct {
			Checkpoint string `json:"checkpoint"`
		}
		if err := json.Unmarshal(lines.Bytes(), &head); err != nil {
			return Report{}, ErrNoExport
		}
		if err := v.Head([]byte(head.Checkpoint)); err != nil {
			return Report{}, err
		}
	}
	if err := inOrder(func() (batch [][]byte, err error) {
		for size := 0; len(batch) < linesAtOnce && size < maxLine && lines.Scan(); size += len(lines.Bytes()) {
			batch = append(batch, bytes.Clone(lines.Bytes()))
		}
		if len(batch) > 0 {
			return batch, nil
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("read the file: %w", err)
		}
		return nil, io.EOF
	}, func(batch [][]byte) []logproof.Checked {
		checked := make([]logproof.Checked, 0, len(batch))
		for _, line := range batch {
			e := &auditv1.Entry{}
			if protojson.Unmarshal(line, e) != nil {
				break // what is missing cannot be read
			}
			checked = append(checked, logproof.Check(e))
		}
		return checked
	}, func(batch [][]byte, checked []logproof.Checked) error {
		for _, c := range checked {
			if err := v.Add(c); err != nil {
				return err
			}
		}
		if len(checked) < len(batch) {
			return fmt.Errorf("entry %d cannot be read", v.replay.Size())
		}
		return nil
	}); err != nil {
		return Report{}, err
	}
	return v.Finish()
}
