package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
)

// peers are vault and executor in memory. They keep time as the contract does: a permit lives for a minute, and a stream ends
// with its permit.
type peers struct {
	mu       sync.Mutex
	keyBound bool
	channel  callv1.Channel
	ceiling  optionsv1.Tier
	permits  int
	known    bool // the vault knows the session
	opened   int
	asked    int // to open one
	renewed  int
	renewing func() // what happens while an answer to a renewal is under way; nil: nothing
	refused  int    // renewals that were refused
	refusing func() // what happens before a renewal is refused, and opening before a session is opened; nil: nothing
	opening  func()
	closed   []string // the handles of sessions that were closed
	streams  int      // that were opened
	open     int
	signs    bool // a session is opened with a proof alone
	away     bool
	full     bool // the executor has as many streams as it takes
	state    executorv1.ServiceState
	stands   vaultv1.OperationState
	looks    int
	held     int // looks that are held now
	mostHeld int
	moved    clock.Signal
}

func newPeers() *peers {
	return &peers{known: true, state: executorv1.ServiceState_SERVICE_STATE_STOPPED, stands: vaultv1.OperationState_OPERATION_STATE_PENDING}
}

func (p *peers) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.moved.Raise()
}

// without lets something happen to which the peers answer; the caller holds mu.
func (p *peers) without(happens func()) {
	if happens != nil {
		p.mu.Unlock()
		happens()
		p.mu.Lock()
	}
}

// issue makes permits whose payload is their end.
func (p *peers) issue() []*vaultv1.AddressedPermit {
	p.permits++
	end := time.Now().Add(time.Minute)
	var out []*vaultv1.AddressedPermit
	for _, role := range []optionsv1.Role{optionsv1.Role_ROLE_EXECUTOR, optionsv1.Role_ROLE_VAULT} {
		out = append(out, &vaultv1.AddressedPermit{Role: role, ExpiresAt: timestamppb.New(end), Permit: &callv1.SignedPermit{
			Payload: fmt.Appendf(nil, "%d %d", p.permits, end.UnixNano()), Kid: "test",
		}})
	}
	return out
}

// permitEnd judges the permit of a call.
func permitEnd(ctx context.Context) (time.Time, error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	signed := &callv1.SignedPermit{}
	if values := md.Get(rpc.MetadataPermit); len(values) != 1 || proto.Unmarshal([]byte(values[0]), signed) != nil {
		return time.Time{}, fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed)
	}
	var number int
	var end int64
	if _, err := fmt.Sscanf(string(signed.GetPayload()), "%d %d", &number, &end); err != nil {
		return time.Time{}, err
	}
	if at := time.Unix(0, end); time.Now().Before(at) {
		return at, nil
	}
	return time.Time{}, errExpired()
}

func errExpired() error {
	return fault.New(callv1.Code_CODE_EXPIRED, "the permit has expired; renew it")
}

func errLost() error {
	return fault.New(callv1.Code_CODE_UNAUTHENTICATED, "the session has ended; open another")
}

