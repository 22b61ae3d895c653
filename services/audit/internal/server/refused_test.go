package server_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/server"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// Calls that the chain in front of audit refuses are in its own log, with who called what and how often; of a flood of kinds the
// rest is counted together, so that it cannot fill the log.
func TestRefusalsAreRecorded(t *testing.T) {
	h := newHouse(t)
	refusals := h.serv.Refusals(platformtest.Logger())
	addr := h.kit.Serve(t, optionsv1.Role_ROLE_AUDIT, "main", h.serv.Register, func(c *rpc.ServerConfig) {
		c.OnRefused = refusals.Refused
	})
	dial := func(role optionsv1.Role, instance string) *grpc.ClientConn {
		return h.kit.Dial(t, h.kit.ID(role, instance), addr, h.audit)
	}
	gateway, vault := dial(optionsv1.Role_ROLE_GATEWAY, "main"), dial(optionsv1.Role_ROLE_VAULT, "main")
	refused := func(conn *grpc.ClientConn, method string, request any) {
		t.Helper()
		if err := conn.Invoke(t.Context(), method, request, &auditv1.GetHeadResponse{}); err == nil {
			t.Errorf("%s was let in", method)
		}
	}
	for range 3 { // another role
		refused(gateway, "/durward.audit.v1.HistoryService/GetRecord", &auditv1.GetRecordRequest{})
	}
	refused(vault, "/durward.audit.v1.LogService/GetLast", &auditv1.GetLastRequest{})                                      // a broken message
	if conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}); err == nil { // a peer without a certificate
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a peer without a certificate is answered")
		}
		_ = conn.Close()
	}
	const flood = 500
	for i := range flood { // methods that are not there
		refused(gateway, fmt.Sprintf("/durward.audit.v1.LogService/Erase%d", i), &auditv1.GetHeadRequest{})
	}

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); refusals.Run(ctx) }()
	cancel() // what is counted is recorded at the end
	<-done
	sums, records := map[string]int{}, 0
	for deadline := time.Now().Add(10 * time.Second); sums[""] < flood && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) { // records come in when they can; the log has no event for these
		out, err := h.history().SearchRecords(t.Context(), &auditv1.SearchRecordsRequest{Kinds: []auditv1.Kind{auditv1.Kind_KIND_REFUSED}, Limit: 100})
		must(t, err)
		clear(sums)
		records = len(out.GetEntries())
		for _, e := range out.GetEntries() {
			body := e.GetRecord().GetBody()
			n, err := strconv.Atoi(body.GetDetails()["times"])
			if err != nil || e.GetWriter() != h.audit.String() || e.GetRecord().GetStatus() != auditv1.Status_STATUS_DENIED {
				t.Errorf("the record %v, %v", e, err)
			}
			switch key := body.GetSummary() + " " + body.GetReason(); key {
			case "/durward.audit.v1.HistoryService/GetRecord the caller's role may not call this method", " the peer did not prove who it is":
				sums[key] += n
			default:
				if body.GetSummary() == "/durward.audit.v1.LogService/GetLast" {
					sums[body.GetSummary()+" "+body.GetDecisionSource()] += n
				} else {
					sums[""] += n
				}
			}
		}
	}
	for key, want := range map[string]int{
		"/durward.audit.v1.HistoryService/GetRecord the caller's role may not call this method":        3,
		"/durward.audit.v1.LogService/GetLast " + h.kit.ID(optionsv1.Role_ROLE_VAULT, "main").String(): 1,
		" the peer did not prove who it is": 1,
		"":                                  flood,
	} {
		if sums[key] != want {
			t.Errorf("%q was counted %d times, want %d", key, sums[key], want)
		}
	}
	if records > 21 {
		t.Errorf("%d records of one flood", records)
	}
}

// TestARefusedDecisionOnRetentionIsRecorded, with whose it was; what is only too early is told as that.
func TestARefusedDecisionOnRetentionIsRecorded(t *testing.T) {
	h := newHouse(t)
	_, err := auditv1.NewRetentionServiceClient(h.as(optionsv1.Role_ROLE_OPERATOR, "alice")).DecideRetention(t.Context(), &auditv1.DecideRetentionRequest{
		Statement: &callv1.HumanStatement{Statement: []byte("{}"), Signature: []byte("x")},
	})
	if !fault.Is(err, callv1.Code_CODE_DENIED) {
		t.Fatal(err)
	}
	out, err := h.history().SearchRecords(t.Context(), &auditv1.SearchRecordsRequest{Kinds: []auditv1.Kind{auditv1.Kind_KIND_REFUSED}, Limit: 10})
	if err != nil || len(out.GetEntries()) != 1 {
		t.Fatalf("%v, %v", out, err)
	}
	if body := out.GetEntries()[0].GetRecord().GetBody(); body.GetAction() != "retention-refused" || body.GetDecisionSource() != h.kit.ID(optionsv1.Role_ROLE_OPERATOR, "alice").String() || body.GetReason() == "" {
		t.Errorf("%v", body)
	}
	now := time.Now()
	early, err := statement.Sign(&statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindPrune, ID: strings.Repeat("a", 32), Operator: platformtest.Operator, Epoch: 1,
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(time.Minute)), Audience: h.audit.String(),
		Prune: &statement.Prune{Size: 1000, Before: statement.FormatTime(now.Add(-time.Hour)), Kinds: map[string]uint64{"READ": 1},
			Oldest: statement.FormatTime(now.Add(-2 * time.Hour)), Newest: statement.FormatTime(now.Add(-2 * time.Hour))},
	}, h.kit.OperatorSigner)
	must(t, err)
	allowing, err := server.New(server.Config{Log: h.log, Store: h.db, Version: "test", Identity: h.audit,
		Allowed: func() *trust.AllowedSigners { return h.kit.Trust.Current().AllowedSigners }})
	must(t, err)
	conn := h.kit.Dial(t, h.kit.ID(optionsv1.Role_ROLE_OPERATOR, "alice"), h.kit.Serve(t, optionsv1.Role_ROLE_AUDIT, "main", allowing.Register), h.audit)
	answer, err := auditv1.NewRetentionServiceClient(conn).DecideRetention(t.Context(), &auditv1.DecideRetentionRequest{Statement: early})
	if !fault.Is(err, callv1.Code_CODE_CONFLICT) {
		t.Errorf("about records that are not there yet: %v, %v", answer, err)
	}
}
