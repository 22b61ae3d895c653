package forward

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/clean"
)

// OTLP sends records to a collector as OTLP logs over gRPC. The exporter of OpenTelemetry's SDK is not used: it hides from its caller what
// a collector refused of a batch, takes settings from the environment, and links an HTTP gateway.
type OTLP struct {
	conn   grpc.ClientConnInterface
	origin string
}

// NewOTLP returns a destination behind a connection, whose error is a status of the collector's, or why there is no connection. origin is
// the log's name.
func NewOTLP(conn grpc.ClientConnInterface, origin string) *OTLP {
	return &OTLP{conn: conn, origin: origin}
}

// Send implements Destination. LogsData is ExportLogsServiceRequest under another name: OTLP keeps the two alike on the wire.
func (o *OTLP) Send(ctx context.Context, records []*auditv1.ForwardedRecord) error {
	scope := &logspb.ScopeLogs{Scope: &commonpb.InstrumentationScope{Name: "durward.audit"}}
	for _, r := range records {
		scope.LogRecords = append(scope.LogRecords, o.record(r))
	}
	var answer emptypb.Empty
	err := o.conn.Invoke(ctx, "/opentelemetry.proto.collector.logs.v1.LogsService/Export", &logspb.LogsData{ResourceLogs: []*logspb.ResourceLogs{{
		Resource:  &resourcepb.Resource{Attributes: []*commonpb.KeyValue{text("service.name", "durward"), text("service.namespace", o.origin)}},
		ScopeLogs: []*logspb.ScopeLogs{scope},
	}}}, &answer)
	if _, answered := status.FromError(err); !answered {
		return fmt.Errorf("the collector cannot be reached: %w", err)
	}
	switch status.Code(err) {
	case codes.OK:
		return partial(answer.ProtoReflect().GetUnknown())
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.OutOfRange,
		codes.ResourceExhausted: // also of a batch that is too large for it
		return &Refused{Why: status.Code(err).String()} // its words are a stranger's
	default:
		return fmt.Errorf("the collector does not answer as it should: %s", status.Code(err))
	}
}

// partial reads an ExportLogsServiceResponse, whose field 1 says how many records were refused (field 1 of that one).
func partial(answer []byte) error {
	inner, err := field(answer, protowire.BytesType)
	if err != nil || inner == nil {
		return err
	}
	rejected, err := field(inner, protowire.VarintType)
	if err != nil || rejected == nil {
		return err
	}
	if n, _ := protowire.ConsumeVarint(rejected); n > 0 {
		return &Refused{Why: fmt.Sprintf("%d records of the batch", n)}
	}
	return nil
}

// field returns what a message's field 1 of that type holds, nil for none.
func field(message []byte, want protowire.Type) ([]byte, error) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, errors.New("the collector's answer is none of OTLP's")
		}
		message = message[n:]
		size := protowire.ConsumeFieldValue(number, kind, message)
		if size < 0 {
			return nil, errors.New("the collector's answer is none of OTLP's")
		}
		value := message[:size]
		message = message[size:]
		if number != 1 || kind != want {
			continue
		}
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		return value, nil
	}
	return nil, nil
}

// record is a record in OpenTelemetry's data model of logs. log.record.uid is the same each time that it is sent.
func (o *OTLP) record(r *auditv1.ForwardedRecord) *logspb.LogRecord {
	level := levelOf(r)
	out := &logspb.LogRecord{
		TimeUnixNano: nanos(r.GetRecord().GetTime()), ObservedTimeUnixNano: nanos(r.GetLoggedAt()),
		SeverityNumber: level.otlp, SeverityText: level.otlp.String()[len("SEVERITY_NUMBER_"):], EventName: "durward." + kindOf(r),
		Body:       &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: clean.Visible(said(r))}},
		Attributes: []*commonpb.KeyValue{text("log.record.uid", fmt.Sprintf("%s/%d", o.origin, r.GetIndex()))},
	}
	for _, f := range fields(r) {
		out.Attributes = append(out.Attributes, text("durward."+f.name, f.value))
	}
	for _, f := range details(r) {
		out.Attributes = append(out.Attributes, text("durward.details."+clean.Visible(f.name), f.value))
	}
	return out
}

// text is an attribute. What could hide or command where it is shown stands there as an escape.
func text(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: clean.Visible(value)}}}
}

func hash(b []byte) string { return hex.EncodeToString(b) }
