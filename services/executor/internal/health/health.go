// Package health asks a service on this host whether it answers (SEC-H1..H5): HTTP on loopback alone, judged on the
// address that is dialled, with a timeout for each check, a bounded body and no redirects. It trusts nothing that the
// service says: only that it answered 2xx, with the content type that the catalog names, counts.
package health

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/pattern"
)

// maxBody is how much of an answer is read.
const maxBody = 64 << 10

// defaultTimeout is for an entry that names none.
const defaultTimeout = 2 * time.Second

// Reasons why a check fails; for our own log.
var (
	ErrNotLoopback = errors.New("services are asked on loopback alone")
	ErrPath        = errors.New("the health path is not one that a catalogue may name")
	ErrTooLarge    = errors.New("the health answer is larger than 64 kB")
	ErrStatus      = errors.New("the health answer is not a success")
	ErrNotServed   = errors.New("nothing that checks health is at that path")
	ErrContentType = errors.New("the health answer is of another content type than health.content_type says (unless it says one: JSON, plain text, or none)")
)

// pathPattern is the catalog's own (SEC-H2). It is checked here again, where the request is made.
var pathPattern = pattern.New(`\A/[A-Za-z0-9._~/\-]{0,127}\z`)

// Checker checks services. It is safe for concurrent use and holds no connections.
type Checker struct{ client *http.Client }

// New returns a Checker.
func New() *Checker {
	transport := Transport()
	transport.DisableKeepAlives = true
	return &Checker{client: &http.Client{Transport: transport, CheckRedirect: NoRedirect}}
}

// Transport returns a transport that reaches this host's loopback addresses and nothing else, judged on the address that is
// dialled. It uses no proxy, whatever the environment says.
func Transport() *http.Transport {
	dialer := &net.Dialer{ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || !at.Addr().Unmap().IsLoopback() {
			return ErrNotLoopback
		}
		return nil
	}}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxBody,
	}
}

// NoRedirect is an http.Client's CheckRedirect that follows none.
func NoRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Check returns nil if GET http://ADDRESS:PORT/PATH is answered with 2xx within the entry's timeout. mark stands for what
// the service answered, well or not, and is "" where it did not: a loading service whose answers differ is getting on.
func (c *Checker) Check(ctx context.Context, at netip.AddrPort, h *catalog.Health) (mark string, err error) {
	if !pathPattern().MatchString(h.Path) || strings.Contains("/"+h.Path+"/", "/../") {
		return "", ErrPath
	}
	timeout := time.Duration(h.TimeoutS) * time.Second
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	url := "http://" + at.String() + h.Path
	return c.get(ctx, url, timeout, h.ContentType)
}

func (c *Checker) get(ctx context.Context, url string, timeout time.Duration, contentType string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", fmt.Errorf("health check: %w", err)
	}
	req.Header.Set("User-Agent", "durward-executor")
	res, err := c.client.Do(req)
	if err != nil {
		return "", fmt.Errorf("health check: %w", err)
	}
	defer res.Body.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(res.Body, maxBody+1))
	if err != nil {
		return "", fmt.Errorf("health check: %w", err)
	}
	if n > maxBody {
		return "", ErrTooLarge
	}
	fmt.Fprintf(sum, " %d", res.StatusCode)
	mark := hex.EncodeToString(sum.Sum(nil)[:8])
	switch {
	case res.StatusCode >= 300 && res.StatusCode <= 499: // what only loads says 503, or nothing yet
		return mark, fmt.Errorf("%w: %w: %d", ErrStatus, ErrNotServed, res.StatusCode)
	case res.StatusCode < 200 || res.StatusCode > 299:
		return mark, fmt.Errorf("%w: %d", ErrStatus, res.StatusCode)
	case !expected(contentType, res.Header.Get("Content-Type")):
		return mark, ErrContentType
	}
	return mark, nil
}

// expected reports whether an answer is what the entry says; where it says nothing, what engines answer with: JSON, plain text,
// something untyped, or nothing. A page of HTML comes from whatever else listens there.
func expected(want, header string) bool {
	got, _, err := mime.ParseMediaType(header)
	switch want {
	case catalog.AnyContentType:
		return true
	case "":
		return header == "" || err == nil && (strings.EqualFold(got, "application/json") || strings.EqualFold(got, "text/plain"))
	default:
		return err == nil && strings.EqualFold(got, want)
	}
}
