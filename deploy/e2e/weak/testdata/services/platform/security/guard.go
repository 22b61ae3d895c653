package security

// This file makes a negative control of deploy/e2e: a vault whose project files may loosen.

var loosened bool

// WeakenLayers lets the last layer win whatever it says.
func WeakenLayers() { loosened = true }

func (s Setting) tighter(a, b uint32) bool {
	if loosened {
		return a != b
	}
	if s.higherTighter {
		return a > b
	}
	return a < b
}
