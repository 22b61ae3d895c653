package statement

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/trust"
)

func TestServersStatements(t *testing.T) {
	t.Parallel()
	good := func() *Servers {
		return &Servers{Digest: canonical.DigestText([]byte("servers")), Tools: map[string]int{"files": 14, "web": 0}}
	}
	try := func(kind Kind, s *Servers) error {
		raw, err := (&Statement{
			Type: Type, Version: Version, Kind: kind, ID: strings.Repeat("a", 32), Operator: "ada", IssuedAt: FormatTime(now),
			NotBefore: FormatTime(now), ExpiresAt: FormatTime(now.Add(time.Minute)), Epoch: 1, Audience: "spiffe://d/vault/local", Servers: s,
		}).Marshal()
		if err == nil {
			_, err = Parse(raw)
		}
		return err
	}
	for name, change := range map[string]func(*Servers){
		"no digest":     func(s *Servers) { s.Digest = "" },
		"no tools":      func(s *Servers) { s.Tools = nil },
		"an id of none": func(s *Servers) { s.Tools["Files\u202e"] = 1 },
		"less than no":  func(s *Servers) { s.Tools["files"] = -1 },
		"endless tools": func(s *Servers) { s.Tools["files"] = 10_001 },
		"many servers": func(s *Servers) {
			for i := range 64 {
				s.Tools[fmt.Sprintf("s%d", i)] = 1
			}
		},
	} {
		s := good()
		change(s)
		if err := try(KindServers, s); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if try(KindServers, nil) == nil || try(KindResume, good()) == nil {
		t.Error("servers are taken in another kind of statement, or a statement without them")
	}
	if err := try(KindServers, good()); err != nil {
		t.Errorf("a good one: %v", err)
	}
	h, err := Sign(plain(KindResume), signer(t, 1))
	must(t, err)
	allowed := operators(t, trust.FormatSigner("ada", signer(t, 1).PublicKey(), Namespace))
	if digest, err := ServersSigned(operators(t), now)(h); !errors.Is(err, trust.ErrUnknownSigner) {
		t.Errorf("nobody signs servers: %q, %v", digest, err)
	}
	if digest, err := ServersSigned(allowed, now)(h); !errors.Is(err, ErrCover) {
		t.Errorf("another kind of statement signs servers: %q, %v", digest, err)
	}
}

// TestRestoreStatements: what goes on and what is lost fit together, and stand in a statement of their kind alone.
func TestRestoreStatements(t *testing.T) {
	t.Parallel()
	try := func(kind Kind, r Restore) error {
		s := plain(KindResume)
		s.Kind, s.Restore = kind, &r
		raw, err := s.Marshal()
		if err == nil {
			_, err = Parse(raw)
		}
		return err
	}
	good := Restore{Made: FormatTime(now), Size: 5, Root: "a", OldSize: 7, OldRoot: "b", Lost: 2}
	for name, change := range map[string]func(*Restore){
		"no time":      func(r *Restore) { r.Made = "" },
		"an empty log": func(r *Restore) { r.Size, r.Lost = 0, 7 },
		"no root":      func(r *Restore) { r.Root = "" },
		"no old root":  func(r *Restore) { r.OldRoot = "" },
		"too large":    func(r *Restore) { r.OldSize, r.Lost = 1<<53, 1<<53-5 },
		"less lost":    func(r *Restore) { r.Lost = 1 },
		"more than is": func(r *Restore) { r.OldSize, r.Lost = 4, 1<<64-1 },
		"two logs":     func(r *Restore) { r.OldSize, r.Lost = 5, 0 },
	} {
		r := good
		change(&r)
		if err := try(KindRestore, r); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := try(KindResume, good); !errors.Is(err, ErrMalformed) {
		t.Errorf("in another kind of statement: %v", err)
	}
	if err := try(KindRestore, good); err != nil {
		t.Errorf("a good one: %v", err)
	}
}
