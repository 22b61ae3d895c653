package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
	yaml "github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/pattern"
)

// toolsFile is what a tools.yaml holds. Every key of a tool is optional; a tool without any is known, and nothing more.
type toolsFile struct {
	Tools map[string]toolEntry `yaml:"tools"`
}

// projectFile is a tools.yaml with settings and domains, which are other packages' business.
type projectFile struct {
	Tools    map[string]toolEntry `yaml:"tools"`
	Settings map[string]any       `yaml:"settings"`
	Domains  any                  `yaml:"domains"`
}

type toolEntry struct {
	// Tier is READ, WRITE, DESTRUCTIVE or DENIED. One above the contract's counts instead of it. READ for a tool that is above it lets
	// it run without asking, while it stays what it is for ceilings and channels; a project cannot say so.
	Tier string `yaml:"tier"`
	// MinIntervalS is how many seconds lie between two calls of a client, at least.
	MinIntervalS int64 `yaml:"min_interval_s"`
	// SessionLimit is how often the tool can be called in a session.
	SessionLimit int64 `yaml:"session_limit"`
	// OptIn names the clients that may call the tool; it is off for all others.
	OptIn []string `yaml:"opt_in"`
	// Budget is how often a client can call the tool.
	Budget toolBudget `yaml:"budget"`
}

type toolBudget struct {
	Session int64 `yaml:"session"`
	Day     int64 `yaml:"day"`
	Month   int64 `yaml:"month"`
}

const (
	maxTools    = 500
	maxOptIn    = 200
	maxCalls    = 1_000_000
	maxInterval = 31 * 24 * 3600
	tierDenied  = "DENIED"
)

var (
	clientPattern = pattern.New(`^[a-z0-9][a-z0-9_-]{0,63}$`)
	// foreignTool is SOURCE:NAME, where a source is "mcp:SERVER" or "skill:NAME".
	foreignTool = pattern.New(`^(mcp|skill):[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}:[a-zA-Z0-9][a-zA-Z0-9_./-]{0,127}$`)
)

// tierOf is what a tools.yaml says of a tool for the clients that it binds.
type tierOf struct {
	// at is the tier that the tool has at least; unspecified: the contract's.
	at optionsv1.Tier
	// by stands for the file: its layer, user and clients count.
	by *rule
	// names: the tool is known.
	names bool
}

// tools reads a tools.yaml, or a project's file.
func (c *compiler) tools(s Source) {
	if len(s.Text) > maxFileBytes {
		c.wrong(s, 0, 0, "larger than %d KiB", maxFileBytes>>10)
		return
	}
	var file projectFile
	var err error
	if s.Layer == Project {
		err = config.Parse(s.Name, s.Text, &file)
	} else {
		var plain toolsFile
		err = config.Parse(s.Name, s.Text, &plain)
		file.Tools = plain.Tools
	}
	if err != nil {
		what, placed := errors.AsType[*config.Error](err)
		if !placed {
			what = &config.Error{What: err.Error()}
		}
		c.wrong(s, what.Line, what.Column, "%s", clean.Line(what.What, 300))
		return
	}
	if len(file.Tools) > maxTools {
		c.wrong(s, 0, 0, "more than %d tools", maxTools)
		return
	}
	at := keys(s.Text)
	for _, name := range slices.Sorted(maps.Keys(file.Tools)) {
		t := entry{c: c, s: s, at: at, name: name, toolEntry: file.Tools[name]}
		t.compile()
	}
}

// keys finds the places of a document's keys, by their path.
func keys(text []byte) map[string][2]int {
	out := map[string][2]int{}
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return out
	}
	var walk func(n yaml.Node, path string, depth int)
	walk = func(n yaml.Node, path string, depth int) {
		var values []*yaml.MappingValueNode
		switch n := n.(type) {
		case *yaml.MappingNode:
			values = n.Values
		case *yaml.MappingValueNode:
			values = []*yaml.MappingValueNode{n}
		}
		for _, v := range values {
			at := v.Key.GetToken()
			if at == nil || at.Position == nil || depth > 4 {
				continue
			}
			below := path + "\x00" + at.Value
			out[below] = [2]int{at.Position.Line, at.Position.Column}
			walk(v.Value, below, depth+1)
		}
	}
	for _, doc := range file.Docs {
		walk(doc.Body, "", 0)
	}
	return out
}

