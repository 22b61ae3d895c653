package child

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/release"
)

// run is one process of a server, or one session with a remote one, from its start to its end.
type run struct {
	manager  *Manager
	instance *instance
	server   *downstream.Pinned
	timeouts downstream.Timeouts
	frames   *frames
	session  *mcp.ClientSession
	// ctx ends with the run, and its cause is why. ready is closed when calls may begin.
	ctx   context.Context
	end   context.CancelCauseFunc
	ready chan struct{}

	// The manager's mu guards these.
	process *Process
	exited  chan struct{}
	// begun is how much the instance had written before, and secrets are the credentials that it was given.
	begun   int
	secrets []string
	// flights ends with the run, or with a panic: the calls in flight.
	flights     context.Context
	endFlights  context.CancelCauseFunc
	calls       int
	since, used time.Time
	idle        *time.Timer
	// comparing is closed when the tools were compared, nil when they are; again: they changed meanwhile. listed is when they were last.
	comparing chan struct{}
	again     bool
	listed    time.Time

	// turn is held for the one call of a server that may ask.
	turn chan struct{}

	mu sync.Mutex
	// asking is that call, and waiting are its questions that wait for an answer.
	asking  *flight
	waiting map[string]*question
	// unanswered is the last question whose call ended before an answer came: whoever comes with one hears what the call came to.
	unanswered *question
}

const (
	// grace is how long a process has to end after its input did.
	grace = time.Second
	// between is the least time from one comparison to the next.
	between = time.Second
	// relist is how old a comparison may be when a call comes.
	relist = time.Minute
	// olderRevision is the newest that begins without a question that older servers do not know.
	olderRevision = "2025-11-25"
)

// start begins a run. The caller holds the manager's mu.
func (m *Manager) start(i *instance, server *downstream.Pinned) {
	written := server.Entry.Timeouts
	r := &run{
		manager: m, instance: i, server: server, ready: make(chan struct{}), used: time.Now(),
		timeouts: downstream.Timeouts{
			Ready: cmp.Or(written.Ready, 30*time.Second), Call: cmp.Or(written.Call, 30*time.Second), Idle: cmp.Or(written.Idle, 10*time.Minute),
		},
		comparing: make(chan struct{}), turn: make(chan struct{}, 1), waiting: map[string]*question{},
	}
	r.ctx, r.end = context.WithCancelCause(context.Background())
	r.flights, r.endFlights = context.WithCancelCause(r.ctx)
	r.frames = &frames{elicits: server.Entry.Elicitation, toolsChanged: r.toolsChanged, logged: func(line string) { i.log.Add(line + "\n") }}
	r.idle = time.AfterFunc(r.timeouts.Ready+r.timeouts.Idle, func() { m.unused(r) })
	before, gone := i.gone, make(chan struct{})
	i.run, i.gone = r, gone
	m.ending.Go(func() {
		defer close(gone)
		if before != nil {
			<-before
		}
		r.live()
	})
}

// live is the run, from its start until nothing is left of it.
func (r *run) live() {
	late := time.AfterFunc(r.timeouts.Ready, func() { r.end(fmt.Errorf("it was not ready within %s", r.timeouts.Ready)) })
	select {
	case r.manager.places <- struct{}{}: // what gave it up has ended by now, and not only been told to
		defer func() { <-r.manager.places }()
		if err := r.open(late); err != nil {
			r.end(err) // unless there is a reason already
		}
	case <-r.ctx.Done():
	}
	if late.Stop() && r.ctx.Err() == nil {
		r.manager.mu.Lock()
		r.since = time.Now()
		r.manager.mu.Unlock()
		close(r.ready)
	}
	<-r.ctx.Done()
	r.idle.Stop()
	r.manager.mu.Lock()
	r.instance.over(r)
	r.manager.mu.Unlock()
	if r.session != nil {
		go r.session.Close() //nolint:errcheck // the connection is closed already; this ends what the SDK keeps beside it
	}
	if r.process != nil {
		kill := time.AfterFunc(grace, r.process.Kill)
		<-r.exited
		kill.Stop()
		r.tell()
	}
}

