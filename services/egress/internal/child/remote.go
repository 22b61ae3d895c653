package child

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"durward.internal/services/platform/clean"
)

// remote is the way to a server over Streamable HTTP. Every body that comes back is made anew by the same frames as a child's lines; the
// SDK's transport sees nothing else.
type remote struct {
	*frames
	// dialed judges and dials; bearer returns the credential of a request, or nothing.
	dialed http.RoundTripper
	bearer func(context.Context) (string, error)
	failed func(error)
}

const (
	eventStream = "text/event-stream"
	// maxEventID is the longest id of an event that is passed on, in bytes.
	maxEventID = 256
)

// unreachableError is why a request got no response.
type unreachableError struct{ cause error }

func (e *unreachableError) Error() string {
	return "it cannot be reached: " + clean.Line(e.cause.Error(), maxMessage)
}

// RoundTrip implements http.RoundTripper. A redirect is an error: the endpoint is what a human wrote.
func (r *remote) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	token, err := r.bearer(request.Context())
	if err != nil {
		return nil, &unreachableError{err} // nothing is noted as sent yet
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	var call jsonrpc.Request
	if request.GetBody != nil {
		body, err := request.GetBody()
		if err != nil {
			return nil, err
		}
		defer body.Close()
		raw, err := io.ReadAll(body)
		if err != nil {
			return nil, err
		}
		message, err := jsonrpc.DecodeMessage(raw)
		if err != nil {
			return nil, err
		}
		r.sent(message)
		// Arguments leave as the bytes that were decided on.
		line, err := encode(message)
		if err != nil {
			return nil, err
		}
		request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(line)), int64(len(line))
		request.GetBody = nil
		if asked, ok := message.(*jsonrpc.Request); ok {
			call = *asked
		}
	}
	response, err := r.dialed.RoundTrip(request)
	if err != nil {
		r.forget(call)
		return nil, &unreachableError{err}
	}
	if err := r.pass(response, request, call); err != nil {
		r.forget(call)
		_ = response.Body.Close()
		return nil, err
	}
	return response, nil
}

// pass puts what frames make of the body in its place.
func (r *remote) pass(response *http.Response, request *http.Request, call jsonrpc.Request) error {
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	status := response.StatusCode
	response.ContentLength = -1
	switch {
	case status >= 300 && status < 400:
		err := errors.New("it redirects, which is not followed" + target(response))
		r.failed(err)
		return err
	case status == http.StatusNotFound && request.Header.Get("Mcp-Session-Id") != "":
		r.failed(errors.New("it ended the session"))
		response.Body = swap(response.Body, nil)
	case request.Method == http.MethodPost && !call.IsCall():
		response.StatusCode = http.StatusAccepted // whatever it says: some answer a notification with 200 and a page or an object
		response.Body = swap(response.Body, nil)
	case status == http.StatusOK && kind == eventStream:
		response.Body = newEvents(response.Body, r)
	case status == http.StatusOK && kind == "application/json":
		raw, err := io.ReadAll(io.LimitReader(response.Body, maxFrame+1))
		if err != nil {
			return err
		}
		if len(raw) > maxFrame {
			r.failed(errLong)
			return errLong
		}
		message, err := r.received(raw)
		if err == nil && message == nil {
			err = errors.New("its answer is to no call that waits")
		}
		if err != nil {
			r.failed(err)
			return err
		}
		body, err := encode(message)
		if err != nil {
			return err
		}
		response.Body = swap(response.Body, body)
	case call.IsCall():
		body, err := r.refusal(response, kind, call)
		if err != nil {
			return err
		}
		response.Body = swap(response.Body, body)
		response.StatusCode = http.StatusOK
		response.Header.Set("Content-Type", "application/json")
	default:
		response.Body = swap(response.Body, nil)
	}
	return nil
}

