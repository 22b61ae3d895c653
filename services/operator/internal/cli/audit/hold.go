package audit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/statement"
)

func (a *app) auditHoldCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hold",
		Short: "Legal holds: records that no pruning reaches",
		Long: `A legal hold keeps records whole whatever "durward audit prune" is told: those of a request or an operation, or
those of a time. It begins and ends with an operator's signature, and both are records of the log.`,
	}
	cmd.AddCommand(a.holdAddCommand(), a.holdListCommand(), a.holdReleaseCommand())
	return cmd
}

func (a *app) holdAddCommand() *cobra.Command {
	var since, until, reason string
	var how *cli.Asking
	cmd := &cobra.Command{
		Use:   "add [REQUEST_ID|OPERATION_ID]...",
		Short: "Keep the records of requests and operations, or of a time",
		Long: `Keeps every record of these requests and operations, and with --since and --until every record of that time, by
its writer's clock or by the log's. What was pruned before stays gone: it says how much that is.`,
		Example: "  durward audit hold add r-mjvkgvr7lpgguo3f3awaxmx5p4 --reason 'case 7'\n" +
			"  durward audit hold add --since 2026-01-01 --until 2026-02-01 --reason 'audit of January'",
		Args: cobra.ArbitraryArgs,
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, args []string) error {
			hold, err := a.holdOf(args, since, until, reason)
			if err != nil {
				return err
			}
			return a.addHold(ctx, s, hold, *how)
		}),
	}
	cmd.Flags().StringVar(&since, "since", "", "a time (2026-01-31T12:00:00Z) or how long ago (24h, 7d)")
	cmd.Flags().StringVar(&until, "until", "", "the same")
	cmd.Flags().StringVar(&reason, "reason", "", "what it is for: the case's name")
	how = cli.AskingFlags(cmd)
	cmd.MarkFlagsRequiredTogether("since", "until")
	return cmd
}

func (a *app) holdOf(ids []string, since, until, reason string) (*statement.Hold, error) {
	for _, id := range ids {
		if !approval.IsOperationID(id) && !strings.HasPrefix(id, "r-") {
			return nil, cli.Usage("Find one: durward audit search", "%q is neither a request id (r-…) nor an operation id (32 hex digits)", clean.Visible(id))
		}
	}
	if reason == "" {
		return nil, cli.Usage("Like --reason 'case 7'.", "--reason says what the hold is for, and is missing")
	}
	hold := &statement.Hold{IDs: ids, Reason: reason}
	from, err := a.ParseTime("since", since)
	if err != nil {
		return nil, err
	}
	to, err := a.ParseTime("until", until)
	if err != nil {
		return nil, err
	}
	if from != nil {
		hold.Since, hold.Until = statement.FormatTime(from.AsTime()), statement.FormatTime(to.AsTime().Add(time.Second-1)) // whole seconds, and no less
	}
	if from == nil && len(ids) == 0 {
		return nil, cli.Usage("Name requests or operations, or a time with --since and --until.", "nothing is named that is to be kept")
	}
	return hold, nil
}

func (a *app) addHold(ctx context.Context, s *cli.Session, hold *statement.Hold, how cli.Asking) error {
	if err := a.closeLog(ctx, s); err != nil {
		return err
	}
	about := []approval.Line{{Kind: approval.Heading, Text: "A legal hold, for: " + clean.Visible(hold.Reason)}}
	named := hold.IDs
	hold.IDs = nil
	for _, id := range named {
		entries, err := history.Story(ctx, s.Audit, id)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return cli.Failed("Find one: durward audit search", "nothing is recorded under %s", clean.Visible(id))
		}
		gone := 0
		ids := []string{id}
		for _, e := range entries {
			if logproof.BodyMissing(e) {
				gone++
			}
			// A request leads to its operations.
			ids = append(ids, e.GetRecord().GetOperationId())
		}
		says := fmt.Sprintf("  %s: %s", clean.Visible(id), clean.Count(len(entries), "record"))
		if gone > 0 {
			says += fmt.Sprintf(", %d of them without a body already", gone)
		}
		about = append(about, approval.Line{Text: says})
		for _, one := range ids {
			if one != "" && !slices.Contains(hold.IDs, one) {
				hold.IDs = append(hold.IDs, one)
			}
		}
	}
	if hold.Since != "" {
		about = append(about, approval.Line{Text: fmt.Sprintf("  everything that was written from %s to %s", hold.Since, hold.Until)})
	}
	st := a.decision(ctx, s, statement.KindHold)
	st.Hold = hold
	if _, err := st.Marshal(); err != nil {
		return cli.Usage("", "it cannot be signed: %v", err)
	}
	index, err := a.decide(ctx, s, "Sign the hold?", how, approval.Document{Statement: st, About: about})
	if err != nil {
		return err
	}
	return a.Show(map[string]any{"record": index}, func() {
		a.Out.Printf("%s held; release it with: %s audit hold release %d\n", a.Out.Green("✓"), a.Typed(), index)
	})
}

