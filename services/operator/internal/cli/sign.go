package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// runPatience is how long a start or stop may take: the catalog allows an hour for a start.
const runPatience = 70 * time.Minute

// Preview asks the sink itself what a call would act on and do, and believes it what this program does not know itself.
func (s *Session) Preview(ctx context.Context, ref *callv1.ToolRef, arguments []byte) (*executorv1.PreviewCallResponse, error) {
	tool, _ := contract.Lookup(ref.GetName()) // a sink knows no tool that there is not
	said, err := s.SinkOf(tool.Sink).PreviewCall(ctx, &executorv1.PreviewCallRequest{Tool: ref, Arguments: arguments})
	if err != nil {
		return nil, err
	}
	return approval.Preview(tool, arguments, said)
}

// Signer describes who signs. The sinks' identities are those that their certificates had to prove.
func (a *App) Signer(s *Session) approval.Signer {
	signer := approval.Signer{Operator: s.Config.Operator, Executor: s.Sinks[0].ID, Now: a.Now()}
	for _, sink := range s.Sinks[1:] {
		signer.Egress = sink.ID
	}
	return signer
}

// ShowDocument prints documents, whole.
func (a *App) ShowDocument(documents ...approval.Document) error {
	return a.showDocuments(a.Display(), documents)
}

func (a *App) showDocuments(out *output.Printer, documents []approval.Document) error {
	for _, document := range documents {
		lines, err := document.Lines(a.Now())
		if err != nil {
			return err
		}
		printLines(out, lines)
	}
	return nil
}

// PrintLines prints lines where a person looks.
func (a *App) PrintLines(lines []approval.Line) { printLines(a.Display(), lines) }

func printLines(out *output.Printer, lines []approval.Line) {
	for _, line := range lines {
		line.Text = out.Wrapped(line.Text)
		switch line.Kind {
		case approval.Heading:
			line.Text = out.Bold(line.Text)
		case approval.Danger:
			line.Text = out.Red(line.Text)
		}
		out.Printf("%s\n", line.Text)
	}
}

// KeySource is where the operator's signing key is.
func (a *App) KeySource(s *Session, ask signingkey.Asker) signingkey.Source {
	return signingkey.Source{File: s.Config.SigningKey, AgentSocket: a.Streams.Getenv("SSH_AUTH_SOCK"), Ask: ask}
}

// Sign opens the operator's key, for these statements of one decision, and signs.
func (a *App) Sign(ctx context.Context, s *Session, statements ...*statement.Statement) (signed []*callv1.HumanStatement, err error) {
	signed, err = signedchange.Signer{Key: a.KeySource(s, signingkey.AskTerminal)}.Sign(ctx, statements, a.Touch)
	if errors.Is(err, os.ErrNotExist) {
		return nil, Failed("config/operator.yaml names it as signing_key.", "the signing key %s is missing", s.Config.SigningKey)
	}
	return signed, err
}

// Touch asks a person to touch their security key.
func (a *App) Touch() { a.Out.Remark("Touch your security key.") }

// Asking is how a person is asked before something is signed.
type Asking struct {
	// Yes skips the question.
	Yes bool
	// Full shows what is signed whole at once.
	Full bool
}

// Looks is where a person looks before signing: Display, but standard error where nobody is asked about a command of their own, and
// nowhere with --quiet.
func (a *App) Looks(how Asking) *output.Printer {
	switch {
	case how.Yes && a.Format == output.Quiet:
		return output.New(io.Discard, io.Discard, a.Streams.Getenv)
	case how.Yes:
		return output.New(a.Streams.Err, a.Streams.Err, a.Streams.Getenv)
	default:
		return a.Display()
	}
}

// AskingFlags gives a command the flags of Asking.
func AskingFlags(cmd *cobra.Command) *Asking {
	how := &Asking{}
	cmd.Flags().BoolVar(&how.Yes, "yes", false, "do not ask before signing")
	cmd.Flags().BoolVar(&how.Full, "full", false, "show what you sign whole at once, instead of on one screen")
	return how
}

