package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/limit"
	"durward.internal/gateway/internal/listchange"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/resource"
	"durward.internal/gateway/internal/subscription"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/pattern"
)

// Methods and notifications of resources.
const (
	methodReadResource = "resources/read"
	methodSubscribe    = "resources/subscribe"
	methodUnsubscribe  = "resources/unsubscribe"
	methodListen       = "subscriptions/listen"
	methodComplete     = "completion/complete"
	noteUpdated        = "notifications/resources/updated"
	noteAcknowledged   = "notifications/subscriptions/acknowledged"
)

// notifyTimeout bounds one notification. A client that does not read holds up nobody but itself.
const notifyTimeout = 10 * time.Second

// resources serves resources, and the subscriptions to it.
type resources struct {
	reader *resource.Reader
	table  *subscription.Table
	// send sends a notification to one session, by era.
	send [2]mcp.MethodHandler

	mu sync.Mutex
	// listeners are the sessions of the stateful era that are subscribed to something, acked the streams of the other era whose
	// client does not yet know that it is: nothing may be told before.
	listeners map[*mcp.ServerSession]*subscription.Listener
	acked     map[*mcp.ServerSession]chan struct{}
}

func newResources(conf Config) (*resources, error) {
	reader, err := resource.New(conf.Relay, conf.boundsOf)
	if err != nil {
		return nil, err
	}
	table, err := subscription.New(conf.Relay)
	if err != nil {
		return nil, err
	}
	return &resources{
		reader: reader, table: table, listeners: map[*mcp.ServerSession]*subscription.Listener{}, acked: map[*mcp.ServerSession]chan struct{}{},
	}, nil
}

// Subscriptions returns how many subscriptions to resources there are.
func (s *Server) Subscriptions() int { return s.resources.table.Count() }

// boundsOf returns what durward://config tells a client of this gateway's limits.
func (c Config) boundsOf(principal string) []resource.Bound {
	rate := func(r limit.Rate) string { return fmt.Sprintf("%g a second, %d at once after a rest", r.PerS, r.Burst) }
	out := []resource.Bound{
		{Name: "a call is held for a human", Value: c.Hold.String()},
		{Name: "subscriptions", Value: fmt.Sprint(subscription.MaxURIs)},
		{Name: "a session without use ends after", Value: c.SessionTimeout.String()},
	}
	if c.Limits == nil {
		return out
	}
	rates := c.Limits.Of(principal)
	return append(out,
		resource.Bound{Name: "calls that change something or wait", Value: rate(rates.Tools)},
		resource.Bound{Name: "calls that read", Value: rate(rates.Reads)},
		resource.Bound{Name: "resources", Value: rate(rates.Resources)},
		resource.Bound{Name: "lists", Value: rate(rates.Lists)},
		resource.Bound{Name: "messages in all", Value: rate(rates.Messages)},
		resource.Bound{Name: "tool calls under way", Value: fmt.Sprint(c.Limits.CallsPerPrincipal)},
		resource.Bound{Name: "requests under way", Value: fmt.Sprint(c.Limits.RequestsPerPrincipal)},
		resource.Bound{Name: "connections", Value: fmt.Sprint(c.Limits.ConnectionsPerPrincipal)},
	)
}

// options makes a server say that it has resources. The handlers decide nothing: what comes to them was judged in dispatch.
func (r *resources) options(o *mcp.ServerOptions) {
	o.Capabilities.Resources = &mcp.ResourceCapabilities{ListChanged: true}
	o.SubscribeHandler = func(context.Context, *mcp.SubscribeRequest) error { return nil }
	o.UnsubscribeHandler = func(context.Context, *mcp.UnsubscribeRequest) error { return nil }
	o.CompletionHandler = func(context.Context, *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
		return nil, errors.New("a completion that was not served before")
	}
}

