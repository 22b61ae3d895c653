package importer

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/operator/internal/importer/shellwords"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/secret"
)

// LlamaSwap reads llama-swap's config.yaml. What single models get wrong is left out by name; an error is for the file as a whole.
// Source: config-schema.json and docs/config.example.yaml of mostlygeek/llama-swap.
func LlamaSwap(ctx context.Context, p *proposal.Proposal, file string, given Given) error {
	data, err := boundedyaml.ReadFile(file)
	if err != nil {
		return err
	}
	root, err := boundedyaml.Decode(filepath.Base(file), data)
	if err != nil {
		return err
	}
	return llamaSwap(ctx, p, root, given)
}

func llamaSwap(ctx context.Context, p *proposal.Proposal, root *boundedyaml.Value, given Given) error {
	models := root.Get("models")
	if len(models.Keys) == 0 {
		return errors.New("the file has no models: it is no configuration of llama-swap")
	}
	l := &swap{builder: newBuilder(p, given), root: root, modes: map[string]bool{}, pinned: map[string]bool{}, spent: new(int), combined: new(int)}
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
		if l.assign(key, models.Get(key)); l.sought > maxExpansion {
			return errMacroTotal
		}
	}
	for _, key := range l.keys {
		l.model(key, models.Get(key))
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
	root   *boundedyaml.Value
	global map[string]string
	// keys are the models that are read.
	keys []string
	// spent is what macros expanded to, sought what was looked through for ${PORT}, combined what the matrix has cost.
	spent, combined *int
	sought          int
	next            uint32
	// ports are those that were given for ${PORT}, by model.
	ports map[string]uint32
	// groups and matrix are the routers' settings, wherever they stand.
	groups, matrix *boundedyaml.Value
	pinned         map[string]bool
	modes          map[string]bool
	// covered are the models that are in a mode.
	covered map[string]bool
	sets    [][]string
}

// scalars are a mapping's texts, numbers and bools.
func scalars(v *boundedyaml.Value) map[string]string {
	out := map[string]string{}
	for _, key := range v.Keys {
		if item := v.Get(key); item.Kind == boundedyaml.Text || item.Kind == boundedyaml.Scalar {
			out[key] = item.Str()
		}
	}
	return out
}

// topQuiet are the file's keys that are read, or that say nothing about what runs.
var topQuiet = strings.Fields("models macros startPort healthCheckTimeout globalTTL unloadTimeout groups matrix routing hooks logLevel logTimeFormat " +
	"logToStdout metricsMaxInMemory captureBuffer sendLoadingState includeAliasesInList store ui performance upstream")

func (l *swap) top() {
	for _, key := range l.root.Keys {
		shown := clean.Line(clean.Visible(key), 64)
		switch {
		case key == "apiKeys":
			l.LeaveOut("apiKeys", "secrets are never copied; Durward's clients have keys of their own: durward access")
		case key == "peers":
			for _, peer := range l.root.Get("peers").Keys {
				l.LeaveOut("peer "+clean.Line(clean.Visible(peer), 64), "its models run elsewhere, and its key is never copied")
			}
		case key == "profiles" || key == "selectors" || key == "tailcat":
			l.LeaveOut(key, "which model a request reaches is not the catalogue's")
		case !slices.Contains(topQuiet, key) && !strings.HasPrefix(key, "x-"):
			l.LeaveOut(shown, "this key is not known")
		}
	}
}

