package importer

import (
	"cmp"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/operator/internal/draft"
	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/operator/internal/importer/shellwords"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/containerpolicy"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/secret"
)

// assignment is what a shell takes for a variable where it stands before a program's name.
var assignment = pattern.New(`^[A-Za-z_][A-Za-z0-9_]*=`)

// program puts a service that runs a program of the host, or a container where the program is `docker run`.
func (b *builder) program(id string, s *program) bool {
	leaveOut := func(format string, args ...any) bool {
		b.LeaveOut(s.what, format, args...)
		return false
	}
	if len(s.Argv) > 0 && assignment().MatchString(s.Argv[0]) {
		s.Argv = append([]string{"env"}, s.Argv...)
	}
	argv, set, ok := enginecmd.Env(s.Argv)
	if !ok {
		return leaveOut("its command begins with env, with options that are not understood")
	}
	for _, key := range slices.Sorted(maps.Keys(set)) {
		s.environment = append(s.environment, boundedyaml.Pair{Key: key, Value: set[key]})
	}
	switch {
	case len(argv) > maxArguments:
		return leaveOut("its command has more than %d arguments", maxArguments)
	case len(s.environment) > maxVariables:
		return leaveOut("its environment has more than %d entries", maxVariables)
	case enginecmd.Indirect(argv) != "":
		return leaveOut("its command %s; name the program and its arguments", enginecmd.Indirect(argv))
	}
	unwrapped, _, ok := enginecmd.Unwrap(argv)
	if !ok {
		return leaveOut("the program that starts its command is told something that is not understood")
	}
	if base := filepath.Base(unwrapped[0]); base == "docker" || base == "podman" {
		run, ok := enginecmd.ReadContainer(unwrapped)
		switch {
		case !ok && len(unwrapped) > 1 && unwrapped[1] == "compose":
			return leaveOut("its command is docker compose: import that file, with durward catalog import compose")
		case !ok:
			return leaveOut("its command is %s with something else than run, or with options that are not known", base)
		case s.elsewhere != "": // its container's name, in a network of Docker's
			s.Port, s.inside = 0, s.Port
		}
		s.Argv = nil // it is the container that runs
		return b.container(id, &box{program: s, v: asCompose(run), plain: true})
	}
	if s.elsewhere != "" {
		return leaveOut("its proxy is another host, %s, which no executor runs anything on", clean.Line(clean.Visible(s.elsewhere), 64))
	}
	argv, named, ok := secret.WithoutArguments(argv)
	if !ok {
		return leaveOut("an argument of its command looks like a secret, which is not copied")
	}
	for _, option := range named {
		b.secretNamed(s, option)
	}
	if why := unusable(argv...); why != "" {
		b.want(argv...)
		return leaveOut("its command %s", why)
	}
	s.Argv = argv
	return b.process(id, s)
}

func (b *builder) process(id string, s *program) bool {
	var ok bool
	if s.Environment, ok = b.judged(s, ""); !ok {
		return false
	}
	engine, known := enginecmd.Read(s.Argv, s.Environment)
	if b.listen(s, engine, known); s.Port == 0 {
		b.LeaveOut(s.what, "nothing says at which port it listens")
		return false
	}
	s.narrow()
	s.Model = b.model(s, engine, known)
	b.find(s)
	s.RunAs = b.given.RunAs
	s.healthOf(engine)
	b.engineGPUs(s, engine, known)
	if !known {
		s.note("The program is no engine that is known here, so its memory cannot be estimated: measure it, and write vram_mib.")
	}
	return b.propose(id, catalog.DriverProcess, s)
}

// find gives a program that is not installed here the path where it may be.
func (b *builder) find(s *program) {
	name := s.Argv[0]
	switch {
	case filepath.IsAbs(name):
	case strings.Contains(name, "/"):
		s.Argv[0] = filepath.Join(s.base, name)
		s.note("Its program is %s as seen from the file's folder, which is a guess.", s.Argv[0])
	case b.given.Find != nil && b.given.Find(name) != nil && proposal.ID(name) != "":
		s.Argv[0] = "/usr/local/bin/" + name
		s.note("%s is not installed here, and %s is a guess: write where it is.", name, s.Argv[0])
	}
}

// healthOf is where an engine answers that has no /health.
func (s *program) healthOf(engine enginecmd.Command) {
	if engine.Engine == enginecmd.Ollama {
		s.Health.Path = cmp.Or(s.Health.Path, "/api/version")
	}
}

