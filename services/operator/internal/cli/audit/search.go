package audit

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/identity"
)

func (a *app) auditSearchCommand() *cobra.Command {
	var f filter
	var follow bool
	cmd := &cobra.Command{
		Use:   "search",
		Short: "Find records, newest first",
		Long: `Finds records by what they are about, and by words that their arguments, their summary or their reason hold:
--text 'vllm out of memory' finds the records with all four words, in any order. Denied, failed and destructive
ones stand out. A page begins where --before says, which is how the page before it ends.

With --follow it shows what matches as it is written, and nothing that was there before.`,
		Example: `  durward audit search
  durward audit search --text 'out of memory' --since 24h
  durward audit search --status denied --follow
  durward audit search --tool start_service --since 24h
  durward audit search --kind refused --kind denied
  durward audit search --operation 0123456789abcdef0123456789abcdef --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, err := a.fillSearch(&f)
			if err != nil {
				return err
			}
			search := func(ctx context.Context, s *cli.Session) error {
				if q.Writer, err = writer(f.Writer, s.Config.Audit.Identity); err != nil {
					return err
				}
				if follow {
					return a.tail(ctx, s, 0, q)
				}
				found, err := s.Audit.SearchRecords(ctx, q)
				if err != nil {
					return err
				}
				return a.showSearch(found)
			}
			if follow {
				return a.Run(cmd.Context(), search)
			}
			return a.afterLog(cmd.Context(), search)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.RequestId, "request", "", "request id, r-…")
	flags.StringVar(&f.OperationId, "operation", "", "operation id")
	flags.StringVar(&f.Session, "session", "", "session, s-…")
	flags.StringVar(&f.Principal, "principal", "", "client, or operator:NAME")
	flags.StringVar(&f.Tool, "tool", "", "tool")
	flags.StringVar(&f.tier, "tier", "", "READ, WRITE or DESTRUCTIVE")
	flags.StringSliceVar(&f.kinds, "kind", nil, "what happened: asked, approved, denied, intent, outcome, refused, …")
	flags.StringSliceVar(&f.statuses, "status", nil, "ok, pending, denied, error, timeout, unknown")
	flags.StringVar(&f.since, "since", "", "a time (2026-01-31T12:00:00Z) or how long ago (24h, 7d)")
	flags.StringVar(&f.until, "until", "", "the same")
	flags.StringVar(&f.Writer, "writer", "", "who wrote it: a role, as ROLE/INSTANCE, or a SPIFFE ID")
	flags.StringVar(&f.channel, "channel", "", "how the client came: cli, desktop-ui, api, messaging")
	flags.StringVar(&f.Text, "text", "", "words of the arguments, the summary or the reason")
	flags.Uint64Var(&f.Before, "before", 0, "records below this index: the next page")
	flags.BoolVar(&follow, "follow", false, "show what matches as it is written")
	flags.Uint32Var(&f.Limit, "limit", 50, "at most so many, up to 1000")
	for _, other := range []string{"before", "limit", "until"} {
		cmd.MarkFlagsMutuallyExclusive("follow", other)
	}
	return cmd
}

// filter is what the flags of a search say.
type filter struct {
	auditv1.SearchRecordsRequest
	tier, channel, since, until string
	kinds, statuses             []string
}

func (a *app) fillSearch(f *filter) (q *auditv1.SearchRecordsRequest, err error) {
	q = &f.SearchRecordsRequest
	if err := cli.CheckLimit(f.Limit); err != nil {
		return nil, err
	}
	if f.tier != "" {
		if q.Tier, err = enum[optionsv1.Tier](optionsv1.Tier_name, "TIER_", f.tier, "a tier"); err != nil {
			return nil, err
		}
	}
	if f.channel != "" {
		if q.Channel, err = enum[callv1.Channel](callv1.Channel_name, "CHANNEL_", f.channel, "a channel"); err != nil {
			return nil, err
		}
	}
	for _, name := range f.kinds {
		kind, err := enum[auditv1.Kind](auditv1.Kind_name, "KIND_", name, "a kind of record")
		if err != nil {
			return nil, err
		}
		q.Kinds = append(q.Kinds, kind)
	}
	for _, name := range f.statuses {
		status, err := enum[auditv1.Status](auditv1.Status_name, "STATUS_", name, "a status")
		if err != nil {
			return nil, err
		}
		q.Statuses = append(q.Statuses, status)
	}
	if q.Since, err = a.ParseTime("since", f.since); err != nil {
		return nil, err
	}
	q.Until, err = a.ParseTime("until", f.until)
	return q, err
}

// enum reads the word for a value of an enumeration, as people write it.
func enum[E ~int32](names map[int32]string, prefix, word, what string) (E, error) {
	typed := strings.ReplaceAll(word, "-", "_")
	for value, name := range names {
		if value != 0 && name == prefix+strings.ToUpper(typed) {
			return E(value), nil
		}
	}
	words := cli.EnumWords(names, prefix)
	return 0, cli.Usage(cli.DidYouMean(config.Suggest(typed, words), "Use "+strings.Join(words, ", ")+"."), "%q is not %s", clean.Visible(word), what)
}

// writer is what audit takes for one: a role, or an identity in the log's own trust domain where a table's cell, executor/local, was typed.
func writer(name, audit string) (string, error) {
	role, instance, one := strings.Cut(name, "/")
	known, err := identity.ParseRole(role)
	if name == "" || err == nil && !one {
		return name, nil
	}
	id, log := identity.ID{}, identity.ID{}
	if err != nil {
		id, err = identity.Parse(name)
	} else if log, err = identity.Parse(audit); err == nil {
		id, err = identity.New(log.TrustDomain(), known, instance)
	}
	if err != nil {
		return "", cli.Usage("Use "+strings.Join(cli.Roles(), ", ")+", or one of them as ROLE/INSTANCE.", "%q writes no records", clean.Visible(name))
	}
	return id.String(), nil
}

func (a *app) showSearch(found *auditv1.SearchRecordsResponse) error {
	return a.Show(found, func() {
		if len(found.GetEntries()) == 0 {
			a.Out.Printf("No record matches.\n")
			return
		}
		a.Out.Table([]string{"INDEX", "TIME", "WRITER", "KIND", "STATUS", "TOOL", "WHO", "SUMMARY"}, output.Each(found.GetEntries(), func(e *auditv1.Entry) []string {
			return []string{strconv.FormatUint(e.GetIndex(), 10), e.GetRecord().GetTime().AsTime().Local().Format(time.DateTime),
				approval.Place(e.GetWriter()), kindWord(e), a.statusColour(e), clean.Line(e.GetRecord().GetTool(), 64),
				clean.Line(e.GetRecord().GetBody().GetPrincipal(), 64), clean.Line(summary(e), 80)}
		}))
		if next := found.GetNextBefore(); next > 0 {
			a.Out.Printf("%s\n", a.Out.Dim(fmt.Sprintf("Older ones: the same search with --before %d", next)))
		}
	})
}
