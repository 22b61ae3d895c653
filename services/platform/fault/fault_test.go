package fault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

var errSecret = errors.New("open /var/lib/durward/state.db: SELECT password FROM keys")

func TestFrom(t *testing.T) {
	known := fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such service", fault.WithField("service_id"),
		fault.WithSuggestions("a", "b", "c", "d", "e", "f"), fault.WithCause(errSecret))
	for name, tc := range map[string]struct {
		err  error
		want fault.Error
	}{
		"unknown error": {errSecret, fault.Error{Code: callv1.Code_CODE_INTERNAL, Message: "internal error"}},
		"deadline":      {fmt.Errorf("x: %w", context.DeadlineExceeded), fault.Error{Code: callv1.Code_CODE_TIMEOUT, Message: "the call took too long", Retryable: true}},
		"cancelled":     {context.Canceled, fault.Error{Code: callv1.Code_CODE_UNAVAILABLE, Message: "the call was cancelled", Retryable: true}},
		"fault":         {known, fault.Error{Code: callv1.Code_CODE_NOT_FOUND, Message: "there is no such service", Field: "service_id", DidYouMean: []string{"a", "b", "c", "d", "e"}}},
		"wrapped fault": {fmt.Errorf("row 7: %w", known), fault.Error{Code: callv1.Code_CODE_NOT_FOUND, Message: "there is no such service", Field: "service_id", DidYouMean: []string{"a", "b", "c", "d", "e"}}},
		"unreachable": {status.Error(codes.Unavailable, "dial tcp 10.0.0.1: refused"),
			fault.Error{Code: callv1.Code_CODE_UNAVAILABLE, Message: "a process of Durward cannot be reached", Retryable: true, RetryAfter: time.Second}},
		"peer's deadline":  {status.Error(codes.DeadlineExceeded, "x"), fault.Error{Code: callv1.Code_CODE_UNAVAILABLE, Message: "a process of Durward cannot be reached", Retryable: true, RetryAfter: time.Second}},
		"message too long": {status.Error(codes.ResourceExhausted, "grpc: received message larger than max"), fault.Error{Code: callv1.Code_CODE_TOO_LARGE, Message: "the message is too large"}},
		"bare denial":      {status.Error(codes.PermissionDenied, "because /etc"), fault.Error{Code: callv1.Code_CODE_DENIED, Message: "not allowed"}},
		"foreign status":   {status.Error(codes.Unknown, "panic at main.go:3"), fault.Error{Code: callv1.Code_CODE_INTERNAL, Message: "internal error"}},
		"unknown code": {withDetail(t, &callv1.Fault{Code: 9999, Message: "new"}),
			fault.Error{Code: callv1.Code_CODE_INTERNAL, Message: "internal error"}},
		"hostile text": {withDetail(t, &callv1.Fault{Code: callv1.Code_CODE_FAILED, Message: "a\x1b[31mb\nc" + strings.Repeat("x", 5000), Field: "f\x07", DidYouMean: []string{"\u202ex", "2", "3", "4", "5", "6"}, RetryAfterS: 1 << 31}),
			fault.Error{Code: callv1.Code_CODE_FAILED, Message: "ab c" + strings.Repeat("x", 495) + "…", Field: "f", DidYouMean: []string{"x", "2", "3", "4", "5"}, RetryAfter: 24 * time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			got := fault.From(tc.err)
			if diff := cmp.Diff(tc.want, *got, cmpopts.IgnoreFields(fault.Error{}, "Cause")); diff != "" {
				t.Error(diff)
			}
			if !errors.Is(tc.err, known) && !errors.Is(got, tc.err) {
				t.Errorf("the cause %v is lost", tc.err)
			}
		})
	}
	if fault.From(nil) != nil {
		t.Error("From(nil) is not nil")
	}
}

