// Package head looks at the heads of requests on their way to net/http, which joins a header that is folded over several lines before
// anybody sees it (RFC 9112, section 5.2, has a server refuse such a request, or replace the folds). A proxy in front may have read
// something else in those lines.
//
// It runs in the untrusted edge, on the plaintext side of TLS, and trusts nothing that arrives. It passes every byte on as it came and
// keeps none but the beginning of the line that it is in: it finds out where heads begin and end, and whether a line of one begins with a
// space or a tab. It takes the end of a request from its one Content-Length. After a request of which that is not known, a chunked one
// above all, it has the connection end with the answer, so that nothing follows that would be taken for the rest of a body.
package head

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
)

// Listen returns a listener whose connections are looked at. Over TLS it stands above the TLS listener.
func Listen(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// Context is for http.Server.ConnContext: it lets Folded and Handler find the connection of a request, and calls next with what is under
// that.
func Context(next func(context.Context, net.Conn) context.Context) func(context.Context, net.Conn) context.Context {
	return func(ctx context.Context, nc net.Conn) context.Context {
		if c, mine := nc.(*conn); mine {
			ctx, nc = context.WithValue(ctx, key{}, c), c.Conn
		}
		return next(ctx, nc)
	}
}

type key struct{}

// Folded reports whether the request, or one before or behind it on its connection, has a folded header. It is not to be served.
func Folded(ctx context.Context) bool {
	c, counted := ctx.Value(key{}).(*conn)
	return counted && c.folded.Load()
}

// Handler serves by next, and ends the connection with the answer where it is not known where the next request begins, whatever next says
// of the connection: an answer of the MCP SDK asks to keep it.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, counted := r.Context().Value(key{}).(*conn); counted && c.last.Load() {
			w = closing{w}
			w.Header().Set("Connection", "close") // where next writes nothing
		}
		next.ServeHTTP(w, r)
	})
}

// closing is an answer with which net/http ends the connection.
type closing struct{ http.ResponseWriter }

// close says so for what is called next.
func (c closing) close() http.ResponseWriter {
	c.Header().Set("Connection", "close")
	return c.ResponseWriter
}

// WriteHeader implements http.ResponseWriter.
func (c closing) WriteHeader(status int) { c.close().WriteHeader(status) }

// Write implements http.ResponseWriter.
func (c closing) Write(b []byte) (int, error) { return c.close().Write(b) }

// Unwrap is for http.ResponseController, which flushes so as well: the headers as they are then.
func (c closing) Unwrap() http.ResponseWriter { return c.close() }

// conn is one connection. Its reader is one goroutine at a time: net/http's.
type conn struct {
	net.Conn
	scanner
	// read: something was read already.
	read bool
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.scan(b[:n])
	if err != nil && !c.read {
		answerClear(err)
	}
	c.read = true
	return n, err
}

// answerClear tells a client that speaks HTTP without TLS so, as net/http does where it sees the handshake.
func answerClear(err error) {
	var clear tls.RecordHeaderError
	if !errors.As(err, &clear) || clear.Conn == nil {
		return
	}
	switch string(clear.RecordHeader[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
		_, _ = io.WriteString(clear.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n") // it may be gone
	}
}

// Where a scanner is.
const (
	between = iota // before a request line
	requestLine
	headerLine // at the beginning of a line, or in it
	body
)

// The headers that say how long a body is, with their colons, in small letters.
const (
	contentLength    = "content-length:"
	transferEncoding = "transfer-encoding:"
)

// scanner follows requests as their bytes come, in pieces of any size. The zero scanner is before the first.
type scanner struct {
	// folded: a line of a head began with a space or a tab. last: nobody knows where the request ends that came last.
	folded, last atomic.Bool

	state int
	// length is how long the body is that the head speaks of, and what is left of it in the body.
	length   uint64
	measured bool
	// line is the beginning of the line so far, of size bytes that came of it. Longer ones are not what is looked for.
	line [len(transferEncoding) + 22]byte
	size int
}

// scan looks at the next bytes.
func (s *scanner) scan(b []byte) {
	if s.last.Load() {
		return
	}
	for len(b) > 0 {
		switch s.state {
		case between:
			if b[0] == '\r' || b[0] == '\n' {
				b = b[1:] // net/http overlooks some, and refuses more
				continue
			}
			s.state, s.length, s.measured = requestLine, 0, false
		case requestLine:
			end := bytes.IndexByte(b, '\n')
			if end < 0 {
				return
			}
			b, s.state, s.size = b[end+1:], headerLine, 0
		case headerLine:
			if b = s.header(b); s.last.Load() {
				return
			}
		case body:
			n := min(s.length, uint64(len(b)))
			if b, s.length = b[n:], s.length-n; s.length == 0 {
				s.state = between
			}
		}
	}
}

// header takes what there is of one line of a head, and returns the rest.
func (s *scanner) header(b []byte) []byte {
	if s.size == 0 && folds(b[0]) {
		s.folded.Store(true)
		s.last.Store(true)
		return nil
	}
	end := bytes.IndexByte(b, '\n')
	part := b
	if end >= 0 {
		part = b[:end]
	}
	if s.size < len(s.line) {
		copy(s.line[s.size:], part)
	}
	s.size += len(part)
	if end < 0 {
		return nil
	}
	s.judge()
	return b[end+1:]
}

// judge takes up a whole line.
func (s *scanner) judge() {
	line, whole := s.line[:min(s.size, len(s.line))], s.size <= len(s.line)
	if n := len(line); whole && n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	s.size = 0
	switch {
	case len(line) == 0:
		if s.state = body; s.length == 0 {
			s.state = between
		}
	case begins(line, contentLength):
		n, err := strconv.ParseUint(string(bytes.Trim(line[len(contentLength):], " \t")), 10, 63)
		if err != nil || !whole || s.measured {
			s.last.Store(true)
		}
		s.length, s.measured = n, true
	case begins(line, transferEncoding):
		s.last.Store(true)
	}
}

// begins reports whether a line begins with a header's name and colon, in small letters or large.
func begins(line []byte, name string) bool {
	return len(line) >= len(name) && strings.EqualFold(string(line[:len(name)]), name)
}