// entry is a tool's part of a file while it is compiled.
type entry struct {
	toolEntry
	c    *compiler
	s    Source
	at   map[string][2]int
	name string
}

func (e *entry) compile() {
	native, isNative := contract.Native(e.name)
	if !isNative && !foreignTool().MatchString(e.name) {
		e.problem(nil, "there is no tool %s%s", clean.Line(e.name, 80), meant(e.name))
		return
	}
	if mayName(e.s.Layer) {
		e.c.tiers[e.name] = append(e.c.tiers[e.name], tierOf{by: e.rule("", ast.Forbid()), names: true})
	}
	e.tier(native, isNative)
	e.limit("interval", perInterval, "since_last_s", ast.Node.LessThan, e.MinIntervalS, maxInterval, "it may be called every %d seconds", "min_interval_s")
	e.limit("session-limit", perSession, "session", ast.Node.GreaterThanOrEqual, e.SessionLimit, maxCalls, "it may be called %d times in a session", "session_limit")
	e.limit("budget-session", perSession, "session", ast.Node.GreaterThanOrEqual, e.Budget.Session, maxCalls, "it may be called %d times in a session", "budget", "session")
	e.limit("budget-day", perDay, "day", ast.Node.GreaterThanOrEqual, e.Budget.Day, maxCalls, "it may be called %d times a day", "budget", "day")
	e.limit("budget-month", perMonth, "month", ast.Node.GreaterThanOrEqual, e.Budget.Month, maxCalls, "it may be called %d times a month", "budget", "month")
	e.optIn()
}

// at is a path below a tool.
func at(path ...string) []string { return path }

// place is where a key of the tool stands.
func (e *entry) place(path ...string) [2]int {
	return e.at["\x00tools\x00"+e.name+strings.Join(append([]string{""}, path...), "\x00")]
}

func (e *entry) has(path ...string) bool { return e.place(path...) != [2]int{} }

func (e *entry) problem(path []string, format string, args ...any) {
	p := e.place(path...)
	e.c.wrong(e.s, p[0], p[1], format, args...)
}

// meant suggests the tool that a name may have been meant for.
func meant(name string) string {
	return cmp.Or(config.DidYouMean(name, nativeTools()), "; a tool of another source is written mcp:SERVER:NAME")
}

// rule makes a rule of the file out of a policy.
func (e *entry) rule(id string, p *ast.Policy, path ...string) *rule {
	place := e.place(path...)
	p.Position = ast.Position{Line: place[0], Column: place[1]}
	r := newRule(p, e.s)
	r.ID = generated + e.name + "/" + id
	return r
}

func (e *entry) action(group types.String) types.EntityUID {
	return types.NewEntityUID(actionType, group+":"+types.String(e.name))
}

