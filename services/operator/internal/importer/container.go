package importer

import (
	"cmp"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"durward.internal/services/operator/internal/draft"
	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/containerpolicy"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/secret"
)

// box is a container in the making. What it is made of has the shape of a Compose file's service, whoever said it: a Compose file, a
// `docker run`, a preset, a daemon.
type box struct {
	*builder
	*program
	v *boundedyaml.Value
	// plain: the texts hold no variables, and no folder is below that of a file.
	plain bool
	// cdi: GPUs are asked for by CDI. shared: it had no network of its own.
	cdi, shared bool
	// engine is what runs in it, if that is known.
	engine enginecmd.Command
	known  bool
}

// Keys of a Compose service: those that are read, or say nothing about what runs, and those that are refused.
var (
	composeRead = strings.Fields("image build command entrypoint environment env_file ports volumes deploy runtime gpus devices profiles depends_on healthcheck restart " +
		"user shm_size mem_limit cpus pids_limit tmpfs container_name hostname labels logging networks stop_grace_period stop_signal ulimits init tty stdin_open " +
		"read_only cap_drop annotations platform pull_policy expose ipc pid uts userns_mode cgroup network_mode privileged cap_add security_opt attach " +
		// and those of docker run
		"rm detach interactive pull name log_driver log_opt label ulimit quiet replace sig_proxy no_healthcheck cidfile annotation")
	composeRefused = strings.Fields("device_cgroup_rules device_cgroup_rule volumes_from cgroup_parent sysctls sysctl storage_opt isolation credential_spec")
)

// composeBounds are how long a service's lists may be.
var composeBounds = []boundedyaml.Bound{
	boundedyaml.Most(maxArguments, "command"), boundedyaml.Most(maxArguments, "entrypoint"), boundedyaml.Most(maxVariables, "environment"),
	boundedyaml.Most(maxMounts, "volumes"), boundedyaml.Most(maxTmpfs, "tmpfs"), boundedyaml.Most(maxList, "ports"), boundedyaml.Most(maxList, "depends_on"),
	boundedyaml.Most(maxList, "devices"), boundedyaml.Most(maxList, "gpus"), boundedyaml.Most(maxList, "deploy", "resources", "reservations", "devices"),
	boundedyaml.Most(maxList, "profiles"), boundedyaml.Most(maxList, "security_opt"), boundedyaml.Most(maxList, "env_file"),
}

// runKeys are the options of `docker run` whose names in a Compose file are other ones; runOnce those that are not a list there.
var (
	runKeys = map[string]string{
		"network": "network_mode", "userns": "userns_mode", "cgroupns": "cgroup", "env": "environment", "publish": "ports", "volume": "volumes", "device": "devices",
		"memory": "mem_limit",
	}
	runOnce = strings.Fields("user entrypoint runtime shm_size mem_limit cpus pids_limit gpus")
)

// asCompose says what a `docker run` says as a Compose file would.
func asCompose(run enginecmd.Container) *boundedyaml.Value {
	v := boundedyaml.Make("image", run.Image, "command", run.Command)
	for _, o := range run.Options {
		key := cmp.Or(runKeys[o.Name], strings.ReplaceAll(o.Name, "-", "_"))
		switch {
		case key == "mount":
			v.Add("volumes", asVolume(o.Value))
		case key == "stop_timeout":
			v = v.With("stop_grace_period", o.Value+"s")
		case slices.Contains(runOnce, key):
			v = v.With(key, o.Value)
		default:
			v.Add(key, boundedyaml.Plain(o.Value))
		}
	}
	return v
}

// asVolume says what a --mount says as a Compose file would.
func asVolume(mount string) *boundedyaml.Value {
	v := boundedyaml.Make()
	for part := range strings.SplitSeq(mount, ",") {
		key, text, joined := strings.Cut(part, "=")
		switch key {
		case "src":
			key = "source"
		case "dst", "destination":
			key = "target"
		case "readonly", "ro":
			key = "read_only"
			if !joined {
				text = "true"
			}
		}
		v.Set(key, text)
	}
	v.Set("type", "volume")
	return v
}

