package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/reference"
	"durward.internal/services/platform/suspicion"
)

// listed returns tools whose list allows the loopback servers that are named, and blocks what is blocked.
func listed(t *testing.T, limits dialer.Limits, block string, servers ...*httptest.Server) *Tools {
	t.Helper()
	cfg := dialer.Config{Redirects: 3, Limits: limits}
	text := "block: [" + block + "]\nallow:\n  - here.example\n"
	for _, s := range servers {
		address := strings.TrimPrefix(s.URL, "http://")
		cfg.Local = append(cfg.Local, netip.MustParseAddrPort(address))
		text += "  - \"" + address + "\"\n"
	}
	list, err := destination.ParseList(destination.Source{File: "domains.yaml"}, []byte(text))
	must(t, err)
	tools, err := NewTools(Config{Metrics: prometheus.NewRegistry(), Dialer: cfg, Domains: func() *destination.List { return list }, Reports: Reports{Version: "v1", From: suspicion.Low, Most: suspicion.Medium}})
	must(t, err)
	return tools
}

func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s
}

func answering(kind, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = fmt.Fprint(w, text)
	}
}

func fetch(tools *Tools, url string) (*egressv1.FetchUrlResponse, error) {
	return tools.FetchUrl(context.Background(), &egressv1.FetchUrlRequest{Url: &url})
}

// What breaks a rule is one sentence with the rule, and nothing of the answer or of an address.
func TestRefusals(t *testing.T) {
	unlisted := serve(t, answering("text/plain", "not for you"))
	blocked := serve(t, answering("text/plain", "not for you"))
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		url     string
		code    callv1.Code
		says    string
	}{
		"on no list":           {url: "https://elsewhere.example/", code: callv1.Code_CODE_FAILED, says: "rule: destination"},
		"no URL":               {url: "http://0x7f.1/", code: callv1.Code_CODE_INVALID_ARGUMENT, says: "rule: url"},
		"another scheme":       {url: "file:///etc/passwd", code: callv1.Code_CODE_INVALID_ARGUMENT, says: "rule: scheme"},
		"another port":         {url: "http://here.example:22/", code: callv1.Code_CODE_FAILED, says: "rule: port"},
		"blocked":              {url: blocked.URL, code: callv1.Code_CODE_FAILED, says: "is blocked"},
		"a redirect elsewhere": {handler: http.RedirectHandler(unlisted.URL, http.StatusFound).ServeHTTP, code: callv1.Code_CODE_FAILED, says: "rule: port"},
		"a redirect to metadata": {handler: http.RedirectHandler("http://169.254.169.254/", http.StatusFound).ServeHTTP,
			code: callv1.Code_CODE_FAILED, says: "rule: destination"},
		"a loop":    {handler: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/", http.StatusFound) }, code: callv1.Code_CODE_FAILED, says: "rule: redirect"},
		"a picture": {handler: answering("image/png", "\x89PNG"), code: callv1.Code_CODE_FAILED, says: "rule: content"},
		"no type":   {handler: answering("", ""), code: 0},
		"a lie":     {handler: answering("text/html", "a\x00b"), code: callv1.Code_CODE_FAILED, says: "rule: content"},
		"too large": {handler: answering("text/plain", strings.Repeat("a", 2000)), code: callv1.Code_CODE_FAILED, says: "rule: size"},
		"no gzip": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = fmt.Fprint(w, "x")
		}, code: callv1.Code_CODE_FAILED, says: "rule: encoding"},
		"half closed": {handler: cutOff, code: callv1.Code_CODE_FAILED, says: "ended before"},
		"endless":     {handler: endless, code: callv1.Code_CODE_FAILED, says: "within the time (rule: time)"},
	} {
		t.Run(name, func(t *testing.T) {
			servers := []*httptest.Server{blocked}
			if c.handler != nil {
				servers = append(servers, serve(t, c.handler))
				c.url = servers[1].URL
			}
			tools := listed(t, dialer.Limits{Whole: 500 * time.Millisecond, Body: 1000}, `"`+strings.TrimPrefix(blocked.URL, "http://")+`"`, servers...)
			answer, err := fetch(tools, c.url)
			if c.code == 0 {
				if err != nil {
					t.Fatalf("%v", err)
				}
				return
			}
			f := fault.From(err)
			if answer != nil || f.Code != c.code || !strings.Contains(f.Message, c.says) || strings.Contains(f.Message, "not for you") {
				t.Errorf("%v, %v: %s", answer, f.Code, f.Message)
			}
			if tools.UnderWay() != 0 {
				t.Error("a request is still under way")
			}
		})
	}
}

