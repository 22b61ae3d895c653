package forward

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// entry is a name and what a record says under it.
type entry struct{ name, value string }

// fields are what a record says beside its summary, those that say something, in one order for every destination.
func fields(r *auditv1.ForwardedRecord) []entry {
	record, body := r.GetRecord(), r.GetRecord().GetBody()
	word := func(enum interface{ String() string }, prefix string) string {
		name := strings.TrimPrefix(enum.String(), prefix)
		if name == "UNSPECIFIED" {
			return ""
		}
		return strings.ToLower(name)
	}
	yes := func(b bool) string {
		if b {
			return "true"
		}
		return ""
	}
	duration := ""
	if body.GetDurationMs() > 0 {
		duration = strconv.FormatUint(uint64(body.GetDurationMs()), 10)
	}
	all := []entry{
		{"index", strconv.FormatUint(r.GetIndex(), 10)},
		{"leaf", hash(r.GetLeafHash())},
		{"writer", r.GetWriter()},
		{"sequence", strconv.FormatUint(record.GetSequence(), 10)},
		{"kind", kindOf(r)},
		{"status", word(record.GetStatus(), "STATUS_")},
		{"request", record.GetRequestId()},
		{"parent", body.GetParentRequestId()},
		{"operation", record.GetOperationId()},
		{"tool", record.GetTool()},
		{"tier", word(record.GetTier(), "TIER_")},
		{"principal", body.GetPrincipal()},
		{"session", body.GetSession()},
		{"channel", word(body.GetChannel(), "CHANNEL_")},
		{"source", body.GetSource()},
		{"action", body.GetAction()},
		{"reason", body.GetReason()},
		{"decided_by", body.GetDecisionSource()},
		{"confirmed", yes(body.GetConfirmed())},
		{"dangerous", yes(body.GetDangerous())},
		{"persistent", yes(body.GetPersistent())},
		{"duration_ms", duration},
		{"arguments", body.GetArguments()},
	}
	return slices.DeleteFunc(all, func(e entry) bool { return e.value == "" })
}

// details are a record's further facts, by name.
func details(r *auditv1.ForwardedRecord) []entry {
	all := r.GetRecord().GetBody().GetDetails()
	var out []entry
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, entry{name, all[name]})
	}
	return out
}

func kindOf(r *auditv1.ForwardedRecord) string {
	return strings.ToLower(strings.TrimPrefix(r.GetRecord().GetKind().String(), "KIND_"))
}

// said is the one line of a record that people read first.
func said(r *auditv1.ForwardedRecord) string {
	body := r.GetRecord().GetBody()
	for _, s := range []string{body.GetSummary(), body.GetAction(), body.GetReason()} {
		if s != "" {
			return s
		}
	}
	return strings.TrimSpace(kindOf(r) + " " + r.GetRecord().GetTool())
}

// level is how loud a record is, in syslog's severities and OTLP's.
type level struct {
	syslog int
	otlp   logspb.SeverityNumber
}

func levelOf(r *auditv1.ForwardedRecord) level {
	switch r.GetRecord().GetStatus() {
	case auditv1.Status_STATUS_ERROR, auditv1.Status_STATUS_TIMEOUT, auditv1.Status_STATUS_UNKNOWN:
		return level{3, logspb.SeverityNumber_SEVERITY_NUMBER_ERROR}
	case auditv1.Status_STATUS_DENIED:
		return level{4, logspb.SeverityNumber_SEVERITY_NUMBER_WARN}
	default:
	}
	switch r.GetRecord().GetKind() {
	case auditv1.Kind_KIND_DENIED, auditv1.Kind_KIND_REFUSED, auditv1.Kind_KIND_SINK_REFUSED, auditv1.Kind_KIND_AUTHENTICATION_FAILED,
		auditv1.Kind_KIND_HALTED, auditv1.Kind_KIND_CONFIG_REFUSED:
		return level{4, logspb.SeverityNumber_SEVERITY_NUMBER_WARN}
	default:
	}
	if r.GetRecord().GetTier() == optionsv1.Tier_TIER_DESTRUCTIVE || r.GetRecord().GetBody().GetDangerous() {
		return level{5, logspb.SeverityNumber_SEVERITY_NUMBER_INFO3}
	}
	return level{6, logspb.SeverityNumber_SEVERITY_NUMBER_INFO}
}

func nanos(at *timestamppb.Timestamp) uint64 {
	if n := at.AsTime().UnixNano(); at.IsValid() && n > 0 {
		return uint64(n)
	}
	return 0
}
