package server

import (
	"context"
	"errors"
	"slices"
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/egress/internal/child"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
)

// runs is a server that answers as it is told, and remembers what was called.
type runs struct {
	Running
	result child.Result
	err    error
	called []string
}

func (r *runs) Call(_ context.Context, _, server, tool string, arguments []byte, confirm func() error) (child.Result, error) {
	if err := confirm(); err != nil {
		return child.Result{}, err
	}
	r.called = append(r.called, server+" "+tool+" "+string(arguments))
	return r.result, r.err
}

type inForce []downstream.Pinned

func (f inForce) Current() []downstream.Pinned { return f }
func (f inForce) Problems() []string           { return nil }
func (f inForce) Lookup(id string) (*downstream.Pinned, bool) {
	i := slices.IndexFunc(f, func(p downstream.Pinned) bool { return p.Entry.ID == id })
	if i < 0 {
		return nil, false
	}
	return &f[i], true
}

// newServers has the server web in force, with a tool that looks, one that changes, and the arguments url, path and paths.
func newServers(t *testing.T, tools *Tools) (*Servers, *runs) {
	t.Helper()
	roles := map[string]downstream.Role{"/url": downstream.RoleURL, "/path": downstream.RolePath, "/paths": downstream.RolePath}
	box := downstream.Sandbox{Read: []string{"/srv/docs"}, Write: []string{"/srv/out/"}}
	web := downstream.Pinned{Entry: downstream.Entry{ID: "web", Sandbox: box}, Tools: []downstream.Tool{{Name: "change"}, {Name: "look", Roles: roles}}}
	var definitions []contract.Definition
	for _, server := range []string{"web", "gone"} {
		for name, tier := range map[string]optionsv1.Tier{"look": optionsv1.Tier_TIER_READ, "change": optionsv1.Tier_TIER_WRITE} {
			definitions = append(definitions, contract.Definition{
				Foreign: contract.Foreign{Server: server, Name: name, Check: func([]byte) error { return nil }}, Tier: tier, URL: "url",
			})
		}
	}
	must(t, contract.Pin(definitions))
	t.Cleanup(func() { _ = contract.Pin(nil) }) // no tools are always taken
	running := &runs{}
	return NewServers(tools, running, inForce{web}), running
}

func (s *Servers) ask(t *testing.T, tool, arguments string) (*egressv1.CallServerToolResponse, error) {
	t.Helper()
	return s.CallServerTool(t.Context(), &egressv1.CallServerToolRequest{Tool: &tool, ArgumentsJcs: &arguments})
}

