package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/sumdb/note"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/server"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/platform/redaction"
)

// house is a running audit server with real mutual TLS.
type house struct {
	db    *store.Store
	t     testing.TB
	kit   *platformtest.Kit
	addr  string
	dir   string
	audit identity.ID
	log   *log.Log
	serv  *server.Server
	// forwarding is what the server lets be forwarded: nothing, unless a test says so.
	forwarding *server.Forwarding
}

func newHouse(t testing.TB, options ...platformtest.Option) *house {
	t.Helper()
	return newForwardingHouse(t, server.ForwardNothing, options...)
}

func newForwardingHouse(t testing.TB, what string, options ...platformtest.Option) *house {
	t.Helper()
	kit := platformtest.New(t, options...)
	kit.Deadline = time.Minute
	h := &house{t: t, kit: kit, dir: t.TempDir(), audit: kit.ID(optionsv1.Role_ROLE_AUDIT, "main"), forwarding: server.NewForwarding(what)}
	db, err := store.Open(t.Context(), h.dir)
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	h.db = db
	if h.log, err = log.Open(t.Context(), log.Config{Store: db, Signer: kit.LogSigner, Keys: h.keys}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.log.Close)
	if h.serv, err = server.New(server.Config{Log: h.log, Store: db, Version: "test", Identity: h.audit, Forwarding: h.forwarding}); err != nil {
		t.Fatal(err)
	}
	h.addr = kit.Serve(t, optionsv1.Role_ROLE_AUDIT, "main", h.serv.Register)
	return h
}

func (h *house) keys() []note.Verifier { return h.kit.Trust.Current().LogKeys }

func (h *house) as(role optionsv1.Role, instance string) *grpc.ClientConn {
	h.t.Helper()
	return h.kit.Dial(h.t, h.kit.ID(role, instance), h.addr, h.audit)
}

func (h *house) history() auditv1.HistoryServiceClient {
	return auditv1.NewHistoryServiceClient(h.as(optionsv1.Role_ROLE_OPERATOR, "alice"))
}

// TestCallers tries every method as every role, as the contract has them.
func TestCallers(t *testing.T) {
	h := newHouse(t)
	for role := range optionsv1.Role_name {
		role := optionsv1.Role(role)
		if identity.RoleName(role) == "" {
			continue
		}
		conn := h.as(role, "x")
		services := auditv1.File_durward_audit_v1_audit_proto.Services()
		for i := range services.Len() {
			methods := services.Get(i).Methods()
			for j := range methods.Len() {
				method := methods.Get(j)
				callers, _ := proto.GetExtension(method.Options(), optionsv1.E_Callers).([]optionsv1.Role)
				allowed := slices.Contains(callers, role)
				err := call(t, conn, method)
				if denied := fault.Is(err, callv1.Code_CODE_DENIED); denied == allowed {
					t.Errorf("%s calls %s: %v; the contract says allowed: %v", role, method.FullName(), err, allowed)
				}
			}
		}
		// What the contract does not name looks the same as what is not allowed.
		err := conn.Invoke(t.Context(), "/durward.audit.v1.LogService/Erase", &auditv1.GetHeadRequest{}, &auditv1.GetHeadResponse{})
		if !fault.Is(err, callv1.Code_CODE_DENIED) {
			t.Errorf("%s calls a method that does not exist: %v", role, err)
		}
	}
	if size := h.log.Size(); size != 0 {
		t.Errorf("%d entries were written", size)
	}
}

// call sends an empty request and returns the first error.
func call(t *testing.T, conn *grpc.ClientConn, method protoreflect.MethodDescriptor) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	name := "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
	request := dynamicpb.NewMessage(method.Input())
	if !method.IsStreamingServer() {
		return conn.Invoke(ctx, name, request, dynamicpb.NewMessage(method.Output()))
	}
	if f := method.Input().Fields().ByName("no_follow"); f != nil {
		request.Set(f, protoreflect.ValueOfBool(true))
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name)
	if err == nil {
		err = stream.SendMsg(request)
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil {
		return err
	}
	if err := stream.RecvMsg(dynamicpb.NewMessage(method.Output())); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// TestKinds tries every kind as every role that may append.
func TestKinds(t *testing.T) {
	h := newHouse(t)
	both := []auditv1.Kind{auditv1.Kind_KIND_STARTED, auditv1.Kind_KIND_STOPPED}
	sink := append([]auditv1.Kind{3, 36, 37, 40, 41, 42, 43, 44, 45, auditv1.Kind_KIND_HALTED, auditv1.Kind_KIND_RESUMED, auditv1.Kind_KIND_STANDING_ENDED}, both...)
	for role, want := range map[optionsv1.Role][]auditv1.Kind{
		optionsv1.Role_ROLE_GATEWAY:  append([]auditv1.Kind{auditv1.Kind_KIND_REFUSED}, both...),
		optionsv1.Role_ROLE_VAULT:    append([]auditv1.Kind{3, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 42, 54, 55, 70, 71, 72, 73, 74}, both...),
		optionsv1.Role_ROLE_EXECUTOR: sink,
		optionsv1.Role_ROLE_EGRESS:   sink,
		optionsv1.Role_ROLE_OPERATOR: append([]auditv1.Kind{auditv1.Kind_KIND_CONFIG_CHANGED, auditv1.Kind_KIND_NOTE}, both...),
	} {
		client := auditv1.NewLogServiceClient(h.as(role, "kinds"))
		var next uint64 = 1
		for kind := range auditv1.Kind_name {
			kind := auditv1.Kind(kind)
			_, err := client.Append(t.Context(), &auditv1.AppendRequest{Records: []*auditv1.Record{{Sequence: next, Kind: kind, Time: timestamppb.Now()}}})
			switch {
			case slices.Contains(want, kind):
				if err != nil {
					t.Errorf("%s writes %s: %v", role, kind, err)
				}
				next++
			case !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT):
				t.Errorf("%s writes %s: error %v, want CODE_INVALID_ARGUMENT", role, kind, err)
			}
		}
	}
}

