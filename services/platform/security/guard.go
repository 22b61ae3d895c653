package security

// tighter reports whether a lets less happen than b.
func (s Setting) tighter(a, b uint32) bool {
	if s.higherTighter {
		return a > b
	}
	return a < b
}