// A link to a blocked domain reaches no agent; one to a domain that is on no list does, since asking for it is judged.
func TestLinksOfServers(t *testing.T) {
	s, running := newServers(t, listed(t, dialer.Limits{}, `"blocked.example"`))
	running.result.Content = []child.Content{
		{Kind: child.Link, URI: "https://blocked.example/a", Text: "one"}, {Kind: child.Resource, URI: "https://blocked.example/b", Text: "two"},
		{Kind: child.Link, URI: "https://elsewhere.example/c", Text: "three"}, {Kind: child.Text, Text: "four"},
	}
	out, err := s.ask(t, "web__look", `{}`)
	must(t, err)
	var got []string
	for _, c := range out.GetContent() {
		got = append(got, c.GetText())
	}
	const left = "[a link to a blocked domain was left out]\n"
	if want := []string{left + "one", left + "two", "https://elsewhere.example/c\nthree", "four"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestServersRefuse: what is not pinned, not in force, or leads where it may not reaches no server.
func TestServersRefuse(t *testing.T) {
	s, running := newServers(t, listed(t, dialer.Limits{}, `"blocked.example"`))
	for _, c := range []struct {
		tool, arguments string
		code            callv1.Code
	}{
		{"web__other", `{}`, callv1.Code_CODE_DENIED},
		{"fetch_url", `{}`, callv1.Code_CODE_DENIED},
		{"", `{}`, callv1.Code_CODE_DENIED},
		{"gone__look", `{}`, callv1.Code_CODE_CONFLICT},
		{"web__change", `{}`, callv1.Code_CODE_INTERNAL}, // nothing changes outside the sink's discipline
		{"web__look", `{"url":"https://elsewhere.example/"}`, callv1.Code_CODE_FAILED},
		{"web__look", `{"url":"https://blocked.example/"}`, callv1.Code_CODE_FAILED},
		{"web__look", `{"url":"file:///etc/passwd"}`, callv1.Code_CODE_INVALID_ARGUMENT},
		{"web__look", `{"url":"javascript:alert(1)"}`, callv1.Code_CODE_INVALID_ARGUMENT},
		{"web__look", `{"url":"data:text/html,x"}`, callv1.Code_CODE_INVALID_ARGUMENT},
		{"web__look", `{"url":["https://here.example/"]}`, callv1.Code_CODE_INVALID_ARGUMENT},
		{"web__look", `{"path":"/etc/passwd"}`, callv1.Code_CODE_INVALID_ARGUMENT},
		{"web__look", `{"path":"/srv/docs/../../etc/passwd"}`, callv1.Code_CODE_INVALID_ARGUMENT},
		{"web__look", `{"path":"/srv/docs-other"}`, callv1.Code_CODE_INVALID_ARGUMENT},
		{"web__look", `{"path":"../etc"}`, callv1.Code_CODE_INVALID_ARGUMENT},
		{"web__look", `{"path":"a\u0000b"}`, callv1.Code_CODE_INVALID_ARGUMENT},
		{"web__look", `{"path":7}`, callv1.Code_CODE_INVALID_ARGUMENT},
		{"web__look", `{"path":{"a":"b"}}`, callv1.Code_CODE_INVALID_ARGUMENT},
		{"web__look", `{"paths":["a","/etc"]}`, callv1.Code_CODE_INVALID_ARGUMENT},
		{"web__look", `{"paths":[["/etc"]]}`, callv1.Code_CODE_INVALID_ARGUMENT},
	} {
		if out, err := s.ask(t, c.tool, c.arguments); err == nil || fault.From(err).Code != c.code || len(running.called) != 0 {
			t.Errorf("%s %s: %v, %v, called %q", c.tool, c.arguments, out, err, running.called)
		}
	}
	for _, arguments := range []string{
		`{}`, `{"url":"https://here.example/x"}`, `{"path":"a/b"}`, `{"path":"/data"}`, `{"path":"/srv/docs"}`, `{"path":"/srv/docs/a/../b"}`,
		`{"path":"/srv/out/x"}`, `{"path":null}`, `{"paths":["a","/srv/docs/b"]}`,
	} {
		running.called = nil
		if _, err := s.ask(t, "web__look", arguments); err != nil || !slices.Equal(running.called, []string{"web look " + arguments}) {
			t.Errorf("%s: %v, called %q", arguments, err, running.called)
		}
	}
}

// TestBlockedServers: a server on another host is not called where its domain is blocked. The control is the same server elsewhere.
func TestBlockedServers(t *testing.T) {
	s, running := newServers(t, listed(t, dialer.Limits{}, `"blocked.example"`))
	for url, may := range map[string]bool{"https://blocked.example/mcp": false, "https://elsewhere.example/mcp": true} {
		running.called = nil
		s.pinned.(inForce)[0].Entry.URL = url
		if _, err := s.ask(t, "web__look", `{}`); (err == nil) != may || (len(running.called) == 1) != may {
			t.Errorf("%s: %v, called %q", url, err, running.called)
		}
	}
}

// TestAnApprovedHost is the one that the human said yes to, and no other.
func TestAnApprovedHost(t *testing.T) {
	tools := listed(t, dialer.Limits{}, `"blocked.example"`)
	s, _ := newServers(t, tools)
	look, _ := contract.Lookup("web__look")
	server, _ := s.pinned.Lookup("web")
	ctx := context.WithValue(t.Context(), approved{}, "new.example")
	for url, may := range map[string]bool{"https://new.example/": true, "https://other.example/": false, "https://a.new.example/": false, "https://blocked.example/": false} {
		arguments := `{"url":"` + url + `"}`
		if err := s.leads(ctx, look, server, &egressv1.CallServerToolRequest{ArgumentsJcs: &arguments}); (err == nil) != may {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestServerFaults name the server, and say of a change that it may have been carried out.
func TestServerFaults(t *testing.T) {
	s, running := newServers(t, listed(t, dialer.Limits{}, ""))
	running.err = &child.Error{Server: "web", Text: "it ended", Sent: true}
	if _, err := s.ask(t, "web__look", `{}`); fault.From(err).Code != callv1.Code_CODE_FAILED || fault.From(err).Message != "the server web: it ended" {
		t.Errorf("a look: %v", err)
	}
	change, _ := contract.Lookup("web__change")
	for sent, says := range map[bool]string{true: "the call may have been carried out; the server web: it ended", false: "the server web: it ended"} {
		if err := serverFault(change, &child.Error{Server: "web", Text: "it ended", Sent: sent}); fault.From(err).Message != says {
			t.Errorf("a change, sent %v: %v", sent, err)
		}
	}
	inside := &child.Error{Server: "web", Text: "it does not start: its program /srv/web is not the one that was accepted"}
	if err := serverFault(change, inside); fault.From(err).Message != "the server web cannot be called: `durward server status` says why" || !errors.Is(err, inside) {
		t.Errorf("what is wrong on this host: %v", err)
	}
	other := errors.New("another")
	if err := serverFault(change, other); !errors.Is(err, other) {
		t.Errorf("%v", err)
	}
	running.err, running.result = nil, child.Result{IsError: true, Content: []child.Content{{Kind: child.Text, Text: "no"}}}
	if out, err := s.ask(t, "web__look", `{}`); err != nil || !out.GetFailed() || out.GetContent()[0].GetText() != "no" {
		t.Errorf("what the server calls a failure: %v, %v", out, err)
	}
}

// TestServerData: each text of an answer is a leaf by itself, keys and numbers too. TestAssemble of the gateway puts them together again.
func TestServerData(t *testing.T) {
	for _, d := range platformtest.ServerData {
		out, err := response(child.Result{Structured: []byte(d.JSON)})
		if err != nil || out.GetShape() != d.Shape || !slices.Equal(out.GetLeaves(), d.Leaves) {
			t.Errorf("%s: %s of %q, %v", d.JSON, out.GetShape(), out.GetLeaves(), err)
		}
	}
	out, err := response(child.Result{Structured: []byte(`{"a":1}`), Content: []child.Content{
		{Kind: child.Text, Text: `{"a":1}`, MIME: "text/html"}, {Kind: child.Link, URI: "https://a.example/", Text: "name", MIME: "obey/me"}, {Kind: child.Image, Data: make([]byte, 7), MIME: "image/png"},
	}})
	if err != nil || out.GetShape() != "" || len(out.GetContent()) != 3 || out.GetContent()[0].GetMediaType() != "" ||
		out.GetContent()[1].GetText() != "https://a.example/\nname" || out.GetContent()[1].GetMediaType() != "" ||
		out.GetContent()[2].GetText() != "a picture of 7 bytes" || out.GetContent()[2].GetMediaType() != "image/png" || len(out.GetContent()[2].GetData()) != 7 {
		t.Errorf("with texts: %v, %v", out, err)
	}
}

// TestServerDataBesideTexts: data that a text repeats is given once, and data that no text holds is given, whatever the texts are.
func TestServerDataBesideTexts(t *testing.T) {
	for _, tt := range []struct {
		data  string
		texts []string
		given bool
	}{
		{`{"found":[1,2]}`, []string{"two were found"}, true},
		{`{"found":1}`, []string{"[image that is not passed on: image/png, 7 bytes]"}, true},
		{`{"result":["a","b"]}`, []string{"a"}, true},
		{`{"result":"a"}`, []string{"b"}, true},
		{`{"a":1,"result":"a"}`, []string{"a"}, true},
		{`{"found":1}`, []string{""}, true},
		{`{"found":1}`, nil, true},
		{`{"result":[]}`, nil, true},
		{`{"a":[1,2],"b":"ü"}`, []string{"as JSON:", "{\n \"b\": \"\\u00fc\",\n \"a\": [1, 2.0]\n}"}, false},
		{`{"result":"two\nlines"}`, []string{"two\nlines"}, false},
		{`{"result":7}`, []string{"7"}, false},
		{`{"result":{"a":1}}`, []string{`{"a": 1}`}, false},
		{`{"result":["a",{"b":1}]}`, []string{"a", `{"b": 1}`}, false},
	} {
		result := child.Result{Structured: []byte(tt.data)}
		for _, text := range tt.texts {
			result.Content = append(result.Content, child.Content{Kind: child.Text, Text: text})
		}
		if out, err := response(result); err != nil || (out.GetShape() != "") != tt.given || len(out.GetContent()) != len(tt.texts) {
			t.Errorf("%s beside %q: %v, %v; given: %v", tt.data, tt.texts, out, err, tt.given)
		}
	}
}
