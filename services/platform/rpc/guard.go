//go:build !weak

package rpc

import (
	"slices"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// roleAllowed reports whether a role may call a method that names those callers.
func roleAllowed(callers []optionsv1.Role, role optionsv1.Role) bool {
	return slices.Contains(callers, role)
}
