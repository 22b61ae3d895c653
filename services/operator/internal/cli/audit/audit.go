package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/logproof"
)

// exportPatience is how long reading the whole log may take.
const exportPatience = 30 * time.Minute

func (a *app) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "What happened, and the proof of it",
		Long: `Searches, shows and proves the audit log. The log is a Merkle tree with signed checkpoints: every use of
these commands keeps the newest checkpoint, and a log that does not extend it is refused loudly.`,
	}
	cmd.AddCommand(a.auditSearchCommand(), a.auditShowCommand(), a.auditVerifyCommand(), a.auditTailCommand(), a.auditExportCommand(), a.auditStatsCommand(), a.auditReportCommand(),
		a.auditReceiptCommand(), a.auditPruneCommand(), a.auditHoldCommand(), a.auditCopyCommand())
	return cmd
}

// openLog opens the operator's view of the log, sends what waited and keeps the newest checkpoint.
func (a *app) openLog(ctx context.Context, s *cli.Session) (*history.Log, error) {
	l, err := a.OpenLog(ctx, s)
	if err != nil {
		return nil, proofProblem(err)
	}
	if err := l.Flush(ctx); err != nil {
		return nil, errors.Join(proofProblem(err), l.Close())
	}
	if _, err := l.Keep(ctx); err != nil {
		return nil, errors.Join(proofProblem(err), l.Close())
	}
	return l, nil
}

// proofProblem says what it means that the log does not prove itself.
func proofProblem(err error) error {
	const next = "Do not go on before you know why. Compare with a checkpoint or export that you kept elsewhere."
	switch {
	case err == nil:
		return nil
	case errors.As(err, new(*history.Altered)), errors.Is(err, logproof.ErrRollback), errors.Is(err, logproof.ErrFork):
		return cli.Failed(next, "THE LOG IS NOT WHAT IT WAS: %v", err)
	case errors.Is(err, logproof.ErrSignature), errors.Is(err, logproof.ErrOrigin), errors.Is(err, logproof.ErrFormat),
		errors.Is(err, logproof.ErrInclusion), errors.Is(err, logproof.ErrEntry):
		return cli.Failed(next, "the log does not prove itself: %v", err)
	default:
		return err
	}
}

// withLog connects, keeps the newest checkpoint and calls f.
func (a *app) withLog(ctx context.Context, f func(context.Context, *cli.Session, *history.Log) error) error {
	return a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		l, err := a.openLog(ctx, s)
		if err != nil {
			return err
		}
		return errors.Join(f(ctx, s, l), l.Close())
	})
}

// afterLog connects, keeps the newest checkpoint and calls f, while other commands may have the log.
func (a *app) afterLog(ctx context.Context, f func(context.Context, *cli.Session) error) error {
	return a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		if err := a.closeLog(ctx, s); err != nil {
			return err
		}
		return f(ctx, s)
	})
}

func kindWord(e *auditv1.Entry) string {
	return contract.WordOf(e.GetRecord().GetKind())
}

// summary is what a record says in a line: of a refusal, its reason.
func summary(e *auditv1.Entry) string {
	return cmp.Or(e.GetRecord().GetBody().GetSummary(), e.GetRecord().GetBody().GetReason())
}

func statusWord(e *auditv1.Entry) string {
	if e.GetRecord().GetStatus() == auditv1.Status_STATUS_UNSPECIFIED {
		return "-"
	}
	return contract.WordOf(e.GetRecord().GetStatus())
}

// statusColour makes denied, failed and destructive records stand out (AUD-3).
func (a *app) statusColour(e *auditv1.Entry) string {
	word := statusWord(e)
	switch e.GetRecord().GetStatus() {
	case auditv1.Status_STATUS_DENIED, auditv1.Status_STATUS_ERROR, auditv1.Status_STATUS_UNKNOWN, auditv1.Status_STATUS_TIMEOUT:
		return a.Out.Red(word)
	default:
		if e.GetRecord().GetTier() == optionsv1.Tier_TIER_DESTRUCTIVE {
			return a.Out.Yellow(word)
		}
		return word
	}
}

