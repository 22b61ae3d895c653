package server_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/rpc"
)

// maxLine is how long a line is that an agent is shown.
const maxLine = 1000

func logsOf(id string, lines uint32) *executorv1.ServiceLogsRequest {
	r := &executorv1.ServiceLogsRequest{ServiceId: &id}
	if lines > 0 {
		r.Lines = &lines
	}
	return r
}

// logTicket is a genuine one for service_logs, which no human approves.
func (w *world) logTicket(r *executorv1.ServiceLogsRequest) *ticket {
	t := w.ticketFor("service_logs", r)
	t.statement = nil
	return t
}

func TestServiceLogs(t *testing.T) {
	w := newWorld(t)
	w.driver.lines = []string{"first", "\x1b[31mred\x1b[0m \u202eline " + secret, strings.Repeat("x", 5000)}
	for range 50 {
		w.driver.lines = append(w.driver.lines, "more")
	}
	r := logsOf("alpha", 0)
	got, err := w.gateway.ServiceLogs(with(t.Context(), rpc.MetadataGrant, w.sign(w.logTicket(r))), r)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(got.GetLog(), "more"); n != 40 || got.GetCursor() != "end" || got.GetServiceId() != "alpha" {
		t.Errorf("%d lines, cursor %q", n, got.GetCursor())
	}
	w.driver.lines = w.driver.lines[:3]
	r = logsOf("alpha", 2)
	got, err = w.gateway.ServiceLogs(with(t.Context(), rpc.MetadataGrant, w.sign(w.logTicket(r))), r)
	if err != nil {
		t.Fatal(err)
	}
	if log := got.GetLog(); strings.ContainsAny(log, "\x1b\u202e") || strings.Contains(log, "first") || len(log) > 1100 || !strings.Contains(log, "red line "+reference) {
		t.Errorf("the log is not clean, or not cut: %d bytes, %.100q", len(log), log)
	}
}

// Where a line is cut, nothing of a value stays: it is a reference by then, and whole or not there.
func TestLogLinesAreCutAfterwards(t *testing.T) {
	w := newWorld(t)
	for before := maxLine - len(secret) - len(reference); before <= maxLine; before++ {
		w.driver.lines = []string{strings.Repeat("x", before-2) + " " + secret + " " + strings.Repeat("y", 40)}
		r := logsOf("alpha", 0)
		got, err := w.gateway.ServiceLogs(with(t.Context(), rpc.MetadataGrant, w.sign(w.logTicket(r))), r)
		if err != nil {
			t.Fatal(err)
		}
		rest := strings.TrimSuffix(strings.TrimLeft(got.GetLog(), "x"), "…")
		if rest = strings.TrimSpace(strings.TrimRight(rest, "y")); rest != "" && rest != reference {
			t.Fatalf("with %d bytes before it: %q", before, rest)
		}
	}
}

// A service's own words need a grant of their own, which is good once.
func TestServiceLogsIsRefused(t *testing.T) {
	w := newWorld(t)
	r := logsOf("alpha", 0)
	if _, err := w.gateway.ServiceLogs(t.Context(), r); status.Code(err) != codes.PermissionDenied {
		t.Errorf("without a grant: %v", err)
	}
	if _, err := w.gateway.ServiceLogs(with(t.Context(), rpc.MetadataPermit, w.sign(w.logTicket(r))), r); status.Code(err) != codes.PermissionDenied {
		t.Errorf("under a permit: %v", err)
	}
	signed := w.sign(w.logTicket(r))
	if _, err := w.gateway.ServiceLogs(with(t.Context(), rpc.MetadataGrant, signed), r); err != nil {
		t.Fatal(err)
	}
	other := logsOf("beta", 0)
	if _, err := w.gateway.ServiceLogs(with(t.Context(), rpc.MetadataGrant, signed), other); err == nil {
		t.Error("a grant for one service's log gave another's")
	}
	unknown := logsOf("nobody", 0)
	if _, err := w.gateway.ServiceLogs(with(t.Context(), rpc.MetadataGrant, w.sign(w.logTicket(unknown))), unknown); err == nil {
		t.Error("a service that is not there has a log")
	}
}

func TestFollowLogsIsTheOperators(t *testing.T) {
	w := newWorld(t)
	w.driver.lines = []string{"one", "two", "three"}
	for role, allowed := range map[optionsv1.Role]bool{optionsv1.Role_ROLE_GATEWAY: false, optionsv1.Role_ROLE_OPERATOR: true} {
		stream, err := executorv1.NewControlServiceClient(w.dial(role, "main")).FollowLogs(t.Context(), &executorv1.FollowLogsRequest{ServiceId: "alpha", Lines: 2})
		if err != nil {
			t.Fatal(err)
		}
		m, err := stream.Recv()
		switch {
		case allowed && (err != nil || strings.Join(m.GetLines(), " ") != "two three"):
			t.Errorf("%s: %v, %v", role, m, err)
		case !allowed && err == nil:
			t.Errorf("%s follows a log: %v", role, m)
		}
	}
}