func withDetail(t *testing.T, f *callv1.Fault) error {
	st, err := status.New(codes.Internal, "x").WithDetails(f)
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

// Every code survives the way over the wire, and nothing private goes with it.
func TestStatusRoundTrip(t *testing.T) {
	for number, name := range callv1.Code_name {
		if number == 0 {
			continue
		}
		sent := fault.New(callv1.Code(number), "a sentence", fault.WithField("tool.name"), fault.WithRetry(1500*time.Millisecond),
			fault.WithSuggestions("one"), fault.WithCause(errSecret))
		st := sent.GRPCStatus("r-1")
		if st.Code() == codes.OK {
			t.Errorf("%s has no gRPC code", name)
		}
		if strings.Contains(st.Proto().String(), "SELECT") || strings.Contains(sent.Error(), "SELECT") {
			t.Errorf("%s: the cause is public", name)
		}
		got := fault.From(st.Err())
		want := fault.Error{Code: callv1.Code(number), Message: "a sentence", Field: "tool.name", Retryable: true, RetryAfter: 2 * time.Second, DidYouMean: []string{"one"}}
		if diff := cmp.Diff(want, *got, cmpopts.IgnoreFields(fault.Error{}, "Cause")); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if !fault.Is(fmt.Errorf("wrapped: %w", got), callv1.Code(number)) || fault.Is(got, callv1.Code_CODE_UNSPECIFIED) {
			t.Errorf("%s: Is does not tell", name)
		}
		if got := sent.Proto("r-1").GetRequestId(); got != "r-1" {
			t.Errorf("request id %q", got)
		}
	}
}

// Every code but our own mistake has a status of its own: a new one that is forgotten would look like a crash.
func TestEveryCodeHasAStatus(t *testing.T) {
	values := callv1.Code(0).Descriptor().Values()
	for i := range values.Len() {
		code := callv1.Code(values.Get(i).Number())
		ours := code == callv1.Code_CODE_INTERNAL || code == callv1.Code_CODE_UNSPECIFIED
		if got := fault.New(code, "a sentence").GRPCStatus("r-1").Code(); got == codes.OK || (got == codes.Internal) != ours {
			t.Errorf("%s is %s", code, got)
		}
	}
}

// What a fault says to its caller may repeat what the caller sent; a log holds the code, the field and our own cause.
func TestLogHoldsNoSentence(t *testing.T) {
	const sent = "what the caller sent"
	own := fault.New(callv1.Code_CODE_FAILED, sent+" did not start", fault.WithField("service_id"), fault.WithCause(errors.New("exit status 2")))
	relayed := fault.From(own.GRPCStatus("r-1").Err())
	wrapped := fault.New(callv1.Code_CODE_UNAVAILABLE, "not now", fault.WithCause(fmt.Errorf("the vault said: %w", own)))
	for name, c := range map[string]struct {
		fault *fault.Error
		want  string
	}{
		"own":          {own, `{"code":"CODE_FAILED","field":"service_id","cause":"exit status 2"}`},
		"a peer's":     {relayed, `{"code":"CODE_FAILED","field":"service_id"}`},
		"around one":   {wrapped, `{"code":"CODE_UNAVAILABLE","cause":{"code":"CODE_FAILED","field":"service_id","cause":"exit status 2"}}`},
		"of transport": {fault.From(status.Error(codes.Unavailable, "refused")), `{"code":"CODE_UNAVAILABLE","cause":"rpc error: code = Unavailable desc = refused"}`},
	} {
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Error("x", "fault", c.fault)
		if !strings.Contains(log.String(), `"fault":`+c.want+"}") {
			t.Errorf("%s is logged as %s, want %s", name, log.String(), c.want)
		}
	}
}

// A text that shows what is inside goes no further, whoever made it: neither out of this process nor on from a peer.
func TestLeaksDoNotTravel(t *testing.T) {
	const leak = "open /var/lib/durward/vault.db: no such file"
	f := fault.New(callv1.Code_CODE_NOT_FOUND, leak, fault.WithField(leak), fault.WithSuggestions(leak, "demo-chat"), fault.WithCause(errors.New(leak)))
	want := &callv1.Fault{Code: callv1.Code_CODE_NOT_FOUND, Message: fault.Internal, DidYouMean: []string{"demo-chat"}, RequestId: "r-1"}
	if diff := cmp.Diff(want, f.Proto("r-1"), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if st := f.GRPCStatus("r-1"); strings.Contains(st.String(), "/var/") || strings.Contains(fmt.Sprint(st.Details()), "/var/") {
		t.Errorf("the status says %v %v", st, st.Details())
	}
	got := fault.FromProto(&callv1.Fault{Code: callv1.Code_CODE_NOT_FOUND, Message: leak, Field: leak, DidYouMean: []string{leak, "demo-chat"}}, nil)
	if got.Message != fault.Internal || got.Field != "" || len(got.DidYouMean) != 1 {
		t.Errorf("%+v", got)
	}
}
