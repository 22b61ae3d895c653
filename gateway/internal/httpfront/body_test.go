package httpfront

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"durward.internal/gateway/internal/limit"
	callv1 "durward.internal/proto/gen/durward/call/v1"
)

// unreadBody is a body that nobody may read.
type unreadBody struct{ t *testing.T }

func (b unreadBody) Read([]byte) (int, error) {
	b.t.Error("the body was read")
	return 0, io.EOF
}

func (unreadBody) Close() error { return nil }

// timeless is a connection that takes no deadline.
type timeless struct{ http.ResponseWriter }

func (timeless) SetReadDeadline(time.Time) error { return errors.New("no deadline") }

// A message that its principal cannot pay, by the length that it names, is refused before its first byte; one on a connection that
// takes no deadline, which could trickle for ever, is not read.
func TestRefusedBeforeTheFirstByte(t *testing.T) {
	conf := limit.Config{Rates: limit.Rates{Messages: limit.Rate{PerS: 1, Burst: 2}}}
	for name, c := range map[string]struct {
		length int64
		writer func(http.ResponseWriter) http.ResponseWriter
		code   callv1.Code
	}{
		"a large message":        {900_000, func(w http.ResponseWriter) http.ResponseWriter { return w }, callv1.Code_CODE_RATE_LIMITED},
		"without a deadline":     {-1, func(w http.ResponseWriter) http.ResponseWriter { return timeless{w} }, callv1.Code_CODE_INVALID_ARGUMENT},
		"a stranger's, the same": {-1, func(w http.ResponseWriter) http.ResponseWriter { return timeless{w} }, callv1.Code_CODE_INVALID_ARGUMENT},
	} {
		a, err := newAdmission(conf)
		must(t, err)
		a.TakeN("p", limit.Messages, 2) // what it has
		by := &visit{admission: a, principal: "p"}
		if name == "a stranger's, the same" {
			by.principal = ""
		}
		r := httptest.NewRequest(http.MethodPost, "/mcp", unreadBody{t})
		r.ContentLength = c.length
		body, _, no := a.readBody(c.writer(httptest.NewRecorder()), r, by)
		if no == nil || no.code != c.code || body != nil {
			t.Errorf("%s: %d bytes, %+v", name, len(body), no)
		}
	}
}
