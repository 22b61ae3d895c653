package audit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/logproof"
)

// statistics is what stats shows.
type statistics struct {
	Records    uint64            `json:"records"`
	Tools      map[string]*calls `json:"tools"`
	Clients    map[string]*calls `json:"clients"`
	MoreTools  uint64            `json:"more_tools,omitempty"`
	MoreClient uint64            `json:"more_clients,omitempty"`
	Decisions  map[string]uint64 `json:"decisions"`
	Refused    uint64            `json:"refused"`
	Since      time.Time         `json:"since"`
	WaitP50    string            `json:"approval_p50"`
	WaitP95    string            `json:"approval_p95"`
	Size       uint64            `json:"log_records"`
	Bytes      uint64            `json:"log_bytes"`
	DiskFree   uint64            `json:"disk_free_bytes"`
	PerDay     uint64            `json:"records_per_day"`
	// DaysLeft is nil where it cannot be told.
	DaysLeft *uint64 `json:"days_left,omitempty"`
	// Notable are the newest records that stand out, at most maxNotable, oldest first; nil where they were not asked for.
	Notable   []notable `json:"notable,omitzero"`
	approvals uint64
}

// notable is a record that stands out, and what of it does.
type notable struct {
	Index    uint64    `json:"index"`
	LoggedAt time.Time `json:"logged_at"`
	What     string    `json:"what"`
	Kind     string    `json:"kind"`
	Tool     string    `json:"tool"`
	Client   string    `json:"client"`
	Summary  string    `json:"summary"`
}

func notableOf(e *auditv1.Entry) notable {
	r := e.GetRecord()
	return notable{
		e.GetIndex(), e.GetLoggedAt().AsTime(), history.StandsOut(e), kindWord(e), clean.Line(r.GetTool(), 200), clean.Line(r.GetBody().GetPrincipal(), 200), clean.Line(summary(e), 200),
	}
}

// calls is how many ended in which way.
type calls struct {
	OK     uint64 `json:"ok"`
	Denied uint64 `json:"denied"`
	Failed uint64 `json:"failed"`
}

func (c *calls) all() uint64 { return c.OK + c.Denied + c.Failed }

const maxNotable = 100

func (a *app) auditStatsCommand() *cobra.Command {
	var since string
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count calls, decisions and denials, and say how long the disk lasts",
		Long: `Audit counts, of the records since a time, calls by tool and by client, decisions, and how long approvals took.
The log's growth in the last week, or since it began, says how many days its disk lasts.

Nothing here is proved: the counts are audit's word, and an audit that somebody took over could miscount.
"durward audit verify" proves the log, and "durward audit export --format csv" what to count by yourself.`,
		Example: "  durward audit stats\n  durward audit stats --since 24h --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStatistics(cmd.Context(), since, false, func(s statistics) error { return a.Show(s, func() { a.showStatistics(s) }) })
		},
	}
	cmd.Flags().StringVar(&since, "since", "7d", "a time (2026-01-31T12:00:00Z) or how long ago (24h, 7d)")
	return cmd
}

func (a *app) auditReportCommand() *cobra.Command {
	var since string
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Write what a reviewer should read, as Markdown",
		Long: `Writes to standard output, as Markdown, what "durward audit stats" counts and the newest hundred records that
stand out since a time: what was denied, what failed, what takes something away, what ran in dangerous mode.
With --json they are in "notable".

Each of those records is held against its own leaf. Nothing else is proved: the counts are audit's word, and an
audit that somebody took over could miscount, and leave records out. "durward audit verify" proves the log, and
"durward audit export --format csv" what to count by yourself.`,
		Example: "  durward audit report --since 7d > week.md",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStatistics(cmd.Context(), since, true, func(s statistics) error {
				return a.Show(s, func() { a.Out.Printf("%s", markdown(s, a.Now())) })
			})
		},
	}
	cmd.Flags().StringVar(&since, "since", "7d", "a time (2026-01-31T12:00:00Z) or how long ago (24h, 7d)")
	return cmd
}

