//go:build hostile

package hostile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// patience is how long an answer may take: a call that waits for a human is held for a second.
const patience = 30 * time.Second

// line is a connection to the gateway that is kept open while the gateway keeps it open.
type line struct {
	address string
	conn    net.Conn
	r       *bufio.Reader
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
	// outcome says in a few words where the request went.
	outcome string
}

// maxHeaders is what the gateway reads of headers; it may close the connection before a client has sent more than that.
const maxHeaders = 16 << 10

// headers is how many bytes of a message are no body.
func (m *message) headers() int { return len(m.bytes(true)) - len(m.body) }

func (l *line) close() {
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn = nil
	}
}

// send sends a message and reads the answer. What would break the framing of the connection goes over one of its own.
func (l *line) send(m *message) (answer, error) {
	if m.breaks() {
		a, err := alone(l.address, m.bytes(true))
		a.outcome = "a line break in a header: " + a.outcome
		return a, err
	}
	raw := m.bytes(false)
	for attempt := 0; ; attempt++ {
		kept := l.conn != nil
		if !kept {
			conn, err := net.DialTimeout("tcp", l.address, patience)
			if err != nil {
				return answer{}, err
			}
			l.conn, l.r = conn, bufio.NewReaderSize(conn, 16<<10)
		}
		a, keep, err := l.exchange(raw)
		if err != nil || !keep {
			l.close()
		}
		reset := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
		switch {
		case err == nil:
			return a, nil
		case kept:
			// A connection that the gateway closed between two requests is no answer.
		case reset && m.headers() > maxHeaders:
			return answer{outcome: "connection closed: headers too long"}, nil
		case reset && attempt >= maxResets:
			return answer{outcome: "connection closed"}, nil
		case !reset:
			return a, err
		}
	}
}

// maxResets is how often a request is sent again whose answer was lost: a server that refuses the headers closes without having
// read the body, and on a busy machine the answer may be gone before it is read.
const maxResets = 4

func (l *line) exchange(raw []byte) (answer, bool, error) {
	if err := l.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return answer{}, false, err
	}
	if _, err := l.conn.Write(raw); err != nil && l.r.Buffered() == 0 {
		// The server may have answered and closed before it read everything.
		if a, _, readErr := l.receive(); readErr == nil {
			return a, false, nil
		}
		return answer{}, false, err
	}
	return l.receive()
}

func (l *line) receive() (answer, bool, error) {
	response, err := http.ReadResponse(l.r, nil)
	if err != nil {
		return answer{}, false, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 8<<20))
	if err != nil {
		return answer{}, false, err
	}
	a := answer{status: response.StatusCode, header: response.Header, body: body}
	a.outcome = outcome(a)
	return a, !response.Close, nil
}

// breaks reports whether the message has line breaks where HTTP ends a line.
func (m *message) breaks() bool {
	return strings.ContainsAny(m.host, "\r\n") || strings.ContainsAny(m.target, "\r\n ") ||
		slices.ContainsFunc(m.header, func(h [2]string) bool { return strings.ContainsAny(h[1], "\r\n") })
}

// alone sends bytes over a connection of their own and takes whatever comes back until the server closes it, or has said
// nothing more for a while.
func alone(address string, raw []byte) (answer, error) {
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	_, _ = conn.Write(raw) // the server may close before it has read everything
	var out bytes.Buffer
	chunk := make([]byte, 16<<10)
	for {
		if err := conn.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return answer{}, err
		}
		n, err := conn.Read(chunk)
		out.Write(chunk[:n])
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ECONNRESET) {
			break // a reset, because there was more than the one request that was answered
		}
		if err != nil {
			return answer{}, err
		}
	}
	_, body, _ := bytes.Cut(out.Bytes(), []byte("\r\n\r\n"))
	return answer{header: http.Header{"Raw": {strings.Map(printableLine, headOf(out.String()))}}, body: body, outcome: statusLine(out.String())}, nil
}

// printableLine keeps a block of headers as one line; what commands a terminal stays, to be found.
func printableLine(r rune) rune {
	if r == '\r' || r == '\n' {
		return ' '
	}
	return r
}

func headOf(raw string) string {
	head, _, _ := strings.Cut(raw, "\r\n\r\n")
	return head
}

func statusLine(raw string) string {
	first, _, _ := strings.Cut(raw, "\r\n")
	if words := strings.Fields(first); len(words) > 1 && strings.HasPrefix(first, "HTTP/1.") {
		return "HTTP " + words[1]
	}
	return "no answer"
}

// outcome says where a request went: refused by HTTP, by JSON-RPC, by the envelope, or served.
func outcome(a answer) string {
	for _, raw := range messages(a.body) {
		var m struct {
			Result *struct {
				Structured *struct {
					Status string `json:"status"`
					Reason string `json:"reason"`
					Error  *struct {
						Code string `json:"code"`
					} `json:"error"`
				} `json:"structuredContent"`
			} `json:"result"`
			Error *struct {
				Code int `json:"code"`
				Data struct {
					Code string `json:"code"`
				} `json:"data"`
			} `json:"error"`
		}
		if json.Unmarshal(raw, &m) != nil {
			continue
		}
		switch {
		case m.Error != nil:
			return fmt.Sprintf("HTTP %d, JSON-RPC %d %s", a.status, m.Error.Code, m.Error.Data.Code)
		case m.Result != nil && m.Result.Structured != nil:
			e := m.Result.Structured
			if e.Error != nil {
				return "envelope error " + e.Error.Code
			}
			return strings.TrimSpace("envelope " + e.Status + " " + e.Reason)
		case m.Result != nil:
			return "result"
		}
	}
	return fmt.Sprintf("HTTP %d", a.status)
}