// router finds the groups and the matrix, in their places of today and of before.
func (l *swap) router() {
	settings := l.root.At("routing", "router", "settings")
	use := l.root.At("routing", "router", "use").Str()
	l.groups, l.matrix = settings.Get("groups"), settings.Get("matrix")
	if !l.groups.IsSet() {
		l.groups = l.root.Get("groups")
	}
	if !l.matrix.IsSet() {
		l.matrix = l.root.Get("matrix")
	}
	switch {
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

// assign gives a model its ${PORT}, if it uses one.
func (l *swap) assign(key string, v *boundedyaml.Value) {
	if l.ports == nil {
		l.ports = map[string]uint32{}
	}
	uses := func(text string) bool { return l.mentions(text, v, "PORT", map[string]bool{}) }
	if !uses(v.Get("cmd").Str()) && !uses(v.Get("proxy").Str()) {
		return
	}
	for l.next <= 65535 && !l.PortFree(l.next) {
		l.next++
	}
	l.ports[key] = l.next
	l.next++
}

// mentions reports whether a text uses a macro, itself or by others. Each of the others is looked at once.
func (l *swap) mentions(text string, v *boundedyaml.Value, name string, seen map[string]bool) bool {
	if l.sought += len(text) + 64; l.sought > maxExpansion {
		return false // and the import ends
	}
	for {
		_, end, found := nextMacro(text)
		if end < 0 {
			return false
		}
		text = text[end:]
		if found == name {
			return true
		}
		if seen[found] || len(seen) > maxMacros {
			continue
		}
		seen[found] = true
		inner := v.Get("macros").Get(found)
		if !inner.IsSet() {
			inner = l.root.Get("macros").Get(found)
		}
		if l.mentions(inner.Str(), v, name, seen) {
			return true
		}
	}
}

// modelQuiet are a model's keys that are read, or that say nothing about what runs.
var modelQuiet = strings.Fields("cmd cmdStop proxy checkEndpoint ttl unloadTimeout env aliases healthCheckTimeout concurrencyLimit macros name description " +
	"useModelName unlisted metadata capabilities sendLoadingState timeouts compat")

var checkPath = regexp.MustCompile(`\A/[A-Za-z0-9._~/\-]{0,127}\z`)

func (l *swap) model(key string, v *boundedyaml.Value) {
	if !l.service(key, v) {
		delete(l.origins, key)
	}
}

// swapBounds are how long a model's lists may be.
var swapBounds = []boundedyaml.Bound{boundedyaml.Most(maxVariables, "env"), boundedyaml.Most(maxMacros, "macros"), boundedyaml.Most(maxList, "aliases")}

func (l *swap) service(key string, v *boundedyaml.Value) bool {
	shown := clean.Line(clean.Visible(key), 100)
	s := &program{what: "model " + shown, from: "From the model " + shown + ".", modelName: key}
	id := l.origins[key]
	if id == "" {
		l.LeaveOut(s.what, "no id can be made of its name")
		return false
	}
	if long := v.Over(swapBounds); long != "" {
		l.LeaveOut(s.what, "%s", long)
		return false
	}
	s.note("From the model %s.", shown)
	port := strconv.FormatUint(uint64(l.ports[key]), 10)
	m := &macros{
		layers: []map[string]string{{"PORT": port, "MODEL_ID": key}, scalars(v.Get("macros")), l.global},
		given:  l.given.Variables, spent: l.spent,
	}
	if l.ports[key] == 0 {
		delete(m.layers[0], "PORT")
	}
	// What stands in a comment is no macro's.
	command, err := m.expand(shellwords.WithoutComments(v.Get("cmd").Str()))
	if err != nil {
		l.LeaveOut(s.what, "%s", err.Error())
		return false
	}
	if s.argv, err = shellwords.Split(command); err != nil {
		l.LeaveOut(s.what, "its cmd was not understood: %s", err.Error())
		return false
	}
	if len(s.argv) == 0 {
		l.LeaveOut(s.what, "it has no cmd")
		return false
	}
	for _, one := range v.Get("env").Pairs() {
		if !secret.Name(one.Key) {
			if one.Value, err = m.expand(one.Value); err != nil {
				l.LeaveOut(s.what, "%s", err.Error())
				return false
			}
		}
		s.environment = append(s.environment, one)
	}
	if !l.proxy(s, m, key, v) {
		return false
	}
	l.settings(s, m, key, v)
	return l.program(id, s)
}

// proxy takes the port out of the address where llama-swap expects the model.
func (l *swap) proxy(s *program, m *macros, key string, v *boundedyaml.Value) bool {
	s.port = l.ports[key]
	text, err := m.expand(v.Get("proxy").Str())
	if err != nil {
		l.LeaveOut(s.what, "%s", err.Error())
		return false
	}
	if text == "" {
		return true
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" || u.Host == "":
		l.LeaveOut(s.what, "its proxy is not an address like http://127.0.0.1:8080")
		return false
	case !local(u.Hostname()):
		l.LeaveOut(s.what, "its proxy is another host, which no executor runs anything on")
		return false
	case u.Port() == "":
		s.port = 80
	default:
		n, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil || n == 0 {
			l.LeaveOut(s.what, "its proxy names no port")
			return false
		}
		s.port = uint32(n)
	}
	if strings.Trim(u.Path, "/") != "" {
		s.note("Its proxy has a path; write it as base_url.")
	}
	return true
}

func (l *swap) settings(s *program, m *macros, key string, v *boundedyaml.Value) {
	s.name, s.description = v.Get("name").Str(), v.Get("description").Str()
	s.served = v.Get("useModelName").Str()
	s.pin = l.pinned[key]
	global := func(name string) uint32 {
		if n, ok := v.Get(name).Number(); ok && n > 0 {
			return n
		}
		n, _ := l.root.Get(name).Number()
		return n
	}
	s.stopS = global("unloadTimeout")
	if s.startS = global("healthCheckTimeout"); s.startS == 0 {
		s.startS = 120
	}
	s.startS = max(s.startS, 15)
	if n, ok := v.Get("ttl").Number(); ok {
		s.idleS = n
	} else {
		s.idleS, _ = l.root.Get("globalTTL").Number()
	}
	if path, err := m.expand(v.Get("checkEndpoint").Str()); err == nil && path != "" {
		switch {
		case path == "none":
			s.note("checkEndpoint is none; a service that has a port is asked for its health, at /health unless health.path says otherwise.")
		case checkPath.MatchString(path):
			s.health = path
		default:
			s.note("checkEndpoint is no plain path and was left out.")
		}
	}
	if stop := v.Get("cmdStop").Str(); stop != "" {
		s.note("cmdStop was left out: programs get SIGTERM, containers are stopped.")
	}
	if names := v.Get("aliases").Strings(); len(names) > 0 {
		s.note("It also answers to %s in llama-swap.", clean.Line(clean.Visible(strings.Join(names, ", ")), 200))
	}
	if n, ok := v.Get("concurrencyLimit").Number(); ok && n > 0 {
		s.note("llama-swap lets %d requests through at a time; a catalogue has no such limit.", n)
	}
	for _, key := range v.Keys {
		if !slices.Contains(modelQuiet, key) {
			s.note("%s was left out.", clean.Line(clean.Visible(key), 64))
		}
	}
}

// mode puts a candidate mode of models, unless another one has the same.
func (l *swap) mode(name, description string, models []string, why string) {
	var members []string
	for _, key := range models {
		if id := l.origins[key]; id != "" && !slices.Contains(members, id) {
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
	if id == "" {
		return
	}
	if !l.Candidate(id, modeFields("", description), members, why) {
		return
	}
	l.sets = append(l.sets, same)
	if l.covered == nil {
		l.covered = map[string]bool{}
	}
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

// maxMacros bounds how many macros one model is searched for.
const maxMacros = 256

// Bounds of the matrix.
const (
	maxTokens       = 2048
	maxCombinations = 64
	maxSetDepth     = 16
	// maxCombined bounds what all sets of a file cost together: the bytes of their texts, and the models that are put together.
	maxCombined = 1 << 20
)

var errMatrix = errors.New("the sets of the matrix stand for too much together")

// matrixModes make modes of what the sets of the matrix stand for.
func (l *swap) matrixModes() {
	sets := l.matrix.Get("sets")
	if costs := scalars(l.matrix.Get("evict_costs")); len(costs) > 0 {
		var words []string
		for _, key := range l.matrix.Get("evict_costs").Keys[:min(len(costs), maxList)] {
			words = append(words, clean.Line(clean.Visible(key), 64)+" "+clean.Line(clean.Visible(costs[key]), 16))
		}
		l.Note("evict_costs (%s) have no place in a catalogue: what a stop costs is measured, and pin or min_residence_s keeps a service.", clean.Line(strings.Join(words, ", "), 250))
	}
	vars := scalars(l.matrix.Get("vars"))
	for _, name := range sets.Keys {
		shown := clean.Line(clean.Visible(name), 64)
		e := &expression{sets: sets, vars: vars, models: l.root.Get("models"), combined: l.combined}
		all, err := e.set(name, nil)
		if err != nil {
			l.LeaveOut("matrix set "+shown, "%s", err.Error())
			continue
		}
		for i, members := range all {
			id := name
			if len(all) > 1 {
				id = fmt.Sprintf("%s-%d", name, i+1)
			}
			l.mode(id, "", members, "Of the matrix set "+shown+".")
		}
	}
}

// expression expands the sets' language: a & b, a | b, (…), +set.
type expression struct {
	sets   *boundedyaml.Value
	vars   map[string]string
	models *boundedyaml.Value
	tokens []string
	spent  int
	// combined is shared by all sets of a file.
	combined *int
}

func (e *expression) cost(n int) error {
	if *e.combined += n; *e.combined > maxCombined {
		return errMatrix
	}
	return nil
}

// set returns every combination that a set stands for.
func (e *expression) set(name string, path []string) ([][]string, error) {
	shown := clean.Line(clean.Visible(name), 64)
	switch {
	case slices.Contains(path, name):
		return nil, fmt.Errorf("its sets go in a circle at %s", shown)
	case len(path) >= maxSetDepth:
		return nil, fmt.Errorf("its sets nest deeper than %d", maxSetDepth)
	case e.sets.Get(name).Kind != boundedyaml.Text && e.sets.Get(name).Kind != boundedyaml.Scalar:
		return nil, fmt.Errorf("there is no set %s", shown)
	}
	if err := e.cost(len(e.sets.Get(name).Str()) + 16); err != nil {
		return nil, err
	}
	outer := e.tokens
	e.tokens = tokens(e.sets.Get(name).Str())
	if e.spent += len(e.tokens); e.spent > maxTokens {
		return nil, fmt.Errorf("it is longer than %d words", maxTokens)
	}
	out, err := e.any(append(slices.Clip(path), name), 0)
	if err == nil && len(e.tokens) > 0 {
		err = fmt.Errorf("%s is not expected there", clean.Line(clean.Visible(e.tokens[0]), 64))
	}
	e.tokens = outer
	return out, err
}

// tokens parts a text at spaces and operators.
func tokens(text string) []string {
	for _, op := range []string{"&", "|", "(", ")"} {
		text = strings.ReplaceAll(text, op, " "+op+" ")
	}
	return strings.Fields(text)
}

func (e *expression) take(token string) bool {
	if len(e.tokens) == 0 || e.tokens[0] != token {
		return false
	}
	e.tokens = e.tokens[1:]
	return true
}

func (e *expression) any(path []string, depth int) ([][]string, error) {
	out, err := e.all(path, depth)
	for err == nil && e.take("|") {
		var more [][]string
		if more, err = e.all(path, depth); err == nil {
			out, err = combinations(append(out, more...))
		}
	}
	return out, err
}

func (e *expression) all(path []string, depth int) ([][]string, error) {
	out, err := e.one(path, depth)
	for err == nil && e.take("&") {
		var right [][]string
		if right, err = e.one(path, depth); err != nil {
			break
		}
		if len(out)*len(right) > maxCombinations {
			return combinations(make([][]string, maxCombinations+1))
		}
		var product [][]string
		for _, a := range out {
			for _, b := range right {
				if err := e.cost(len(a) + len(b) + len(a)*len(b)/8); err != nil {
					return nil, err
				}
				if product = append(product, union(a, b)); len(product[len(product)-1]) > proposal.MaxServices {
					return nil, fmt.Errorf("it names more than %d models together", proposal.MaxServices)
				}
			}
		}
		out = product
	}
	return out, err
}

func combinations(sets [][]string) ([][]string, error) {
	if len(sets) > maxCombinations {
		return nil, fmt.Errorf("it stands for more than %d combinations", maxCombinations)
	}
	return sets, nil
}

func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, id := range b {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

func (e *expression) one(path []string, depth int) ([][]string, error) {
	if depth > maxSetDepth {
		return nil, fmt.Errorf("its brackets nest deeper than %d", maxSetDepth)
	}
	if e.take("(") {
		out, err := e.any(path, depth+1)
		if err == nil && !e.take(")") {
			err = errors.New("a bracket is never closed")
		}
		return out, err
	}
	if len(e.tokens) == 0 {
		return nil, errors.New("it ends where a model is expected")
	}
	name := e.tokens[0]
	e.tokens = e.tokens[1:]
	if set, ok := strings.CutPrefix(name, "+"); ok {
		return e.set(set, path)
	}
	if model, ok := e.vars[name]; ok {
		name = model
	}
	if !e.models.Get(name).IsSet() {
		return nil, fmt.Errorf("it names a model that there is not: %s", clean.Line(clean.Visible(name), 64))
	}
	return [][]string{{name}}, nil
}
