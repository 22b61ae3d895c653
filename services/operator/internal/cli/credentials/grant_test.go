package credentials

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/platformtest/testfile"
)

// TestWhatHasEndedIsNotGrantedAnew: another grant adds to what is in force, and not to what has ended by itself. A client that there is not is
// granted nothing.
func TestWhatHasEndedIsNotGrantedAnew(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a := &app{App: &cli.App{Now: func() time.Time { return now }}}
	s := &cli.Session{Config: installdir.Config{Executor: config.Peer{Identity: "spiffe://durward.local/executor/local"}, Clients: filepath.Join(t.TempDir(), "clients.yaml")}}
	s.Peers = &peers.Peers{Egress: egressv1.NewControlServiceClient(nil)} // it is not asked
	testfile.Write(t, s.Config.Clients, "clients: [{id: claude, token_sha256: \""+strings.Repeat("0", 64)+"\", channel: cli, tier_ceiling: WRITE}]\n")
	for ends, want := range map[time.Duration][]string{-time.Hour: {"https://new.example"}, time.Hour: {"https://new.example", "https://old.example"}} {
		c := &vaultv1.Credential{Grants: []*vaultv1.CredentialGrant{{
			Sink: "spiffe://durward.local/egress/local", Origins: []string{"https://old.example"}, Agents: []string{"claude"}, Place: "Authorization", Scheme: "Bearer",
			EndsAt: timestamppb.New(now.Add(ends)),
		}}}
		g := grant{origins: []string{"https://new.example"}, agents: []string{"claude"}, header: "Authorization", scheme: "Bearer"}
		to, err := a.granted(t.Context(), s, c, nil, g, func(string) bool { return false })
		if err != nil || !slices.Equal(to.Origins, want) || (to.Until != "") != (ends > 0) {
			t.Errorf("a grant that ends in %s: %+v, %v", ends, to, err)
		}
		g.agents = []string{"cluade/coder"}
		if to, err := a.granted(t.Context(), s, c, nil, g, func(string) bool { return false }); err == nil {
			t.Errorf("an agent of nobody's: %+v", to)
		}
	}
}

// TestAGrantLastsForATimeToCome: no time at all is none of them, and keeps no end that another grant has.
func TestAGrantLastsForATimeToCome(t *testing.T) {
	a := &app{App: &cli.App{Now: time.Now}}
	s := &cli.Session{Config: installdir.Config{Executor: config.Peer{Identity: "spiffe://durward.local/executor/local"}}}
	for _, lasts := range []time.Duration{0, -time.Hour} {
		to, err := a.granted(t.Context(), s, &vaultv1.Credential{}, []string{"demo"}, grant{lasts: lasts}, func(flag string) bool { return flag == "for" })
		if err == nil || !strings.Contains(err.Error(), "to come") {
			t.Errorf("%s: %+v, %v", lasts, to, err)
		}
	}
}
