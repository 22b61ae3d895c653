package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/operator/internal/signedchange"
)

const (
	// endPatience is how long a sink has to answer that something ended.
	endPatience = time.Second
	// endTries is how often it is asked.
	endTries = 3
)

// EndAtSinks has every sink void these standing statements, whatever the vault says, and ask the vault again about whatever waits.
// The vault is told before: when EndAtSinks returns nil, nothing begins any more under what ended.
func (s *Session) EndAtSinks(ctx context.Context, statements ...*callv1.HumanStatement) error {
	// What the vault shows no statement for has none that could be used.
	statements = slices.DeleteFunc(statements, func(h *callv1.HumanStatement) bool { return h == nil })
	var deaf []string
	for _, sink := range s.Sinks {
		if err := endAt(ctx, sink, statements); err != nil {
			deaf = append(deaf, fmt.Sprintf("%s has not learnt that it ended (%s)", sinkWords(sink.Name), PublicText(err)))
		}
	}
	if len(deaf) == 0 {
		return nil
	}
	return Unreachable("Try again, or stop everything: durward panic", "%s: what waits there may still begin", strings.Join(deaf, ", and "))
}

// endAt tells one sink.
func endAt(ctx context.Context, sink peers.Sink, statements []*callv1.HumanStatement) (err error) {
	for range endTries {
		trying, cancel := context.WithTimeout(ctx, endPatience)
		_, err = sink.EndStanding(trying, &executorv1.EndStandingRequest{Statements: statements})
		cancel()
		if err == nil || !signedchange.IsAway(err) || ctx.Err() != nil {
			break
		}
	}
	return err
}

// sinkWords is a sink as sentences name it.
func sinkWords(name string) string {
	if name == "executor" {
		return "the executor"
	}
	return name
}

// EndedAtSinks is EndAtSinks after a change of who may ask or approve. Where neither vault nor executor answers it says so, and that is
// all: a process that starts reads the files.
func (a *App) EndedAtSinks(ctx context.Context) error {
	ctx, s, err := a.Connect(ctx)
	if err != nil {
		return nil
	}
	defer s.Close()
	err = s.EndAtSinks(ctx)
	if err == nil {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	if _, away := s.Vault.Control.GetStatus(asking, &vaultv1.GetStatusRequest{}); signedchange.IsAway(away) {
		a.Out.Remark("%s", a.Out.Yellow("Neither the vault nor the executor can be reached; they read it when they start."))
		return nil
	}
	return err
}
