package settings

import (
	"fmt"
	"slices"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/trust"
	"durward.internal/services/vault/internal/clients"
)

// Warnings are what Check lets pass and most likely nobody meant, as sentences. There are none where Check has an error.
func (s *Settings) Warnings() []string {
	options, err := s.Security()
	if err != nil {
		return nil
	}
	list, err := clients.Read(s.ClientsFile)
	if err != nil {
		return nil
	}
	state, err := security.Try(options, nil)
	if err != nil {
		return nil
	}
	var operators []string
	if roots, err := trust.Read(s.TrustDir); err == nil {
		for _, signer := range roots.AllowedSigners.All() {
			operators = append(operators, signer.Operator)
		}
	}
	return fourEyes(state, list, operators)
}

// fourEyes tells of clients that nobody can approve anything for, and of operators that count as somebody else for every client.
func fourEyes(state *security.State, list []*clients.Client, operators []string) []string {
	var out []string
	required := false
	for _, c := range list {
		if c.Revoked || !state.Values(c.ID, c.User).FourEyes {
			continue
		}
		required = true
		if c.User == "" {
			out = append(out, fmt.Sprintf("approvals.four_eyes: the client %s has no user, so nothing that it asks for can be approved; "+
				"set user: for it in clients.yaml", c.ID))
		}
	}
	if !required {
		return nil
	}
	slices.Sort(operators)
	for _, name := range slices.Compact(operators) {
		if !clients.IsUser(name) {
			out = append(out, fmt.Sprintf("approvals.four_eyes: no user: of clients.yaml can be the operator %s, who therefore counts as another "+
				"human than every client's own; give the operator's key a name of a-z, 0-9, _ and -", clean.Visible(name)))
		}
	}
	return out
}
