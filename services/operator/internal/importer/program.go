package importer

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/secret"
)

// builder makes services for a proposal.
type builder struct {
	*proposal.Proposal
	given Given
	// ids are those that are taken by what was built; origins tells which service was made of which name.
	ids     map[string]bool
	origins map[string]string
	// read are the bytes of the texts that were read, tried the entries.
	read, tried int
}

func newBuilder(p *proposal.Proposal, given Given) *builder {
	if given.ContainerUser == "" {
		given.ContainerUser = "1000:1000"
	}
	return &builder{Proposal: p, given: given, ids: map[string]bool{}, origins: map[string]string{}}
}

// engineTraits is what is known of an engine beyond its command line.
type engineTraits struct {
	port   uint32
	health string
	// open: it listens everywhere unless it is told otherwise. args: it takes --host and --port.
	open, args bool
}

var engines = map[string]engineTraits{
	enginecmd.LlamaCPP: {port: 8080, args: true},
	enginecmd.VLLM:     {port: 8000, args: true, open: true},
	enginecmd.SGLang:   {port: 30000, args: true},
	enginecmd.Ollama:   {port: 11434, health: "/api/version"},
}

// program is a command line that somebody's tool runs, and what that tool says of it.
type program struct {
	// what it is called where it is left out; from says where it stands.
	what, from        string
	name, description string
	argv              []string
	environment       []boundedyaml.Pair
	port              uint32
	health            string
	served            string
	idleS             uint32
	startS, stopS     uint32
	pin               bool
	notes             []string
	modelName         string
	// vram is what it declares, in MiB.
	vram uint32
}

func (s *program) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); len(s.notes) < proposal.MaxNotes && !slices.Contains(s.notes, text) {
		s.notes = append(s.notes, text)
	}
}

// program puts a service that runs a program of the host, or a container where the program is `docker run`.
func (b *builder) program(id string, s *program) bool {
	argv, set, ok := enginecmd.Env(s.argv)
	if !ok {
		b.LeaveOut(s.what, "its command begins with env, with options that are not understood")
		return false
	}
	for _, key := range slices.Sorted(maps.Keys(set)) {
		s.environment = append(s.environment, boundedyaml.Pair{Key: key, Value: set[key]})
	}
	why := overlong(argv, len(s.environment), 0, 0, 0)
	if indirect := enginecmd.Indirect(argv); why == "" && indirect != "" {
		why = "its command " + indirect + "; name the program and its arguments"
	}
	if why != "" {
		b.LeaveOut(s.what, "%s", why)
		return false
	}
	inner, _, ok := enginecmd.Unwrap(argv)
	if !ok {
		b.LeaveOut(s.what, "the program that starts its command is told something that is not understood")
		return false
	}
	if base := filepath.Base(inner[0]); base == "docker" || base == "podman" {
		run, ok := enginecmd.ReadContainer(inner)
		if !ok {
			b.LeaveOut(s.what, "its command is %s with something else than run, or with options that are not known", base)
			return false
		}
		return b.run(id, s, run)
	}
	argv, named, ok := secret.WithoutArguments(argv)
	if !ok {
		b.LeaveOut(s.what, "an argument of its command looks like a secret, which is not copied")
		return false
	}
	for _, option := range named {
		b.secretNamed(s, option)
	}
	if why := unusable(argv...); why != "" {
		b.LeaveOut(s.what, "its command %s", why)
		return false
	}
	return b.process(id, s, argv)
}

