package drill

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/canonical"
)

// edgeLines are the attacks of somebody who has nothing but the gateway's address, or a token of his own: strangers, other
// agents, and web pages in the operator's browser.
func edgeLines() []Line {
	gateway := func(guards string) map[string]string { return map[string]string{harness.Gateway: guards} }
	return []Line{
		{"edge-guessed-token", gateway("owner"), guessedToken},
		{"edge-swapped-sessions", gateway("owner"), swappedSessions},
		{"edge-swapped-requests", gateway("owner"), swappedRequests},
		{"edge-ids-in-flight", gateway("ids"), idsInFlight},
		{"edge-swapped-operations", map[string]string{harness.Vault: "owner"}, swappedOperations},
		{"edge-foreign-host", gateway("local"), foreignHost},
		{"edge-foreign-origin", gateway("local"), foreignOrigin},
		{"edge-lying-headers", gateway("headers"), lyingHeaders},
		{"edge-folded-keys", gateway("keys"), foldedKeys},
		{"edge-terminated-keys", gateway("keys"), terminatedKeys},
		{"edge-duplicate-keys", gateway("keys"), duplicateKeys},
		{"edge-cross-site-call", gateway("local,media"), crossSiteCall},
		{"edge-other-media", gateway("media"), otherMedia},
		{"edge-decoded-path", gateway("path"), decodedPath},
		{"edge-folded-headers", gateway("folds"), foldedHeaders},
		{"edge-remote-plaintext", gateway("remote"), remotePlaintext},
	}
}

// agent is a bearer client as it stands before the gateway.
type agent struct{ token, principal string }

// agent returns a client that no attack has used.
func (w *world) agent() agent {
	w.t.Helper()
	if w.nextClient >= clientCount {
		w.t.Fatal("the drill needs more clients")
	}
	n := w.nextClient
	w.nextClient++
	return agent{token(n), fmt.Sprintf("agent-%d", n)}
}

// raw sends a request to the gateway; what cannot be sent, or gets no answer, is a zero answer.
func (w *world) raw(r harness.RawRequest) harness.RawAnswer {
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	a, err := w.h.Raw(ctx, r)
	if err != nil {
		return harness.RawAnswer{}
	}
	return a
}

// operations counts what was ever asked for, whoever asked.
func (w *world) operations() int { return w.query(harness.Vault, `SELECT count(*) FROM operations`) }

var requestIDs = regexp.MustCompile(`r-[a-z2-7]{26}`)

// face is everything that a client sees of an answer, but its request id and the time.
func face(a harness.RawAnswer) string {
	header := a.Header.Clone()
	header.Del("Date")
	var lines []string
	for name, values := range header {
		lines = append(lines, name+": "+strings.Join(values, ", "))
	}
	slices.Sort(lines)
	return requestIDs.ReplaceAllString(fmt.Sprintf("%d\n%s\n\n%s", a.HTTPStatus, strings.Join(lines, "\n"), a.Body), "r-")
}

// requestID is the one under which an answer is recorded.
func requestID(a harness.RawAnswer) string { return a.Header.Get("Durward-Request-Id") }