// register puts the lists of resources and templates on a server.
func (r *resources) register(sdk *mcp.Server) {
	annotations := func(priority float64) *mcp.Annotations {
		return &mcp.Annotations{Audience: []mcp.Role{"assistant", "user"}, Priority: priority}
	}
	for _, e := range resource.Entries() {
		sdk.AddResource(&mcp.Resource{
			URI: e.URI.String(), Name: e.Name, Title: e.Title, Description: e.Description, MIMEType: e.URI.Format.MIME(),
			Annotations: annotations(e.Priority),
		}, r.read)
	}
	for _, t := range resource.Templates() {
		sdk.AddResourceTemplate(&mcp.ResourceTemplate{
			URITemplate: t.URI, Name: t.Name, Title: t.Title, Description: t.Description, MIMEType: resource.Markdown.MIME(),
			Annotations: annotations(t.Priority),
		}, r.read)
	}
}

// outgoing is outermost around what a server sends by itself: it lets the subscriptions send through it, and sees when the
// client of a stream was told that it is subscribed.
func (r *resources) outgoing(era httpfront.Era) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		r.send[era] = next
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			result, err := next(ctx, method, req)
			if session, ok := req.GetSession().(*mcp.ServerSession); ok && err == nil && method == noteAcknowledged {
				r.subscribed(session)
			}
			return result, err
		}
	}
}

// subscribed lets a stream tell of changes: its client knows that it is subscribed.
func (r *resources) subscribed(session *mcp.ServerSession) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ack, ok := r.acked[session]; ok {
		close(ack)
		delete(r.acked, session)
	}
}

type uriKey struct{}

// client is who reads, by the front's verdict.
func client(call *httpfront.Call) resource.Client {
	return resource.Client{Session: call.Session, By: call.Caller, About: call.Session.About()}
}

// resource serves a message about resources.
func (s *Server) resource(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request, call *httpfront.Call) (mcp.Result, error) {
	var result mcp.Result
	var err error
	var asked string
	switch params := req.GetParams().(type) {
	case *mcp.ReadResourceParams:
		if served, is, err := s.readServers(ctx, req, call, params.URI); err != nil {
			return nil, err
		} else if is {
			params.URI = resource.URI{Kind: resource.Help}.String()
			return next(context.WithValue(ctx, besideKey{}, served), method, req)
		}
		var uri resource.URI
		asked = params.URI
		if uri, err = parseURI(params.URI); err != nil {
			break
		}
		// The SDK needs only to find the one handler that serves them all; which resource is read was decided here.
		params.URI = resource.URI{Kind: resource.Help}.String()
		result, err = next(context.WithValue(ctx, uriKey{}, uri), method, req)
	case *mcp.CompleteParams:
		result, err = s.resources.complete(ctx, call, params)
	case *mcp.SubscribeParams:
		if err = s.resources.subscribe(ctx, req, call, params.URI); err == nil {
			result, err = next(ctx, method, req)
		}
	case *mcp.UnsubscribeParams:
		var uri resource.URI
		if uri, err = parseURI(params.URI); err == nil {
			s.resources.unsubscribe(req, uri)
			result, err = next(ctx, method, req)
		}
	case *mcp.SubscriptionsListenParams:
		result, err = s.listenTo(ctx, next, method, req, call, params)
	default:
		err = fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(fmt.Errorf("params are a %T", params)))
	}
	if read, ok := result.(*mcp.ReadResourceResult); ok && err == nil {
		if until, dangerous := s.conf.Relay.Dangerous(call.Session); dangerous {
			read.Meta[metaDangerous] = envelope.Time(until)
		}
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return nil, naming(asked, call, f, s.refuseResource(ctx, call, method, f))
	}
	return result, err
}

// refuseResource says why a message about resources gets no further, and records what never reached a sink.
func (s *Server) refuseResource(ctx context.Context, call *httpfront.Call, method string, f *fault.Error) error {
	s.conf.Logger.InfoContext(ctx, "resource refused", "method", method, "principal", call.Session.Principal(), "session", call.Session.Ref(), "fault", f)
	if errors.Is(f, resource.ErrURI) || f.Code == callv1.Code_CODE_INVALID_ARGUMENT {
		s.conf.Refusals.Record(ctx, refusal.Event{
			RequestID: call.RequestID, Code: f.Code, Reason: "resource", Principal: call.Session.Principal(), Session: call.Session.Ref(), Field: f.Field,
		})
	}
	return refuse(call, f)
}

