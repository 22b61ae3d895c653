package resource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"durward.internal/gateway/internal/relay"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// host is a Relay over a catalog that a test writes.
type host struct {
	gpus      []*executorv1.Gpu
	services  []*executorv1.ServiceSummary
	detail    *executorv1.ServiceDetail
	modes     []*executorv1.ModeSummary
	models    []*executorv1.ModelSummary
	operation *vaultv1.GetOperationResponse
	err       error
	read      []string
	looks     int
	renewed   []optionsv1.Role
}

func (h *host) Read(_ context.Context, _ *relay.Session, _ relay.Caller, tool contract.Tool, request proto.Message) (relay.Reply, error) {
	h.read = append(h.read, tool.Name)
	if h.err != nil {
		return relay.Reply{}, h.err
	}
	switch r := request.(type) {
	case *executorv1.GpuStatusRequest:
		return relay.Reply{Response: &executorv1.GpuStatusResponse{Gpus: clones(h.gpus), Source: "simulated"}}, nil
	case *executorv1.ListServicesRequest:
		return relay.Reply{Response: &executorv1.ListServicesResponse{Services: clones(h.services)}}, nil
	case *executorv1.ServiceInfoRequest:
		if h.detail == nil || r.GetServiceId() != h.detail.GetServiceId() {
			return relay.Reply{}, fault.New(callv1.Code_CODE_NOT_FOUND, "no service has that id", fault.WithSuggestions("demo-chat"))
		}
		return relay.Reply{Response: &executorv1.ServiceInfoResponse{Service: proto.CloneOf(h.detail)}}, nil
	case *executorv1.ListModesRequest:
		return relay.Reply{Response: &executorv1.ListModesResponse{Modes: clones(h.modes), Current: "day"}}, nil
	case *executorv1.ModeInfoRequest:
		if r.GetModeId() != "day" {
			return relay.Reply{}, fault.New(callv1.Code_CODE_NOT_FOUND, "no mode has that id")
		}
		return relay.Reply{Response: &executorv1.ModeInfoResponse{
			ModeId: "day", Name: "By day", Description: "Chat | and search", Services: clones(h.services[:2]), Current: true, Drifted: []string{"service-01"},
		}}, nil
	case *executorv1.ListModelsRequest:
		return relay.Reply{Response: &executorv1.ListModelsResponse{Models: clones(h.models)}}, nil
	case *executorv1.ModelInfoRequest:
		if r.GetModelId() != modelID {
			return relay.Reply{}, fault.New(callv1.Code_CODE_NOT_FOUND, "no model has that id")
		}
		return relay.Reply{Response: &executorv1.ModelInfoResponse{
			ModelId: modelID, ServedName: "llama", Source: "hf:" + modelID, Services: []*executorv1.ServiceDetail{proto.CloneOf(h.detail)},
		}}, nil
	default:
		return relay.Reply{}, fmt.Errorf("unexpected %T", r)
	}
}

const modelID = "meta-llama/Llama-3.1-8B"

func clones[M proto.Message](list []M) []M {
	var out []M
	for _, m := range list {
		out = append(out, proto.CloneOf(m))
	}
	return out
}

func (h *host) Operation(_ context.Context, _ *relay.Session, _ relay.Caller, id string) (*vaultv1.GetOperationResponse, error) {
	h.looks++
	if h.operation == nil || id != operationID {
		return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such operation")
	}
	return proto.CloneOf(h.operation), nil
}

func (h *host) Renew(_ context.Context, _ *relay.Session, _ relay.Caller, role optionsv1.Role) error {
	h.renewed = append(h.renewed, role)
	return h.err
}

