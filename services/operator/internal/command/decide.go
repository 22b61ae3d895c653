package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/keys"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// runPatience is how long a start or stop may take: the catalogue allows an hour for a start.
const runPatience = 70 * time.Minute

// preview asks the executor itself what a call would act on and do.
func (s *session) preview(ctx context.Context, ref *callv1.ToolRef, arguments []byte) (*executorv1.PreviewCallResponse, error) {
	return s.Executor.PreviewCall(ctx, &executorv1.PreviewCallRequest{Tool: ref, Arguments: arguments})
}

// signer describes who signs. The executor's identity is the one that its certificate had to prove.
func (a *app) signer(s *session) (approval.Signer, error) {
	executor, err := identity.Parse(s.cfg.Executor.Identity)
	if err != nil {
		return approval.Signer{}, err
	}
	return approval.Signer{Operator: s.cfg.Operator, Executor: executor, Now: a.now()}, nil
}

// display is where a person looks before signing: the results' own place, or standard error when the results are for a
// program. Nothing is signed that was not shown.
func (a *app) display() *output.Printer {
	if !a.json {
		return a.out
	}
	return output.New(a.streams.Err, a.streams.Err, false, a.streams.Getenv)
}

// showStatement prints everything that is about to be signed: the target's own definition, whose digest the statement pins, the
// entry behind each step of a plan that starts or wakes something, and the statement, whole.
func (a *app) showStatement(st *statement.Statement, entry []byte, steps ...approval.Step) error {
	raw, err := st.Marshal()
	if err != nil {
		return err
	}
	out := a.display()
	whole := func(title string, entry []byte) {
		digest := canonical.Digest(entry)
		out.Printf("%s\n", out.Bold(title+", as the executor has it ("+canonical.FormatDigest(digest[:])+"):"))
		for _, line := range approval.Lines(entry) {
			out.Printf("  %s\n", line)
		}
	}
	if entry != nil {
		whole("What it acts on", entry)
	}
	for i, step := range steps {
		if step.Runs() {
			whole(fmt.Sprintf("Step %d, %s %s", i+1, clean.Visible(step.Action), clean.Visible(step.Service.ID)), step.Entry)
		}
	}
	out.Printf("%s\n", out.Bold("The statement that you sign, whole:"))
	for _, line := range approval.Lines(raw) {
		out.Printf("  %s\n", line)
	}
	if st.Tier == contract.TierName(optionsv1.Tier_TIER_DESTRUCTIVE) {
		out.Printf("%s\n", out.Red("DESTRUCTIVE: this takes something away and cannot simply be undone."))
	}
	return nil
}

// confirm asks a person, at the terminal. Without a terminal it refuses unless yes was given: what proves a human is the
// key, never a terminal.
func (a *app) confirm(ctx context.Context, question string, yes bool) error {
	if yes {
		return nil
	}
	if !output.IsTerminal(a.streams.In) {
		return denied("At a terminal run the same command; in a script that a human started, add --yes.", "there is no terminal to ask at")
	}
	a.display().Printf("%s [y/N] ", question)
	answered := make(chan string, 1)
	go func() {
		// What cannot be read is not a yes.
		answer, _ := bufio.NewReader(a.streams.In).ReadString('\n')
		answered <- answer
	}()
	select {
	case answer := <-answered:
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			return nil
		}
	case <-ctx.Done():
		// Ctrl-C; the reading goroutine ends with the program.
		a.display().Printf("\n")
	}
	return denied("", "nothing was done")
}

// sign opens the operator's key, for this one statement, and signs.
func (a *app) sign(ctx context.Context, s *session, st *statement.Statement) (_ *callv1.HumanStatement, err error) {
	source := keys.Source{File: s.cfg.SigningKey, AgentSocket: a.streams.Getenv("SSH_AUTH_SOCK"), Ask: keys.AskTerminal}
	key, err := source.Open(ctx)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, failed("config/operator.yaml names it as signing_key.", "the signing key %s is missing", s.cfg.SigningKey)
		}
		return nil, err
	}
	defer func() { err = errors.Join(err, key.Close()) }()
	if key.Protection == "touch" {
		a.out.Remark("Touch your security key.")
	}
	return statement.Sign(st, key)
}

// result is how a dispatched call ended.
type result struct {
	response proto.Message
	outcome  *callv1.Outcome
}

// dispatch carries out a granted call at the executor.
func (s *session) dispatch(ctx context.Context, call approval.Call, grant *callv1.SignedGrant) (result, error) {
	request, err := call.Tool.Decode(call.Arguments)
	if err != nil {
		return result{}, err
	}
	signed, err := proto.Marshal(grant)
	if err != nil {
		return result{}, fmt.Errorf("encode the grant: %w", err)
	}
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, rpc.MetadataGrant, string(signed)), runPatience)
	defer cancel()
	r := result{response: call.Tool.NewResponse(), outcome: &callv1.Outcome{}}
	var trailer metadata.MD
	err = s.Executor.Conn.Invoke(ctx, call.Tool.FullMethod, request, r.response, grpc.Trailer(&trailer))
	if values := trailer.Get(rpc.TrailerOutcome); len(values) == 1 {
		if unmarshalErr := proto.Unmarshal([]byte(values[0]), r.outcome); unmarshalErr != nil {
			r.outcome = &callv1.Outcome{}
		}
	}
	return r, err
}
