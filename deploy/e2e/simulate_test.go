package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	toolset "durward.internal/services/platform/contract"
)

// crowdedCatalog has one GPU that does not hold all its services: chat, which can sleep, and coder fit beside embed, but not beside
// each other.
func crowdedCatalog(h *harness.Host) string {
	demo := func(id string, port, vram int, more string) string {
		return fmt.Sprintf("  - {id: %s, name: %s, driver: process, argv: [durward-demo, -port, %q, -model, demo, -touch, %q], writes: [%q], port: %d, health: {path: /health}, vram_mib: %d, gpus: [0]%s}\n",
			id, id, fmt.Sprint(port), filepath.Join(h.Dir, "starts-"+id), filepath.Join(h.Dir, "starts-"+id), port, vram, more)
	}
	return `version: 1
gpus:
  - {index: 0, name: Simulated 24 GB, memory_mib: 24576, simulated: true}
models:
  - id: some/coder
    served_name: coder
    card:
      weights_mib: 4096
      layers: [{count: 32, kind: full, kv_heads: 8, key_dim: 128, value_dim: 128}]
      context: 131072
services:
` + fmt.Sprintf(`  - id: chat
    name: Chat
    driver: process
    argv: [durward-engine, -api, vllm, -port, "%d", -record, %q]
    writes: [%q]
    port: %d
    health: {path: /health}
    vram_mib: 16384
    gpus: [0]
    sleep: vllm-l1
    sleep_mib: 1024
`, h.Port(0), filepath.Join(h.Dir, "record-chat"), filepath.Join(h.Dir, "record-chat"), h.Port(0)) +
		demo("coder", h.Port(2), 10240, ", model: some/coder, extra_config: {engine: llama.cpp, context_size: 32768}") +
		demo("embed", h.Port(3), 4096, "") + `modes:
  - {id: talk, name: Talk, services: [chat]}
  - {id: coding, name: Coding, services: [coder]}
`
}

// simulation is what an agent reads of a simulation.
type simulation struct {
	Fits       bool
	Reason     string
	PlanDigest string `json:"plan_digest"`
	CutOff     bool   `json:"cut_off"`
	Steps      []struct {
		Action    string
		ServiceID string `json:"service_id"`
	}
	Gpus []struct {
		NowMib   int `json:"now_mib"`
		AfterMib int `json:"after_mib"`
		FreeMib  int `json:"free_mib"`
		Source   string
	}
	Needs []struct {
		ServiceID string `json:"service_id"`
		NeedMib   int    `json:"need_mib"`
		Source    string
		Context   int
	}
	Alternatives []struct {
		Changes []struct {
			Kind      string
			ServiceID string `json:"service_id"`
			From, To  string
		}
		PlanDigest string `json:"plan_digest"`
		Gpus       []struct {
			AfterMib int `json:"after_mib"`
		}
	}
	Next *struct {
		Tool      string
		Arguments map[string]string
	}
}

func (s simulation) steps() string {
	var words []string
	for _, step := range s.Steps {
		words = append(words, step.Action+" "+step.ServiceID)
	}
	return strings.Join(words, ", ")
}

// alternative finds the one that does just this: "keep embed, sleep chat". "" where there is none.
func (s simulation) alternative(t *testing.T, changes string) (digest string) {
	t.Helper()
	var all []string
	for _, a := range s.Alternatives {
		var words []string
		for _, c := range a.Changes {
			words = append(words, c.Kind+" "+c.ServiceID)
		}
		all = append(all, strings.Join(words, ", "))
		if all[len(all)-1] == changes {
			return a.PlanDigest
		}
	}
	t.Fatalf("no alternative is %q: there are %q", changes, all)
	return ""
}

func (p *pipeline) named(name, arguments string) harness.Envelope {
	p.t.Helper()
	tool, ok := toolset.Lookup(name)
	if !ok {
		p.t.Fatalf("the contract has no tool %s", name)
	}
	return p.call(tool, arguments)
}

func (p *pipeline) simulated(arguments string) simulation {
	p.t.Helper()
	e := isStatus(p.t, "ok", p.named("simulate_mode", arguments))
	var s simulation
	e.Decode(p.t, &s)
	record := p.story(e.RequestID, auditv1.Kind_KIND_READ)
	if got := record.GetBody().GetArguments(); got != arguments {
		p.t.Errorf("the log holds the arguments %s, want %s", got, arguments)
	}
	return s
}

// approved asks for a change, has the operator approve it, and returns its answer.
func (p *pipeline) approved(tool, arguments string) (done harness.Envelope, screen string) {
	p.t.Helper()
	pending := isStatus(p.t, "pending_approval", p.named(tool, arguments))
	screen = p.h.Approve(pending.OperationID)
	return isStatus(p.t, "ok", p.named("wait_operation", fmt.Sprintf(`{"operation_id":%q}`, pending.OperationID))), screen
}

