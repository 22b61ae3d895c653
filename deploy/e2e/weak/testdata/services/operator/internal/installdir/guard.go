package installdir

// own, weakened: a home is taken from whoever made it.
func own(...string) error { return nil }
