package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/handover"
)

// releasing is a vault that answers as it is told.
type releasing func(*vaultv1.ReleaseHeaderRequest) ([]byte, error)

func (f releasing) ReleaseHeader(_ context.Context, r *vaultv1.ReleaseHeaderRequest, _ ...grpc.CallOption) (*vaultv1.ReleaseHeaderResponse, error) {
	sealed, err := f(r)
	return &vaultv1.ReleaseHeaderResponse{Sealed: sealed}, err
}

const origin = "https://api.example"

// What a vault gives that is not that credential for that header and origin is not sent, whoever is at fault.
func TestRelease(t *testing.T) {
	seal := func(to string, values ...handover.Value) releasing {
		return func(r *vaultv1.ReleaseHeaderRequest) ([]byte, error) {
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
	to := handover.ForHeader(origin, "Authorization")
	for name, vault := range map[string]releasing{
		"for another origin":    seal(handover.ForHeader("https://other.example", "Authorization"), good),
		"for another header":    seal(handover.ForHeader(origin, "X-Api-Key"), good),
		"another header within": seal(to, with(func(v *handover.Value) { v.Variable = "Host" })),
		"another credential":    seal(to, with(func(v *handover.Value) { v.Name = "other" })),
		"two":                   seal(to, good, good),
		"none":                  seal(to),
		"a second line":         seal(to, with(func(v *handover.Value) { v.Value = []byte("Bearer a\r\nHost: b") })),
		"nothing":               seal(to, with(func(v *handover.Value) { v.Value = nil })),
		"what is not encrypted": func(*vaultv1.ReleaseHeaderRequest) ([]byte, error) { return []byte(`[{"name":"api"}]`), nil },
		"a refusal": func(*vaultv1.ReleaseHeaderRequest) ([]byte, error) {
			return nil, fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed)
		},
		"that it is sealed away": func(*vaultv1.ReleaseHeaderRequest) ([]byte, error) {
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
	tools := &Tools{vault: releasing(func(*vaultv1.ReleaseHeaderRequest) ([]byte, error) {
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
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		req, err := request(t.Context(), u, r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tools.authenticate(t.Context(), req, r); fault.From(err).Code != callv1.Code_CODE_INVALID_ARGUMENT || asked != 0 {
			t.Errorf("%s: %v, and the vault was asked %d times", raw, err, asked)
		}
	}
	get, body := http.MethodGet, "x"
	if _, err := request(t.Context(), &url.URL{}, &egressv1.HttpRequestRequest{Method: &get, Body: &body}); err == nil {
		t.Error("a GET has a body")
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
