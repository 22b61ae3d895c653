package audit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/platform/platformtest"
)

// breaksOff is a log whose export sends what it has and ends before its time.
type breaksOff struct {
	auditv1.HistoryServiceClient
	grpc.ServerStreamingClient[auditv1.ExportLogResponse]
	has *auditv1.ExportLogResponse
}

func (b *breaksOff) ExportLog(context.Context, *auditv1.ExportLogRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[auditv1.ExportLogResponse], error) {
	return b, nil
}

var errAway = errors.New("the connection is gone")

func (b *breaksOff) Recv() (*auditv1.ExportLogResponse, error) {
	if has := b.has; has != nil {
		b.has = nil
		return has, nil
	}
	return nil, errAway
}

// TestAnExportThatFailsLeavesNoFile, but where it is the evidence of a log that does not prove itself.
func TestAnExportThatFailsLeavesNoFile(t *testing.T) {
	kit := platformtest.New(t)
	forged := &auditv1.ExportLogResponse{Checkpoint: []byte("forged")}
	for sent, left := range map[*auditv1.ExportLogResponse]bool{nil: false, forged: true} {
		from := &breaksOff{has: sent}
		l, err := history.Open(t.Context(), history.Config{
			Audit: kit.ID(optionsv1.Role_ROLE_AUDIT, "main").String(), Writer: kit.ID(optionsv1.Role_ROLE_OPERATOR, "alice").String(),
			Trust: kit.Trust, StateDir: t.TempDir(), Now: time.Now,
		})
		if err != nil {
			t.Fatal(err)
		}
		core, _, _ := clitest.Printing(false)
		path := filepath.Join(t.TempDir(), "log.jsonl")
		err = (&app{core}).export(t.Context(), &cli.Session{Peers: &peers.Peers{Audit: peers.Audit{HistoryServiceClient: from}}}, l, path, formatJSONL)
		if _, missing := os.Stat(path); err == nil || left == os.IsNotExist(missing) || left == errors.Is(err, errAway) {
			t.Errorf("sent %v: %v, %v", sent, err, missing)
		}
	}
}
