package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/health"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/platformtest/input"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/process"
)

// tlsBlock is what stands below tls in the shipped configuration.
const tlsBlock = "  certificate: /etc/durward/tls/relay/cert.pem\n  key: /etc/durward/tls/relay/key.pem\n" +
	"  # Or SPIRE's agent instead of both, and who listens there: unix:/run/spire/agent/api.sock,user=root. Optional.\n  workload_api: \"\"\n"

// TestCheck runs the program's -check on the shipped configuration and on broken ones.
func TestCheck(t *testing.T) {
	input.Outside(t)
	shipped := testfile.Read(t, filepath.Join("..", "..", "..", "..", "deploy", "config", "auditrelay.yaml"))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "key.pem"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, old, new string
		code           int
		want           string
	}{
		{"an unknown key", "witnesses:", "witness:", 2, "witness"},
		{"neither witness nor destination yet", "witnesses:\n  - https://witness.example.org", "witnesses: []", 0, "ok"},
		{"a witness behind another scheme", "https://witness.example.org", "ftp://witness.example.org", 2, "only http and https"},
		{"a witness with a password", "https://witness.example.org", "https://a:b@witness.example.org", 2, "user or a password"},
		{"a witness's address in another spelling", "https://witness.example.org", "http://0x7f.1:80", 2, "unusual spelling"},
		{"too often", "interval: 10s", "interval: 1ms", 2, "interval"},
		{"audit's address", "address: 127.0.0.1:7433", "address: ''", 2, "audit: address"},
		{"audit's identity", "spiffe://durward.local/audit/main", "audit", 2, "audit: identity"},
		{"a relative trust folder", "trust_dir: /etc/durward/trust", "trust_dir: trust", 2, "trust_dir: must be an absolute path"},
		{"authorities that are not there", `authorities: ""`, "authorities: " + filepath.Join(dir, "absent.pem"), 2, "authorities"},
		{"authorities that are none", `authorities: ""`, "authorities: " + filepath.Join(dir, "key.pem"), 2, "holds no certificate"},
		{"a destination without a name", "forward: []", "forward: [{syslog: 'siem.example.org:6514'}]", 2, "forward[0]: name"},
		{"a destination's name with a path in it", "forward: []", "forward: [{name: '../../x', syslog: 'siem.example.org:6514'}]", 2, "forward[0]: name"},
		{"a destination nowhere", "forward: []", "forward: [{name: siem}]", 2, "must name one of syslog and otlp"},
		{"a destination at two places", "forward: []", "forward: [{name: siem, syslog: 'a.example.org:1', otlp: 'a.example.org:2'}]", 2, "must name one of syslog and otlp"},
		{"a destination without a port", "forward: []", "forward: [{name: siem, syslog: siem.example.org}]", 2, "is no HOST:PORT"},
		{"a destination in another spelling", "forward: []", "forward: [{name: siem, syslog: 'SIEM.example.org:6514'}]", 2, "write it as siem.example.org:6514"},
		{"a destination with a path", "forward: []", "forward: [{name: siem, otlp: 'a.example.org:4317/logs'}]", 2, "forward[0]"},
		{"one name twice", "forward: []", "forward: [{name: siem, syslog: 'a.example.org:1'}, {name: siem, syslog: 'b.example.org:1'}]", 2, "another destination"},
		{"nine destinations", "forward: []", nine(), 2, "8 destinations at most"},
		{"a short message", "forward: []", "forward: [{name: siem, syslog: 'a.example.org:1', max_message: 480}]", 2, "max_message"},
		{"syslog's keys for OTLP", "forward: []", "forward: [{name: siem, otlp: 'a.example.org:1', dangerous_close_unsaid: true}]", 2, "are syslog's"},
		{"a certificate without a key", "forward: []", "forward: [{name: siem, syslog: 'a.example.org:1', certificate: /c.pem}]", 2, "go together"},
		{"a certificate shown in clear", "forward: []", "forward: [{name: siem, otlp: '127.0.0.1:4317', server_name: x}]", 2, "authorities: is required"},
		{"relative authorities", "forward: []", "forward: [{name: siem, syslog: 'a.example.org:1', authorities: ca.pem}]", 2, "authorities: must be an absolute path"},
		{"a destination's authorities that are not there", "forward: []", "forward: [{name: siem, syslog: 'a.example.org:1', authorities: " + filepath.Join(dir, "absent.pem") + "}]", 2, "forward[0]: authorities"},
		{"no state folder", "state_dir: /var/lib/durward-relay", "state_dir: ''\nforward: [{name: siem, syslog: 'a.example.org:1'}]", 2, "forward"},
		{"a collector on this machine", "forward: []", "forward: [{name: siem, otlp: '127.0.0.1:4317'}]", 0, "ok"},
		{"a certificate beside a Workload API", `workload_api: ""`, "workload_api: unix:/run/spire/agent/api.sock,user=root", 2, "stands beside"},
		{"a Workload API of anybody", tlsBlock, "  workload_api: unix:/run/spire/agent/api.sock\n", 2, "with the user who listens there"},
		{"a Workload API", tlsBlock, "  workload_api: unix:/run/spire/agent/api.sock,user=root\n", 0, "ok"},
		{"health for everybody", `health_listen: ""`, "health_listen: 0.0.0.0:7446", 2, "health_listen"},
		{"health at a port", `health_listen: ""`, "health_listen: 127.0.0.1:7446", 0, "ok"},
		{"as shipped", "", "", 0, "ok"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "auditrelay.yaml")
			if !strings.Contains(string(shipped), tc.old) {
				t.Fatalf("the shipped file has no %q", tc.old)
			}
			text := strings.Replace(strings.Replace(string(shipped), tc.old, tc.new, 1), "/etc/durward/tls/relay", dir, 2)
			testfile.Write(t, path, text)
			s := &settings{}
			var out bytes.Buffer
			code := process.Main(process.Program{
				Name: "auditrelay", Version: version, Settings: s, Check: s.check,
			}, []string{"-config", path, "-check"}, &out, &out)
			if code != tc.code || !strings.Contains(out.String(), tc.want) {
				t.Errorf("exit code %d, %q; want %d with %q", code, out.String(), tc.code, tc.want)
			}
		})
	}
}

