package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/platformtest/input"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/process"
)

const shipped = "../../../deploy/config/gateway.yaml"

func TestShippedConfigurationIsTheDefault(t *testing.T) {
	input.Outside(t)
	s := new(settings)
	must(t, config.Load(shipped, s))
	must(t, s.Validate())
	if s.HoldS != 45 || s.SessionIdleS != 1800 || s.SessionsPerPrincipal != 32 || s.Limits.CallsPerPrincipal != 32 {
		t.Errorf("defaults %+v", s)
	}
}

func TestConfigurationIsRefused(t *testing.T) {
	input.Outside(t)
	good := testfile.Read(t, shipped)
	for name, c := range map[string]struct{ from, to, say string }{
		"unknown key":          {"hold_s:", "hold_seconds:", "unknown key"},
		"not loopback":         {"listen: 127.0.0.1:7430", "listen: 0.0.0.0:7430", "-dangerous-allow-remote"},
		"hold too long":        {"hold_s: 0", "hold_s: 46", "hold_s: must be 1 to 45"},
		"no vault":             {"address: 127.0.0.1:7431", "address: ''", "vault.address"},
		"identity of a role":   {"spiffe://durward.local/vault/main", "spiffe://durward.local/nobody/main", "vault.identity"},
		"host with a port":     {"allowed_hosts: []", "allowed_hosts: ['a:1']", "allowed_hosts"},
		"host that is a star":  {"allowed_hosts: []", "allowed_hosts: ['*']", "allowed_hosts"},
		"origin with a path":   {"allowed_origins: []", "allowed_origins: ['https://a/b']", "allowed_origins"},
		"origin that is null":  {"allowed_origins: []", "allowed_origins: ['null']", "allowed_origins"},
		"sessions of nobody":   {"sessions_per_principal: 0", "sessions_per_principal: -1", "sessions_per_principal"},
		"relative certificate": {"/etc/durward/tls/gateway/cert.pem", "cert.pem", "tls.certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(string(good), c.from) {
				t.Fatalf("the shipped file does not say %q", c.from)
			}
			path := filepath.Join(t.TempDir(), "gateway.yaml")
			testfile.Write(t, path, strings.Replace(string(good), c.from, c.to, 1))
			var stdout, stderr bytes.Buffer
			code := process.Main(process.Program{Name: "gateway", Settings: new(settings)}, []string{"-config", path, "-check"}, &stdout, &stderr)
			if code != process.ExitBadConfiguration || !strings.Contains(stderr.String(), c.say) {
				t.Errorf("exit %d, %q, want %q", code, stderr.String(), c.say)
			}
		})
	}
}

// Reaching the gateway from elsewhere takes TLS, and says so.
func TestRemoteListenerNeedsTLS(t *testing.T) {
	input.Outside(t)
	good := testfile.Read(t, shipped)
	secret := strings.Replace(strings.Replace(string(good), "  certificate: \"\"", "  certificate: /c.pem", 1), "  key: \"\"", "  key: /k.pem", 1)
	half := strings.Replace(string(good), "  certificate: \"\"", "  certificate: /c.pem", 1)
	if secret == string(good) || half == secret {
		t.Fatal("the shipped file does not say mcp_tls")
	}
	remote := func(file string) string {
		return strings.Replace(file, "listen: 127.0.0.1:7430", "listen: 0.0.0.0:7430", 1)
	}
	for name, c := range map[string]struct {
		file string
		flag bool
		say  string
	}{
		"no flag":                    {remote(secret), false, "-dangerous-allow-remote"},
		"no TLS":                     {remote(string(good)), true, "mcp_tls: is required"},
		"no TLS, though on loopback": {string(good), true, "mcp_tls: is required"},
		"no key":                     {remote(half), true, "mcp_tls: takes a certificate and a key"},
		"the health listener too": {
			strings.Replace(remote(secret), "health_listen: 127.0.0.1:7440", "health_listen: 0.0.0.0:7440", 1), true, "health_listen: is not a loopback address",
		},
		"both":            {remote(secret), true, ""},
		"TLS on loopback": {secret, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "gateway.yaml")
			testfile.Write(t, path, c.file)
			args := []string{"-config", path, "-check"}
			if c.flag {
				args = append(args, "-dangerous-allow-remote")
			}
			var stdout, stderr bytes.Buffer
			code := process.Main(process.Program{Name: "gateway", Settings: new(settings)}, args, &stdout, &stderr)
			if (code == process.ExitOK) != (c.say == "") || !strings.Contains(stderr.String(), c.say) {
				t.Errorf("exit %d, %q, want %q", code, stderr.String(), c.say)
			}
		})
	}
}

