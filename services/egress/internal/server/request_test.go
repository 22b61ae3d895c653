package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/handover"
)

// releasing is a vault that answers as it is told.
type releasing func(*vaultv1.ReleaseForRequestRequest) ([]byte, error)

func (f releasing) ReleaseForRequest(_ context.Context, r *vaultv1.ReleaseForRequestRequest, _ ...grpc.CallOption) (*vaultv1.ReleaseForRequestResponse, error) {
	sealed, err := f(r)
	return &vaultv1.ReleaseForRequestResponse{Sealed: sealed}, err
}

const origin = "https://api.example"

// What a vault gives that is not that credential for that header and origin is not sent, whoever is at fault.
func TestRelease(t *testing.T) {
	seal := func(to string, values ...handover.Value) releasing {
		return func(r *vaultv1.ReleaseForRequestRequest) ([]byte, error) {
			return handover.Seal(r.GetPublicKey(), to, values)
		}
	}
	good := handover.Value{Name: "api", Variable: "Authorization", Value: []byte("Bearer secret")}
	with := func(change func(*handover.Value)) handover.Value {
		v := good
		v.Value = bytes.Clone(good.Value)
		change(&v)
		return v
	}
	to := handover.ForRequest(origin, "Authorization")
	for name, vault := range map[string]releasing{
		"for another origin":    seal(handover.ForRequest("https://other.example", "Authorization"), good),
		"for another header":    seal(handover.ForRequest(origin, "X-Api-Key"), good),
		"another header within": seal(to, with(func(v *handover.Value) { v.Variable = "Host" })),
		"another credential":    seal(to, with(func(v *handover.Value) { v.Name = "other" })),
		"two":                   seal(to, good, good),
		"none":                  seal(to),
		"a second line":         seal(to, with(func(v *handover.Value) { v.Value = []byte("Bearer a\r\nHost: b") })),
		"nothing":               seal(to, with(func(v *handover.Value) { v.Value = nil })),
		"what is not encrypted": func(*vaultv1.ReleaseForRequestRequest) ([]byte, error) { return []byte(`[{"name":"api"}]`), nil },
		"a refusal": func(*vaultv1.ReleaseForRequestRequest) ([]byte, error) {
			return nil, fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed)
		},
		"that it is sealed away": func(*vaultv1.ReleaseForRequestRequest) ([]byte, error) {
			return nil, fault.New(callv1.Code_CODE_SEALED, "unseal it")
		},
	} {
		tools := &Tools{vault: vault}
		if v, err := tools.release(t.Context(), "api", origin, "Authorization"); err == nil || len(v.Value) > 0 || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, %v", name, v, err)
		}
	}
	tools := &Tools{vault: seal(to, good)}
	if v, err := tools.release(t.Context(), "api", origin, "Authorization"); err != nil || string(v.Value) != "Bearer secret" {
		t.Errorf("%v, %v", v, err)
	}
}

// A credential goes over TLS alone, and into a header that nothing else is in.
func TestAuthenticateRefuses(t *testing.T) {
	asked := 0
	tools := &Tools{vault: releasing(func(*vaultv1.ReleaseForRequestRequest) ([]byte, error) {
		asked++
		return nil, fault.New(callv1.Code_CODE_DENIED, "no")
	})}
	name, method := "api", http.MethodPost
	for raw, headers := range map[string]map[string]string{
		"http://api.example/": nil, "https://api.example/": {"x-version": "1"},
	} {
		r := &egressv1.HttpRequestRequest{
			Url: &raw, Method: &method, Headers: headers,
			Credentials: map[string]*callv1.CredentialReference{"x-version": {Credential: &name}},
		}
		if _, err := tools.authenticate(t.Context(), sent(t, r), r); fault.From(err).Code != callv1.Code_CODE_INVALID_ARGUMENT || asked != 0 {
			t.Errorf("%s: %v, and the vault was asked %d times", raw, err, asked)
		}
	}
	https := "https://api.example/p?key=1"
	for place, body := range map[string]string{
		"?key": "", "?other": "", "/token": `{"token":1}`, "/auth/token": `{"auth":{"x":1,"token":null}}`, "/a": `[]`, "/b": `{"b`, "/c": `{"d":1,"d":2}`,
		"/d/e": `{"d":{},"d":{}}`, "/e": `{} {}`, "/f/g": `{"f":"g"}`, "/g/h": `{"i":{"g":{}}}`, "/h": "", "/i~1j": `{}`, "/": `{}`, "?": "", "host": "",
	} {
		r := &egressv1.HttpRequestRequest{Url: &https, Method: &method, Body: &body, Credentials: map[string]*callv1.CredentialReference{place: {Credential: &name}}}
		if _, err := tools.authenticate(t.Context(), sent(t, r), r); fault.From(err).Code != callv1.Code_CODE_INVALID_ARGUMENT || asked != 0 ||
			place[0] == '?' && !strings.Contains(fault.From(err).Message, "never in a URL") {
			t.Errorf("%s of %s: %v, and the vault was asked %d times", place, body, err, asked)
		}
	}
	get, body := http.MethodGet, "x"
	if _, err := request(t.Context(), &url.URL{}, &egressv1.HttpRequestRequest{Method: &get, Body: &body}); err == nil {
		t.Error("a GET has a body")
	}
}

