package importer

import (
	"maps"
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
	"durward.internal/services/platform/containerpolicy"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/secret"
)

// container is what a Compose file or a `docker run` says of one, where the two agree.
type container struct {
	image, user string
	command     []string
	published   []published
	mounts      []mount
	tmpfs       []string
	// shm, memory, cpus and pids are as they were written.
	shm, memory, cpus, pids string
	gpus                    []uint32
	cdi                     bool
	needs                   []string
}

type published struct {
	host            string
	outside, inside uint32
	// text is how it stands there.
	text string
}

type mount struct {
	source, target string
	readOnly       bool
}

// widens is why a setting is refused; "" for one that is not. A setting is an option of `docker run` without its dashes.
func widens(name, value string) string {
	switch name {
	case "privileged":
		if value != "false" {
			return "privileged is refused: such a container is the host"
		}
	case "cap-add":
		return "cap_add is refused: a container keeps no capability"
	case "pid", "ipc", "uts", "userns", "cgroupns", "network":
		space, _, _ := strings.Cut(value, ":")
		if space == "host" || space == "container" || space == "service" {
			return name + ": " + space + " is refused: the container would share that with " + map[bool]string{true: "the host", false: "another container"}[space == "host"]
		}
		if name == "ipc" || name == "userns" {
			return ""
		}
	case "security-opt":
		if !strings.HasPrefix(value, "no-new-privileges") {
			return "security_opt " + clean.Line(clean.Visible(value), 64) + " is refused: it takes protection away"
		}
	case "device-cgroup-rule", "volumes-from", "cgroup-parent", "sysctl", "storage-opt", "isolation", "security-profile":
		return name + " is refused: it widens what the container reaches"
	case "device":
		return "the device " + clean.Line(clean.Visible(value), 64) + " is refused: a container gets GPUs and no other devices"
	case "runtime":
		if value != "" && value != "nvidia" && value != "runc" {
			return "the runtime " + clean.Line(clean.Visible(value), 64) + " is refused"
		}
	case "entrypoint":
		return "its entrypoint is replaced: an entry of the catalogue keeps the image's"
	}
	return ""
}

// harmless are settings that mean nothing in a catalog, which has its own way for them, and are passed over in silence.
var harmless = []string{
	"rm", "init", "detach", "interactive", "tty", "restart", "pull", "name", "hostname", "log-driver", "log-opt", "platform", "label", "ulimit", "quiet",
	"stop-timeout", "stop-signal", "read-only", "cap-drop", "security-opt", "runtime", "network", "ipc", "replace", "sig-proxy", "no-healthcheck", "attach",
	"cidfile", "annotation", "expose", "userns", "privileged",
}

// refusedSource is why a folder of the host is not mounted, or "".
func refusedSource(source string) string {
	if strings.HasSuffix(source, ".sock") {
		return "the mount of " + source + " is refused: who has a daemon's socket has the host"
	}
	if why := catalog.Unmountable(source); why != "" {
		return "the mount of " + source + " is refused: it " + why
	}
	return ""
}

