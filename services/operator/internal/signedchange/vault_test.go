package signedchange

import (
	"testing"
	"testing/synctest"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// TestUnhurried: what could not be recorded is tried again, what was refused is not.
func TestUnhurried(t *testing.T) {
	busy := fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "nothing can be recorded now")
	refused := fault.New(callv1.Code_CODE_DENIED, "no")
	for _, c := range []struct {
		name    string
		answers []error
		want    error
		tries   int
	}{
		{"well", []error{nil}, nil, 1},
		{"busy for a moment", []error{busy, busy, nil}, nil, 3},
		{"busy for good", []error{busy, busy, busy, nil}, busy, 3},
		{"refused", []error{refused, nil}, refused, 1},
		{"busy, then refused", []error{busy, refused, nil}, refused, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			tries := 0
			err := Unhurried(t.Context(), func() error {
				tries++
				return c.answers[tries-1]
			})
			if tries != c.tries || (err == nil) != (c.want == nil) || err != nil && fault.From(err).Code != fault.From(c.want).Code {
				t.Errorf("%s: %d tries, %v", c.name, tries, err)
			}
		})
	}
}
