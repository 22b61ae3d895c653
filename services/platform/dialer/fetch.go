package dialer

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strings"
	"syscall"

	"durward.internal/services/platform/destination"
)

// Answer is a server's answer, whole. All but Address is the server's: hostile.
type Answer struct {
	Status int
	Header http.Header
	// Body is decompressed.
	Body []byte
	// URL is where the answer came from, after redirects; Address the one that was dialled for it.
	URL     *url.URL
	Address netip.AddrPort
}

// Do sends one request and reads the answer whole. The request's URL is judged as destination.ParseURL does; its Host is that of the
// URL. Answers of every status are answers; Do's errors are *destination.Error.
func (d *Dialer) Do(req *http.Request) (*Answer, error) {
	ctx, cancel := context.WithTimeout(req.Context(), d.cfg.Limits.Whole)
	defer cancel()
	answer := &Answer{}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if tcp, ok := got.Conn.RemoteAddr().(*net.TCPAddr); ok {
			answer.Address = tcp.AddrPort()
		}
	}})
	own := req.Clone(ctx)
	to, err := d.hop(own)
	if err != nil {
		return nil, err
	}
	if own.Header.Get("Accept-Encoding") == "" {
		own.Header.Set("Accept-Encoding", "gzip")
	}
	client := http.Client{Transport: d.transport, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		last := via[len(via)-1].URL
		switch {
		case d.cfg.Redirects == AnAnswer:
			return http.ErrUseLastResponse
		case len(via) > d.cfg.Redirects:
			return destination.Refuse(destination.RuleRedirect, "%s answers with a redirect, and at most %d are followed", to, d.cfg.Redirects)
		case downgrade(last.Scheme, next.URL.Scheme):
			return destination.Refuse(destination.RuleDowngrade, "a redirect leads from https to http")
		}
		next.Header.Del("Referer") // the page before is nobody's business
		to, err = d.hop(next)
		return err
	}}
	res, err := client.Do(own) // #nosec G704 -- to judge where a request goes is what this package is for
	if err != nil {
		return nil, d.explain(err, to)
	}
	defer func() { _ = res.Body.Close() }()
	if answer.Body, err = d.body(res); err != nil {
		return nil, d.explain(err, to)
	}
	answer.Status, answer.Header, answer.URL = res.StatusCode, res.Header, res.Request.URL
	return answer, nil
}

// hop judges a request that is about to be sent, and makes it one to what was judged.
func (d *Dialer) hop(req *http.Request) (destination.Destination, error) {
	u, to, err := destination.ParseURL(req.URL.String())
	if err != nil {
		return to, err
	}
	req.URL, req.Host = u, ""
	return to, d.admit(req.Context(), to)
}

// body reads a body within its bounds.
func (d *Dialer) body(res *http.Response) ([]byte, error) {
	most := d.cfg.Limits.Body
	if res.Request.Method == http.MethodHead {
		return nil, nil
	}
	raw, err := bounded(res.Body, most)
	if err != nil || res.StatusCode == http.StatusNoContent || len(raw) == 0 {
		return raw, err
	}
	switch encoding := strings.ToLower(strings.Join(res.Header.Values("Content-Encoding"), ",")); encoding {
	case "", "identity":
		return raw, nil
	case "gzip", "x-gzip":
		unpacked, err := gzip.NewReader(bytes.NewReader(raw))
		if err == nil {
			raw, err = bounded(unpacked, most)
		}
		if refused := (*destination.Error)(nil); err != nil && !errors.As(err, &refused) {
			return nil, destination.Refuse(destination.RuleEncoding, "the answer says that it is gzip, and is not")
		}
		return raw, err
	default:
		return nil, destination.Refuse(destination.RuleEncoding, "the answer is compressed in a way that was not asked for")
	}
}

func bounded(r io.Reader, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if int64(len(data)) > most {
		return nil, destination.Refuse(destination.RuleSize, "the answer is larger than %d bytes", most)
	}
	return data, err
}

// explain says in one sentence why there is no answer. Neither it nor its cause repeats the URL, which the errors of net/http quote and
// which may hold a credential; the sentence does not repeat what the other side sent.
func (d *Dialer) explain(err error, to destination.Destination) error {
	if quoting := (*url.Error)(nil); errors.As(err, &quoting) {
		err = quoting.Err
	}
	refused, timeout, lookup := (*destination.Error)(nil), net.Error(nil), (*net.DNSError)(nil)
	certificate, errno := (*tls.CertificateVerificationError)(nil), syscall.Errno(0)
	rule, why := destination.RuleNone, ""
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.Is(err, context.Canceled):
		why = "the call was given up"
	case errors.As(err, &lookup) && lookup.IsNotFound:
		why = "there is no such name"
	case errors.As(err, &lookup):
		why = "the name could not be looked up"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		rule, why = destination.RuleTime, "no whole answer within the time"
	case errors.As(err, &certificate):
		why = "its certificate is not valid for that name, or not of an authority that is trusted here"
	case errors.As(err, &errno):
		why = errno.Error()
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		why = "the connection ended before the answer did"
	default:
		why = "the answer is not valid HTTP or TLS"
	}
	return &destination.Error{Rule: rule, Why: fmt.Sprintf("%s: %s", to, why), Cause: err}
}