func (a *app) auditVerifyCommand() *cobra.Command {
	var offline, folder string
	var complete bool
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Prove the whole log",
		Long: `Reads every entry and proves the log: each leaf is rebuilt, each body is held to its commitment, the tree's
root must be the one that the signed checkpoint names, and the log must extend the checkpoints that this
program, the vault, the executor and egress kept before. Every record must come with its body, or name an
operator's statement that let it go ("durward audit prune"), and every human's signature must stand: a record of
which that is not so is listed, the rest of the log is proved all the same, and the exit code is 1.

With --complete it also holds what each process wrote of a change to what the others wrote: asked, approved,
granted, redeemed, intent, outcome. It names each effect that lacks what has to come before it, each intent
without an outcome, each grant that was never redeemed, each gap in a writer's sequence. What comes first is
the log's to say: a writer whose clock is wrong is named, and is no finding. What may still go on is counted as open.

With --offline it proves a file that "durward audit export" wrote, without any process running. It must extend the checkpoint
kept here; --trust names a folder with the log's public key in a file log_keys, and the operators' in allowed_signers, for an
export that is older, and for somebody who has no installation: it is proved by itself then.`,
		Example: "  durward audit verify\n  durward audit verify --complete\n  durward audit verify --offline log.jsonl --complete",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case folder != "" && offline == "":
				return cli.Usage("Name an exported file: --offline FILE", "--trust goes with --offline: a log that audit shows is proved by this installation's keys")
			case folder != "":
				return a.verifyForeign(offline, folder, complete)
			case offline != "":
				return a.verifyFile(cmd.Context(), offline, complete)
			}
			return a.withLog(cmd.Context(), func(ctx context.Context, s *cli.Session, l *history.Log) error {
				ctx, cancel := context.WithTimeout(ctx, exportPatience)
				defer cancel()
				seen := seenByOthers(ctx, s)
				// No answer to this one is no reason to stop: the whole log is held to the same checkpoints below.
				if altered, ok := errors.AsType[*history.Altered](s.LogExtends(ctx, seen)); ok {
					return proofProblem(altered)
				}
				stream, err := history.Fetch(ctx, s.Audit, 0, l.Held().Size)
				if err != nil {
					return err
				}
				report, err := l.Verify(ctx, stream, completing(l.Verifier(seen...), complete))
				if err != nil {
					return proofProblem(err)
				}
				return a.showReport(report, checkpointPath(s.Config))
			})
		},
	}
	cmd.Flags().StringVar(&offline, "offline", "", "prove this exported file")
	cmd.Flags().StringVar(&folder, "trust", "", "with --offline: folder with the log's public key (default: this installation's)")
	cli.CompleteFlag(cmd, "trust", cli.CompleteFolders)
	cmd.Flags().BoolVar(&complete, "complete", false, "hold what each process wrote of a change to what the others wrote")
	return cmd
}

// seenByOthers returns what the processes and this program have seen of the log; one that does not answer has seen nothing. What witnesses
// saw comes with the log's head.
func seenByOthers(ctx context.Context, s *cli.Session) []history.Seen {
	vault, executor, egress := s.Statuses(ctx)
	return s.Seen(ctx, vault, executor, egress, nil)
}

func checkpointPath(cfg installdir.Config) string { return filepath.Join(cfg.StateDir, "checkpoint") }

// completing makes a verifier look at the stories too, where that was asked for.
func completing(v *history.Verifier, complete bool) *history.Verifier {
	if complete {
		return v.Complete()
	}
	return v
}

func (a *app) showReport(r history.Report, kept string) error {
	found := problem(r)
	return errors.Join(a.Show(r, func() {
		mark := a.Out.Green("✓")
		if found != nil {
			mark = a.Out.Red("✗")
		}
		a.Out.Printf("%s %s, root %s, signed by %s, ", mark, clean.Count(r.Records, "record"), r.Root, clean.Visible(r.SignedBy))
		if r.KeptSize == 0 {
			a.Out.Printf("nothing kept before to compare with\n")
		} else {
			a.Out.Printf("consistent with the checkpoint kept at %s (%s)\n", kept, clean.Count(r.KeptSize, "record"))
		}
		if r.WitnessedSize > 0 {
			a.Out.Printf("  as %s cosigned it when it had %s\n", clean.Line(strings.Join(r.WitnessedBy, ", "), 400), clean.Count(r.WitnessedSize, "record"))
		}
		a.Out.Printf("  %s", clean.Count(r.Statements, "signed statement"))
		if r.Unjudged > 0 {
			a.Out.Printf(", %s", a.Out.Yellow(fmt.Sprintf("%d by signers that allowed_signers does not know", r.Unjudged)))
		}
		if r.PrunedBodies > 0 {
			a.Out.Printf(", %s pruned as operators signed", clean.Count(r.PrunedBodies, "body", "bodies"))
		}
		a.Out.Printf("\n")
		a.showFindings(r.Missing, r.MissingBodies)
		a.showFindings(r.Bad, r.BadStatements)
		if r.Complete != nil {
			a.showCompleted(r.Complete)
		}
	}), found)
}

