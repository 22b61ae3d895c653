package witness

// extensionRequired reports whether a checkpoint must extend the one before. Its twin in deploy/e2e/weak cosigns whatever a log signs.
func extensionRequired() bool { return true }
