package httpfront

import (
	"encoding/base64"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/pattern"
)

// Headers of the protocol.
const (
	headerSession  = "Mcp-Session-Id"
	headerProtocol = "Mcp-Protocol-Version"
	headerMethod   = "Mcp-Method"
	headerName     = "Mcp-Name"
)

// modernEra is the revision of the stateless era.
const modernEra = "2026-07-28"

// protocols are the revisions of the stateful era that are served, newest first.
var protocols = []string{"2025-11-25", "2025-06-18"}

// unsaid is the revision that the specification has a server assume where the header is missing and nothing else tells it
// the revision. A session knows its own, so that a message which claims this one is taken like one without the header.
const unsaid = "2025-03-26"

// Protocols returns the revisions of an era that are served, newest first. The stateless era lists them all, since its
// clients learn from it what else they could speak.
func Protocols(era Era) []string {
	if era == Stateless {
		return append([]string{modernEra}, protocols...)
	}
	return slices.Clone(protocols)
}

// SupportedProtocol reports whether a revision of the stateful era is served.
func SupportedProtocol(version string) bool { return slices.Contains(protocols, version) }

// headers are what a request says about its body. They decide nothing that the body says itself: they are compared with it.
type headers struct {
	protocol, method, name []string
	session                bool
}

func readHeaders(h http.Header) headers {
	return headers{
		protocol: h.Values(headerProtocol), method: h.Values(headerMethod), name: h.Values(headerName),
		session: sessionID(h) != "",
	}
}

// sessionID returns the session that a request names, or the empty string. Whoever names two names none that there is.
func sessionID(h http.Header) string { return strings.Join(h.Values(headerSession), ",") }

// modern reports whether the headers claim a revision without sessions.
func (h headers) modern() bool {
	return len(h.protocol) == 1 && isRevision(h.protocol[0]) && h.protocol[0] >= modernEra
}

// ofSession reports whether the headers claim nothing that a message of a session may not.
func (h headers) ofSession() bool {
	return len(h.protocol) == 0 || len(h.protocol) == 1 && (SupportedProtocol(h.protocol[0]) || h.protocol[0] == unsaid)
}

// isRevision reports whether a text has the form of a revision: a date.
func isRevision(s string) bool {
	_, err := time.Parse(time.DateOnly, s)
	return err == nil
}

// era is the verdict on a message: the stateless era if the message says so itself, or if it says nothing and its headers
// claim that era for something that has no session and is no handshake; what is wrong with it is then said in that era's way.
func (h headers) era(f *Frame) Era {
	if f.protocol != "" || h.modern() && !h.session && f.Method != methodInitialize {
		return Stateless
	}
	return Stateful
}

// check compares the headers with the message, and refuses revisions that are not served.
func (h headers) check(f *Frame) *frameError {
	if f.Era == Stateful {
		if f.Method == methodInitialize || h.ofSession() {
			return nil
		}
		return unsupported(h.protocol...)
	}
	if f.ID == nil {
		// Notifications carry no revision, and there is none in this era that says anything to us.
		return mismatch(headerMethod, f.Method, h.method)
	}
	if f.protocol == "" {
		return invalidParams("The request lacks " + metaProtocol + " in params._meta.")
	}
	if err := mismatch(headerProtocol, f.protocol, h.protocol); err != nil {
		return err
	}
	if f.protocol != modernEra {
		return unsupported(f.protocol)
	}
	if !f.declared {
		return invalidParams("The request lacks " + metaCapabilities + " in params._meta.")
	}
	return mismatch(headerMethod, f.Method, h.method)
}

// checkName compares the name in the headers with what the message is about. Names alone may be encoded.
func (h headers) checkName(f *Frame, named bool) *frameError {
	if f.Era != Stateless || !named || len(h.name) == 1 && plain(h.name[0]) == f.Name {
		return nil
	}
	return mismatch(headerName, f.Name, h.name)
}

// mismatch refuses a header that is not there once with the body's value.
func mismatch(name, body string, values []string) *frameError {
	if !headersRequired() || len(values) == 1 && values[0] == body {
		return nil
	}
	return &frameError{rpc: rpcHeaderMismatch, code: callv1.Code_CODE_INVALID_ARGUMENT,
		message: "The header " + name + " must be there once and say what the body says."}
}

