package egress

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/connections"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/destination"
)

func (a *app) logCommand() *cobra.Command {
	var f logFilter
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Who connected where, newest first",
		Long: `Shows the audit log's records of requests to other hosts: whose call it was, the name and the address that was dialled, how much
was sent and came back, and what became of it, by which rule. What was refused before anything was dialled has no address. What other
people's servers reach by themselves has their names and, when it has ended, the connection's bytes, of TLS too, which nobody counted
where egress ended before it; the same again is recorded once a minute, with the bytes of all.`,
		Example: `  durward egress log
  durward egress log --client cursor --since 24h -o json`,
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, _ []string) error {
			rows, err := a.connected(ctx, s, f)
			if err != nil {
				return err
			}
			return a.showLog(rows)
		}),
	}
	f.flags(cmd, 50)
	return cmd
}

// logFilter is which connections are wanted.
type logFilter struct {
	since, client string
	limit         uint32
}

func (f *logFilter) flags(cmd *cobra.Command, limit uint32) {
	cmd.Flags().StringVar(&f.client, "client", "", "of this client alone")
	cmd.Flags().StringVar(&f.since, "since", "", "a time (2026-01-31T12:00:00Z) or how long ago (24h, 7d)")
	cmd.Flags().Uint32Var(&f.limit, "limit", limit, "at most so many, the newest")
	for _, flag := range []string{"client", "since", "limit"} {
		cli.CompleteFlag(cmd, flag, cobra.NoFileCompletions)
	}
}

