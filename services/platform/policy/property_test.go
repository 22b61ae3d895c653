package policy

import (
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/platformtest/full"
)

// The properties hold for rules and calls by chance; a seed that fails is a test case.

const rounds, fewRounds = 200, 50

// seeds are what the cases of a test are made from.
func seeds(t *testing.T) iter.Seq[uint64] {
	first, n := full.Sample(t, rounds, fewRounds)
	return func(yield func(uint64) bool) {
		for i := range uint64(n) {
			if !yield(first + i) {
				return
			}
		}
	}
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

var (
	toolNames = []string{"gpu_status", "service_info", "service_logs", "start_service", "switch_mode", "stop_service", "mcp:web:fetch"}
	clients   = []string{"cursor", "claude", "bot"}
	users     = []string{"", "alice", "bob"}
)

func randomTool(t testing.TB, r *rand.Rand) contract.Tool {
	name := pick(r, toolNames...)
	if name == "mcp:web:fetch" {
		return downstream(pick(r, read, write, destructive), pick(r, []string{}, []string{"shell"}, []string{"desktop:click"})...)
	}
	return native(t, name)
}

func randomCall(t testing.TB, r *rand.Rand) Call {
	c := Call{
		Client: pick(r, clients...), Agent: pick(r, "", "coder"), User: pick(r, users...),
		Channel: callv1.Channel(r.IntN(5)), ChannelName: pick(r, "", "signal"), KeyBound: r.IntN(2) == 0,
		Ceiling: optionsv1.Tier(r.IntN(4)), Dangerous: r.IntN(3) == 0, DesktopAllowed: r.IntN(2) == 0, Tool: randomTool(t, r),
	}
	vary(&c, r)
	return c
}

// vary changes what Always does not look at.
func vary(c *Call, r *rand.Rand) {
	c.Now = monday.Add(time.Duration(r.IntN(14*24*60)) * time.Minute)
	c.Counts = Counts{Session: uint32(r.IntN(6)), Day: uint32(r.IntN(6)), Month: uint32(r.IntN(6))}
	if r.IntN(2) == 0 {
		c.Counts.Last = c.Now.Add(-time.Duration(r.IntN(90)) * time.Second)
	}
	args := map[string]any{}
	switch c.Tool.Resource {
	case "Service":
		args["service_id"] = pick(r, "chat", "embed")
	case "Mode":
		args["mode_id"] = pick(r, "chat", "coding")
	}
	if c.Tool.Name == "switch_mode" && r.IntN(2) == 0 {
		args["margin_mib_override"] = r.IntN(9)
	}
	c.Arguments, _ = json.Marshal(args)
}

func randomCondition(r *rand.Rand, tool string) string {
	conditions := []string{
		`context.tier == "` + pick(r, "READ", "WRITE", "DESTRUCTIVE") + `"`,
		`context.contract_tier == "` + pick(r, "READ", "WRITE") + `"`,
		`context.channel == "` + pick(r, "cli", "messaging") + `"`,
		`context.` + pick(r, "key_bound", "dangerous", "known", "shell", "desktop", "remote", "above_ceiling"),
		fmt.Sprintf(`context.time.hour < %d`, r.IntN(24)),
		fmt.Sprintf(`context.calls.day > %d`, r.IntN(6)),
		fmt.Sprintf(`context.calls.session * %d > 4`, pick(r, 1, 4611686018427387904)),
		fmt.Sprintf(`context.calls.since_last_s < %d`, r.IntN(60)),
		`principal in Client::"` + pick(r, clients...) + `"`,
		`principal in User::"alice"`,
		`resource == Service::"chat"`,
	}
	switch tool {
	case "switch_mode":
		conditions = append(conditions, `context.arguments.mode_id == "chat"`, `(context.arguments has margin_mib_override && context.arguments.margin_mib_override > 4)`)
	case "start_service", "service_info", "stop_service", "service_logs":
		conditions = append(conditions, `context.arguments.service_id like "ch*"`)
	}
	one := pick(r, conditions...)
	switch r.IntN(5) {
	case 0:
		return "!(" + one + ")"
	case 1:
		return one + " && " + randomCondition(r, tool)
	case 2:
		return "(" + one + " || " + randomCondition(r, tool) + ")"
	}
	return one
}

func randomRule(r *rand.Rand, effect string) string {
	tool := pick(r, toolNames...)
	action := pick(r,
		`action`, `action in Action::"call"`, `action in Action::"callWithoutApproval"`,
		`action == Action::"call:`+tool+`"`, `action == Action::"callWithoutApproval:`+tool+`"`,
		`action in [Action::"call:`+tool+`", Action::"callWithoutApproval"]`)
	if !strings.Contains(action, "==") {
		tool = ""
	}
	principal := pick(r, `principal`, `principal in Client::"`+pick(r, clients...)+`"`, `principal is Agent`, `principal in User::"`+pick(r, "alice", "bob")+`"`,
		`principal in Channel::"`+pick(r, "cli", "api", "messaging", "messaging:signal")+`"`, `principal == Agent::"cursor/coder"`)
	resource := "resource"
	if tool == "" && !strings.Contains(action, "call:mcp") {
		resource = pick(r, `resource`, `resource`, `resource is Service`, `resource == Service::"chat"`, `resource == Mode::"chat"`, `resource == Host::"this"`)
	}
	text := fmt.Sprintf("%s (%s, %s, %s)", effect, principal, action, resource)
	for range r.IntN(3) {
		text += fmt.Sprintf("\n%s { %s }", pick(r, "when", "unless"), randomCondition(r, tool))
	}
	return text + ";\n"
}

func randomTools(r *rand.Rand, project bool) string {
	var b strings.Builder
	b.WriteString("tools:\n")
	for _, name := range toolNames {
		if r.IntN(2) == 0 {
			continue
		}
		fmt.Fprintf(&b, "  '%s':\n", name)
		tiers := []string{"DESTRUCTIVE", "DENIED"}
		switch {
		case !project:
			tiers = append(tiers, "READ", "READ")
		case name != "mcp:web:fetch":
			if tool, _ := contract.Lookup(name); tool.Tier == read {
				tiers = append(tiers, "WRITE", "READ")
			}
		}
		if r.IntN(2) == 0 {
			fmt.Fprintf(&b, "    tier: %s\n", pick(r, tiers...))
		}
		if r.IntN(3) == 0 {
			fmt.Fprintf(&b, "    min_interval_s: %d\n", 1+r.IntN(60))
		}
		if r.IntN(3) == 0 {
			fmt.Fprintf(&b, "    session_limit: %d\n", 1+r.IntN(5))
		}
		if r.IntN(4) == 0 {
			fmt.Fprintf(&b, "    opt_in: [%s]\n", strings.Join(clients[:r.IntN(3)], ", "))
		}
		if r.IntN(3) == 0 {
			fmt.Fprintf(&b, "    budget: {day: %d, month: %d}\n", 1+r.IntN(5), 1+r.IntN(5))
		}
	}
	text := b.String()
	if !strings.Contains(text, "'") {
		return "tools: {}\n"
	}
	return text
}

// randomSources are files of a human's layers that compile.
func randomSources(r *rand.Rand) []Source {
	for {
		var sources []Source
		for i := range r.IntN(4) {
			var text strings.Builder
			for range 1 + r.IntN(4) {
				text.WriteString(randomRule(r, pick(r, "permit", "permit", "forbid")))
			}
			s := Source{Layer: System, Name: fmt.Sprintf("policy/%d.cedar", i), Text: []byte(text.String())}
			if r.IntN(3) == 0 {
				s.Layer, s.User = User, pick(r, "alice", "bob")
			}
			sources = append(sources, s)
		}
		if r.IntN(2) == 0 {
			sources = append(sources, tools(randomTools(r, false)))
		}
		if r.IntN(3) == 0 {
			sources = append(sources, Source{Layer: User, User: "alice", Name: "users/alice/tools.yaml", Text: []byte(randomTools(r, false))})
		}
		if len(compile(sources).problems.grave()) == 0 {
			return sources
		}
	}
}

func randomProject(r *rand.Rand) Source {
	return project(randomTools(r, true), clients[:r.IntN(4)]...)
}

// TestDecideIsTheEnginesAnswer: index, batches and parts of requests left out change nothing against the engine's own answer over
// all rules and the whole request.
func TestDecideIsTheEnginesAnswer(t *testing.T) {
	verdicts := map[Verdict]int{}
	for seed := range seeds(t) {
		r := rand.New(rand.NewPCG(seed, 1))
		sources := append(randomSources(r), randomProject(r))
		s := compiledSet(t, sources...)
		for range 6 {
			c := randomCall(t, r)
			d := s.Decide(c)
			verdicts[d.Verdict]++
			want := naive(s, c)
			want.Reason = d.Reason
			if d != want {
				t.Fatalf("seed %d: Decide = %+v\nthe engine says %+v\ncall %+v\nrules %s", seed, d, want, c, dump(sources))
			}
		}
	}
	if len(verdicts) != 3 {
		t.Errorf("the verdicts were %v", verdicts)
	}
}

func dump(sources []Source) string {
	var b strings.Builder
	for _, s := range sources {
		fmt.Fprintf(&b, "--- %s %s %v %s\n%s", s.Layer, s.User, s.Clients, s.Name, s.Text)
	}
	return b.String()
}

// naive decides with everything that there is in one policy set.
func naive(s *Set, c Call) Decision {
	var applies []*rule
	for _, r := range s.rules {
		if r.Layer == User && r.user != c.User || r.Layer == Project && len(r.clients) > 0 && !slices.Contains(r.clients, c.Client) {
			continue
		}
		applies = append(applies, r)
	}
	known := c.Tool.Source == "native"
	top := c.Tool.Tier
	for _, of := range s.tiers[ActionName(c.Tool)] {
		if slices.ContainsFunc([]*rule{of.by}, func(r *rule) bool {
			return (r.Layer != User || r.user == c.User) && (r.Layer != Project || len(r.clients) == 0 || slices.Contains(r.clients, c.Client))
		}) {
			known, top = known || of.names, max(top, of.at)
		}
	}
	best := naiveAt(s, applies, c, known, top)
	for tier := top - 1; tier >= c.Tool.Tier; tier-- {
		d := naiveAt(s, applies, c, known, tier)
		order := []Verdict{Deny, Ask, Run}
		if slices.Index(order, d.Verdict) < slices.Index(order, best.Verdict) || d.Verdict == Deny && best.Verdict == Deny && d.RetryAfter == 0 && best.RetryAfter > 0 {
			best = d
		}
	}
	best.Tier = top
	return best
}

func naiveAt(s *Set, applies []*rule, c Call, known bool, tier optionsv1.Tier) Decision {
	forbids, permits, failed := authorise(s, applies, c, known, tier, "call")
	switch {
	case len(forbids) > 0:
		d := Decision{Rule: forbids[0]}
		for _, f := range forbids {
			r := byRule(s, f)
			if r.limit == nil || f.Failed {
				return Decision{Rule: f}
			}
			d.RetryAfter = max(d.RetryAfter, r.limit.rest(&c))
		}
		return d
	case len(permits) == 0 && len(failed) > 0:
		return Decision{Rule: failed[0]}
	case len(permits) == 0:
		return Decision{Rule: Rule{ID: NoRule, Layer: BuiltIn}}
	}
	against, unasked, failed := authorise(s, applies, c, known, tier, "callWithoutApproval")
	switch {
	case len(unasked) == 0 && len(failed) > 0:
		return Decision{Verdict: Ask, Rule: failed[0]}
	case len(unasked) == 0:
		return Decision{Verdict: Ask, Rule: permits[0]}
	case len(against) > 0:
		return Decision{Verdict: Ask, Rule: against[0]}
	}
	return Decision{Verdict: Run, Rule: unasked[0]}
}

func byRule(s *Set, want Rule) *rule {
	want.Failed = false
	i := slices.IndexFunc(s.rules, func(r *rule) bool { return r.Rule == want })
	return s.rules[i]
}

// authorise asks the engine about the permits and the forbids, each in one policy set, and about all of them for its decision.
func authorise(s *Set, applies []*rule, c Call, known bool, tier optionsv1.Tier, group string) (forbids, permits, failed []Rule) {
	entities := types.EntityMap{}
	client := types.NewEntityUID("Client", types.String(c.Client))
	channel := strings.ToLower(strings.TrimPrefix(c.Channel.String(), "CHANNEL_"))
	above := []types.EntityUID{types.NewEntityUID("Channel", types.String(channel))}
	if c.ChannelName != "" {
		above = append(above, types.NewEntityUID("Channel", types.String(channel+":"+c.ChannelName)))
	}
	if c.User != "" {
		above = append(above, types.NewEntityUID("User", types.String(c.User)))
	}
	entities[client] = types.Entity{UID: client, Parents: types.NewEntityUIDSet(above...)}
	principal := client
	if c.Agent != "" {
		principal = types.NewEntityUID("Agent", types.String(c.Client+"/"+c.Agent))
		entities[principal] = types.Entity{UID: principal, Parents: types.NewEntityUIDSet(client)}
	}
	action := types.NewEntityUID("Action", types.String(group+":"+ActionName(c.Tool)))
	entities[action] = types.Entity{UID: action, Parents: types.NewEntityUIDSet(types.NewEntityUID("Action", types.String(group)))}
	var args map[string]any
	if err := json.Unmarshal(c.Arguments, &args); err != nil {
		panic(err)
	}
	record := types.RecordMap{}
	for k, v := range args {
		switch v := v.(type) {
		case string:
			record[types.String(k)] = types.String(v)
		case float64:
			record[types.String(k)] = types.Long(v)
		}
	}
	resource := types.NewEntityUID("Host", "this")
	if c.Tool.Resource != "" {
		id, _ := args[c.Tool.ResourceArgument].(string)
		resource = types.NewEntityUID(types.EntityType(c.Tool.Resource), types.String(id))
	}
	weekday := int64(c.Now.Weekday())
	if weekday == 0 {
		weekday = 7
	}
	last := int64(never)
	if !c.Counts.Last.IsZero() {
		last = max(int64(c.Now.Sub(c.Counts.Last).Seconds()), 0)
	}
	context := types.NewRecord(types.RecordMap{
		"tier": types.String(strings.TrimPrefix(tier.String(), "TIER_")), "contract_tier": types.String(strings.TrimPrefix(c.Tool.Tier.String(), "TIER_")),
		"above_ceiling": types.Boolean(tier > c.Ceiling), "channel": types.String(channel), "key_bound": types.Boolean(c.KeyBound),
		"dangerous": types.Boolean(c.Dangerous && c.Tool.Source == "native"), "known": types.Boolean(known), "desktop_allowed": types.Boolean(c.DesktopAllowed),
		"shell": types.Boolean(slices.Contains(c.Tool.Tags, "shell")), "desktop": types.Boolean(slices.Contains(c.Tool.Tags, "desktop:click")),
		"remote": types.Boolean(c.Channel != callv1.Channel_CHANNEL_CLI && c.Channel != callv1.Channel_CHANNEL_DESKTOP_UI), "arguments": types.NewRecord(record),
		"time": types.NewRecord(types.RecordMap{"hour": types.Long(c.Now.Hour()), "minute": types.Long(c.Now.Minute()), "weekday": types.Long(weekday), "unix": types.Long(c.Now.Unix())}),
		"calls": types.NewRecord(types.RecordMap{"session": types.Long(c.Counts.Session), "day": types.Long(c.Counts.Day), "month": types.Long(c.Counts.Month),
			"since_last_s": types.Long(last)}),
	})
	request := cedar.Request{Principal: principal, Action: action, Resource: resource, Context: context}
	for _, effect := range []cedar.Effect{cedar.Forbid, cedar.Permit} {
		set := cedar.NewPolicySet()
		for i, r := range applies {
			if r.policy.Effect() == effect {
				set.Add(cedar.PolicyID(fmt.Sprintf("%05d", i)), r.policy)
			}
		}
		_, found := cedar.Authorize(set, entities, request)
		of := func(id cedar.PolicyID, bad bool) Rule {
			var i int
			_, _ = fmt.Sscanf(string(id), "%d", &i)
			out := applies[i].Rule
			out.Failed = bad
			return out
		}
		byID := map[cedar.PolicyID]bool{}
		for _, reason := range found.Reasons {
			byID[reason.PolicyID] = false
		}
		for _, failure := range found.Errors {
			byID[failure.PolicyID] = true
		}
		for _, id := range slices.Sorted(mapKeys(byID)) {
			switch {
			case effect == cedar.Forbid:
				forbids = append(forbids, of(id, byID[id]))
			case byID[id]:
				failed = append(failed, of(id, true))
			default:
				permits = append(permits, of(id, false))
			}
		}
	}
	return forbids, permits, failed
}

func mapKeys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// TestAProjectOnlyTightens: whatever a project's file says, nothing becomes looser.
func TestAProjectOnlyTightens(t *testing.T) {
	tightened := 0
	for seed := range seeds(t) {
		r := rand.New(rand.NewPCG(seed, 2))
		sources := randomSources(r)
		before := compiledSet(t, sources...)
		after := compiledSet(t, append(slices.Clone(sources), randomProject(r))...)
		for range 6 {
			c := randomCall(t, r)
			a, b := before.Decide(c), after.Decide(c)
			if b.Verdict.freedom() > a.Verdict.freedom() || b.Tier < a.Tier || a.Verdict == Deny && a.RetryAfter == 0 && b.RetryAfter > 0 {
				t.Fatalf("seed %d: %+v became %+v\ncall %+v", seed, a, b, c)
			}
			if b.Verdict != a.Verdict {
				tightened++
			}
		}
	}
	if tightened == 0 {
		t.Error("no project tightened anything")
	}
}

// TestAForbidWins: what a rule forbids stays denied, whatever is added.
func TestAForbidWins(t *testing.T) {
	for seed := range seeds(t) {
		r := rand.New(rand.NewPCG(seed, 3))
		c := randomCall(t, r)
		name := ActionName(c.Tool)
		forbid := system("policy/forbid.cedar", fmt.Sprintf(`forbid (principal in Client::%q, action == Action::"call:%s", resource);`, c.Client, name))
		s := compiledSet(t, append(randomSources(r), forbid, system("policy/all.cedar", allowAll))...)
		if d := s.Decide(c); d.Verdict != Deny {
			t.Fatalf("seed %d: %+v", seed, d)
		}
		if v, ok := s.Always(c); !ok || v != Deny {
			t.Fatalf("seed %d: always %v, %t", seed, v, ok)
		}
	}
}

// TestUnknownToolsNeverRun: no rule lets a tool run that no human named, dangerous mode neither.
func TestUnknownToolsNeverRun(t *testing.T) {
	for seed := range seeds(t) {
		r := rand.New(rand.NewPCG(seed, 4))
		sources := slices.DeleteFunc(randomSources(r), func(s Source) bool { return strings.HasSuffix(s.Name, ".yaml") })
		s := compiledSet(t, append(sources, system("policy/all.cedar", allowAll), randomProject(r))...)
		c := randomCall(t, r)
		c.Tool, c.Dangerous, c.KeyBound, c.Ceiling = downstream(pick(r, read, write)), true, true, destructive
		if d := s.Decide(c); d.Verdict == Run {
			t.Fatalf("seed %d: %+v", seed, d)
		}
	}
}

// TestAlwaysAgreesWithDecide over arguments, times and counts by chance.
func TestAlwaysAgreesWithDecide(t *testing.T) {
	sure := map[Verdict]int{}
	for seed := range seeds(t) {
		r := rand.New(rand.NewPCG(seed, 5))
		sources := append(randomSources(r), randomProject(r))
		s := compiledSet(t, sources...)
		for range 4 {
			c := randomCall(t, r)
			v, ok := s.Always(c)
			if !ok {
				continue
			}
			sure[v]++
			for range 12 {
				vary(&c, r)
				if d := s.Decide(c); d.Verdict != v {
					t.Fatalf("seed %d: always %v, and %+v\ncall %+v\nrules %s", seed, v, d, c, dump(sources))
				}
			}
		}
	}
	if len(sure) != 3 {
		t.Errorf("the sure verdicts were %v", sure)
	}
}