func ordinary() *host {
	h := &host{
		detail: &executorv1.ServiceDetail{
			ServiceId: "demo-chat", Name: "Chat", Description: "Answers | politely", State: executorv1.ServiceState_SERVICE_STATE_RUNNING, Healthy: true,
			Driver: "process", BaseUrl: "http://127.0.0.1:17450/v1", Model: "meta-llama/Llama-3.1-8B", Gpus: []uint32{0, 1}, VramMib: 16384, UptimeS: 3661,
		},
		operation: &vaultv1.GetOperationResponse{
			State: vaultv1.OperationState_OPERATION_STATE_DENIED, Tool: &callv1.ToolRef{Name: "start_service"}, Arguments: []byte(`{"service_id":"demo-chat"}`),
			AskedAt: timestamppb.New(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)), ExpiresAt: timestamppb.New(time.Date(2030, 1, 2, 3, 34, 5, 0, time.UTC)),
			Reason: "not\x1b[2J now",
		},
	}
	h.modes = []*executorv1.ModeSummary{
		{ModeId: "day", Name: "By day", Services: []string{"service-00", "service-01"}, VramMib: 32768, Running: true}, {ModeId: "night"},
	}
	h.models = []*executorv1.ModelSummary{{ModelId: modelID, ServedName: "llama", Services: []string{"demo-chat"}, Available: true}}
	for i := range uint32(8) {
		h.gpus = append(h.gpus, &executorv1.Gpu{Index: i, Uuid: fmt.Sprintf("GPU-%d", i), Name: "NVIDIA H100 80GB HBM3", MemoryTotalMib: 81559, Services: []string{"demo-chat"}})
	}
	for i := range 30 {
		h.services = append(h.services, &executorv1.ServiceSummary{
			ServiceId: fmt.Sprintf("service-%02d", i), Name: "A service of this host", State: executorv1.ServiceState_SERVICE_STATE_STOPPED,
			Model: "meta-llama/Llama-3.1-8B", VramMib: 16384,
		})
	}
	return h
}

var everything = []string{
	"durward://help", "durward://gpu", "durward://services", "durward://services/demo-chat", "durward://config", "durward://operations/" + operationID,
	"durward://modes", "durward://modes/day", "durward://models", "durward://models/" + modelID,
}

func client() Client {
	return Client{About: relay.About{
		Principal: "agent", Ref: "s-test", Channel: callv1.Channel_CHANNEL_API, Ceiling: optionsv1.Tier_TIER_READ, KeyBound: true,
		ExpiresAt: time.Date(2030, 1, 2, 11, 4, 5, 0, time.UTC), Idle: 30 * time.Minute,
	}}
}