func (e *entry) tier(native contract.Tool, isNative bool) {
	if !e.has("tier") {
		return
	}
	if e.Tier == tierDenied {
		r := e.rule("tier", ast.Forbid().ActionEq(e.action(groupCall)), "tier")
		r.because = "a human denied the tool"
		e.c.add(e.s, r)
		return
	}
	wanted := optionsv1.Tier(optionsv1.Tier_value["TIER_"+e.Tier])
	switch {
	case wanted == optionsv1.Tier_TIER_UNSPECIFIED:
		e.problem(at("tier"), "tier is READ, WRITE, DESTRUCTIVE or DENIED")
		return
	case wanted == optionsv1.Tier_TIER_READ && e.s.Layer == Project && (!isNative || native.Tier > wanted):
		e.problem(at("tier"), "a project cannot lower a tier")
		return
	case isNative && wanted < native.Tier && wanted != optionsv1.Tier_TIER_READ:
		e.problem(at("tier"), "%s is %s, and %s asks a human as well; READ lets it run without asking", e.name, contract.TierName(native.Tier), e.Tier)
		return
	}
	if wanted == optionsv1.Tier_TIER_READ {
		if isNative && native.Tier == wanted {
			return
		}
		// It may run, as long as nobody else has raised it.
		unraised := ast.Context().Access("tier").Equal(ast.Context().Access("contract_tier"))
		r := e.rule("tier", ast.Permit().ActionEq(e.action(groupRun)).When(unraised), "tier")
		r.because = "a human lets the tool run without asking"
		if mayPermit(e.s.Layer) {
			e.c.add(e.s, r)
		}
		return
	}
	if !isNative || wanted > native.Tier {
		e.c.tiers[e.name] = append(e.c.tiers[e.name], tierOf{at: wanted, by: e.rule("", ast.Forbid())})
	}
	if e.s.Layer == Project {
		// What a project calls a change asks, whoever let it run; in dangerous mode a human said that changes run.
		r := e.rule("tier", ast.Forbid().ActionEq(e.action(groupRun)).Unless(ast.Context().Access("dangerous")), "tier")
		r.because = "the project wants a human to be asked"
		e.c.add(e.s, r)
	}
}

func (e *entry) limit(id string, kind limitKind, count types.String, compare func(ast.Node, ast.Node) ast.Node, n, most int64, because string, path ...string) {
	if !e.has(path...) {
		return
	}
	if n < 1 || n > most {
		e.problem(path, "%s is 1 to %d; tier: DENIED switches a tool off", strings.Join(path, "."), most)
		return
	}
	if native, ok := contract.Native(e.name); ok && answered(native) {
		e.problem(path, "the vault answers %s on a session's permit and counts no calls of it: a limit does nothing there; tier: DENIED or opt_in switch it off", e.name)
		return
	}
	condition := compare(ast.Context().Access("calls").Access(count), ast.Long(n))
	r := e.rule(id, ast.Forbid().ActionEq(e.action(groupCall)).When(condition), path...)
	r.because = fmt.Sprintf(because, n)
	r.limit = &limit{kind: kind}
	if kind == perInterval {
		r.limit.interval = time.Duration(n) * time.Second
	}
	e.c.add(e.s, r)
}

func (e *entry) optIn() {
	if !e.has("opt_in") {
		return
	}
	if len(e.OptIn) > maxOptIn {
		e.problem(at("opt_in"), "more than %d clients", maxOptIn)
		return
	}
	forbid := ast.Forbid().ActionEq(e.action(groupCall))
	for _, client := range e.OptIn {
		if !clientPattern().MatchString(client) {
			e.problem(at("opt_in"), "%s is no client's id", clean.Line(client, 80))
			return
		}
		// One condition each, so that no number of clients nests.
		forbid = forbid.Unless(ast.Principal().In(ast.EntityUID("Client", types.String(client))))
	}
	r := e.rule("opt-in", forbid, "opt_in")
	r.because = "the tool is off but for the clients that a human named"
	e.c.add(e.s, r)
}

// knows reports whether a human knows the tool: it is ours, or a tools.yaml that binds the client names it.
func (s *Set) knows(name string, c *Call) bool {
	if c.Tool.Source == contract.SourceNative || c.Tool.Foreign != nil {
		return true // a pinned tool is one that a human promoted, under the tier that he signed
	}
	return slices.ContainsFunc(s.tiers[name], func(t tierOf) bool { return t.names && binds(t.by, c) })
}

// tier is the tool's tier as policy sees it.
func (s *Set) tier(name string, c *Call) optionsv1.Tier {
	tier := c.Tool.Tier
	for _, t := range s.tiers[name] {
		if binds(t.by, c) {
			tier = max(tier, t.at)
		}
	}
	return tier
}
