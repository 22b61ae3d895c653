package reserve

// mayWrite reports whether a write may use the reserve. Its twin in deploy/e2e/weak lets every write.
func mayWrite(entitled bool) bool { return entitled }