func (b *builder) process(id string, s *program, argv []string) bool {
	environment, ok := b.environment(s, plainKey)
	if !ok {
		return false
	}
	engine, known := enginecmd.Read(argv, environment)
	traits := engines[engine.Engine]
	port, argv, ok := b.listen(s, argv, environment, engine, known)
	if !ok {
		return false
	}
	model := b.model(s, engine, known)
	fields := s.head(catalog.DriverProcess)
	fields = append(fields, yaml.MapItem{Key: "argv", Value: anyOf(argv)})
	fields = appendEnvironment(fields, environment)
	if b.given.RunAs != "" {
		fields = append(fields, yaml.MapItem{Key: "run_as", Value: b.given.RunAs})
	}
	fields = append(fields, yaml.MapItem{Key: "port", Value: port})
	health := s.health
	if health == "" {
		health = traits.health
	}
	fields = appendHealth(fields, health)
	fields = b.appendGPUs(fields, s, engine, known, environment["CUDA_VISIBLE_DEVICES"])
	fields = s.tail(fields)
	if !known {
		s.note("The program is no engine that is known here, so its memory cannot be estimated: measure it, and write vram_mib.")
	}
	return b.keeping(port, b.Service(id, fields, model, nil, s.notes...))
}

// head are an entry's first keys.
func (s *program) head(driver string) proposal.Fields {
	var fields proposal.Fields
	for _, one := range []struct {
		key, text string
		most      int
	}{{"name", s.name, 64}, {"description", s.description, 300}} {
		// The whole text is looked at: what is cut short has not the shape of what it was.
		switch text := clean.Line(one.text, one.most); {
		case secret.Suspect(one.text) || secret.Suspect(text):
			s.note("Its %s was left out: it looks like a secret.", one.key)
		case text != "":
			fields = append(fields, yaml.MapItem{Key: one.key, Value: text})
		}
	}
	return append(fields, yaml.MapItem{Key: "driver", Value: driver})
}

// tail are an entry's last keys.
func (s *program) tail(fields proposal.Fields) proposal.Fields {
	if s.pin {
		fields = append(fields, yaml.MapItem{Key: "pin", Value: true})
		if s.idleS > 0 {
			s.note("It is to stop after %d s of idleness and never to be stopped: what is pinned does not go idle.", s.idleS)
			s.idleS = 0
		}
	}
	if s.idleS > 0 {
		fields = append(fields, yaml.MapItem{Key: "idle", Value: proposal.Fields{{Key: "action", Value: "stop"}, {Key: "after_s", Value: s.idleS}}})
	}
	if s.startS > 0 {
		fields = append(fields, yaml.MapItem{Key: "start_timeout_s", Value: min(s.startS, 3600)})
	}
	if s.stopS > 0 {
		fields = append(fields, yaml.MapItem{Key: "stop_timeout_s", Value: min(s.stopS, 600)})
	}
	return fields
}

func appendHealth(fields proposal.Fields, path string) proposal.Fields {
	if path == "" || path == "/health" {
		return fields
	}
	return append(fields, yaml.MapItem{Key: "health", Value: proposal.Fields{{Key: "path", Value: path}}})
}

func appendEnvironment(fields proposal.Fields, environment map[string]string) proposal.Fields {
	if len(environment) == 0 {
		return fields
	}
	var list proposal.Fields
	for _, key := range slices.Sorted(maps.Keys(environment)) {
		list = append(list, yaml.MapItem{Key: key, Value: environment[key]})
	}
	return append(fields, yaml.MapItem{Key: "environment", Value: list})
}

// environment takes over variables whose keys are plain; those that are not, and secrets, are named.
func (b *builder) environment(s *program, plain func(key string) bool) (map[string]string, bool) {
	out := map[string]string{}
	for _, p := range s.environment {
		name := clean.Visible(p.Key)
		switch {
		case p.Bare:
			s.note("The variable %s has no value in the file; the environment is not read.", name)
		case secret.Name(p.Key) || secret.Suspect(p.Value):
			b.secretNamed(s, name)
		case !plain(p.Key):
			s.note("The variable %s was left out, since its value could be a secret: write it under environment where it is none.", clean.Line(name, 64))
		case len(missing(p.Value)) > 0:
			s.note("%s was left out: it %s.", name, unusable(p.Value))
		case !proposal.Shown(p.Key) || !proposal.Shown(p.Value):
			b.LeaveOut(s.what, "its environment holds characters that cannot be shown")
			return nil, false
		default:
			out[p.Key] = p.Value
		}
	}
	return out, true
}

