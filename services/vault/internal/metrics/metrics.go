// Package metrics is what the vault shows of its work on its loopback listener. Its labels are states, decisions and codes
// of the contract: no principal, session or operator is in any of them.
package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/telemetry/span"
	"durward.internal/services/vault/internal/operation"
)

// Queue is what is counted of the operations.
type Queue interface{ Census() operation.Census }

// Sessions is what is counted of the sessions.
type Sessions interface{ Count() int }

// Standing is what is counted of what humans let sessions do.
type Standing interface {
	Count() (scopes, dangerous, muted int)
}

// Tokens is what is counted of references.
type Tokens interface{ Lookalikes() int64 }

// Rules is what is counted of the security configuration.
type Rules interface{ Current() *security.State }

// Sources are what is asked at each scrape.
type Sources struct {
	Queue    Queue
	Sessions Sessions
	Standing Standing
	Tokens   Tokens
	Rules    Rules
}

// Metrics counts the vault's decisions. It is safe for concurrent use.
type Metrics struct {
	authorisations, decisions, redemptions, openings *prometheus.CounterVec
}

// New registers the metrics.
func New(registry prometheus.Registerer, sources Sources) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		authorisations: counter("durward_vault_authorisations_total", "Calls judged, by the decision, or by the code of why there was none.", "decision"),
		decisions:      counter("durward_vault_decisions_total", "What humans said to operations that waited, by what they said and whether it was accepted (ok) or why not.", "decision", "result"),
		redemptions:    counter("durward_vault_redemptions_total", "Grants that sinks brought, by whether they were spent (ok) or why they were refused.", "result"),
		openings:       counter("durward_vault_session_openings_total", "Sessions that clients asked for, by whether they got one (ok) or why not.", "result"),
	}
	registry.MustRegister(m.authorisations, m.decisions, m.redemptions, m.openings, &census{sources})
	// Counters that alerts look at are there from the start, or the first refusal would not show as an increase.
	for _, result := range []string{span.OK, "DENIED", "EXPIRED", "ALREADY_SPENT"} {
		m.redemptions.WithLabelValues(result)
	}
	return m
}

// Leads registers whether this vault leads those that share its database.
func Leads(registry prometheus.Registerer, leads func() bool) {
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "durward_vault_leads", Help: "1 while this vault leads, 0 while it stands by.",
	}, func() float64 {
		if leads() {
			return 1
		}
		return 0
	}))
}

// GrantKey registers until when the vault's signing key is trusted: ends is asked at each scrape, zero is a key that is not trusted any more.
func GrantKey(registry prometheus.Registerer, ends func() time.Time) {
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "durward_vault_grant_key_expiry_timestamp_seconds",
		Help: "When the key that this vault signs grants and permits with ends, in Unix time; 0 where grant_signers.yaml does not name it any more.",
	}, func() float64 {
		if at := ends(); !at.IsZero() {
			return float64(at.Unix())
		}
		return 0
	}))
}

// Unary returns the interceptor that counts. It is the first after the checks of every call.
func (m *Metrics) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		response, err := handler(ctx, request)
		switch info.FullMethod {
		case vaultv1.AuthorityService_Authorise_FullMethodName:
			decision := result(err)
			if answer, ok := response.(*vaultv1.AuthoriseResponse); ok && err == nil {
				decision = contract.WordOf(answer.GetDecision())
			}
			m.authorisations.WithLabelValues(decision).Inc()
		case vaultv1.ApprovalService_ApproveOperation_FullMethodName:
			m.decisions.WithLabelValues("approve", result(err)).Inc()
		case vaultv1.ApprovalService_DenyOperation_FullMethodName:
			m.decisions.WithLabelValues("deny", result(err)).Inc()
		case vaultv1.ApprovalService_GrantCommand_FullMethodName:
			m.decisions.WithLabelValues("command", result(err)).Inc()
		case vaultv1.StandingService_GrantScope_FullMethodName:
			m.decisions.WithLabelValues("scope", result(err)).Inc()
		case vaultv1.StandingService_ConfirmDangerous_FullMethodName:
			m.decisions.WithLabelValues("dangerous", result(err)).Inc()
		case vaultv1.RedeemService_Redeem_FullMethodName:
			m.redemptions.WithLabelValues(result(err)).Inc()
		case vaultv1.SessionService_OpenSession_FullMethodName:
			m.openings.WithLabelValues(result(err)).Inc()
		}
		return response, err
	}
}

