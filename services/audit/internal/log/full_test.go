package log_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/reserve"
)

// TestFullDisk runs the log on a disk that is really full: what would start or read something is refused, unwritten, and a
// halt, a human's no and the whole story of a stop are recorded, across a restart. With room again everything is.
func TestFullDisk(t *testing.T) {
	dir := platformtest.SmallDisk(t, 16<<20)
	if dir == "" {
		return // it ran in a process of its own
	}
	kept, err := reserve.Open(dir, 6<<20)
	must(t, err)
	r := newRigIn(t, dir, kept)
	me, other := writers[0], writers[1]
	of := func(kind auditv1.Kind, tool, action string) func(string) *auditv1.Record {
		return func(writer string) *auditv1.Record {
			record := r.record(writer, strings.Repeat("x", 400))
			record.Kind, record.Tool, record.Body.Action = kind, tool, action
			return record
		}
	}
	r.append(me, r.record(me, "there is room"))
	ballast := filepath.Join(dir, "ballast")
	platformtest.Fill(t, ballast)
	try := func(writer string, make func(string) *auditv1.Record) error {
		record := make(writer)
		_, err := r.log.Append(t.Context(), writer, []*auditv1.Record{record}, 0)
		if err != nil {
			r.next[writer]--
			return err
		}
		r.records[writer] = append(r.records[writer], record)
		return nil
	}
	var refused error
	for i := 0; i < 5000 && refused == nil; i++ { // what the database had allocated already
		refused = try(me, of(auditv1.Kind_KIND_READ, "gpu_status", ""))
	}
	if f := fault.From(refused); refused == nil || f.Code != callv1.Code_CODE_AUDIT_UNAVAILABLE || f.Field != reserve.Field || strings.Contains(f.Message, "full") {
		t.Fatalf("a read on a full disk: %v", refused)
	}
	if kept.InUse() {
		t.Error("a read used the reserve")
	}
	_, err = r.log.Head(t.Context(), me, 1) // which writes nothing
	if must(t, err); r.log.Ready() == nil {
		t.Error("the log says that it is ready")
	}
	for round := range 2 {
		for name, record := range map[string]func(string) *auditv1.Record{
			"a read":               of(auditv1.Kind_KIND_READ, "gpu_status", ""),
			"a start":              of(auditv1.Kind_KIND_INTENT, "start_service", ""),
			"a question":           of(auditv1.Kind_KIND_ASKED, "start_service", "ask"),
			"a session":            of(auditv1.Kind_KIND_SESSION_OPENED, "", "open"),
			"policy's no":          of(auditv1.Kind_KIND_DENIED, "start_service", "policy"),
			"an edge's refusal":    of(auditv1.Kind_KIND_REFUSED, "stop_service", ""),
			"a sink's refusal":     of(auditv1.Kind_KIND_SINK_REFUSED, "stop_service", ""),
			"standing authority":   of(auditv1.Kind_KIND_STANDING_GRANTED, "stop_service", ""),
			"a tool nobody knows":  of(auditv1.Kind_KIND_INTENT, "stop_service_now", ""),
			"a read of what stops": of(auditv1.Kind_KIND_READ, "stop_service", ""),
		} {
			if err := try(other, record); !reserveRefusal(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for name, record := range map[string]func(string) *auditv1.Record{
			"a halt":                 of(auditv1.Kind_KIND_HALTED, "", "halt"),
			"a resume":               of(auditv1.Kind_KIND_RESUMED, "", "resume"),
			"the end of standing":    of(auditv1.Kind_KIND_STANDING_ENDED, "", ""),
			"a mute":                 of(auditv1.Kind_KIND_MUTED, "", "mute"),
			"a human's no":           of(auditv1.Kind_KIND_DENIED, "start_service", reserve.Denial),
			"a stop, asked for":      of(auditv1.Kind_KIND_ASKED, "stop_service", "ask"),
			"a stop, approved":       of(auditv1.Kind_KIND_APPROVED, "stop_service", "approve"),
			"a stop, granted":        of(auditv1.Kind_KIND_GRANTED, "stop_service", "grant"),
			"a stop, redeemed":       of(auditv1.Kind_KIND_REDEEMED, "stop_service", "redeem"),
			"a stop, about to begin": of(auditv1.Kind_KIND_INTENT, "stop_service", ""),
			"a stop, done":           of(auditv1.Kind_KIND_OUTCOME, "stop_service", ""),
		} {
			for range 5 {
				if err := try(other, record); err != nil {
					t.Fatalf("%s: %v: %v", name, err, errors.Unwrap(err))
				}
			}
		}
		// That a process came or went says each of them once a minute; the gateway, that agents talk to, waits until there is room.
		gateway := writers[2]
		for _, kind := range []auditv1.Kind{auditv1.Kind_KIND_STARTED, auditv1.Kind_KIND_STOPPED} {
			if err := try(gateway, of(kind, "", "")); !reserveRefusal(err) {
				t.Errorf("the gateway's %s: %v", kind, err)
			}
			twice := []*auditv1.Record{of(kind, "", "")(me), of(kind, "", "")(me)}
			if _, err := r.log.Append(t.Context(), me, twice, 0); !reserveRefusal(err) {
				t.Errorf("%s twice in a batch: %v", kind, err)
			}
			r.next[me] -= 2
			for _, writer := range []string{me, other} { // what was refused just now took nothing from it
				if err := try(writer, of(kind, "", "")); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
				if err := try(writer, of(kind, "", "")); !reserveRefusal(err) {
					t.Errorf("%s again: %v", kind, err)
				}
			}
			r.clock = r.clock.Add(time.Minute)
			if err := try(me, of(kind, "", "")); err != nil {
				t.Errorf("%s after a minute: %v", kind, err)
			}
		}
		if !kept.InUse() {
			t.Error("the reserve was not needed: the disk was not full")
		}
		r.check()
		if round == 0 { // a restart while the disk is full
			r.close()
			if kept, err = reserve.Open(dir, 6<<20); err != nil {
				t.Fatalf("the reserve after a restart: %v", err)
			}
			platformtest.Fill(t, filepath.Join(dir, "more"))
			r.kept = kept
			r.open()
		}
	}
	// A batch with a stranger in it is refused whole.
	mixed := []*auditv1.Record{of(auditv1.Kind_KIND_HALTED, "", "halt")(me), of(auditv1.Kind_KIND_READ, "", "")(me)}
	if _, err := r.log.Append(t.Context(), me, mixed, 0); !reserveRefusal(err) {
		t.Errorf("a halt with a read behind it: %v", err)
	}
	r.next[me] -= 2
	if err := errors.Join(os.Remove(ballast), os.Remove(filepath.Join(dir, "more")), kept.Refill()); err != nil || kept.InUse() {
		t.Fatalf("with room again: %v, given up %v", err, kept.InUse())
	}
	if err := try(me, of(auditv1.Kind_KIND_READ, "gpu_status", "")); err != nil || r.log.Ready() != nil {
		t.Errorf("with room again: %v, ready: %v", err, r.log.Ready())
	}
	r.check()
}

func reserveRefusal(err error) bool {
	return fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) && fault.From(err).Field == reserve.Field
}