// A type is what stands before its parameters, though these are written badly, as servers do.
func TestMediaTypes(t *testing.T) {
	for kind, want := range map[string]string{
		"text/html; charset=utf-8; charset=UTF-8": "seen", "text/html; charset": "seen", "Text/HTML;charset=": "seen", "text/html; charset=iso-8859-1": "seen",
		"text/plain; a b": "<p>seen", "image/png; charset=utf-8; charset=UTF-8": "", "text": "", "/html; a": "", "": "",
	} {
		got, err := readable(&dialer.Answer{Header: http.Header{"Content-Type": {kind}}, Body: []byte("<p>seen"), URL: &url.URL{Scheme: "https", Host: "x.example"}})
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v", kind, got, err)
		}
	}
}

// While servers answer without end, never, or with a bomb, others' pages are fetched as always.
func TestHostileServersHarmNoOtherCall(t *testing.T) {
	const each = 20
	reached := make(chan struct{}, 3*each)
	var bomb bytes.Buffer
	packed := gzip.NewWriter(&bomb)
	_, err := packed.Write(make([]byte, 16<<20))
	must(t, errors.Join(err, packed.Close()))
	var bad []*httptest.Server
	for _, handler := range []http.HandlerFunc{
		func(w http.ResponseWriter, r *http.Request) { reached <- struct{}{}; endless(w, r) },
		func(_ http.ResponseWriter, r *http.Request) { reached <- struct{}{}; <-r.Context().Done() },
		func(w http.ResponseWriter, _ *http.Request) {
			reached <- struct{}{}
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes()) // who refuses it has gone
		},
	} {
		bad = append(bad, serve(t, handler))
	}
	good := serve(t, answering("text/plain", "good"))
	tools := listed(t, dialer.Limits{Whole: time.Minute}, "", append(bad, good)...)
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	var calls sync.WaitGroup
	for _, s := range bad {
		for range each {
			calls.Go(func() {
				if answer, err := tools.FetchUrl(ctx, &egressv1.FetchUrlRequest{Url: &s.URL}); err == nil {
					t.Errorf("%v is an answer", answer)
				}
			})
		}
	}
	for range cap(reached) {
		<-reached
	}
	for range each {
		if answer, err := fetch(tools, good.URL); err != nil || answer.GetText() != "good" {
			t.Errorf("%v, %v", answer, err)
		}
	}
	giveUp()
	calls.Wait()
	if n := tools.UnderWay(); n != 0 {
		t.Errorf("%d requests are still under way", n)
	}
}

func cutOff(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "100")
	_, _ = fmt.Fprint(w, "half")
}

func endless(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush() // who is gone reads nothing more
	<-r.Context().Done()
}

// An address that is special is refused whatever the list says, and the caller is not told which it is.
func TestSpecialAddresses(t *testing.T) {
	list, err := destination.ParseList(destination.Source{File: "domains.yaml"}, []byte("allow: [10.0.0.1, 169.254.169.254, 127.0.0.1]"))
	must(t, err)
	tools, err := NewTools(Config{Metrics: prometheus.NewRegistry(), Domains: func() *destination.List { return list }})
	must(t, err)
	for _, url := range []string{"http://10.0.0.1/", "http://169.254.169.254/latest/meta-data/", "http://127.0.0.1/"} {
		f := fault.From(func() error { _, err := fetch(tools, url); return err }())
		if f.Code != callv1.Code_CODE_FAILED || !strings.Contains(f.Message, "rule: address") || strings.Contains(f.Message, "loopback") || strings.Contains(f.Message, "metadata") {
			t.Errorf("%s: %v %s", url, f.Code, f.Message)
		}
	}
}