func (p *peers) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch method {
	case vaultv1.SessionService_OpenSession_FullMethodName:
		p.asked++
		switch req := args.(*vaultv1.OpenSessionRequest); {
		case req.GetCredential() != "token":
			return fault.New(callv1.Code_CODE_UNAUTHENTICATED, "not allowed")
		case p.signs && req.GetProof() == nil:
			return fault.New(callv1.Code_CODE_PROOF_REQUIRED, "this client must sign this request with its key")
		}
		p.without(p.opening)
		p.opened++
		p.known = true
		proto.Merge(reply.(proto.Message), &vaultv1.OpenSessionResponse{
			SessionId: fmt.Sprint("handle-", p.opened), Session: "s-test", Principal: "agent", KeyBound: p.keyBound, Channel: p.channel, TierCeiling: p.ceiling,
			Permits: p.issue(),
		})
	case vaultv1.SessionService_RenewPermits_FullMethodName:
		switch {
		case !p.known:
			p.refused++
			return errLost()
		case p.keyBound && args.(*vaultv1.RenewPermitsRequest).GetProof() == nil:
			p.without(p.refusing)
			p.refused++
			return proofRequired(callv1.Proof_PURPOSE_RENEW)
		}
		p.renewed++
		proto.Merge(reply.(proto.Message), &vaultv1.RenewPermitsResponse{Permits: p.issue(), TierCeiling: p.ceiling})
		if p.renewing != nil {
			time.Sleep(time.Millisecond) // after the vault answered, in synctest's time
			p.renewing()
			time.Sleep(time.Millisecond) // before it is heard
		}
	case vaultv1.OperationService_GetOperation_FullMethodName:
		p.looks++
		req := args.(*vaultv1.GetOperationRequest)
		for req.KnownState != nil && p.stands == req.GetKnownState() {
			if _, err := permitEnd(ctx); err != nil {
				return err
			}
			moved := p.moved.Wait()
			if req.GetWaitS() > 0 {
				p.held++
				p.mostHeld = max(p.mostHeld, p.held)
				defer func() { p.held-- }()
			}
			p.mu.Unlock()
			select {
			case <-moved:
			case <-ctx.Done():
			case <-time.After(time.Duration(req.GetWaitS()) * time.Second):
				p.mu.Lock()
				proto.Merge(reply.(proto.Message), &vaultv1.GetOperationResponse{State: p.stands})
				return nil
			}
			p.mu.Lock()
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if p.stands == vaultv1.OperationState_OPERATION_STATE_UNSPECIFIED {
			return fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such operation")
		}
		proto.Merge(reply.(proto.Message), &vaultv1.GetOperationResponse{State: p.stands})
	case vaultv1.SessionService_CloseSession_FullMethodName:
		p.closed = append(p.closed, args.(*vaultv1.CloseSessionRequest).GetSessionId())
	default:
		return errors.New("unexpected " + method)
	}
	return nil
}

func (p *peers) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams++
	if p.away {
		return nil, fault.New(callv1.Code_CODE_UNAVAILABLE, "the executor cannot be reached")
	}
	if p.full {
		return nil, fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: too many streams are open", fault.WithRetry(time.Minute))
	}
	end, err := permitEnd(ctx)
	if err != nil {
		return nil, err
	}
	p.open++
	return &memoryStream{ctx: ctx, peers: p, end: end}, nil
}

// memoryStream sends the state at first, and then each other one.
type memoryStream struct {
	grpc.ClientStream
	ctx   context.Context
	peers *peers
	end   time.Time
	sent  executorv1.ServiceState
}

func (s *memoryStream) SendMsg(any) error { return nil }
func (s *memoryStream) CloseSend() error  { return nil }

func (s *memoryStream) RecvMsg(m any) error {
	p := s.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	for s.sent == p.state || p.away {
		if p.away {
			p.open--
			return io.ErrUnexpectedEOF
		}
		moved := p.moved.Wait()
		p.mu.Unlock()
		var err error
		select {
		case <-moved:
		case <-s.ctx.Done():
			err = s.ctx.Err()
		case <-time.After(time.Until(s.end)):
			err = errExpired()
		}
		p.mu.Lock()
		if err != nil {
			p.open--
			return err
		}
	}
	proto.Merge(m.(proto.Message), &executorv1.WatchServicesResponse{ServiceId: "demo-chat", State: p.state, Initial: s.sent == 0})
	s.sent = p.state
	return nil
}

// watchers is a session with one watch of the services.
type watching struct {
	*peers
	relay   *Relay
	session *Session
	told    []string
	ended   chan struct{}
	stop    context.CancelFunc
}

func watchServices(t *testing.T, p *peers) *watching {
	t.Helper()
	return watchServicesWith(t, p, platformtest.Logger())
}

func watchServicesWith(t *testing.T, p *peers, logger *slog.Logger) *watching {
	t.Helper()
	r, err := New(Config{Vault: p, Waits: p, Executor: p, Logger: logger})
	must(t, err)
	s, err := r.Open(t.Context(), Caller{Credential: "token"})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	w := &watching{peers: p, relay: r, session: s, ended: make(chan struct{}), stop: stop}
	go func() {
		defer close(w.ended)
		r.WatchServices(ctx, s, func(id string) { w.told = append(w.told, id) })
	}()
	synctest.Wait()
	return w
}

// move changes the state and lets everybody hear of it.
func (w *watching) move(state executorv1.ServiceState) {
	w.set(func() { w.state = state })
	synctest.Wait()
}