// tell says that the process is no more.
func (r *run) tell() {
	why := context.Cause(r.ctx)
	if r.manager.Ended == nil || errors.Is(why, errClosed) {
		return
	}
	r.manager.Ended(End{
		Server: r.instance.server, Principal: r.instance.principal, Why: clean.Line(why.Error(), maxMessage), Said: r.instance.log.Since(r.begun, r.secrets),
		Wanted: slices.Contains([]error{errFrozen, errReplaced, errRestart, errIdle, errEvicted, errSession}, why),
	})
}

// open starts what there is to start, speaks to it, and compares its tools. A process that ends over the first question of the newest revision, or
// reads it and does not answer, is of an older one, and is started again without that question, with as much time as the first start had.
func (r *run) open(late *time.Timer) error {
	r.manager.mu.Lock()
	older := r.instance.older
	r.instance.older = false // unless it begins so again: its program may be another by now
	r.manager.mu.Unlock()
	err := r.connect(older)
	if r.ctx.Err() == nil && r.process != nil && r.frames.unheard(false) {
		r.process.Kill()
		<-r.exited
		r.frames.forgetAll()
		late.Reset(r.timeouts.Ready)
		older, err = true, r.connect(true)
	}
	if err != nil {
		return err
	}
	r.manager.mu.Lock()
	r.instance.older = older
	r.manager.mu.Unlock()
	if err := r.compare(); err != nil {
		return err
	}
	if r.server.Entry.URL != "" {
		go r.manager.lost(r)
	}
	return nil
}

// connect begins to speak to the server, in the newest revision that both know or in an older one.
func (r *run) connect(older bool) error {
	transport, err := r.transport()
	if err != nil {
		return err
	}
	options := &mcp.ClientSessionOptions{}
	if older {
		options.ProtocolVersion = olderRevision
	}
	r.endMute(r.timeouts.Ready/3, false)
	r.session, err = newClient(&r.server.Entry, r.elicit).Connect(r.ctx, &closing{transport, r.ctx}, options)
	if err != nil && (r.process == nil || !r.frames.unheard(false)) {
		return r.reason(err)
	}
	return err
}

// endMute ends the process after a while if it leaves the first question of the newest revision without an answer. One that has not read
// the question is still starting, and may know that revision alone.
func (r *run) endMute(after time.Duration, starting bool) {
	time.AfterFunc(after, func() {
		r.manager.mu.Lock()
		defer r.manager.mu.Unlock()
		if r.ctx.Err() != nil || r.process == nil || !r.frames.unheard(false) {
			return
		}
		if still := r.frames.unread(r.process.Stdin); still || starting {
			r.endMute(r.timeouts.Ready/10, still)
		} else if r.frames.unheard(true) { // or its answer, which comes just now, would have its end count as its own
			r.process.Kill()
		}
	})
}

// closing closes a transport's connection when ctx ends, whatever the SDK makes of it.
type closing struct {
	mcp.Transport
	ctx context.Context //nolint:containedctx // the connection's life
}

// Connect implements mcp.Transport.
func (c *closing) Connect(ctx context.Context) (mcp.Connection, error) {
	connection, err := c.Transport.Connect(ctx)
	if err == nil {
		context.AfterFunc(c.ctx, func() { _ = connection.Close() })
	}
	return connection, err
}

