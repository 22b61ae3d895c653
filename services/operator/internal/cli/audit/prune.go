package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/statement"
)

func (a *app) auditPruneCommand() *cobra.Command {
	var older string
	var dry bool
	var how *cli.Asking
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove what old records said, with your signature; their place in the log stays",
		Long: `Removes the bodies of the records that were written longer ago than --older-than, by their writer's clock and
by the log's: arguments, summaries, reasons, who and which session, and the words that they are found by. What
happened when, with which tool and how it ended stays for ever, and so does the proof of it. Nothing brings a
body back but an earlier export.

It shows how many records of which kind and age go, and how many stay because of a legal hold ("durward audit
hold"), and asks for your key. Each pruned record names your statement, to which "durward audit verify" holds it.
Records of pruning and holds stay, and so does the newest record of each kind that a process needs when its own
state is lost.

With --dry-run it shows that and signs nothing.`,
		Example: "  durward audit prune --older-than 90d --dry-run\n  durward audit prune --older-than 90d",
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, _ []string) error {
			age, err := parseAge(older)
			if err != nil {
				return err
			}
			return a.prune(ctx, s, a.Now().Add(-age).Truncate(time.Second), dry, *how)
		}),
	}
	cmd.Flags().StringVar(&older, "older-than", "", "how old a record is that goes: 90d, 720h")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "show what would go, and sign nothing")
	how = cli.AskingFlags(cmd)
	return cmd
}

// parseAge reads days, or a duration.
func parseAge(text string) (time.Duration, error) {
	if age, err := cli.ParseDuration(text); err == nil && age > 0 {
		return age, nil
	}
	return 0, cli.Usage("Like 90d or 720h.", "--older-than %q is not how old a record is", clean.Visible(text))
}

// closeLog keeps the newest checkpoint, and lets other commands have the log while a person is asked.
func (a *app) closeLog(ctx context.Context, s *cli.Session) error {
	l, err := a.openLog(ctx, s)
	if err != nil {
		return err
	}
	return l.Close()
}

func (a *app) prune(ctx context.Context, s *cli.Session, before time.Time, dry bool, how cli.Asking) error {
	if err := a.closeLog(ctx, s); err != nil {
		return err
	}
	long, cancel := context.WithTimeout(ctx, exportPatience)
	defer cancel()
	found, err := s.Audit.Retention.SurveyPrune(long, &auditv1.SurveyPruneRequest{Before: timestamppb.New(before)})
	if err != nil {
		return err
	}
	if dry || len(found.GetKinds()) == 0 {
		return a.Show(named(found), func() { a.PrintLines(a.surveyed(found, before)) })
	}
	st := a.decision(ctx, s, statement.KindPrune)
	st.Prune = &statement.Prune{Size: found.GetSize(), Before: statement.FormatTime(before), Kinds: found.GetKinds(), Held: found.GetHeld(),
		Oldest: statement.FormatTime(found.GetOldest().AsTime()), Newest: statement.FormatTime(found.GetNewest().AsTime())}
	index, err := a.decide(long, s, "Sign, and remove what they said for ever?", how, approval.Document{Statement: st, About: a.surveyed(found, before)})
	if err != nil {
		return err
	}
	if err := awaitPruned(long, s, index); err != nil {
		return err
	}
	return a.Show(map[string]any{"record": index, "pruned": st.Prune.Sum(), "held": st.Prune.Held}, func() {
		a.Out.Printf("%s %s pruned; record %d has your statement\n", a.Out.Green("✓"), clean.Count(st.Prune.Sum(), "record was", "records were"), index)
	})
}

// kindName is a kind as people and programs are shown it.
func kindName(kind string) string { return strings.ToLower(strings.TrimPrefix(kind, "KIND_")) }

// named is what would go, by the names of kinds that programs are shown.
func named(found *auditv1.SurveyPruneResponse) *auditv1.SurveyPruneResponse {
	out := proto.CloneOf(found)
	out.Kinds = map[string]uint64{}
	for kind, n := range found.GetKinds() {
		out.Kinds[kindName(kind)] = n
	}
	return out
}

// surveyed says what would go.
func (a *app) surveyed(found *auditv1.SurveyPruneResponse, before time.Time) []approval.Line {
	day := func(at time.Time) string { return at.Local().Format("2 January 2006 15:04") }
	var sum uint64
	for _, n := range found.GetKinds() {
		sum += n
	}
	if sum == 0 {
		out := []approval.Line{{Text: "Nothing goes: no record that is old enough has a body that may."}}
		if found.GetHeld() > 0 {
			out = append(out, approval.Line{Text: clean.Count(found.GetHeld(), "is", "are") + " held: " + a.Typed() + " audit hold list"})
		}
		return out
	}
	out := []approval.Line{
		{Kind: approval.Heading, Text: fmt.Sprintf("%d of %d records lose what they said, and keep their place in the log", sum, found.GetSize())},
		{Text: fmt.Sprintf("  from before %s: the oldest of %s, the newest of %s", day(before), day(found.GetOldest().AsTime()), day(found.GetNewest().AsTime()))},
	}
	for _, kind := range slices.Sorted(maps.Keys(found.GetKinds())) {
		out = append(out, approval.Line{Text: fmt.Sprintf("  %8d %s", found.GetKinds()[kind], kindName(clean.Visible(kind)))})
	}
	return append(out, approval.Line{Text: fmt.Sprintf("  %8d more are held and stay", found.GetHeld())})
}

// decision begins a statement about what the log keeps.
func (a *app) decision(ctx context.Context, s *cli.Session, kind statement.Kind) *statement.Statement {
	signer := a.Signer(s)
	return signer.Retention(kind, s.Config.Audit.Identity, signedchange.Reach(ctx, s.Peers).Epoch)
}

// decide shows and signs a statement, and has audit act on it. It returns the record that holds it.
func (a *app) decide(ctx context.Context, s *cli.Session, question string, how cli.Asking, d approval.Document) (index uint64, err error) {
	signed, err := a.AskAndSign(ctx, s, question, how, d)
	if err != nil {
		return 0, err
	}
	err = signedchange.Unhurried(ctx, func() error {
		var answer *auditv1.DecideRetentionResponse
		if answer, err = s.Audit.Retention.DecideRetention(ctx, &auditv1.DecideRetentionRequest{Statement: signed[0]}); err == nil {
			index = answer.GetIndex()
		}
		return err
	})
	return index, err
}

// pruningLook is how often a command asks whether a pruning is done.
const pruningLook = 200 * time.Millisecond

// awaitPruned waits until nothing of what goes is left. It goes on without this program.
func awaitPruned(ctx context.Context, s *cli.Session, index uint64) error {
	for {
		list, err := s.Audit.Retention.ListRetention(ctx, &auditv1.ListRetentionRequest{})
		if err != nil {
			return err
		}
		for _, p := range list.GetPrunings() {
			if p.GetIndex() == index && p.GetDone() {
				return nil
			}
		}
		if !clock.Sleep(ctx, pruningLook) {
			return cli.Failed("", "audit goes on with what you signed in record %d by itself", index)
		}
	}
}

// signedBy parses what a hold's record holds, by the key of an operator at that time; who is "" for one that does not stand.
func (a *app) signedBy(s *cli.Session, evidence *callv1.HumanStatement, at time.Time) (st *statement.Statement, who string) {
	st, err := statement.VerifySignature(evidence, s.Trust.Current().AllowedSigners, at)
	if err != nil {
		st, _ = statement.Parse(evidence.GetStatement()) // nil where it is none
		return st, ""
	}
	return st, st.Operator
}