var (
	// known are variables of engines and of the libraries that they compute with, and where programs are found.
	knownKey = pattern.New(`\A((LLAMA_ARG|VLLM|OLLAMA|SGLANG|SGL|CUDA|NVIDIA|GGML|HIP|ROCR|HSA|NCCL|OMP|MKL|OPENBLAS|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|XLA)_[A-Z0-9_]{1,48}|PATH)\z`)
	// loader are variables that make programs run other code.
	loader = pattern.New(`\A(LD_|DYLD_|PYTHON(PATH|HOME|STARTUP)|GCONV_PATH|GLIBC_TUNABLES|BASH_ENV)`)
	// setting is what a setting's value looks like, and hardly a secret's: a number or a list of them, a short word, a path, a model or a
	// file by its name, a server by its address.
	setting = pattern.New(`\A([+-]?[0-9][0-9.,:]{0,31}[A-Za-z%]{0,3}|[A-Za-z_\-]{1,12}|[a-z]{1,4}[0-9]{1,2}(_[0-9A-Za-z]{1,3})?|/[A-Za-z0-9._+/\-]{1,255}|` +
		`[A-Za-z0-9][A-Za-z0-9._\-]{0,95}/[A-Za-z0-9][A-Za-z0-9._\-]{0,95}|[A-Za-z0-9][A-Za-z0-9._\-]{0,120}\.(gguf|json|ya?ml|toml|ini|conf|txt|bin|safetensors|jinja|py|sh)|` +
		`https?://[A-Za-z0-9.\-]{1,100}(:[0-9]{1,5})?/?)\z`)
)

// judged takes over variables that neither are secrets nor look like one; others are named. container is the id of a service that is
// a container, "" for a program: what a container may be given is proposed for the catalog to allow.
func (b *builder) judged(s *program, container string) (map[string]string, bool) {
	out := map[string]string{}
	for _, p := range s.environment {
		name := clean.Line(clean.Visible(p.Key), 64)
		plain := containerpolicy.PlainKey(p.Key)
		switch {
		case p.Bare:
			s.note("The variable %s has no value in the file; the environment is not read.", name)
		case secret.Name(p.Key) || secret.Suspect(p.Value):
			b.secretNamed(s, name)
		case loader().MatchString(p.Key) && container != "":
			s.note("The variable %s was left out: it would change which code the program runs.", name)
		case !plain && !knownKey().MatchString(p.Key) && !loader().MatchString(p.Key) && p.Value != "" && len(missing(p.Value)) == 0 && !setting().MatchString(p.Value):
			s.note("The variable %s was left out, since its value could be a secret: write it under environment where it is none.", name)
		case len(missing(p.Value)) > 0:
			s.note("%s was left out: it %s.", name, unusable(p.Value))
		case !proposal.Shown(p.Key) || !proposal.Shown(p.Value):
			b.LeaveOut(s.what, "its environment holds characters that cannot be shown")
			return nil, false
		default:
			out[p.Key] = p.Value
			if container != "" && !plain && !b.KeyAllowed(p.Key) {
				b.Key(p.Key, container)
				b.Note("What stands under containers.environment is beyond what every container may be given; by this file all may.")
			}
		}
	}
	return out, true
}

// secretNamed names a variable or an option that holds a secret, which is not taken over.
func (b *builder) secretNamed(s *program, name string) {
	name = clean.Line(secret.Redact(name), 64)
	s.note("%s was left out: it holds a secret (credentials: [%s] is how an entry would name it).", name, credentialName(name))
	b.Note("Secrets were left out: what is in a catalogue is shown to approvers and recorded. The vault keeps them and gives them to the services " +
		"that you grant them to (durward credential add, durward credential grant).")
}

// unknown are the keys of a mapping that are none of those, to be shown. What begins with x- is its author's own, and says nothing to a tool.
func unknown(v *boundedyaml.Value, known []string) (out []string) {
	for _, key := range v.Keys {
		if !slices.Contains(known, key) && !strings.HasPrefix(key, "x-") {
			out = append(out, clean.Line(clean.Visible(key), 64))
		}
	}
	return out
}

// split splits a command line.
func split(command string) ([]string, error) {
	words, err := shellwords.Split(command)
	if err != nil && strings.Contains(command, "{{") || slices.ContainsFunc(words, unfilled().MatchString) {
		err = boundedyaml.ErrTemplate
	}
	return words, err
}