func (w *watching) wantTold(t *testing.T, n int) {
	t.Helper()
	if want := slices.Repeat([]string{"demo-chat"}, n); len(w.told) != n || n > 0 && !cmp.Equal(want, w.told) {
		t.Errorf("told of %v, want %d changes", w.told, n)
	}
}

const (
	stateRunning = executorv1.ServiceState_SERVICE_STATE_RUNNING
	stateFailed  = executorv1.ServiceState_SERVICE_STATE_FAILED
)

// A watch goes on under one permit after another, tells each change once, and costs one stream a minute.
func TestWatchServicesOutlivesItsPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchServices(t, newPeers())
		w.wantTold(t, 0) // what is there is no change
		w.move(stateRunning)
		w.wantTold(t, 1)
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		w.wantTold(t, 1)
		if w.streams < 10 || w.streams > 12 || w.renewed > 12 || w.open != 1 || w.opened != 1 {
			t.Errorf("%d streams, %d of them open, %d renewals", w.streams, w.open, w.renewed)
		}
		w.move(stateFailed)
		w.wantTold(t, 2)
		w.relay.Close(t.Context(), w.session)
		<-w.ended
		if w.open != 0 {
			t.Errorf("%d streams are open after the session's end", w.open)
		}
	})
}

// While the executor is away a watch asks less and less often, and tells afterwards what changed meanwhile.
func TestWatchServicesWaitsForTheExecutor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchServices(t, newPeers())
		w.set(func() { w.away = true })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if w.streams < 10 || w.streams > 60 {
			t.Errorf("the executor was asked %d times in 10 minutes", w.streams)
		}
		w.set(func() { w.away, w.state = false, stateRunning })
		time.Sleep(2 * maxPause)
		synctest.Wait()
		w.wantTold(t, 1)
		w.stop()
		<-w.ended
	})
}

// A key-bound client's watch lasts as long as the permit that the client signed for, asks the vault for nothing by itself, and
// goes on when the client has signed for another.
func TestWatchServicesOfAKeyBoundClientPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers()
		p.keyBound = true
		w := watchServices(t, p)
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if w.streams != 1 || w.open != 0 || w.refused != 0 || w.renewed != 0 {
			t.Errorf("%d streams, %d open, %d renewals and %d refused", w.streams, w.open, w.renewed, w.refused)
		}
		w.move(stateRunning)
		w.wantTold(t, 0)
		by := Caller{Credential: "token", Proof: &callv1.Proof{Purpose: callv1.Proof_PURPOSE_RENEW}}
		if _, err := w.relay.permit(t.Context(), w.session, by, optionsv1.Role_ROLE_EXECUTOR, ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.wantTold(t, 1)
		if w.open != 1 {
			t.Errorf("%d streams are open", w.open)
		}
		w.stop()
		<-w.ended
	})
}

// A watch has no credential: what the vault has lost it cannot open again, and does not try. The next request does.
func TestWatchServicesPausesWithoutASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchServices(t, newPeers())
		w.set(func() { w.known = false })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if w.opened != 1 || w.refused != 1 || w.open != 0 {
			t.Errorf("%d sessions opened, %d renewals refused, %d streams open", w.opened, w.refused, w.open)
		}
		w.move(stateRunning)
		if _, err := w.relay.permit(t.Context(), w.session, Caller{Credential: "token"}, optionsv1.Role_ROLE_EXECUTOR, ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.wantTold(t, 1)
		if w.opened != 2 {
			t.Errorf("%d sessions opened", w.opened)
		}
		w.stop()
		<-w.ended
	})
}

// An executor that has no room for a watch is asked again less and less often, the log says once that it refused, and when the
// watch begins its client is told of everything: nobody knows what changed meanwhile.
func TestWatchServicesThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers()
		p.full = true
		var log bytes.Buffer
		w := watchServicesWith(t, p, slog.New(slog.NewTextHandler(&log, nil)))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "session=s-test") || w.streams < 10 || w.streams > 60 {
			t.Errorf("%d warnings, %d attempts: %s", n, w.streams, log.String())
		}
		w.wantTold(t, 0)
		w.set(func() { w.full = false })
		time.Sleep(2 * maxPause)
		synctest.Wait()
		w.wantTold(t, 1)
		w.move(stateRunning)
		w.wantTold(t, 2)
		w.stop()
		<-w.ended
	})
}