// result is the label of how a call went.
func result(err error) string {
	if err == nil {
		return span.OK
	}
	return fault.CodeName(fault.From(err).Code)
}

var (
	operations = prometheus.NewDesc("durward_vault_operations", "Operations that wait for a human, are approved, or run.", []string{"state"}, nil)
	oldest     = prometheus.NewDesc("durward_vault_oldest_pending_age_seconds", "How long the longest-waiting operation has waited for a human; 0 when none waits.", nil, nil)
	limit      = prometheus.NewDesc("durward_vault_pending_limit", "How many operations may wait for a human before further ones are refused.", nil, nil)
	waiters    = prometheus.NewDesc("durward_vault_waits_held", "Calls that are held open for an operation.", nil, nil)
	open       = prometheus.NewDesc("durward_vault_sessions", "Open sessions of clients.", nil, nil)
	inForce    = prometheus.NewDesc("durward_vault_standing", "What humans let sessions do without being asked each time, by its kind.", []string{"kind"}, nil)
	muted      = prometheus.NewDesc("durward_vault_muted", "Clients that operators do not want to be asked by for a while.", nil, nil)
	lookalikes = prometheus.NewDesc("durward_vault_lookalike_references_total", "Places in texts of agents and sinks that only look like a reference, or are another session's.", nil, nil)
	files      = prometheus.NewDesc("durward_vault_config_files", "Files of the security configuration, by whether they are in force as they are (ok) or were refused.", []string{"state"}, nil)
)

// census asks its sources at each scrape.
type census struct{ Sources }

// Describe implements prometheus.Collector.
func (c *census) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

// Collect implements prometheus.Collector.
func (c *census) Collect(out chan<- prometheus.Metric) {
	now := c.Queue.Census()
	for state, n := range now.States {
		name := contract.WordOf(state)
		out <- prometheus.MustNewConstMetric(operations, prometheus.GaugeValue, float64(n), name)
	}
	out <- prometheus.MustNewConstMetric(oldest, prometheus.GaugeValue, now.Oldest.Seconds())
	out <- prometheus.MustNewConstMetric(limit, prometheus.GaugeValue, float64(now.PendingCap))
	out <- prometheus.MustNewConstMetric(waiters, prometheus.GaugeValue, float64(now.Waiters))
	out <- prometheus.MustNewConstMetric(open, prometheus.GaugeValue, float64(c.Sessions.Count()))
	scopes, dangerous, mutes := c.Standing.Count()
	out <- prometheus.MustNewConstMetric(inForce, prometheus.GaugeValue, float64(scopes), "scope")
	out <- prometheus.MustNewConstMetric(inForce, prometheus.GaugeValue, float64(dangerous), "dangerous")
	out <- prometheus.MustNewConstMetric(muted, prometheus.GaugeValue, float64(mutes))
	out <- prometheus.MustNewConstMetric(lookalikes, prometheus.CounterValue, float64(c.Tokens.Lookalikes()))
	good, refused := 0, 0
	for _, f := range c.Rules.Current().Files {
		if f.Problem == "" {
			good++
		} else {
			refused++
		}
	}
	out <- prometheus.MustNewConstMetric(files, prometheus.GaugeValue, float64(good), "ok")
	out <- prometheus.MustNewConstMetric(files, prometheus.GaugeValue, float64(refused), "refused")
}
