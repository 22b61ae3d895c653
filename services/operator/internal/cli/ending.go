package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

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
	return unheard("", s.deaf(ctx, statements))
}

// deaf names the sinks that have not heard.
func (s *Session) deaf(ctx context.Context, statements []*callv1.HumanStatement) (deaf []string) {
	// What the vault shows no statement for has none that could be used.
	statements = slices.DeleteFunc(statements, func(h *callv1.HumanStatement) bool { return h == nil })
	for _, sink := range s.Sinks {
		if err := endAt(ctx, sink, statements); err != nil {
			deaf = append(deaf, hasNot(sinkWords(sink.Name), err))
		}
	}
	return deaf
}

func hasNot(who string, err error) string {
	return fmt.Sprintf("%s has not learnt that it ended (%s)", who, PublicText(err))
}

// unheard is the error that names those who have not heard; nil where all have.
func unheard(hint string, deaf []string) error {
	if len(deaf) == 0 {
		return nil
	}
	return Unreachable(hint+"Try again, or stop everything: durward panic", "%s: what waits there may still begin", strings.Join(deaf, ", and "))
}

// endBytes is how much one message to a sink holds: a sink takes no request above 4 MiB, and a statement may have 64 KiB.
const endBytes = 2 << 20

// endAt tells one sink, in as many messages as it takes.
func endAt(ctx context.Context, sink peers.Sink, statements []*callv1.HumanStatement) (err error) {
	for {
		n, size := 0, 0
		for n < len(statements) && (n == 0 || size+proto.Size(statements[n]) <= endBytes) {
			size += proto.Size(statements[n])
			n++
		}
		if err := tellEnd(ctx, sink, statements[:n]); err != nil || n == len(statements) {
			return err
		}
		statements = statements[n:]
	}
}

// tellEnd sends one message.
func tellEnd(ctx context.Context, sink peers.Sink, statements []*callv1.HumanStatement) (err error) {
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

// EndedAtSinks is EndAtSinks after a change of the files that say who may ask or approve. The vault reads them by itself, while it runs.
func (a *App) EndedAtSinks(ctx context.Context) error {
	return a.Run(ctx, func(ctx context.Context, s *Session) error {
		deaf := s.deaf(ctx, nil)
		asking, cancel := context.WithTimeout(ctx, endPatience)
		defer cancel()
		if _, err := s.Vault.Control.GetStatus(asking, &vaultv1.GetStatusRequest{}); signedchange.IsAway(err) {
			deaf = append([]string{hasNot("the vault", err)}, deaf...)
		}
		return unheard("A process that is stopped reads it when it starts. ", deaf)
	})
}
