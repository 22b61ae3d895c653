package lexicon

// Pack returns a word of up to eight letters, in small ones, as a number; 0 where it is longer.
func Pack(w string) (key uint64) {
	if len(w) > 8 {
		return 0
	}
	for i := range len(w) {
		key = key<<8 | uint64(w[i]|0x20)
	}
	return key
}

func packedSet(name string) map[uint64]bool {
	out := map[uint64]bool{}
	for _, w := range words(name) {
		if key := Pack(w); key != 0 {
			out[key] = true
		}
	}
	return out
}

func (l *Lists) fillCommon() {
	for _, w := range words("common") {
		key := Pack(w)
		at := commonAt(key)
		for l.common[at] != 0 {
			at = (at + 1) % len(l.common)
		}
		l.common[at] = key
	}
}

func commonAt(key uint64) int { return int(key * 0x9e3779b97f4a7c15 >> (64 - 11)) }

// Common reports whether a word, as a number, is one of the small words of sentences that people write.
func (l *Lists) Common(key uint64) bool {
	for at := commonAt(key); l.common[at] != 0; at = (at + 1) % len(l.common) {
		if l.common[at] == key {
			return true
		}
	}
	return false
}
