package relay

import (
	"testing"

	"google.golang.org/protobuf/proto"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/contract"
)

// The look at a plan sees all the other ways that an agent can be told of: one that it does not see would be taken for an old one.
func TestOtherWays(t *testing.T) {
	t.Parallel()
	for asked, taken := range map[uint32]bool{otherWays: true, otherWays + 1: false} {
		err := contract.Validate(&executorv1.SimulateModeRequest{ModeId: proto.String("night"), Alternatives: proto.Uint32(asked)})
		if (err == nil) != taken {
			t.Errorf("%d other ways: %v", asked, err)
		}
	}
}
