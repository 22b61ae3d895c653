package policy

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/pattern"
)

// DefaultName is the name under which the built-in rules stand in rules and problems.
const DefaultName = "default.cedar"

//go:embed default.cedar
var defaultText []byte

// Set is rules in force. It is immutable and safe for concurrent use.
type Set struct {
	rules  []*rule // byPlace
	index  index
	tiers  map[string][]tierOf // by tool
	digest [sha256.Size]byte
}

// Compile makes a set of the built-in rules and the sources. Its errors are Problems, without warnings: what has any is not a set.
func Compile(sources []Source) (*Set, error) {
	c := compile(sources)
	if grave := c.problems.grave(); len(grave) > 0 {
		return nil, grave.sorted(sources)
	}
	return c.set(sources), nil
}

// Known is what exists on this host, so that rules about anything else can be warned of; nil: not known.
type Known struct {
	Clients, Users []string
	// Unattended are the tools that a sink's own file lists; about a rule that lets one of them run nobody is warned.
	Unattended []string
}

// Check finds everything that is wrong with the sources, and warns of rules that can never match, of those that a sink does not obey
// by itself, and of rules about clients and users that do not exist.
func Check(sources []Source, known Known) Problems {
	c := compile(sources)
	for _, r := range c.rules {
		if r.Layer != BuiltIn && r.limit == nil {
			c.problems = append(c.problems, strangers(r, known)...)
			if text := unasked(r, known); text != "" && !c.told(r) {
				c.problems = append(c.problems, r.problem(": "+text, true))
			}
		}
	}
	return c.problems.sorted(sources)
}

// compiler gathers rules and problems.
type compiler struct {
	rules    []*rule
	tiers    map[string][]tierOf
	problems Problems
	ids      map[string]*rule
}

func compile(sources []Source) *compiler {
	c := &compiler{ids: map[string]*rule{}, tiers: map[string][]tierOf{}}
	c.cedar(Source{Layer: BuiltIn, Name: DefaultName, Text: defaultText})
	if problem := tooMuch(sources); problem != "" {
		c.problems = append(c.problems, Problem{File: sources[0].Name, Text: problem})
		return c
	}
	for _, s := range sources {
		switch {
		case s.Layer != System && s.Layer != User && s.Layer != Project:
			c.wrong(s, 0, 0, "the layer %q takes no files", string(s.Layer))
		case s.Layer == User && s.User == "":
			c.wrong(s, 0, 0, "rules of a user's layer without a user")
		case strings.HasSuffix(s.Name, ".cedar"):
			c.cedar(s)
		case strings.HasSuffix(s.Name, ".yaml"):
			c.tools(s)
		default:
			c.wrong(s, 0, 0, "neither a .cedar nor a .yaml file")
		}
		if len(c.rules) > maxRules {
			c.wrong(s, 0, 0, "more than %d rules in all", maxRules)
			break
		}
	}
	if len(c.rules) <= maxRules {
		c.types()
	}
	return c
}

func tooMuch(sources []Source) string {
	if len(sources) > maxSources {
		return fmt.Sprintf("more than %d files of rules", maxSources)
	}
	all := 0
	for _, s := range sources {
		all += len(s.Text)
	}
	if all > maxAllBytes {
		return fmt.Sprintf("the files of rules are larger than %d KiB together", maxAllBytes>>10)
	}
	return ""
}

// told reports whether something was said about the rule already.
func (c *compiler) told(r *rule) bool {
	return slices.ContainsFunc(c.problems, func(p Problem) bool { return p.File == r.File && p.Line == r.Line && p.Column == r.column })
}

func (c *compiler) wrong(s Source, line, column int, format string, args ...any) {
	c.problems = append(c.problems, Problem{File: s.Name, Line: line, Column: column, Text: fmt.Sprintf(format, args...)})
}

// cedar reads a file of Cedar policies.
func (c *compiler) cedar(s Source) {
	if problem := bounded(s.Text); problem != nil {
		c.wrong(s, problem.Line, problem.Column, "%s", problem.Text)
		return
	}
	list, err := cedar.NewPolicyListFromBytes(s.Name, s.Text)
	if err != nil {
		line, column, text := syntax(err)
		c.wrong(s, line, column, "%s", text)
		return
	}
	if len(list) > maxRules {
		c.wrong(s, 0, 0, "more than %d rules", maxRules)
		return
	}
	for i, p := range list {
		c.policy(s, i, (*ast.Policy)(p.AST()))
	}
}