// run reads a `docker run` into a container and puts it.
func (b *builder) run(id string, s *program, run enginecmd.Container) bool {
	c := container{image: run.Image, user: run.User, command: run.Command, shm: run.ShmSize, memory: run.Memory, cpus: run.CPUs, pids: run.PIDs}
	if run.Entrypoint != "" {
		b.LeaveOut(s.what, "%s", widens("entrypoint", run.Entrypoint))
		return false
	}
	for _, other := range append(run.Other, "--runtime="+run.Runtime) {
		name, value, _ := strings.Cut(strings.TrimPrefix(other, "--"), "=")
		if why := widens(name, value); why != "" {
			b.LeaveOut(s.what, "%s", why)
			return false
		}
		if !slices.Contains(harmless, name) {
			s.note("The option --%s was left out.", name)
		}
	}
	for _, one := range run.Environment {
		key, value, ok := strings.Cut(one, "=")
		s.environment = append(s.environment, boundedyaml.Pair{Key: key, Value: value, Bare: !ok})
	}
	for _, file := range run.EnvironmentFiles {
		s.note("Variables are in a file too, which is not read: %s", clean.Visible(file))
	}
	for _, one := range run.Publish {
		host, outside, inside := enginecmd.Published(one)
		c.published = append(c.published, published{host, outside, inside, one})
	}
	for _, v := range run.Volumes {
		c.mounts = append(c.mounts, volume(v))
	}
	for _, m := range run.Mounts {
		if mt, ok := mountOption(m); ok {
			c.mounts = append(c.mounts, mt)
		} else {
			s.note("The mount %s was left out.", clean.Visible(m))
		}
	}
	for _, t := range run.Tmpfs {
		target, _, _ := strings.Cut(t, ":")
		c.tmpfs = append(c.tmpfs, target)
	}
	for _, d := range run.Devices {
		if _, ok := cdiDevice(d); !ok {
			b.LeaveOut(s.what, "%s", widens("device", d))
			return false
		}
		c.cdi = true
		c.gpus = append(c.gpus, b.cdi(s, d)...)
	}
	c.gpus = append(c.gpus, b.deviceRequest(s, run.GPUs, run.Runtime)...)
	return b.container(id, s, c)
}

// volume reads -v and a Compose file's short syntax: [SOURCE:]TARGET[:MODE].
func volume(text string) mount {
	parts := strings.Split(text, ":")
	switch len(parts) {
	case 1:
		return mount{target: parts[0]}
	case 2:
		return mount{source: parts[0], target: parts[1]}
	}
	return mount{source: parts[0], target: parts[1], readOnly: slices.Contains(strings.Split(parts[2], ","), "ro")}
}

// mountOption reads --mount type=bind,source=…,target=…,readonly.
func mountOption(text string) (mount, bool) {
	var m mount
	kind := "volume"
	for one := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(one, "=")
		switch key {
		case "type":
			kind = value
		case "source", "src":
			m.source = value
		case "target", "dst", "destination":
			m.target = value
		case "readonly", "ro":
			m.readOnly = !ok || value == "true" || value == "1"
		}
	}
	return m, kind == "bind" && m.source != "" && m.target != ""
}

var cdiName = regexp.MustCompile(`\A(nvidia\.com/gpu)=([A-Za-z0-9\-]{1,64})\z`)

// cdiDevice reads "nvidia.com/gpu=0".
func cdiDevice(text string) (string, bool) {
	m := cdiName.FindStringSubmatch(text)
	if m == nil {
		return "", false
	}
	return m[2], true
}

func (b *builder) cdi(s *program, text string) []uint32 {
	which, _ := cdiDevice(text)
	if which == "all" {
		return b.all(s)
	}
	return b.visible(s, which)
}

// all are all GPUs of the host.
func (b *builder) all(s *program) []uint32 {
	indexes, sure := b.HostGPUs()
	if !sure {
		s.note("It asks for all GPUs, and the catalogue knows none: GPU 0 is a guess.")
	}
	return indexes
}

// deviceRequest reads --gpus, or the older runtime: nvidia with NVIDIA_VISIBLE_DEVICES.
func (b *builder) deviceRequest(s *program, gpus, runtime string) []uint32 {
	visible, has := takeVariable(s, "NVIDIA_VISIBLE_DEVICES")
	switch {
	case gpus == "all":
		return b.all(s)
	case gpus != "":
		if devices, ok := strings.CutPrefix(gpus, "device="); ok {
			return b.visible(s, strings.Trim(devices, `"'`))
		}
		if n, err := strconv.ParseUint(strings.TrimPrefix(gpus, "count="), 10, 6); err == nil && n > 0 {
			return b.some(s, int(n))
		}
		s.note("Which GPUs --gpus %s asks for is not understood.", clean.Visible(gpus))
		return nil
	case runtime != "nvidia":
		return nil
	case !has || visible == "all" || visible == "":
		return b.all(s)
	case visible == "none" || visible == "void":
		return nil
	}
	return b.visible(s, visible)
}