// secretNamed names a variable or an option that holds a secret, which is not taken over.
func (b *builder) secretNamed(s *program, name string) {
	name = clean.Line(secret.Redact(name), 64)
	s.note("%s was left out: it holds a secret (credentials: [%s] is how an entry would name it).", name, credentialName(name))
	b.Note("Secrets were left out: what is in a catalogue is shown to approvers and recorded. Let each program read its own from a file that its user " +
		"alone can read; services cannot be given credentials by Durward yet.")
}

// anyOf is a list that is laid out over lines where it is long.
func anyOf(words []string) []any {
	out := make([]any, len(words))
	for i, w := range words {
		out[i] = w
	}
	return out
}

var notCredential = regexp.MustCompile(`[^a-z0-9_.\-]+`)

func credentialName(key string) string {
	name := strings.Trim(notCredential.ReplaceAllString(strings.ToLower(key), "_"), "_.-")
	return name[:min(len(name), 64)]
}

// listen settles on a port, and makes engines listen on this host alone.
func (b *builder) listen(s *program, argv []string, environment map[string]string, engine enginecmd.Command, known bool) (uint32, []string, bool) {
	traits := engines[engine.Engine]
	port := s.port
	if port == 0 {
		port = engine.Port
	}
	if port == 0 {
		port = traits.port
	}
	switch {
	case port == 0:
		b.LeaveOut(s.what, "nothing says at which port it listens")
		return 0, nil, false
	case !b.PortFree(port) && (!known || !traits.args):
		b.LeaveOut(s.what, "its port %d is another service's already, and how to give it another one is not known", port)
		return 0, nil, false
	}
	free, ok := b.Port(port, 20000)
	if !ok {
		b.LeaveOut(s.what, "no port is free")
		return 0, nil, false
	}
	if free != port {
		s.note("Its port was %d, which another service has: in a catalogue each has its own.", port)
	}
	if !known || !traits.args {
		return free, argv, true
	}
	if engine.Port != free {
		if delete(environment, "LLAMA_ARG_PORT"); engine.Port != 0 || traits.port != free {
			argv = setOption(argv, "--port", strconv.FormatUint(uint64(free), 10))
		}
	}
	switch {
	case engine.Host == "" && traits.open:
		argv = setOption(argv, "--host", "127.0.0.1")
		s.note("--host 127.0.0.1 was added: it would listen on every address.")
	case engine.Host != "" && !local(engine.Host):
		delete(environment, "LLAMA_ARG_HOST")
		argv = setOption(argv, "--host", "127.0.0.1")
		s.note("It listened on %s; a service listens on 127.0.0.1 alone.", clean.Visible(engine.Host))
	}
	return free, argv, true
}

func local(host string) bool {
	if host == "localhost" || strings.HasPrefix(host, "/") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.Unmap().IsLoopback()
}

// setOption sets an option wherever it stands, or adds it.
func setOption(argv []string, name, value string) []string {
	argv = slices.Clone(argv)
	found := false
	for i := 1; i < len(argv); i++ {
		switch {
		case argv[i] == name && i+1 < len(argv):
			argv[i+1], found = value, true
			i++
		case strings.HasPrefix(argv[i], name+"="):
			argv[i], found = name+"="+value, true
		}
	}
	if found {
		return argv
	}
	return append(argv, name, value)
}

