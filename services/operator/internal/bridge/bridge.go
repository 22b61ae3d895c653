// Package bridge is `durward mcp`: it lets an MCP client that speaks over standard input and output use the gateway's HTTP,
// and signs for it. A message that says its protocol revision itself, as they do from 2026-07-28 on, goes out as a request of
// its own; every other one belongs to the session that initialize opened. Either way one bridge process is one session at
// the vault.
//
// It runs as the client's user, beside an agent that nobody trusts: it holds the client's token and key and no authority of
// an operator. The gateway is not trusted either: what the client asks for is signed here, so that a gateway cannot ask in
// its name; and for which agent and sender a session is opened, so that it cannot put it in another's. What the client says is
// relayed as it is; only params._meta["durward/proof"], ["durward/instance"] and, where the bridge has an agent, ["durward/agent"] are
// set. Of what the gateway says the client gets answers to what it asked and notifications that servers send, and nothing else.
//
// What a hostile gateway can still do with a request: it can hide the answer and ask for a second proof, and so have the
// client's one request stand twice before the vault. Each needs its own approval, and a third is never signed. It can have a call
// of a tool that looks signed, with the client's own arguments, once. It can claim
// that a session is lost, and name any session in answer to the opening that follows; in between, what is signed names the
// session that was opened, whatever answers say. The vault takes a proof in a session of the same client alone.
package bridge

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"durward.internal/services/platform/clean"
)

// Bounds.
const (
	// maxMessage bounds a client's message, and maxLine what is kept of a line: a longer message is refused by its id. What the gateway answers,
	// which may say a text twice, is as long as a line at most.
	maxMessage = 4 << 20
	maxLine    = 4 * maxMessage
	// maxParallel bounds the requests under way, and maxWaiting those that wait for their turn besides.
	maxParallel = 64
	maxWaiting  = 1024
	// refusedPatience is how long a gateway that is being restarted is waited for: a refused connection did nothing.
	refusedPatience = 3 * time.Second
	// drainPatience is how long requests may go on when the client closed its side.
	drainPatience = 2 * time.Second
	closePatience = time.Second
	// openPatience is how long the gateway may take to open a session, or to take a notification. Clients give up later, and then know
	// no reason.
	openPatience = 15 * time.Second
)

// JSON-RPC's error codes, and one of the server's own.
const (
	codeParse       = -32700
	codeInvalid     = -32600
	codeUnavailable = -32000
)

// Durward's own codes in an error's data.
const (
	codeProofRequired   = "PROOF_REQUIRED"
	codeUnauthenticated = "UNAUTHENTICATED"
)

// Methods that the bridge knows, and headers of the protocol.
const (
	methodCall        = "tools/call"
	methodRead        = "resources/read"
	methodPrompt      = "prompts/get"
	methodSubscribe   = "resources/subscribe"
	methodUnsubscribe = "resources/unsubscribe"
	methodListen      = "subscriptions/listen"
	methodListTools   = "tools/list"
	methodPing        = "ping"
	noteInitialized   = "notifications/initialized"
	noteCancelled     = "notifications/cancelled"

	headerSession  = "Mcp-Session-Id"
	headerProtocol = "Mcp-Protocol-Version"
)

// Config is what a Bridge needs.
type Config struct {
	// Endpoint is the gateway's URL, http://127.0.0.1:7430/mcp.
	Endpoint string
	// Token is the client's bearer token.
	Token string
	// Client is the client's name; Key its key, or nil for a bearer client, whose requests are not signed.
	Client string
	Key    ed25519.PrivateKey
	// Reload reads token and key again, when the gateway does not take them any more: the client may have got others. Nil: never.
	Reload func() (token string, key ed25519.PrivateKey, err error)
	// Agent is which of the client's agents the bridge speaks for, whatever the client's program says; empty: what that says.
	Agent string
	// Remote: the client's program runs on another machine, and started the bridge over SSH.
	Remote bool
	// In and Out are newline-delimited JSON-RPC.
	In  io.Reader
	Out io.Writer
	// Report gets a line about trouble, for a person; never a token or a message's content.
	Report func(line string)
	// Start is the command that starts the gateway where it does not run.
	Start string
	// HTTP is the transport; nil for one that ignores proxies.
	HTTP http.RoundTripper
	Now  func() time.Time
	// looks is a test's instead of a ticker: with each value the permits behind subscriptions are looked at.
	looks <-chan time.Time
	// openPatience is a test's instead of the constant.
	openPatience time.Duration
}

