package server_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/server"
	"durward.internal/services/platform/fault"
)

// TestReadRecords: what the relay may read is what audit's file says, in the log's order, and never what a human signed.
func TestReadRecords(t *testing.T) {
	for _, what := range []string{server.ForwardNothing, server.ForwardHeaders, server.ForwardRecords} {
		t.Run("forward "+what, func(t *testing.T) { readRecords(t, newForwardingHouse(t, what)) })
	}
}

func readRecords(t *testing.T, h *house) {
	h.fill()
	signed := &auditv1.Record{
		Sequence: 4, Kind: auditv1.Kind_KIND_APPROVED, Time: timestamppb.Now(), OperationId: "o-9",
		Body: &auditv1.Body{
			Principal: "p", Session: "s", Channel: callv1.Channel_CHANNEL_CLI, Source: "native", Arguments: `{"a":1}`, Summary: "said", Confirmed: true, DurationMs: 5,
			Dangerous: true, ParentRequestId: "r-0", Action: "act", Reason: "why", Persistent: true, DecisionSource: "policy", ResultDigest: make([]byte, 32),
			Statement: &callv1.HumanStatement{Statement: []byte("{}"), Signature: []byte("x")}, Details: map[string]string{"k": "v"},
		},
	}
	vault := auditv1.NewLogServiceClient(h.as(optionsv1.Role_ROLE_VAULT, "main"))
	if _, err := vault.Append(t.Context(), &auditv1.AppendRequest{Records: []*auditv1.Record{signed}}); err != nil {
		t.Fatal(err)
	}
	relay := auditv1.NewForwardServiceClient(h.as(optionsv1.Role_ROLE_RELAY, "main"))
	read := func(from uint64, limit uint32) (*auditv1.ReadRecordsResponse, error) {
		return relay.ReadRecords(t.Context(), &auditv1.ReadRecordsRequest{Destination: "siem", FromIndex: from, Limit: limit})
	}
	what := h.forwarding.What()
	if what == server.ForwardNothing {
		if _, err := read(0, 0); !fault.Is(err, callv1.Code_CODE_DENIED) {
			t.Errorf("nothing is forwarded: %v", err)
		}
		return
	}
	all := h.export(t, 0)
	size := uint64(len(all))
	if _, err := read(size+1, 0); !fault.Is(err, callv1.Code_CODE_CONFLICT) {
		t.Errorf("beyond the log: %v", err)
	}
	for _, destination := range []string{"", "Siem", "../x", "a b"} {
		if _, err := relay.ReadRecords(t.Context(), &auditv1.ReadRecordsRequest{Destination: destination}); !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) {
			t.Errorf("the destination %q: %v", destination, err)
		}
	}
	var got []*auditv1.ForwardedRecord
	for from := uint64(0); ; from = uint64(len(got)) {
		part, err := read(from, 3)
		must(t, err)
		if part.GetSize() != size || from > 0 && string(part.GetBefore()) != string(all[from-1].GetLeafHash()) {
			t.Fatalf("from %d: size %d, before %x", from, part.GetSize(), part.GetBefore())
		}
		if got = append(got, part.GetRecords()...); len(part.GetRecords()) == 0 {
			break
		}
	}
	if uint64(len(got)) != size {
		t.Fatalf("%d of %d records", len(got), size)
	}
	for i, r := range got {
		e := all[i]
		want := proto.CloneOf(e.GetRecord())
		if body := want.GetBody(); body != nil {
			body.Statement, body.ResultDigest = nil, nil
		}
		if what == server.ForwardHeaders {
			want.Body = nil
		}
		if r.GetIndex() != e.GetIndex() || r.GetWriter() != e.GetWriter() || string(r.GetLeafHash()) != string(e.GetLeafHash()) || !proto.Equal(r.GetRecord(), want) {
			t.Errorf("record %d: %v, want %v", i, r, want)
		}
	}
	if what == server.ForwardHeaders {
		return
	}
	// A field that the contract gains is not forwarded by that alone: who adds one looks here.
	forwarded := []protoreflect.Name{
		"principal", "session", "channel", "source", "arguments", "summary", "confirmed", "duration_ms", "dangerous", "parent_request_id", "action",
		"reason", "persistent", "decision_source", "details",
	}
	last, err := read(size-1, 1)
	must(t, err)
	fields := (&auditv1.Body{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if has := last.GetRecords()[0].GetRecord().GetBody().ProtoReflect().Has(fields.Get(i)); has != slices.Contains(forwarded, fields.Get(i).Name()) {
			t.Errorf("the field %s is forwarded: %v", fields.Get(i).Name(), has)
		}
	}
}

// TestForwardingIsTold: status says how far each destination is and what keeps it, and that no relay came.
func TestForwardingIsTold(t *testing.T) {
	h := newForwardingHouse(t, server.ForwardHeaders)
	h.fill()
	now := time.Now()
	if records, waits := h.forwarding.Behind(9, now.Add(time.Hour)); records != 9 || waits < time.Hour {
		t.Errorf("no relay came: %d records, %s", records, waits)
	}
	relay := auditv1.NewForwardServiceClient(h.as(optionsv1.Role_ROLE_RELAY, "main"))
	for _, r := range []*auditv1.ReadRecordsRequest{
		{Destination: "siem", FromIndex: 4, Problem: "the collector refuses"}, {Destination: "other", FromIndex: 9}, {Destination: "ahead", FromIndex: 99},
	} {
		_, err := relay.ReadRecords(t.Context(), r)
		if (err != nil) != (r.GetDestination() == "ahead") {
			t.Fatal(err)
		}
	}
	status, err := h.history().GetStatus(t.Context(), &auditv1.GetStatusRequest{})
	if err != nil || status.GetForward() != "headers" || len(status.GetForwarding()) != 3 {
		t.Fatalf("%v, %v", status, err)
	}
	ahead, other, siem := status.GetForwarding()[0], status.GetForwarding()[1], status.GetForwarding()[2]
	if siem.GetNextIndex() != 4 || siem.GetWaitsSince() == nil || siem.GetProblem() != "the collector refuses" || other.GetWaitsSince() != nil || ahead.GetProblem() == "" {
		t.Errorf("%v", status.GetForwarding())
	}
	if records, waits := h.forwarding.Behind(99, now.Add(time.Hour)); records != 95 || waits < 59*time.Minute {
		t.Errorf("%d records behind, for %s", records, waits)
	}
	if records, waits := h.forwarding.Behind(9, now.Add(time.Hour)); records != 9 || waits < time.Hour {
		t.Errorf("the log was put back: %d records, %s", records, waits)
	}
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		_, err = relay.ReadRecords(t.Context(), &auditv1.ReadRecordsRequest{Destination: name})
	}
	if !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) || len(h.forwarding.Status()) != 8 {
		t.Errorf("a ninth destination: %v", err)
	}
}
