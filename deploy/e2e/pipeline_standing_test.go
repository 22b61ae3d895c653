package e2e

import (
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"durward.internal/deploy/e2e/harness"
	toolset "durward.internal/services/platform/contract"
)

// changes are the tools that change something, in an order in which each finds what it needs.
var changes = []string{"start_service", "switch_mode", "sleep_service", "wake_service", "stop_service"}

// TestPipelineWithoutAsking sends every tool that changes something over every route in each of the ways in which nobody is asked:
// within a scope, in dangerous mode, and unattended by a human's rule. A key-bound client's call goes through every stage, and its
// records say by what; a bearer client's asks all the same.
func TestPipelineWithoutAsking(t *testing.T) {
	t.Parallel()
	for _, r := range routes {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			h := harness.Start(t, harness.Options{Catalog: harness.ModesCatalog})
			connect := func(client string) *pipeline {
				p := &pipeline{t: t, h: h, route: r, send: r.connect(h, client), schemas: map[string]*jsonschema.Resolved{}}
				simulate, _ := toolset.Lookup("simulate_mode") // a first call, so that there is a session
				p.simulate(simulate)
				return p
			}
			if strings.HasPrefix(r.name, "stdio") {
				t.Run("scope", func(*testing.T) { connect("scoped").scoped() })
				t.Run("dangerous", func(*testing.T) { connect("daring").dangerous("daring") })
				t.Run("unattended", func(*testing.T) { connect("trusted").unattended("trusted") })
				return
			}
			connect("bearer").asAlways("bearer")
		})
	}
}

// simulate takes the plan of now.
func (p *pipeline) simulate(tool toolset.Tool) {
	p.t.Helper()
	var plan struct {
		PlanDigest string `json:"plan_digest"`
	}
	p.call(tool, p.arguments(tool, "")).Decode(p.t, &plan)
	p.plan = plan.PlanDigest
}

// change calls a tool that changes something, with the plan of now.
func (p *pipeline) change(name string) harness.Envelope {
	p.t.Helper()
	simulate, _ := toolset.Lookup("simulate_mode")
	p.simulate(simulate)
	tool, ok := toolset.Lookup(name)
	if !ok {
		p.t.Fatalf("the contract has no tool %s", name)
	}
	return p.call(tool, p.arguments(tool, ""))
}

// scoped: what a person approved for several calls is called again, and runs.
func (p *pipeline) scoped() {
	for _, name := range changes {
		asked := isStatus(p.t, "pending_approval", p.change(name))
		var number string
		for _, a := range p.h.Approvals() {
			if a.OperationID == asked.OperationID {
				number = a.Number
			}
		}
		p.h.Durward("approve", number, "--scope", "--uses", "2", "--for", "10m", "--any", "--yes")
		wait, _ := toolset.Lookup("wait_operation")
		isStatus(p.t, "ok", p.call(wait, p.arguments(wait, asked.OperationID)))
		again := isStatus(p.t, "ok", p.change(name))
		told(p.t, p.h, again, "", false, "scope")
		asks(p.t, p.h, p.change(name)) // both uses are used up
	}
}

func (p *pipeline) dangerous(client string) {
	enableDangerous(p.t, p.h, client, sessionOf(p.t, p.h, client), "10m")
	for _, name := range changes {
		done := isStatus(p.t, "ok", p.change(name))
		told(p.t, p.h, done, "dangerous-mode-runs", true, "dangerous")
		if len(done.Warnings) == 0 || !strings.HasPrefix(done.Warnings[0], "DANGEROUS MODE until ") {
			p.t.Errorf("%s: the answer does not say so: %s", name, done.Raw)
		}
	}
}

func (p *pipeline) unattended(client string) {
	p.allow(client)
	for _, name := range changes {
		done := soon(p.t, "ok", func() harness.Envelope {
			e := p.change(name)
			if e.Status == "pending_approval" {
				p.h.Deny(e.OperationID, "the rule is not in force yet")
			}
			return e
		})
		told(p.t, p.h, done, "allow.cedar:", false, "")
	}
}

// allow lets a client call everything without asking.
func (p *pipeline) allow(client string) {
	p.t.Helper()
	for _, name := range changes {
		p.h.Durward("policy", "allow", "--client", client, "--tool", name, "--yes")
	}
}

// asAlways: neither a rule nor a scope nor dangerous mode is for a client that signs nothing itself.
func (p *pipeline) asAlways(client string) {
	p.allow(client)
	for _, name := range changes {
		asked := isStatus(p.t, "pending_approval", p.change(name))
		waiting := p.h.Approvals()
		if out := p.h.Run("", "approve", waiting[0].Number, "--scope", "--uses", "2", "--any", "--yes"); out.Code == 0 || !strings.Contains(out.Stderr, "key-bound") {
			p.t.Errorf("%s: a scope for a bearer client: exit code %d\n%s", name, out.Code, out.Stderr)
		}
		p.h.Deny(asked.OperationID, "not now")
	}
	x := p.h.AtTerminal(p.t, 120, "dangerous", "enable", "--session", sessionOf(p.t, p.h, client))
	defer x.Close()
	x.Waits("key-bound")
	x.Ends(4)
}