// surfaces are the requests with which a token can be tried: a handshake, everything that a session has, and the stateless
// era.
func surfaces(token, session string) []harness.RawRequest {
	in := map[string]string{"Mcp-Session-Id": session, "Mcp-Protocol-Version": harness.SessionRevision}
	call := []byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"` + idle + `"}}}`)
	return []harness.RawRequest{
		{Token: token, Body: []byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + harness.SessionRevision +
			`","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`)},
		{Token: token, Header: in, Body: call},
		{Token: token, Header: in, Method: http.MethodGet},
		{Token: token, Header: in, Method: http.MethodDelete},
		harness.StatelessCall(token, "start_service", `{"service_id":"`+idle+`"}`),
		harness.Stateless(token, "server/discover", "", `{}`),
	}
}

// guessedToken tries tokens: near misses of a real one, at everything that its owner has open, and ones that are nobody's.
// Its effects are requests that were let in, answers that tell a near miss from a token that is nobody's by a single byte,
// records that do, and operations. (How long answers take is not compared: the vault looks a token's digest up, and a digest
// is no nearer for a near miss.)
func guessedToken(w *world) (trials, effects int) {
	owner := w.agent()
	session := w.h.ConnectRaw(owner.token)
	before := w.operations()
	// The token is nobody's, and so is the session.
	const nobody = "drill-nobody-0000"
	var reference []harness.RawAnswer
	for _, r := range surfaces(nobody, strings.Repeat("A", len(session.ID))) {
		reference = append(reference, w.raw(r))
	}
	var recorded []string
	for i, guess := range tokenGuesses(owner.token) {
		for j, r := range surfaces(guess, session.ID) {
			trials++
			a := w.raw(r)
			if face(a) != face(reference[j]) {
				w.t.Logf("%q at %s %s is answered otherwise:\n%s\n%s", guess, r.Method, r.Body, face(a), face(reference[j]))
				effects++
			}
			if i == 0 {
				recorded = append(recorded, requestID(a))
			}
		}
		if w.caught(effects) {
			return trials, effects
		}
	}
	for j, id := range recorded {
		// A handshake and a stateless request reach the vault, which records who could not be let in. The others end before, and
		// are recorded together: what could tell is a record that names the owner.
		if _, inSession := surfaces("", "")[j].Header["Mcp-Session-Id"]; inSession {
			continue
		}
		if mine, other := w.failureOf(id), w.failureOf(requestID(reference[j])); mine != other {
			w.t.Logf("recorded as %q, and as %q for a token that is nobody's", mine, other)
			effects++
		}
	}
	named := w.h.Records(&auditv1.SearchRecordsRequest{Principal: owner.principal, Kinds: []auditv1.Kind{auditv1.Kind_KIND_REFUSED}})
	for _, e := range named {
		w.t.Logf("a guess is recorded as the owner's: %v", e.GetRecord().GetBody())
	}
	effects += len(named)
	if a := w.raw(session.Request([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))); a.HTTPStatus != http.StatusOK {
		effects++ // somebody ended it
	}
	return trials, effects + w.operations() - before
}

// failureOf is what the log says of a request whose client could not be let in.
func (w *world) failureOf(requestID string) string {
	w.t.Helper()
	const kind = auditv1.Kind_KIND_AUTHENTICATION_FAILED
	for _, e := range w.h.Story(requestID, harness.OfKind(kind)) {
		if r := e.GetRecord(); r.GetKind() == kind {
			return r.GetBody().GetAction() + " " + r.GetBody().GetReason() + " " + r.GetBody().GetPrincipal() + " " + r.GetStatus().String()
		}
	}
	return ""
}

// tokenGuesses are tokens that somebody would try who knows nearly all of one.
func tokenGuesses(real string) []string {
	digest := canonical.Digest([]byte(real))
	out := []string{
		real[:len(real)-1], real + "0", real + real, strings.ToUpper(real), real[1:], strings.Repeat("a", len(real)), "null", "undefined", "true",
		"agent-0", hex.EncodeToString(digest[:]), "sha256:" + hex.EncodeToString(digest[:]), base64.StdEncoding.EncodeToString([]byte(real)),
		"'OR'1'='1", "*", "%", "../" + real, strings.Repeat("A", 512),
	}
	for i := range real {
		changed := []byte(real)
		if changed[i]++; real[i] >= '0' && real[i] <= '9' {
			changed[i] = '~' // with another digit it would be another client's
		}
		out = append(out, string(changed))
	}
	for range 20 {
		out = append(out, fmt.Sprintf("drill-token-%04d", clientCount+mathrand.IntN(9000)))
	}
	return out
}

// lyingHeaders says one thing in the headers and another in the body, as somebody does who wants a proxy in front of the
// gateway to decide on the one and the gateway to act on the other. Its effects are operations, and answers other than a
// refusal for the difference.
func lyingHeaders(w *world) (trials, effects int) {
	own := w.agent()
	before := w.operations()
	honest := harness.StatelessCall(own.token, "start_service", `{"service_id":"`+idle+`"}`)
	var lies []harness.RawRequest
	for name, values := range map[string][]string{
		"Mcp-Method": {"", "tools/list", "ping", "Tools/Call", "tools/call ", "tools/call\t", "initialize", "tools/call, tools/list", "=?base64?dG9vbHMvbGlzdA==?="},
		"Mcp-Name": {"", "gpu_status", "service_info", "START_SERVICE", "start_service,gpu_status", "stop_service", "=?base64?Z3B1X3N0YXR1cw==?=",
			"start_service\u200b", "\u017ftart_service"},
		"Mcp-Protocol-Version": {"", harness.SessionRevision, "2025-06-18", "2099-01-01", "2026-07-28 ", "2026-07-29", "latest", "2026-07-28, 2025-11-25"},
	} {
		for _, value := range values {
			if strings.TrimSpace(value) == honest.Header[name] {
				continue // HTTP does not keep white space around a value
			}
			lies = append(lies, honest.With(name, value))
		}
	}
	// A session's headers around a message of the other era, and that message in a session.
	session := w.h.ConnectRaw(own.token)
	inSession := honest.With("Mcp-Session-Id", session.ID).With("Mcp-Protocol-Version", harness.SessionRevision)
	lies = append(lies, inSession, inSession.With("Mcp-Method", ""), inSession.With("Mcp-Protocol-Version", ""))
	for _, lie := range lies {
		trials++
		a := w.raw(lie)
		if a.HTTPStatus != http.StatusBadRequest || a.Error == nil || a.Error.Code != -32020 && a.Error.Code != -32022 && a.Error.Code != -32602 {
			w.t.Logf("%v is answered with %d %s", lie.Header, a.HTTPStatus, a.Body)
			effects++
		}
		if effects += w.operations() - before; w.caught(effects) {
			return trials, effects
		}
	}
	// The honest one is a call, so that it was the lie which was refused.
	if a := w.raw(honest); a.HTTPStatus != http.StatusOK || w.operations() != before+1 {
		w.t.Fatalf("an honest call is refused too: %d %s", a.HTTPStatus, a.Body)
	}
	return trials, effects
}

// spelled is a message in which a call of a tool that asks a human hides behind names that are nearly the protocol's.
type spelled func(key func(string) string) string

// beside are such messages in which the variant stands beside the name itself: a reader who matches names exactly sees
// something harmless. instead are those in which it stands alone.
var (
	beside = []spelled{
		func(k func(string) string) string {
			return `{"jsonrpc":"2.0","id":7,"method":"ping","` + k("method") + `":"tools/call","params":{"name":"start_service","arguments":{"service_id":"` + idle + `"}}}`
		},
		func(k func(string) string) string {
			return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"gpu_status"},"` + k("params") + `":{"name":"start_service","arguments":{"service_id":"` + idle + `"}}}`
		},
		func(k func(string) string) string {
			return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"service_info","` + k("name") + `":"start_service","arguments":{"service_id":"` + idle + `"}}}`
		},
		func(k func(string) string) string {
			return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"no-such"},"` + k("arguments") + `":{"service_id":"` + idle + `"}}}`
		},
		func(k func(string) string) string {
			return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"no-such","` + k("service_id") + `":"` + idle + `"}}}`
		},
	}
	instead = []spelled{
		func(k func(string) string) string {
			return `{"jsonrpc":"2.0","id":7,"` + k("method") + `":"tools/call","` + k("params") + `":{"name":"start_service","arguments":{"service_id":"` + idle + `"}}}`
		},
		func(k func(string) string) string {
			return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"` + k("name") + `":"start_service","` + k("arguments") + `":{"` + k("service_id") + `":"` + idle + `"}}}`
		},
	}
)