// transport is the way to the server: a process that it starts, or HTTP.
func (r *run) transport() (mcp.Transport, error) {
	m, principal := r.manager, r.instance.principal
	if r.server.Entry.URL != "" {
		way := &remote{frames: r.frames, dialed: m.Remote, failed: r.end, bearer: func(ctx context.Context) (string, error) {
			if m.Bearer == nil {
				return "", nil
			}
			return m.Bearer(ctx, r.server, principal)
		}}
		return &mcp.StreamableClientTransport{Endpoint: r.server.Entry.URL, HTTPClient: &http.Client{Transport: way}}, nil
	}
	var env map[string]string
	if m.Env != nil {
		var err error
		if env, err = m.Env(r.ctx, r.server, principal); err != nil {
			return nil, err
		}
	}
	for variable := range r.server.Entry.Credentials {
		if value := env[variable]; value != "" {
			r.secrets = append(r.secrets, value)
		}
	}
	r.begun = r.instance.log.Length()
	process, err := m.Start(r.ctx, r.server, principal, env)
	if err != nil {
		return nil, fmt.Errorf("it does not start: %w", err)
	}
	exited, logged, drained := make(chan struct{}), make(chan struct{}), make(chan struct{}) // of the last two nothing more is read
	m.mu.Lock()
	r.process, r.exited = process, exited
	if m.frozen { // of a server that is started again, the process of before could be held
		r.instance.stop(errFrozen)
	}
	m.mu.Unlock()
	go func() {
		defer close(logged)
		r.instance.log.Follow(process.Stderr)
	}()
	go func() {
		defer close(exited)
		err := process.Wait()
		late, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		for _, last := range []<-chan struct{}{drained, logged} { // what it said last counts
			select {
			case <-last:
			case <-late.Done():
			}
		}
		why := "it ended"
		if err != nil {
			why += ": " + clean.Line(err.Error(), maxMessage)
		}
		if !r.frames.unheard(false) || r.frames.unread(process.Stdin) { // what did not read the question did not end over it
			r.end(errors.New(why))
		}
	}()
	if r.ctx.Err() != nil { // ended meanwhile, as by a panic: it was told nothing that it could end over
		process.Kill()
		return nil, context.Cause(r.ctx)
	}
	drain := sync.OnceFunc(func() { close(drained) })
	return newPipe(r.frames, process, r.timeouts.Call, func(err error) {
		drain()
		if errors.Is(err, errSilent) {
			select { // how it ended says more
			case <-r.ctx.Done():
			case <-exited:
			case <-time.After(grace):
			}
			if r.frames.unheard(false) {
				return
			}
		}
		r.end(err)
	}), nil
}

// newClient returns the SDK's client for a server: it knows the folders that the server sees, asks where the entry lets the server ask, and knows
// nothing else that a server may want.
//
//nolint:staticcheck // roots are what today's servers ask for
func newClient(server *downstream.Entry, ask func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error)) *mcp.Client {
	options := &mcp.ClientOptions{
		Capabilities: &mcp.ClientCapabilities{RootsV2: &mcp.RootCapabilities{}},
		// The handlers have the SDK ask for the notifications, which the frames hand over.
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {},
	}
	if server.Prompts {
		options.PromptListChangedHandler = func(context.Context, *mcp.PromptListChangedRequest) {}
	}
	if server.Elicitation {
		options.ElicitationHandler = ask
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "durward", Version: release.Version()}, options)
	if server.URL != "" {
		return client
	}
	for _, folder := range slices.Concat([]string{"/data"}, server.Sandbox.Read, server.Sandbox.Write) {
		client.AddRoots(&mcp.Root{URI: (&url.URL{Scheme: "file", Path: folder}).String(), Name: folder})
	}
	return client
}

// freeze stops the process as it is and ends the calls in flight, or lets it go on. The caller holds the manager's mu.
func (r *run) freeze(on bool) error {
	if on {
		r.endFlights(errFrozen)
	} else {
		r.flights, r.endFlights = context.WithCancelCause(r.ctx)
	}
	return r.process.Freeze(on)
}

// call makes one call, and rebuilds its result.
func (r *run) call(f *flight, tool string, arguments []byte) (Result, error) {
	result, err := r.answer(f.ctx, tool, arguments)
	if err != nil {
		if f.ctx.Err() != nil {
			return Result{}, context.Cause(f.ctx)
		}
		return Result{}, r.reason(err)
	}
	return rebuild(result, r.server.Entry.Images)
}

// answer makes the request that a pinned tool stands for. What a resource or a prompt holds is answered as a tool's content.
func (r *run) answer(ctx context.Context, tool string, arguments []byte) (*mcp.CallToolResult, error) {
	if own, isPrompt := strings.CutPrefix(tool, downstream.PromptPrefix); isPrompt {
		return r.prompt(ctx, own, arguments)
	}
	if tool == downstream.ReadResource {
		return r.resource(ctx, arguments)
	}
	return r.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(arguments)})
}

// reason says why a request failed: why the run ended, what the server answered, or what was wrong with it.
func (r *run) reason(err error) error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	var away *unreachableError
	if errors.As(err, &away) { // before what the SDK makes of it
		return away
	}
	if errors.Is(err, mcp.ErrConnectionClosed) {
		r.end(errLost) // what comes next is not to join it
		return errLost
	}
	if answered, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return fmt.Errorf("it answered with the error %d: %s", answered.Code, clean.Line(answered.Message, clean.Whole))
	}
	return errors.New("its answer is not one that MCP knows") // the SDK's own words are about Go types
}
