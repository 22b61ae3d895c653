package approve

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli/clitest"
)

// twoSessions is a vault with two sessions of one client.
type twoSessions struct{ noStanding }

func (twoSessions) ListSessions(context.Context, *vaultv1.ListSessionsRequest, ...grpc.CallOption) (*vaultv1.ListSessionsResponse, error) {
	of := func(ref string, ago time.Duration) *vaultv1.OpenSession {
		return &vaultv1.OpenSession{Session: ref, Principal: "claude-code", KeyBound: true, Channel: callv1.Channel_CHANNEL_CLI, OpenedAt: timestamppb.New(clitest.Now.Add(-ago))}
	}
	return &vaultv1.ListSessionsResponse{Sessions: []*vaultv1.OpenSession{of(younger, time.Minute), of("s-"+strings.Repeat("b", 26), time.Hour)}}, nil
}

// awakeVault and awakeExecutor are not halted.
type awakeVault struct{ vaultv1.ControlServiceClient }

func (awakeVault) GetStatus(context.Context, *vaultv1.GetStatusRequest, ...grpc.CallOption) (*vaultv1.GetStatusResponse, error) {
	return &vaultv1.GetStatusResponse{Epoch: 3}, nil
}

type awakeExecutor struct {
	executorv1.ControlServiceClient
}

func (awakeExecutor) GetStatus(context.Context, *executorv1.GetStatusRequest, ...grpc.CallOption) (*executorv1.GetStatusResponse, error) {
	return &executorv1.GetStatusResponse{Epoch: 3}, nil
}

var younger = "s-" + strings.Repeat("a", 26)

// TestDangerousModeNamesTheSessionAsTheListDoes: by the number that durward sessions gives it.
func TestDangerousModeNamesTheSessionAsTheListDoes(t *testing.T) {
	s, _ := asking(t)
	s.Vault.Standing, s.Vault.Control, s.Executor.ControlServiceClient = twoSessions{}, awakeVault{}, awakeExecutor{}
	core, out, _ := clitest.Printing(false)
	if err := (&app{core}).askForDanger(t.Context(), s, younger, time.Hour, 10); err == nil || !strings.Contains(err.Error(), "not the phrase") {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if cells := strings.Fields(line); len(cells) > 2 && cells[2] == younger && cells[1] != "2" {
			t.Errorf("the client's younger session is said to be its first: %s", line)
		} else if len(cells) > 2 && cells[2] == younger {
			return
		}
	}
	t.Errorf("no line is about the session:\n%s", out)
}
