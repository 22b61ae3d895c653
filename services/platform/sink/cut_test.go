package sink

import (
	"strings"
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/reference"
)

// TestFailuresAreCutAfterwards: wherever the cut falls, the vault sees a value whole, and no part of it leaves, or of a reference.
func TestFailuresAreCutAfterwards(t *testing.T) {
	censor := &censor{}
	a, _, _ := newAuthority(t, platformtest.New(t), func(cfg *Config) { cfg.Tokeniser = censor })
	ref := reference.Reference{Class: reference.PII, Type: "EMAIL", ID: reference.NewID()}.Marshal()
	for padding := range 520 {
		said := strings.Repeat("x", padding) + " " + secret + " " + ref + strings.Repeat(" and so on", 100)
		err := a.tokeniseFault(t.Context(), &call{signedGrant: &callv1.SignedGrant{}}, fault.New(callv1.Code_CODE_FAILED, said))
		if asked := censor.requests[len(censor.requests)-1].GetTexts()[0]; asked != said {
			t.Fatalf("the vault saw %q", asked)
		}
		told := fault.From(err).Proto("").GetMessage()
		if strings.Contains(told, secret[:2]) || padding < 400 && !strings.Contains(told, ref) || strings.Contains(told, ref[:5]) && !strings.Contains(told, ref) {
			t.Fatalf("with %d characters before the value: %q", padding, told)
		}
	}
}
