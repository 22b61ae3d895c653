package httpfront

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"durward.internal/gateway/internal/limit"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
)

// maxFromStranger is how large the message of somebody may be whom the vault has not accepted yet, in bytes.
const maxFromStranger = 64 << 10

// A message costs its principal one token of its messages, and another for each perToken bytes; of messages beyond largeBody
// bytes few of a principal are read at a time. A flood of large messages would cost others more than any flood of calls.
const (
	perToken  = 16 << 10
	largeBody = 64 << 10
)

// A body has bodyGrace to begin with, and from then on must come at bodyRate bytes a second.
const (
	bodyGrace = 5 * time.Second
	bodyRate  = 64 << 10
)

// intake reads the body of one message. It must keep coming, and is paid for: a client that trickles its message, or sends
// more than it may, is refused in the middle of it.
type intake struct {
	admission *admission
	by        *visit
	body      io.ReadCloser
	control   *http.ResponseController
	began     time.Time
	read      int64
	paid      int
	large     bool
	no        *refused
}

var errRefused = errors.New("refused")

// Read implements io.Reader.
func (in *intake) Read(p []byte) (int, error) {
	due := in.began.Add(bodyGrace + time.Duration(in.read)*time.Second/bodyRate)
	if err := in.control.SetReadDeadline(due); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	n, err := in.body.Read(p)
	in.read += int64(n)
	if in.no = in.pay(in.read); in.no != nil {
		return 0, errRefused
	}
	return n, err
}

// Close implements io.Closer.
func (in *intake) Close() error { return in.body.Close() }

// pay takes what so many bytes of the message cost, less what was paid before. Strangers do not pay: they have a bucket
// together, and send little.
func (in *intake) pay(size int64) *refused {
	if in.by.stranger() {
		return nil
	}
	if size > largeBody && !in.large {
		if in.large = in.admission.Enter(in.by.principal, limit.LargeMessages); !in.large {
			return overLimit(in.by.principal, "large messages", time.Second)
		}
	}
	due := int(size/perToken) - in.paid
	if due <= 0 {
		return nil
	}
	if retry := in.admission.TakeN(in.by.principal, limit.Messages, due); retry > 0 {
		return overLimit(in.by.principal, limit.Messages.String(), retry)
	}
	in.paid += due
	return nil
}

// done ends what reading began, when nothing refers to the body any more.
func (in *intake) done() {
	if in.large {
		in.admission.Leave(in.by.principal, limit.LargeMessages)
	}
}

// readBody reads at most the allowed size, whatever the headers claim. The caller calls done when it has decoded the body.
func (a *admission) readBody(w http.ResponseWriter, r *http.Request, by *visit) (body []byte, done func(), no *refused) {
	in := &intake{admission: a, by: by, body: r.Body, control: http.NewResponseController(w), began: time.Now()}
	if body, no = in.all(w, r); no != nil {
		in.done()
		return nil, nil, no
	}
	return body, in.done, nil
}

func (in *intake) all(w http.ResponseWriter, r *http.Request) ([]byte, *refused) {
	most := int64(canonical.MaxBytes)
	tooLarge := &refused{status: http.StatusRequestEntityTooLarge, rpc: rpcInvalidRequest, code: callv1.Code_CODE_TOO_LARGE,
		reason: "size", message: sentenceTooLarge}
	if in.by.stranger() {
		most, tooLarge.message = maxFromStranger, "The first message with a token is larger than 64 kB."
	}
	if r.ContentLength > most {
		in.drain()
		return nil, tooLarge
	}
	var b bytes.Buffer
	if r.ContentLength > 0 {
		if no := in.pay(r.ContentLength); no != nil {
			return nil, no
		}
		b.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	_, err := b.ReadFrom(http.MaxBytesReader(w, in, most))
	if err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			in.drain()
			return nil, tooLarge
		}
		return nil, in.unread(err)
	}
	if b.Len() == 0 {
		return nil, &refused{status: http.StatusBadRequest, rpc: rpcParse, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "body",
			message: "The message is empty."}
	}
	return b.Bytes(), nil
}

// unread refuses a body that could not be read.
func (in *intake) unread(err error) *refused {
	switch {
	case in.no != nil:
		return in.no
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &refused{status: http.StatusRequestTimeout, rpc: rpcParse, code: callv1.Code_CODE_TIMEOUT, reason: "body",
			message: "The message came too slowly.", often: true, principal: in.by.principal}
	default:
		return &refused{status: http.StatusBadRequest, rpc: rpcParse, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "body",
			message: "The message could not be read."}
	}
}

// maxDrain is how much of a body that is too large is read and thrown away.
const maxDrain = 8 << 20

// drain lets a client finish sending what is refused, as far as it pays for it: one that is cut off while it writes sees a
// broken connection and not why. A stranger may as well.
func (in *intake) drain() {
	if !in.by.stranger() {
		_, _ = io.CopyN(io.Discard, in, maxDrain)
	}
}
