package logproof

import (
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// What a human agreed to stands in the records of those who verified it. Audit refuses it in any other record, and whoever
// reads the log believes it in no other: a process that may write may not thereby speak of a human.

// CarriesStatement reports whether a role's records of that kind carry what a human signed.
func CarriesStatement(role optionsv1.Role, kind auditv1.Kind) bool {
	switch role {
	case optionsv1.Role_ROLE_VAULT:
		return kind == auditv1.Kind_KIND_APPROVED || kind == auditv1.Kind_KIND_RESUMED ||
			kind == auditv1.Kind_KIND_STANDING_GRANTED || kind == auditv1.Kind_KIND_CONFIG_ADOPTED
	case optionsv1.Role_ROLE_EXECUTOR, optionsv1.Role_ROLE_EGRESS:
		return kind == auditv1.Kind_KIND_INTENT || kind == auditv1.Kind_KIND_RESUMED
	default:
		return false
	}
}

// CarriesConsent reports whether a role's records of that kind say that a human confirmed a call, or let calls run without
// asking (the body's confirmed and dangerous).
func CarriesConsent(role optionsv1.Role, kind auditv1.Kind) bool {
	switch role {
	case optionsv1.Role_ROLE_VAULT:
		switch kind {
		case auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_REDEEMED, auditv1.Kind_KIND_RESUMED,
			auditv1.Kind_KIND_STANDING_GRANTED, auditv1.Kind_KIND_STANDING_ENDED, auditv1.Kind_KIND_CONFIG_ADOPTED,
			// What nobody came for says in whose name it would have run.
			auditv1.Kind_KIND_EXPIRED,
			// A redemption that was given up says what its grant was.
			auditv1.Kind_KIND_DENIED,
			// What asks and looks in dangerous mode says so, though nobody had to agree to it (DNG-1).
			auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_READ:
			return true
		default:
			return false
		}
	case optionsv1.Role_ROLE_EXECUTOR, optionsv1.Role_ROLE_EGRESS:
		// Every record about a call says what its grant was: none may be lost because a vault made a strange one.
		switch kind {
		case auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_READ, auditv1.Kind_KIND_SINK_REFUSED,
			auditv1.Kind_KIND_RECOVERED:
			return true
		default:
			return false
		}
	default:
		return false
	}
}
