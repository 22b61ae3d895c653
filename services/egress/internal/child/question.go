package child

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/downstream/validator"
)

const (
	methodElicit = "elicitation/create"
	// maxQuestions is how often a server asks during one call, and maxUnanswered how long each question waits.
	maxQuestions  = 8
	maxUnanswered = 10 * time.Minute
)

// flight is one call under way. Where the server asks during it, it goes on without its caller, who comes back with an answer.
type flight struct {
	ctx context.Context //nolint:containedctx // the call's life
	end context.CancelCauseFunc
	// late ends it after a while, and stands still while a question waits.
	late *time.Timer
	// asked hands a question over. done is closed when result and err are what the call came to.
	asked  chan *question
	done   chan struct{}
	result Result
	err    error
	// one is held for the question that waits.
	one       sync.Mutex
	questions int
}

// question is what a server asks during a call.
type question struct {
	id, message string
	form        json.RawMessage
	schema      *downstream.Schema
	flight      *flight
	answer      chan *mcp.ElicitResult
}

// begin begins a call, which ends with ctx, after its timeout, and with the run or a panic: also with one that comes while the caller
// confirms the call, so that none is missed. over ends what begin began.
func (r *run) begin(ctx context.Context, confirm func() error) (f *flight, over func(), _ error) {
	f = &flight{asked: make(chan *question), done: make(chan struct{})}
	f.ctx, f.end = context.WithCancelCause(ctx)
	f.late = time.AfterFunc(r.timeouts.Call, func() { f.end(fmt.Errorf("it did not answer within %s", r.timeouts.Call)) })
	r.manager.mu.Lock()
	flights := r.flights
	r.manager.mu.Unlock()
	unlink := context.AfterFunc(flights, func() { f.end(context.Cause(flights)) })
	over = func() {
		unlink()
		f.late.Stop()
		f.end(nil)
	}
	if err := confirm(); err != nil {
		over()
		return nil, nil, unconfirmed{err}
	}
	return f, over, nil
}

// launch makes a call of a server that may ask, which outlives ctx. Such a server has one call at a time: what it asks belongs to that.
func (r *run) launch(ctx context.Context, tool string, arguments []byte, confirm func() error) (*flight, error) {
	r.mu.Lock()
	for id := range r.waiting {
		r.mu.Unlock()
		return nil, fmt.Errorf("it waits for an answer to its question %s", id)
	}
	r.mu.Unlock()
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-r.ctx.Done():
		return nil, context.Cause(r.ctx)
	case <-time.After(r.timeouts.Call):
		return nil, errors.New("it is at another call, and does one at a time")
	}
	f, over, err := r.begin(context.WithoutCancel(ctx), confirm)
	if err != nil {
		<-r.turn
		return nil, err
	}
	r.manager.mu.Lock()
	r.calls++
	r.manager.mu.Unlock()
	r.mu.Lock()
	r.asking = f
	r.mu.Unlock()
	go func() {
		defer r.manager.leave(r)
		f.result, f.err = r.call(f, tool, arguments)
		if f.ctx.Err() != nil { // the server heard of that as a cancelled question, and may have answered
			f.result, f.err = Result{}, context.Cause(f.ctx)
		}
		r.mu.Lock()
		r.asking = nil
		r.mu.Unlock()
		over()
		<-r.turn
		close(f.done)
	}()
	return f, nil
}

// next returns the server's next question, or what the call came to. Nobody hears of the call when ctx ends: that ends it.
func (f *flight) next(ctx context.Context) (Result, error) {
	select {
	case q := <-f.asked:
		return Result{Question: q.id, Content: []Content{{Kind: Text, Text: q.message}, {Kind: Text, Text: string(q.form)}}}, nil
	case <-f.done:
		return f.result, f.err
	case <-ctx.Done():
		f.end(ctx.Err())
		return Result{}, ctx.Err()
	}
}

// elicit is what the SDK calls when a server asks, in either revision, with a form that frames made anew.
func (r *run) elicit(_ context.Context, request *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	r.mu.Lock()
	f := r.asking
	r.mu.Unlock()
	if f == nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "nobody calls"}
	}
	f.one.Lock()
	defer f.one.Unlock()
	if f.questions++; f.questions > maxQuestions {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: fmt.Sprintf("a call asks %d times at most", maxQuestions)}
	}
	q := &question{message: request.Params.Message, flight: f, answer: make(chan *mcp.ElicitResult, 1)}
	form, err := canonical.Marshal(request.Params.RequestedSchema)
	if err == nil {
		q.form = form
		q.schema, err = downstream.Compile(form, validator.Compile)
	}
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: errForm.Error()}
	}
	f.late.Stop()
	defer f.late.Reset(r.timeouts.Call)
	r.mu.Lock()
	q.id = name()
	r.waiting[q.id] = q
	r.mu.Unlock()
	unanswered := time.AfterFunc(maxUnanswered, func() { f.end(fmt.Errorf("its question was not answered within %s", maxUnanswered)) })
	defer unanswered.Stop()
	select {
	case f.asked <- q:
		select {
		case answer := <-q.answer:
			return answer, nil
		case <-f.ctx.Done():
		}
	case <-f.ctx.Done():
	}
	if r.take(q.id) != nil {
		r.mu.Lock()
		r.unanswered = q
		r.mu.Unlock()
	}
	return &mcp.ElicitResult{Action: "cancel"}, nil
}

// name is what a question is called: letters that nobody guesses, and that are no word, number or key to anything that looks texts through.
func name() string {
	const letters = "bcdfghjkmnpqrstvwxz"
	id := make([]byte, 10)
	rand.Read(id)
	for i, b := range id {
		id[i] = letters[int(b)%len(letters)]
	}
	return string(id)
}

func (r *run) take(id string) *question {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.waiting[id]
	delete(r.waiting, id)
	return q
}

// settle gives a server the answer to its question, and returns the call that goes on with it; or that ended before, without the answer.
func (r *run) settle(ctx context.Context, arguments []byte, confirm func() error) (*flight, error) {
	if err := confirm(); err != nil { // nothing here waits
		return nil, unconfirmed{err}
	}
	var given struct {
		Question, Action string
		Content          map[string]any
	}
	if err := json.Unmarshal(arguments, &given); err != nil {
		return nil, err
	}
	r.mu.Lock()
	q, late := r.waiting[given.Question], r.unanswered
	if late != nil && late.id == given.Question {
		r.unanswered = nil
		r.mu.Unlock()
		return late.flight, nil
	}
	r.mu.Unlock()
	none := errors.New("no question of that name waits for an answer: it was answered, its call is over, or it was never asked")
	if q == nil {
		return nil, none
	}
	answer := &mcp.ElicitResult{Action: given.Action}
	if given.Action == "accept" {
		if answer.Content = given.Content; given.Content == nil {
			answer.Content = map[string]any{}
		}
		raw, err := canonical.Marshal(answer.Content)
		if err == nil {
			err = q.schema.Validate(ctx, raw)
		}
		if err != nil {
			return nil, fmt.Errorf("the content is not what it asks for: %w", err)
		}
	}
	if r.take(given.Question) == nil {
		return nil, none
	}
	q.answer <- answer
	return q.flight, nil
}

// Asked is what a server asks in the question of that name, for a human who decides on the answer; "" where none waits.
func (m *Manager) Asked(server, id string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, i := range m.instances {
		if k.server != server || i.run == nil {
			continue
		}
		i.run.mu.Lock()
		q := i.run.waiting[id]
		i.run.mu.Unlock()
		if q != nil {
			return q.message
		}
	}
	return ""
}