// TestSimulate: an agent asks what a start would take, makes the call that it is handed, and switches to an alternative; a human
// approves each, and what the alternative keeps runs on.
func TestSimulate(t *testing.T) {
	t.Parallel()
	for _, r := range routes {
		if r.name != "http 2025-11-25" && r.name != "stdio 2026-07-28" {
			continue // one of each era and transport; TestPipeline has all
		}
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			h := harness.Start(t, harness.Options{Catalog: crowdedCatalog})
			p := &pipeline{t: t, h: h, route: r, send: r.connect(h, "piper"), schemas: map[string]*jsonschema.Resolved{}}
			for _, tool := range harness.Listed(optionsv1.Tier_TIER_DESTRUCTIVE) {
				p.schemas[tool.Name] = nil
			}
			p.list()
			h.Durward("start", "chat", "--yes")
			h.Durward("start", "embed", "--yes")

			t.Run("refused", func(*testing.T) { p.refusedSimulations() })
			p.startedByNext()
			p.whatIf()
			p.switchedToAlternative()
			p.switchedByOperator()
			h.Durward("audit", "verify")
		})
	}
}

// refusedSimulations: what names nothing, or contradicts itself, is refused with the argument at fault.
func (p *pipeline) refusedSimulations() {
	p.t.Helper()
	for name, c := range map[string]struct{ arguments, code, field, hint string }{
		"no such service":            {`{"start":["codr"]}`, "NOT_FOUND", "start", "coder"},
		"no such service to stop":    {`{"stop":["cht"]}`, "NOT_FOUND", "stop", "chat"},
		"no such mode":               {`{"mode_id":"codin"}`, "NOT_FOUND", "mode_id", "coding"},
		"both":                       {`{"start":["coder"],"stop":["coder"]}`, "INVALID_ARGUMENT", "", ""},
		"twice":                      {`{"start":["coder","coder"]}`, "INVALID_ARGUMENT", "start", ""},
		"the context of nobody":      {`{"context_overrides":{"codr":8192},"mode_id":"coding"}`, "", "context_overrides", ""},
		"of what is not to run":      {`{"context_overrides":{"coder":8192},"mode_id":"talk"}`, "INVALID_ARGUMENT", "context_overrides", ""},
		"of what has no card":        {`{"context_overrides":{"chat":8192},"mode_id":"talk"}`, "INVALID_ARGUMENT", "context_overrides", ""},
		"longer than any":            {`{"context_overrides":{"coder":131073},"mode_id":"coding"}`, "INVALID_ARGUMENT", "context_overrides", ""},
		"more alternatives than any": {`{"alternatives":11}`, "INVALID_ARGUMENT", "alternatives", ""},
	} {
		e := p.named("simulate_mode", c.arguments)
		if e.Status != "error" || e.Error == nil || c.code != "" && e.Error.Code != c.code || c.field != "" && e.Error.Field != c.field ||
			!strings.Contains(strings.Join(e.Error.DidYouMean, " "), c.hint) {
			p.t.Errorf("%s: %s", name, e.Raw)
		}
	}
}

// startedByNext goes from a start that does not fit to one that does, by the calls that the simulation hands out.
func (p *pipeline) startedByNext() {
	p.t.Helper()
	if s := p.simulated(`{}`); !s.Fits || len(s.Steps) > 0 || s.Next != nil || len(s.Gpus) != 1 || s.Gpus[0].NowMib != 20480 {
		p.t.Errorf("the host as it is: %+v", s)
	}
	s := p.simulated(`{"start":["coder"]}`)
	if s.Fits || s.Next != nil || s.PlanDigest != "" || !strings.Contains(s.Reason, "GPU 0") {
		p.t.Errorf("coder beside all: %+v", s)
	}
	if digest := s.alternative(p.t, "sleep chat"); digest != "" {
		p.t.Errorf("an alternative to what is no mode has the number %s", digest)
	}
	if none := p.simulated(`{"alternatives":0,"start":["coder"]}`); len(none.Alternatives) > 0 {
		p.t.Errorf("%d alternatives, none were wanted", len(none.Alternatives))
	}
	for range 5 {
		s := p.simulated(`{"start":["coder"],"stop":["chat"]}`)
		if !s.Fits || s.PlanDigest != "" {
			p.t.Fatalf("coder instead of chat: %+v", s)
		}
		if s.Next == nil {
			break
		}
		if s.Next.Arguments["service_id"] != s.Steps[0].ServiceID || !strings.HasSuffix(s.Next.Tool, "_service") {
			p.t.Fatalf("next is %+v, the steps are %s", s.Next, s.steps())
		}
		arguments, err := json.Marshal(s.Next.Arguments)
		must(p.t, err)
		p.approved(s.Next.Tool, string(arguments))
	}
	if got := p.running(); got != "coder, embed" {
		p.t.Fatalf("running: %s", got)
	}
}

