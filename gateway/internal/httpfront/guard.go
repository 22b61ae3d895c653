package httpfront

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/url"
)

// The guards of the edge, one small function each, so that a drill can show what happens without one: its builds have the twins
// in deploy/e2e/weak instead.

// sameToken reports whether a session was opened with the token that is shown.
func sameToken(opened, shown [sha256.Size]byte) bool {
	return subtle.ConstantTimeCompare(opened[:], shown[:]) == 1
}

// localRequired reports whether Host and Origin must be this server's own, or configured.
func localRequired() bool { return true }

// isPath reports whether a request is for the path of MCP, as it was sent: what becomes it by decoding, another reader may take for
// something else.
func isPath(u *url.URL) bool { return u.Path == Path && u.RawPath == "" }

// mediaRequired reports whether a message must say that it is JSON.
func mediaRequired() bool { return true }

// headersRequired reports whether headers must say what the body says.
func headersRequired() bool { return true }

// asSent is the message that is read: the bytes that were sent.
func asSent(body []byte) []byte { return body }

// onceRequired reports whether an id is refused that a request under way in the session has.
func onceRequired() bool { return true }

// senderRequired reports whether a request is served in the session of its own sender alone.
func senderRequired() bool { return true }
