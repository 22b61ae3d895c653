//go:build !weak

package policy

// The guards of this package, one small function each, so that a drill can show what happens without one: deploy/e2e builds the
// twins in guard_weak.go with a tag that no shipped build carries.

// failedForbidCounts reports whether a forbid that cannot be evaluated counts as matching.
func failedForbidCounts() bool { return true }

// mayPermit reports whether a layer's rules may permit anything.
func mayPermit(l Layer) bool { return l == BuiltIn || l == System || l == User }

// mayName reports whether a layer's tools.yaml makes a tool known.
func mayName(l Layer) bool { return l == System || l == User }

// binds reports whether a rule is about the call's client.
func binds(r *rule, c *Call) bool { return r.about(c.Client, c.User) }

// forbidWins reports whether forbids are looked at.
func forbidWins() bool { return true }