// text is a value with its variables put in.
func (x *box) text(v *boundedyaml.Value) string {
	if x.plain {
		return v.Str()
	}
	return x.put(v.Str())
}

func (x *box) texts(v *boundedyaml.Value) []string {
	var out []string
	for _, one := range v.Strings() {
		out = append(out, x.text(boundedyaml.Plain(one)))
	}
	return out
}

// shares is whose namespace a service shares, "host", "container" or "service"; "" where it has its own.
func (x *box) shares(key string) string {
	for _, one := range x.texts(x.v.Get(key)) {
		if space, _, _ := strings.Cut(one, ":"); space == "host" || space == "container" || space == "service" {
			return space
		}
	}
	return ""
}

// refused is why the container's settings make it as powerful as the host, or "".
func (x *box) refused() string {
	for _, key := range []string{"pid", "uts", "userns_mode", "cgroup"} {
		if space := x.shares(key); space != "" {
			with := map[bool]string{true: "the host", false: "another container"}[space == "host"]
			return strings.TrimSuffix(key, "_mode") + ": " + space + " is refused: the container would share that with " + with
		}
	}
	if runtime := x.text(x.v.Get("runtime")); runtime != "" && runtime != "nvidia" && runtime != "runc" {
		return "the runtime " + clean.Line(clean.Visible(runtime), 64) + " is refused"
	}
	if v := x.v.Get("privileged"); v.IsSet() && !v.IsFalse() && v.Str() != "false" {
		return "privileged is refused: such a container is the host; take it out if it runs without"
	}
	if added := x.texts(x.v.Get("cap_add")); slices.ContainsFunc(added, func(c string) bool { return strings.HasSuffix(strings.ToUpper(c), "ALL") }) {
		return "cap_add: ALL is refused: such a container is nearly the host; take it out if it runs without"
	} else if len(added) > 0 {
		x.note("It was given %s; it gets no capability, and cannot be a container here if it does not run without.", clean.Line(clean.Visible(strings.Join(added, ", ")), 200))
	}
	for _, key := range composeRefused {
		if x.v.Get(key).IsSet() {
			return key + " is refused: it widens what the container reaches"
		}
	}
	for _, d := range devices(x.v) {
		switch d = x.text(boundedyaml.Plain(d)); {
		case strings.HasPrefix(d, "/dev/kfd"), strings.HasPrefix(d, "/dev/dri"):
			return "it reaches a GPU by " + clean.Line(clean.Visible(d), 64) + ", as ROCm does: a service gets NVIDIA's GPUs alone"
		case !cdiName().MatchString(d) && !strings.HasPrefix(d, "/dev/nvidia"):
			return "the device " + clean.Line(clean.Visible(d), 64) + " is refused: a container gets GPUs and no other devices"
		}
	}
	return ""
}

// words are a list of arguments, or a line that is split as Compose splits it.
func (x *box) words(key string) ([]string, error) {
	v := x.v.Get(key)
	if v.Kind != boundedyaml.Sequence {
		return split(x.text(v))
	}
	if slices.ContainsFunc(v.List, func(item *boundedyaml.Value) bool { return !item.IsText() }) {
		return nil, errors.New("it is not a list of texts")
	}
	return x.texts(v), nil
}

// leaveOut says why nothing is proposed.
func (x *box) leaveOut(format string, args ...any) bool {
	x.LeaveOut(x.what, format, args...)
	return false
}

// Contain reads a container of this host, in the shape of a Compose file's service, for another one to be made of its image: its entry
// has the container, its environment and limits, and the GPUs that it asks for. ok is false where that is left out, with the reason. what
// it is called there.
func Contain(p *proposal.Proposal, given Given, id, what string, v *boundedyaml.Value) (entry draft.Service, notes []string, ok bool) {
	x := &box{builder: newBuilder(p, given), program: &program{what: what}, v: v, plain: true}
	ok = x.describe(id)
	return x.Service, x.notes, ok
}

