package drill

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/rpc"
)

// door is something that listens for HTTP, and a request that it answers when nothing speaks against it.
type door struct {
	name, address string
	// request is a method and a path.
	request string
	header  map[string]string
	body    string
}

// doors are every HTTP listener of the installation: MCP, and what each process tells about itself.
func (w *world) doors() []door {
	w.t.Helper()
	own := w.agent()
	out := []door{{
		name: "MCP", address: w.h.Address(harness.Gateway), request: "POST /mcp",
		header: map[string]string{"Authorization": "Bearer " + own.token, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"},
		body: `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + harness.SessionRevision +
			`","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`,
	}}
	for _, role := range harness.Roles() {
		for _, path := range []string{"/health", "/metrics", "/traces"} {
			out = append(out, door{name: role + path, address: w.h.HealthAddress(role), request: "GET " + path})
		}
	}
	// What is not there at all is no door.
	var open []door
	for _, d := range out {
		if d.knock(d.address) == http.StatusOK {
			open = append(open, d)
		}
	}
	if len(open) < 1+len(harness.Roles()) {
		w.t.Fatalf("only %d listeners answer: %v", len(open), open)
	}
	return open
}

// answerTime is how long a listener may take on a busy machine. No answer would be no refusal.
const answerTime = 30 * time.Second

// knock sends the request as it is written, under a Host header and further lines, and returns the status; 0: no answer.
func (d door) knock(host string, lines ...string) int {
	conn, err := net.DialTimeout("tcp", d.address, answerTime)
	if err != nil {
		return 0
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return 0
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Length: %d\r\n", d.request, host, len(d.body))
	for name, value := range d.header {
		fmt.Fprintf(&b, "%s: %s\r\n", name, value)
	}
	for _, line := range lines {
		b.WriteString(line + "\r\n")
	}
	b.WriteString("\r\n" + d.body)
	if _, err := io.WriteString(conn, b.String()); err != nil {
		return 0
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// foreignHosts are names under which a page reaches a listener on loopback once its own name server says so, and things that
// a careless comparison takes for loopback. %s is the port.
var foreignHosts = []string{
	"evil.example", "evil.example:%s", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1.nip.io:%s", "evil.example.", "localhost:%s.evil.example",
	"evil-localhost", "localhost@evil.example", "127.0.0.1:%s@evil.example", "evil.example#localhost", "evil.example/localhost", "evil.example?localhost", "0.0.0.0:%s", "[::]:%s",
	"169.254.169.254", "192.168.0.1:%s", "10.0.0.1", "128.0.0.1", "126.255.255.255", "[::ffff:10.0.0.1]:%s", "[fe80::1]", "gateway", "durward.local",
	"xn--localhost-", "localhost evil.example", "localhost,evil.example", "l\u043ecalhost", "\u2139ocalhost",
}

// foreignOrigins are where a page may come from that has no business here.
var foreignOrigins = []string{
	"https://evil.example", "http://evil.example:%s", "null", "file://", "chrome-extension://abcdefghijklmnop", "http://localhost.evil.example:%s",
	"http://127.0.0.1.evil.example", "http://127.0.0.1:%s@evil.example", "http://localhost:%s.evil.example", "ftp://127.0.0.1:%s", "javascript:alert(1)", "http://", "evil.example",
	"http://0.0.0.0:%s", "http://192.168.0.1:%s", "http://169.254.169.254", "http://[::]:%s", "http://127.0.0.1:%s, https://evil.example", "http://l\u043ecalhost:%s", "",
}

func (d door) fill(pattern string) string {
	_, port, _ := net.SplitHostPort(d.address)
	return strings.ReplaceAll(pattern, "%s", port)
}

// foreignHost asks every listener by names that are not its own. Its effects are requests that were served.
func foreignHost(w *world) (trials, effects int) {
	for _, d := range w.doors() {
		for _, pattern := range foreignHosts {
			for _, lines := range [][]string{nil, {"X-Forwarded-Host: 127.0.0.1"}, {"Forwarded: host=127.0.0.1"}, {"Origin: http://" + d.address}} {
				trials++
				if code := d.knock(d.fill(pattern), lines...); code != http.StatusForbidden && code != http.StatusBadRequest {
					w.t.Logf("%s under the name %q, %v: %d", d.name, d.fill(pattern), lines, code)
					effects++
				}
			}
			if w.caught(effects) {
				return trials, effects
			}
		}
		trials += 2
		for _, twice := range []string{"evil.example", d.address} {
			if code := d.knock(d.address, "Host: "+twice); code != http.StatusForbidden && code != http.StatusBadRequest {
				w.t.Logf("%s under two names: %d", d.name, code)
				effects++
			}
		}
	}
	return trials, effects
}

// foreignOrigin asks every listener by its own name, from pages of other origins. Its effects are requests that were served.
func foreignOrigin(w *world) (trials, effects int) {
	for _, d := range w.doors() {
		for _, pattern := range foreignOrigins {
			origin := "Origin: " + d.fill(pattern)
			for _, lines := range [][]string{{origin}, {origin, "Sec-Fetch-Site: same-origin"}, {origin, "Origin: http://" + d.address}, {"Origin: http://" + d.address, origin}} {
				trials++
				if code := d.knock(d.address, lines...); code != http.StatusForbidden && code != http.StatusBadRequest {
					w.t.Logf("%s with %q: %d", d.name, lines, code)
					effects++
				}
			}
			if w.caught(effects) {
				return trials, effects
			}
		}
	}
	return trials, effects
}

var listenLine = regexp.MustCompile(`(?m)^(listen|health_listen): .*$`)

// remotePlaintext starts a further gateway that listens beyond loopback without TLS: by its file, and with the flag that allows
// to listen there. Its effects are gateways that another machine could speak to in the clear.
func remotePlaintext(w *world) (trials, effects int) {
	config := w.h.ReadFile("config/gateway.yaml")
	port := w.h.Port(7)
	for _, key := range []string{"listen", "health_listen"} {
		for _, host := range []string{"0.0.0.0", "[::]", "", "*", "[::ffff:0.0.0.0]", "0", "127.0.0.1.nip.io"} {
			for _, flags := range [][]string{nil, {"-dangerous-allow-remote"}} {
				trials++
				text := listenLine.ReplaceAllStringFunc(config, func(line string) string {
					name, _, _ := strings.Cut(line, ":")
					if name == key {
						return fmt.Sprintf("%s: %q", name, fmt.Sprintf("%s:%d", host, port))
					}
					return fmt.Sprintf("%s: 127.0.0.1:0", name)
				})
				w.h.WriteFile("config/remote.yaml", text)
				if w.reachable(port, append(append([]string{"-config", w.h.Path("config", "remote.yaml")}, flags...), w.guards(harness.Gateway)...)) {
					w.t.Logf("%s: %q with %v is served in the clear", key, host, flags)
					effects++
				}
				if w.caught(effects) {
					return trials, effects
				}
			}
		}
	}
	return trials, effects
}

// reachable starts a gateway and reports whether it answers HTTP on an address that is not the one that loopback clients use,
// before it ends by itself.
func (w *world) reachable(port int, args []string) bool {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), harness.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(w.h.Bin, harness.Gateway), args...)
	w.must(cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // whatever it says, it is asked over the network
		close(ended)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	// Every address of 127/8 but the first is served by whoever listens on all addresses, and by nobody else.
	elsewhere := fmt.Sprintf("127.9.9.9:%d", port)
	for {
		for _, d := range []door{{address: elsewhere, request: "GET /health"}, {address: elsewhere, request: "POST /mcp"}} {
			if code := d.knock(elsewhere); code != 0 && code != http.StatusBadRequest {
				return true
			}
		}
		select {
		case <-ended:
			return false
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// garbled sends bytes that are no message.
type garbled []byte

func (g garbled) Marshal(any) ([]byte, error) { return g, nil }
func (garbled) Unmarshal([]byte, any) error   { return nil }
func (garbled) Name() string                  { return "proto" }

// untoldRefusals sends processes what gRPC and TLS refuse before any code of ours sees it. Its effects are refusals of which the log has
// no record.
func untoldRefusals(w *world) (trials, effects int) {
	for role, to := range map[string]struct {
		conn   *grpc.ClientConn
		method string
	}{
		harness.Vault:    {w.gatewayVault, vaultv1.AuthorityService_Authorise_FullMethodName},
		harness.Executor: {w.gatewayExecutor, executorv1.ToolService_StartService_FullMethodName},
		harness.Audit:    {w.gatewayAudit, auditv1.LogService_Append_FullMethodName},
	} {
		send := func(ctx context.Context, g garbled) error {
			return to.conn.Invoke(ctx, to.method, g, g, grpc.ForceCodec(g))
		}
		for what, refused := range map[string]func(ctx context.Context) error{
			"no message": func(ctx context.Context) error { return send(ctx, garbled{0xff, 0xff}) },
			"too large":  func(ctx context.Context) error { return send(ctx, make(garbled, 2*rpc.DefaultMessageBytes)) },
			"no certificate": func(ctx context.Context) error {
				stranger := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}} // #nosec G402 -- a stranger believes everybody
				conn, err := stranger.DialContext(ctx, "tcp", w.h.Address(role))
				if err != nil {
					return err
				}
				_, err = conn.Read(make([]byte, 1)) // with TLS 1.3 it is told now
				return errors.Join(err, conn.Close())
			},
		} {
			trials++
			denied := func() int {
				return w.query(harness.Audit, `SELECT count(*) FROM entries JOIN writers ON writers.id = entries.writer WHERE writers.role = ? AND status = ?`,
					role, int(auditv1.Status_STATUS_DENIED))
			}
			before := denied()
			ctx, cancel := w.ctx(callTime)
			err := refused(ctx)
			cancel()
			if err == nil {
				w.t.Fatalf("%s takes %s", role, what)
			}
			if harness.Poll(func() error {
				if denied() == before {
					return errors.New("the log has no record of it")
				}
				return nil
			}) != nil {
				w.t.Logf("%s refuses %s, and the log has no record of it", role, what)
				effects++
			}
			if w.caught(effects) {
				return trials, effects
			}
		}
	}
	return trials, effects
}