// unfilled is a word, or the beginning or end of one, that a tool would have filled in.
var unfilled = pattern.New(`^(\{\{|\}\}|\{\{[^ ]*\}\})$`)

var notCredential = pattern.New(`[^a-z0-9_.\-]+`)

func credentialName(key string) string {
	name := strings.Trim(notCredential().ReplaceAllString(strings.ToLower(key), "_"), "_.-")
	return name[:min(len(name), 64)]
}

// listen settles on a port, and makes programs listen on this host alone. It stays 0 where nothing says which port.
func (b *builder) listen(s *program, engine enginecmd.Command, known bool) {
	listener, told := enginecmd.Listens(s.Argv)
	host, at := engine.Host, engine.Port
	if !known {
		host = enginecmd.Told(s.Argv, listener.Host)
		n, _ := strconv.ParseUint(enginecmd.Told(s.Argv, listener.Port), 10, 16)
		at = uint32(n)
	}
	s.Port = cmp.Or(s.Port, at, listener.Default)
	if !told {
		return
	}
	if listener.Port != "" && at != s.Port && (at != 0 || listener.Default != s.Port) {
		delete(s.Environment, "LLAMA_ARG_PORT")
		s.Argv = setOption(s.Argv, listener.Port, strconv.FormatUint(uint64(s.Port), 10))
	}
	switch {
	case listener.Host == "":
	case host == "" && listener.Open:
		s.Argv = setOption(s.Argv, listener.Host, "127.0.0.1")
		s.note("--host 127.0.0.1 was added: it would listen on every address.")
	case host != "" && !local(host):
		delete(s.Environment, "LLAMA_ARG_HOST")
		s.Argv = setOption(s.Argv, listener.Host, "127.0.0.1")
		s.note("It listened on %s; a service listens on 127.0.0.1 alone.", clean.Visible(host))
	}
}

func local(host string) bool {
	if host == "localhost" || strings.HasPrefix(host, "/") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.Unmap().IsLoopback()
}

// setOption sets an option wherever one of its names stands, or adds it by the first.
func setOption(argv []string, names, value string) []string {
	argv = slices.Clone(argv)
	found := false
	for i := 0; i < len(argv); i++ {
		_, joined, ok := enginecmd.Names(names, argv[i])
		switch {
		case ok && joined:
			name, _, _ := strings.Cut(argv[i], "=")
			argv[i], found = name+"="+value, true
		case ok && i+1 < len(argv):
			i++
			argv[i], found = value, true
		}
	}
	if found {
		return argv
	}
	return append(argv, strings.Fields(names)[0], value)
}

var repository = pattern.New(`\A[A-Za-z0-9][A-Za-z0-9_.\-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.\-]{0,95}(:[A-Za-z0-9_.\-]{1,32})?\z`)

// model puts the model that an engine was told to serve and returns its id; "" where nothing is known of it.
func (b *builder) model(s *program, engine enginecmd.Command, known bool) string {
	if !known || engine.Model == "" {
		if known && engine.Router {
			s.note("llama-server without a model loads models as they are asked for; sleep: llama-router lets it sleep once vram_mib is written.")
		}
		return ""
	}
	var m catalog.Model
	id, served := s.modelName, cmp.Or(s.served, engine.ServedName)
	if served == "" && (engine.Engine == enginecmd.VLLM || engine.Engine == enginecmd.SGLang) {
		served = engine.Model // they answer to no other name
	}
	switch {
	case filepath.IsAbs(engine.Model) && proposal.Shown(engine.Model):
		m.File = filepath.Clean(engine.Model)
		id = cmp.Or(id, strings.TrimSuffix(filepath.Base(m.File), ".gguf"))
	case repository().MatchString(engine.Model) && !strings.HasSuffix(engine.Model, ".gguf"):
		m.Source = "hf:" + engine.Model
		id = cmp.Or(id, engine.Model)
	case strings.HasSuffix(engine.Model, ".gguf") && !strings.Contains(engine.Model, "://"):
		s.note("The path of its model begins in the folder where its program was started, and a service is started in another: write the whole path, and models[].file for an estimate.")
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
	if m.ServedName = clean.Line(served, 128); m.ServedName == proposal.ModelID(id) {
		m.ServedName = ""
	}
	if engine.SleepMode && engine.Engine == enginecmd.VLLM {
		s.note("It was started with a sleep mode: once vram_mib is written, sleep: vllm-l1 lets a switch put it to sleep.")
	}
	return b.Model(id, draft.Of(m), s.from)
}