// container puts a service that is a container.
func (b *builder) container(id string, x *box) bool {
	if x.builder = b; !x.describe(id) {
		return false
	}
	x.rest()
	x.healthOf(x.engine)
	b.knownGPUs(x.program)
	if model := x.engine.Model; filepath.IsAbs(model) {
		if x.engine.Engine == enginecmd.VLLM || x.engine.Engine == enginecmd.SGLang {
			x.engine.ServedName = cmp.Or(x.engine.ServedName, model) // as it is called in the container
		}
		x.engine.Model = cmp.Or(Outside(x.Container.Mounts, model), filepath.Base(model))
	}
	x.program.Model = b.model(x.program, x.engine, x.known)
	return b.propose(id, catalog.DriverDocker, x.program)
}

// describe reads everything that an entry says of the container itself.
func (x *box) describe(id string) (ok bool) {
	v := x.v
	x.Container = &catalog.Container{}
	if long := v.Over(composeBounds); long != "" {
		return x.leaveOut("%s", long)
	}
	if why := x.refused(); why != "" {
		return x.leaveOut("%s", why)
	}
	image := x.text(v.Get("image"))
	if image == "" && v.Get("build").IsSet() {
		image = strings.ToLower(proposal.ID(filepath.Base(x.base)) + "-" + id)
		x.note("Its image is built here: %s is what docker compose build calls it.", image)
	}
	command, err := x.words("command")
	entrypoint, wrong := x.words("entrypoint")
	switch {
	case image == "":
		return x.leaveOut("it names no image")
	case (strings.Contains(image, "/llama-swap:") || strings.HasSuffix(image, "/llama-swap")) && (len(entrypoint) == 0 || filepath.Base(entrypoint[0]) == "llama-swap"):
		return x.leaveOut("it is llama-swap itself, whose place Durward takes: import its configuration with durward catalog import llama-swap")
	}
	if err = errors.Join(err, wrong); err != nil {
		return x.leaveOut("its command was not understood: %s", err.Error())
	}
	if command, ok = x.arguments(image, entrypoint, command); !ok {
		return false
	}
	for _, one := range v.Get("environment").Pairs() {
		if !secret.Name(one.Key) {
			one.Value = x.text(boundedyaml.Plain(one.Value))
		}
		x.environment = append(x.environment, one)
	}
	x.ask()
	if x.Environment, ok = x.judged(x.program, id); !ok {
		return false
	}
	x.isolate()
	x.engine, x.known = enginecmd.InContainer(image, entrypoint, command, x.Environment)
	if x.Container.AllowTag = !strings.Contains(image, "@sha256:"); x.Container.AllowTag {
		x.note("Its image is named by a tag.")
		x.Note("A tag can come to mean another image: where one is named by NAME@sha256:DIGEST, allow_tag can go (docker image inspect shows the digest).")
	}
	x.publish()
	if x.shared && x.known && x.engine.Host != "" && local(x.engine.Host) {
		command = setOption(command, enginecmd.ListensAs(x.engine.Engine).Host, "0.0.0.0")
		x.note("It listens on all addresses of its own network now, of which one port is published.")
	}
	x.Container.Image, x.Container.Entrypoint, x.Container.Command, x.Container.User = image, entrypoint, command, x.user()
	if !x.storage(id) {
		return false
	}
	if x.cdi && len(x.GPUs) > 0 {
		x.Container.GPUAccess = "cdi"
	}
	x.limits()
	return true
}

// arguments judges what runs in the container, and returns its command without secrets.
func (x *box) arguments(image string, entrypoint, command []string) (out []string, ok bool) {
	for _, argv := range [][]string{entrypoint, command} {
		if len(argv) > maxArguments {
			return out, x.leaveOut("its command has more than %d arguments", maxArguments)
		}
		if len(argv) > 0 {
			if indirect := enginecmd.Indirect(argv); indirect != "" {
				return out, x.leaveOut("its command %s; name the program and its arguments", indirect)
			}
		}
	}
	command, named, ok := secret.WithoutArguments(append([]string{""}, command...))
	if !ok || secret.InArguments(entrypoint) {
		return out, x.leaveOut("an argument of its command looks like a secret, which is not copied")
	}
	for _, option := range named {
		x.secretNamed(x.program, option)
	}
	said := append(append(slices.Clone(command), entrypoint...), image)
	if why := unusable(said...); why != "" {
		x.want(said...)
		return out, x.leaveOut("its image or command %s", why)
	}
	return command[1:], true
}

