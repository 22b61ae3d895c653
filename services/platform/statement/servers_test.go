package statement

import (
	"strings"
	"testing"
	"time"

	"durward.internal/services/platform/canonical"
)

func TestServersStatements(t *testing.T) {
	t.Parallel()
	good := func() *Servers {
		return &Servers{Digest: canonical.DigestText([]byte("servers")), Tools: map[string]int{"files": 14, "web": 0}}
	}
	try := func(kind Kind, s *Servers) error {
		now := time.Now()
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
	} {
		s := good()
		change(s)
		if try(KindServers, s) == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
	if try(KindServers, nil) == nil || try(KindResume, good()) == nil {
		t.Error("servers are taken in another kind of statement, or a statement without them")
	}
	if err := try(KindServers, good()); err != nil {
		t.Errorf("a good one: %v", err)
	}
}