var repository = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9_.\-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.\-]{0,95}(:[A-Za-z0-9_.\-]{1,32})?\z`)

// model puts the model that an engine was told to serve and returns its id; "" where nothing is known of it.
func (b *builder) model(s *program, engine enginecmd.Command, known bool) string {
	if !known || engine.Model == "" {
		if known && engine.Router {
			s.note("llama-server without a model loads models as they are asked for; sleep: llama-router lets it sleep once vram_mib is written.")
		}
		return ""
	}
	var fields proposal.Fields
	id, served := s.modelName, s.served
	if served == "" {
		served = engine.ServedName
	}
	if served == "" && (engine.Engine == enginecmd.VLLM || engine.Engine == enginecmd.SGLang) {
		if served = engine.Model; filepath.IsAbs(served) { // they answer to no other name
			s.note("Requests name its model by its path, which agents see: --served-model-name gives it another name.")
		}
	}
	switch {
	case filepath.IsAbs(engine.Model) && filepath.Clean(engine.Model) == engine.Model && proposal.Shown(engine.Model):
		fields = append(fields, yaml.MapItem{Key: "file", Value: engine.Model})
		if id == "" {
			id = strings.TrimSuffix(filepath.Base(engine.Model), ".gguf")
		}
	case repository.MatchString(engine.Model) && !strings.HasSuffix(engine.Model, ".gguf"):
		fields = append(fields, yaml.MapItem{Key: "source", Value: "hf:" + engine.Model})
		if id == "" {
			id = engine.Model
		}
	default:
		s.note("Its model is named by a path or an address that does not stand by itself; write models[].file for an estimate.")
	}
	if id == "" {
		return ""
	}
	if secret.Suspect(served) {
		s.note("The name that it serves its model by was left out: it looks like a secret.")
		served = ""
	}
	if filepath.IsAbs(served) {
		s.note("Requests name its model by its path, which agents see: --served-model-name gives it another name.")
	}
	if served = clean.Line(served, 128); served != "" && served != proposal.ModelID(id) {
		fields = append(proposal.Fields{{Key: "served_name", Value: served}}, fields...)
	}
	if engine.SleepMode && engine.Engine == enginecmd.VLLM {
		s.note("It was started with a sleep mode: once vram_mib is written, sleep: vllm-l1 lets a switch put it to sleep.")
	}
	return b.Model(id, fields, s.from)
}

// appendGPUs says on which GPUs the service runs, as far as that can be told.
func (b *builder) appendGPUs(fields proposal.Fields, s *program, engine enginecmd.Command, known bool, visible string) proposal.Fields {
	if known && engine.GPULayers != nil && *engine.GPULayers == 0 {
		s.note("It runs without a GPU (-ngl 0).")
		return fields
	}
	indexes := b.visible(s, visible)
	if visible == "" && known {
		all, sure := b.HostGPUs()
		indexes = all
		if engine.Engine != enginecmd.LlamaCPP && engine.Engine != enginecmd.Ollama {
			indexes = all[:min(len(all), max(1, int(min(engine.TensorParallel, 64))))]
		}
		switch {
		case !sure:
			s.note("Nothing says which GPUs it uses: GPU 0 is a guess.")
		case len(all) > 1:
			s.note("Nothing says which GPUs it uses: these are what the engine takes by itself.")
		}
	}
	return b.putGPUs(fields, s, indexes)
}

func (b *builder) putGPUs(fields proposal.Fields, s *program, indexes []uint32) proposal.Fields {
	var kept []uint32
	for _, index := range indexes {
		switch {
		case slices.Contains(kept, index):
		case b.GPU(index):
			kept = append(kept, index)
		default:
			s.note("GPU %d is not in the catalogue, whose GPUs are simulated.", index)
		}
	}
	if len(kept) == 0 {
		return fields
	}
	if s.vram > 0 {
		fields = append(fields, yaml.MapItem{Key: "vram_mib", Value: s.vram})
	}
	return append(fields, yaml.MapItem{Key: "gpus", Value: kept})
}

// visible reads CUDA_VISIBLE_DEVICES.
func (b *builder) visible(s *program, list string) []uint32 {
	var out []uint32
	for one := range strings.SplitSeq(list, ",") {
		one = strings.TrimSpace(one)
		if one == "" {
			continue
		}
		if index, err := strconv.ParseUint(one, 10, 6); err == nil {
			out = append(out, uint32(index))
		} else if index, ok := b.GPUByUUID(one); ok {
			out = append(out, index)
		} else {
			s.note("GPU %s is not one that the catalogue knows by its uuid.", clean.Line(clean.Visible(one), 64))
		}
		if len(out) > 64 {
			break
		}
	}
	return out
}
