package server

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	"durward.internal/services/platform/connections"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/suspicion"
)

// Bounds of what is remembered: the newest requests of a session, and the sessions that made the newest.
const (
	mostRequests = 500
	mostSessions = 256
)

// Reports is what a human's file says of agents' own reports.
type Reports struct {
	// Version is the program's.
	Version string
	// From is the least severity of what a report says about names, and Most the highest that a call may ask for in its place.
	From, Most suspicion.Severity
}

// observed remembers what became of the requests of sessions, until egress ends. It is safe for concurrent use; the zero value is ready.
type observed struct {
	mu sync.Mutex
	// sessions are in the order of their newest requests.
	sessions []*history
}

// history is the requests of one session, the oldest first.
type history struct {
	principal, session string
	rows               []connections.Connection
}

func (o *observed) add(party sink.Party, c connections.Connection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := &history{principal: party.Client, session: party.Session}
	if i := o.find(party); i >= 0 {
		h = o.sessions[i]
		o.sessions = slices.Delete(o.sessions, i, i+1)
	}
	if h.rows = append(h.rows, c); len(h.rows) > mostRequests {
		h.rows = slices.Delete(h.rows, 0, len(h.rows)-mostRequests)
	}
	if o.sessions = append(o.sessions, h); len(o.sessions) > mostSessions {
		o.sessions = slices.Delete(o.sessions, 0, 1)
	}
}

func (o *observed) find(party sink.Party) int {
	return slices.IndexFunc(o.sessions, func(h *history) bool { return h.principal == party.Client && h.session == party.Session })
}

// of returns a session's requests, the newest first.
func (o *observed) of(party sink.Party) []connections.Connection {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := o.find(party)
	if i < 0 {
		return nil
	}
	rows := slices.Clone(o.sessions[i].rows)
	slices.Reverse(rows)
	return rows
}

type observing struct{}

// observation is the request that ctx is for; nil: it is for none.
func observation(ctx context.Context) *connections.Connection {
	c, _ := ctx.Value(observing{}).(*connections.Connection)
	return c
}

// observe begins to note what becomes of a request, for the record and for the session's reports; ended keeps it.
func (t *Tools) observe(ctx context.Context, tool, method string, u *url.URL, to destination.Destination, sent int) (_ context.Context, ended func()) {
	party := sink.For(ctx)
	c := &connections.Connection{
		Time: time.Now(), Principal: party.Client, Tool: tool, Method: method, Destination: to.String(), Origin: originOf(u), Sent: sent, Verdict: connections.Failed,
	}
	return context.WithValue(ctx, observing{}, c), func() {
		for name, value := range c.Details() {
			sink.Detail(ctx, name, value)
		}
		if c.Verdict == connections.Answered {
			t.hosts.add(to.Host)
		}
		t.seen.add(party, *c)
		t.ended.WithLabelValues(c.Verdict, c.Rule).Inc()
	}
}

// endings registers the counter of requests by how they ended. No host is among its labels: agents choose those.
func endings(registry prometheus.Registerer) *prometheus.CounterVec {
	ended := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "durward_egress_requests_total", Help: "Requests to other hosts, by how they ended (answered, failed or refused) and the rule that refused.",
	}, []string{"result", "rule"})
	for _, rule := range []destination.Rule{destination.RuleAddress, destination.RuleOwn} { // an alert looks at them
		ended.WithLabelValues(connections.Refused, string(rule))
	}
	registry.MustRegister(ended)
	return ended
}

func originOf(u *url.URL) string { return u.Scheme + "://" + u.Host }

// noteAnswer notes where an answer came from, and how much of it.
func noteAnswer(ctx context.Context, answer *dialer.Answer) {
	c := observation(ctx)
	c.Verdict, c.Address, c.Received, c.Status = connections.Answered, answer.Address.String(), len(answer.Body), answer.Status
	if from := originOf(answer.URL); from != c.Origin {
		c.Redirected = from
	}
}

// SecurityReport implements the tool security_report: what became of this session's own requests. It holds no path, header or body.
func (t *Tools) SecurityReport(ctx context.Context, r *egressv1.SecurityReportRequest) (*egressv1.SecurityReportResponse, error) {
	o := connections.Options{Version: t.report.Version, From: t.report.From}
	if r.SeverityOverride != nil {
		from, err := suspicion.ParseSeverity(r.GetSeverityOverride())
		if err != nil || from > t.report.Most {
			return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "reports leave out no flag of the severity "+t.report.Most.String()+
				" for this call; only a human changes that limit", fault.WithField("severity_override"), fault.WithCause(err))
		}
		o.From = from
		sink.Override(ctx, "severity", from.String())
	}
	rows := t.seen.of(sink.For(ctx))
	report, err := connections.Report(r.GetFormat(), rows, o)
	if err != nil {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, err.Error(), fault.WithField("format"))
	}
	text, is := report.(string)
	if !is {
		raw, err := json.Marshal(report)
		if err != nil {
			return nil, err
		}
		text = string(raw)
	}
	sink.Cut(ctx, func(out *egressv1.SecurityReportResponse) {
		from, until := cut(out.GetReport(), int(r.GetCursor()))
		out.Cursor, out.More, out.Report = uint32(until), until < len(out.GetReport()), out.GetReport()[from:until]
	})
	sink.Summarise(ctx, "a report on "+strconv.Itoa(len(rows))+" requests of this session to other hosts, as "+strings.ToUpper(r.GetFormat()))
	return &egressv1.SecurityReportResponse{Report: text}, nil
}