// The whole process starts while none of its peers is there, says that it is healthy, lets nobody in, which a page of an allowed origin
// can read, and stops at once.
func TestRunWithoutPeers(t *testing.T) {
	t.Run("in clear", func(t *testing.T) {
		runWithoutPeers(t, config.TLS{}, "http://", http.DefaultTransport.(*http.Transport).Clone())
	})
	t.Run("over TLS", func(t *testing.T) {
		files := platformtest.New(t).Files(optionsv1.Role_ROLE_GATEWAY, "web")
		pair, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
		must(t, err)
		client := &http.Transport{TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true, // the certificate names no host; VerifyConnection compares it whole
			VerifyConnection: func(state tls.ConnectionState) error {
				if !state.PeerCertificates[0].Equal(pair.Leaf) || state.Version != tls.VersionTLS13 {
					return errors.New("another certificate, or an older TLS")
				}
				return nil
			},
		}}
		runWithoutPeers(t, config.TLS{Certificate: files.Certificate, Key: files.Key}, "https://", client)
	})
}

func runWithoutPeers(t *testing.T, secret config.TLS, scheme string, transport *http.Transport) {
	const page = "https://console.example"
	kit := platformtest.New(t)
	files := kit.Files(optionsv1.Role_ROLE_GATEWAY, "main")
	mcp, health := freeAddress(t), freeAddress(t)
	s := &settings{
		Common: config.Common{Listen: mcp, HealthListen: health, StateDir: kit.Dir, TrustDir: kit.TrustDir,
			TLS: config.OwnTLS{TLS: config.TLS(files)}},
		MCPTLS:         secret,
		AllowedOrigins: []string{page},
		Vault:          config.Peer{Address: "127.0.0.1:1", Identity: kit.ID(optionsv1.Role_ROLE_VAULT, "main").String()},
		Executor:       config.Peer{Address: "127.0.0.1:1", Identity: kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local").String()},
		Audit:          config.Peer{Address: "127.0.0.1:1", Identity: kit.ID(optionsv1.Role_ROLE_AUDIT, "main").String()},
	}
	must(t, s.Validate())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, s, "", slog.New(slog.DiscardHandler)) }()
	for late := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) { // no event: it is asked as an operator asks it
		resp, err := http.Get("http://" + health + "/health")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
		}
		if time.Now().After(late) {
			t.Fatalf("not healthy: %v", err)
		}
	}
	req, err := http.NewRequest(http.MethodPost, scheme+mcp+"/mcp",
		strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`))
	must(t, err)
	req.Header = http.Header{"Authorization": {"Bearer token"}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Origin": {page}}
	client := &http.Client{Transport: transport}
	resp, err := client.Do(req)
	must(t, err)
	defer resp.Body.Close()
	var out struct {
		Error struct {
			Data struct{ Code string }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || out.Error.Data.Code != "UNAVAILABLE" {
		t.Errorf("answer %+v, %v", out, err)
	}
	if got := resp.Header.Get("Access-Control-Allow-Origin"); got != page {
		t.Errorf("the answer is for pages of %q", got)
	}
	client.CloseIdleConnections()
	if clear, err := http.Post("http://"+mcp+"/mcp", "application/json", nil); scheme == "https://" && err == nil {
		if clear.StatusCode != http.StatusBadRequest {
			t.Errorf("in clear: %d", clear.StatusCode)
		}
		_ = clear.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("it does not stop")
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return fmt.Sprint(l.Addr())
}
