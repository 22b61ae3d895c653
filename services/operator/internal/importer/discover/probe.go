package discover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/hostprogram"
	"durward.internal/services/platform/pattern"
)

// Bounds of one question to a server.
const (
	askTimeout   = 2 * time.Second
	maxAnswer    = 64 << 10
	maxHeader    = 16 << 10
	maxModels    = 64
	maxModelName = 128
)

// Answer is what a server said of itself. The zero value: it was not asked, or did not answer.
type Answer struct {
	// Answered: an HTTP server is there. NeedsKey: it wants a key, which it was not given.
	Answered, NeedsKey bool
	// Engine is one of enginecmd's, "" where the answers fit none of them.
	Engine  string
	Version string
	// Models are the ids that it serves, cleaned, in its order.
	Models []string
	// Context is the context length in tokens that it says it runs with; 0: it does not say.
	Context uint32
	// Healthy: /health was answered with a success.
	Healthy bool
}

// errBeyond keeps a question on this host, whatever led to another address.
var errBeyond = errors.New("only 127.0.0.1 is asked")

// newClient asks over connections that dial opens: no proxy, no redirect, no answer that takes long or is more than is asked for.
func newClient(timeout time.Duration, dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	return &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			Proxy: nil, DialContext: dial, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// get asks for one resource; body is nil unless the answer was a success. No other verb is ever sent.
func get(ctx context.Context, client *http.Client, url string, most int64) (status int, body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("User-Agent", "durward")
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return response.StatusCode, nil, nil
	}
	body, err = io.ReadAll(io.LimitReader(response.Body, most+1))
	if err == nil && int64(len(body)) > most {
		body, err = nil, hostprogram.ErrOutput
	}
	return response.StatusCode, body, err
}

// Prober asks servers of this host what they are.
type Prober struct{ client *http.Client }

// NewProber returns one. It speaks to 127.0.0.1 alone, and looks up no name.
func NewProber() *Prober {
	dialer := &net.Dialer{Timeout: askTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || !at.Addr().IsLoopback() {
			return errBeyond
		}
		return nil
	}}
	return &Prober{newClient(askTimeout, dialer.DialContext)}
}

// get asks for one path; body is nil unless the answer was a success of at most maxAnswer bytes.
func (p *Prober) get(ctx context.Context, port uint32, path string) (status int, body []byte, err error) {
	status, body, err = get(ctx, p.client, "http://127.0.0.1:"+number32(port)+path, maxAnswer)
	if status != 0 {
		err = nil // an answer that is too long or breaks off says nothing, and the server is there
	}
	return status, body, err
}

// local reports whether who listens on an address listens on 127.0.0.1 too. Who listens elsewhere is not asked: another server may have
// the same port here.
func local(address string) bool {
	return slices.Contains([]string{"", "*", "0.0.0.0", "127.0.0.1", "::", "[::]", "localhost"}, address)
}

// ask asks a server that listens on an address of this host, if it can be asked.
func (s *Server) ask(ctx context.Context, p *Prober, address string) {
	switch {
	case p == nil || s.Port == 0:
	case local(address):
		s.Answer = p.Ask(ctx, s.Port)
	default:
		s.Elsewhere = clean.Line(clean.Visible(address), 64)
	}
}

// Ask asks the server at the port of 127.0.0.1. None of the questions wakes a model or counts as a request for one.
func (p *Prober) Ask(ctx context.Context, port uint32) Answer {
	var a Answer
	if port == 0 || port > 65535 {
		return a
	}
	status, body, err := p.get(ctx, port, "/v1/models")
	if err != nil {
		return a
	}
	a.Answered, a.NeedsKey = true, status == http.StatusUnauthorized || status == http.StatusForbidden
	owner := a.models(body)
	for _, one := range []struct {
		path, engine string
		is           func([]byte) bool
	}{
		{"/props", enginecmd.LlamaCPP, a.props}, {"/api/version", enginecmd.Ollama, a.version},
		{"/version", enginecmd.VLLM, func(body []byte) bool { return a.version(body) && owner == "vllm" }},
	} {
		if a.Engine == "" {
			if _, body, err := p.get(ctx, port, one.path); err == nil && one.is(body) {
				a.Engine = one.engine
			}
		}
	}
	a.Engine = cmp.Or(a.Engine, owners[owner])
	if status, _, err := p.get(ctx, port, "/health"); err == nil {
		a.Healthy = status/100 == 2
	}
	return a
}

// owners are engines by what they say owns a model.
var owners = map[string]string{
	"vllm": enginecmd.VLLM, "sglang": enginecmd.SGLang, "llamacpp": enginecmd.LlamaCPP, "library": enginecmd.Ollama,
}

// models reads the answer to /v1/models and returns who owns the first model.
func (a *Answer) models(body []byte) (owner string) {
	var list struct {
		Data []struct {
			ID          string `json:"id"`
			OwnedBy     string `json:"owned_by"`
			MaxModelLen uint32 `json:"max_model_len"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &list) != nil {
		return ""
	}
	for i, m := range list.Data {
		if i == 0 {
			owner, a.Context = m.OwnedBy, m.MaxModelLen
		}
		// An id that cleaning changes would be another one in requests.
		if name := clean.Line(m.ID, maxModelName); name != "" && name == m.ID && len(a.Models) < maxModels && !slices.Contains(a.Models, name) {
			a.Models = append(a.Models, name)
		}
	}
	return owner
}

// props reads llama-server's answer to /props.
func (a *Answer) props(body []byte) bool {
	var props struct {
		Settings *struct {
			Context uint32 `json:"n_ctx"`
		} `json:"default_generation_settings"`
		Slots uint32 `json:"total_slots"`
		Build string `json:"build_info"`
	}
	if json.Unmarshal(body, &props) != nil || props.Settings == nil {
		return false
	}
	// It says the context of one slot, and its option -c what all of them share.
	if n := uint64(props.Settings.Context) * uint64(max(props.Slots, 1)); n <= 1<<31 {
		a.Context = uint32(n)
	}
	a.Version = versionOf(props.Build)
	return true
}

var versionPattern = pattern.New(`\A[0-9A-Za-z][0-9A-Za-z.+\-_]{0,63}\z`)

// versionOf is a version as it was given, or "" where it does not look like one.
func versionOf(s string) string {
	if versionPattern().MatchString(s) {
		return s
	}
	return ""
}

// version reads {"version": "1.2.3"}, as vLLM and Ollama answer.
func (a *Answer) version(body []byte) bool {
	var v struct {
		Version string `json:"version"`
	}
	if json.Unmarshal(body, &v) != nil || versionOf(v.Version) == "" {
		return false
	}
	a.Version = v.Version
	return true
}

// Words says in a few words what a server answered, for a comment.
func (a Answer) Words() string {
	switch {
	case !a.Answered:
		return "it did not answer on 127.0.0.1"
	case a.NeedsKey && a.Engine == "":
		return "it answers and wants a key"
	case a.Engine == "":
		return "it answers, and not as an engine that is known"
	}
	text := "it answers as " + a.Engine
	if a.Version != "" {
		text += " " + a.Version
	}
	if len(a.Models) > 0 {
		text += ", serving " + strings.Join(a.Models[:min(len(a.Models), 4)], ", ")
		if more := len(a.Models) - 4; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
	}
	if a.NeedsKey {
		text += ", and wants a key"
	}
	return text
}
