package signedchange

import (
	"context"
	"fmt"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/fault"
)

const (
	// askPatience bounds how long a change of a file waits for the vault to answer; it goes on without.
	askPatience = 2 * time.Second
	// adoptPatience is how long the vault has to take a change up before this program stops looking.
	adoptPatience = 4 * time.Second
	// refusalPatience is longer than the vault takes to read a file again: until then its refusal may be of what stood there before.
	refusalPatience = 2 * time.Second
)

// Vault is the vault while files are changed; without Policy it cannot be reached.
type Vault struct {
	Policy vaultv1.PolicyServiceClient
	Epoch  uint64
}

// Reach asks the vault for its epoch. Where it does not answer, the executor's epoch is as good: the statement is evidence then,
// and opens nothing.
func Reach(ctx context.Context, p *peers.Peers) Vault {
	patient, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	if status, err := p.Vault.Control.GetStatus(patient, &vaultv1.GetStatusRequest{}); err == nil {
		return Vault{Policy: p.Vault.Policy, Epoch: max(1, status.GetEpoch())}
	}
	brief, cancelBrief := context.WithTimeout(ctx, askPatience)
	defer cancelBrief()
	status, err := p.Executor.GetStatus(brief, &executorv1.GetStatusRequest{})
	if err != nil {
		return Vault{Epoch: 1}
	}
	return Vault{Epoch: max(1, status.GetEpoch())}
}

func (v Vault) announce(ctx context.Context, signed *callv1.HumanStatement) error {
	return Unhurried(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*askPatience)
		defer cancel()
		_, err := v.Policy.AnnounceChange(ctx, &vaultv1.AnnounceChangeRequest{Statement: signed})
		return err
	})
}

// Unhurried tries again, twice, what failed because nothing could be recorded: a person has signed by then, and a disk that is busy
// for a moment is no reason to sign again. What was not recorded was not done, and its statement is not used up.
func Unhurried(ctx context.Context, try func() error) error {
	err := try()
	for range 2 {
		if !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
			break
		}
		if !clock.Sleep(ctx, askPatience) {
			return err
		}
		err = try()
	}
	return err
}

// IsAway reports whether an error means that nobody answered.
func IsAway(err error) bool {
	return fault.Is(err, callv1.Code_CODE_UNAVAILABLE) || fault.Is(err, callv1.Code_CODE_TIMEOUT)
}

// RefusedError is a file that the vault does not take up as it is.
type RefusedError struct{ file, problem string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the vault refuses %s: %s", clean.Visible(e.file), clean.Line(e.problem, 500))
}

// adopted looks until the vault has taken up the files, or adoptPatience is over: then one is waiting. A vault that does not answer
// takes them up when it can.
func (v Vault) adopted(ctx context.Context, plans []*Plan) (ok bool, waiting string, err error) {
	if v.Policy == nil {
		return false, "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, adoptPatience)
	defer cancel()
	for began := time.Now(); ; {
		response, err := v.Policy.GetPolicy(ctx, &vaultv1.GetPolicyRequest{})
		if err != nil {
			return false, "", nil
		}
		files := map[string]*vaultv1.ConfigFile{}
		for _, f := range response.GetFiles() {
			files[f.GetName()] = f
		}
		waiting = ""
		for _, p := range plans {
			f, known := files[p.Name]
			want := digest(p.After)
			switch {
			case f.GetProblem() != "" && time.Since(began) < refusalPatience:
				waiting = p.Name
			case f.GetProblem() != "":
				return false, "", &RefusedError{p.Name, f.GetProblem()}
			case known && f.GetDigest() == want, !known && want == "":
			default:
				waiting = p.Name
			}
		}
		if waiting == "" {
			return true, "", nil
		}
		if !clock.Sleep(ctx, 100*time.Millisecond) {
			return false, waiting, nil
		}
	}
}