func TestAnswers(t *testing.T) {
	long := strings.Repeat("0123456789 äöü\n", 1000)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/page":
			answering("text/html", "<title>T</title><p>Grüße</p><script>x</script>")(w, r)
		case "/latin":
			answering("text/plain; charset=iso-8859-1", "Gr\xfc\xdfe")(w, r)
		case "/missing":
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusNotFound)
			_, _ = fmt.Fprint(w, "gone")
		default:
			answering("text/plain", long)(w, r)
		}
	})
	tools := listed(t, dialer.Limits{}, "", s)
	for path, want := range map[string]string{"/page": "# T\n\nGrüße", "/latin": "Grüße", "/missing": "gone"} {
		if got, err := fetch(tools, s.URL+path); err != nil || got.GetText() != want || got.GetMore() {
			t.Errorf("%s: %v, %v", path, got, err)
		}
	}
	// A cursor goes on where the answer before ended, and no character is cut.
	var whole strings.Builder
	for cursor, n := uint32(0), 0; ; n++ {
		url := s.URL + "/long"
		got, err := tools.FetchUrl(t.Context(), &egressv1.FetchUrlRequest{Url: &url})
		if err != nil || n > 100 {
			t.Fatalf("after %d: %v", n, err)
		}
		shorten(got, int(cursor))
		if len(got.GetText()) > window || !strings.HasSuffix(got.GetText(), "\n") {
			t.Errorf("a window of %d bytes", len(got.GetText()))
		}
		whole.WriteString(got.GetText())
		if cursor = got.GetCursor(); !got.GetMore() {
			break
		}
	}
	if whole.String() != long {
		t.Error("the windows are not the whole")
	}
	head, url := true, s.URL+"/long"
	if got, err := tools.FetchUrl(t.Context(), &egressv1.FetchUrlRequest{Url: &url, Head: &head}); err != nil || got.GetStatus() != 200 || got.GetText() != "" {
		t.Errorf("HEAD: %v, %v", got, err)
	}
}

// A suspicious host on no list is refused from the threshold on though a human said yes, and no listed one is.
func TestSuspiciousHosts(t *testing.T) {
	list, err := destination.ParseList(destination.Source{File: "domains.yaml"}, []byte("allow: [paypa1.com]"))
	must(t, err)
	for _, c := range []struct {
		host   string
		refuse suspicion.Severity
		says   string
	}{
		{"g1thub.com", suspicion.High, "read as github.com"}, {"free.zip", suspicion.Medium, "abused"}, {"free.zip", suspicion.High, ""},
		{"g1thub.com", suspicion.None, ""}, {"example.org", suspicion.Low, ""}, {"paypa1.com", suspicion.Low, ""},
	} {
		tools, err := NewTools(Config{Metrics: prometheus.NewRegistry(), Domains: func() *destination.List { return list }, Refuse: c.refuse})
		must(t, err)
		to := destination.Destination{Host: c.host, Port: 443}
		err = tools.admit(context.WithValue(t.Context(), approved{}, c.host), to)
		if refused := err != nil; refused != (c.says != "") || refused && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s, from %v on: %v", c.host, c.refuse, err)
		}
		if remarks := strings.Join(tools.remarks(to), "; "); strings.Contains(remarks, "refused all the same") != (c.says != "") && c.host != "paypa1.com" {
			t.Errorf("%s, from %v on, the card says %q", c.host, c.refuse, remarks)
		}
		verdict := "asks"
		if c.host == "paypa1.com" {
			verdict = "allowed"
		} else if c.says != "" {
			verdict = "refused"
		}
		url := "https://" + c.host
		tested, err := NewControl(ControlConfig{Tools: tools}).TestURL(t.Context(), &egressv1.TestURLRequest{Url: url})
		if err != nil || tested.GetVerdict() != verdict || verdict != "allowed" && !strings.Contains(tested.GetWhy(), strings.Join(tools.remarks(to), "; ")) {
			t.Errorf("%s, from %v on, the test of the URL says %v, %v", c.host, c.refuse, tested, err)
		}
	}
}

// What stands for a value is on one page or on the next, and whole there, wherever the page would have ended.
func TestNoReferenceIsCut(t *testing.T) {
	ref := reference.Reference{Class: reference.PII, Type: "EMAIL", ID: reference.NewID()}.Marshal()
	for before := window - len(ref) - 2; before < window+2; before++ {
		text := strings.Repeat("x", before) + ref + strings.Repeat("y", 100)
		first, second := &egressv1.FetchUrlResponse{Text: text}, &egressv1.FetchUrlResponse{Text: text}
		shorten(first, 0)
		shorten(second, int(first.GetCursor()))
		if n := strings.Count(first.GetText(), ref) + strings.Count(second.GetText(), ref); n != 1 || first.GetText()+second.GetText() != text || len(first.GetText()) > window {
			t.Fatalf("with %d bytes before it: %d bytes, then %d, and it is there %d times", before, len(first.GetText()), len(second.GetText()), n)
		}
		made := &egressv1.FetchUrlResponse{Text: text}
		shorten(made, before+5) // a cursor that nobody was given
		if !strings.HasPrefix(made.GetText(), ref) {
			t.Errorf("a page begins with %.20q", made.GetText())
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
