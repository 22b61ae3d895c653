package server

import (
	"time"

	"durward.internal/services/platform/security"
	"durward.internal/services/vault/internal/standing"
)

// Humans is what the security configuration says, as it is now, of what people may agree to. The packages consent and standing ask
// it.
type Humans struct{ Security *security.Live }

// FourEyes reports whether another human than the client's own has to agree to what it asks: consent.Of's.
func (h Humans) FourEyes(client, user string) bool {
	return h.Security.Current().Values(client, user).FourEyes
}

// Limits is standing.Config's.
func (h Humans) Limits(client, user string) standing.Limits {
	v := h.Security.Current().Values(client, user)
	return standing.Limits{
		ScopeMax: seconds(v.ScopeMaxS), ScopeMaxUses: v.ScopeMaxUses, DangerousMax: seconds(v.DangerousMaxS), DangerousAllowed: v.DangerousAllowed,
	}
}

func seconds(n uint32) time.Duration { return time.Duration(n) * time.Second }
