package httpfront

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// allowedHost reports whether a Host header names this machine's loopback or a configured name: a page that rebinds its
// DNS name to 127.0.0.1 still sends its own.
func (f *Front) allowedHost(host string) bool {
	name := host
	if h, port, err := net.SplitHostPort(host); err == nil {
		if strings.Trim(port, "0123456789") != "" {
			return false // "localhost:80.evil.example"
		}
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"))
	if name == "localhost" || slices.Contains(f.conf.Hosts, name) {
		return true
	}
	ip := net.ParseIP(name)
	return ip != nil && ip.IsLoopback()
}

// allowedOrigin reports whether a request comes from a program, from this server's own origin, or from a configured one. It
// does not rely on the check of Host: an origin is this server's own only if its name is.
func (f *Front) allowedOrigin(r *http.Request) bool {
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		// Browsers that leave Origin out say where a request comes from in another header.
		site := r.Header.Get("Sec-Fetch-Site")
		return site == "" || site == "same-origin" || site == "none"
	}
	if len(origins) != 1 {
		return false
	}
	if slices.Contains(*f.origins.Load(), origins[0]) {
		return true
	}
	u, err := url.Parse(origins[0])
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && strings.EqualFold(u.Host, r.Host) && f.allowedHost(u.Host)
}