// connected gathers what became of calls that leave this host: egress' word, and the vault's on what it denied. Newest first.
func (a *app) connected(ctx context.Context, s *cli.Session, f logFilter) ([]connections.Connection, error) {
	if err := cli.CheckLimit(f.limit); err != nil {
		return nil, err
	}
	from, err := a.ParseTime("since", f.since)
	if err != nil {
		return nil, err
	}
	q := &auditv1.SearchRecordsRequest{Principal: f.client, Since: from}
	q.Kinds = []auditv1.Kind{auditv1.Kind_KIND_READ, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_SINK_REFUSED, auditv1.Kind_KIND_DENIED}
	var ended, all []auditv1.Status
	for status := range auditv1.Status_name {
		switch s := auditv1.Status(status); s {
		case auditv1.Status_STATUS_UNSPECIFIED:
		case auditv1.Status_STATUS_PENDING:
			all = append(all, s)
		default:
			all, ended = append(all, s), append(ended, s)
		}
	}
	tools, rows := []string{connections.ServersTool}, []connections.Connection{}
	for _, tool := range contract.Tools() {
		if tool.Sink == optionsv1.Role_ROLE_EGRESS && tool.Leaves {
			tools = append(tools, tool.Name)
		}
	}
	limit, cut := int(f.limit), false
	for _, q.Tool = range tools {
		q.Before, q.Statuses = 0, ended
		if q.Tool == connections.ServersTool {
			q.Statuses = all
		}
		left := limit
		next := func() { q.Limit = uint32(max(1, min(left, 1000))) } // #nosec G115 -- bounded
		next()
		if err := history.Pages(ctx, s.Audit, q, func(page []*auditv1.Entry, below uint64) (bool, error) {
			for _, e := range page {
				rows = append(rows, connectionOf(e))
			}
			left -= len(page)
			next()
			cut = cut || below > 0 && left <= 0
			return left > 0, nil
		}); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(rows, func(x, y connections.Connection) int { return cmp.Compare(y.Index, x.Index) })
	if rows = open(rows); slices.ContainsFunc(rows, isOpen) {
		started, err := s.Audit.SearchRecords(ctx, &auditv1.SearchRecordsRequest{Writer: "egress", Limit: 1, Kinds: []auditv1.Kind{auditv1.Kind_KIND_STARTED}, Statuses: []auditv1.Status{auditv1.Status_STATUS_OK}})
		if err != nil {
			return nil, err
		}
		for i, c := range rows {
			if entries := started.GetEntries(); isOpen(c) && len(entries) > 0 && c.Index < entries[0].GetIndex() {
				rows[i].Verdict, rows[i].Rule = connections.Ended, "egress ended before it"
			}
		}
	}
	if cut || len(rows) > limit {
		a.Out.Remark("There may be more than these %d: --limit and --since say which.", limit)
	}
	return rows[:min(len(rows), limit)], nil
}

// open leaves out that a server's connections began where it is recorded that they ended. The newest row comes first.
func open(rows []connections.Connection) []connections.Connection {
	ended := map[[3]string]bool{}
	return slices.DeleteFunc(rows, func(c connections.Connection) bool {
		key := [3]string{c.Principal, c.Tool, c.Destination}
		ended[key] = ended[key] || c.Verdict == connections.Answered
		return isOpen(c) && ended[key]
	})
}

func isOpen(c connections.Connection) bool { return c.Verdict == connections.Open }

func (a *app) showLog(rows []connections.Connection) error {
	return a.Show(map[string]any{"connections": rows}, func() {
		if len(rows) == 0 {
			a.Out.Printf("No request to another host is in the log.\n")
			return
		}
		dash := func(n int) string {
			if n == 0 {
				return "-"
			}
			return strconv.Itoa(n)
		}
		a.Out.Table([]string{"INDEX", "TIME", "WHO", "TOOL", "TO", "ADDRESS", "SENT", "RECEIVED", "STATUS", "VERDICT", "RULE"},
			output.Each(rows, func(c connections.Connection) []string {
				verdict := a.Out.Red(c.Verdict)
				if c.Reached() {
					verdict = a.Out.Green(c.Verdict)
				}
				to := c.Destination
				if c.Redirected != "" {
					to += " → " + c.Redirected
				}
				return []string{
					strconv.FormatUint(c.Index, 10), c.Time.Local().Format(time.DateTime), cmp.Or(c.Principal, "-"), c.Tool, to, cmp.Or(c.Address, "-"),
					dash(c.Sent), dash(c.Received), dash(c.Status), verdict, cmp.Or(c.Rule, "-"),
				}
			}))
	})
}

// connectionOf reads a record. Its words are cleaned: a stranger chose some of them.
func connectionOf(e *auditv1.Entry) connections.Connection {
	body := e.GetRecord().GetBody()
	c := connections.Connection{
		Index: e.GetIndex(), Time: e.GetRecord().GetTime().AsTime(), Principal: clean.Line(body.GetPrincipal(), 128), Tool: clean.Line(e.GetRecord().GetTool(), 64),
	}
	c.SetDetails(body.GetDetails())
	switch status := e.GetRecord().GetStatus(); {
	case status == auditv1.Status_STATUS_OK:
		c.Verdict = connections.Answered
	case status == auditv1.Status_STATUS_PENDING:
		c.Verdict = connections.Open
	case status == auditv1.Status_STATUS_DENIED:
		c.Verdict = connections.Denied
		by := clean.Line(body.GetDecisionSource(), 256)
		if strings.HasPrefix(by, "spiffe://") {
			by = "" // who was refused, and no rule: the reason says why
		}
		c.Rule = cmp.Or(c.Rule, by, clean.Line(body.GetReason(), 256))
	case c.Rule != "":
		c.Verdict = connections.Refused
	default:
		c.Verdict = connections.Failed
		c.Rule = clean.Line(body.GetReason(), 256)
	}
	if c.Tool == connections.ServersTool {
		c.Tool, c.Method = "mcp:"+clean.Line(body.GetDetails()["server"], 64), "CONNECT"
		if host, plain := strings.CutSuffix(c.Destination, ":80"); plain {
			c.Origin = "http://" + host
		} else if c.Destination != "" {
			c.Origin = "https://" + strings.TrimSuffix(c.Destination, ":443")
		}
		return c
	}
	var asked struct {
		URL    string `json:"url"`
		Method string `json:"method"`
	}
	if json.Unmarshal([]byte(body.GetArguments()), &asked) != nil {
		return c // of arguments that were not valid nothing more is known
	}
	c.Method = cmp.Or(clean.Line(asked.Method, 16), "GET")
	if u, to, err := destination.ParseURL(asked.URL); err == nil {
		c.Destination, c.Origin = cmp.Or(c.Destination, to.String()), u.Scheme+"://"+u.Host
	}
	return c
}
