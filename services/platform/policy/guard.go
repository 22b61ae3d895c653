package policy

// The guards of this package, one small function each, so that a drill can show what happens without one: its builds have the twins
// in deploy/e2e/weak instead.

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
