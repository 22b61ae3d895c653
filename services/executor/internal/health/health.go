// Package health asks a service on this host whether it answers (SEC-H1..H5): HTTP on loopback alone, judged on the
// address that is dialled, with a timeout for each check, a bounded body and no redirects. It trusts nothing that the
// service says; only that it answered 2xx counts.
package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

// maxBody is how much of an answer is read.
const maxBody = 64 << 10

// Reasons why a check fails; for our own log.
var (
	ErrNotLoopback = errors.New("health checks go to loopback alone")
	ErrTooLarge    = errors.New("the health answer is larger than 64 kB")
	ErrStatus      = errors.New("the health answer is not a success")
)

// Checker checks services. It is safe for concurrent use and holds no connections.
type Checker struct{ client *http.Client }

// New returns a Checker.
func New() *Checker {
	dialer := &net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || !at.Addr().IsLoopback() {
			return ErrNotLoopback
		}
		return nil
	}}
	return &Checker{client: &http.Client{
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxBody,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Check returns nil if GET http://127.0.0.1:PORT/PATH is answered with 2xx within the timeout.
func (c *Checker) Check(ctx context.Context, port uint32, path string, timeout time.Duration) error {
	return c.get(ctx, "http://"+net.JoinHostPort("127.0.0.1", strconv.FormatUint(uint64(port), 10))+path, timeout)
}

func (c *Checker) get(ctx context.Context, url string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	req.Header.Set("User-Agent", "durward-executor")
	res, err := c.client.Do(req)
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	defer res.Body.Close()
	n, err := io.Copy(io.Discard, io.LimitReader(res.Body, maxBody+1))
	switch {
	case err != nil:
		return fmt.Errorf("health check: %w", err)
	case n > maxBody:
		return ErrTooLarge
	case res.StatusCode < 200 || res.StatusCode > 299:
		return fmt.Errorf("%w: %d", ErrStatus, res.StatusCode)
	}
	return nil
}