// some are the first n GPUs of the host.
func (b *builder) some(s *program, n int) []uint32 {
	indexes, _ := b.HostGPUs()
	if n < len(indexes) {
		s.note("It asks for any %d of the GPUs: the first are taken.", n)
		return indexes[:n]
	}
	for next := uint32(0); len(indexes) < min(n, 64); next++ {
		if !slices.Contains(indexes, next) {
			indexes = append(indexes, next)
		}
	}
	return indexes
}

// takeVariable takes a variable out of the environment.
func takeVariable(s *program, key string) (value string, found bool) {
	s.environment = slices.DeleteFunc(s.environment, func(p boundedyaml.Pair) bool {
		if p.Key == key {
			value, found = p.Value, true
		}
		return p.Key == key
	})
	return value, found
}

// container puts a service that is a container.
func (b *builder) container(id string, s *program, c container) bool {
	why := overlong(c.command, len(s.environment), len(c.mounts), len(c.tmpfs), len(c.published))
	if len(c.command) > 0 && why == "" {
		if indirect := enginecmd.Indirect(c.command); indirect != "" {
			why = "its command " + indirect + "; name the program and its arguments"
		}
	}
	if why != "" {
		b.LeaveOut(s.what, "%s", why)
		return false
	}
	if home := b.given.Variables["HOME"]; filepath.IsAbs(home) {
		for i := range c.mounts {
			if rest, ok := strings.CutPrefix(c.mounts[i].source, "~/"); ok {
				c.mounts[i].source = filepath.Join(home, rest)
			}
		}
	}
	command, named, ok := secret.WithoutArguments(append([]string{""}, c.command...))
	if !ok {
		b.LeaveOut(s.what, "an argument of its command looks like a secret, which is not copied")
		return false
	}
	c.command = command[1:]
	for _, option := range named {
		b.secretNamed(s, option)
	}
	if why := unusable(append(slices.Clone(c.command), c.image)...); why != "" {
		b.LeaveOut(s.what, "its image or command %s", why)
		return false
	}
	environment, ok := b.environment(s, func(string) bool { return true }) // allowed, below, is stricter
	if !ok {
		return false
	}
	b.allowed(id, s, environment)
	engine, known := enginecmd.InImage(c.image, c.command, environment)
	inner := proposal.Fields{{Key: "image", Value: c.image}}
	if !strings.Contains(c.image, "@sha256:") {
		inner = append(inner, yaml.MapItem{Key: "allow_tag", Value: true})
		s.note("Its image is named by a tag.")
		b.Note("A tag can come to mean another image: where one is named by NAME@sha256:DIGEST, allow_tag can go (docker image inspect shows the digest).")
	}
	if len(c.command) > 0 {
		inner = append(inner, yaml.MapItem{Key: "command", Value: anyOf(c.command)})
	}
	inner = append(inner, yaml.MapItem{Key: "user", Value: b.user(s, c.user)})
	port, inside, ok := b.publish(s, c, engine, known)
	if !ok {
		return false
	}
	if port != 0 {
		inner = append(inner, yaml.MapItem{Key: "port", Value: inside})
	}
	inner, ok = b.bind(id, s, c, inner)
	if !ok {
		return b.keeping(port, false)
	}
	inner = b.sizes(s, c, inner)
	if c.cdi && len(c.gpus) > 0 {
		inner = append(inner, yaml.MapItem{Key: "gpu_access", Value: "cdi"})
	}
	fields := append(s.head(catalog.DriverDocker), yaml.MapItem{Key: "container", Value: inner})
	fields = appendEnvironment(fields, environment)
	if port != 0 {
		fields = append(fields, yaml.MapItem{Key: "port", Value: port})
		health := s.health
		if health == "" {
			health = engines[engine.Engine].health
		}
		fields = appendHealth(fields, health)
	}
	fields = b.putGPUs(fields, s, c.gpus)
	fields = s.limits(fields, c)
	fields = s.tail(fields)
	if known {
		engine.Model = c.outside(engine.Model)
	}
	return b.keeping(port, b.Service(id, fields, b.model(s, engine, known), c.needs, s.notes...))
}