// smuggle sends spellings with every variant of their names, in both eras. Its effects are operations.
func (w *world) smuggle(spellings []spelled, variants ...func(string) string) (trials, effects int) {
	own := w.agent()
	session := w.h.ConnectRaw(own.token)
	before := w.operations()
	for _, spelling := range spellings {
		for _, variant := range variants {
			body := spelling(variant)
			whole := strings.Replace(body, `"params":{`, `"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"`+harness.StatelessRevision+
				`","io.modelcontextprotocol/clientCapabilities":{}},`, 1)
			modern := harness.StatelessCall(own.token, "start_service", "{}")
			modern.Body = []byte(whole)
			for _, r := range []harness.RawRequest{session.Request([]byte(body)), modern, modern.With("Mcp-Name", "service_info"), modern.With("Mcp-Name", "gpu_status")} {
				trials++
				w.raw(r)
				if effects = w.operations() - before; w.caught(effects) {
					return trials, effects
				}
			}
		}
	}
	return trials, effects
}

// foldedKeys are keys that differ from the protocol's in case, or by a character that Unicode folds to a letter: Go's
// encoding/json takes them for the same, and the MCP SDK did until 1.3.1, where a policy in front of it saw others
// (CVE-2026-27896, GHSA-wvj2-96wp-fq3f).
func foldedKeys(w *world) (trials, effects int) {
	return w.smuggle(slices.Concat(beside, instead), strings.ToUpper,
		func(s string) string { return strings.ToUpper(s[:1]) + s[1:] },
		func(s string) string { return s[:1] + strings.ToUpper(s[1:]) },
		func(s string) string { return strings.ReplaceAll(s, "s", "\u017f") },
		func(s string) string { return strings.ReplaceAll(s, "s", `\u017f`) },
		func(s string) string { return strings.ReplaceAll(strings.ToUpper(s), "S", `\u017F`) },
		func(s string) string { return fmt.Sprintf(`\u%04x%s`, s[0]-'a'+'A', s[1:]) },
	)
}

