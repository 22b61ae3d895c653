package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/logproof"
)

// statistics is what stats shows.
type statistics struct {
	*history.Tally
	Since     time.Time `json:"since"`
	WaitP50   string    `json:"approval_p50"`
	WaitP95   string    `json:"approval_p95"`
	Size      uint64    `json:"log_records"`
	Bytes     uint64    `json:"log_bytes"`
	DiskFree  uint64    `json:"disk_free_bytes"`
	PerDay    uint64    `json:"records_per_day"`
	DaysLeft  uint64    `json:"days_left,omitempty"`
	DaysKnown bool      `json:"-"`
}

func (a *app) auditStatsCommand() *cobra.Command {
	var since string
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count calls, decisions and denials, and say how long the disk lasts",
		Long: `Reads the records since a time and counts calls by tool and by client, decisions, and how long approvals took.
The log's growth in the last week, or since it began, says how many days its disk lasts.

Each record is held against its own leaf. That audit made none up and left none out is for "durward audit verify"
to prove: an audit that somebody took over could miscount here until then.`,
		Example: "  durward audit stats\n  durward audit stats --since 24h --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStatistics(cmd.Context(), since, func(s statistics) error { return a.Show(s, func() { a.showStatistics(s) }) })
		},
	}
	cmd.Flags().StringVar(&since, "since", "168h", "a time (2026-01-31T12:00:00Z) or how long ago (24h)")
	return cmd
}

func (a *app) auditReportCommand() *cobra.Command {
	var since string
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Write what a reviewer should read, as Markdown",
		Long: `Writes to standard output, as Markdown, what "durward audit stats" counts and the newest records that stand
out since a time: what was denied, what failed, what takes something away.

Each record is held against its own leaf. That audit made none up and left none out is for "durward audit verify"
to prove: an audit that somebody took over could miscount here until then.`,
		Example: "  durward audit report --since 168h > week.md",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStatistics(cmd.Context(), since, func(s statistics) error {
				return a.Show(s, func() { a.Out.Printf("%s", markdown(s, a.Now())) })
			})
		},
	}
	cmd.Flags().StringVar(&since, "since", "168h", "a time (2026-01-31T12:00:00Z) or how long ago (24h)")
	return cmd
}

// withStatistics counts what was recorded since a time.
func (a *app) withStatistics(ctx context.Context, since string, f func(statistics) error) error {
	from, err := a.parseTime("since", since)
	if err != nil {
		return err
	}
	return a.withLog(ctx, func(ctx context.Context, s *cli.Session, _ *history.Log) error {
		ctx, cancel := context.WithTimeout(ctx, exportPatience)
		defer cancel()
		status, err := s.Audit.GetStatus(ctx, &auditv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		stream, err := s.Audit.TailRecords(ctx, &auditv1.TailRecordsRequest{NoFollow: true, Filter: &auditv1.SearchRecordsRequest{Since: from}})
		if err != nil {
			return err
		}
		out := statistics{Tally: history.NewTally(), Since: from.AsTime(), Size: status.GetSize(), Bytes: status.GetDatabaseBytes(), DiskFree: status.GetDiskFreeBytes()}
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if err := logproof.VerifyEntry(m.GetEntry()); err != nil {
				return proofProblem(fmt.Errorf("%w: %w", logproof.ErrEntry, err))
			}
			if out.Records == 0 { // what was asked for may begin before the log does
				out.Since = m.GetEntry().GetLoggedAt().AsTime()
			}
			out.Add(m.GetEntry())
		}
		out.PerDay = status.GetRecordsPerDay()
		out.DaysLeft, out.DaysKnown = history.DaysLeft(status)
		out.WaitP50, out.WaitP95 = out.Wait(50).Round(time.Second).String(), out.Wait(95).Round(time.Second).String()
		return f(out)
	})
}

func (s *statistics) disk() string {
	text := fmt.Sprintf("%d records, %d MiB, %d MiB free", s.Size, s.Bytes>>20, s.DiskFree>>20)
	if s.DaysKnown {
		text += fmt.Sprintf(": %d days at %d records a day", s.DaysLeft, s.PerDay)
	}
	return text
}

func (a *app) showStatistics(s statistics) {
	a.Out.Printf("%s\n", s.disk())
	a.Out.Printf("%s counted; %s\n", cli.Count(s.Records, "record"), s.decisions())
	for _, group := range []struct {
		name   string
		counts map[string]*history.Count
	}{{"TOOL", s.Tools}, {"CLIENT", s.Principals}} {
		var rows [][]string
		for _, name := range history.Busiest(group.counts) {
			c := group.counts[name]
			denied, failed := strconv.Itoa(c.Denied), strconv.Itoa(c.Failed)
			if c.Denied > 0 {
				denied = a.Out.Red(denied)
			}
			if c.Failed > 0 {
				failed = a.Out.Red(failed)
			}
			rows = append(rows, []string{name, strconv.Itoa(c.All()), strconv.Itoa(c.OK), denied, failed})
		}
		if len(rows) > 0 {
			a.Out.Table([]string{group.name, "CALLS", "OK", "DENIED", "FAILED"}, rows)
		}
	}
}

func (s *statistics) decisions() string {
	text := fmt.Sprintf("%d approved, %d denied, %d expired, %d withdrawn, %d refused before that",
		s.Decisions["approved"], s.Decisions["denied"], s.Decisions["expired"], s.Decisions["withdrawn"], s.Refused)
	if len(s.Waits) > 0 {
		text += fmt.Sprintf("; approvals took %s (p50), %s (p95)", s.WaitP50, s.WaitP95)
	}
	return text
}

// markdown is the report. Whatever was recorded is text in it and nothing else.
func markdown(s statistics, now time.Time) string {
	var out strings.Builder
	fmt.Fprintf(&out, "# Audit report\n\nWritten %s, of what was recorded since %s.\n\n- %s\n- %s\n", now.UTC().Format(time.RFC3339), s.Since.UTC().Format(time.RFC3339), s.disk(), s.decisions())
	for _, group := range []struct {
		name   string
		counts map[string]*history.Count
	}{{"Tool", s.Tools}, {"Client", s.Principals}} {
		fmt.Fprintf(&out, "\n| %s | calls | ok | denied | failed |\n|---|---|---|---|---|\n", group.name)
		for _, name := range history.Busiest(group.counts) {
			c := group.counts[name]
			fmt.Fprintf(&out, "| %s | %d | %d | %d | %d |\n", plain(name), c.All(), c.OK, c.Denied, c.Failed)
		}
	}
	out.WriteString("\n## What stands out\n\n")
	if len(s.Notable) == 0 {
		out.WriteString("Nothing.\n")
		return out.String()
	}
	out.WriteString("| record | time | what | kind | tool | client | summary |\n|---|---|---|---|---|---|---|\n")
	for _, e := range s.Notable {
		r := e.GetRecord()
		what := history.StandsOut(e)
		if logproof.BodyMissing(e) && e.PrunedBy == nil {
			what = "its body is missing"
		}
		summary := r.GetBody().GetSummary()
		if summary == "" {
			summary = r.GetBody().GetReason()
		}
		fmt.Fprintf(&out, "| %d | %s | **%s** | %s | %s | %s | %s |\n", e.GetIndex(), e.GetLoggedAt().AsTime().UTC().Format(time.RFC3339), what,
			kindWord(e), plain(r.GetTool()), plain(r.GetBody().GetPrincipal()), plain(summary))
	}
	return out.String()
}

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
