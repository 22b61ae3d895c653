package recorder

import (
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"durward.internal/services/platform/telemetry/span"
)

// A batch is in the trace of its first record that is traced and points to the others, once each; a record that nobody
// traces has no part in it.
func TestABatchIsInTheTracesOfItsRecords(t *testing.T) {
	ended := tracetest.NewSpanRecorder()
	tracer := span.Tracer(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(ended)))
	_, first := tracer.Start(t.Context(), "first")
	_, second := tracer.Start(t.Context(), "second")
	untraced := trace.SpanFromContext(t.Context())

	ctx, s := begin(t.Context(), []*item{{span: untraced}, {span: untraced}})
	s.End()
	if ctx != t.Context() || len(ended.Ended()) != 0 {
		t.Errorf("a batch that nobody traces: %v", ended.Ended())
	}
	ctx, s = begin(t.Context(), []*item{{span: untraced}, {span: first}, {span: first}, {span: second}})
	if trace.SpanFromContext(ctx) != s {
		t.Error("the batch's context does not carry its span")
	}
	s.End()
	got := ended.Ended()[0]
	if got.Name() != span.Append || got.Parent().SpanID() != first.SpanContext().SpanID() {
		t.Errorf("%s is under %v", got.Name(), got.Parent())
	}
	if links := got.Links(); len(links) != 1 || links[0].SpanContext.SpanID() != second.SpanContext().SpanID() {
		t.Errorf("it points to %v", links)
	}
	if a := got.Attributes(); len(a) != 1 || a[0] != span.Records.Int(4) {
		t.Errorf("it says %v", a)
	}
}

// A caller's span covers its wait, and ends with the code of what became of the record.
func TestRecordIsTraced(t *testing.T) {
	ended := tracetest.NewSpanRecorder()
	tracer := span.Tracer(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(ended)))
	a := newAudit(t)
	r := start(t, a, newStore())
	ctx, root := tracer.Start(t.Context(), "root")
	if _, err := r.Record(ctx, record("r-1")); err != nil {
		t.Fatal(err)
	}
	stop(t, r)
	if _, err := r.Record(ctx, record("r-2")); err == nil {
		t.Error("a closed recorder records")
	}
	root.End()
	status := map[string]int{}
	for _, s := range ended.Ended() {
		for _, attribute := range s.Attributes() {
			if attribute.Key == span.Status {
				status[s.Name()+" "+attribute.Value.AsString()]++
			}
		}
	}
	if status["audit record ok"] != 1 || status["audit append ok"] != 1 || status["audit record AUDIT_UNAVAILABLE"] != 1 {
		t.Errorf("spans %v", status)
	}
	if r.Capacity() != MaxSpooled || r.Queued() != 0 {
		t.Errorf("capacity %d, queued %d", r.Capacity(), r.Queued())
	}
}