// repeatable is a text that can be repeated to whoever sent it as a URI: a scheme and one name, which is no path, no markup
// and no sentence.
var repeatable = pattern.New(`^[a-z]{1,16}://[A-Za-z0-9_-]{1,64}$`)

// naming adds the URI of a resource that is not there to the refusal, as the stateless era has it.
func naming(asked string, call *httpfront.Call, f *fault.Error, refused error) error {
	said, ok := errors.AsType[*refusalError](refused)
	if !ok || call.Era != httpfront.Stateless || f.Code != callv1.Code_CODE_NOT_FOUND {
		return refused
	}
	// A model's id may look like a path, so that it is not repeated.
	if u, err := resource.Parse(asked); err == nil && u.Kind != resource.Model || repeatable().MatchString(asked) && !clean.Leaks(asked) {
		said.rpc.Data = append([]byte(`{"uri":"`+asked+`",`), said.rpc.Data[1:]...) // nothing in it needs escaping
	}
	return said
}

func parseURI(uri string) (resource.URI, error) {
	u, err := resource.Parse(uri)
	if err != nil {
		return u, fault.New(callv1.Code_CODE_NOT_FOUND, err.Error(), fault.WithField("uri"), fault.WithCause(err))
	}
	return u, nil
}

// read is the handler of every resource: it reads the one that dispatch found in the request.
func (r *resources) read(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	if served, ok := ctx.Value(besideKey{}).(*mcp.ReadResourceResult); ok {
		return served, nil
	}
	call := callOf(req)
	uri, _ := ctx.Value(uriKey{}).(resource.URI) // without it, it is no resource's
	text, err := r.reader.Read(ctx, client(call), uri)
	if err != nil {
		return nil, fault.From(err)
	}
	return &mcp.ReadResourceResult{
		Meta:     mcp.Meta{metaRequestID: call.RequestID},
		Contents: []*mcp.ResourceContents{{URI: uri.String(), MIMEType: uri.Format.MIME(), Text: text}},
	}, nil
}

func (r *resources) complete(ctx context.Context, call *httpfront.Call, params *mcp.CompleteParams) (mcp.Result, error) {
	if params.Ref != nil && params.Ref.Type == "ref/prompt" && hasPrompt(call, params.Ref.Name) {
		// Nothing is proposed for its arguments, which is no error.
		return &mcp.CompleteResult{Meta: mcp.Meta{metaRequestID: call.RequestID}, Completion: mcp.CompletionResultDetails{Values: []string{}}}, nil
	}
	if params.Ref == nil || params.Ref.Type != "ref/resource" {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "that is no prompt of yours, and no resource template", fault.WithField("ref"))
	}
	values, total, err := r.reader.Complete(ctx, client(call), params.Ref.URI, params.Argument.Name, params.Argument.Value)
	if err != nil {
		return nil, fault.From(err)
	}
	return &mcp.CompleteResult{
		Meta:       mcp.Meta{metaRequestID: call.RequestID},
		Completion: mcp.CompletionResultDetails{Values: append([]string{}, values...), Total: total, HasMore: total > len(values)},
	}, nil
}

// subscribable reads URIs and judges them as a reader of the resources is judged, so that whoever may not look is not told of
// changes either. It returns the states of the operations among them.
func (r *resources) subscribable(ctx context.Context, call *httpfront.Call, raw ...string) ([]resource.URI, map[string]vaultv1.OperationState, error) {
	var uris []resource.URI
	for _, text := range raw {
		uri, err := parseURI(text)
		if err != nil {
			return nil, nil, err
		}
		uris = append(uris, uri)
	}
	states, err := r.reader.Probe(ctx, client(call), uris...)
	if err != nil {
		return nil, nil, fault.From(err)
	}
	return uris, states, nil
}