func book(t testing.TB, h *host) *Reader {
	t.Helper()
	b, err := New(h, func(principal string) []Bound {
		return []Bound{{Name: "resources of " + principal, Value: "10 a second"}}
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func read(t testing.TB, b *Reader, uri string) string {
	t.Helper()
	u, err := Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	text, err := b.Read(t.Context(), client(), u)
	if err != nil {
		t.Fatalf("%s: %v", uri, err)
	}
	return text
}

func TestReadRefuses(t *testing.T) {
	h := ordinary()
	b := book(t, h)
	for uri, code := range map[URI]callv1.Code{
		{}:                                     callv1.Code_CODE_NOT_FOUND,
		{Kind: "secrets"}:                      callv1.Code_CODE_NOT_FOUND,
		{Kind: Mode, ID: "nothing"}:            callv1.Code_CODE_NOT_FOUND,
		{Kind: Model, ID: "nothing"}:           callv1.Code_CODE_NOT_FOUND,
		{Kind: Service, ID: "nothing"}:         callv1.Code_CODE_NOT_FOUND,
		{Kind: Operation, ID: operationID[1:]}: callv1.Code_CODE_NOT_FOUND,
	} {
		if text, err := b.Read(t.Context(), client(), uri); !fault.Is(err, code) || text != "" {
			t.Errorf("%+v: %q, %v", uri, text, err)
		}
	}
	h.err = fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed)
	for _, uri := range everything[1:4] {
		u, err := Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := b.Read(t.Context(), client(), u); !errors.Is(err, h.err) || text != "" || !strings.Contains(fault.From(err).Message, "cannot be read as a resource") {
			t.Errorf("%s: %q, %v", uri, text, err)
		}
		if _, err := b.Probe(t.Context(), client(), u); !errors.Is(err, h.err) {
			t.Errorf("%s may be subscribed to: %v", uri, err)
		}
	}
}

// stranger answers every READ tool with another one's message.
type stranger struct{ *host }

func (stranger) Read(context.Context, *relay.Session, relay.Caller, contract.Tool, proto.Message) (relay.Reply, error) {
	return relay.Reply{Response: &executorv1.StartServiceResponse{}}, nil
}

func TestAnswersOfAnotherKindAreRefused(t *testing.T) {
	b, err := New(stranger{ordinary()}, func(string) []Bound { return nil })
	if err != nil {
		t.Fatal(err)
	}
	for _, uri := range []URI{{Kind: GPU}, {Kind: Services}, {Kind: Service, ID: "demo-chat"}, {Kind: Modes}, {Kind: Models}} {
		if text, err := b.Read(t.Context(), client(), uri); !fault.Is(err, callv1.Code_CODE_INTERNAL) || text != "" {
			t.Errorf("%s: %q, %v", uri, text, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(nil, func(string) []Bound { return nil }); err == nil {
		t.Error("a reader without a relay")
	}
	if _, err := New(ordinary(), nil); err == nil {
		t.Error("a reader without bounds")
	}
}

func TestCompleteRefusesATemplateThatThereIsNot(t *testing.T) {
	if _, _, err := book(t, ordinary()).Complete(t.Context(), client(), "durward://secrets/{id}", argServiceID, ""); !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) {
		t.Error(err)
	}
}

// Every resource has both forms, with the same data, within an agent's budget.
func TestEverythingIsRead(t *testing.T) {
	h := ordinary()
	b := book(t, h)
	for uri, wants := range map[string][]string{
		"durward://help":                      {"wait_operation", "durward approvals", "durward://config"},
		"durward://gpu":                       {"NVIDIA H100 80GB HBM3", "81559", "demo-chat", "simulated"},
		"durward://services":                  {"service-29", "meta-llama/Llama-3.1-8B", "16384", "A service of this host"},
		"durward://services/demo-chat":        {"http://127.0.0.1:17450/v1", "meta-llama/Llama-3.1-8B", "politely", "16384", "process"},
		"durward://config":                    {"agent", "api", "READ", "s-test", "2030-01-02T11:04:05Z", "key-bound", "resources of agent", "10 a second", "start_service", "not available", "durward client"},
		"durward://operations/" + operationID: {"start_service", "demo-chat", "2030-01-02T03:04:05Z", "not now", "Do not retry"},
	} {
		for _, format := range []string{"", "?format=json"} {
			text := read(t, b, uri+format)
			if len(text) > 6000 {
				t.Errorf("%s%s has %d bytes, at most 6,000 are wanted", uri, format, len(text))
			}
			for _, want := range wants {
				if !strings.Contains(text, want) {
					t.Errorf("%s%s does not say %q:\n%s", uri, format, want, text)
				}
			}
			if clean.Block(text, clean.Whole) != text {
				t.Errorf("%s%s is not clean", uri, format)
			}
			if format != "" && !json.Valid([]byte(text)) {
				t.Errorf("%s is no JSON", uri)
			}
		}
	}
	if n := utf8.RuneCountInString(read(t, b, "durward://help")); n > 2500 {
		t.Errorf("the help has %d characters", n)
	}
	if diff := cmp.Diff([]string{"gpu_status", "list_services", "service_info"}, distinct(h.read)); diff != "" {
		t.Errorf("read through (-want +got):\n%s", diff)
	}
	if text := read(t, b, "durward://services/demo-chat"); !strings.Contains(text, `Answers \| politely`) {
		t.Errorf("a cell is not escaped:\n%s", text)
	}
}

func distinct(names []string) []string {
	seen := map[string]bool{}
	for _, name := range names {
		seen[name] = true
	}
	var out []string
	for _, name := range []string{"gpu_status", "list_services", "service_info"} {
		if seen[name] {
			out = append(out, name)
		}
	}
	return out
}

// No resource shows a path, a value of the environment, a credential or a token, whoever wrote them into the catalog, nor
// brings anything that a terminal or a reader of Markdown would obey (SEC-E2, SEC-E3).
func TestHostileCatalog(t *testing.T) {
	hostile := []string{
		"/etc/shadow", "~/.ssh/id_ed25519", "/\u200betc/passwd", "/e\x1b[31mtc/hosts", "C:\\Windows\\System32", "file:///root/x",
		"HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz", "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENG", "password: hunter2", "api\u200b_key=s3cr3tvalue",
		"sk-proj-abcdefghijklmnopqrstuvwxyz0123", "Bearer abcdefghijklmnop", "-----BEGIN PRIVATE KEY-----\nMIIEabc\n-----END PRIVATE KEY-----",
		"\u202egnp.exe", "\x1b]8;;http://evil.example\x07click\x1b]8;;\x07", "[bold]x[/bold]", "a | b | c\n| d |", "`rm`", "<script>", "[click](http://evil.example)",
		"PATH=/usr/bin:/bin and HOME=/home/operator",
	}
	all := strings.Join(hostile, " ")
	h := &host{
		detail: &executorv1.ServiceDetail{ServiceId: "demo-chat", Name: all, Description: all, Driver: all, BaseUrl: "http://u:hunter2@127.0.0.1:1/v1", Model: all, Cause: all},
		operation: &vaultv1.GetOperationResponse{
			State: vaultv1.OperationState_OPERATION_STATE_DENIED, Tool: &callv1.ToolRef{Name: all}, Arguments: []byte(all), Reason: all,
			AskedAt: timestamppb.Now(), ExpiresAt: timestamppb.Now(),
		},
	}
	for _, text := range append(hostile, all) {
		h.gpus = append(h.gpus, &executorv1.Gpu{Name: text, Uuid: text, Services: []string{text}})
		h.services = append(h.services, &executorv1.ServiceSummary{ServiceId: "a", Name: text, Model: text})
	}
	b := book(t, h)
	for _, uri := range everything[1:] {
		for _, format := range []string{"", "?format=json"} {
			text := read(t, b, uri+format)
			for _, secret := range []string{
				"/etc", "passwd", "shadow", ".ssh", "id_ed25519", "/hosts", "System32", "/root", "hf_abc", "wJalr", "hunter2", "s3cr3t", "sk-proj", "abcdefghijklmnop",
				"MIIEabc", "/usr", "/home", "evil.example\x07", "\x1b", "\u202e", "\u200b", "[bold]",
			} {
				if strings.Contains(text, secret) {
					t.Errorf("%s%s shows %q", uri, format, secret)
				}
			}
			if format == "" {
				for line := range strings.Lines(text) {
					if strings.Contains(line, "<script>") && !strings.Contains(line, `\<script>`) || strings.HasPrefix(line, "| d |") || strings.Contains(line, " [click]") {
						t.Errorf("%s: a line that Markdown obeys: %s", uri, line)
					}
				}
			}
		}
	}
}

func TestConfigSaysWhatEachToolNeeds(t *testing.T) {
	b := book(t, ordinary())
	for ceiling, want := range map[optionsv1.Tier]string{
		optionsv1.Tier_TIER_READ:        "is above this client's ceiling: not available",
		optionsv1.Tier_TIER_WRITE:       "a human's approval of exactly this call",
		optionsv1.Tier_TIER_DESTRUCTIVE: "a human's approval of exactly this call",
	} {
		c := client()
		c.About.Ceiling, c.About.KeyBound = ceiling, false
		for _, tool := range contract.Tools() {
			if tool.Name != "fetch_url" { // as where no egress runs
				c.About.Tools = append(c.About.Tools, tool.Name)
			}
		}
		text, err := b.Read(t.Context(), c, URI{Kind: Config, Format: JSON})
		if err != nil {
			t.Fatal(err)
		}
		var got configPage
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		if got.Credential != "bearer" || got.IdleS != 1800 || len(got.Tools) != len(contract.Tools()) || len(got.Boundary) == 0 {
			t.Errorf("%+v", got)
		}
		for _, tool := range got.Tools {
			expected := want
			switch {
			case tool.Tool == "fetch_url":
				expected = "is not offered to this client: not available"
			case tool.Tier == "READ":
				expected = "runs at once"
			case tool.Tier == "DESTRUCTIVE" && ceiling == optionsv1.Tier_TIER_DESTRUCTIVE:
				expected += ", with a warning"
			case tool.Tier == "DESTRUCTIVE":
				expected = "is above this client's ceiling: not available"
			}
			if tool.Needs != expected {
				t.Errorf("%s with ceiling %s: %s", tool.Tool, got.TierCeiling, tool.Needs)
			}
		}
	}
}

// An operation's page says what to do in each state, and shows nothing that is not the contract's.
func TestOperationPages(t *testing.T) {
	h := ordinary()
	b := book(t, h)
	for number := range vaultv1.OperationState_name {
		state := vaultv1.OperationState(number)
		if state == vaultv1.OperationState_OPERATION_STATE_UNSPECIFIED {
			continue
		}
		h.operation.State = state
		u := URI{Kind: Operation, ID: operationID, Format: JSON}
		var got operationPage
		if err := json.Unmarshal([]byte(read(t, b, u.String())), &got); err != nil {
			t.Fatal(err)
		}
		if want := strings.ToLower(strings.TrimPrefix(state.String(), "OPERATION_STATE_")); got.State != want || got.Next == "" || string(got.Arguments) != `{"service_id":"demo-chat"}` {
			t.Errorf("%+v", got)
		}
		if probed, err := b.Probe(t.Context(), client(), u); err != nil || probed[operationID] != state {
			t.Errorf("probed as %s, %v", probed, err)
		}
	}
	for name, bend := range map[string]func(*vaultv1.GetOperationResponse){
		"a tool that is not known":   func(o *vaultv1.GetOperationResponse) { o.Tool.Name = "format_disk" },
		"arguments that do not fit":  func(o *vaultv1.GetOperationResponse) { o.Arguments = []byte(`{"service_id":"/etc/passwd"}`) },
		"arguments that are no JSON": func(o *vaultv1.GetOperationResponse) { o.Arguments = []byte(`/etc/passwd`) },
	} {
		other := ordinary()
		bend(other.operation)
		if text := read(t, book(t, other), "durward://operations/"+operationID+"?format=json"); strings.Contains(text, "arguments") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

func TestProbe(t *testing.T) {
	one, list := []string(nil), []string{toolServices}
	for name, c := range map[string]struct {
		uris    []string
		code    callv1.Code
		read    []string
		looks   int
		renewed int
	}{
		"what does not change":       {uris: []string{"help"}, code: callv1.Code_CODE_INVALID_ARGUMENT},
		"and nothing beside it":      {uris: []string{"services/service-01", "config", "gpu"}, code: callv1.Code_CODE_INVALID_ARGUMENT},
		"no such service":            {uris: []string{"services/service-01", "services/nothing"}, code: callv1.Code_CODE_NOT_FOUND, read: list},
		"no such mode":               {uris: []string{"modes/nothing"}, code: callv1.Code_CODE_NOT_FOUND, read: []string{toolModes}},
		"no such model":              {uris: []string{"models/nothing"}, code: callv1.Code_CODE_NOT_FOUND, read: []string{toolModels}},
		"a mode, all modes":          {uris: []string{"modes/day", "modes"}, read: []string{toolModes}, renewed: 1},
		"a model":                    {uris: []string{"models/" + modelID}, read: []string{toolModels}, renewed: 1},
		"no such operation":          {uris: []string{"operations/" + strings.Repeat("0", 32)}, code: callv1.Code_CODE_NOT_FOUND, looks: 1},
		"what the permit says":       {uris: []string{"gpu", "gpu?format=json", "services"}, read: one, renewed: 1},
		"one list for all":           {uris: []string{"services/service-01", "services/service-02", "services/service-02?format=json", "gpu"}, read: list},
		"an operation in both forms": {uris: []string{"operations/" + operationID, "operations/" + operationID + "?format=json"}, looks: 1},
	} {
		h := ordinary()
		b := book(t, h)
		var uris []URI
		for _, name := range c.uris {
			u, err := Parse(Scheme + name)
			if err != nil {
				t.Fatal(err)
			}
			uris = append(uris, u)
		}
		_, err := b.Probe(t.Context(), client(), uris...)
		if c.code == 0 && err != nil || c.code != 0 && !fault.Is(err, c.code) {
			t.Errorf("%s: %v", name, err)
		}
		if !cmp.Equal(h.read, c.read) || h.looks != c.looks || len(h.renewed) != c.renewed {
			t.Errorf("%s: it read %v, looked %d times, renewed %v", name, h.read, h.looks, h.renewed)
		}
	}
	away := &host{err: fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed)}
	if _, err := book(t, away).Probe(t.Context(), client(), URI{Kind: GPU}); !fault.Is(err, callv1.Code_CODE_DENIED) {
		t.Errorf("without a permit: %v", err)
	}
}

// The pages of modes and models say what runs, and what to do about what does not.
func TestModesAndModels(t *testing.T) {
	b := book(t, ordinary())
	for uri, want := range map[string][]string{
		"durward://modes":                              {"switched last to day", "| day | yes | service-00, service-01 | 32768 | By day |", "| night | no |"},
		"durward://modes?format=json":                  {`"current":"day"`, `"running":true`},
		"durward://modes/day":                          {"# Mode day", `Chat \| and search`, "| drifted | service-01 |", "| service-00 | stopped |", "switch_mode"},
		"durward://modes/day?format=json":              {`"drifted":["service-01"]`},
		"durward://models":                             {"| " + modelID + " | yes | llama | demo-chat |"},
		"durward://models/" + modelID:                  {"# Model " + modelID, "| demo-chat | running | http://127.0.0.1:17450/v1 |"},
		"durward://models/" + modelID + "?format=json": {`"served_name":"llama"`},
	} {
		text := read(t, b, uri)
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s does not say %q: %s", uri, part, text)
			}
		}
	}
	empty := book(t, &host{})
	for uri, want := range map[string]string{"durward://modes": "holds no mode", "durward://models": "holds no model"} {
		if text := read(t, empty, uri); !strings.Contains(text, want) {
			t.Errorf("%s of an empty host: %s", uri, text)
		}
	}
	for argument, c := range map[string]struct{ template, prefix, want string }{
		"mode_id":  {"durward://modes/{mode_id}{?format}", "n", "night"},
		"model_id": {"durward://models/{+model_id}{?format}", "meta-llama/", modelID},
	} {
		values, total, err := b.Complete(t.Context(), client(), c.template, argument, c.prefix)
		if err != nil || total != 1 || values[0] != c.want {
			t.Errorf("%s: %v of %d, %v", argument, values, total, err)
		}
		if values, _, err := b.Complete(t.Context(), client(), c.template, argument, "../"); err != nil || len(values) != 0 {
			t.Errorf("%s: %v, %v", argument, values, err)
		}
	}
}

func TestEmptyHost(t *testing.T) {
	b := book(t, &host{})
	for uri, want := range map[string]string{
		"durward://services": "holds no service", "durward://gpu": "Source of the numbers", "durward://services?format=json": `{"services":[],"disabled":[]}`,
	} {
		if text := read(t, b, uri); !strings.Contains(text, want) {
			t.Errorf("%s: %s", uri, text)
		}
	}
}
