package fault_test

import (
	"errors"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
)

func TestValidation(t *testing.T) {
	record := func(b *auditv1.Body) *auditv1.AppendRequest {
		return &auditv1.AppendRequest{Records: []*auditv1.Record{{Sequence: 1, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.Now(), Body: b}}}
	}
	for name, tc := range map[string]struct {
		m           proto.Message
		field, text string
	}{
		"missing":      {&executorv1.StartServiceRequest{}, "service_id", "service_id is required"},
		"pattern, id":  {&executorv1.StartServiceRequest{ServiceId: proto.String("a;rm -rf /")}, "service_id", "service_id does not match the pattern of an id"},
		"too long":     {&vaultv1.DenyOperationRequest{OperationId: strings.Repeat("0", 32), Reason: strings.Repeat("x", 501)}, "reason", "reason is too long, the most is 500"},
		"number":       {&auditv1.SearchRecordsRequest{Limit: 5000}, "limit", "limit is too large, the most is 1000"},
		"no records":   {&auditv1.AppendRequest{}, "records", "records has too few entries, the least is 1"},
		"enum":         {&auditv1.AppendRequest{Records: []*auditv1.Record{{Sequence: 1, Kind: 999, Time: timestamppb.Now()}}}, "records.kind", "records.kind is not one of the known values"},
		"enum not in":  {&auditv1.AppendRequest{Records: []*auditv1.Record{{Sequence: 1, Time: timestamppb.Now()}}}, "records.kind", "records.kind is not one of the allowed values"},
		"nested, list": {record(&auditv1.Body{Session: strings.Repeat("s", 65)}), "records.body.session", "records.body.session is too long, the most is 64"},
		"map value":    {record(&auditv1.Body{Details: map[string]string{"INJECTED": strings.Repeat("x", 2000)}}), "records.body.details", "records.body.details is too long, the most is 1024"},
		"map key":      {record(&auditv1.Body{Details: map[string]string{strings.Repeat("INJECTED", 20): "x"}}), "records.body.details", "a key of records.body.details is too long, the most is 64"},
		"bytes":        {&callv1.SignedGrant{Payload: []byte("x"), Kid: "k", Signature: []byte("x")}, "signature", "signature has the wrong length, it must be 64"},
	} {
		t.Run(name, func(t *testing.T) {
			f := fault.Validation(protovalidate.Validate(tc.m))
			if f == nil || f.Code != callv1.Code_CODE_INVALID_ARGUMENT || f.Field != tc.field || f.Message != tc.text {
				t.Errorf("got %+v, want %q at %q", f, tc.text, tc.field)
			}
			if text := f.Message + f.Field + f.Cause.Error(); strings.Contains(text, "INJECTED") || strings.Contains(text, "rm -rf") {
				t.Errorf("repeats what was sent: %s", text)
			}
		})
	}
	if f := fault.Validation(errors.New("compile: x")); f.Code != callv1.Code_CODE_INTERNAL || f.Message != fault.Internal {
		t.Errorf("a broken rule is %+v", f)
	}
	if fault.Validation(nil) != nil {
		t.Error("Validation(nil) is not nil")
	}
}
