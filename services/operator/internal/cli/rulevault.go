package cli

import (
	"context"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	filechange "durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
)

// changeVault is the vault while rules are changed; without a session it cannot be reached.
type changeVault struct {
	session *Session
	epoch   uint64
}

func (v changeVault) close() {
	if v.session != nil {
		v.session.Close()
	}
}

// vaultForChanges connects to the vault and asks for its epoch. Where it does not answer, the executor's epoch is as good: the
// statement is evidence then, and opens nothing.
func (a *App) vaultForChanges(ctx context.Context) (context.Context, changeVault) {
	v := changeVault{epoch: 1}
	ctx, s, err := a.Connect(ctx)
	if err != nil {
		return ctx, v
	}
	patient, cancel := context.WithTimeout(ctx, AskPatience)
	defer cancel()
	if status, err := s.Vault.Control.GetStatus(patient, &vaultv1.GetStatusRequest{}); err == nil {
		return ctx, changeVault{session: s, epoch: max(1, status.GetEpoch())}
	}
	brief, cancelBrief := context.WithTimeout(ctx, AskPatience)
	defer cancelBrief()
	if status, err := s.Executor.GetStatus(brief, &executorv1.GetStatusRequest{}); err == nil {
		v.epoch = max(1, status.GetEpoch())
	}
	s.Close()
	return ctx, v
}

func (v changeVault) announce(ctx context.Context, signed *callv1.HumanStatement) error {
	return Unhurried(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*AskPatience)
		defer cancel()
		_, err := v.session.Vault.Policy.AnnounceChange(ctx, &vaultv1.AnnounceChangeRequest{Statement: signed})
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
		select {
		case <-ctx.Done():
			return err
		case <-time.After(AskPatience):
		}
		err = try()
	}
	return err
}

// isAway reports whether an error means that nobody answered.
func isAway(err error) bool {
	return fault.Is(err, callv1.Code_CODE_UNAVAILABLE) || fault.Is(err, callv1.Code_CODE_TIMEOUT)
}

// awaitAdoption looks until the vault has taken up what it watches, and says what it refuses.
func (a *App) awaitAdoption(ctx context.Context, v changeVault, plans []*filechange.Plan) (bool, error) {
	if v.session == nil {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, adoptPatience)
	defer cancel()
	for {
		response, err := v.session.Vault.Policy.GetPolicy(ctx, &vaultv1.GetPolicyRequest{})
		if err != nil {
			return false, nil // it is written and recorded; the vault takes it up when it can
		}
		files := map[string]*vaultv1.ConfigFile{}
		for _, f := range response.GetFiles() {
			files[f.GetName()] = f
		}
		waiting := ""
		for _, p := range plans {
			f, known := files[p.Name]
			want := ""
			if p.After != nil {
				sum := canonical.Digest(p.After)
				want = canonical.FormatDigest(sum[:])
			}
			switch {
			case f.GetProblem() != "":
				return false, Failed("It stays as it was before, until the file is corrected.", "the vault refuses %s: %s",
					clean.Visible(p.Name), clean.Line(f.GetProblem(), 500))
			case known && f.GetDigest() == want, !known && want == "":
			default:
				waiting = p.Name
			}
		}
		if waiting == "" {
			return true, nil
		}
		select {
		case <-ctx.Done():
			a.Out.Remark("%s", a.Out.Yellow("The vault has not taken up "+clean.Visible(waiting)+
				": is its security_dir (vault.yaml) the folder that was changed? See: durward config show"))
			return false, nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}