// TestCertificateOfSPIRE: the relay begins with a certificate of a Workload API, and says to whoever asks when that ends, which no file does.
func TestCertificateOfSPIRE(t *testing.T) {
	kit, api := platformtest.New(t), platformtest.NewWorkloadAPI(t)
	id := kit.ID(optionsv1.Role_ROLE_RELAY, "main")
	chain, key, err := kit.CA.Issue(id, 0)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(chain)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	api.Send(id.String(), chain, key)
	socket := filepath.Join(t.TempDir(), "health.sock")
	s := &settings{
		TrustDir: kit.TrustDir, TLS: config.OwnTLS{WorkloadAPI: api.Address()}, HealthListen: "unix:" + socket + ",user=" + strconv.Itoa(os.Geteuid()),
		Audit: config.Peer{Address: "127.0.0.1:1", Identity: kit.ID(optionsv1.Role_ROLE_AUDIT, "main").String()},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var log lines = func(line string) {
		if strings.Contains(line, "relaying") {
			defer cancel()
			if ok, said := health.Healthy(ctx, http.DefaultClient, s.HealthListen, "auditrelay"); !ok {
				t.Errorf("its health: %+v", said)
			}
			if got, err := health.Metrics(ctx, http.DefaultClient, s.HealthListen); err != nil || got["durward_certificate_expiry_timestamp_seconds"] != float64(leaf.NotAfter.Unix()) {
				t.Errorf("its certificate ends at %v (%v), not at %v", got["durward_certificate_expiry_timestamp_seconds"], err, leaf.NotAfter)
			}
		}
	}
	if err := run(ctx, s, slog.New(slog.NewTextHandler(log, nil))); err != nil {
		t.Error(err)
	}
}

// lines takes a log's lines.
type lines func(string)

func (l lines) Write(p []byte) (int, error) {
	l(string(p))
	return len(p), nil
}

// nine are more destinations than audit remembers.
func nine() string {
	out := "forward:"
	for i := range 9 {
		out += fmt.Sprintf("\n  - {name: siem-%d, syslog: 'a.example.org:1'}", i)
	}
	return out
}

// TestDialsItsWitnessesAlone: what the relay dials with reaches the witness in its file, and no other port or address, on this machine
// or by a redirect.
func TestDialsItsWitnessesAlone(t *testing.T) {
	reached := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ }))
	defer other.Close()
	witness := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		if in.URL.Path == "/away" {
			http.Redirect(out, in, other.URL, http.StatusFound)
		}
	}))
	defer witness.Close()
	s := &settings{Witnesses: []string{witness.URL}, Audit: config.Peer{}}
	d, err := s.dialer(nil)
	if err != nil {
		t.Fatal(err)
	}
	get := func(url string) error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.Do(request)
		return err
	}
	if err := get(witness.URL); err != nil {
		t.Errorf("its witness: %v", err)
	}
	port := netip.MustParseAddrPort(strings.TrimPrefix(witness.URL, "http://")).Port()
	for _, url := range []string{other.URL, witness.URL + "/away", "http://localhost:" + netip.AddrPortFrom(netip.IPv4Unspecified(), port).String()[len("0.0.0.0:"):], "http://192.0.2.1/"} {
		if err := get(url); err == nil {
			t.Errorf("%s was reached", url)
		}
	}
	if reached > 0 {
		t.Errorf("another server was reached %d times", reached)
	}
}
