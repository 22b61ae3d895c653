package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
)

// benched is a server of a page of 4 kB, tools that may reach it, and a client of net/http alone, which dials anew for each request too.
func benched(b *testing.B, handler http.HandlerFunc) (server *httptest.Server, tools *Tools, bare *http.Client) {
	b.Helper()
	server = httptest.NewServer(handler)
	b.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://")
	tools = allowed(b, at, dialer.Config{Local: []netip.AddrPort{netip.MustParseAddrPort(at)}, Redirects: 5})
	return server, tools, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
}

// allowed are tools that may reach one address.
func allowed(b *testing.B, at string, out dialer.Config) *Tools {
	b.Helper()
	list, err := destination.ParseList(destination.Source{File: "domains.yaml"}, fmt.Appendf(nil, "allow: [%q]\n", at))
	if err != nil {
		b.Fatal(err)
	}
	tools, err := NewTools(Config{Metrics: prometheus.NewRegistry(), Dialer: out, Domains: func() *destination.List { return list }})
	if err != nil {
		b.Fatal(err)
	}
	return tools
}

// upstream is a proxy that connects to one server, whatever address it is asked for.
func upstream(b *testing.B, to string) netip.AddrPort {
	b.Helper()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		near, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			b.Error(err)
			return
		}
		defer func() { _ = near.Close() }()
		far, err := net.Dial("tcp", to)
		if err != nil {
			b.Error(err)
			return
		}
		defer func() { _ = far.Close() }()
		_, _ = io.WriteString(near, "HTTP/1.1 200 Connected\r\n\r\n") // the client fails where this does
		go func() { _, _ = io.Copy(far, near) }()                     // until either ends
		_, _ = io.Copy(near, far)                                     // until either ends
	}))
	b.Cleanup(proxy.Close)
	return netip.MustParseAddrPort(strings.TrimPrefix(proxy.URL, "http://"))
}

func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

// BenchmarkFetch is fetch_url of a loopback page, the judgement of its address and its way into Markdown included, beside the same through
// an upstream proxy and net/http alone.
func BenchmarkFetch(b *testing.B) {
	page := "<html><body>" + strings.Repeat("<p>A paragraph with <a href=\"/x\">a link</a>.</p>", 80) + "</body></html>"
	server, tools, bare := benched(b, answering("text/html; charset=utf-8", page))
	b.Run("fetch_url", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := fetch(tools, server.URL); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("upstream", func(b *testing.B) {
		// An address of the public network, which the proxy alone is told: nothing dials it.
		const public = "93.184.216.34"
		proxied := allowed(b, public, dialer.Config{Upstream: upstream(b, strings.TrimPrefix(server.URL, "http://"))})
		b.ReportAllocs()
		for b.Loop() {
			if _, err := fetch(proxied, "http://"+public+"/"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("net-http", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := get(b.Context(), bare, server.URL); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkInFlight is what a connection holds in memory while 1,000 wait for an answer, server and client together.
func BenchmarkInFlight(b *testing.B) {
	const most = 1000
	for name, call := range map[string]func(tools *Tools, bare *http.Client, url string) error{
		"fetch_url": func(tools *Tools, _ *http.Client, url string) error {
			_, err := tools.FetchUrl(b.Context(), &egressv1.FetchUrlRequest{Url: &url})
			return err
		},
		"net-http": func(_ *Tools, bare *http.Client, url string) error { return get(b.Context(), bare, url) },
	} {
		b.Run(name, func(b *testing.B) {
			held, release := make(chan struct{}, most), make(chan struct{})
			server, tools, bare := benched(b, func(w http.ResponseWriter, _ *http.Request) {
				held <- struct{}{}
				<-release
				w.Header().Set("Content-Type", "text/plain")
				_, _ = io.WriteString(w, "late")
			})
			before := inUse()
			var calls sync.WaitGroup
			for range most {
				calls.Go(func() {
					if err := call(tools, bare, server.URL); err != nil {
						b.Error(err)
						held <- struct{}{} // nobody waits for it
					}
				})
			}
			for range most {
				<-held
			}
			each := float64(inUse()-before) / most
			close(release)
			calls.Wait()
			for b.Loop() {
				continue // one measurement is enough
			}
			b.ReportMetric(each, "bytes/conn")
		})
	}
}

// inUse is the memory that the heap and stacks hold after a collection.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
