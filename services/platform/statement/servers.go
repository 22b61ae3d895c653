package statement

import (
	"fmt"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/trust"
)

// Servers is which tools of other people's MCP servers a human saw and accepted, all together: what servers.lock holds.
type Servers struct {
	// Digest is of the lock's list of servers, with every definition.
	Digest string `json:"digest"`
	// Tools is how many tools each server has, by its id: what was displayed.
	Tools map[string]int `json:"tools"`
}

var serverID = pattern.New(`\A[a-z][a-z0-9-]{0,31}\z`)

func (s *Servers) check() error {
	bad := func(what string) error { return fmt.Errorf("%w: accepted servers' %s", ErrMalformed, what) }
	if _, err := canonical.ParseDigest(s.Digest); err != nil {
		return bad("digest is not a digest")
	}
	if s.Tools == nil || len(s.Tools) > 64 {
		return bad("tools are not counted")
	}
	for id, n := range s.Tools {
		if !serverID().MatchString(id) || n < 0 || n > 10_000 {
			return bad("ids or numbers are none")
		}
	}
	return nil
}

// ServersSigned verifies the statement of a servers.lock, as package downstream's ReadLock wants it: it counts as long as the key that
// signed it is an operator's, at the time that it is read.
func ServersSigned(operators *trust.AllowedSigners, at time.Time) func(*callv1.HumanStatement) (digest string, err error) {
	return func(h *callv1.HumanStatement) (string, error) {
		s, err := VerifySignature(h, operators, at)
		switch {
		case err != nil:
			return "", err
		case s.Kind != KindServers:
			return "", fmt.Errorf("%w: kind", ErrCover)
		}
		return s.Servers.Digest, nil
	}
}
