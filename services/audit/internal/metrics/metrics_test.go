package metrics

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/telemetry/telemetrytest"
)

type disk struct {
	folder string
	broken error
}

func (disk) Size() uint64             { return 12 }
func (disk) Waiting() (now, most int) { return 3, 256 }
func (d disk) Ready() error           { return d.broken }
func (disk) Bytes() uint64            { return 4096 }
func (disk) Growth(context.Context, time.Time) (store.Growth, error) {
	return store.Growth{Records: 100, Bytes: 4000}, nil
}
func (d disk) Folder() string { return d.folder }
func (d disk) Follows() bool  { return d.folder == "" }

// TestServer: a process that follows says so, and knows nothing of another host's disk.
func TestServer(t *testing.T) {
	registry := prometheus.NewRegistry()
	New(registry, disk{}, disk{})
	values := telemetrytest.Samples(t, registry)
	if _, known := values["durward_audit_disk_free_bytes"]; known || values["durward_audit_log_growth_bytes_per_day"] != 4000 || values["durward_audit_log_leads"] != 0 {
		t.Errorf("%v", values)
	}
}

// hanging is a store whose database answers nobody.
type hanging struct {
	disk
	ended chan struct{}
}

func (h hanging) Bytes() uint64 { <-h.ended; return 0 }
func (hanging) Growth(ctx context.Context, _ time.Time) (store.Growth, error) {
	<-ctx.Done()
	return store.Growth{}, ctx.Err()
}

// TestADatabaseThatHangs keeps no scrape from telling that the log cannot be written.
func TestADatabaseThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, ended := prometheus.NewRegistry(), make(chan struct{})
		defer close(ended)
		New(registry, disk{broken: errors.New("it hangs")}, hanging{ended: ended})
		began := time.Now()
		values := telemetrytest.Samples(t, registry)
		if writable, told := values["durward_audit_log_writable"]; !told || writable != 0 || time.Since(began) >= time.Second { // telemetry ends a scrape then
			t.Errorf("after %v: %v", time.Since(began), values)
		}
	})
}

func TestAppends(t *testing.T) {
	registry := prometheus.NewRegistry()
	here := disk{folder: t.TempDir()}
	m := New(registry, here, here)
	batch := &auditv1.AppendRequest{Records: []*auditv1.Record{{Kind: auditv1.Kind_KIND_READ}, {Kind: auditv1.Kind_KIND_READ}, {Kind: auditv1.Kind_KIND_INTENT}}}
	full := errors.New("disk full")
	for request, err := range map[any]error{batch: nil, &auditv1.AppendRequest{Records: batch.GetRecords()}: full, &auditv1.GetHeadRequest{}: full} {
		if _, got := m.Unary()(t.Context(), request, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, err }); !errors.Is(got, err) {
			t.Errorf("the error is changed to %v", got)
		}
	}
	values := telemetrytest.Samples(t, registry)
	for name, want := range map[string]float64{
		`durward_audit_records_total{kind="read"}`: 2, `durward_audit_records_total{kind="intent"}`: 1,
		`durward_audit_append_duration_seconds{status="ok"}`: 1, `durward_audit_append_duration_seconds{status="error"}`: 1,
	} {
		if values[name] != want {
			t.Errorf("%s is %v, want %v", name, values[name], want)
		}
	}
	if values["durward_audit_log_records"] != 12 || values["durward_audit_requests_waiting"] != 3 || values["durward_audit_requests_waiting_limit"] != 256 || values["durward_audit_log_bytes"] != 4096 || values["durward_audit_log_writable"] != 1 || values["durward_audit_log_leads"] != 1 ||
		values["durward_audit_disk_free_bytes"] <= 0 || values["durward_audit_disk_bytes"] < values["durward_audit_disk_free_bytes"] {
		t.Errorf("%v", values)
	}
}

// A disk that cannot be asked has no room, and a log that cannot be written says so: what alerts look for.
func TestTrouble(t *testing.T) {
	registry := prometheus.NewRegistry()
	gone := disk{folder: "/nowhere", broken: errors.New("read-only")}
	New(registry, gone, gone)
	values := telemetrytest.Samples(t, registry)
	if values["durward_audit_disk_free_bytes"] != 0 || values["durward_audit_log_writable"] != 0 {
		t.Errorf("%v", values)
	}
}
