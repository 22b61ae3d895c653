package history

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/trust"
)

// witnessedFile keeps the newest checkpoint that a quorum of the trusted witnesses cosigned, with their cosignatures: evidence, against
// whoever holds the log's key too.
const witnessedFile = "witnessed"

// loadWitnessed reads it. One that the witnesses which are trusted now did not cosign counts for nothing.
func loadWitnessed(stateDir string, roots *trust.Snapshot, now time.Time) (logproof.Witnessed, error) {
	raw, err := os.ReadFile(filepath.Join(stateDir, witnessedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return logproof.Witnessed{}, nil
	}
	if err != nil {
		return logproof.Witnessed{}, fmt.Errorf("the newest cosigned checkpoint: %w", err)
	}
	w, err := roots.Witnesses.OpenWitnessed(raw, roots.LogKeys, now)
	if err != nil {
		return logproof.Witnessed{}, nil //nolint:nilerr // see above
	}
	return w, nil
}

// keepWitnessed keeps what came beside the head, if it is newer.
func (l *Log) keepWitnessed() error {
	newest, _ := l.keeper.Witnessed(l.cfg.Now())
	if newest.IsZero() || newest.Size < l.witnessed.Size || !newest.At.After(l.witnessed.At) {
		return nil
	}
	if err := installdir.WriteFile(filepath.Join(l.cfg.StateDir, witnessedFile), newest.Signed, 0o600); err != nil {
		return err
	}
	l.witnessed = newest
	return nil
}

// WitnessLine says in a few words how the log stands with its witnesses: how many there are, when a quorum of them cosigned it last, and
// what that means. signed is what audit shows, nil for nothing.
func WitnessLine(roots *trust.Snapshot, signed []byte, now time.Time) (line string, good bool) {
	witnesses := roots.Witnesses
	if witnesses.Quorum == 0 {
		return "no witnesses", true
	}
	newest, err := witnesses.OpenWitnessed(signed, roots.LogKeys, now)
	if err != nil {
		newest = logproof.Witnessed{}
		line = fmt.Sprintf("COSIGNED BY NO QUORUM OF ITS %d WITNESSES", len(witnesses.Keys))
	} else {
		line = fmt.Sprintf("cosigned by %s at %d records, %s ago", clean.Line(strings.Join(newest.By, ", "), 200), newest.Size, now.Sub(newest.At).Round(time.Second))
	}
	if fresh := witnesses.Fresh(newest, now); fresh != nil {
		return line + "; CHANGES WAIT: " + fresh.Error(), false
	}
	return line, err == nil
}