// TestIngestRefusesCredentials sends records as a writer would that redacts nothing: audit refuses them, names the field, keeps
// nothing of them, and takes the same sequence once the field is redacted.
func TestIngestRefusesCredentials(t *testing.T) {
	h := newHouse(t)
	client := auditv1.NewLogServiceClient(h.as(optionsv1.Role_ROLE_EXECUTOR, "careless"))
	const token = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
	sequence := uint64(1)
	for want, body := range map[string]*auditv1.Body{
		"body.arguments":       {Arguments: `{"env":{"dbPassword":"hunter2"}}`},
		"body.summary":         {Summary: "logged in with " + token},
		"body.reason":          {Reason: "postgres://ada:hunter2@db refused"},
		"body.details.api_key": {Details: map[string]string{"api_key": "hunter2"}},
		"body.details.plain":   {Details: map[string]string{"plain": token}},
		"body.details":         {Details: map[string]string{token: "x"}},
		"body.decision_source": {DecisionSource: token},
		"body.principal":       {Principal: token},
	} {
		good := &auditv1.Record{Sequence: sequence, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), Body: &auditv1.Body{Summary: "good"}}
		bad := &auditv1.Record{Sequence: sequence + 1, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), Tool: "x", Body: body}
		_, err := client.Append(t.Context(), &auditv1.AppendRequest{Records: []*auditv1.Record{good, bad}})
		name, asked := redaction.Asked(err)
		if !asked || name != want {
			t.Errorf("%s: error %v names %q", want, err, name)
			continue
		}
		if strings.Contains(fmt.Sprint(err, fault.From(err)), "hunter2") || strings.Contains(fmt.Sprint(err, fault.From(err)), token) {
			t.Errorf("%s: the refusal repeats the credential: %v", want, err)
		}
		redacted, _ := redaction.Field(bad, name)
		if _, err := client.Append(t.Context(), &auditv1.AppendRequest{Records: []*auditv1.Record{good, redacted}}); err != nil {
			t.Errorf("%s, redacted: %v", want, err)
		}
		sequence += 2
	}
	entries := h.export(t, 0)
	if len(entries) != 16 {
		t.Errorf("%d entries, want 16", len(entries))
	}
	for _, e := range entries {
		if text := e.String(); strings.Contains(text, "hunter2") || strings.Contains(text, token) {
			t.Errorf("entry %d holds a credential: %s", e.GetIndex(), text)
		}
	}
}

// TestConsent tries to speak of a human's consent in every record that a role may write.
func TestConsent(t *testing.T) {
	h := newHouse(t)
	signed := &callv1.HumanStatement{Statement: []byte("{}"), Signature: []byte("x")}
	sinkSays := map[string][]auditv1.Kind{
		"statement": {auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_RESUMED},
		"mark":      {auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_READ, auditv1.Kind_KIND_SINK_REFUSED, auditv1.Kind_KIND_RECOVERED},
	}
	for role, says := range map[optionsv1.Role]map[string][]auditv1.Kind{
		optionsv1.Role_ROLE_GATEWAY: nil,
		optionsv1.Role_ROLE_VAULT: {
			"statement": {auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_RESUMED, auditv1.Kind_KIND_STANDING_GRANTED, auditv1.Kind_KIND_CONFIG_ADOPTED, auditv1.Kind_KIND_CREDENTIAL_CHANGED},
			"mark": {
				auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_DENIED, auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_REDEEMED, auditv1.Kind_KIND_RESUMED,
				auditv1.Kind_KIND_STANDING_GRANTED, auditv1.Kind_KIND_STANDING_ENDED, auditv1.Kind_KIND_CONFIG_ADOPTED,
				auditv1.Kind_KIND_EXPIRED, auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_READ, auditv1.Kind_KIND_WITHDRAWN, auditv1.Kind_KIND_CREDENTIAL_CHANGED,
			},
		},
		optionsv1.Role_ROLE_EXECUTOR: sinkSays,
		optionsv1.Role_ROLE_EGRESS:   sinkSays,
		optionsv1.Role_ROLE_OPERATOR: nil,
	} {
		client := auditv1.NewLogServiceClient(h.as(role, "consent"))
		var next uint64 = 1
		for value := range auditv1.Kind_name {
			kind := auditv1.Kind(value)
			for _, claim := range []struct {
				what string
				body *auditv1.Body
			}{
				{"statement", &auditv1.Body{Statement: signed}}, {"mark", &auditv1.Body{Confirmed: true}}, {"mark", &auditv1.Body{Dangerous: true}},
			} {
				_, err := client.Append(t.Context(), &auditv1.AppendRequest{Records: []*auditv1.Record{{
					Sequence: next, Kind: kind, Time: timestamppb.Now(), Body: claim.body,
				}}})
				if slices.Contains(says[claim.what], kind) {
					if err != nil {
						t.Errorf("%s writes %s with %v: %v", role, kind, claim.body, err)
					}
					next++
				} else if !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) {
					t.Errorf("%s writes %s with %v: error %v, want CODE_INVALID_ARGUMENT", role, kind, claim.body, err)
				}
			}
		}
	}
}

