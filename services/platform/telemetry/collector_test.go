package telemetry_test

import (
	"encoding/pem"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/telemetry"
)

// A collector is reached in clear on loopback and on a Unix socket, and by TLS where there is an authority for it, which must
// be the collector's.
func TestCollectorIsReached(t *testing.T) {
	web := httptest.NewTLSServer(nil) // for its certificate of 127.0.0.1
	defer web.Close()
	dir := t.TempDir()
	ca, other := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "other.pem")
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
	for path, content := range map[string][]byte{ca: own, other: []byte("no certificate")} {
		must(t, os.WriteFile(path, content, 0o600))
	}
	secure := grpc.Creds(credentials.NewServerTLSFromCert(&web.TLS.Certificates[0]))
	for name, c := range map[string]struct {
		network, address string
		options          []grpc.ServerOption
		ca               string
		reached          bool
	}{
		"loopback":              {"tcp", "127.0.0.1:0", nil, "", true},
		"socket":                {"unix", filepath.Join(dir, "otlp.sock"), nil, "", true},
		"TLS":                   {"tcp", "127.0.0.1:0", []grpc.ServerOption{secure}, ca, true},
		"TLS without authority": {"tcp", "127.0.0.1:0", []grpc.ServerOption{secure}, "", false},
		"authority, but no TLS": {"tcp", "127.0.0.1:0", nil, ca, false},
	} {
		t.Run(name, func(t *testing.T) {
			lis, err := net.Listen(c.network, c.address)
			must(t, err)
			called := make(chan string, 16)
			server := grpc.NewServer(append(c.options, grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
				method, _ := grpc.MethodFromServerStream(s)
				called <- method
				return nil
			}))...)
			go func() { _ = server.Serve(lis) }() // Stop ends it
			defer server.Stop()
			endpoint := lis.Addr().String()
			if c.network == "unix" {
				endpoint = "unix://" + endpoint
			}
			seen := open(t, config.Telemetry{OTLP: config.OTLP{Endpoint: endpoint, CA: c.ca}})
			_, s := seen.Tracer().Start(t.Context(), "ping")
			s.End()
			seen.Close()
			select {
			case method := <-called:
				if !c.reached || method != "/opentelemetry.proto.collector.trace.v1.TraceService/Export" {
					t.Errorf("called %s", method)
				}
			default: // Close has sent what there was, or has given up
				if c.reached {
					t.Error("nobody called")
				}
			}
		})
	}
	for path, want := range map[string]string{other: "no certificate", filepath.Join(dir, "missing.pem"): "telemetry.otlp.ca"} {
		_, err := telemetry.Open(telemetry.Config{
			Service: "x", Lifetime: lifetime, Settings: config.Telemetry{OTLP: config.OTLP{Endpoint: "127.0.0.1:1", CA: path}},
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
