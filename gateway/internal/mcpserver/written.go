package mcpserver

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/relay"
	"durward.internal/services/platform/contract"
)

// written remembers how answers of snapshot tools were written, by the tool and by every byte that the sink said: whoever gets the
// same answer gets the same text. It decides nothing: each call was judged by the sink before there was an answer to look up. The
// contract's lint demands that such an answer holds the catalogue's words alone. The zero value is ready, and safe for concurrent use.
type written struct {
	mu    sync.RWMutex
	known map[string]*remembered
	size  int
}

// remembered is an answer without a request id, and its form.
type remembered struct {
	envelope envelope.Envelope
	form     *form
}

// Bounds of what is remembered; beyond them all is forgotten, and what is asked for is soon there again.
const (
	maxWritten      = 512
	maxWrittenBytes = 4 << 20
)

// done is the function done for a call of a snapshot tool. An answer under overrides, or of something that was carried out, is
// written each time.
func (w *written) done(call *httpfront.Call, t contract.Tool, reply relay.Reply) (answer, error) {
	o := reply.Outcome
	if o.GetFailed() || o.GetReplayed() || o.GetReceipt() != nil || len(o.GetOverrides()) > 0 {
		return done(call, t, reply, "")
	}
	key := binary.AppendUvarint(make([]byte, 0, 512), uint64(len(o.GetWarnings())))
	for _, said := range append([]string{t.Name, o.GetSummary()}, o.GetWarnings()...) {
		key = append(binary.AppendUvarint(key, uint64(len(said))), said...)
	}
	key, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(key, reply.Response)
	if err != nil {
		return done(call, t, reply, "") // it says what is wrong
	}
	w.mu.RLock()
	before := w.known[string(key)]
	w.mu.RUnlock()
	if before != nil {
		e := before.envelope
		e.RequestID = call.RequestID
		return answer{Envelope: &e, form: before.form}, nil
	}
	out, err := done(call, t, reply, "")
	if err != nil {
		return answer{}, err
	}
	if out.form, err = newForm(out.Envelope); err != nil {
		return out, nil //nolint:nilerr // whoever writes it finds out
	}
	w.remember(string(key), out)
	return out, nil
}

func (w *written) remember(key string, out answer) {
	one := &remembered{envelope: *out.Envelope, form: out.form}
	size := len(key) + len(one.envelope.Result) + one.form.size()
	if size > maxWrittenBytes/4 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known == nil || len(w.known) >= maxWritten || w.size+size > maxWrittenBytes {
		w.known, w.size = map[string]*remembered{}, 0
	}
	if w.known[key] == nil {
		w.known[key] = one
		w.size += size
	}
}

// form is an envelope as it is written, in two parts around its request id: as JSON, and as JSON in a JSON text.
type form struct{ plain, quoted [2][]byte }

// newForm writes an envelope, cleaned as every answer is that leaves.
func newForm(e *envelope.Envelope) (*form, error) {
	raw, err := e.JSON()
	if err != nil {
		return nil, err
	}
	raw = envelope.Cleaned(json.RawMessage(raw))
	// It is the first such member: what stands in a text has its quotation marks escaped.
	const member = `"request_id":"`
	at := bytes.Index(raw, []byte(member)) + len(member)
	end := at + len(e.RequestID)
	if at < len(member) || end >= len(raw) || string(raw[at:end]) != e.RequestID || raw[end] != '"' {
		return nil, errors.New("the envelope does not hold its request id")
	}
	f := &form{plain: [2][]byte{raw[:at:at], raw[end:]}}
	for i, part := range f.plain {
		if f.quoted[i], err = jsontext.AppendQuote(nil, part); err != nil {
			return nil, err
		}
	}
	// One text, not two.
	f.quoted[0], f.quoted[1] = f.quoted[0][:len(f.quoted[0])-1], f.quoted[1][1:]
	return f, nil
}

// size is how many bytes it takes.
func (f *form) size() int {
	return len(f.plain[0]) + len(f.plain[1]) + len(f.quoted[0]) + len(f.quoted[1])
}

// json appends the envelope with that request id, which needs no escapes: it is ours.
func (f *form) json(b []byte, requestID string) []byte {
	return append(append(append(b, f.plain[0]...), requestID...), f.plain[1]...)
}

// text appends the same as a JSON text.
func (f *form) text(b []byte, requestID string) []byte {
	return append(append(append(b, f.quoted[0]...), requestID...), f.quoted[1]...)
}