func TestAppendRefusesBadInput(t *testing.T) {
	h := newHouse(t)
	client := auditv1.NewLogServiceClient(h.as(optionsv1.Role_ROLE_EXECUTOR, "local"))
	good := func() *auditv1.Record {
		return &auditv1.Record{Sequence: 1, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), RequestId: "r-1", Tool: "gpu_status"}
	}
	for name, spoil := range map[string]func(*auditv1.Record){
		"no sequence":        func(r *auditv1.Record) { r.Sequence = 0 },
		"no time":            func(r *auditv1.Record) { r.Time = nil },
		"a time long ago":    func(r *auditv1.Record) { r.Time = &timestamppb.Timestamp{} },
		"a time far off":     func(r *auditv1.Record) { r.Time = timestamppb.New(latest) },
		"no time at all":     func(r *auditv1.Record) { r.Time = &timestamppb.Timestamp{Seconds: 1 << 60} },
		"unknown kind":       func(r *auditv1.Record) { r.Kind = 9999 },
		"unknown tier":       func(r *auditv1.Record) { r.Tier = 99 },
		"unknown status":     func(r *auditv1.Record) { r.Status = 99 },
		"newline at the end": func(r *auditv1.Record) { r.RequestId = "r-1\n" },
		"control characters": func(r *auditv1.Record) { r.Tool = "x\x1b[31m" },
		"right-to-left":      func(r *auditv1.Record) { r.OperationId = "a\u202eb" },
		"65 characters":      func(r *auditv1.Record) { r.RequestId = strings.Repeat("a", 65) },
		"long tool":          func(r *auditv1.Record) { r.Tool = strings.Repeat("a", 129) },
		"long summary":       func(r *auditv1.Record) { r.Body = &auditv1.Body{Summary: strings.Repeat("é", 501)} },
		"long arguments":     func(r *auditv1.Record) { r.Body = &auditv1.Body{Arguments: strings.Repeat("a", 65537)} },
		"long digest":        func(r *auditv1.Record) { r.Body = &auditv1.Body{ResultDigest: make([]byte, 33)} },
		"an empty detail":    func(r *auditv1.Record) { r.Body = &auditv1.Body{Details: map[string]string{"": "x"}} },
		"an unsigned consent": func(r *auditv1.Record) {
			r.Body = &auditv1.Body{Statement: &callv1.HumanStatement{Statement: []byte("{}")}}
		},
		"an unknown field": func(r *auditv1.Record) { r.ProtoReflect().SetUnknown([]byte{0xf8, 0x7f, 1}) },
		"one below, unknown": func(r *auditv1.Record) {
			r.Body = &auditv1.Body{}
			r.Body.ProtoReflect().SetUnknown([]byte{0xf8, 0x7f, 1})
		},
	} {
		r := good()
		spoil(r)
		_, err := client.Append(t.Context(), &auditv1.AppendRequest{Records: []*auditv1.Record{r}})
		if !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	for name, records := range map[string][]*auditv1.Record{"none": nil, "513": slices.Repeat([]*auditv1.Record{good()}, 513)} {
		if _, err := client.Append(t.Context(), &auditv1.AppendRequest{Records: records}); !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if size := h.log.Size(); size != 0 {
		t.Fatalf("%d entries were written", size)
	}
	hostile := good()
	hostile.Body = &auditv1.Body{Summary: "kept as it was written: \x1b[31m \u202e", Arguments: `{"a":"\u0000"}`}
	if _, err := client.Append(t.Context(), &auditv1.AppendRequest{Records: []*auditv1.Record{hostile}}); err != nil {
		t.Fatal(err)
	}
	got, err := h.history().GetRecord(t.Context(), &auditv1.GetRecordRequest{})
	must(t, err)
	if !proto.Equal(got.GetEntry().GetRecord(), hostile) {
		t.Errorf("stored %v", got.GetEntry().GetRecord())
	}
}

var latest = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// TestWriterIsTheCertificate: whatever a record says, its writer is who the connection is, and sequences are the writer's.
func TestWriterIsTheCertificate(t *testing.T) {
	h := newHouse(t)
	for i, role := range []optionsv1.Role{optionsv1.Role_ROLE_EXECUTOR, optionsv1.Role_ROLE_VAULT, optionsv1.Role_ROLE_GATEWAY} {
		client := auditv1.NewLogServiceClient(h.as(role, "one"))
		if _, err := client.Append(t.Context(), &auditv1.AppendRequest{Records: []*auditv1.Record{{
			Sequence: 1, Kind: auditv1.Kind_KIND_STARTED, Time: timestamppb.Now(),
			Body: &auditv1.Body{Principal: "spiffe://durward.local/vault/main"},
		}}}); err != nil {
			t.Fatal(err)
		}
		got, err := h.history().GetRecord(t.Context(), &auditv1.GetRecordRequest{Index: uint64(i)})
		must(t, err)
		if want := h.kit.ID(role, "one").String(); got.GetEntry().GetWriter() != want {
			t.Errorf("writer %q, want %q", got.GetEntry().GetWriter(), want)
		}
	}
}

// fill writes a known log: 3 requests of an executor and a vault in turns.
func (h *house) fill() []*auditv1.Record {
	h.t.Helper()
	exe, vlt := auditv1.NewLogServiceClient(h.as(optionsv1.Role_ROLE_EXECUTOR, "local")), auditv1.NewLogServiceClient(h.as(optionsv1.Role_ROLE_VAULT, "main"))
	var all []*auditv1.Record
	for i := range uint64(3) {
		request := fmt.Sprint("r-", i)
		body := &auditv1.Body{Principal: fmt.Sprint("p-", i%2), Session: fmt.Sprint("s-", i)}
		now := timestamppb.New(time.Now().Add(-time.Hour))
		records := map[auditv1.LogServiceClient][]*auditv1.Record{
			vlt: {{Sequence: i + 1, Kind: auditv1.Kind_KIND_APPROVED, Time: now, RequestId: request, OperationId: fmt.Sprint("o-", i), Tool: "start_service", Tier: optionsv1.Tier_TIER_WRITE, Status: auditv1.Status_STATUS_OK, Body: body}},
			exe: {
				{Sequence: 2*i + 1, Kind: auditv1.Kind_KIND_INTENT, Time: now, RequestId: request, OperationId: fmt.Sprint("o-", i), Tool: "start_service", Tier: optionsv1.Tier_TIER_WRITE, Status: auditv1.Status_STATUS_PENDING, Body: body},
				{Sequence: 2*i + 2, Kind: auditv1.Kind_KIND_READ, Time: now, RequestId: request, Tool: "gpu_status", Tier: optionsv1.Tier_TIER_READ, Status: auditv1.Status_STATUS_OK},
			},
		}
		for _, client := range []auditv1.LogServiceClient{vlt, exe} {
			if _, err := client.Append(h.t.Context(), &auditv1.AppendRequest{Records: records[client]}); err != nil {
				h.t.Fatal(err)
			}
			all = append(all, records[client]...)
		}
	}
	return all
}

func TestSearch(t *testing.T) {
	h := newHouse(t)
	h.fill()
	client := h.history()
	middle, err := client.GetRecord(t.Context(), &auditv1.GetRecordRequest{Index: 5})
	must(t, err)
	at := middle.GetEntry().GetLoggedAt()
	for _, tc := range []struct {
		name  string
		query *auditv1.SearchRecordsRequest
		want  []uint64
	}{
		{"nothing asked", &auditv1.SearchRecordsRequest{}, []uint64{8, 7, 6, 5, 4, 3, 2, 1, 0}},
		{"request", &auditv1.SearchRecordsRequest{RequestId: "r-1"}, []uint64{5, 4, 3}},
		{"operation", &auditv1.SearchRecordsRequest{OperationId: "o-2"}, []uint64{7, 6}},
		{"session", &auditv1.SearchRecordsRequest{Session: "s-0"}, []uint64{1, 0}},
		{"principal", &auditv1.SearchRecordsRequest{Principal: "p-1"}, []uint64{4, 3}},
		{"tool", &auditv1.SearchRecordsRequest{Tool: "gpu_status"}, []uint64{8, 5, 2}},
		{"tier", &auditv1.SearchRecordsRequest{Tier: optionsv1.Tier_TIER_READ}, []uint64{8, 5, 2}},
		{"kinds", &auditv1.SearchRecordsRequest{Kinds: []auditv1.Kind{auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_APPROVED}}, []uint64{7, 6, 4, 3, 1, 0}},
		{"statuses", &auditv1.SearchRecordsRequest{Statuses: []auditv1.Status{auditv1.Status_STATUS_PENDING}}, []uint64{7, 4, 1}},
		{"role", &auditv1.SearchRecordsRequest{Writer: "vault"}, []uint64{6, 3, 0}},
		{"writer", &auditv1.SearchRecordsRequest{Writer: "spiffe://durward.local/executor/local"}, []uint64{8, 7, 5, 4, 2, 1}},
		{"since, by the log's clock", &auditv1.SearchRecordsRequest{Since: at}, []uint64{8, 7, 6, 5, 4}},
		{"until", &auditv1.SearchRecordsRequest{Until: at}, []uint64{3, 2, 1, 0}},
		{"all at once", &auditv1.SearchRecordsRequest{Writer: "executor", Tier: optionsv1.Tier_TIER_WRITE, RequestId: "r-2", Since: at}, []uint64{7}},
		{"before", &auditv1.SearchRecordsRequest{Before: 3}, []uint64{2, 1, 0}},
		{"limit", &auditv1.SearchRecordsRequest{Limit: 2}, []uint64{8, 7}},
		{"no match", &auditv1.SearchRecordsRequest{RequestId: "r-9"}, nil},
		{"not FTS5", &auditv1.SearchRecordsRequest{Text: `" OR words MATCH "a`}, nil},
		{"channel", &auditv1.SearchRecordsRequest{Channel: callv1.Channel_CHANNEL_CLI}, nil},
		{"not SQL", &auditv1.SearchRecordsRequest{RequestId: "' OR 1=1 --"}, nil},
	} {
		got, err := client.SearchRecords(t.Context(), tc.query)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		var indexes []uint64
		for _, e := range got.GetEntries() {
			indexes = append(indexes, e.GetIndex())
			if err := logproof.VerifyEntry(e); err != nil {
				t.Errorf("%s: entry %d: %v", tc.name, e.GetIndex(), err)
			}
		}
		if diff := cmp.Diff(tc.want, indexes); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
		if more := got.GetNextBefore() > 0; more != (tc.name == "limit") {
			t.Errorf("%s: there are older ones: %v", tc.name, more)
		}
	}
	// Pages, to the end.
	var seen []uint64
	for before := uint64(0); ; {
		got, err := client.SearchRecords(t.Context(), &auditv1.SearchRecordsRequest{Limit: 4, Before: before})
		must(t, err)
		for _, e := range got.GetEntries() {
			seen = append(seen, e.GetIndex())
		}
		if before = got.GetNextBefore(); before == 0 {
			break
		}
	}
	if diff := cmp.Diff([]uint64{8, 7, 6, 5, 4, 3, 2, 1, 0}, seen); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	for name, query := range map[string]*auditv1.SearchRecordsRequest{
		"limit": {Limit: 1001}, "kinds": {Kinds: make([]auditv1.Kind, 65)}, "long id": {RequestId: strings.Repeat("a", 65)}, "no time": {Since: &timestamppb.Timestamp{Seconds: 1 << 60}},
	} {
		if _, err := client.SearchRecords(t.Context(), query); !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestCount: calls by tool and by client, whichever process recorded or refused them, and how long what was approved had waited. A read
// that is about to leave the host is no second call.
func TestCount(t *testing.T) {
	h := newHouse(t)
	client := h.history()
	if got, err := client.CountRecords(t.Context(), &auditv1.CountRecordsRequest{}); err != nil || got.GetRecords() != 0 || got.GetFirst() != nil {
		t.Errorf("an empty log: %v, %v", got, err)
	}
	write := func(role optionsv1.Role, records ...*auditv1.Record) {
		t.Helper()
		for i, r := range records {
			r.Sequence, r.Time = uint64(i+1), timestamppb.Now()
		}
		if _, err := auditv1.NewLogServiceClient(h.as(role, "local")).Append(t.Context(), &auditv1.AppendRequest{Records: records}); err != nil {
			t.Fatal(err)
		}
	}
	write(optionsv1.Role_ROLE_VAULT, &auditv1.Record{Kind: auditv1.Kind_KIND_ASKED, OperationId: "o-1"}, &auditv1.Record{Kind: auditv1.Kind_KIND_APPROVED, OperationId: "o-1"},
		&auditv1.Record{Kind: auditv1.Kind_KIND_ASKED, OperationId: "o-2"},
		&auditv1.Record{Kind: auditv1.Kind_KIND_DENIED, OperationId: "o-2", Tool: "tool_0000", Status: auditv1.Status_STATUS_DENIED, Body: &auditv1.Body{Principal: "codex"}})
	write(optionsv1.Role_ROLE_GATEWAY, &auditv1.Record{Kind: auditv1.Kind_KIND_REFUSED, Status: auditv1.Status_STATUS_DENIED},
		&auditv1.Record{Kind: auditv1.Kind_KIND_REFUSED, Status: auditv1.Status_STATUS_DENIED, Body: &auditv1.Body{Principal: "codex"}},
		&auditv1.Record{Kind: auditv1.Kind_KIND_REFUSED, Status: auditv1.Status_STATUS_DENIED, Tool: "tool_0000", Body: &auditv1.Body{Principal: "codex"}})
	var ended []*auditv1.Record
	for i := range 1010 {
		ended = append(ended, &auditv1.Record{Kind: auditv1.Kind_KIND_READ, Tool: fmt.Sprintf("tool_%04d", max(i-4, 0)), Status: auditv1.Status(min(i, 6)), Body: &auditv1.Body{Principal: "codex"}})
	}
	for i, part := range slices.Collect(slices.Chunk(ended, 505)) {
		for j, r := range part {
			r.Sequence, r.Time = uint64(i*505+j+1), timestamppb.Now()
		}
		if _, err := auditv1.NewLogServiceClient(h.as(optionsv1.Role_ROLE_EXECUTOR, "local")).Append(t.Context(), &auditv1.AppendRequest{Records: part}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := client.CountRecords(t.Context(), &auditv1.CountRecordsRequest{})
	must(t, err)
	if got.GetSize() != 1017 || got.GetRecords() != 1017 || got.GetApprovals() != 1 || got.GetApprovalP50() == nil || len(got.GetTools()) != 1000 || got.GetMoreTools() != 6 || got.GetMoreClients() != 0 {
		t.Errorf("%d of %d records, %d approvals after %v, %d tools and %d more, %d more clients", got.GetRecords(), got.GetSize(), got.GetApprovals(), got.GetApprovalP50(), len(got.GetTools()), got.GetMoreTools(), got.GetMoreClients())
	}
	if diff := cmp.Diff(&auditv1.CallCount{Name: "tool_0000", Ok: 2, Denied: 3, Failed: 1}, got.GetTools()[0], protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]*auditv1.CallCount{{Name: "codex", Ok: 2, Denied: 4, Failed: 1006}}, got.GetClients(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]uint64{"KIND_READ": 1010, "KIND_ASKED": 2, "KIND_APPROVED": 1, "KIND_DENIED": 1, "KIND_REFUSED": 3}, got.GetKinds()); diff != "" {
		t.Error(diff)
	}
	if _, err := client.CountRecords(t.Context(), &auditv1.CountRecordsRequest{Since: &timestamppb.Timestamp{Seconds: 1 << 60}}); !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) {
		t.Errorf("no time: %v", err)
	}
}

// TestLargeRecords: what does not fit into one message comes in several.
func TestLargeRecords(t *testing.T) {
	h := newHouse(t)
	client := auditv1.NewLogServiceClient(h.as(optionsv1.Role_ROLE_EXECUTOR, "local"))
	const n, batch = 150, 10
	big := strings.Repeat("a", 65536)
	for i := uint64(0); i < n; {
		var records []*auditv1.Record
		for range batch {
			i++
			records = append(records, &auditv1.Record{
				Sequence: i, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), Body: &auditv1.Body{Arguments: big},
			})
		}
		if _, err := client.Append(t.Context(), &auditv1.AppendRequest{Records: records}); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []uint32{1000, 33, 32, 31} { // 32 of them fill a message
		found := 0
		for before := uint64(0); ; {
			got, err := h.history().SearchRecords(t.Context(), &auditv1.SearchRecordsRequest{Limit: limit, Before: before})
			must(t, err)
			found += len(got.GetEntries())
			if before = got.GetNextBefore(); before == 0 {
				break
			}
		}
		if found != n {
			t.Errorf("limit %d: %d of %d found", limit, found, n)
		}
	}
	h.export(t, 0)
}

// export verifies an export as an operator's program does and returns its entries.
func (h *house) export(t *testing.T, from uint64, seen ...logproof.Checkpoint) []*auditv1.Entry {
	t.Helper()
	head, entries := h.exported(t, &auditv1.ExportLogRequest{FromIndex: from})
	if from > 0 {
		return entries
	}
	replay := &logproof.Replay{}
	for _, c := range seen {
		replay.Expect(c)
	}
	for _, e := range entries {
		must(t, replay.Add(e))
	}
	must(t, replay.Finish(head))
	return entries
}

// exported returns what an export says.
func (h *house) exported(t *testing.T, req *auditv1.ExportLogRequest) (head logproof.Checkpoint, entries []*auditv1.Entry) {
	t.Helper()
	stream, err := h.history().ExportLog(t.Context(), req)
	must(t, err)
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if head.IsZero() {
			if head, err = logproof.OpenCheckpoint(m.GetCheckpoint(), h.keys()); err != nil {
				t.Fatal(err)
			}
		}
		if len(m.GetBodies()) > 0 != req.GetBodiesApart() && len(m.GetEntries()) > 0 {
			t.Errorf("%d bodies beside %d entries", len(m.GetBodies()), len(m.GetEntries()))
		}
		if req.GetBodiesApart() {
			logproof.CheckPage(m) // puts them back
		}
		entries = append(entries, m.GetEntries()...)
	}
	return head, entries
}

func TestExportAndStatus(t *testing.T) {
	h := newHouse(t)
	all := h.fill()
	whole := h.export(t, 0)
	if len(whole) != len(all) {
		t.Errorf("%d entries exported, want %d", len(whole), len(all))
	}
	replay := &logproof.Replay{}
	signed, bare := h.exported(t, &auditv1.ExportLogRequest{Bare: true})
	for _, e := range bare {
		if len(e.GetLeaf())+len(e.GetBodyCommitment()) > 0 {
			t.Errorf("a bare entry has a leaf, or a commitment beside its body: %v", e)
		}
	}
	for i, c := range logproof.CheckPage(&auditv1.ExportLogResponse{Entries: bare}) {
		if err := replay.AddChecked(c); err != nil || !proto.Equal(c.Entry(), whole[i]) {
			t.Errorf("bare: %v, %v", err, c.Entry())
		}
	}
	_, apart := h.exported(t, &auditv1.ExportLogRequest{Bare: true, BodiesApart: true})
	if diff := cmp.Diff(whole, apart, protocmp.Transform()); diff != "" {
		t.Errorf("with bodies apart: %s", diff)
	}
	if err := replay.Finish(signed); err != nil {
		t.Error(err)
	}
	if got := h.export(t, 7); len(got) != 2 || got[0].GetIndex() != 7 {
		t.Errorf("from 7: %d entries", len(got))
	}
	if got := h.export(t, 99); len(got) != 0 {
		t.Errorf("from 99: %d entries", len(got))
	}
	status, err := h.history().GetStatus(t.Context(), &auditv1.GetStatusRequest{})
	must(t, err)
	head, err := logproof.OpenCheckpoint(status.GetCheckpoint(), h.keys())
	if err != nil || head.Size != status.GetSize() || head.Size != uint64(len(all)) {
		t.Errorf("status %v: %v", status, err)
	}
	if status.GetVersion() != "test" || status.GetDatabaseBytes() == 0 || status.GetDiskFreeBytes() == 0 || status.GetStartedAt() == nil {
		t.Errorf("status %v", status)
	}
}

func TestGetRecord(t *testing.T) {
	h := newHouse(t)
	all := h.fill()
	client := h.history()
	for _, index := range []uint64{uint64(len(all)), 1 << 62, 1<<64 - 1} {
		if _, err := client.GetRecord(t.Context(), &auditv1.GetRecordRequest{Index: index}); !fault.Is(err, callv1.Code_CODE_NOT_FOUND) {
			t.Errorf("entry %d: error %v", index, err)
		}
	}
	for i, want := range all {
		got, err := client.GetRecord(t.Context(), &auditv1.GetRecordRequest{Index: uint64(i)})
		must(t, err)
		if !proto.Equal(got.GetEntry().GetRecord(), want) {
			t.Errorf("entry %d is %v, want %v", i, got.GetEntry().GetRecord(), want)
		}
		if _, err := logproof.VerifyReceipt(got.GetReceipt(), h.keys()); err != nil || !bytes.Equal(got.GetReceipt().GetLeafHash(), got.GetEntry().GetLeafHash()) {
			t.Errorf("entry %d's receipt: %v", i, err)
		}
	}
	// What another process has written meanwhile is none of this one's tree yet.
	leads, err := log.Open(t.Context(), log.Config{Store: h.db, Signer: h.kit.LogSigner, Keys: h.keys})
	must(t, err)
	defer leads.Close()
	ahead := &auditv1.Record{Sequence: 1, Kind: auditv1.Kind_KIND_STARTED, Time: timestamppb.Now()}
	if _, err := leads.Append(t.Context(), h.kit.ID(optionsv1.Role_ROLE_EGRESS, "new").String(), []*auditv1.Record{ahead}, 0); err != nil {
		t.Fatal(err)
	}
	if got, err := client.GetRecord(t.Context(), &auditv1.GetRecordRequest{Index: uint64(len(all))}); !fault.Is(err, callv1.Code_CODE_NOT_FOUND) {
		t.Errorf("an entry beyond the tree: %v, %v", got, err)
	}
}

func TestTail(t *testing.T) {
	h := newHouse(t)
	all := h.fill()
	stream, err := h.history().TailRecords(t.Context(), &auditv1.TailRecordsRequest{FromIndex: 7, NoFollow: true})
	must(t, err)
	for want := uint64(7); ; want++ {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if want != uint64(len(all)) {
				t.Errorf("ended before entry %d", want)
			}
			break
		}
		if err != nil || m.GetEntry().GetIndex() != want {
			t.Fatalf("entry %d: %v, %v", want, m.GetEntry().GetIndex(), err)
		}
	}

	// Only what somebody looks for, of what is there and of what comes.
	only, err := h.history().TailRecords(t.Context(), &auditv1.TailRecordsRequest{FromIndex: 1, Filter: &auditv1.SearchRecordsRequest{
		Kinds: []auditv1.Kind{auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_STOPPED},
	}})
	must(t, err)
	matching := func(want ...uint64) {
		t.Helper()
		for _, index := range want {
			if m, err := only.Recv(); err != nil || m.GetEntry().GetIndex() != index {
				t.Fatalf("followed %v, %v, want %d", m.GetEntry(), err, index)
			}
		}
	}
	matching(1, 4, 7)
	defer func() { matching(10) }()

	ctx, cancel := context.WithCancel(t.Context())
	follow, err := h.history().TailRecords(ctx, &auditv1.TailRecordsRequest{FromIndex: uint64(len(all))})
	must(t, err)
	must(t, h.serv.RecordStart(t.Context()))
	for _, kind := range []auditv1.Kind{auditv1.Kind_KIND_STARTED, auditv1.Kind_KIND_STOPPED} {
		m, err := follow.Recv()
		must(t, err)
		if m.GetEntry().GetRecord().GetKind() != kind || m.GetEntry().GetWriter() != h.audit.String() {
			t.Errorf("followed %v", m.GetEntry())
		}
		if kind == auditv1.Kind_KIND_STARTED {
			must(t, h.serv.RecordStop(t.Context()))
		}
	}
	cancel()
	if _, err := follow.Recv(); err == nil {
		t.Error("a cancelled tail goes on")
	}
}

// TestRecorder puts the writers' side and the log together, over mutual TLS: what was answered is in the log, once,
// through a restart of the writer.
func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a disk that is busy takes no time from a record
		h := newHouse(t, platformtest.InMemory())
		dir := t.TempDir()
		me := h.kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local")
		open := func() *recorder.Recorder {
			waiting, err := spool.Open(t.Context(), dir)
			must(t, err)
			r, err := recorder.Open(t.Context(), h.as(me.Role(), me.Instance()), h.audit.String(), h.kit.Trust, recorder.Config{
				Writer: me.String(), Store: waiting, Logger: platformtest.Logger(),
			})
			must(t, err)
			return r
		}
		record := func(kind auditv1.Kind, request string) *auditv1.Record {
			return &auditv1.Record{Kind: kind, RequestId: request, Body: &auditv1.Body{Summary: "about " + request}}
		}
		var heads []logproof.Checkpoint
		for life := range 3 {
			r := open()
			for i := range 20 {
				must(t, r.Spool(t.Context(), record(auditv1.Kind_KIND_READ, fmt.Sprint("r-", life, "-", i))))
			}
			receipt, err := r.Record(t.Context(), record(auditv1.Kind_KIND_INTENT, "r-intent"))
			must(t, err)
			head, err := logproof.VerifyReceipt(receipt, h.keys())
			must(t, err)
			heads = append(heads, head)
			if _, err := r.Report(t.Context(), record(auditv1.Kind_KIND_OUTCOME, "r-intent")); err != nil {
				t.Fatal(err)
			}
			// A kind that is not this writer's is refused for good and leaves no gap.
			if _, err := r.Record(t.Context(), record(auditv1.Kind_KIND_APPROVED, "r-forged")); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
				t.Errorf("another's kind: %v", err)
			}
			must(t, r.Close(t.Context()))
		}
		entries := h.export(t, 0, heads...)
		if len(entries) != 3*22 {
			t.Errorf("%d entries, want %d", len(entries), 3*22)
		}
		for _, e := range entries {
			if e.GetRecord().GetRequestId() == "r-forged" || e.GetWriter() != me.String() {
				t.Errorf("entry %d: %v", e.GetIndex(), e)
			}
		}
	})
}

