package httpfront

import (
	"context"
	"net/http"
	"strconv"
)

// Direct answers a call of a tool where it was understood, without the SDK: the whole JSON-RPC response in one line, or false where the
// call is the SDK's to serve, and then it has done nothing. ctx ends when the client goes, cancels the call or ends its session.
type Direct func(ctx context.Context, call *Call, tool string, arguments []byte) (response []byte, served bool)

// direct answers a call at once, if it is one that can be, and reports whether it did. A client that wants to hear of progress needs
// a stream, which is the SDK's. Everything before and after is as for any other message: what the front checks, limits and counts,
// and the id that is under way.
func (f *Front) direct(ctx context.Context, w http.ResponseWriter, call *Call, frame *Frame) bool {
	if f.conf.Direct == nil || frame.Method != methodCallTool || frame.ID == nil || frame.progressToken != nil || frame.diagnostic != nil {
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer call.Session.OnEnd(cancel)()
	if call.Era == Stateful {
		f.table.cancellable(call.entry, requestKey(frame.ID), cancel)
	}
	response, served := f.conf.Direct(ctx, call, frame.Tool, frame.Arguments)
	if !served {
		return false
	}
	// As the SDK answers: a stream of one event. A response is one line.
	const before, after = "event: message\ndata: ", "\n\n"
	event := append(append(append(make([]byte, 0, len(before)+len(response)+len(after)), before...), response...), after...)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("Content-Length", strconv.Itoa(len(event)))
	_, _ = w.Write(event) // a client that is gone reads nothing
	return true
}