// However many operations are watched, the vault holds no more than maxHeld looks, the others are bounded in pace, every change
// is told soon, and nothing of it is on the connection that decisions take.
func TestManyWatchedOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deciding, waiting := newPeers(), newPeers()
		r, err := New(Config{Vault: deciding, Waits: waiting, Executor: deciding, Logger: platformtest.Logger()})
		must(t, err)
		s, err := r.Open(t.Context(), Caller{Credential: "token"})
		must(t, err)
		const all = 3 * maxHeld
		minutes := 2
		if platformtest.Full() {
			minutes = 10
		}
		ctx, cancel := context.WithCancel(t.Context())
		var told atomic.Int32
		var watching sync.WaitGroup
		for range all {
			watching.Go(func() {
				r.WatchOperation(ctx, s, "id", vaultv1.OperationState_OPERATION_STATE_PENDING, func(vaultv1.OperationState) { told.Add(1) })
			})
		}
		time.Sleep(time.Duration(minutes) * time.Minute)
		synctest.Wait()
		if waiting.mostHeld != maxHeld || deciding.mostHeld != 0 || told.Load() != 0 {
			t.Errorf("%d looks were held, and %d where decisions are made", waiting.mostHeld, deciding.mostHeld)
		}
		if deciding.looks > (60*minutes+10)*looksPerS || deciding.looks < 6*minutes*looksPerS {
			t.Errorf("%d looks in between in %d minutes", deciding.looks, minutes)
		}
		// The session is the deciding connection's: the other one carries looks alone.
		if waiting.opened != 0 || waiting.renewed != 0 || deciding.renewed == 0 {
			t.Errorf("%d sessions opened and %d renewals where calls wait", waiting.opened, waiting.renewed)
		}
		approved := func(p *peers) { p.set(func() { p.stands = vaultv1.OperationState_OPERATION_STATE_APPROVED }) }
		approved(deciding)
		approved(waiting)
		time.Sleep(time.Minute)
		synctest.Wait()
		if told.Load() != all {
			t.Errorf("%d of %d were told within a minute", told.Load(), all)
		}
		cancel()
		watching.Wait()
	})
}

func TestWatchOperation(t *testing.T) {
	for name, c := range map[string]struct {
		known vaultv1.OperationState
		moves []vaultv1.OperationState
		told  int
		ends  bool
	}{
		"approved, run and done": {vaultv1.OperationState_OPERATION_STATE_PENDING, []vaultv1.OperationState{
			vaultv1.OperationState_OPERATION_STATE_APPROVED, vaultv1.OperationState_OPERATION_STATE_RUNNING, vaultv1.OperationState_OPERATION_STATE_DONE}, 3, true},
		"denied":                  {vaultv1.OperationState_OPERATION_STATE_PENDING, []vaultv1.OperationState{vaultv1.OperationState_OPERATION_STATE_DENIED}, 1, true},
		"forgotten":               {vaultv1.OperationState_OPERATION_STATE_PENDING, []vaultv1.OperationState{vaultv1.OperationState_OPERATION_STATE_UNSPECIFIED}, 1, true},
		"it stays":                {vaultv1.OperationState_OPERATION_STATE_PENDING, nil, 0, false},
		"was final":               {vaultv1.OperationState_OPERATION_STATE_DONE, nil, 0, true},
		"changed in the meantime": {vaultv1.OperationState_OPERATION_STATE_RUNNING, nil, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeers()
				r, s := opened(t, p)
				told, ended := 0, make(chan struct{})
				go func() {
					defer close(ended)
					r.WatchOperation(t.Context(), s, "id", c.known, func(vaultv1.OperationState) { told++ })
				}()
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if p.looks > 20 {
					t.Errorf("%d looks in 10 minutes", p.looks)
				}
				for _, state := range c.moves {
					p.set(func() { p.stands = state })
					time.Sleep(time.Second)
					synctest.Wait()
				}
				select {
				case <-ended:
					if !c.ends {
						t.Error("it ended")
					}
				default:
					if c.ends {
						t.Error("it goes on")
					}
				}
				r.Close(t.Context(), s)
				<-ended
				if told != c.told {
					t.Errorf("told %d times, want %d", told, c.told)
				}
			})
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
