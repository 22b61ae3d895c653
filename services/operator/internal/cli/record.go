package cli

import (
	"context"
	"errors"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/installdir"
)

// recordPatience bounds how long a change of a file waits for audit; what cannot be sent is kept and sent later.
const recordPatience = 2 * time.Second

// Record writes a change to the log, or keeps it until audit can be reached; the change itself is made already.
func (a *App) Record(ctx context.Context, _ installdir.Config, body *auditv1.Body) {
	ctx, cancel := context.WithTimeout(ctx, recordPatience)
	defer cancel()
	sent, err := a.tryRecord(ctx, body)
	a.RequestID = ""
	var refused *history.Refusal
	switch {
	case errors.As(err, &refused):
		a.Out.Remark("%s", a.Out.Red("the change is made, and "+PublicText(refused)))
	case err != nil:
		a.Out.Remark("%s", a.Out.Red("the change is made and could not be recorded: "+PublicText(err)))
	case !sent:
		a.Out.Remark("%s", a.Out.Dim("audit cannot be reached: the change is made and will be recorded when it can"))
	}
}

func (a *App) tryRecord(ctx context.Context, body *auditv1.Body) (bool, error) {
	sent := false
	err := a.Run(ctx, func(ctx context.Context, s *Session) error {
		l, err := a.OpenLog(ctx, s)
		if err != nil {
			return err
		}
		sent, err = l.Write(ctx, auditv1.Kind_KIND_CONFIG_CHANGED, a.RequestID, body)
		return errors.Join(err, l.Close())
	})
	return sent, err
}

// OpenLog opens the operator's view of the log. A record that waited for audit and that audit will not have is told.
func (a *App) OpenLog(ctx context.Context, s *Session) (*history.Log, error) {
	return history.Open(ctx, history.Config{
		Client: s.Audit.Log, Audit: s.Config.Audit.Identity, Writer: s.Identity().String(), Trust: s.Trust, StateDir: s.Config.StateDir, Now: a.Now,
		OnRefused: func(r *history.Refusal) { a.Out.Remark("%s", a.Out.Red(PublicText(r))) },
	})
}