// AskAndSign shows documents, asks once, and signs their statements. At a terminal they are shown on one screen, and whole where a person
// asks for that, or where not all of their terms fit; elsewhere they are shown whole. Of a human's own command that asks nothing the terms
// are shown.
func (a *App) AskAndSign(ctx context.Context, s *Session, question string, how Asking, documents ...approval.Document) ([]*callv1.HumanStatement, error) {
	width, height, ok := a.Display().Size()
	if own := documents[0].Statement.Kind == statement.KindCommand; how.Yes && own && !how.Full {
		lines, _ := approval.Brief(a.Now(), 0, math.MaxInt, documents...)
		printLines(a.Looks(how), lines)
	} else if !ok || how.Full || how.Yes || !output.IsTerminal(a.Streams.In) {
		out := a.Display()
		if own || a.Format == output.Quiet {
			out = a.Looks(how)
		}
		if err := a.showDocuments(out, documents); err != nil {
			return nil, err
		}
		if err := a.Confirm(ctx, question, how.Yes); err != nil {
			return nil, err
		}
	} else if err := a.confirmBrief(ctx, question, width, height, documents); err != nil {
		return nil, err
	}
	return a.Sign(ctx, s, output.Each(documents, func(d approval.Document) *statement.Statement { return d.Statement })...)
}

// confirmBrief asks below a brief. Where that does not hold all terms, a yes counts only once everything was shown.
func (a *App) confirmBrief(ctx context.Context, question string, width, height int, documents []approval.Document) error {
	question += " (v: see it whole) [y/N] "
	lines, seen := approval.Brief(a.Now(), width, height-len(output.Wrap(question, width)), documents...)
	a.PrintLines(lines)
	for {
		ask := question
		if !seen {
			ask = "It does not fit on this screen. See it whole (v) before you sign. [v/N] "
		}
		answer, _ := a.Ask(ctx, ask) // what cannot be read is not a yes
		switch strings.ToLower(answer) {
		case "v":
			if err := a.ShowDocument(documents...); err != nil {
				return err
			}
			seen = true
		case "y", "yes":
			if seen {
				return nil
			}
		default:
			return Denied("", "nothing was done")
		}
	}
}

// result is how a dispatched call ended.
type result struct {
	response proto.Message
	outcome  *callv1.Outcome
}

