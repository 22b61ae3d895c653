package signedchange

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
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

// reading is a vault that has read the file as it is now at a time, and says until then what it made of the one before.
type reading struct {
	vaultv1.PolicyServiceClient
	at          time.Time
	before, now *vaultv1.ConfigFile
}

func (r reading) GetPolicy(context.Context, *vaultv1.GetPolicyRequest, ...grpc.CallOption) (*vaultv1.GetPolicyResponse, error) {
	if time.Now().Before(r.at) {
		return &vaultv1.GetPolicyResponse{Files: []*vaultv1.ConfigFile{r.before}}, nil
	}
	return &vaultv1.GetPolicyResponse{Files: []*vaultv1.ConfigFile{r.now}}, nil
}

// TestAdoptedOnceItWasRead: what the vault says of the file as it was before is nothing about the change that mends it.
func TestAdoptedOnceItWasRead(t *testing.T) {
	p := &Plan{Name: "security.yaml", Before: []byte("broken"), After: []byte("good")}
	broken := &vaultv1.ConfigFile{Name: p.Name, Digest: digest([]byte("older")), Problem: "it is broken"}
	for name, c := range map[string]struct {
		now  *vaultv1.ConfigFile
		good bool
	}{
		"mended":       {&vaultv1.ConfigFile{Name: p.Name, Digest: digest(p.After)}, true},
		"broken still": {broken, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			v := Vault{Policy: reading{at: time.Now().Add(time.Second), before: broken, now: c.now}}
			ok, waiting, err := v.adopted(t.Context(), []*Plan{p})
			if _, refused := errors.AsType[*RefusedError](err); ok != c.good || refused == c.good || waiting != "" {
				t.Errorf("%s: %v, %q, %v", name, ok, waiting, err)
			}
		})
	}
}