// subscribe subscribes a session of the stateful era. Notifications go out on its standalone stream.
func (r *resources) subscribe(ctx context.Context, req mcp.Request, call *httpfront.Call, raw string) error {
	session, ok := req.GetSession().(*mcp.ServerSession)
	if !ok {
		return fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(fmt.Errorf("the session is a %T", req.GetSession())))
	}
	uris, states, err := r.subscribable(ctx, call, raw)
	if err != nil {
		return err
	}
	r.mu.Lock()
	l := r.listeners[session]
	if l == nil {
		l = r.table.Listen(call.Session, call.Session.Principal(), func(uri string) { r.tell(httpfront.Stateful, noteUpdated, updated(session, uri, nil)) })
		r.listeners[session] = l
		go func() {
			_ = session.Wait() // why it ended is logged by whoever ended it
			r.mu.Lock()
			delete(r.listeners, session)
			r.mu.Unlock()
			l.Close()
		}()
	}
	r.mu.Unlock()
	return addAll(l, uris, states)
}

func addAll(l *subscription.Listener, uris []resource.URI, states map[string]vaultv1.OperationState) error {
	for _, uri := range uris {
		if err := l.Add(uri, states[uri.ID]); err != nil {
			return err
		}
	}
	return nil
}

func (r *resources) unsubscribe(req mcp.Request, uri resource.URI) {
	session, _ := req.GetSession().(*mcp.ServerSession)
	r.mu.Lock()
	l := r.listeners[session]
	r.mu.Unlock()
	if l != nil {
		l.Remove(uri)
	}
}

// listenTo serves a stream of notifications of the stateless era. Every resource is judged before the client hears that it is
// subscribed to any.
func (s *Server) listenTo(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request, call *httpfront.Call, params *mcp.SubscriptionsListenParams) (mcp.Result, error) {
	session, ok := req.GetSession().(*mcp.ServerSession)
	if !ok || params.Notifications == nil {
		return s.listen(ctx, next, method, req, call)
	}
	r := s.resources
	uris, states, err := r.subscribable(ctx, call, params.Notifications.ResourceSubscriptions...)
	if err != nil {
		return nil, err
	}
	acked := make(chan struct{})
	r.mu.Lock()
	r.acked[session] = acked
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.acked, session)
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	meta := mcp.Meta{mcp.MetaKeySubscriptionID: rpcID(call)}
	tell := func(method string, notification mcp.Request) {
		select {
		case <-acked:
			r.tell(httpfront.Stateless, method, notification)
		case <-ctx.Done():
		}
	}
	defer s.lists.Add(listchange.Client{Session: session, Wants: *params.Notifications, Meta: meta, Again: call.Session.Relisted, Send: tell})()
	l := r.table.Listen(call.Session, call.Session.Principal(), func(uri string) { tell(noteUpdated, updated(session, uri, meta)) })
	defer l.Close()
	if err := addAll(l, uris, states); err != nil {
		return nil, err
	}
	return s.listen(ctx, next, method, req, call)
}

// rpcID is the JSON-RPC id of a request, as notifications repeat it.
func rpcID(call *httpfront.Call) any {
	var number int64
	if json.Unmarshal(call.ID, &number) == nil {
		return number
	}
	var text string
	_ = json.Unmarshal(call.ID, &text) // the front let it through: it is one or the other
	return text
}

func updated(session *mcp.ServerSession, uri string, meta mcp.Meta) mcp.Request {
	return &mcp.ServerRequest[*mcp.ResourceUpdatedNotificationParams]{Session: session, Params: &mcp.ResourceUpdatedNotificationParams{Meta: meta, URI: uri}}
}

// tell sends one session a notification. A client that has no stream open, or does not read it, misses it.
func (r *resources) tell(era httpfront.Era, method string, notification mcp.Request) {
	ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
	defer cancel()
	_, _ = r.send[era](ctx, method, notification)
}