// whatIf: another context is reckoned with and cannot be approved as it is.
func (p *pipeline) whatIf() {
	p.t.Helper()
	p.h.Durward("stop", "coder", "--yes")
	as := p.simulated(`{"mode_id":"coding"}`)
	what := p.simulated(`{"context_overrides":{"coder":4096},"mode_id":"coding"}`)
	if len(as.Needs) != 1 || as.Needs[0].NeedMib != 10240 || as.Needs[0].Source != "declared" || as.PlanDigest == "" || as.Next == nil || as.Next.Tool != "switch_mode" ||
		as.Next.Arguments["plan_digest"] != as.PlanDigest {
		p.t.Errorf("as it is: %+v", as)
	}
	// 28,672 tokens less in 32 layers of 8 heads of 128 + 128 numbers of 2 bytes are 3,584 MiB less.
	if len(what.Needs) != 1 || what.Needs[0].Source != "estimated" || what.Needs[0].Context != 4096 || what.PlanDigest != "" || what.Next != nil ||
		what.Needs[0].NeedMib > 10240-3500 || what.Needs[0].NeedMib < 10240-3700-512 {
		p.t.Errorf("with another context: %+v", what)
	}
	for _, a := range what.Alternatives {
		if a.PlanDigest != "" {
			p.t.Errorf("an alternative to what is not in the catalogue has the number %s", a.PlanDigest)
		}
	}
	p.h.Durward("start", "coder", "--yes")
}

// switchedToAlternative: the plan stops embed; the alternative that keeps it has a number of its own, which is approved and carried out.
func (p *pipeline) switchedToAlternative() {
	p.t.Helper()
	s := p.simulated(`{"mode_id":"talk"}`)
	if !s.Fits || !strings.Contains(s.steps(), "stop embed") || !strings.Contains(s.steps(), "stop coder") {
		p.t.Fatalf("to talk: %+v", s)
	}
	digest := s.alternative(p.t, "stop coder, keep embed")
	if len(digest) != 64 || digest == s.PlanDigest {
		p.t.Fatalf("the alternative's number is %q, the plan's %q", digest, s.PlanDigest)
	}
	// Nobody is asked about a number that is not one of this mode's, now.
	if e := p.named("switch_mode", fmt.Sprintf(`{"mode_id":"coding","plan_digest":%q}`, digest)); e.Error == nil || e.Error.Code != "PLAN_CHANGED" {
		p.t.Errorf("another mode's: %s", e.Raw)
	}
	if e := p.named("switch_mode", fmt.Sprintf(`{"mode_id":"talk","plan_digest":%q}`, strings.Repeat("0", 64))); e.Error == nil || e.Error.Code != "PLAN_CHANGED" {
		p.t.Errorf("a made-up one: %s", e.Raw)
	}
	starts := p.h.Starts("embed")
	done, screen := p.approved("switch_mode", fmt.Sprintf(`{"mode_id":"talk","plan_digest":%q}`, digest))
	for _, want := range []string{"plan " + digest[:12], "GPU 0: ", "stop coder"} {
		if !strings.Contains(screen, want) {
			p.t.Errorf("the approval's screen does not show %q:\n%s", want, screen)
		}
	}
	if strings.Contains(screen, "stop embed") {
		p.t.Errorf("the approval's screen stops what is kept:\n%s", screen)
	}
	var result struct {
		Outcome string
		Done    []struct {
			ServiceID string `json:"service_id"`
		}
	}
	done.Decode(p.t, &result)
	if result.Outcome != "committed" || p.running() != "chat, embed" || p.h.Starts("embed") != starts {
		p.t.Errorf("%s: running %s, embed was started %d times, before %d", done.Raw, p.running(), p.h.Starts("embed"), starts)
	}
	for _, step := range result.Done {
		if step.ServiceID == "embed" {
			p.t.Errorf("embed was touched: %s", done.Raw)
		}
	}
}

// switchedByOperator: a person takes an alternative by the beginning of its number, from what durward simulate shows.
func (p *pipeline) switchedByOperator() {
	p.t.Helper()
	shown := p.h.Durward("simulate", "coding")
	found := regexp.MustCompile(`(?m)\) sleep chat, keep embed.* plan ([0-9a-f]{12})$`).FindStringSubmatch(shown)
	if found == nil {
		p.t.Fatalf("no alternative sleeps chat and keeps embed:\n%s", shown)
	}
	if out := p.h.Ask("switch", "coding", "--plan", found[1], "--yes"); out.Code != 0 || !strings.Contains(out.Stderr, "coding: sleep chat, keep embed") ||
		strings.Contains(out.Stderr, "stop embed") {
		p.t.Errorf("exit code %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	if got := p.running(); got != "coder, embed" {
		p.t.Errorf("running: %s", got)
	}
	// What was shown then is not what would be done now.
	if out := p.h.Run("", "switch", "coding", "--plan", found[1], "--yes"); out.Code != 1 || !strings.Contains(out.Stderr, "nothing was done") {
		p.t.Errorf("exit code %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
}

// running names what runs, by id.
func (p *pipeline) running() string {
	p.t.Helper()
	var list struct {
		Services []struct {
			ServiceID string `json:"service_id"`
			State     string
		}
	}
	p.h.DurwardJSON(&list, "services")
	var ids []string
	for _, s := range list.Services {
		if s.State == "running" {
			ids = append(ids, s.ServiceID)
		}
	}
	slices.Sort(ids)
	return strings.Join(ids, ", ")
}