// target says where a redirect leads to, for the human who wrote the endpoint; a query may hold what is secret.
func target(response *http.Response) string {
	to, err := response.Location()
	if err != nil || webAddress(to.String()) == "" {
		return ""
	}
	to.RawQuery, to.Fragment = "", ""
	return ": it leads to " + clean.Line(to.String(), maxName)
}

// refusal is the answer to a call that is refused by a status, or by a page: the server's error, or one that says the status. The SDK would end its whole
// connection over the status of one call.
func (r *remote) refusal(response *http.Response, kind string, call jsonrpc.Request) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxFrame))
	if err != nil {
		return nil, err
	}
	r.forget(call)
	var in frame
	if json.Unmarshal(raw, &in) != nil || in.Error == nil {
		in = frame{Error: &frameError{Code: jsonrpc.CodeInternalError, Message: fmt.Sprintf("HTTP %d %s", response.StatusCode, kind)}}
	}
	message, err := in.answer(call)
	if err != nil {
		return nil, err
	}
	return encode(message)
}

// body is a body made anew, and the one that it stands for.
type body struct {
	io.Reader
	io.Closer
}

func swap(from io.ReadCloser, with []byte) io.ReadCloser { return body{bytes.NewReader(with), from} }

// events is a stream of events made anew: id, retry and one frame each.
type events struct {
	io.Closer
	remote *remote
	lines  *bufio.Scanner
	ready  bytes.Buffer
	err    error
}

func newEvents(from io.ReadCloser, r *remote) *events {
	e := &events{Closer: from, remote: r, lines: bufio.NewScanner(from)}
	e.lines.Buffer(make([]byte, 0, 64<<10), maxFrame)
	return e
}

// Read implements io.Reader.
func (e *events) Read(p []byte) (int, error) {
	for e.ready.Len() == 0 {
		if e.err != nil {
			return 0, e.err
		}
		e.err = e.next()
		if e.err != nil && !errors.Is(e.err, io.EOF) {
			e.remote.failed(e.err)
		}
	}
	return e.ready.Read(p)
}

// next makes one event anew.
func (e *events) next() error {
	var id, retry, event string
	var data []byte
	for {
		if !e.lines.Scan() {
			if errors.Is(e.lines.Err(), bufio.ErrTooLong) {
				return errLong
			}
			return io.EOF // and what broke the connection ends the call, or is tried again
		}
		name, value, _ := strings.Cut(e.lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		if name != "data" && e.lines.Text() != "" {
			if err := e.remote.count(); err != nil {
				return err
			}
		}
		switch name {
		case "":
			if e.lines.Text() == "" {
				return e.emit(id, retry, event, data)
			}
		case "id":
			id = value
		case "retry":
			retry = value
		case "event":
			event = value
		case "data":
			if len(data)+len(value) >= maxFrame {
				return errLong
			}
			data = append(append(data, value...), '\n')
		}
	}
}

func (e *events) emit(id, retry, event string, data []byte) error {
	var frame []byte
	if len(data) > 0 && (event == "" || event == "message") {
		message, err := e.remote.received(data)
		if err != nil {
			return err
		}
		if message != nil {
			if frame, err = encode(message); err != nil {
				return err
			}
		}
	}
	if id != "" && len(id) <= maxEventID && !strings.ContainsAny(id, "\x00\r") {
		fmt.Fprintf(&e.ready, "id: %s\n", id)
	}
	if ms, err := strconv.ParseUint(retry, 10, 31); err == nil {
		wait := min(max(time.Duration(ms)*time.Millisecond, minRetry), maxRetry)
		fmt.Fprintf(&e.ready, "retry: %d\n", wait.Milliseconds())
	}
	if frame != nil {
		fmt.Fprintf(&e.ready, "data: %s\n", frame)
	}
	if e.ready.Len() > 0 {
		e.ready.WriteByte('\n')
	}
	return nil
}

// A server that asks to be tried again is tried within these.
const minRetry, maxRetry = time.Second, 30 * time.Second
