package packed

import (
	"encoding/base32"
	"strings"
)

// ownRequest are the ids that the project's own processes give to requests: 128 random bits. lower writes them.
const (
	ownRequest                = "r-"
	randomBytes, randomDigits = 16, 26
)

var lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// random returns the bits of such an id: those that lower writes so.
func random(request string) (bits [randomBytes]byte, own bool) {
	digits, own := strings.CutPrefix(request, ownRequest)
	if !own || len(digits) != randomDigits {
		return bits, false
	}
	var left uint // bits that are no whole byte yet, and how many they are
	n, at := 0, 0
	for i := range len(digits) {
		switch c := digits[i]; {
		case c >= 'a' && c <= 'z':
			left = left<<5 | uint(c-'a')
		case c >= '2' && c <= '7':
			left = left<<5 | uint(c-'2'+26)
		default:
			return bits, false
		}
		if n += 5; n >= 8 {
			n -= 8
			bits[at], at = byte(left>>n), at+1
			left &= 1<<n - 1
		}
	}
	return bits, left == 0
}