// outside is what a path of the container is on the host: that of the mount that it lies in, or nothing that could be named.
func (c *container) outside(path string) string {
	if !filepath.IsAbs(path) {
		return path
	}
	best := mount{}
	for _, m := range c.mounts {
		target := filepath.Clean(m.target)
		if (path == target || strings.HasPrefix(path, target+"/")) && len(target) >= len(best.target) {
			best = mount{source: m.source, target: target}
		}
	}
	if !filepath.IsAbs(best.source) {
		return filepath.Base(path)
	}
	return filepath.Join(best.source, strings.TrimPrefix(path, best.target))
}

// loader are variables that make programs run other code.
var loader = regexp.MustCompile(`\A(LD_|DYLD_|PYTHON(PATH|HOME|STARTUP)|GCONV_PATH|GLIBC_TUNABLES|BASH_ENV)`)

// user is whom the container runs as: never root.
func (b *builder) user(s *program, user string) string {
	if containerpolicy.IsUser(user) {
		return user
	}
	if user == "" {
		s.note("It names no user.")
	} else {
		s.note("It ran as %s.", clean.Line(clean.Visible(user), 64))
	}
	b.Note("A container runs as a user in numbers, never as root: where none was named, %s is a guess, and that user must be able to read what is mounted.", b.given.ContainerUser)
	return b.given.ContainerUser
}

// publish settles on the port, on 127.0.0.1.
func (b *builder) publish(s *program, c container, engine enginecmd.Command, known bool) (outside, inside uint32, ok bool) {
	inside = engine.Port
	if inside == 0 && known {
		inside = engines[engine.Engine].port
	}
	var chosen *published
	for i := range c.published {
		one := &c.published[i]
		switch {
		case one.inside == 0:
			s.note("The published port %s was left out: one port, published by TCP, is what a service has.", clean.Visible(one.text))
		case chosen == nil || one.inside == inside && chosen.inside != inside:
			if chosen != nil {
				s.note("The published port %s was left out: a service has one.", clean.Visible(chosen.text))
			}
			chosen = one
		default:
			s.note("The published port %s was left out: a service has one.", clean.Visible(one.text))
		}
	}
	wanted := s.port
	switch {
	case chosen != nil:
		inside = chosen.inside
		if wanted == 0 {
			wanted = chosen.outside
		}
		if !local(chosen.host) {
			s.note("It was published as %s; it is published on 127.0.0.1 alone.", clean.Visible(chosen.text))
		}
	case inside == 0:
		s.note("It publishes no port, so that only its container's state says whether it is well.")
		return 0, 0, true
	case wanted == 0:
		s.note("It publishes no port; the engine's own is published on 127.0.0.1.")
		wanted = inside
	}
	outside, ok = b.Port(wanted, 20000)
	switch {
	case !ok:
		b.LeaveOut(s.what, "no port is free")
	case wanted != 0 && outside != wanted:
		s.note("Its port was %d, which another service has: in a catalogue each has its own.", wanted)
	}
	return outside, inside, ok
}

// bind takes over bind mounts and names the others.
func (b *builder) bind(id string, s *program, c container, inner proposal.Fields) (proposal.Fields, bool) {
	var list []any
	for _, m := range c.mounts {
		shown := clean.Line(clean.Visible(m.source), 200)
		switch {
		case m.source == "":
			s.note("The unnamed volume at %s was left out.", clean.Visible(m.target))
			continue
		case len(missing(m.source)) > 0 || len(missing(m.target)) > 0:
			s.note("A mount was left out: it %s.", unusable(m.source+m.target))
			continue
		case strings.HasPrefix(m.source, "~") || strings.Contains(m.source, "$"):
			s.note("The mount of %s at %s was left out: write out which folder that is (--set HOME=… says what ~ is).", shown, clean.Visible(m.target))
			continue
		case !filepath.IsAbs(m.source):
			s.note("The volume %s at %s was left out: a mount is a folder of the host.", shown, clean.Visible(m.target))
			continue
		}
		source := filepath.Clean(m.source)
		if why := refusedSource(source); why != "" {
			b.LeaveOut(s.what, "%s", clean.Visible(why))
			return nil, false
		}
		if !proposal.Shown(source) || !proposal.Shown(m.target) {
			b.LeaveOut(s.what, "a mount holds characters that cannot be shown")
			return nil, false
		}
		b.Mount(source, id)
		one := proposal.Fields{{Key: "source", Value: source}, {Key: "target", Value: m.target}}
		if !m.readOnly {
			one = append(one, yaml.MapItem{Key: "writable", Value: true})
		}
		list = append(list, one)
	}
	if len(list) > 0 {
		inner = append(inner, yaml.MapItem{Key: "mounts", Value: list})
	}
	if len(c.tmpfs) > 0 {
		inner = append(inner, yaml.MapItem{Key: "tmpfs", Value: c.tmpfs})
	}
	return inner, true
}

