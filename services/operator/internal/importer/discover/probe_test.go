package discover

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/enginecmd"
)

// engine serves fixed answers on 127.0.0.1 and returns its port.
func engine(t testing.TB, answers map[string]string) uint32 {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := answers[r.URL.Path]
		switch {
		case r.Method != http.MethodGet:
			t.Errorf("%s %s", r.Method, r.URL.Path)
		case !ok:
			http.NotFound(w, r)
		case body == "401":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			_, _ = io.WriteString(w, body)
		}
	}))
	t.Cleanup(s.Close)
	return portOfURL(t, s.URL)
}

func portOfURL(t testing.TB, raw string) uint32 {
	t.Helper()
	u, err := url.Parse(raw)
	must(t, err)
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	must(t, err)
	return uint32(n)
}

func TestAsk(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		answers map[string]string
		want    Answer
	}{
		{
			"vLLM", map[string]string{
				"/v1/models": `{"object":"list","data":[{"id":"Qwen/Qwen3-32B","owned_by":"vllm","max_model_len":32768}]}`,
				"/version":   `{"version":"0.11.0"}`, "/health": "",
			},
			Answer{Answered: true, Engine: enginecmd.VLLM, Version: "0.11.0", Models: []string{"Qwen/Qwen3-32B"}, Context: 32768, Healthy: true},
		},
		{
			"vLLM with a key", map[string]string{"/v1/models": "401", "/version": `{"version":"0.11.0"}`, "/health": ""},
			Answer{Answered: true, NeedsKey: true, Version: "0.11.0", Healthy: true},
		},
		{
			"llama-server", map[string]string{
				"/v1/models": `{"data":[{"id":"qwen3-8b","owned_by":"llamacpp"}]}`,
				"/props":     `{"default_generation_settings":{"n_ctx":4096},"total_slots":4,"build_info":"b7000-abcdef12"}`,
				"/health":    `{"status":"ok"}`,
			},
			Answer{Answered: true, Engine: enginecmd.LlamaCPP, Version: "b7000-abcdef12", Models: []string{"qwen3-8b"}, Context: 16384, Healthy: true},
		},
		{
			"Ollama", map[string]string{
				"/v1/models":   `{"data":[{"id":"qwen3:8b","owned_by":"library"},{"id":"gemma3:27b","owned_by":"library"}]}`,
				"/api/version": `{"version":"0.13.1"}`,
			},
			Answer{Answered: true, Engine: enginecmd.Ollama, Version: "0.13.1", Models: []string{"qwen3:8b", "gemma3:27b"}},
		},
		{"SGLang", map[string]string{"/v1/models": `{"data":[{"id":"m","owned_by":"sglang","max_model_len":8192}]}`},
			Answer{Answered: true, Engine: enginecmd.SGLang, Models: []string{"m"}, Context: 8192}},
		{"something else", map[string]string{"/": "hello", "/health": "ok"}, Answer{Answered: true, Healthy: true}},
		{"not JSON", map[string]string{"/v1/models": "<html>", "/props": "[]", "/api/version": `"1"`}, Answer{Answered: true}},
		// A name that shows as another is not taken: in requests it would be none that the server knows.
		{"hostile names", map[string]string{
			"/v1/models": `{"data":[{"id":"a\u202eb"},{"id":"\u001b[31mred"},{"id":""},{"id":"plain"},{"id":"plain"},{"id":"` + strings.Repeat("x", 200) + `"}]}`,
			"/props":     `{"default_generation_settings":{"n_ctx":4294967295},"total_slots":4294967295,"build_info":"\u001b]0;x\u0007"}`,
		}, Answer{Answered: true, Engine: enginecmd.LlamaCPP, Models: []string{"plain"}}},
		{"too much", map[string]string{"/v1/models": `{"data":[{"id":"` + strings.Repeat("x", maxAnswer) + `"}]}`}, Answer{Answered: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, NewProber().Ask(t.Context(), engine(t, tc.answers))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// Nobody listens, or what listens does not speak HTTP, or says nothing for ever.
func TestAskNobody(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	port := portOfURL(t, "http://"+l.Addr().String())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			// The prober may have hung up.
			_, _ = io.WriteString(c, "SSH-2.0-x\r\n")
			_ = c.Close()
		}
	}()
	if got := NewProber().Ask(t.Context(), port); got.Answered {
		t.Errorf("it answered: %+v", got)
	}
	_ = l.Close()
	for _, port := range []uint32{0, 65536, port} {
		if got := NewProber().Ask(t.Context(), port); got.Answered {
			t.Errorf("port %d answered: %+v", port, got)
		}
	}
}

// trap is a server that must never be asked.
func trap(t *testing.T) (address string, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, `{"data":[{"id":"stolen","owned_by":"vllm"}]}`)
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

// dialled notes where a client connects to.
func dialled(c *http.Client) func() []string {
	var mu sync.Mutex
	var all []string
	transport, ok := c.Transport.(*http.Transport)
	if !ok {
		transport = http.DefaultTransport.(*http.Transport).Clone()
		c.Transport = transport
	}
	inner := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		all = append(all, address)
		mu.Unlock()
		return inner(ctx, network, address)
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// A server that sends its asker elsewhere is not followed: the same attack on a client without this guard is.
func TestAskNeverLeaves(t *testing.T) {
	t.Parallel()
	elsewhere, asked := trap(t)
	hostile := httptest.NewServer(http.RedirectHandler(elsewhere+"/v1/models", http.StatusFound))
	t.Cleanup(hostile.Close)
	port := portOfURL(t, hostile.URL)

	p := NewProber()
	addresses := dialled(p.client)
	if got := p.Ask(t.Context(), port); !got.Answered || len(got.Models) > 0 {
		t.Errorf("%+v", got)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the other server was asked %d times", n)
	}
	for _, at := range addresses() {
		if at != fmt.Sprintf("127.0.0.1:%d", port) {
			t.Errorf("it connected to %s", at)
		}
	}
	if len(addresses()) == 0 {
		t.Error("nothing was seen to connect")
	}

	weak := &Prober{&http.Client{}}
	if got := weak.Ask(t.Context(), port); len(got.Models) == 0 || asked.Load() == 0 {
		t.Errorf("the attack does nothing to a client without the guards: %+v", got)
	}
}

// The dialler itself refuses any address that is not this host's, however the client came to it.
func TestDialOnlyLoopback(t *testing.T) {
	t.Parallel()
	p := NewProber()
	for _, at := range []string{"192.0.2.1:80", "[2001:db8::1]:80", "0.0.0.0:80"} {
		_, err := p.client.Transport.(*http.Transport).DialContext(t.Context(), "tcp", at)
		if err == nil || !strings.Contains(err.Error(), errBeyond.Error()) {
			t.Errorf("%s: %v", at, err)
		}
	}
}
