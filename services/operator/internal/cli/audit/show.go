package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/retention"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

func (a *app) auditShowCommand() *cobra.Command {
	var asStatement bool
	var folder string
	cmd := &cobra.Command{
		Use:   "show REQUEST_ID|OPERATION_ID|INDEX",
		Short: "Tell one story: every record of a request or operation, in order",
		Long: `Shows everything that was recorded under a request id or an operation id: each operation with what came of it,
below it its steps across all processes with the time since the step before, how long it waited for a decision
and how long it ran, and what the human signed. Times between steps are by the log's clock, the times of records
by their writers'. With an index it shows that one record whole. Each record is proved to be in the log; that none
was left out only "durward audit verify" proves, of the whole log.

With --statement it writes the signed statement of an operation as two files and prints the ssh-keygen
command that verifies it, without Durward, years later.`,
		Example: "  durward audit show 0123456789abcdef0123456789abcdef\n  durward audit show 42\n" +
			"  durward audit show --statement 0123456789abcdef0123456789abcdef --out /tmp/evidence",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("out") && !asStatement {
				return cli.Usage("Add --statement, or leave it away.", "--out is where --statement writes its files")
			}
			return a.afterLog(cmd.Context(), func(ctx context.Context, s *cli.Session) error {
				if asStatement {
					return a.writeStatement(ctx, s, args[0], folder)
				}
				if index, err := strconv.ParseUint(args[0], 10, 64); err == nil && !approval.IsOperationID(args[0]) {
					return a.showRecord(ctx, s, index)
				}
				return a.showStory(ctx, s, args[0])
			})
		},
	}
	cmd.Flags().BoolVar(&asStatement, "statement", false, "write the human's signed statement of an operation")
	cmd.Flags().StringVar(&folder, "out", ".", "folder for --statement")
	cli.CompleteFlag(cmd, "out", cli.CompleteFolders)
	return cmd
}

func (a *app) showStory(ctx context.Context, s *cli.Session, id string) error {
	if !approval.IsOperationID(id) && !strings.HasPrefix(id, "r-") {
		return cli.Usage("Find one: durward audit search", "%q is neither a request id (r-…), nor an operation id (32 hex digits), nor an index", clean.Visible(id))
	}
	entries, err := history.Story(ctx, s.Audit, id)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return cli.Failed("Find one: durward audit search", "nothing is recorded under %s", id)
	}
	if err := history.ProveStory(ctx, s.Audit, entries, s.Trust.Current().LogKeys); err != nil {
		return proofProblem(err)
	}
	branches := history.Branches(entries)
	shown, err := output.MessageJSON(&auditv1.SearchRecordsResponse{Entries: entries})
	if err != nil {
		return err
	}
	var plain struct {
		Entries json.RawMessage `json:"entries"`
	}
	if err := json.Unmarshal(shown, &plain); err != nil {
		return err
	}
	err = a.Show(map[string]any{"id": id, "branches": branches, "entries": plain.Entries}, func() {
		for _, b := range branches {
			a.showBranch(id, b)
		}
		if signed := history.Signed(entries); len(signed) > 0 {
			a.showEvidence(s, signed[0], history.Evidence(signed[0]))
		}
	})
	for _, e := range entries {
		if err == nil {
			_, err = letGo(ctx, s, e)
		}
	}
	return err
}

// letGo returns the decision that let a record's body go, nil for one that has it. Its error says that no human let it go.
func letGo(ctx context.Context, s *cli.Session, e *auditv1.Entry) (*retention.Decision, error) {
	pruned, untrue := history.PrunedBy(ctx, s.Audit, e, s.Trust.Current())
	switch {
	case untrue != nil:
		return nil, cli.Failed("Prove the whole log: durward audit verify", "record %d is in the log without its body: %v", e.GetIndex(), untrue)
	case pruned == nil && logproof.BodyMissing(e):
		return nil, cli.Failed("Prove the whole log: durward audit verify", "record %d is in the log without its body", e.GetIndex())
	}
	return pruned, nil
}