// sent is a request before its credentials.
func sent(t *testing.T, r *egressv1.HttpRequestRequest) *http.Request {
	t.Helper()
	u, err := url.Parse(r.GetUrl())
	must(t, err)
	req, err := request(t.Context(), u, r)
	must(t, err)
	return req
}

// A credential stands in its place alone, however it is spelled, and what a human signed stays byte for byte around it.
func TestPlaces(t *testing.T) {
	const secret = `p"ä/+s=1&<b>`
	tools := &Tools{vault: releasing(func(r *vaultv1.ReleaseForRequestRequest) ([]byte, error) {
		v := handover.Value{Name: r.GetName(), Variable: r.GetPlace(), Value: []byte(secret)}
		return handover.Seal(r.GetPublicKey(), handover.ForRequest(r.GetOrigin(), r.GetPlace()), []handover.Value{v})
	})}
	const quoted = `"p\"ä/+s=1&<b>"`
	escaped := url.QueryEscape(secret)
	for name, c := range map[string]struct {
		url, body string
		places    []string
		query     string
		want      string
	}{
		"a header":              {"https://api.example/p?q=1", "b", []string{"x-api-key"}, "q=1", "b"},
		"a member of nothing":   {"https://api.example/", "{ }", []string{"/token"}, "", `{"token":` + quoted + ` }`},
		"a member":              {"https://api.example/", " {\n \"n\" : 1e2 } ", []string{"/token"}, "", " {\"token\":" + quoted + ",\n \"n\" : 1e2 } "},
		"one inside":            {"https://api.example/", `{"a":{"token":[{}]},"auth":{"id":"x"}}`, []string{"/auth/token"}, "", `{"a":{"token":[{}]},"auth":{"token":` + quoted + `,"id":"x"}}`},
		"two, one in the other": {"https://api.example/", `{"auth":{}}`, []string{"/auth/token", "/key"}, "", `{"key":` + quoted + `,"auth":{"token":` + quoted + `}}`},
		"everywhere":            {"https://api.example/", `{}`, []string{"authorization", "/token"}, "", `{"token":` + quoted + `}`},
	} {
		method, credential := http.MethodPost, "api"
		r := &egressv1.HttpRequestRequest{Url: &c.url, Method: &method, Body: &c.body, Credentials: map[string]*callv1.CredentialReference{}}
		for _, place := range c.places {
			r.Credentials[place] = &callv1.CredentialReference{Credential: &credential}
		}
		req := sent(t, r)
		values, err := tools.authenticate(t.Context(), req, r)
		if err != nil || len(values) != len(c.places) {
			t.Errorf("%s: %d values, %v", name, len(values), err)
			continue
		}
		body, err := io.ReadAll(req.Body)
		if err != nil || string(body) != c.want || req.ContentLength != int64(len(c.want)) || req.URL.RawQuery != c.query {
			t.Errorf("%s: %s, %q, %v", name, req.URL.RawQuery, body, err)
		}
		hide := hider(values)
		if text := hide.Replace(req.URL.String() + string(body)); strings.Contains(text, secret) || strings.Contains(text, escaped) || strings.Contains(text, `p\"`) {
			t.Errorf("%s: sent back it is %s", name, text)
		}
		for _, place := range c.places {
			if place[0] != '/' && req.Header.Get(place) != secret {
				t.Errorf("%s: %v", name, req.Header)
			}
		}
	}
}