func (b *builder) sizes(s *program, c container, inner proposal.Fields) proposal.Fields {
	if c.shm == "" {
		return inner
	}
	mib, ok := mebibytes(c.shm)
	if !ok {
		s.note("shm_size %s is not understood.", clean.Line(clean.Visible(c.shm), 64))
		return inner
	}
	return append(inner, yaml.MapItem{Key: "shm_mib", Value: mib})
}

func (s *program) limits(fields proposal.Fields, c container) proposal.Fields {
	var out proposal.Fields
	if mib, ok := mebibytes(c.memory); ok {
		out = append(out, yaml.MapItem{Key: "memory_mib", Value: mib})
	}
	if cpus, err := strconv.ParseFloat(c.cpus, 64); err == nil && cpus >= 0.01 && cpus <= 1024 {
		out = append(out, yaml.MapItem{Key: "cpu_percent", Value: uint32(cpus * 100)})
	}
	if pids, err := strconv.ParseUint(c.pids, 10, 20); err == nil && pids > 0 {
		out = append(out, yaml.MapItem{Key: "pids", Value: uint32(pids)})
	}
	if len(out) == 0 {
		return fields
	}
	return append(fields, yaml.MapItem{Key: "limits", Value: out})
}

var sizePattern = regexp.MustCompile(`\A([0-9]{1,15})(\.[0-9]{1,3})?\s*([kmgtKMGT]?)([iI]?[bB])?\z`)

// mebibytes reads Docker's sizes: "8g", "16gb", "512m", bytes. What is less than one MiB is one.
func mebibytes(text string) (uint32, bool) {
	m := sizePattern.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseFloat(m[1]+m[2], 64)
	if err != nil {
		return 0, false
	}
	scale := map[string]float64{"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}[strings.ToLower(m[3])]
	if n = n * scale / (1 << 20); n <= 0 || n > 1<<24 {
		return 0, false
	}
	return max(1, uint32(n)), true
}

// engineKey are engines' own variables, which a human may allow.
var engineKey = regexp.MustCompile(`\A(LLAMA_ARG|VLLM|OLLAMA|SGLANG|SGL)_[A-Z0-9_]{1,48}\z`)

// processKey are variables of the libraries that engines compute with, and where programs are found.
var processKey = regexp.MustCompile(`\A((CUDA|NVIDIA|GGML|HIP|ROCR|HSA|NCCL|OMP|MKL|OPENBLAS|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|XLA)_[A-Z0-9_]{1,48}|PATH)\z`)

// plainKey reports whether a program's variable is copied, if neither its name nor its value is a secret's. What would change which code
// the program runs stays, for the catalog to refuse the entry.
func plainKey(key string) bool {
	return containerpolicy.PlainKey(key) || engineKey.MatchString(key) || processKey.MatchString(key) || loader.MatchString(key)
}

// allowed leaves out variables that a container may not be given, and proposes those of engines.
func (b *builder) allowed(id string, s *program, environment map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(environment)) {
		switch {
		case containerpolicy.PlainKey(key), b.KeyAllowed(key):
		case engineKey.MatchString(key):
			b.Key(key, id)
			b.Note("What stands under containers.environment is beyond what every container may be given; by this file all may.")
		case loader.MatchString(key):
			delete(environment, key)
			s.note("The variable %s was left out: it would change which code the program runs.", clean.Line(clean.Visible(key), 64))
		default:
			delete(environment, key)
			s.note("The variable %s was left out: containers may not be given it. A human may allow it under containers.environment.", clean.Line(clean.Visible(key), 64))
		}
	}
}