func (a *app) holdListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the holds in force",
		Example: "  durward audit hold list",
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, _ []string) error {
			list, err := s.Audit.Retention.ListRetention(ctx, &auditv1.ListRetentionRequest{})
			if err != nil {
				return err
			}
			return a.Show(list, func() {
				if len(list.GetHolds()) == 0 {
					a.Out.Printf("Nothing is held.\n")
					return
				}
				a.Out.Table([]string{"RECORD", "SINCE", "BY", "KEEPS", "REASON"}, output.Each(list.GetHolds(), func(h *auditv1.Hold) []string {
					st, who := a.signedBy(s, h.GetStatement(), h.GetSince().AsTime())
					who = cmp.Or(who, a.Out.Red("NO OPERATOR SIGNED IT"))
					keeps, reason := "", ""
					if st != nil && st.Hold != nil {
						keeps, reason = kept(st.Hold), clean.Line(st.Hold.Reason, 80)
					}
					return []string{strconv.FormatUint(h.GetIndex(), 10), h.GetSince().AsTime().Local().Format(time.DateTime), who, keeps, reason}
				}))
			})
		}),
	}
}

// kept is what a hold keeps, for a table.
func kept(h *statement.Hold) string {
	var parts []string
	if len(h.IDs) > 0 {
		text := clean.Line(h.IDs[0], 64)
		if more := len(h.IDs) - 1; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		parts = append(parts, text)
	}
	if h.Since != "" {
		parts = append(parts, h.Since+" to "+h.Until)
	}
	return strings.Join(parts, "; ")
}

func (a *app) holdReleaseCommand() *cobra.Command {
	var how *cli.Asking
	cmd := &cobra.Command{
		Use:     "release RECORD",
		Short:   "End a hold, by the index of its record",
		Example: "  durward audit hold release 4711",
		Args:    cobra.ExactArgs(1),
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, args []string) error {
			index, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil {
				return cli.Usage("See: durward audit hold list", "%q is no record's index", clean.Visible(args[0]))
			}
			return a.releaseHold(ctx, s, index, *how)
		}),
	}
	how = cli.AskingFlags(cmd)
	return cmd
}

func (a *app) releaseHold(ctx context.Context, s *cli.Session, index uint64, how cli.Asking) error {
	list, err := s.Audit.Retention.ListRetention(ctx, &auditv1.ListRetentionRequest{})
	if err != nil {
		return err
	}
	at := slices.IndexFunc(list.GetHolds(), func(h *auditv1.Hold) bool { return h.GetIndex() == index })
	if at < 0 {
		return cli.Usage("See: durward audit hold list", "record %d is no hold in force", index)
	}
	evidence := list.GetHolds()[at].GetStatement()
	held, who := a.signedBy(s, evidence, list.GetHolds()[at].GetSince().AsTime())
	if held == nil || held.Hold == nil {
		return cli.Failed("Prove the log: durward audit verify", "record %d does not hold a statement about a hold", index)
	}
	st := a.decision(ctx, s, statement.KindRelease)
	st.Releases = canonical.DigestText(evidence.GetStatement())
	about := []approval.Line{
		{Kind: approval.Heading, Text: fmt.Sprintf("The hold of record %d, signed by %s, for: %s", index, clean.Visible(who), clean.Visible(held.Hold.Reason))},
		{Text: "  it keeps " + kept(held.Hold)},
	}
	done, err := a.decide(ctx, s, "Sign, and end the hold?", how, approval.Document{Statement: st, About: about})
	if err != nil {
		return err
	}
	return a.Show(map[string]any{"record": done}, func() { a.Out.Printf("%s released\n", a.Out.Green("✓")) })
}
