package rpc

import (
	"context"

	"google.golang.org/grpc"
)

// checkedStream asks with each message of a stream, either way, whether the caller is still let in.
type checkedStream struct {
	grpc.ServerStream
	ctx    context.Context
	end    context.CancelCauseFunc
	server *Server
	call   *call
}

func (s *checkedStream) Context() context.Context { return s.ctx }

// ask returns why the caller is let in no more, or nil. The first refusal ends the stream's context, and is what the peer sees.
func (s *checkedStream) ask() error {
	if refused := s.server.authorise(s.call); refused != nil {
		s.end(refused)
		return refused
	}
	return nil
}

func (s *checkedStream) SendMsg(m any) error {
	if err := s.ask(); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}

func (s *checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		if f := unreadable(err); f != nil {
			return s.server.refuse(s.ctx, s.call, f)
		}
		return err
	}
	return s.ask()
}