func (a *app) showCompleted(c *history.Completed) {
	a.Out.Printf("  %s", clean.Count(c.Operations, "change"))
	if c.Open > 0 {
		a.Out.Printf(", %d of them open", c.Open)
	}
	a.Out.Printf("\n")
	for _, clock := range c.Clocks {
		a.Out.Printf("  %s\n", a.Out.Yellow(clockLine(clock)))
	}
	for _, f := range c.Findings {
		about := approval.Place(f.Writer)
		if f.Operation != "" {
			about = f.Operation
		}
		a.Out.Printf("%s record %d of %s: %s: %s\n", a.Out.Red("✗"), f.Index, clean.Visible(about), f.Kind, clean.Visible(f.Text))
	}
	if more := c.Count - len(c.Findings); more > 0 {
		a.Out.Printf("  and %d more\n", more)
	}
}

func clockLine(c history.Clock) string {
	line := fmt.Sprintf("the clock of %s is %s ahead of the log's", approval.Place(c.Writer), c.Ahead)
	if behind, is := strings.CutPrefix(c.Ahead, "-"); is {
		line = fmt.Sprintf("the clock of %s is %s behind the log's", approval.Place(c.Writer), behind)
	}
	if c.Steps > 0 {
		line += fmt.Sprintf("; it was set %s", clean.Count(c.Steps, "time"))
	}
	return line
}

func (a *app) showFindings(listed []history.Finding, all int) {
	for _, f := range listed {
		a.Out.Printf("%s record %d of %s: %s\n", a.Out.Red("✗"), f.Index, approval.Place(f.Writer), clean.Visible(f.Problem))
	}
	if more := all - len(listed); more > 0 {
		a.Out.Printf("  and %d more\n", more)
	}
}

// problem is the error of a log whose tree is whole, and in which records lack their bodies or claim what no human signed.
func problem(r history.Report) error {
	switch {
	case r.MissingBodies > 0 && r.BadStatements > 0:
		return cli.Failed("Compare with an earlier export; look at one: durward audit show INDEX",
			"%s, and %s a human's signature that does not stand", missingBodies(r), clean.Count(r.BadStatements, "record claims", "records claim"))
	case r.MissingBodies > 0:
		return cli.Failed("Whoever has the log's files or answers for audit took them away. An earlier export still has them.", "%s", missingBodies(r))
	case r.BadStatements > 0:
		return cli.Failed("Whoever wrote these records is not to be trusted. Look at one: durward audit show INDEX",
			"the log is whole, and %d of its records claim a human's signature that does not stand", r.BadStatements)
	case r.Complete != nil && r.Complete.Count > 0:
		return cli.Failed("Look at one: durward audit show OPERATION_ID", "the log is whole, and what the processes wrote does not fit together: %s",
			clean.Count(r.Complete.Count, "finding"))
	}
	return nil
}

func missingBodies(r history.Report) string {
	return fmt.Sprintf("the order of the records is proved, and %d of them lack their body: what they said is gone or withheld", r.MissingBodies)
}

func (a *app) auditTailCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "tail",
		Short:   "Show records as they are written",
		Example: "  durward audit tail\n  durward audit tail --json",
		RunE:    a.Connected(func(ctx context.Context, s *cli.Session, _ []string) error { return a.tail(ctx, s, 10, nil) }),
	}
}

// tail shows some of the records that are there and those that come, of those that match q; nil: of all.
func (a *app) tail(ctx context.Context, s *cli.Session, before uint64, q *auditv1.SearchRecordsRequest) error {
	l, err := a.openLog(ctx, s)
	if err != nil {
		return err
	}
	size := l.Held().Size
	// A tail lasts: other commands need the log meanwhile.
	if err := l.Close(); err != nil {
		return err
	}
	return a.follow(ctx, s, size-min(size, before), q)
}

// follow shows the records from an index on, and those that come.
func (a *app) follow(ctx context.Context, s *cli.Session, next uint64, q *auditv1.SearchRecordsRequest) error {
	ended := cli.Unreachable("Start it again.", "audit ended the stream")
	return cli.Follow(ctx, a.Now, ended, func(bool) (grpc.ServerStreamingClient[auditv1.TailRecordsResponse], error) {
		return s.Audit.TailRecords(ctx, &auditv1.TailRecordsRequest{FromIndex: next, Filter: q})
	}, func(response *auditv1.TailRecordsResponse) error {
		if err := logproof.VerifyEntry(response.GetEntry()); err != nil {
			return proofProblem(fmt.Errorf("%w: %w", logproof.ErrEntry, err))
		}
		next = response.GetEntry().GetIndex() + 1
		return a.ShowLine(response.GetEntry(), func() { a.Out.Printf("%s\n", a.storyLine(response.GetEntry())) })
	})
}
