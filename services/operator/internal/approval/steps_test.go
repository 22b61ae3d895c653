package approval

import (
	"errors"
	"fmt"
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
)

// TestThePlanOfAnAlternative names what it keeps, and nothing else that a plan does not have.
func TestThePlanOfAnAlternative(t *testing.T) {
	for name, c := range map[string]struct {
		key  string
		want error
	}{
		"what it keeps":        {"keeps", nil},
		"something unheard of": {"leaves", ErrTarget},
	} {
		op, p := switching(t)
		var form map[string]any
		must(t, canonical.Unmarshal(p.GetSubject().GetEntry(), &form))
		form[c.key] = []string{"embed"}
		plan, err := canonical.Marshal(form)
		must(t, err)
		op.Arguments = fmt.Appendf(nil, `{"mode_id":"coding","plan_digest":"%x"}`, canonical.Digest(plan))
		p.Subject = &callv1.Subject{Label: "mode coding", Entry: plan}
		steps, err := Call{Arguments: op.Arguments}.Steps(p)
		if !errors.Is(err, c.want) || c.want == nil && len(steps) != 2 {
			t.Errorf("%s: %v, %v", name, steps, err)
		}
	}
}
