package relay

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/platformtest"
)

// sentry is a vault that tells what changes about sessions, those in dangerous mode first.
type sentry struct {
	*peers
	mu      sync.Mutex
	until   map[string]time.Time
	streams []*sessionStream
	opened  int
	away    bool
	hangs   bool
	// authorised is what an Authorise says of the session, after delay.
	authorised time.Time
	delay      time.Duration
}

type sessionStream struct {
	grpc.ClientStream
	ctx  context.Context
	tell chan *vaultv1.WatchSessionsResponse
	cut  chan struct{}
	mute bool
}

func (s *sessionStream) SendMsg(any) error { return nil }
func (s *sessionStream) CloseSend() error  { return nil }
func (s *sessionStream) Header() (metadata.MD, error) {
	if s.mute {
		<-s.cut
		return nil, io.ErrUnexpectedEOF
	}
	return metadata.Pairs("content-type", "application/grpc"), nil
}
func (s *sessionStream) RecvMsg(m any) error {
	select {
	case said := <-s.tell:
		proto.Merge(m.(proto.Message), said)
		return nil
	case <-s.cut:
		return io.ErrUnexpectedEOF
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (v *sentry) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if method != vaultv1.AuthorityService_Authorise_FullMethodName {
		return v.peers.Invoke(ctx, method, args, reply, opts...)
	}
	v.mu.Lock()
	until, delay := v.authorised, v.delay
	v.mu.Unlock()
	time.Sleep(delay) // in a bubble of synctest, which takes no time
	out := &vaultv1.AuthoriseResponse{Decision: vaultv1.AuthoriseResponse_DECISION_DENIED}
	if !until.IsZero() {
		out.DangerousUntil = timestamppb.New(until)
	}
	proto.Merge(reply.(proto.Message), out)
	return nil
}

func (v *sentry) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.opened++
	if v.away || method != vaultv1.SessionService_WatchSessions_FullMethodName {
		return nil, io.ErrUnexpectedEOF
	}
	s := &sessionStream{ctx: ctx, tell: make(chan *vaultv1.WatchSessionsResponse, 100), cut: make(chan struct{}), mute: v.hangs}
	for session, until := range v.until {
		if v.hangs {
			break
		}
		s.tell <- word(session, until, false)
	}
	v.streams = append(v.streams, s)
	return s, nil
}

func word(session string, until time.Time, ended bool) *vaultv1.WatchSessionsResponse {
	m := &vaultv1.WatchSessionsResponse{Session: session, Ended: ended}
	if !until.IsZero() {
		m.DangerousUntil = timestamppb.New(until)
	}
	return m
}

// say changes a session and tells whoever listens.
func (v *sentry) say(session string, until time.Time, ended bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.until, session)
	if !until.IsZero() && !ended {
		v.until[session] = until
	}
	if n := len(v.streams); n > 0 {
		v.streams[n-1].tell <- word(session, until, ended)
	}
}

// hang makes later streams be taken and say nothing, or not.
func (v *sentry) hang(hangs bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hangs = hangs
}

// cut breaks the stream off. While the vault is away no other is opened.
func (v *sentry) cut(away bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.away = away
	if n := len(v.streams); n > 0 {
		close(v.streams[n-1].cut)
		v.streams = v.streams[:n-1]
	}
}

func watchSentry(t *testing.T) (*sentry, *Relay, *Session) {
	t.Helper()
	v := &sentry{peers: newPeers(), until: map[string]time.Time{}}
	r, err := New(Config{Vault: v, Waits: v, Executor: v, Logger: platformtest.Logger()})
	must(t, err)
	s, err := r.Open(t.Context(), Caller{Credential: "token"})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.WatchSessions(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	synctest.Wait()
	return v, r, s
}

// Dangerous mode shows at once, for the session that is in it alone, and ends at once: when the vault says so, with the session, and
// at its time.
func TestDangerousIsHeardAtOnce(t *testing.T) {
	for name, end := range map[string]func(*sentry){
		"disabled":        func(v *sentry) { v.say("s-test", time.Time{}, false) },
		"session ended":   func(v *sentry) { v.say("s-test", time.Now().Add(time.Hour), true) },
		"its time is out": func(*sentry) { time.Sleep(2 * time.Hour) }, // in a bubble of synctest, which takes no time
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v, r, s := watchSentry(t)
				v.say("s-other", time.Now().Add(time.Hour), false)
				synctest.Wait()
				if _, ok := r.Dangerous(s); ok {
					t.Fatal("another session's mode is this one's")
				}
				until := time.Now().Add(time.Hour)
				v.say("s-test", until, false)
				synctest.Wait()
				if got, ok := r.Dangerous(s); !ok || !got.Equal(until) {
					t.Fatalf("until %v, %v", got, ok)
				}
				end(v)
				synctest.Wait()
				if _, ok := r.Dangerous(s); ok {
					t.Error("it is over, and shown")
				}
			})
		})
	}
}