// Bridge relays what one client says.
type Bridge struct {
	cfg   Config
	http  *http.Client
	token atomic.Pointer[string]
	// prover signs in the session, stateless in requests of the stateless era.
	prover, stateless *prover
	// background is what goes on beside the client's requests.
	background sync.WaitGroup

	renewing sync.Mutex
	// writing is held by what is being written to the client.
	writing chan struct{}
	// life ends with the bridge. What belongs to the session goes by it, and not by the request that found the session lost; and
	// nothing more is written to the client then, who may read no more.
	life context.Context
	// kept counts what the gateway sent that the client did not get.
	kept atomic.Int64

	// mu guards the session: it is opened again when the gateway lost it.
	mu         sync.Mutex
	session    string
	protocol   string
	initialize json.RawMessage
	// opened counts openings, so that of several requests that found the session lost one opens it again.
	opened int
	// subscribed are the session's subscriptions: the requests for them by URI, to be sent again with it.
	subscribed map[string][]byte
	// tracking guards cancels, which end requests that wait for their turn and stateless ones that are under way, by id, and listening,
	// the _meta of those that subscribe. It is held for no exchange, so that a cancellation is never behind one.
	tracking  sync.Mutex
	cancels   map[string]context.CancelFunc
	listening map[string]json.RawMessage
	// waiting counts what waits for its turn.
	waiting atomic.Int32
}

// New returns a bridge.
func New(cfg Config) (*Bridge, error) {
	if cfg.Endpoint == "" || cfg.Token == "" || cfg.Client == "" || cfg.In == nil || cfg.Out == nil {
		return nil, errors.New("the bridge needs an endpoint, a token, a client name and its streams")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.openPatience = cmp.Or(cfg.openPatience, openPatience)
	if cfg.Report == nil {
		cfg.Report = func(string) {}
	}
	if cfg.HTTP == nil {
		// The token goes to the gateway alone, whatever the environment says of proxies.
		cfg.HTTP = &http.Transport{Proxy: nil, MaxIdleConnsPerHost: maxParallel}
	}
	b := &Bridge{
		cfg: cfg,
		http: &http.Client{
			Transport:     cfg.HTTP,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		writing:    make(chan struct{}, 1),
		prover:     newProver(cfg.Client, cfg.Key, cfg.Now, ""),
		stateless:  newProver(cfg.Client, cfg.Key, cfg.Now, newInstance()),
		subscribed: map[string][]byte{},
		cancels:    map[string]context.CancelFunc{},
		listening:  map[string]json.RawMessage{},
	}
	b.token.Store(&cfg.Token)
	return b, nil
}

// renewed reports whether the client has another credential than the gateway refused, and takes it up. Of several requests that
// were refused the first takes it up, and the others are tried again with it.
func (b *Bridge) renewed(refused string) bool {
	if b.cfg.Reload == nil {
		return false
	}
	b.renewing.Lock()
	defer b.renewing.Unlock()
	if *b.token.Load() != refused {
		return true
	}
	token, key, err := b.cfg.Reload()
	if err != nil || token == refused || (key == nil) != (b.cfg.Key == nil) {
		return false
	}
	b.token.Store(&token)
	b.prover.rekeyed(key)
	b.stateless.rekeyed(key)
	b.cfg.Report("the client has another token and goes on with it")
	return true
}

// spoken is a message as the agent that the bridge speaks for says it.
func (b *Bridge) spoken(line []byte, m message) ([]byte, message) {
	if b.cfg.Agent == "" || m.Method != "initialize" && m.statelessHeaders() == nil {
		return line, m
	}
	named, err := setMeta(line, map[string]json.RawMessage{metaAgent: json.RawMessage(strconv.Quote(b.cfg.Agent))})
	var again message
	if err != nil || json.Unmarshal(named, &again) != nil {
		return line, m // the gateway says what is wrong with it
	}
	return named, again
}

// message is what the bridge looks at in a JSON-RPC message.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

func (m message) isRequest() bool { return m.Method != "" && len(m.ID) > 0 }

// Run relays until the client closes its side or ctx ends; it then ends the session at the gateway.
func (b *Bridge) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.life = ctx
	lines := make(chan []byte)
	reading := make(chan error, 1)
	go func() { reading <- read(ctx, b.cfg.In, lines) }()

	b.background.Go(func() { b.keepWatching(ctx) })
	var running sync.WaitGroup
	slots := make(chan struct{}, maxParallel)
	var end error
	for end == nil {
		select {
		case <-ctx.Done():
			end = ctx.Err()
		case err := <-reading:
			end = err
		case line := <-lines:
			b.accept(ctx, line, slots, &running)
		}
	}
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(drainPatience):
	}
	cancel()
	<-done
	b.background.Wait()
	headers, _ := b.headers()
	b.end(context.WithoutCancel(ctx), headers)
	if n := b.kept.Load(); n > 0 {
		b.cfg.Report(fmt.Sprintf("kept from the client: %s that it did not ask for", clean.Count(n, "message")))
	}
	if errors.Is(end, io.EOF) || errors.Is(end, context.Canceled) {
		return nil
	}
	return end
}

