package log_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/mod/sumdb/note"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/platform/fault"
)

// watched is a signer that remembers what it signed.
type watched struct {
	note.Signer
	mu    sync.Mutex
	texts []string
}

func (w *watched) Sign(text []byte) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, string(text))
	return w.Signer.Sign(text)
}

// checkpoints are the sizes of which it signed checkpoints since the last call.
func (w *watched) checkpoints() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var sizes []string
	for _, text := range w.texts {
		if lines := strings.Split(text, "\n"); lines[0] == origin {
			sizes = append(sizes, lines[1])
		}
	}
	w.texts = nil
	return sizes
}

// TestNoCheckpointOfWhatIsNotCommitted: a checkpoint is signed when its entries are in the store, and never of others.
func TestNoCheckpointOfWhatIsNotCommitted(t *testing.T) {
	r := newRig(t)
	r.log.Close()
	w := &watched{Signer: r.signer}
	cfg := r.config()
	cfg.Signer = w
	var err error
	if r.log, err = log.Open(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	w.checkpoints()
	r.append(writers[0], r.record(writers[0], "one"))
	if got := w.checkpoints(); !slices.Equal(got, []string{"1"}) {
		t.Errorf("checkpoints of %v", got)
	}
	r.db.set(errors.New("the disk is gone"), nil, nil)
	if _, err := r.log.Append(t.Context(), writers[0], r.records[writers[0]][:0:0], 0); err != nil {
		t.Fatal(err)
	}
	lost := r.record(writers[0], "two")
	if _, err := r.log.Append(t.Context(), writers[0], append(r.records[writers[0]][:0:0], lost), 0); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
		t.Fatal(err)
	}
	if got := w.checkpoints(); slices.Contains(got, "2") {
		t.Errorf("checkpoints of %v, and entry 1 is nowhere", got)
	}
	r.db.set(nil, nil, nil)
	r.append(writers[0], lost)
	if got := w.checkpoints(); !slices.Contains(got, "2") {
		t.Errorf("checkpoints of %v", got)
	}
}