// terminatedKeys are keys with zero characters behind them, which the parser that the MCP SDK took in 1.3.1 held for the keys
// without, so that the last of two decided (GHSA-q382-vc8q-7jhj).
func terminatedKeys(w *world) (trials, effects int) {
	return w.smuggle(slices.Concat(beside, instead),
		func(s string) string { return s + `\u0000` },
		func(s string) string { return s + `\u0000\u0000\u0000` },
		func(s string) string { return s + strings.Repeat(`\u0000`, 16-len(s)%16) },
		func(s string) string { return s + "\x00" },
		func(s string) string { return s + `\u0000x` },
	)
}

// duplicateKeys are keys that are there twice, once perhaps with an escape: some readers take the first, some the last.
func duplicateKeys(w *world) (trials, effects int) {
	return w.smuggle(beside,
		func(s string) string { return s },
		func(s string) string { return fmt.Sprintf(`\u%04x%s`, s[0], s[1:]) },
		func(s string) string { return fmt.Sprintf(`%s\u%04X`, s[:len(s)-1], s[len(s)-1]) },
	)
}

// crossSiteCall is what a page of another origin can have the operator's browser send without being asked for leave first: a
// POST as plain text or a form, with a message as its body. The MCP SDK served it until 1.4.1 (CVE-2026-33252,
// GHSA-89xv-2j6f-qhc8). The page is given a token here, as if the browser added one: what stands in the way is not that.
func crossSiteCall(w *world) (trials, effects int) {
	own := w.agent()
	session := w.h.ConnectRaw(own.token)
	before := w.operations()
	modern := harness.StatelessCall(own.token, "start_service", `{"service_id":"`+idle+`"}`)
	for _, sender := range []map[string]string{
		{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
		{"Origin": "null", "Sec-Fetch-Site": "cross-site"},
		{"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
		{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
		{"Referer": "https://evil.example/"},
		{"Origin": "https://evil.example"},
	} {
		for _, media := range []string{"text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/json"} {
			if _, honest := sender["Referer"]; honest && media == "application/json" {
				continue // that is a program's request, whatever it refers to
			}
			for _, r := range []harness.RawRequest{
				session.Call("start_service", `{"service_id":"`+idle+`"}`), modern,
				modern.With("Mcp-Method", "").With("Mcp-Name", "").With("Mcp-Protocol-Version", ""), // a page cannot set these
			} {
				for name, value := range sender {
					r = r.With(name, value)
				}
				trials++
				w.raw(r.With("Content-Type", media))
				if effects = w.operations() - before; w.caught(effects) {
					return trials, effects
				}
			}
		}
	}
	return trials, effects
}

// bytesOf sends a call as bytes, with this target and these lines for its media type, which no client of HTTP would write.
func (w *world) bytesOf(r harness.RawRequest, target, media string) {
	w.t.Helper()
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", w.h.Address(harness.Gateway))
	w.must(err)
	defer conn.Close()
	at, _ := ctx.Deadline()
	w.must(conn.SetDeadline(at))
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nAccept: application/json, text/event-stream\r\nConnection: close\r\n%sContent-Length: %d\r\n",
		target, w.h.Address(harness.Gateway), r.Token, media, len(r.Body))
	for name, value := range r.Header {
		fmt.Fprintf(&b, "%s: %s\r\n", name, value)
	}
	_, err = fmt.Fprintf(conn, "%s\r\n%s", &b, r.Body)
	w.must(err)
	// What it answers counts for nothing, and neither does a connection that ends: operations are counted.
	_, _ = io.Copy(io.Discard, conn)
}

// otherMedia sends a call whose media type says, or says to some readers, that the bytes are something else. Its effects are operations.
func otherMedia(w *world) (trials, effects int) {
	const json = "Content-Type: application/json"
	return w.inBytes("/mcp", []string{json + "\r\nContent-Type: application/json\r\n", json + "\r\nContent-Type: text/plain\r\n", "Content-Type: text/plain\r\n" + json + "\r\n",
		json + "; charset=utf-7\r\n", json + "; charset=utf-16\r\n", json + "; charset=iso-2022-jp\r\n", json + ";\r\n charset=utf-7\r\n",
		json + "; charset=utf-8; charset=utf-7\r\n", json + "\r\n text/plain\r\n", json + ", text/plain\r\n"})
}

// decodedPath sends a call to paths that are the one of MCP once they are decoded, and to which a rule of a proxy in front about that
// path does not apply. Its effects are operations.
func decodedPath(w *world) (trials, effects int) {
	for _, target := range []string{"/%6dcp", "/m%63p", "/mc%70", "/%6d%63%70"} {
		n, found := w.inBytes(target, []string{"Content-Type: application/json\r\n"})
		if trials, effects = trials+n, effects+found; w.caught(effects) {
			break
		}
	}
	return trials, effects
}

// foldedHeaders sends a call with a header that goes on in the next line, where a proxy in front may have read two: at first, behind
// another request, and behind a chunked one. Its effects are operations.
func foldedHeaders(w *world) (trials, effects int) {
	const json, ping = "Content-Type: application/json\r\n", `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	head := func(lines string) string {
		return fmt.Sprintf("POST /mcp HTTP/1.1\r\nHost: %s\r\n%s%s", w.h.Address(harness.Gateway), json, lines)
	}
	var media []string
	for _, fold := range []string{"X-Note: a\r\n b\r\n", "X-Note:\r\n\tb\r\n", "X-Note: a\n b\n", "X-Note: a\r\n \r\n", "X-Note: a\r\n Content-Length: 5\r\n"} {
		media = append(media, json+fold, "Content-Type:\r\n application/json\r\n"+fold)
	}
	if trials, effects = w.inBytes("/mcp", media); w.caught(effects) {
		return trials, effects
	}
	for _, before := range []string{
		head(fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(ping), ping)),
		head(fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(ping), ping)),
	} {
		// The target ends the request before, so that the call is the second on its connection.
		n, found := w.inBytes("/mcp HTTP/1.1\r\n"+strings.TrimPrefix(before, "POST /mcp HTTP/1.1\r\n")+"POST /mcp", media)
		if trials, effects = trials+n, effects+found; w.caught(effects) {
			break
		}
	}
	return trials, effects
}

// inBytes sends a call, in both eras, with each media type to a target, and counts operations. Its control is that the same bytes are
// served with the media type and the path of MCP.
func (w *world) inBytes(target string, media []string) (trials, effects int) {
	own := w.agent()
	modern := harness.StatelessCall(own.token, "start_service", `{"service_id":"`+idle+`"}`)
	session := w.h.ConnectRaw(own.token).Call("start_service", `{"service_id":"`+idle+`"}`)
	before := w.operations()
	for _, lines := range media {
		for _, r := range []harness.RawRequest{modern, session} {
			trials++
			w.bytesOf(r, target, lines)
			if effects = w.operations() - before; w.caught(effects) {
				return trials, effects
			}
		}
	}
	if w.bytesOf(modern, "/mcp", "Content-Type: application/json\r\n"); w.operations() == before {
		w.t.Fatal("an honest call in bytes is refused too")
	}
	return trials, effects
}

// status is the status of a tool's envelope.
func status(a harness.RawAnswer) string {
	var result struct {
		Structured struct {
			Status string `json:"status"`
		} `json:"structuredContent"`
	}
	if json.Unmarshal(a.Result, &result) != nil {
		return ""
	}
	return result.Structured.Status
}

// operationIn is the operation that an answer names.
func operationIn(a harness.RawAnswer) string {
	var result struct {
		Structured struct {
			Operation string `json:"operation_id"`
		} `json:"structuredContent"`
	}
	if json.Unmarshal(a.Result, &result) != nil {
		return ""
	}
	return result.Structured.Operation
}

// pause waits, unless the drill ends.
func (w *world) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
