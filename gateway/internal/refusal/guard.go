package refusal

// rateRequired reports whether refusals beyond a rate are only counted. A drill shows what happens without it.
func rateRequired() bool { return true }
