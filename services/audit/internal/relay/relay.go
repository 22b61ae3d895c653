// Package relay carries checkpoints of the log to witnesses, and their cosignatures back to audit, which dials nobody. It is linked by
// the program auditrelay alone, which has a Unix user of its own and no key of the log's: what it could do at worst is to bring
// nothing. It trusts its configuration; what witnesses answer is a stranger's, and only lines that a trusted witness's key made go on.
package relay

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/witness"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/logproof"
)

const (
	// maxLines and maxLine bound what is taken of a witness's answer.
	maxLines = 4
	maxLine  = 512
	// patience is how long one round may take.
	patience = 30 * time.Second
)

// Doer sends one request and reads the answer whole, within bounds; a *dialer.Dialer is one.
type Doer interface {
	Do(req *http.Request) (*dialer.Answer, error)
}

// Config is what a Relay needs; all of it is required.
type Config struct {
	Audit auditv1.WitnessServiceClient
	// URLs are those of the witnesses, to which /add-checkpoint is added.
	URLs []string
	Do   Doer
	// Witnesses returns the witnesses that are trusted now.
	Witnesses func() logproof.Witnesses
	Interval  time.Duration
	Logger    *slog.Logger
}

// Relay is the relay. Run it once.
type Relay struct {
	cfg Config
	// known is the size at which each witness saw the log last; said is what was logged last of it. Each goroutine of a round has its own
	// witness.
	mu    sync.Mutex
	known map[string]uint64
	said  map[string]string
}

// New returns a relay.
func New(cfg Config) *Relay {
	return &Relay{cfg: cfg, known: map[string]uint64{}, said: map[string]string{}}
}

// Run goes a round at once and then one each interval, until ctx ends.
func (r *Relay) Run(ctx context.Context) {
	tick := time.NewTicker(r.cfg.Interval)
	defer tick.Stop()
	for {
		if err := r.Round(ctx); ctx.Err() == nil {
			r.say(ctx, "audit", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Round shows the newest checkpoint to every witness, side by side, and brings back what they say. A witness that does not answer is
// logged and keeps none of the others waiting longer than the round lasts. An error is audit's.
func (r *Relay) Round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := r.cfg.Audit.GetCheckpoint(ctx, &auditv1.GetCheckpointRequest{})
	if err != nil {
		return err
	}
	// Whether its signature stands is for the witnesses, and for audit once more.
	c, err := logproof.ReadCheckpoint(answer.GetCheckpoint())
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var lines []string
	var asking sync.WaitGroup
	for _, url := range r.cfg.URLs {
		asking.Go(func() {
			got, err := r.ask(ctx, url, c, answer.GetCheckpoint())
			if ctx.Err() == nil || err == nil {
				r.say(ctx, url, err)
			}
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, got...)
		})
	}
	asking.Wait()
	if len(lines) == 0 {
		return nil
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_, err = r.cfg.Audit.AddCosignatures(ctx, &auditv1.AddCosignaturesRequest{Checkpoint: answer.GetCheckpoint(), Cosignatures: lines})
	return err
}

// ask asks one witness, once more if it knows the log at another size than was thought.
func (r *Relay) ask(ctx context.Context, url string, c logproof.Checkpoint, signed []byte) ([]string, error) {
	old := min(r.at(url), c.Size)
	for again := false; ; again = true {
		lines, known, err := r.post(ctx, url, old, c, signed)
		if err == nil {
			r.seen(url, c.Size)
			return lines, nil
		}
		if !errors.Is(err, errConflict) {
			return nil, err
		}
		r.seen(url, known)
		switch {
		case known == old:
			return nil, errors.New("THE WITNESS SAW ANOTHER HISTORY OF THIS LOG: at the same size it cosigned another tree")
		case known > c.Size:
			return nil, fmt.Errorf("THE LOG WAS PUT BACK, or the witness saw another one: it has %d records, and the witness has cosigned %d", c.Size, known)
		case again:
			return nil, errors.New("the witness names another size each time that it is asked")
		}
		old = known
	}
}

// errConflict is a witness's 409.
var errConflict = errors.New("the witness knows the log at another size")

// post asks one witness for its cosignature. known is the size that it names with errConflict.
func (r *Relay) post(ctx context.Context, url string, old uint64, c logproof.Checkpoint, signed []byte) (lines []string, known uint64, err error) {
	answer, err := r.cfg.Audit.GetConsistency(ctx, &auditv1.GetConsistencyRequest{OldSize: old, NewSize: c.Size})
	if err != nil {
		return nil, 0, err
	}
	proof := make([]tlog.Hash, len(answer.GetConsistency()))
	for i, b := range answer.GetConsistency() {
		if len(b) != tlog.HashSize {
			return nil, 0, errors.New("audit's proof is none")
		}
		proof[i] = tlog.Hash(b)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(url, "/")+"/add-checkpoint", bytes.NewReader(witness.FormatRequest(old, proof, signed)))
	if err != nil {
		return nil, 0, err
	}
	got, err := r.cfg.Do.Do(request)
	if err != nil {
		return nil, 0, err
	}
	switch got.Status {
	case http.StatusOK:
		lines, err = r.trusted(c, got.Body)
		return lines, 0, err
	case http.StatusConflict:
		text := strings.TrimSuffix(string(got.Body), "\n")
		if known, err = strconv.ParseUint(text, 10, 63); err != nil || got.Header.Get("Content-Type") != "text/x.tlog.size" {
			return nil, 0, errors.New("the witness refuses, and does not say at which size it knows the log")
		}
		return nil, known, errConflict
	case http.StatusUnprocessableEntity:
		return nil, 0, fmt.Errorf("THE WITNESS SAW ANOTHER HISTORY OF THIS LOG: its %d records do not go on from the %d that it cosigned", c.Size, old)
	case http.StatusForbidden:
		return nil, 0, errors.New("the witness has another key for this log")
	case http.StatusNotFound:
		return nil, 0, errors.New("the witness does not know this log, or serves something else there")
	default:
		return nil, 0, fmt.Errorf("the witness answers with status %d", got.Status)
	}
}

// trusted returns the lines that a trusted witness made for the checkpoint.
func (r *Relay) trusted(c logproof.Checkpoint, body []byte) (lines []string, err error) {
	var early error
	for line := range strings.SplitSeq(strings.TrimSuffix(string(body), "\n"), "\n") {
		if len(line) > maxLine || len(lines) == maxLines {
			continue
		}
		by, wrong := r.cfg.Witnesses().By(c, line, time.Now())
		early = cmp.Or(wrong, early)
		if by != "" {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return nil, cmp.Or(early, errors.New("the witness's answer is signed by no witness in the trust folder"))
	}
	return lines, nil
}

func (r *Relay) at(url string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[url]
}

func (r *Relay) seen(url string, size uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[url] = size
}

// say logs what changed with a peer.
func (r *Relay) say(ctx context.Context, peer string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	r.mu.Lock()
	last, known := r.said[peer]
	r.said[peer] = text
	r.mu.Unlock()
	switch {
	case known && last == text:
	case err != nil:
		r.cfg.Logger.ErrorContext(ctx, "no cosignature", "peer", peer, "cause", text)
	default:
		r.cfg.Logger.InfoContext(ctx, "cosignatures come", "peer", peer)
	}
}
