package config

// remoteAllowed reports whether a process may listen beyond loopback. A drill shows what happens without it.
func remoteAllowed(flag bool) bool { return flag }
