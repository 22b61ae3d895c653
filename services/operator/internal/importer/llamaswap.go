package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/operator/internal/importer/shellwords"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/secret"
)

// LlamaSwap reads llama-swap's config.yaml. What single models get wrong is left out by name; an error is for the file as a whole.
// Source: config-schema.json and docs/config.example.yaml of mostlygeek/llama-swap.
func LlamaSwap(ctx context.Context, p *proposal.Proposal, file string, given Given) error {
	root, base, err := boundedyaml.Read(file)
	if err != nil {
		return err
	}
	return llamaSwap(ctx, p, root, base, given)
}

func llamaSwap(ctx context.Context, p *proposal.Proposal, root *boundedyaml.Value, base string, given Given) error {
	models := root.Get("models")
	if len(models.Keys) == 0 {
		return errors.New("the file has no models: it is no configuration of llama-swap")
	}
	l := &swap{builder: newBuilder(p, given), root: root, base: base, modes: map[string]bool{}, pinned: map[string]bool{}, aliases: map[string]string{}, ports: map[string]uint32{}, covered: map[string]bool{}}
	l.global = scalars(root.Get("macros"))
	l.next = 5800
	if n, ok := root.Get("startPort").Number(); ok && n > 0 && n <= 65535 {
		l.next = n
	}
	if len(models.Keys) > maxEntries {
		return fmt.Errorf("the file has more than %d models", maxEntries)
	}
	l.top()
	l.router()
	l.keys = models.Keys
	if len(l.keys) > proposal.MaxServices {
		l.LeaveOut(strconv.Itoa(len(l.keys)-proposal.MaxServices)+" models", "more than %d services: those behind %s", proposal.MaxServices,
			clean.Line(clean.Visible(l.keys[proposal.MaxServices-1]), 100))
		l.keys = l.keys[:proposal.MaxServices]
	}
	for _, key := range l.keys {
		if id := proposal.FreeID(key, l.ids); id != "" {
			l.origins[key] = id
		}
	}
	// llama-swap gives ports in the order of the names.
	for _, key := range slices.Sorted(slices.Values(l.keys)) {
		l.assign(key, models.Get(key))
	}
	for _, key := range l.keys {
		s, err := l.describe(key, models.Get(key))
		if err != nil {
			l.LeaveOut(s.what, "%s", err.Error())
		}
		if err != nil || !l.program(l.origins[key], s) {
			delete(l.origins, key)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	l.groupModes()
	l.matrixModes()
	l.aloneModes()
	l.preload()
	return ctx.Err()
}

type swap struct {
	*builder
	// base is the file's folder.
	base   string
	root   *boundedyaml.Value
	global map[string]string
	// keys are the models that are read.
	keys []string
	// spent is what macros expanded to, sought what they did where ${PORT} was looked for, combined what the matrix has cost.
	spent, sought, combined int
	next                    uint32
	// ports are those that were given for ${PORT}, by model.
	ports map[string]uint32
	// groups and matrix are the routers' settings, wherever they stand.
	groups, matrix *boundedyaml.Value
	pinned         map[string]bool
	// aliases are models by their other names.
	aliases map[string]string
	modes   map[string]bool
	// covered are the models that are in a mode.
	covered map[string]bool
	sets    [][]string
}

// scalars are a mapping's texts, numbers and bools.
func scalars(v *boundedyaml.Value) map[string]string {
	out := map[string]string{}
	for _, key := range v.Keys {
		if item := v.Get(key); item.IsText() {
			out[key] = item.Str()
		}
	}
	return out
}

// topQuiet are the file's keys that are read, or that say nothing about what runs; topOut those that are left out.
var (
	topQuiet = strings.Fields("models macros startPort healthCheckTimeout globalTTL unloadTimeout groups matrix routing hooks logLevel logTimeFormat " +
		"logToStdout metricsMaxInMemory captureBuffer sendLoadingState includeAliasesInList store ui performance upstream " +
		"logRequests healthCheckInterval peers")
	topOut = map[string]string{
		"apiKeys":  "secrets are never copied; Durward's clients have keys of their own: durward client add",
		"profiles": otherRequests, "selectors": otherRequests, "tailcat": otherRequests,
	}
)

const otherRequests = "which model a request reaches is not the catalogue's"

func (l *swap) top() {
	for _, key := range unknown(l.root, topQuiet) {
		l.LeaveOut(key, "%s", cmp.Or(topOut[key], "this key is not known"))
	}
	for _, peer := range l.root.Get("peers").Keys {
		l.LeaveOut("peer "+clean.Line(clean.Visible(peer), 64), "its models run elsewhere, and its key is never copied")
	}
}

// router finds the groups and the matrix, in their places of today and of before.
func (l *swap) router() {
	router := l.root.At("routing", "router")
	place := func(key string) *boundedyaml.Value {
		if v := router.At("settings", key); v.IsSet() {
			return v
		}
		return l.root.Get(key)
	}
	l.groups, l.matrix = place("groups"), place("matrix")
	switch use := router.Get("use").Str(); {
	case use == "matrix":
		l.groups = boundedyaml.Nothing
	case use == "group":
		l.matrix = boundedyaml.Nothing
	case l.groups.IsSet() && l.matrix.IsSet():
		l.LeaveOut("groups", "llama-swap takes groups or a matrix, not both; the matrix is read")
		l.groups = boundedyaml.Nothing
	}
	for i, name := range l.groups.Keys {
		if g := l.groups.Get(name); i < maxGroups && g.Get("persistent").Is() {
			for _, member := range members(g) {
				l.pinned[member] = true
			}
		}
	}
}

// maxGroups bounds how many groups are read.
const maxGroups = 256

// members are a group's models, as many as there can be services.
func members(group *boundedyaml.Value) []string {
	if v := group.Get("members"); len(v.List) > proposal.MaxServices {
		return nil
	}
	return group.Get("members").Strings()
}

// portMark stands for ${PORT} while models that use it are looked for.
const portMark = "\ue002"

// assign gives a model its ${PORT}, if it uses one, itself or by macros.
func (l *swap) assign(key string, v *boundedyaml.Value) {
	if v.Over(swapBounds) != "" {
		return
	}
	m := l.macros(key, v, portMark, &l.sought)
	uses := func(text string) bool {
		out, err := m.expand(text)
		return strings.Contains(out, portMark) || err != nil && strings.Contains(text, "${PORT}")
	}
	if !uses(v.Get("cmd").Str()) && !uses(v.Get("proxy").Str()) {
		return
	}
	for l.PortKnown(l.next) {
		l.next++
	}
	l.ports[key] = l.next
	l.next++
}

// macros are those that a model's texts may use.
func (l *swap) macros(key string, v *boundedyaml.Value, port string, spent *int) *macros {
	own := map[string]string{"MODEL_ID": key}
	if port != "" {
		own["PORT"] = port
	}
	return &macros{layers: []map[string]string{own, scalars(v.Get("macros")), l.global}, given: l.given.Variables, spent: spent}
}

// maxMacros bounds how many macros one model has.
const maxMacros = 256

// modelQuiet are a model's keys that are read, or that say nothing about what runs.
var modelQuiet = strings.Fields("cmd cmdStop proxy checkEndpoint ttl unloadTimeout env aliases healthCheckTimeout concurrencyLimit macros name description " +
	"useModelName unlisted metadata capabilities sendLoadingState timeouts compat")

// windows is a path with a drive.
var windows = pattern.New(`(^|[\s"'=])([A-Z]:[\\/]|[a-z]:\\)`)

var checkPath = pattern.New(`\A/[A-Za-z0-9._~/\-]{0,127}\z`)

// swapBounds are how long a model's lists may be.
var swapBounds = []boundedyaml.Bound{boundedyaml.Most(maxVariables, "env"), boundedyaml.Most(maxMacros, "macros"), boundedyaml.Most(maxList, "aliases")}

// describe says what a model is. An error is why it is left out.
func (l *swap) describe(key string, v *boundedyaml.Value) (*program, error) {
	shown := clean.Line(clean.Visible(key), 100)
	s := &program{what: "model " + shown, from: "From the model " + shown + ".", modelName: key, base: l.base}
	if l.origins[key] == "" {
		return s, errors.New("no id can be made of its name")
	}
	if long := v.Over(swapBounds); long != "" {
		return s, errors.New(long)
	}
	s.note("From the model %s.", shown)
	port := ""
	if s.Port = l.ports[key]; s.Port != 0 {
		port = strconv.FormatUint(uint64(s.Port), 10)
	}
	m := l.macros(key, v, port, &l.spent)
	if at := v.Get("proxy").Str(); !v.Get("cmd").IsSet() && at != "" {
		return s, fmt.Errorf("it has no cmd: it runs elsewhere, at %s", clean.Line(clean.Visible(at), 100))
	}
	// What stands in a comment is no macro's.
	command, err := m.expand(shellwords.WithoutComments(v.Get("cmd").Str()))
	if err != nil {
		return s, err
	}
	if windows().MatchString(command) {
		return s, errors.New("it names paths of Windows: a service runs on Linux; write the paths that its program and model have there")
	}
	if s.Argv, err = split(command); err != nil {
		return s, fmt.Errorf("its cmd was not understood: %w", err)
	}
	if len(s.Argv) == 0 {
		return s, errors.New("it has no cmd")
	}
	for _, one := range v.Get("env").Pairs() {
		if !secret.Name(one.Key) {
			if one.Value, err = m.expand(one.Value); err != nil {
				return s, err
			}
		}
		s.environment = append(s.environment, one)
	}
	if err := s.proxied(m, v.Get("proxy").Str()); err != nil {
		return s, err
	}
	l.settings(s, m, key, v)
	return s, nil
}

// proxied takes the port out of the address where llama-swap expects the model.
func (s *program) proxied(m *macros, address string) error {
	text, err := m.expand(address)
	if err != nil || text == "" {
		return err
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return errors.New("its proxy is not an address like http://127.0.0.1:8080")
	}
	n, err := strconv.ParseUint(cmp.Or(u.Port(), "80"), 10, 16)
	if err != nil || n == 0 {
		return errors.New("its proxy names no port")
	}
	s.Port = uint32(n)
	if !local(u.Hostname()) {
		s.elsewhere = u.Hostname()
	}
	if strings.Trim(u.Path, "/") != "" {
		s.note("Its proxy has a path; write it as base_url.")
	}
	return nil
}

func (l *swap) settings(s *program, m *macros, key string, v *boundedyaml.Value) {
	s.Name, s.Description = v.Get("name").Str(), v.Get("description").Str()
	s.served = v.Get("useModelName").Str()
	s.Pin = l.pinned[key]
	global := func(name string) uint32 {
		if n, ok := v.Get(name).Number(); ok && n > 0 {
			return n
		}
		n, _ := l.root.Get(name).Number()
		return n
	}
	s.StopTimeoutS = global("unloadTimeout")
	s.StartTimeoutS = max(cmp.Or(global("healthCheckTimeout"), 120), 15)
	ttl := v.Get("ttl")
	if _, ok := ttl.Number(); !ok {
		ttl = l.root.Get("globalTTL")
	}
	s.Idle.AfterS, _ = ttl.Number()
	if s.Pin && s.Idle.AfterS > 0 {
		s.note("It is to stop after %d s of idleness and never to be stopped: what is pinned does not go idle.", s.Idle.AfterS)
		s.Idle.AfterS = 0
	}
	if path, err := m.expand(v.Get("checkEndpoint").Str()); err == nil && path != "" {
		switch {
		case path == "none":
			s.note("checkEndpoint is none; a service that has a port is asked for its health, at /health unless health.path says otherwise.")
		case checkPath().MatchString(path):
			s.Health.Path = path
		default:
			s.note("checkEndpoint is no plain path and was left out.")
		}
	}
	if stop := v.Get("cmdStop").Str(); stop != "" {
		s.note("cmdStop was left out: programs get SIGTERM, containers are stopped.")
	}
	names := v.Get("aliases").Strings()
	for _, name := range names {
		l.aliases[name] = key
	}
	if len(names) > 0 {
		s.note("It also answers to %s in llama-swap.", clean.Line(clean.Visible(strings.Join(names, ", ")), 200))
	}
	if n, ok := v.Get("concurrencyLimit").Number(); ok && n > 0 {
		s.note("llama-swap lets %s through at a time; a catalogue has no such limit.", clean.Count(n, "request"))
	}
	for _, key := range unknown(v, modelQuiet) {
		s.note("%s was left out.", key)
	}
}

// mode puts a candidate mode of models, unless another one has the same.
func (l *swap) mode(name, description string, models []string, why string) {
	var members []string
	for _, key := range models {
		if id := cmp.Or(l.origins[key], clean.Line(clean.Visible(key), 64)); !slices.Contains(members, id) {
			members = append(members, id)
		}
	}
	if len(members) == 0 || len(l.sets) >= proposal.MaxModes {
		return
	}
	same := slices.Sorted(slices.Values(members))
	if slices.ContainsFunc(l.sets, func(other []string) bool { return slices.Equal(other, same) }) {
		return
	}
	id := proposal.FreeID(name, l.modes)
	if id == "" || !l.Candidate(id, modeFields("", description), members, why) {
		return
	}
	l.sets = append(l.sets, same)
	for _, key := range models {
		l.covered[key] = true
	}
}

func (l *swap) groupModes() {
	for i, name := range l.groups.Keys {
		g, shown := l.groups.Get(name), clean.Line(clean.Visible(name), 64)
		if i >= maxGroups || len(g.Get("members").List) > proposal.MaxServices {
			l.LeaveOut("group "+shown, "more than %d groups, or more than %d members", maxGroups, proposal.MaxServices)
			continue
		}
		members := members(g)
		if !g.Get("exclusive").IsFalse() || g.Get("persistent").Is() {
			l.Note("The group %s of llama-swap is %s.", shown, groupWords(g))
		} else {
			l.Note("The group %s of llama-swap is %s: combine its mode with others as you need them.", shown, groupWords(g))
		}
		if g.Get("swap").IsFalse() {
			l.mode(name, "All of the group "+shown, members, "Of the group "+shown+", whose members run together.")
			continue
		}
		for _, member := range members {
			one := clean.Line(clean.Visible(member), 64)
			l.mode(member, "", []string{member}, "Of the group "+shown+", of which one member runs at a time: "+one+".")
		}
	}
}

func groupWords(g *boundedyaml.Value) string {
	words := []string{"one at a time", "ends others when it runs", "may be ended by others"}
	if g.Get("swap").IsFalse() {
		words[0] = "all together"
	}
	if g.Get("exclusive").IsFalse() {
		words[1] = "leaves others alone"
	}
	if g.Get("persistent").Is() {
		words[2] = "is never ended by others (pin: true)"
	}
	return strings.Join(words, ", ")
}

// aloneModes make a mode of every model that is in none: llama-swap runs it alone.
func (l *swap) aloneModes() {
	for _, key := range l.keys {
		if !l.covered[key] {
			l.mode(key, "", []string{key}, "llama-swap runs this model alone.")
		}
	}
}

// preload names what llama-swap starts with itself.
func (l *swap) preload() {
	var models, ids []string
	for _, key := range l.root.At("hooks", "on_startup", "preload").Strings() {
		if called := l.aliases[key]; called != "" {
			key = called
		}
		if id := l.origins[key]; id != "" {
			models, ids = append(models, key), append(ids, id)
		} else {
			l.LeaveOut("preload of "+clean.Line(clean.Visible(key), 64), "this model is not in the proposal")
		}
	}
	if len(models) == 0 {
		return
	}
	l.mode("preload", "What llama-swap loads at its start", models, "Of hooks.on_startup.preload.")
	l.Note("llama-swap loads %s at its start. A mode of them as boot: MODE in one file of the catalogue would start it with the host.", strings.Join(ids, ", "))
}