// TestLast: a process learns from the log what it wrote last itself, of what it has not sent yet from its own spool, and nothing of
// what others wrote.
func TestLast(t *testing.T) {
	h := newHouse(t)
	open := func(me identity.ID) *recorder.Recorder {
		r, err := recorder.Open(t.Context(), h.as(me.Role(), me.Instance()), h.audit.String(), h.kit.Trust, recorder.Config{
			Writer: me.String(), Logger: platformtest.Logger(),
		})
		must(t, err)
		t.Cleanup(func() { _ = r.Close(context.WithoutCancel(t.Context())) })
		return r
	}
	me := open(h.kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local"))
	if e, err := me.Last(t.Context(), auditv1.Kind_KIND_INTENT, ""); e != nil || err != nil {
		t.Errorf("before anything was written: %v, %v", e, err)
	}
	control := func(want recorder.Control) {
		t.Helper()
		got, err := me.LastControl(t.Context())
		if got.Index = 0; err != nil || got != want {
			t.Errorf("the switch was %+v, %v; want %+v", got, err, want)
		}
	}
	control(recorder.Control{})
	for _, r := range []*auditv1.Record{
		{Kind: auditv1.Kind_KIND_INTENT, OperationId: "one"},
		{Kind: auditv1.Kind_KIND_HALTED, Body: &auditv1.Body{Details: map[string]string{"epoch": "4"}}},
		{Kind: auditv1.Kind_KIND_OUTCOME, OperationId: "one"},
		{Kind: auditv1.Kind_KIND_INTENT, OperationId: "two"},
	} {
		if _, err := me.Record(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	control(recorder.Control{Epoch: 4, Halted: true})
	if _, err := me.Record(t.Context(), &auditv1.Record{Kind: auditv1.Kind_KIND_RESUMED, Body: &auditv1.Body{Details: map[string]string{"epoch": "5"}}}); err != nil {
		t.Fatal(err)
	}
	control(recorder.Control{Epoch: 5})
	for _, c := range []struct {
		kind      auditv1.Kind
		operation string
		want      string // of the operation; "": none
	}{
		{auditv1.Kind_KIND_INTENT, "", "two"},
		{auditv1.Kind_KIND_INTENT, "one", "one"},
		{auditv1.Kind_KIND_OUTCOME, "one", "one"},
		{auditv1.Kind_KIND_OUTCOME, "two", ""},
		{auditv1.Kind_KIND_RECOVERED, "one", ""},
	} {
		e, err := me.Last(t.Context(), c.kind, c.operation)
		if err != nil || e.GetRecord().GetOperationId() != c.want {
			t.Errorf("%s of %q: %v, %v", c.kind, c.operation, e, err)
		}
	}
	told := recorder.State{Revision: 9, Digest: "d", Rows: map[string]uint64{"spent": 3}}
	if _, err := me.Record(t.Context(), told.Record()); err != nil {
		t.Fatal(err)
	}
	if got, index, err := me.LastState(t.Context()); err != nil || index == 0 || !cmp.Equal(got, told) {
		t.Errorf("the state: %+v at %d, %v", got, index, err)
	}
	other := open(h.kit.ID(optionsv1.Role_ROLE_EXECUTOR, "other"))
	if e, err := other.Last(t.Context(), auditv1.Kind_KIND_INTENT, "one"); e != nil || err != nil {
		t.Errorf("another's record: %v, %v", e, err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
