package process

import (
	"context"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/rpc"
)

// Dial begins to connect to a peer that a configuration names, and does not wait until that is done.
func Dial(self *identity.Source, peer config.Peer, logger *slog.Logger) (*grpc.ClientConn, error) {
	id, err := identity.Parse(peer.Identity)
	if err != nil {
		return nil, err
	}
	conn, err := rpc.Dial(rpc.ClientConfig{Identity: self, Address: peer.Address, Server: id, Logger: logger})
	if err != nil {
		return nil, err
	}
	conn.Connect()
	return conn, nil
}

// Log takes records that need not be durable when it returns; recorder.Recorder is one.
type Log interface {
	Spool(ctx context.Context, record *auditv1.Record) error
}

// Note records that a program starts or stops. What cannot be recorded is logged.
func Note(ctx context.Context, log Log, logger *slog.Logger, program string, kind auditv1.Kind) {
	err := log.Spool(ctx, &auditv1.Record{
		Kind: kind, Time: timestamppb.Now(), Status: auditv1.Status_STATUS_OK, Body: &auditv1.Body{Summary: program},
	})
	if err != nil {
		logger.ErrorContext(ctx, "a start or stop could not be recorded", "kind", kind.String(), "error", err)
	}
}
