package bridge

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// answers reads a response to the request id: notifications are passed on at once, the answer goes to answer. A response without
// one is an error. What goes on is made of what was read of a message, so that the client reads nothing else in it.
func (b *Bridge) answers(response *http.Response, id json.RawMessage, answer func(payload []byte) error) error {
	kind, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
	switch {
	case strings.TrimSpace(kind) == "text/event-stream":
		found := false
		err := events(response.Body, func(m message) error {
			payload, ok := m.answerTo(id)
			if !ok || found {
				b.pass(m)
				return nil
			}
			found = true
			return answer(payload)
		})
		if found {
			return nil // a stream that breaks behind its answer has brought it
		}
		return cmp.Or(err, errCut)
	case strings.TrimSpace(kind) == "application/json":
		body, err := io.ReadAll(io.LimitReader(response.Body, maxLine+1))
		if err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		m, err := received(body)
		if len(body) > maxLine || err != nil {
			return fmt.Errorf("the gateway answered %d with something that is not a message", response.StatusCode)
		}
		if payload, ok := m.answerTo(id); ok {
			return answer(payload)
		}
		if len(m.Error) > 0 {
			return answer(failure(id, m.Error)) // refused before its id was read
		}
		return fmt.Errorf("the gateway answered %d with something that is not an answer", response.StatusCode)
	default:
		return fmt.Errorf("the gateway answered %d without a message", response.StatusCode)
	}
}

// received reads a message of the gateway's, on one line; JSON that is no message is one that says nothing.
func received(data []byte) (m message, err error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return message{}, err
	}
	if json.Unmarshal(compact.Bytes(), &m) != nil {
		return message{}, nil
	}
	return m, nil
}

func failure(id, problem json.RawMessage) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":%s}`, id, problem)
}

// answerTo returns a message as the answer to the request id, if it is that.
func (m message) answerTo(id json.RawMessage) (answer []byte, ok bool) {
	switch {
	case m.Method != "" || spelled(m.ID) != spelled(id):
		return nil, false
	case len(m.Error) > 0:
		return failure(id, m.Error), true
	case len(m.Result) > 0:
		return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, m.Result), true
	default:
		return nil, false
	}
}

// spelled writes an id in one way: a text may come back with other escapes than it went out with, "a/b" for "a\/b".
func spelled(id json.RawMessage) string {
	var text string
	if !bytes.HasPrefix(id, []byte(`"`)) || json.Unmarshal(id, &text) != nil {
		return string(id)
	}
	return `"` + text
}

// pass gives the client what it may get of a message that answers nothing. Everything else ends here.
func (b *Bridge) pass(m message) {
	if line, ok := forClient(m); ok {
		b.write(line)
	} else if b.kept.Add(1) == 1 {
		b.cfg.Report("the gateway sent something that this client did not ask for; it is kept from it")
	}
}

// events reads server-sent events and gives the message in each to take.
func events(r io.Reader, take func(m message) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	var data []byte
	for lines.Scan() {
		line := lines.Bytes()
		switch {
		case len(line) == 0:
			if len(bytes.TrimSpace(data)) > 0 {
				m, err := received(data)
				if err != nil {
					return errors.New("the gateway sent an event that is not a message")
				}
				if err := take(m); err != nil {
					return err
				}
			}
			data = nil
		case bytes.HasPrefix(line, []byte("data:")):
			if len(data)+len(line) > maxLine {
				return errors.New("the gateway sent an event that is too large")
			}
			if data != nil {
				data = append(data, '\n')
			}
			data = append(data, bytes.TrimPrefix(bytes.TrimPrefix(line, []byte("data:")), []byte(" "))...)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}
