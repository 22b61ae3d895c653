package rpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/fault"
)

// Any is a connection to several processes of one identity, of which one does the work and the others stand by. It keeps to one
// until that one cannot be reached, does not answer in time, or says that it cannot do its work; the next call then goes to the
// next, as does one that finds nobody there. It repeats no call that was sent. It is safe for concurrent use.
type Any struct {
	conns []*grpc.ClientConn
	at    atomic.Uint64
	// alone: only the process that leads listens, so that one which begins to has taken over, whatever the one before still says.
	alone bool

	mu sync.Mutex
	// left are those that calls do not go to any more, and that are connected all the same.
	left []bool
}

// thereWait is how long a process may take to be connected to before the next is tried.
const thereWait = time.Second

// readyWait is how long a connection that was made may take to say so.
const readyWait = 50 * time.Millisecond

// DialAny is Dial to the address of the configuration and to these further ones. The caller closes it.
func DialAny(cfg ClientConfig, more []string) (*Any, error) {
	a := &Any{alone: cfg.Server.Role() == optionsv1.Role_ROLE_VAULT, left: make([]bool, 1+len(more))}
	for _, address := range append([]string{cfg.Address}, more...) {
		cfg.Address = address
		conn, err := Dial(cfg)
		if err != nil {
			return nil, errors.Join(err, a.Close())
		}
		a.conns = append(a.conns, conn)
	}
	return a, nil
}

// Connect begins to connect to each.
func (a *Any) Connect() {
	for _, conn := range a.conns {
		conn.Connect()
	}
}

// Reach connects, and reports whether the process that calls go to now is reached in that time.
func (a *Any) Reach(ctx context.Context, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn := a.conn(a.at.Load())
	for {
		state := conn.GetState()
		if state == connectivity.Ready {
			return true
		}
		conn.Connect()
		if !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
}

// Spoken reports whether one of the processes was talked to over its connection and can be still.
func (a *Any) Spoken() bool {
	for _, conn := range a.conns {
		if state := conn.GetState(); state == connectivity.Connecting {
			// A connection carries its first call a moment before it says that it is ready.
			ctx, cancel := context.WithTimeout(context.Background(), readyWait)
			conn.WaitForStateChange(ctx, state)
			cancel()
		}
		if conn.GetState() == connectivity.Ready {
			return true
		}
	}
	return false
}

// Close closes each connection.
func (a *Any) Close() error {
	var problems []error
	for _, conn := range a.conns {
		problems = append(problems, conn.Close())
	}
	return errors.Join(problems...)
}

// Invoke implements grpc.ClientConnInterface.
func (a *Any) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	at := a.reached(ctx)
	return a.moved(ctx, at, a.conn(at).Invoke(ctx, method, args, reply, opts...))
}

// NewStream implements grpc.ClientConnInterface.
func (a *Any) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	at := a.reached(ctx)
	s, err := a.conn(at).NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, a.moved(ctx, at, err)
	}
	return &anyStream{s, ctx, a, at}, nil
}

type anyStream struct {
	grpc.ClientStream
	caller context.Context //nolint:containedctx // the stream's own ends with it
	any    *Any
	at     uint64
}

func (s *anyStream) RecvMsg(m any) error {
	return s.any.moved(s.caller, s.at, s.ClientStream.RecvMsg(m))
}

// reached is the place of the process that calls go to, or of the next one that is there, so that a call is sent to somebody. Where
// nobody is, it is the place that it was.
func (a *Any) reached(ctx context.Context) uint64 {
	if len(a.conns) == 1 {
		return a.at.Load()
	}
	if a.alone {
		a.follow()
	}
	first := a.at.Load()
	for at := first; at < first+uint64(len(a.conns)); at++ {
		if there(ctx, a.conn(at)) {
			a.at.CompareAndSwap(first, at)
			return at
		}
	}
	return first
}

// follow goes on to a process that has begun to listen.
func (a *Any) follow() {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, at := uint64(len(a.conns)), a.at.Load()
	for next := at + 1; next < at+n; next++ {
		switch conn := a.conn(next); {
		case conn.GetState() != connectivity.Ready:
			a.left[next%n] = false
			conn.Connect()
		case !a.left[next%n] && a.at.CompareAndSwap(at, next):
			a.left[at%n] = true
			return
		}
	}
}

// there reports whether a process can be reached, which is tried once.
func there(ctx context.Context, conn *grpc.ClientConn) bool {
	ctx, cancel := context.WithTimeout(ctx, thereWait)
	defer cancel()
	for tried := false; ; tried = true {
		state := conn.GetState()
		switch {
		case state == connectivity.Ready:
			return true
		case state == connectivity.TransientFailure && !tried:
			conn.ResetConnectBackoff()
		case state == connectivity.TransientFailure || state == connectivity.Shutdown:
			return false
		case state == connectivity.Idle:
			conn.Connect()
		}
		if !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
}

func (a *Any) conn(at uint64) *grpc.ClientConn { return a.conns[at%uint64(len(a.conns))] }

// moved goes on to the next after such an error of the one at that place, unless another call did. A caller that went away, whose call ends with
// the same code, says nothing of the process.
func (a *Any) moved(ctx context.Context, at uint64, err error) error {
	if err != nil && elsewhere(err) && !errors.Is(ctx.Err(), context.Canceled) && a.at.CompareAndSwap(at, at+1) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.left[at%uint64(len(a.conns))] = true
	}
	return err
}

// elsewhere reports whether another process might do what this one did not. A field says what was wrong with the call, or that
// this process goes on with other calls. A deadline ends at both ends at once: whose word of it is first is chance.
func elsewhere(err error) bool {
	f := fault.From(err)
	return f.Code == callv1.Code_CODE_UNAVAILABLE ||
		f.Field == "" && (f.Code == callv1.Code_CODE_AUDIT_UNAVAILABLE || f.Code == callv1.Code_CODE_TIMEOUT)
}