// withStatistics asks for what was counted since a time, and for the records that stand out if they are wanted.
func (a *app) withStatistics(ctx context.Context, since string, notable bool, f func(statistics) error) error {
	from, err := a.ParseTime("since", since)
	if err != nil {
		return err
	}
	return a.afterLog(ctx, func(ctx context.Context, s *cli.Session) error {
		ctx, cancel := context.WithTimeout(ctx, exportPatience)
		defer cancel()
		status, err := s.Audit.GetStatus(ctx, &auditv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		counted, err := s.Audit.CountRecords(ctx, &auditv1.CountRecordsRequest{Since: from})
		if err != nil {
			return err
		}
		out := counts(status, counted)
		if counted.GetRecords() == 0 {
			out.Since = from.AsTime()
		}
		if notable {
			found, err := standOut(ctx, s.Audit, from)
			if err != nil {
				return err
			}
			out.Notable = output.Each(found, notableOf)
		}
		return f(out)
	})
}

// counts is what audit counted.
func counts(status *auditv1.GetStatusResponse, counted *auditv1.CountRecordsResponse) statistics {
	out := statistics{
		Records: counted.GetRecords(), Tools: byName(counted.GetTools()), Clients: byName(counted.GetClients()), Decisions: map[string]uint64{},
		MoreTools: counted.GetMoreTools(), MoreClient: counted.GetMoreClients(),
		// What was asked for may begin before the log does.
		Since: counted.GetFirst().AsTime(), approvals: counted.GetApprovals(),
		Size: status.GetSize(), Bytes: status.GetDatabaseBytes(), DiskFree: status.GetDiskFreeBytes(), PerDay: status.GetRecordsPerDay(),
		WaitP50: counted.GetApprovalP50().AsDuration().Round(time.Second).String(), WaitP95: counted.GetApprovalP95().AsDuration().Round(time.Second).String(),
	}
	if days, known := history.DaysLeft(status); known {
		out.DaysLeft = &days
	}
	for name, n := range counted.GetKinds() {
		switch kind := auditv1.Kind(auditv1.Kind_value[name]); kind {
		case auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_DENIED, auditv1.Kind_KIND_EXPIRED, auditv1.Kind_KIND_WITHDRAWN:
			out.Decisions[kindName(name)] = n
		case auditv1.Kind_KIND_REFUSED, auditv1.Kind_KIND_AUTHENTICATION_FAILED, auditv1.Kind_KIND_SINK_REFUSED:
			out.Refused += n
		default:
		}
	}
	return out
}

func byName(list []*auditv1.CallCount) map[string]*calls {
	out := map[string]*calls{}
	for _, c := range list {
		name := cmp.Or(clean.Line(c.GetName(), 128), "-")
		if out[name] == nil {
			out[name] = &calls{}
		}
		out[name].OK += c.GetOk()
		out[name].Denied += c.GetDenied()
		out[name].Failed += c.GetFailed()
	}
	return out
}

// busiest are the names of counts, those with the most calls first.
func busiest(counts map[string]*calls) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b].all(), counts[a].all()), cmp.Compare(a, b))
	})
}

