package harness

import (
	"os"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/statement"
)

// Signer is the operator's signing key.
func (h *Host) Signer() ssh.Signer {
	h.t.Helper()
	raw, err := os.ReadFile(h.Path("keys", "operator_ed25519"))
	h.must(err)
	signer, err := ssh.ParsePrivateKey(raw)
	h.must(err)
	return signer
}

// Accept writes servers.yaml, and servers.lock as Accepted has it, signed by the operator.
func (h *Host) Accept(text string, tools map[string][]downstream.Tool) {
	h.t.Helper()
	h.WriteFile("config/"+downstream.File, text)
	h.WriteFile("config/"+downstream.LockFile, Accepted(h.t, text, tools, h.Operator, h.Signer()))
}

// Accepted is servers.lock for the text of a servers.yaml whose servers are programs, as an operator signs it who accepts these tools of
// each, by the server's id.
func Accepted(t testing.TB, text string, tools map[string][]downstream.Tool, operator string, by ssh.Signer) string {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	entries, err := downstream.ReadFile(downstream.File, []byte(text))
	must(err)
	lock, counts := &downstream.Lock{}, map[string]int{}
	for _, e := range entries {
		p := downstream.Pinned{Entry: e, Tools: tools[e.ID]}
		p.EntryDigest, err = e.Digest()
		must(err)
		p.ProgramDigest, err = downstream.FileDigest(e.Program.Path)
		must(err)
		lock.Servers, counts[e.ID] = append(lock.Servers, p), len(p.Tools)
	}
	lock.Sort()
	digest, err := lock.Digest()
	must(err)
	now := time.Now()
	lock.Signed, err = statement.Sign(&statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindServers, ID: grant.NewID(), Operator: operator,
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(time.Minute)),
		Epoch: 1, Audience: "spiffe://durward.local/vault/main", Servers: &statement.Servers{Digest: digest, Tools: counts},
	}, by)
	must(err)
	raw, err := lock.Marshal()
	must(err)
	return string(raw)
}