// showBranch prints an operation as what it was and what came of it, and below that its steps.
func (a *app) showBranch(id string, b history.Branch) {
	if b.Operation == "" {
		a.Out.Printf("%s\n", a.Out.Bold("Beside any operation, of the request "+clean.Visible(id)))
	} else {
		title := []string{"operation " + clean.Visible(b.Operation), clean.Line(b.Tool, 64), clean.Line(b.Principal, 64), clean.Line(b.Session, 64)}
		title = append(slices.DeleteFunc(title, func(s string) bool { return s == "" }), b.Status)
		line := a.Out.Wrapped(strings.Join(title, "  "))
		switch b.StandsOut {
		case "":
			line = a.Out.Bold(line)
		case "destructive":
			line = a.Out.Yellow(line + "  (destructive)")
		default:
			line = a.Out.Red(line)
			if b.StandsOut != b.Status {
				line += a.Out.Red("  (" + b.StandsOut + ")")
			}
		}
		a.Out.Printf("%s\n", line)
	}
	for _, step := range b.Steps {
		after := ""
		if step.After != nil {
			after = fmt.Sprintf("+%9s", seconds(*step.After))
		}
		a.Out.Printf("%s\n", a.recordLine(step.Entry, fmt.Sprintf("%10s  ", after)))
	}
	var took []string
	for _, part := range []struct {
		what string
		time *history.Milliseconds
	}{{"waited for a decision", b.Waited}, {"ran", b.Ran}, {"took in all", b.Took}} {
		if part.time != nil {
			took = append(took, part.what+" "+seconds(*part.time))
		}
	}
	if len(took) > 0 {
		a.Out.Printf("%s\n", a.Out.Dim("        "+strings.Join(took, ", ")))
	}
}

// seconds writes a short time with its milliseconds.
func seconds(ms history.Milliseconds) string {
	d := time.Duration(ms) * time.Millisecond
	if d >= time.Minute {
		return approval.Duration(d)
	}
	return fmt.Sprintf("%.3f s", d.Seconds())
}

func (a *app) storyLine(e *auditv1.Entry) string { return a.recordLine(e, "") }

// recordLine is a record in one line, with something behind its time.
func (a *app) recordLine(e *auditv1.Entry, after string) string {
	body := e.GetRecord().GetBody()
	if gone := history.Gone(e); gone != "" {
		body = &auditv1.Body{Summary: gone}
	}
	begins := func(status string) string {
		return fmt.Sprintf("%6d  %s  %s%-14s  %-16s  %s", e.GetIndex(), e.GetRecord().GetTime().AsTime().Local().Format("2006-01-02 15:04:05.000"),
			after, approval.Place(e.GetWriter()), kindWord(e), output.Pad(status, 7))
	}
	plain := begins(statusWord(e))
	line := plain
	for _, part := range []string{clean.Line(body.GetSummary(), 500), clean.Line(body.GetAction(), 500), clean.Line(body.GetReason(), 500), clean.Line(e.GetRecord().GetTool(), 64)} {
		if part != "" {
			line += "  " + part
			break
		}
	}
	// Broken as it is seen, and coloured where that leaves its beginning whole.
	line = a.Out.Wrapped(line)
	if rest, whole := strings.CutPrefix(line, plain); whole {
		return begins(a.statusColour(e)) + rest
	}
	return line
}

// showEvidence prints what a human signed, and whether the signature stands.
func (a *app) showEvidence(s *cli.Session, e *auditv1.Entry, evidence *callv1.HumanStatement) {
	verdict := a.Out.Green("the signature stands")
	st, err := statement.VerifySignature(evidence, s.Trust.Current().AllowedSigners, e.GetLoggedAt().AsTime())
	if err == nil {
		err = history.Fits(e, st)
	}
	switch {
	case errors.Is(err, trust.ErrUnknownSigner):
		verdict = a.Out.Yellow("its signer is not in allowed_signers now")
	case st != nil && err != nil:
		verdict = a.Out.Red("THE SIGNATURE STANDS, AND NOT FOR THIS RECORD: " + clean.Line(err.Error(), 200))
	case err != nil:
		verdict = a.Out.Red("THE SIGNATURE DOES NOT STAND: " + clean.Line(err.Error(), 200))
	default:
		verdict += " (" + clean.Visible(st.Operator) + ")"
	}
	a.Out.Printf("%s  %s\n", a.Out.Bold("What the human signed:"), verdict)
	for _, line := range approval.Lines(evidence.GetStatement()) {
		a.Out.Printf("%s\n", a.Out.Wrapped("  "+line))
	}
	if op := e.GetRecord().GetOperationId(); op != "" {
		a.Out.Printf("%s\n", a.Out.Dim("Verify it without Durward: "+a.Typed()+" audit show --statement "+op))
	}
}