// read splits the input into lines. Of one above maxLine the rest is left out, so that it is no message.
func read(ctx context.Context, in io.Reader, lines chan<- []byte) error {
	reader := bufio.NewReader(in)
	var line []byte
	for {
		part, err := reader.ReadSlice('\n')
		if len(line) <= maxLine {
			line = append(line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if whole := bytes.TrimSpace(line); len(whole) > 0 {
			select {
			case lines <- whole:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if errors.Is(err, io.EOF) {
			return io.EOF
		}
		if err != nil {
			return fmt.Errorf("read from the client: %w", err)
		}
		line = nil
	}
}

// accept relays one message of the client's. The handshake is relayed before anything else is read; other messages go
// beside each other.
func (b *Bridge) accept(ctx context.Context, line []byte, slots chan struct{}, running *sync.WaitGroup) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil || len(line) > maxMessage {
		id, code, text := json.RawMessage("null"), codeParse, "the message is not JSON"
		switch {
		case len(line) > maxMessage:
			code, text = codeInvalid, "the message is too large, the most is 4 MiB"
			if err == nil && m.isRequest() {
				id = m.ID
			}
		case json.Valid(line):
			code, text = codeInvalid, "the message is not one JSON-RPC object"
		}
		b.fail(id, code, text)
		return
	}
	line, m = b.spoken(line, m)
	switch m.Method {
	case "initialize":
		b.open(ctx, line, m)
		return
	case noteCancelled:
		if b.cancel(m) {
			return
		}
		fallthrough
	case noteInitialized:
		// In order, and at once: the one opens the session to requests, and the other overtakes what it cancels.
		b.note(ctx, line)
		return
	}
	if b.waiting.Add(1) > maxWaiting {
		b.waiting.Add(-1)
		if m.isRequest() {
			b.fail(m.ID, codeUnavailable, "too many requests wait already; ask again when some are answered")
		}
		return
	}
	// A request waits for its turn beside the reading: a cancellation of one under way may stand behind it.
	ctx, begin, done := b.track(ctx, m)
	running.Go(func() {
		defer done()
		select {
		case slots <- struct{}{}:
			b.waiting.Add(-1)
		case <-ctx.Done():
			b.waiting.Add(-1)
			return
		}
		defer func() { <-slots }()
		if !begin() {
			return
		}
		if m.isRequest() {
			b.call(ctx, line, m)
		} else {
			b.note(ctx, line)
		}
	})
}

// note relays a message that gets no answer, to the session: without one there is nobody whom it could tell something.
func (b *Bridge) note(ctx context.Context, line []byte) {
	headers, _ := b.headers()
	if headers.Get(headerSession) == "" {
		return
	}
	sent, err := b.prover.unsigned(line)
	if err != nil {
		b.cfg.Report("a notification was not delivered: " + err.Error())
		return
	}
	// Nothing else of the client's is read meanwhile.
	ctx, cancel := context.WithTimeout(ctx, b.cfg.openPatience)
	defer cancel()
	response, err := b.post(ctx, sent.body, headers)
	if err != nil {
		b.cfg.Report("a notification was not delivered: " + err.Error())
		return
	}
	b.discard(response)
}

func (b *Bridge) discard(response *http.Response) {
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxMessage)) // for the connection's sake
	_ = response.Body.Close()
}

// write sends one message to the client. A client that neither reads nor closes its side holds up no end of the bridge.
func (b *Bridge) write(payload []byte) {
	line := append(bytes.Clone(payload), '\n')
	select {
	case b.writing <- struct{}{}:
	case <-b.life.Done():
		return
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = b.cfg.Out.Write(line) // one that closed its side has closed the other too, which ends the bridge
		<-b.writing
	}()
	select {
	case <-written:
	case <-b.life.Done():
	}
}

func (b *Bridge) failWith(ctx context.Context, id json.RawMessage, err error) {
	if ctx.Err() != nil {
		return // the client has left
	}
	if refused, is := errors.AsType[*refusedError](err); is && len(refused.Problem) > 0 {
		b.cfg.Report(err.Error())
		b.write(failure(id, refused.Problem))
		return
	}
	text := "Durward's gateway did not answer"
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		text = "Durward is not running. Ask the user to start it: " + b.cfg.Start
	case errors.Is(err, context.DeadlineExceeded):
		text = "Durward's gateway takes connections and opens no session. Ask the user to look: durward status"
	case errors.Is(err, errSession):
		text = "the session has ended; connect again"
	}
	b.cfg.Report(text + ": " + err.Error())
	b.fail(id, codeUnavailable, text)
}

func (b *Bridge) fail(id json.RawMessage, code int, text string) {
	payload, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": text}})
	if err != nil {
		return // an id that came from JSON goes into JSON
	}
	b.write(payload)
}

// end ends the session of those headers at the gateway, if they name one.
func (b *Bridge) end(ctx context.Context, headers http.Header) {
	if headers.Get(headerSession) == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, closePatience)
	defer cancel()
	if response, err := b.send(ctx, http.MethodDelete, nil, headers, *b.token.Load()); err == nil {
		b.discard(response)
	}
}
