//go:build !weak

package reserve

// mayWrite reports whether a write may use the reserve. A drill's twin (guard_weak.go) lets every write.
func mayWrite(entitled bool) bool { return entitled }
