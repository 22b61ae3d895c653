package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	logspb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"google.golang.org/grpc"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/platformtest/syslogtest"
)

// logCollector is a collector of OTLP logs that can be stopped and started again at its address.
type logCollector struct {
	logspb.UnimplementedLogsServiceServer
	address string
	server  *grpc.Server

	mu  sync.Mutex
	got []uint64
	ids map[string]bool
}

// Export implements logspb.LogsServiceServer.
func (c *logCollector) Export(_ context.Context, r *logspb.ExportLogsServiceRequest) (*logspb.ExportLogsServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.GetResourceLogs() {
		for _, scope := range resource.GetScopeLogs() {
			for _, record := range scope.GetLogRecords() {
				for _, a := range record.GetAttributes() {
					switch a.GetKey() {
					case "durward.index":
						i, err := strconv.ParseUint(a.GetValue().GetStringValue(), 10, 64)
						if err != nil {
							return nil, err
						}
						c.got = append(c.got, i)
					case "log.record.uid":
						c.ids[a.GetValue().GetStringValue()] = true
					}
				}
			}
		}
	}
	return &logspb.ExportLogsServiceResponse{}, nil
}

func (c *logCollector) start(t *testing.T) {
	t.Helper()
	lis, err := net.Listen("tcp", c.address)
	must(t, err)
	c.server = grpc.NewServer()
	logspb.RegisterLogsServiceServer(c.server, c)
	server := c.server
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
}

func (c *logCollector) indexes() ([]uint64, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]uint64(nil), c.got...), len(c.ids)
}

// whole reports an error unless indexes from 0 to below size are there, the first of each in order.
func whole(indexes []uint64, size uint64) error {
	next := uint64(0)
	for _, i := range indexes {
		if i > next {
			return fmt.Errorf("record %d came before record %d", i, next)
		}
		if i == next {
			next++
		}
	}
	if next < size {
		return fmt.Errorf("%d of %d records came", next, size)
	}
	return nil
}

// TestForwarded runs the built programs with a syslog receiver and an OTLP collector, each killed and started again, a relay and an
// audit that are started again: each has every record, in order. Nothing is forwarded until audit's own file says so.
func TestForwarded(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{})
	h.StartAll()
	must(t, os.Mkdir(h.Path("tls", "relay"), 0o700))
	h.Durward("cert", "renew")
	siem, otlp := syslogtest.New(t), &logCollector{address: fmt.Sprintf("127.0.0.1:%d", h.Port(2)), ids: map[string]bool{}}
	otlp.start(t)
	h.WriteFile("auditrelay.yaml", fmt.Sprintf(`audit: {address: %q, identity: %q}
trust_dir: %s
tls: {certificate: %s, key: %s}
state_dir: %s
forward:
  - {name: siem, syslog: %q, authorities: %s}
  - {name: lake, otlp: %q}
`, h.Address(harness.Audit), h.Identity(harness.Audit), h.Path("trust"), h.Path("tls", "relay", "cert.pem"), h.Path("tls", "relay", "key.pem"),
		h.Path("forwarded"), siem.Address, siem.CA, otlp.address))
	relay := func() (kill func(), log func() string) {
		stop, log := daemon(t, h, "auditrelay", "-development", "-config", h.Path("auditrelay.yaml"))
		return stop, log
	}
	mutate(t, h, h.Connect(h.AddClient("agent")), "start_service")
	approved := h.Records(&auditv1.SearchRecordsRequest{Kinds: []auditv1.Kind{auditv1.Kind_KIND_APPROVED}})
	if len(approved) != 1 || len(approved[0].GetRecord().GetBody().GetStatement().GetSignature()) == 0 {
		t.Fatalf("the log has no signed statement that could be forwarded: %v", approved)
	}
	stop, log := relay()
	harness.Eventually(t, "audit forwards nothing that its file does not name", func() error {
		if said := log(); !strings.Contains(said, "its key forward is empty") {
			return errors.New(said)
		}
		return nil
	})
	if messages, _ := siem.Got(); len(messages) > 0 {
		t.Fatalf("%d records were forwarded", len(messages))
	}
	stop()
	audit := h.Process(harness.Audit)
	audit.Stop()
	h.WriteFile("config/audit.yaml", h.ReadFile("config/audit.yaml")+"\nforward: records\n")
	h.StartProcess(harness.Audit)
	if out := h.Run("", "status"); !strings.Contains(out.Stdout, "FORWARDED NOWHERE") {
		t.Errorf("status before a relay came:\n%s", out.Stdout)
	}

	stop, log = relay()
	written := 1
	size := func() uint64 {
		var status struct{ Audit struct{ Size uint64 } }
		h.DurwardJSON(&status, "status")
		return status.Audit.Size
	}
	caught := func(what string) {
		t.Helper()
		want := size()
		harness.Eventually(t, what, func() error {
			messages, broken := siem.Got()
			if len(broken) > 0 {
				return fmt.Errorf("not syslog: %q", broken)
			}
			var got []uint64
			for _, m := range messages {
				i, err := strconv.ParseUint(m.Parameters["index"], 10, 64)
				if err != nil {
					return err
				}
				got = append(got, i)
			}
			lake, _ := otlp.indexes()
			if err := errors.Join(whole(got, want), whole(lake, want)); err != nil {
				return fmt.Errorf("%w\n%s", err, log())
			}
			return nil
		})
	}
	for round := range 3 {
		siem.DieAfter(20 + 90*round)
		otlp.server.Stop()
		notes(t, h, "scribe", written, 400)
		written += 400
		harness.Eventually(t, "status says that it is behind", func() error {
			if out := h.Run("", "status"); !siem.Dead() || !strings.Contains(out.Stdout, "NOT FORWARDED to siem") || !strings.Contains(out.Stdout, "NOT FORWARDED to lake") {
				return errors.New(out.Stdout + log())
			}
			return nil
		})
		stop()
		siem.Kill()
		siem.Start()
		otlp.start(t)
		audit = h.Process(harness.Audit)
		audit.Stop()
		h.StartProcess(harness.Audit)
		stop, log = relay()
		caught(fmt.Sprint("everything came, round ", round))
	}
	harness.Eventually(t, "status says that it is forwarded", func() error {
		if out := h.Run("", "status"); !strings.Contains(out.Stdout, "forwarded to lake") || !strings.Contains(out.Stdout, "forwarded to siem") {
			return errors.New(out.Stdout)
		}
		return nil
	})
	indexes, ids := otlp.indexes()
	distinct := map[uint64]bool{}
	for _, i := range indexes {
		distinct[i] = true
	}
	if len(distinct) != ids {
		t.Errorf("%d records came, %d of them for the first time, under %d ids", len(indexes), len(distinct), ids)
	}
	// The signed statements of the log stay in it.
	messages, _ := siem.Got()
	for _, m := range messages {
		if strings.Contains(m.Raw, "SSH SIGNATURE") || strings.Contains(m.Raw, "durward-approval") {
			t.Errorf("a human's statement left the host: %s", m.Raw)
		}
	}
}