// A request that has no answer is told of without its query and without its credential, in the cause that is recorded too.
func TestNoErrorHoldsACredential(t *testing.T) {
	const secret = "canary-9d2c"
	for name, handler := range map[string]http.HandlerFunc{
		"ends": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_ = conn.Close() // which is the point
		},
		"hangs": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		s := serve(t, handler)
		tools := listed(t, dialer.Limits{Whole: 300 * time.Millisecond}, "", s)
		tools.vault = releasing(func(r *vaultv1.ReleaseForRequestRequest) ([]byte, error) {
			v := handover.Value{Name: r.GetName(), Variable: r.GetPlace(), Value: []byte(secret)}
			return handover.Seal(r.GetPublicKey(), handover.ForRequest(r.GetOrigin(), r.GetPlace()), []handover.Value{v})
		})
		method, credential := http.MethodGet, "api"
		own := s.URL + "?key=" + secret // what the agent wrote itself
		r := &egressv1.HttpRequestRequest{Url: &own, Method: &method, Credentials: map[string]*callv1.CredentialReference{"authorization": {Credential: &credential}}}
		req := sent(t, r)
		if _, err := tools.authenticate(t.Context(), req, r); err != nil || req.Header.Get("Authorization") != secret {
			t.Fatalf("%s: %v, %v", name, req.Header, err)
		}
		_, err := tools.sender.Do(req)
		if err == nil {
			t.Fatalf("%s: it is answered", name)
		}
		for e := uncertain(explained(t.Context(), err)); e != nil; e = errors.Unwrap(e) {
			if strings.Contains(fmt.Sprintf("%v %+v", e, e), secret) {
				t.Errorf("%s: %v", name, e)
			}
		}
	}
}

// What a server sends back of a credential is replaced, in the ways that servers spell it.
func TestHider(t *testing.T) {
	const secret = `p"ä/+s=1`
	hide := hider([]handover.Value{{Value: []byte("Bearer " + secret)}})
	for _, sent := range []string{
		"Bearer " + secret, secret, url.QueryEscape(secret), url.PathEscape(secret), base64.StdEncoding.EncodeToString([]byte(secret)),
		base64.StdEncoding.EncodeToString([]byte("Bearer " + secret)), `p\"\u00e4/+s=1`,
	} {
		if got := hide.Replace("<" + sent + ">"); got != "<[a credential was here]>" {
			t.Errorf("%s is %s", sent, got)
		}
	}
	basic := base64.StdEncoding.EncodeToString([]byte("name:" + secret))
	hide = hider([]handover.Value{{Value: []byte("Basic " + basic)}})
	for _, sent := range []string{"Basic " + basic, basic, "name:" + secret, secret, url.QueryEscape(secret)} {
		if got := hide.Replace("<" + sent + ">"); got != "<[a credential was here]>" {
			t.Errorf("of Basic %s is %s", sent, got)
		}
	}
	if got := hider(nil).Replace("a text"); got != "a text" {
		t.Errorf("without one: %s", got)
	}
}

// An LLM's API answers with application/json, whatever else it is (SEC-N2).
func TestAnswersOfModels(t *testing.T) {
	for path, kinds := range map[string]map[string]bool{
		"/v1/chat/completions":             {"application/json": true, "application/json; charset=utf-8": true, "text/html": false, "": false, "text/event-stream": false, "application/jsonl": false},
		"/v1/messages/":                    {"text/plain": false, "application/json": true},
		"/v1beta/models/g:generateContent": {"text/plain": false},
		"/issues":                          {"text/html": true},
	} {
		for kind, want := range kinds {
			answer := &dialer.Answer{Header: http.Header{"Content-Type": {kind}}, Body: []byte("{}")}
			if err := judgeModel(&url.URL{Path: path}, answer); (err == nil) != want {
				t.Errorf("%s with %q: %v", path, kind, err)
			}
		}
	}
}
