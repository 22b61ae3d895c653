package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
)

// TestBothErasOnOneURL has a client of each era at the same gateway with the same token, through a restart of the vault, which
// forgets every session.
func TestBothErasOnOneURL(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	token := h.AddClient("agent")
	older := h.ConnectRaw(token)
	newer := func(tool, arguments string) harness.RawAnswer {
		t.Helper()
		answer := harness.Again(func() harness.RawAnswer {
			answer, err := h.Raw(t.Context(), harness.StatelessCall(token, tool, arguments))
			must(t, err)
			return answer
		})
		if strings.Contains(answer.Body, `"resultType":"complete"`) == (answer.Error != nil) || answer.Header.Get("Mcp-Session-Id") != "" {
			t.Errorf("%d %s", answer.HTTPStatus, answer.Body)
		}
		return answer
	}
	for _, restarted := range []bool{false, true} {
		if restarted {
			h.Process(harness.Vault).Stop()
			h.StartProcess(harness.Vault)
		}
		for era, answer := range map[string]harness.RawAnswer{
			"older": harness.Again(func() harness.RawAnswer { return older.CallTool("start_service", `{"service_id":"demo-chat"}`) }),
			"newer": newer("start_service", `{"service_id":"demo-chat"}`),
		} {
			if !strings.Contains(answer.Body, "pending_approval") {
				t.Errorf("%s, restarted %t: %d %s", era, restarted, answer.HTTPStatus, answer.Body)
			}
		}
		if answer := newer("gpu_status", `{}`); !strings.Contains(answer.Body, `Simulated 24 GB`) {
			t.Errorf("restarted %t: %s", restarted, answer.Body)
		}
	}
}

// TestStandaloneStream opens the stream of a session, which stays for longer than a message may take to arrive, and does not
// keep a gateway that is told to stop.
func TestStandaloneStream(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	session := h.ConnectRaw(h.AddClient("agent"))
	request := session.Request(nil)
	request.Method = http.MethodGet
	open, err := request.HTTP(t.Context(), h.MCPURL())
	must(t, err)
	stream, err := http.DefaultClient.Do(open)
	must(t, err)
	defer stream.Body.Close()
	if stream.StatusCode != http.StatusOK || stream.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%d %v", stream.StatusCode, stream.Header)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, stream.Body)
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("the stream ended by itself: %v", err)
	case <-time.After(17 * time.Second): // the gateway waits 15 s for a message
	}
	took, lag := h.Strain(func() {
		h.Process(harness.Gateway).Stop()
		<-ended
	})
	if took > 4*time.Second+10*lag {
		t.Errorf("the gateway took %s to stop", took)
	}
}

// TestRemoteGateway serves MCP beyond loopback, which takes a flag and TLS, and still answers to configured names alone.
func TestRemoteGateway(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	token := h.AddClient("agent")
	h.Process(harness.Gateway).Stop()
	settings := strings.Replace(h.ReadFile("config/gateway.yaml"), "listen: 127.0.0.1:", "listen: 0.0.0.0:", 1)
	h.WriteFile("config/gateway.yaml", settings)
	refused := func(says string) {
		t.Helper()
		p := h.Launch(harness.Gateway)
		if code := p.AwaitEnd(); code != 2 || !strings.Contains(p.Log(), says) {
			t.Errorf("exit %d, want 2 and %q:\n%s", code, says, p.Log())
		}
	}
	refused("-dangerous-allow-remote")
	h.SetFlags(harness.Gateway, "-dangerous-allow-remote")
	refused("mcp_tls: is required")

	certificate, key, err := h.CA().Issue(h.Identity("gateway/web"), time.Hour)
	must(t, err)
	h.WriteFile("tls/web.pem", string(certificate))
	h.WriteFile("tls/web.key", string(key))
	h.WriteFile("config/gateway.yaml", settings+"\nmcp_tls: {certificate: "+h.Path("tls", "web.pem")+", key: "+h.Path("tls", "web.key")+"}\nallowed_hosts: [gateway.example]\n")
	h.StartProcess(harness.Gateway)

	pair, err := tls.X509KeyPair(certificate, key)
	must(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true, // the certificate names no host; VerifyConnection compares it whole
		VerifyConnection: func(state tls.ConnectionState) error {
			if !state.PeerCertificates[0].Equal(pair.Leaf) {
				return errors.New("another certificate")
			}
			return nil
		},
	}}}
	// Every address of 127/8 but the first is served by whoever listens on all addresses, and by nobody else.
	elsewhere := strings.Replace(h.Address(harness.Gateway), "127.0.0.1", "127.9.9.9", 1)
	for host, want := range map[string]int{"gateway.example": http.StatusOK, "evil.example": http.StatusForbidden} {
		request := harness.StatelessCall(token, "gpu_status", `{}`)
		request.Host = host
		call, err := request.HTTP(context.Background(), "https://"+elsewhere+"/mcp")
		must(t, err)
		response, err := client.Do(call)
		must(t, err)
		body, err := io.ReadAll(response.Body)
		must(t, err)
		_ = response.Body.Close()
		if response.StatusCode != want || (want == http.StatusOK) != strings.Contains(string(body), "Simulated 24 GB") {
			t.Errorf("%s: %d %s", host, response.StatusCode, body)
		}
	}
	clear, err := harness.StatelessCall(token, "gpu_status", `{}`).HTTP(context.Background(), "http://"+elsewhere+"/mcp")
	must(t, err)
	if response, err := http.DefaultClient.Do(clear); err == nil {
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("in clear: %d", response.StatusCode)
		}
		_ = response.Body.Close()
	}
}