func (a *app) showRecord(ctx context.Context, s *cli.Session, index uint64) error {
	response, at, err := history.Record(ctx, s.Audit, index, s.Trust.Current().LogKeys)
	if err != nil {
		return proofProblem(err)
	}
	pruned, missing := letGo(ctx, s, response.GetEntry())
	err = a.Show(response, func() {
		a.Out.Printf("%s\n", a.storyLine(response.GetEntry()))
		if pruned != nil {
			a.Out.Printf("  %s signed on %s that it goes, in record %d\n", clean.Visible(pruned.Operator), pruned.At.Local().Format("2 January 2006"), pruned.Index)
		}
		e := response.GetEntry()
		for _, line := range [][2]string{
			{"request", e.GetRecord().GetRequestId()}, {"operation", e.GetRecord().GetOperationId()}, {"tool", e.GetRecord().GetTool()},
			{"who", e.GetRecord().GetBody().GetPrincipal()}, {"session", e.GetRecord().GetBody().GetSession()},
			{"arguments", e.GetRecord().GetBody().GetArguments()}, {"action", e.GetRecord().GetBody().GetAction()},
			{"reason", e.GetRecord().GetBody().GetReason()}, {"decided by", e.GetRecord().GetBody().GetDecisionSource()},
		} {
			if line[1] != "" {
				a.Out.Printf("%s\n", a.Out.Wrapped(fmt.Sprintf("  %-11s %s", line[0], clean.Visible(line[1]))))
			}
		}
		details := e.GetRecord().GetBody().GetDetails()
		for _, name := range slices.Sorted(maps.Keys(details)) {
			a.Out.Printf("%s\n", a.Out.Wrapped(fmt.Sprintf("  %-11s %s", clean.Visible(name), clean.Visible(details[name]))))
		}
		cosigned := ""
		if w, err := s.Trust.Current().Witnesses.OpenWitnessed(response.GetReceipt().GetCheckpoint(), s.Trust.Current().LogKeys, a.Now()); err == nil {
			cosigned = ", cosigned by " + clean.Line(strings.Join(w.By, ", "), 200)
		}
		a.Out.Printf("%s\n", a.Out.Wrapped(fmt.Sprintf("  in the log of %s that %s signed%s", clean.Count(at.Size, "record"), clean.Visible(at.Origin), cosigned)))
		if evidence := history.Evidence(e); evidence != nil {
			a.showEvidence(s, e, evidence)
		}
	})
	return cmp.Or(err, missing)
}

// writeStatement writes an operation's signed statement so that ssh-keygen verifies it.
func (a *app) writeStatement(ctx context.Context, s *cli.Session, id, folder string) error {
	entries, err := history.Story(ctx, s.Audit, id)
	if err != nil {
		return err
	}
	for _, e := range history.Signed(entries) {
		evidence := history.Evidence(e)
		st, err := statement.Parse(evidence.GetStatement())
		if err != nil || history.Fits(e, st) != nil {
			continue // verify reports it
		}
		if folder, err = filepath.Abs(folder); err != nil {
			return fmt.Errorf("output folder: %w", err)
		}
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return fmt.Errorf("output folder: %w", err)
		}
		file := filepath.Join(folder, "statement.json")
		if err := cmp.Or(cli.WriteNew(file, evidence.GetStatement(), 0o600), cli.WriteNew(file+".sig", evidence.GetSignature(), 0o600)); err != nil {
			return err
		}
		verify := fmt.Sprintf("ssh-keygen -Y verify -f %s -I %s -n %s -s %s < %s", cli.ShellWord(filepath.Join(s.Config.TrustDir, trust.FileAllowedSigners)),
			cli.ShellWord(st.Operator), statement.Namespace, cli.ShellWord(file+".sig"), cli.ShellWord(file))
		return a.Show(map[string]string{"statement": file, "signature": file + ".sig", "operator": st.Operator, "verify": verify}, func() {
			a.Out.Printf("%s\n%s\n\nVerify it:\n  %s\n", file, file+".sig", verify)
		})
	}
	return cli.Failed("Find one: durward audit search --kind approved", "no signed statement is recorded under %s", clean.Visible(id))
}
