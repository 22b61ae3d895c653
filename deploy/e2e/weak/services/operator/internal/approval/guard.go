package approval

// folded, weakened: padding lays out what it likes.
func folded(text string) string { return text }
