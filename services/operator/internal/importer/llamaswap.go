package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
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
	data, err := boundedyaml.ReadFile(file)
	if err != nil {
		return err
	}
	root, err := boundedyaml.Decode(filepath.Base(file), data)
	if err != nil {
		return err
	}
	base, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return fmt.Errorf("the folder of %s cannot be told", clean.Visible(file))
	}
	return llamaSwap(ctx, p, root, base, given)
}

func llamaSwap(ctx context.Context, p *proposal.Proposal, root *boundedyaml.Value, base string, given Given) error {
	models := root.Get("models")
	if len(models.Keys) == 0 {
		return errors.New("the file has no models: it is no configuration of llama-swap")
	}
	l := &swap{builder: newBuilder(p, given), root: root, base: base, modes: map[string]bool{}, pinned: map[string]bool{}, aliases: map[string]string{}, spent: new(int), combined: new(int)}
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
	// base is the file's folder.
	base   string
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
		if item := v.Get(key); item.Kind == boundedyaml.Text || item.Kind == boundedyaml.Scalar {
			out[key] = item.Str()
		}
	}
	return out
}

// topQuiet are the file's keys that are read, or that say nothing about what runs.
var topQuiet = strings.Fields("models macros startPort healthCheckTimeout globalTTL unloadTimeout groups matrix routing hooks logLevel logTimeFormat " +
	"logToStdout metricsMaxInMemory captureBuffer sendLoadingState includeAliasesInList store ui performance upstream " +
	"logRequests healthCheckInterval")

func (l *swap) top() {
	for _, key := range l.root.Keys {
		shown := clean.Line(clean.Visible(key), 64)
		switch {
		case key == "apiKeys":
			l.LeaveOut("apiKeys", "secrets are never copied; Durward's clients have keys of their own: durward client add")
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
	for l.PortKnown(l.next) {
		l.next++
	}
	l.ports[key] = l.next
	l.next++
}

// maxMacros bounds how many macros one model is searched for.
const maxMacros = 256

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

// windows is a path with a drive.
var windows = pattern.New(`(^|[\s"'=])([A-Z]:[\\/]|[a-z]:\\)`)

var checkPath = pattern.New(`\A/[A-Za-z0-9._~/\-]{0,127}\z`)

func (l *swap) model(key string, v *boundedyaml.Value) {
	if !l.service(key, v) {
		delete(l.origins, key)
	}
}

// swapBounds are how long a model's lists may be.
var swapBounds = []boundedyaml.Bound{boundedyaml.Most(maxVariables, "env"), boundedyaml.Most(maxMacros, "macros"), boundedyaml.Most(maxList, "aliases")}

func (l *swap) service(key string, v *boundedyaml.Value) bool {
	shown := clean.Line(clean.Visible(key), 100)
	s := &program{what: "model " + shown, from: "From the model " + shown + ".", modelName: key, base: l.base}
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
	if at := v.Get("proxy").Str(); !v.Get("cmd").IsSet() && at != "" {
		l.LeaveOut(s.what, "it has no cmd: it runs elsewhere, at %s", clean.Line(clean.Visible(at), 100))
		return false
	}
	// What stands in a comment is no macro's.
	command, err := m.expand(shellwords.WithoutComments(v.Get("cmd").Str()))
	if err != nil {
		l.LeaveOut(s.what, "%s", err.Error())
		return false
	}
	if windows().MatchString(command) {
		l.LeaveOut(s.what, "it names paths of Windows: a service runs on Linux; write the paths that its program and model have there")
		return false
	}
	if s.Argv, err = split(command); err != nil {
		l.LeaveOut(s.what, "its cmd was not understood: %s", err.Error())
		return false
	}
	if len(s.Argv) == 0 {
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
	s.Port = l.ports[key]
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
	case u.Port() == "":
		s.Port = 80
	default:
		n, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil || n == 0 {
			l.LeaveOut(s.what, "its proxy names no port")
			return false
		}
		s.Port = uint32(n)
	}
	if !local(u.Hostname()) {
		s.elsewhere = u.Hostname()
	}
	if strings.Trim(u.Path, "/") != "" {
		s.note("Its proxy has a path; write it as base_url.")
	}
	return true
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
		id := l.origins[key]
		id = cmp.Or(id, clean.Line(clean.Visible(key), 64))
		if !slices.Contains(members, id) {
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