// idPattern keeps ids fit for records and command lines.
var idPattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,127}$`)

// generated begins the ids of what a tools.yaml says.
const generated = "tools/"

// policy takes the nth policy of a file.
func (c *compiler) policy(s Source, n int, p *ast.Policy) {
	r := newRule(p, s)
	r.ID = s.Name + "#" + strconv.Itoa(n+1)
	for _, a := range p.Annotations {
		switch a.Key {
		case "silent":
			r.silent = true
		case "because":
			r.because = clean.Line(string(a.Value), 200)
		case "id":
			r.ID = string(a.Value)
			switch {
			case !idPattern().MatchString(r.ID):
				c.wrong(s, r.Line, r.column, "@id is at most 128 letters, digits and _.:/@+-")
				return
			case strings.HasPrefix(r.ID, generated), s.Layer != BuiltIn && (c.ids[key(BuiltIn, "", r.ID)] != nil || r.ID == NoRule || r.ID == Unreadable):
				c.wrong(s, r.Line, r.column, "the @id %s is taken by what is built in", r.ID)
				return
			}
		}
	}
	if !r.Forbids && !mayPermit(s.Layer) {
		c.wrong(s, r.Line, r.column, "a project can only forbid")
		return
	}
	c.add(s, r)
}

func key(l Layer, user, id string) string { return string(l) + "\x00" + user + "\x00" + id }

func (c *compiler) add(s Source, r *rule) {
	k := key(r.Layer, r.user, r.ID)
	if r.Layer == Project {
		k = key(r.Layer, s.Name, r.ID)
	}
	if other := c.ids[k]; other != nil {
		c.wrong(s, r.Line, r.column, "the @id %s stands at %s:%d already", r.ID, other.File, other.Line)
		return
	}
	c.ids[k] = r
	c.rules = append(c.rules, r)
}

// position is how the engine's parser says where something is.
var position = pattern.New(`<input>:([0-9]+):([0-9]+)`)

// syntax turns the parser's error into a place and a sentence.
func syntax(err error) (line, column int, text string) {
	text = strings.TrimPrefix(err.Error(), "parser error: ")
	if m := position().FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		column, _ = strconv.Atoi(m[2])
		text = strings.TrimPrefix(strings.Replace(text, m[0], "", 1), "parse error at ")
	}
	if m := expected().FindStringSubmatch(text); m != nil {
		text = fmt.Sprintf("%s stands where %s is expected", m[1], m[2])
	}
	return line, column, "cannot be read: " + clean.Line(strings.Trim(text, ": "), 200)
}

var expected = pattern.New(`exact got (.*) want (.*)$`)

func (c *compiler) set(sources []Source) *Set {
	slices.SortStableFunc(c.rules, byPlace)
	number(c.rules)
	s := &Set{rules: c.rules, tiers: c.tiers, digest: digest(sources)}
	s.index = newIndex(c.rules)
	return s
}

// digest covers what decides: the built-in rules and every source, whatever order they were given in.
func digest(sources []Source) [sha256.Size]byte {
	lines := make([]string, 0, len(sources))
	for _, s := range sources {
		clients := slices.Clone(s.Clients)
		slices.Sort(clients)
		lines = append(lines, fmt.Sprintf("%s %q %q %q %x", s.Layer, s.User, clients, s.Name, sha256.Sum256(s.Text)))
	}
	slices.Sort(lines)
	return sha256.Sum256(fmt.Appendf(nil, "durward.policy.v1\n%x\n%s\n", sha256.Sum256(defaultText), strings.Join(lines, "\n")))
}

// Digest is SHA-256 over what the set was made of; grants carry it.
func (s *Set) Digest() [sha256.Size]byte { return s.digest }

// Rules returns every rule in the order of layer, file and line. The slice is the caller's.
func (s *Set) Rules() []Rule {
	out := make([]Rule, len(s.rules))
	for i, r := range s.rules {
		out[i] = r.Rule
	}
	return out
}

// index finds the rules that can match a call: by action, principal and resource, each of them possibly any.
type index struct {
	forbids, permits map[scope][]*rule
	// resources: some rule names a resource in its scope.
	resources bool
}

type scope struct {
	action              types.String
	principal, resource types.EntityUID
}

// whatever stands for every resource, for those who ask about all calls of a tool.
var whatever = types.EntityUID{Type: "*"}

func newIndex(rules []*rule) index {
	x := index{forbids: map[scope][]*rule{}, permits: map[scope][]*rule{}}
	for _, r := range rules {
		into := x.permits
		if r.Forbids {
			into = x.forbids
		}
		resource, _ := scopeResource(r.ast())
		x.resources = x.resources || resource != types.EntityUID{}
		for _, action := range actionKeys(r.ast()) {
			for _, res := range []types.EntityUID{resource, whatever} {
				k := scope{action, scopePrincipal(r.ast()), res}
				if list := into[k]; len(list) == 0 || list[len(list)-1] != r {
					into[k] = append(list, r)
				}
			}
		}
	}
	return x
}

// actionKeys are the actions and groups under which a rule is found. A rule about any action is found under both groups.
func actionKeys(p *ast.Policy) []types.String {
	actions := scopeActions(p)
	if _, ok := p.Action.(ast.ScopeTypeAll); ok {
		return []types.String{groupCall, groupRun}
	}
	var keys []types.String
	for _, a := range actions {
		if a.Type == actionType && !slices.Contains(keys, a.ID) {
			keys = append(keys, a.ID)
		}
	}
	return keys
}

// find returns the rules of one kind that can match, in no order.
func find(from map[scope][]*rule, group, action types.String, principals []types.EntityUID, resource types.EntityUID, c *Call) (into []*rule) {
	for _, a := range [2]types.String{group, action} {
		for _, p := range principals {
			into = match(into, from[scope{a, p, resource}], c)
			if resource != whatever && resource != (types.EntityUID{}) {
				into = match(into, from[scope{a, p, types.EntityUID{}}], c)
			}
		}
	}
	return into
}

func match(into, list []*rule, c *Call) []*rule {
	for _, r := range list {
		if binds(r, c) {
			into = append(into, r)
		}
	}
	return into
}

// first returns the rule that stands first.
func first(a, b *rule) *rule {
	if a == nil || b != nil && b.place < a.place {
		return b
	}
	return a
}
