package relay_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"durward.internal/services/platform/trust"
)

// TestALogKeyThatIsTakenOut: what was cosigned under a key that is trusted no more is not shown: nobody who asks for the head could verify it,
// and all would refuse the head with it.
func TestALogKeyThatIsTakenOut(t *testing.T) {
	w := newWorld(t, 3, 2, "")
	a := w.audit(w.dir)
	w.write(a, 5, "true")
	must(t, w.relay(a).Round(t.Context()))
	a.close()
	secret, public, err := note.GenerateKey(nil, w.kit.LogSigner.Name())
	must(t, err)
	trusted, err := os.ReadFile(filepath.Join(w.kit.TrustDir, trust.FileLogKeys))
	must(t, err)
	w.kit.WriteTrust(trust.FileLogKeys, append(trusted, []byte(public+"\n")...))
	must(t, w.kit.Trust.Reload())
	w.kit.LogSigner, err = note.NewSigner(secret)
	must(t, err)
	a = w.audit(w.dir)
	w.write(a, 1, "true")
	fresh := w.verifier(nil, w.trusted)
	must(t, w.look(a, fresh))
	if got, _ := fresh.Witnessed(time.Now()); got.Size != 5 {
		t.Fatalf("while both keys are trusted: %d records are cosigned", got.Size)
	}
	w.kit.WriteTrust(trust.FileLogKeys, []byte(public+"\n"))
	must(t, w.kit.Trust.Reload())
	fresh = w.verifier(nil, w.trusted)
	if err := w.look(a, fresh); err != nil || fresh.Held().Size != 6 {
		t.Errorf("without the first key: %v, holds %d", err, fresh.Held().Size)
	}
}
