package rpc

import (
	"context"
	"errors"
	"sync/atomic"

	"google.golang.org/grpc"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// Any is a connection to several processes of one identity, of which one does the work and the others stand by. It keeps to one
// until that one cannot be reached, does not answer in time, or says that it cannot do its work; the next call then goes to the
// next. It repeats no call. It is safe for concurrent use.
type Any struct {
	conns []*grpc.ClientConn
	at    atomic.Uint64
}

// DialAny is Dial to the address of the configuration and to these further ones. The caller closes it.
func DialAny(cfg ClientConfig, more []string) (*Any, error) {
	a := &Any{}
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
	at := a.at.Load()
	return a.moved(at, a.conn(at).Invoke(ctx, method, args, reply, opts...))
}

// NewStream implements grpc.ClientConnInterface.
func (a *Any) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	at := a.at.Load()
	s, err := a.conn(at).NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, a.moved(at, err)
	}
	return &anyStream{s, a, at}, nil
}

type anyStream struct {
	grpc.ClientStream
	any *Any
	at  uint64
}

func (s *anyStream) RecvMsg(m any) error { return s.any.moved(s.at, s.ClientStream.RecvMsg(m)) }

func (a *Any) conn(at uint64) *grpc.ClientConn { return a.conns[at%uint64(len(a.conns))] }

// moved goes on to the next after such an error of the one at that place, unless another call did.
func (a *Any) moved(at uint64, err error) error {
	if err != nil && elsewhere(err) {
		a.at.CompareAndSwap(at, at+1)
	}
	return err
}

// elsewhere reports whether another process might do what this one did not. A field says what was wrong with the call, or that
// this process goes on with other calls.
func elsewhere(err error) bool {
	f := fault.From(err)
	return f.Code == callv1.Code_CODE_UNAVAILABLE || f.Code == callv1.Code_CODE_AUDIT_UNAVAILABLE && f.Field == ""
}