// isolate gives the container its own of what it shared.
func (x *box) isolate() {
	if space := x.shares("network_mode"); space != "" {
		x.shared = true
		x.note("It had the network of the %s; it gets its own, of which one port is published on 127.0.0.1.", space)
	}
	if space := x.shares("ipc"); space != "" && !x.v.Get("shm_size").IsSet() {
		x.note("It shared memory with the %s (ipc: %s); it gets 8 GiB of its own (shm_mib), which is a guess.", space, space)
		x.v = x.v.With("shm_size", "8g")
	}
	for _, one := range x.texts(x.v.Get("security_opt")) {
		if !strings.HasPrefix(one, "no-new-privileges") {
			x.note("security_opt %s was left out: it takes protection away.", clean.Line(clean.Visible(one), 64))
		}
	}
}

// Outside is where a path of a container lies on the host, in the innermost of its mounts; "" where that is not known.
func Outside(mounts []catalog.Mount, path string) string {
	best := catalog.Mount{}
	for _, m := range mounts {
		if catalog.Within(path, m.Target) && len(m.Target) >= len(best.Target) {
			best = m
		}
	}
	if best.Source == "" {
		return ""
	}
	return filepath.Join(best.Source, strings.TrimPrefix(path, best.Target))
}

// user is whom the container runs as: never root.
func (x *box) user() string {
	user := x.text(x.v.Get("user"))
	switch {
	case containerpolicy.IsUser(user):
		return user
	case user == "":
		x.note("It names no user.")
	default:
		x.note("It ran as %s.", clean.Line(clean.Visible(user), 64))
	}
	x.Note("A container runs as a user in numbers, never as root: where none was named, %s is a guess, and that user must be able to read what is mounted.", x.given.ContainerUser)
	return x.given.ContainerUser
}

var healthURL = pattern.New(`https?://(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(?::[0-9]{1,5})?(/[A-Za-z0-9._~/\-]{0,127})`)

// rest reads health and times, and says what became of the other keys.
func (x *box) rest() {
	v := x.v
	if check := v.Get("healthcheck"); check.IsSet() {
		if m := healthURL().FindStringSubmatch(strings.Join(check.Get("test").Strings(), " ")); m != nil {
			x.Health.Path = m[1]
		} else if !check.Get("disable").Is() {
			x.note("Its healthcheck is a command and was left out: a service is asked over HTTP at health.path.")
		}
		if d, err := time.ParseDuration(x.text(check.Get("start_period"))); err == nil && d > time.Minute {
			x.StartTimeoutS = uint32(min(d/time.Second, 3600))
		}
	}
	if d, err := time.ParseDuration(x.text(v.Get("stop_grace_period"))); err == nil && d >= time.Second {
		x.StopTimeoutS = uint32(min(d/time.Second, 600))
	}
	files := v.Get("env_file").Strings()
	for _, f := range v.Get("env_file").List {
		files = append(files, f.Get("path").Str())
	}
	for _, f := range files {
		if f != "" {
			x.note("Variables are in a file too, which is not read: %s", clean.Line(clean.Visible(f), 200))
		}
	}
	if n, ok := v.At("deploy", "replicas").Number(); ok && n != 1 {
		x.note("It asks for %d replicas; a service is one container.", n)
	}
	if how := v.Get("restart").Str(); how != "" && how != "no" && !x.plain {
		x.note("restart: %s was left out.", clean.Line(clean.Visible(how), 32))
		x.Note("What a file says of restarts was left out: a service that ends by itself is started again if its restart.max says so.")
	}
	for _, key := range unknown(v, composeRead) {
		x.note("%s was left out%s.", key, map[string]string{"secrets": notCopied, "configs": notCopied}[key])
	}
}

const notCopied = ": what is in them is not copied"
