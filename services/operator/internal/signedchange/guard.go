package signedchange

import "bytes"

// stillThere reports whether the file is still what was shown.
func stillThere(now, shown []byte) bool {
	return (now == nil) == (shown == nil) && bytes.Equal(now, shown)
}