// standOut finds the newest records since a time that stand out: by status, by tier, and among changes those of dangerous mode.
func standOut(ctx context.Context, audit auditv1.HistoryServiceClient, since *timestamppb.Timestamp) (found []*auditv1.Entry, err error) {
	for _, q := range []*auditv1.SearchRecordsRequest{
		{Statuses: []auditv1.Status{auditv1.Status_STATUS_DENIED, auditv1.Status_STATUS_ERROR, auditv1.Status_STATUS_TIMEOUT, auditv1.Status_STATUS_UNKNOWN}},
		{Tier: optionsv1.Tier_TIER_DESTRUCTIVE},
		{Kinds: []auditv1.Kind{auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_RECOVERED}, Limit: 1000},
	} {
		q.Since, q.Limit = since, max(q.GetLimit(), maxNotable)
		if err := history.Pages(ctx, audit, q, func(page []*auditv1.Entry, below uint64) (bool, error) {
			for _, e := range page {
				if err := logproof.VerifyEntry(e); err != nil {
					return false, proofProblem(fmt.Errorf("%w: %w", logproof.ErrEntry, err))
				}
			}
			found = history.Notable(append(found, page...), maxNotable)
			// What lies below the oldest of a full list is not among the newest.
			return len(found) < maxNotable || below > found[0].GetIndex(), nil
		}); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (s *statistics) disk() string {
	text := fmt.Sprintf("%s, %d MiB", clean.Count(s.Size, "record"), s.Bytes>>20)
	if s.DiskFree > 0 { // else the disk is a database server's
		text += fmt.Sprintf(", %d MiB free", s.DiskFree>>20)
	}
	if s.DaysLeft != nil {
		text += fmt.Sprintf(": %s at %s a day", clean.Count(*s.DaysLeft, "day"), clean.Count(s.PerDay, "record"))
	}
	return text
}

// counted are the calls by what they are counted by.
type counted struct {
	name   string
	counts map[string]*calls
	more   uint64
}

func (s *statistics) groups() []counted {
	return []counted{{"Tool", s.Tools, s.MoreTools}, {"Client", s.Clients, s.MoreClient}}
}

func (a *app) showStatistics(s statistics) {
	a.Out.Printf("%s\n", s.disk())
	a.Out.Printf("%s counted; %s\n", clean.Count(s.Records, "record"), s.decisions())
	for _, group := range s.groups() {
		var rows [][]string
		for _, name := range busiest(group.counts) {
			c := group.counts[name]
			denied, failed := number(c.Denied), number(c.Failed)
			if c.Denied > 0 {
				denied = a.Out.Red(denied)
			}
			if c.Failed > 0 {
				failed = a.Out.Red(failed)
			}
			rows = append(rows, []string{name, number(c.all()), number(c.OK), denied, failed})
		}
		if group.more > 0 {
			rows = append(rows, []string{fmt.Sprintf("and %d more", group.more), "", "", "", ""})
		}
		if len(rows) > 0 {
			a.Out.Table([]string{strings.ToUpper(group.name), "CALLS", "OK", "DENIED", "FAILED"}, rows)
		}
	}
}

func (s *statistics) decisions() string {
	text := fmt.Sprintf("%d approved, %d denied, %d expired, %d withdrawn, %d refused before that",
		s.Decisions["approved"], s.Decisions["denied"], s.Decisions["expired"], s.Decisions["withdrawn"], s.Refused)
	if s.approvals > 0 {
		text += fmt.Sprintf("; approvals took %s (p50), %s (p95)", s.WaitP50, s.WaitP95)
	}
	return text
}

// markdown is the report. Whatever was recorded is text in it and nothing else.
func markdown(s statistics, now time.Time) string {
	var out strings.Builder
	fmt.Fprintf(&out, "# Audit report\n\nWritten %s, of what was recorded since %s.\n\n- %s\n- %s\n", now.UTC().Format(time.RFC3339), s.Since.UTC().Format(time.RFC3339), s.disk(), s.decisions())
	for _, group := range s.groups() {
		fmt.Fprintf(&out, "\n| %s | calls | ok | denied | failed |\n|---|---|---|---|---|\n", group.name)
		for _, name := range busiest(group.counts) {
			c := group.counts[name]
			fmt.Fprintf(&out, "| %s | %d | %d | %d | %d |\n", plain(name), c.all(), c.OK, c.Denied, c.Failed)
		}
		if group.more > 0 {
			fmt.Fprintf(&out, "| and %d more | | | | |\n", group.more)
		}
	}
	out.WriteString("\n## What stands out\n\n")
	if len(s.Notable) == 0 {
		out.WriteString("Nothing.\n")
		return out.String()
	}
	out.WriteString("| record | time | what | kind | tool | client | summary |\n|---|---|---|---|---|---|---|\n")
	for _, n := range s.Notable {
		fmt.Fprintf(&out, "| %d | %s | **%s** | %s | %s | %s | %s |\n", n.Index, n.LoggedAt.UTC().Format(time.RFC3339), n.What, n.Kind, plain(n.Tool), plain(n.Client), plain(n.Summary))
	}
	return out.String()
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// plain is a text in a cell of a table, of which Markdown makes nothing but text.
func plain(text string) string {
	var out strings.Builder
	for _, r := range clean.Line(text, 200) {
		if strings.ContainsRune("\\`*_{}[]<>()#+-.!|~&:/@", r) {
			out.WriteByte('\\')
		}
		out.WriteRune(r)
	}
	return out.String()
}