// A stream that broke off is opened again, and what it does not repeat is over. Until then what was so is taken to be so.
func TestDangerousOutlivesItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, r, s := watchSentry(t)
		v.say("s-test", time.Now().Add(8*time.Hour), false)
		synctest.Wait()
		v.cut(true)
		time.Sleep(10 * time.Minute)
		if _, ok := r.Dangerous(s); !ok {
			t.Error("the vault said nothing, and the banner is gone")
		}
		v.mu.Lock()
		attempts := v.opened
		v.away = false
		v.mu.Unlock()
		if attempts < 60 || attempts > 400 {
			t.Errorf("%d attempts in 10 minutes", attempts)
		}
		time.Sleep(10 * time.Second)
		if _, ok := r.Dangerous(s); !ok {
			t.Error("the new stream repeats it, and it is gone")
		}
		v.hang(true)
		v.cut(false)
		time.Sleep(10 * time.Second)
		if _, ok := r.Dangerous(s); !ok {
			t.Error("the vault takes the new stream and says nothing, and the banner is gone")
		}
		v.hang(false)
		v.cut(false)
		v.mu.Lock()
		clear(v.until) // the vault started again: there is no authority any more
		v.mu.Unlock()
		time.Sleep(10 * time.Second)
		if _, ok := r.Dangerous(s); ok {
			t.Error("the new stream does not repeat it, and it is shown")
		}
		v.say("s-test", time.Now().Add(time.Hour), false)
		synctest.Wait()
		if _, ok := r.Dangerous(s); !ok {
			t.Error("what the stream says later is not shown")
		}
	})
}

// An answer to a call says the same, and counts unless the stream said something since the call was asked for.
func TestDangerousByAnswers(t *testing.T) {
	start, ok := contract.Lookup("start_service")
	if !ok {
		t.Fatal("no start_service")
	}
	synctest.Test(t, func(t *testing.T) {
		v, r, s := watchSentry(t)
		ask := func(until time.Time, delay time.Duration, meanwhile func()) bool {
			t.Helper()
			v.mu.Lock()
			v.authorised, v.delay = until, delay
			v.mu.Unlock()
			done := make(chan struct{})
			go func() {
				defer close(done)
				if _, err := r.Authorise(t.Context(), s, Caller{Credential: "token"}, start, []byte("{}"), "", false); err != nil {
					t.Error(err)
				}
			}()
			time.Sleep(delay / 2)
			if meanwhile != nil {
				meanwhile()
			}
			<-done
			synctest.Wait()
			_, ok := r.Dangerous(s)
			return ok
		}
		hour := time.Now().Add(time.Hour)
		if !ask(hour, time.Second, nil) {
			t.Error("an answer says it, and it is not shown")
		}
		if !ask(time.Time{}, time.Second, nil) {
			t.Error("an answer says nothing of it, and it is gone")
		}
		if ask(hour, time.Second, func() { v.say("s-test", time.Time{}, false) }) {
			t.Error("it ended while the call was under way, and is shown")
		}
		if !ask(time.Time{}, time.Second, func() { v.say("s-test", hour, false) }) {
			t.Error("it began while the call was under way, and is not shown")
		}
	})
}

// However many sessions the vault speaks of, what is kept is bounded, and what is over makes room.
func TestDangersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d dangers
		for i := range maxDangers + 10 {
			d.hear(fmt.Sprint("s-", i), time.Now().Add(time.Hour), time.Now())
		}
		if len(d.of) != maxDangers {
			t.Errorf("%d are kept", len(d.of))
		}
		time.Sleep(2 * time.Hour)
		d.hear("s-new", time.Now().Add(time.Hour), time.Now())
		if _, ok := d.until("s-new"); !ok || len(d.of) != 1 {
			t.Errorf("%v, %d are kept", ok, len(d.of))
		}
	})
}

// The permit that a session has says which tools need no decision; one that cannot be read says so of none.
func TestCovers(t *testing.T) {
	gpu, ok := contract.Lookup("gpu_status")
	if !ok {
		t.Fatal("no gpu_status")
	}
	p := newPeers()
	r, s := opened(t, p)
	with := func(tools ...string) bool {
		t.Helper()
		st := *s.state.Load()
		st.permits = map[optionsv1.Role]permit{}
		if tools != nil {
			st.permits[optionsv1.Role_ROLE_EXECUTOR] = permit{signed: "x", got: time.Now(), expires: time.Now().Add(time.Hour), tools: tools}
		}
		s.state.Store(&st)
		covered, err := r.Covers(t.Context(), s, Caller{Credential: "token"}, gpu)
		must(t, err)
		return covered
	}
	if with("list_services", "gpu_statu") || with("") || with() {
		t.Error("a permit for other tools, for none, and no readable one cover it")
	}
	if !with("list_services", "gpu_status") {
		t.Error("a permit for it does not cover it")
	}
}

// What the vault lowers is raised by no answer; a renewal tells it anew (TestCeilingIsAsTheVaultSaysNow).
func TestLower(t *testing.T) {
	s := &Session{}
	s.state.Store(&state{ceiling: optionsv1.Tier_TIER_WRITE})
	for _, c := range []struct{ to, want optionsv1.Tier }{
		{optionsv1.Tier_TIER_DESTRUCTIVE, optionsv1.Tier_TIER_WRITE},
		{optionsv1.Tier_TIER_UNSPECIFIED, optionsv1.Tier_TIER_WRITE},
		{optionsv1.Tier_TIER_READ, optionsv1.Tier_TIER_READ},
		{optionsv1.Tier_TIER_WRITE, optionsv1.Tier_TIER_READ},
	} {
		if s.Lower(c.to); s.About().Ceiling != c.want {
			t.Errorf("lowered to %v: %v", c.to, s.About().Ceiling)
		}
	}
}
