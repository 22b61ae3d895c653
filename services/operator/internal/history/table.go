package history

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/statement"
)

// encoder writes a log in one form or another.
type encoder interface {
	head(checkpoint []byte) error
	entry(e *auditv1.Entry) error
	end() error
}

// formats are how Export writes a log. VerifyFile reads JSONL alone.
var formats = map[string]func(io.Writer) encoder{
	"jsonl": func(w io.Writer) encoder { return lines{w} },
	"json":  func(w io.Writer) encoder { return &object{w: w} },
	"csv":   func(w io.Writer) encoder { return table{w} },
}

type lines struct{ w io.Writer }

func (l lines) head(checkpoint []byte) error { return WriteHead(l.w, checkpoint) }
func (l lines) entry(e *auditv1.Entry) error { return WriteEntry(l.w, e) }
func (lines) end() error                     { return nil }

// object is one JSON object with the checkpoint and all entries.
type object struct {
	w    io.Writer
	some bool
}

func (o *object) head(checkpoint []byte) error {
	text, err := json.Marshal(string(checkpoint))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.w, "{\"checkpoint\":%s,\"entries\":[\n", text)
	return err
}

func (o *object) entry(e *auditv1.Entry) error {
	if o.some {
		if _, err := io.WriteString(o.w, ","); err != nil {
			return err
		}
	}
	o.some = true
	return WriteEntry(o.w, e)
}

func (o *object) end() error {
	_, err := io.WriteString(o.w, "]}\n")
	return err
}

// table is CSV for a spreadsheet: what was recorded, without what proves it.
type table struct{ w io.Writer }

var columns = []string{
	"index", "logged_at", "time", "writer", "kind", "status", "tier", "tool", "request_id", "operation_id", "parent_request_id", "principal", "session",
	"channel", "source", "confirmed", "dangerous", "duration_ms", "action", "summary", "reason", "decision_source", "arguments", "stands_out",
}

func (t table) head([]byte) error { return t.row(columns) }
func (table) end() error          { return nil }

func (t table) entry(e *auditv1.Entry) error {
	r := e.GetRecord()
	b := r.GetBody()
	stamp := func(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000Z") }
	tier := ""
	if r.GetTier() != 0 {
		tier = contract.TierName(r.GetTier())
	}
	summary, channel := b.GetSummary(), ""
	if b.GetChannel() != 0 {
		channel = statement.ChannelName(b.GetChannel())
	}
	if gone := Gone(e); gone != "" {
		summary = gone
	}
	return t.row([]string{
		strconv.FormatUint(e.GetIndex(), 10), stamp(e.GetLoggedAt().AsTime()), stamp(r.GetTime().AsTime()), e.GetWriter(), contract.WordOf(r.GetKind()), contract.WordOf(r.GetStatus()), tier,
		r.GetTool(), r.GetRequestId(), r.GetOperationId(), b.GetParentRequestId(), b.GetPrincipal(), b.GetSession(), channel, b.GetSource(),
		strconv.FormatBool(b.GetConfirmed()), strconv.FormatBool(b.GetDangerous()), strconv.FormatUint(uint64(b.GetDurationMs()), 10), b.GetAction(),
		summary, b.GetReason(), b.GetDecisionSource(), b.GetArguments(), StandsOut(e),
	})
}

func (t table) row(cells []string) error {
	_, err := io.WriteString(t.w, strings.Join(output.Each(cells, Cell), ",")+"\r\n")
	return err
}

// formula is where a spreadsheet would begin one: at a cell's beginning, and behind what another country's spreadsheet ends a cell with.
var formula = pattern.New(`(^|[;,|\t])(\s*["']*\s*)([=+\-@＝＋－＠])`)

// maxCell is less than a spreadsheet's cell may hold.
const maxCell = 32_000

// Cell is a text as a cell of a CSV file that no spreadsheet takes for a formula, on one line and always in quotes. An apostrophe goes
// before each sign that could begin one.
func Cell(text string) string {
	text = formula().ReplaceAllString(clean.Line(text, maxCell), "$1'$2$3")
	return `"` + strings.ReplaceAll(text, `"`, `""`) + `"`
}

// StandsOut says why a reader should look at an entry: what was denied, what failed, what takes something away. "": nothing.
func StandsOut(e *auditv1.Entry) string {
	r := e.GetRecord()
	switch r.GetStatus() {
	case auditv1.Status_STATUS_DENIED:
		return "denied"
	case auditv1.Status_STATUS_ERROR, auditv1.Status_STATUS_TIMEOUT, auditv1.Status_STATUS_UNKNOWN:
		return "failed"
	default:
	}
	switch {
	case r.GetBody().GetDangerous():
		return "dangerous mode"
	case contract.TierName(r.GetTier()) == "DESTRUCTIVE":
		return "destructive"
	}
	return ""
}