// plain undoes the encoding that clients use for what a header cannot carry: =?base64?…?=.
func plain(value string) string {
	encoded, begins := strings.CutPrefix(value, "=?base64?")
	encoded, ends := strings.CutSuffix(encoded, "?=")
	if !begins || !ends {
		return value
	}
	decoded, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return value
	}
	return string(decoded)
}

// versionPattern is what a revision may look like to be repeated: no text of somebody's own.
var versionPattern = pattern.New(`^v?[0-9][0-9.-]{0,31}$`)

// unsupported refuses a revision and names those that are served. It repeats what the client asked for only if that looks
// like a revision.
func unsupported(claims ...string) *frameError {
	requested, quiet := "unknown", false
	for _, c := range claims {
		if versionPattern().MatchString(c) {
			requested, quiet = c, isRevision(c) && c > modernEra // clients of a later revision ask so before they fall back
			break
		}
	}
	supported := Protocols(Stateless)
	return &frameError{rpc: rpcUnsupportedVersion, code: callv1.Code_CODE_INVALID_ARGUMENT, quiet: quiet,
		message: "This server speaks MCP " + strings.Join(supported[:len(supported)-1], ", ") + " and " + supported[len(supported)-1] + ".",
		data:    map[string]any{"supported": supported, "requested": requested}}
}

// forwarded returns the headers that go on with a frame: none but those that were compared with it, and those that the SDK
// needs and that the front has judged.
func forwarded(r *http.Request, f *Frame) http.Header {
	out := http.Header{
		"Authorization": r.Header["Authorization"],
		"Content-Type":  {"application/json"},
		"Accept":        {"application/json, text/event-stream"},
	}
	if f.Era == Stateful {
		if values := r.Header[headerSession]; len(values) == 1 {
			out[headerSession] = values
		}
		if values := r.Header[headerProtocol]; len(values) == 1 && SupportedProtocol(values[0]) && f.Method != methodInitialize {
			out[headerProtocol] = values
		}
		return out
	}
	out[headerProtocol], out[headerMethod], out[headerName] = []string{modernEra}, []string{f.Method}, []string{f.Name}
	diagnosticHeaders(out, r.Header)
	return out
}

// bearer returns the token of the one Authorization header, if it is well formed.
func bearer(h http.Header) (string, bool) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxToken {
		return "", false
	}
	for _, c := range []byte(token) {
		if c <= ' ' || c > '~' {
			return "", false
		}
	}
	return token, true
}

func checkMedia(h http.Header) *refused {
	if mediaRequired() && !isJSON(h.Values("Content-Type")) {
		return &refused{status: http.StatusUnsupportedMediaType, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "content type",
			message: "The Content-Type must be application/json, once, in UTF-8."}
	}
	if strings.Join(h.Values("Content-Encoding"), "") != "" {
		return &refused{status: http.StatusUnsupportedMediaType, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "content encoding",
			message: "Compressed messages are not accepted."}
	}
	if jsonOK, streamOK := accepts(h); !jsonOK || !streamOK {
		return &refused{status: http.StatusNotAcceptable, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "accept",
			message: "The client must accept application/json and text/event-stream."}
	}
	return nil
}

// isJSON reports whether Content-Type headers say, once, that the message is JSON in UTF-8, the one encoding that JSON has (RFC 8259).
func isJSON(values []string) bool {
	if len(values) != 1 {
		return false
	}
	media, params, err := mime.ParseMediaType(values[0])
	return err == nil && media == "application/json" && (len(params) == 0 || len(params) == 1 && strings.EqualFold(params["charset"], "utf-8"))
}

// accepts reports which of the two media types a client takes: of the ranges that match one the closest decides (RFC 9110, section 12.5.1).
func accepts(h http.Header) (jsonOK, streamOK bool) {
	takes := map[string]bool{}
	for _, accept := range strings.Split(strings.Join(h.Values("Accept"), ","), ",") {
		media, params, _ := mime.ParseMediaType(accept) // names no media type where it is malformed
		takes[media] = params["q"] == "" || strings.Trim(params["q"], "0.") != ""
	}
	of := func(ranges ...string) bool {
		i := slices.IndexFunc(ranges, func(r string) bool { _, said := takes[r]; return said })
		return i >= 0 && takes[ranges[i]]
	}
	return of("application/json", "application/*", "*/*"), of("text/event-stream", "text/*", "*/*")
}

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
	if f.conf.Origins.Has(origins[0]) {
		return true
	}
	u, err := url.Parse(origins[0])
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && strings.EqualFold(u.Host, r.Host) && f.allowedHost(u.Host)
}