// dispatch carries out a granted call at its sink.
func (s *Session) dispatch(ctx context.Context, call approval.Call, grant *callv1.SignedGrant) (result, error) {
	request, err := call.Tool.Decode(call.Arguments)
	if err != nil {
		return result{}, err
	}
	signed, err := proto.Marshal(grant)
	if err != nil {
		return result{}, fmt.Errorf("encode the grant: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, runPatience)
	defer cancel()
	r := result{response: call.Tool.NewResponse()}
	r.outcome, err = rpc.Invoke(ctx, s.SinkOf(call.Tool.Sink).Conn, call.Tool.FullMethod, request, r.response, rpc.MetadataGrant, string(signed))
	if start, ok := request.(*executorv1.StartServiceRequest); ok && fault.Is(err, callv1.Code_CODE_FAILED) {
		err = Failed("What it wrote: durward logs "+ShellWord(start.GetServiceId()), "%s", PublicText(err))
	}
	return r, err
}

// Operations returns the newest operations in those states, newest first, at most 1000: in as many messages as they take.
func (s *Session) Operations(ctx context.Context, states ...vaultv1.OperationState) (ops []*vaultv1.Operation, err error) {
	const most = 1000
	request := &vaultv1.ListOperationsRequest{States: states, Limit: most}
	for {
		response, err := s.Vault.ListOperations(ctx, request)
		if err != nil {
			return nil, err
		}
		ops = append(ops, response.GetOperations()...)
		if !response.GetMore() || len(response.GetOperations()) == 0 || len(ops) >= most {
			return ops, nil
		}
		request.After, request.Limit = ops[len(ops)-1].GetOperationId(), uint32(most-len(ops))
	}
}

// FindSession returns the open session that a person named.
func (s *Session) FindSession(ctx context.Context, name string) (*vaultv1.OpenSession, error) {
	list, err := s.Vault.Standing.ListSessions(ctx, &vaultv1.ListSessionsRequest{})
	if err != nil {
		return nil, err
	}
	return FindSession(name, list.GetSessions(), Usage("See: durward sessions", "no open session is called %s", clean.Visible(name)))
}

// FindSession returns the one of these sessions that a person named; none is the error where there is none of that name.
func FindSession(name string, sessions []*vaultv1.OpenSession, none error) (*vaultv1.OpenSession, error) {
	found, err := approval.FindSession(name, sessions)
	if ambiguous, ok := errors.AsType[*approval.AmbiguousError](err); ok {
		return nil, Usage("Say one of them.", "%s fits %d sessions", clean.Visible(name), len(ambiguous.Candidates))
	}
	if err != nil {
		return nil, none
	}
	return found, nil
}

// entry is one of the executor's catalog.
type entry struct{ id, name string }

// entries is everything of a kind that the executor's catalog has: "service", "mode" or "model".
func (s *Session) entries(ctx context.Context, kind string) ([]entry, error) {
	switch kind {
	case "service":
		list, err := s.Executor.Tools.ListServices(ctx, &executorv1.ListServicesRequest{})
		return output.Each(list.GetServices(), func(e *executorv1.ServiceSummary) entry { return entry{e.GetServiceId(), e.GetName()} }), err
	case "mode":
		list, err := s.Executor.Tools.ListModes(ctx, &executorv1.ListModesRequest{})
		return output.Each(list.GetModes(), func(e *executorv1.ModeSummary) entry { return entry{e.GetModeId(), e.GetName()} }), err
	default:
		list, err := s.Executor.Tools.ListModels(ctx, &executorv1.ListModelsRequest{})
		return output.Each(list.GetModels(), func(e *executorv1.ModelSummary) entry { return entry{e.GetModelId(), e.GetServedName()} }), err
	}
}

// IDs are the ids of everything of a kind.
func (s *Session) IDs(ctx context.Context, kind string) ([]string, error) {
	list, err := s.entries(ctx, kind)
	return output.Each(list, func(e entry) string { return e.id }), err
}

// Interactive reports whether a person sits before this command.
func (a *App) Interactive() bool {
	return !a.Machine() && output.IsTerminal(a.Streams.In) && output.IsTerminal(a.Streams.Out)
}

// Display is where a person looks before signing: the results' own place, or standard error when the results are for a
// program. Nothing is signed that was not shown.
func (a *App) Display() *output.Printer {
	if !a.Machine() {
		return a.Out
	}
	return output.New(a.Streams.Err, a.Streams.Err, a.Streams.Getenv)
}

// Ask asks a person once and returns what they enter; false when the line does not come to its end. What was typed before the
// question is no answer to it.
func (a *App) Ask(ctx context.Context, question string) (string, bool) {
	ForgetTyped(a.Streams.In)
	a.Display().Printf("%s", question)
	type answer struct {
		text string
		ok   bool
	}
	answered := make(chan answer, 1)
	go func() {
		// It reads while there is a question alone: the passphrase comes from the same terminal.
		line, err := bufio.NewReader(a.Streams.In).ReadString('\n')
		answered <- answer{strings.TrimSpace(line), err == nil}
	}()
	select {
	case got := <-answered:
		if !got.ok { // Ctrl-D leaves the cursor beside the question
			a.Display().Printf("\n")
		}
		return got.text, got.ok
	case <-ctx.Done():
		// Ctrl-C; the reading goroutine ends with the program.
		a.Display().Printf("\n")
		return "", false
	}
}

// Confirm asks a person, at the terminal. Without a terminal it refuses
// unless yes was given: what proves a human is the key, never a terminal.
func (a *App) Confirm(ctx context.Context, question string, yes bool) error {
	if yes {
		return nil
	}
	if !output.IsTerminal(a.Streams.In) {
		return Denied("At a terminal run the same command; in a script that a human started, add --yes.", "there is no terminal to ask at: %s", question)
	}
	answer, _ := a.Ask(ctx, question+" [y/N] ") // what cannot be read is not a yes
	switch strings.ToLower(answer) {
	case "y", "yes":
		return nil
	}
	return Denied("", "nothing was done")
}
