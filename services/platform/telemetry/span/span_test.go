package span_test

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/telemetry/span"
)

// FuzzParse shows that whatever a client sends as traceparent is a whole trace context or none, and that one which is taken
// goes on as it came, without anything beside it.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "00", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
		"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
		"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-user=alice", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01,x",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := span.Parse(s)
		if !got.IsValid() {
			return
		}
		if got.TraceState().Len() > 0 || !got.IsRemote() {
			t.Errorf("%q brings %+v", s, got)
		}
		sent := span.Format(trace.ContextWithSpanContext(context.Background(), got.WithTraceFlags(trace.FlagsSampled)))
		if want := "00-" + got.TraceID().String() + "-" + got.SpanID().String() + "-01"; sent != want {
			t.Errorf("%q goes on as %q, not %q", s, sent, want)
		}
		if again := span.Parse(sent); again.TraceID() != got.TraceID() || again.SpanID() != got.SpanID() {
			t.Errorf("%q is %+v, and again %+v", s, got, again)
		}
	})
}

// What nobody traces costs no allocation and is not sent on.
func TestUntracedIsFree(t *testing.T) {
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		inner, s := span.Start(ctx, span.Record, trace.SpanKindInternal)
		span.End(s, nil)
		if inner != ctx || span.Format(inner) != "" {
			t.Error("something is traced")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	remote := trace.ContextWithRemoteSpanContext(ctx, span.Parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"))
	if got := span.Format(remote); got != "" {
		t.Errorf("an unsampled trace goes on as %q", got)
	}
}

func TestEndShowsTheCodeAlone(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	root, first := span.Tracer(provider).Start(t.Context(), "root")
	defer first.End()
	for _, c := range []struct {
		err    error
		want   string
		failed bool
	}{
		{nil, span.OK, false},
		{fault.New(callv1.Code_CODE_NOT_FOUND, "there is no service alice"), "NOT_FOUND", false},
		{errors.New("open /home/alice: no such file"), "INTERNAL", true},
	} {
		_, s := span.Start(root, span.DriverStart, trace.SpanKindInternal)
		span.End(s, c.err)
		ended := recorder.Ended()
		got := ended[len(ended)-1]
		if n := len(got.Attributes()); n != 1 || got.Attributes()[0] != span.Status.String(c.want) || len(got.Events()) > 0 {
			t.Errorf("%v is shown as %v, %v", c.err, got.Attributes(), got.Events())
		}
		if status := got.Status(); status.Description != "" || (status.Code == codes.Error) != c.failed {
			t.Errorf("%v has the status %+v", c.err, status)
		}
		if got.Parent().SpanID() != first.SpanContext().SpanID() {
			t.Errorf("%v is not under its parent", c.err)
		}
	}
}
