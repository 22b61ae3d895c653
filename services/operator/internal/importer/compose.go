package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/operator/internal/importer/shellwords"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/secret"
)

// maxComposeFiles bounds how many files one import reads.
const maxComposeFiles = 32

// Compose reads Compose files, each by itself, and takes the services that ask for GPUs. What single services get wrong is left
// out by name; an error is for a file as a whole. Source: the Compose Specification (compose-spec/compose-spec).
func Compose(ctx context.Context, p *proposal.Proposal, files []string, given Given) error {
	if len(files) > maxComposeFiles {
		return fmt.Errorf("more than %d files", maxComposeFiles)
	}
	b := newBuilder(p, given)
	modes := map[string]bool{}
	for _, file := range files {
		data, err := boundedyaml.ReadFile(file)
		if err != nil {
			return err
		}
		base, err := filepath.Abs(filepath.Dir(file))
		if err != nil {
			return fmt.Errorf("the folder of %s cannot be told", clean.Visible(file))
		}
		if err := composeFile(ctx, b, modes, filepath.Base(file), base, data); err != nil {
			return err
		}
	}
	return nil
}

// composeFile reads one file, whose relative folders are below base.
func composeFile(ctx context.Context, b *builder, modes map[string]bool, file, base string, data []byte) error {
	root, err := boundedyaml.Decode(file, data)
	if err != nil {
		return err
	}
	c := &compose{builder: b, base: base, file: clean.Line(clean.Visible(file), 100), root: root, modeIDs: modes}
	return c.services(ctx)
}

type compose struct {
	*builder
	base, file string
	root       *boundedyaml.Value
	modeIDs    map[string]bool
	// profiles has the ids of services by profile; always are those without one.
	profiles map[string][]string
	order    []string
	always   []string
	// here are the ids of the file's services by name, wanted those that ask for GPUs.
	here   map[string]string
	wanted map[string]bool
}

func (c *compose) services(ctx context.Context) error {
	services := c.root.Get("services")
	if services.Kind != boundedyaml.Mapping {
		return fmt.Errorf("%s has no services: it is no Compose file", clean.Visible(c.file))
	}
	if len(services.Keys) > maxEntries {
		return fmt.Errorf("%s has more than %d services", clean.Visible(c.file), maxEntries)
	}
	for _, key := range c.root.Keys {
		switch {
		case key == "include":
			c.LeaveOut("include of "+c.file, "other files are not followed: name them on the command line")
		case key == "secrets" || key == "configs":
			c.LeaveOut(key+" of "+c.file, "they are not copied")
		case !slices.Contains([]string{"services", "version", "name", "volumes", "networks"}, key) && !strings.HasPrefix(key, "x-"):
			c.LeaveOut(clean.Line(clean.Visible(key), 64)+" of "+c.file, "this key is not known")
		}
	}
	c.profiles = map[string][]string{}
	c.here, c.wanted = map[string]string{}, map[string]bool{}
	for _, name := range services.Keys {
		if id := freeIDOf(name, c.ids); id != "" {
			c.here[name] = id
		}
		v := services.Get(name)
		c.wanted[name] = v.Over(composeBounds) == "" && wants(v)
	}
	for _, name := range services.Keys {
		c.service(name, services.Get(name))
		if err := cmp.Or(ctx.Err(), c.spent()); err != nil {
			return err
		}
	}
	c.modes()
	return nil
}

// freeIDOf is FreeID, and the id itself where another file has a service of that name: one of the two is then left out by name.
func freeIDOf(name string, taken map[string]bool) string {
	id := proposal.ID(name)
	if id == name {
		taken[id] = true
		return id
	}
	return proposal.FreeID(name, taken)
}

// text is a value with its variables put in.
func (c *compose) text(v *boundedyaml.Value) string { return c.put(v.Str()) }

func (c *compose) texts(v *boundedyaml.Value) []string {
	var out []string
	for _, one := range v.Strings() {
		out = append(out, c.put(one))
	}
	return out
}

// wants reports whether a service asks for GPUs.
func wants(v *boundedyaml.Value) bool {
	if v.Get("gpus").IsSet() || v.Get("runtime").Str() == "nvidia" {
		return true
	}
	if slices.ContainsFunc(v.At("deploy", "resources", "reservations", "devices").List, isGPU) {
		return true
	}
	return slices.ContainsFunc(devices(v), func(d string) bool {
		return strings.HasPrefix(d, "nvidia.com/gpu") || strings.HasPrefix(d, "/dev/nvidia")
	})
}

func isGPU(d *boundedyaml.Value) bool {
	if d.Over([]boundedyaml.Bound{boundedyaml.Most(maxList, "device_ids"), boundedyaml.Most(maxList, "capabilities")}) != "" {
		return false
	}
	if driver := d.Get("driver").Str(); driver != "" && driver != "nvidia" && driver != "cdi" {
		return false
	}
	if d.Get("driver").Str() == "cdi" {
		return slices.ContainsFunc(d.Get("device_ids").Strings(), func(id string) bool { return strings.HasPrefix(id, "nvidia.com/gpu") })
	}
	return slices.ContainsFunc(d.Get("capabilities").Strings(), func(one string) bool { return one == "gpu" || one == "nvidia" || one == "compute" })
}

// devices are a service's devices, in either syntax.
func devices(v *boundedyaml.Value) []string {
	out := v.Get("devices").Strings()
	for _, d := range v.Get("devices").List {
		if source := d.Get("source").Str(); source != "" {
			out = append(out, source)
		}
	}
	return out
}

// composeQuiet are a service's keys that are read, or that say nothing about what runs.
var composeQuiet = strings.Fields("image command environment ports volumes deploy runtime gpus devices profiles depends_on healthcheck restart user shm_size " +
	"mem_limit cpus pids_limit tmpfs container_name hostname labels logging networks stop_grace_period stop_signal ulimits init tty stdin_open read_only cap_drop " +
	"annotations platform pull_policy expose ipc pid uts userns_mode network_mode privileged cap_add security_opt attach")

// composeBounds are how long a service's lists may be.
var composeBounds = []boundedyaml.Bound{
	boundedyaml.Most(maxArguments, "command"), boundedyaml.Most(maxVariables, "environment"), boundedyaml.Most(maxMounts, "volumes"), boundedyaml.Most(maxTmpfs, "tmpfs"),
	boundedyaml.Most(maxList, "ports"), boundedyaml.Most(maxList, "depends_on"), boundedyaml.Most(maxList, "devices"), boundedyaml.Most(maxList, "gpus"),
	boundedyaml.Most(maxList, "deploy", "resources", "reservations", "devices"), boundedyaml.Most(maxList, "profiles"), boundedyaml.Most(maxList, "security_opt"),
	boundedyaml.Most(maxList, "env_file"),
}

func (c *compose) service(name string, v *boundedyaml.Value) {
	shown := clean.Line(clean.Visible(name), 64)
	s := &program{what: "service " + shown, from: "From the service " + shown + " of " + c.file + "."}
	id, long := c.here[name], v.Over(composeBounds)
	switch {
	case v.Kind != boundedyaml.Mapping:
		c.LeaveOut(s.what, "it is no mapping")
		return
	case long != "":
		c.LeaveOut(s.what, "%s", long)
		return
	case id == "":
		c.LeaveOut(s.what, "no id can be made of its name")
		return
	case v.Get("extends").IsSet():
		c.LeaveOut(s.what, "it extends another service, which is not followed")
		return
	case !c.wanted[name]:
		c.LeaveOut(s.what, "it asks for no GPU")
		return
	case !c.more():
		c.LeaveOut(s.what, "more than %d services", proposal.MaxServices)
		return
	}
	if why := c.refused(v); why != "" {
		c.LeaveOut(s.what, "%s", why)
		return
	}
	s.note("From the service %s of %s.", shown, c.file)
	k := container{
		image: c.text(v.Get("image")), user: c.text(v.Get("user")), shm: c.text(v.Get("shm_size")), memory: c.text(v.Get("mem_limit")),
		cpus: c.text(v.Get("cpus")), pids: c.text(v.Get("pids_limit")), tmpfs: c.tmpfs(v),
	}
	if k.image == "" {
		c.LeaveOut(s.what, "it has no image; one that is built here is named by its digest once it is built")
		return
	}
	var err error
	if k.command, err = c.command(v.Get("command")); err != nil {
		c.LeaveOut(s.what, "its command was not understood: %s", err.Error())
		return
	}
	for _, p := range v.Get("environment").Pairs() {
		if !secret.Name(p.Key) {
			p.Value = c.put(p.Value)
		}
		s.environment = append(s.environment, p)
	}
	limits := v.At("deploy", "resources", "limits")
	for _, l := range []struct {
		to  *string
		key string
	}{{&k.memory, "memory"}, {&k.cpus, "cpus"}, {&k.pids, "pids"}} {
		if *l.to == "" {
			*l.to = c.text(limits.Get(l.key))
		}
	}
	c.gpus(s, &k, v)
	c.ports(s, &k, v)
	c.volumes(&k, v)
	c.needs(s, &k, v)
	c.rest(s, v)
	if c.container(id, s, k) {
		c.sort(id, v)
	}
}

// refused is why a service's settings make it wider than a container may be, or "".
func (c *compose) refused(v *boundedyaml.Value) string {
	checks := []struct{ key, option string }{
		{"pid", "pid"}, {"ipc", "ipc"}, {"uts", "uts"}, {"network_mode", "network"}, {"userns_mode", "userns"}, {"cgroup", "cgroupns"}, {"runtime", "runtime"},
	}
	for _, one := range checks {
		if why := widens(one.option, c.text(v.Get(one.key))); why != "" && v.Get(one.key).IsSet() {
			return why
		}
	}
	switch {
	case v.Get("privileged").IsSet() && !v.Get("privileged").IsFalse():
		return widens("privileged", "")
	case v.Get("cap_add").IsSet() && len(v.Get("cap_add").List) > 0:
		return widens("cap-add", "")
	case v.Get("entrypoint").IsSet():
		return widens("entrypoint", "")
	}
	for _, one := range c.texts(v.Get("security_opt")) {
		if why := widens("security-opt", one); why != "" {
			return why
		}
	}
	for _, key := range []string{"device_cgroup_rules", "volumes_from", "cgroup_parent", "sysctls", "storage_opt", "isolation", "credential_spec"} {
		if v.Get(key).IsSet() {
			return key + " is refused: it widens what the container reaches"
		}
	}
	for _, d := range devices(v) {
		if d = c.put(d); !cdiName.MatchString(d) {
			return widens("device", d)
		}
	}
	return ""
}

// command is a list of arguments, or a line that is split as Compose splits it.
func (c *compose) command(v *boundedyaml.Value) ([]string, error) {
	if v.Kind == boundedyaml.Sequence {
		if slices.ContainsFunc(v.List, func(item *boundedyaml.Value) bool {
			return item.Kind != boundedyaml.Text && item.Kind != boundedyaml.Scalar
		}) {
			return nil, errors.New("it is not a list of texts")
		}
		return c.texts(v), nil
	}
	return shellwords.Split(c.text(v))
}

func (c *compose) tmpfs(v *boundedyaml.Value) []string {
	var out []string
	for _, t := range c.texts(v.Get("tmpfs")) {
		target, _, _ := strings.Cut(t, ":")
		out = append(out, target)
	}
	return out
}

// gpus reads the ways in which a service asks for GPUs.
func (c *compose) gpus(s *program, k *container, v *boundedyaml.Value) {
	request := func(d *boundedyaml.Value) {
		if d.Size() > maxList || d.Get("device_ids").Size() > maxList {
			return
		}
		ids := c.texts(d.Get("device_ids"))
		count := c.text(d.Get("count"))
		switch {
		case len(ids) > 0:
			for _, id := range ids {
				if cdiName.MatchString(id) {
					k.cdi = true
					k.gpus = append(k.gpus, c.cdi(s, id)...)
				} else {
					k.gpus = append(k.gpus, c.visible(s, id)...)
				}
			}
		case count == "" || count == "all" || count == "-1":
			k.gpus = append(k.gpus, c.all(s)...)
		default:
			if n, err := strconv.ParseUint(count, 10, 6); err == nil && n > 0 {
				k.gpus = append(k.gpus, c.some(s, int(n))...)
			} else {
				s.note("How many GPUs count: %s asks for is not understood.", clean.Line(clean.Visible(count), 32))
			}
		}
	}
	for _, d := range v.At("deploy", "resources", "reservations", "devices").List {
		if isGPU(d) {
			request(d)
		}
	}
	if g := v.Get("gpus"); g.Kind == boundedyaml.Sequence {
		for _, d := range g.List {
			request(d)
		}
	} else if g.IsSet() {
		request(&boundedyaml.Value{Kind: boundedyaml.Mapping, Fields: map[string]*boundedyaml.Value{"count": g}})
	}
	for _, d := range devices(v) {
		if d = c.put(d); cdiName.MatchString(d) {
			k.cdi = true
			k.gpus = append(k.gpus, c.cdi(s, d)...)
		}
	}
	if len(k.gpus) == 0 {
		k.gpus = c.deviceRequest(s, "", c.text(v.Get("runtime")))
	} else {
		takeVariable(s, "NVIDIA_VISIBLE_DEVICES")
	}
	takeVariable(s, "NVIDIA_DRIVER_CAPABILITIES")
}

func (c *compose) ports(s *program, k *container, v *boundedyaml.Value) {
	for _, p := range v.Get("ports").List {
		if p.Kind != boundedyaml.Mapping {
			one := c.put(p.Str())
			if names := missing(one); len(names) > 0 {
				s.note("A published port was left out: it %s.", unusable(one))
				continue
			}
			host, outside, inside := enginecmd.Published(one)
			k.published = append(k.published, published{host, outside, inside, one})
			continue
		}
		outside, _ := (&boundedyaml.Value{Kind: boundedyaml.Text, Text: c.text(p.Get("published"))}).Number()
		inside, _ := (&boundedyaml.Value{Kind: boundedyaml.Text, Text: c.text(p.Get("target"))}).Number()
		shown := c.text(p.Get("published")) + ":" + c.text(p.Get("target"))
		if protocol := p.Get("protocol").Str(); protocol != "" && protocol != "tcp" || inside > 65535 || outside > 65535 {
			inside = 0
		}
		k.published = append(k.published, published{c.text(p.Get("host_ip")), outside, inside, shown})
	}
}

func (c *compose) volumes(k *container, v *boundedyaml.Value) {
	for _, one := range v.Get("volumes").List {
		m := volume(c.put(one.Str()))
		if one.Kind == boundedyaml.Mapping {
			m = mount{source: c.text(one.Get("source")), target: c.text(one.Get("target")), readOnly: one.Get("read_only").Is()}
			switch one.Get("type").Str() {
			case "tmpfs":
				k.tmpfs = append(k.tmpfs, m.target)
				continue
			case "bind":
				if m.source != "" && !filepath.IsAbs(m.source) && !strings.HasPrefix(m.source, "~") {
					m.source = filepath.Join(c.base, m.source)
				}
			}
		}
		if home := c.given.Variables["HOME"]; filepath.IsAbs(home) && strings.HasPrefix(m.source, "~/") {
			m.source = filepath.Join(home, m.source[2:])
		}
		if strings.HasPrefix(m.source, "./") || strings.HasPrefix(m.source, "../") || m.source == "." || m.source == ".." {
			m.source = filepath.Join(c.base, m.source)
		}
		k.mounts = append(k.mounts, m)
	}
}

// needs takes over dependencies between services that are GPU services both.
func (c *compose) needs(s *program, k *container, v *boundedyaml.Value) {
	names := v.Get("depends_on").Strings()
	if v.Get("depends_on").Kind == boundedyaml.Mapping {
		names = v.Get("depends_on").Keys
	}
	for _, name := range names {
		if id := c.here[name]; id != "" && c.wanted[name] {
			k.needs = append(k.needs, id)
		} else {
			s.note("It depends on %s, which asks for no GPU and is not in the proposal: see that it runs.", clean.Line(clean.Visible(name), 64))
		}
	}
}

var healthURL = regexp.MustCompile(`https?://(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(?::[0-9]{1,5})?(/[A-Za-z0-9._~/\-]{0,127})`)

// rest says what became of a service's other keys.
func (c *compose) rest(s *program, v *boundedyaml.Value) {
	if check := v.Get("healthcheck"); check.IsSet() {
		if m := healthURL.FindStringSubmatch(strings.Join(check.Get("test").Strings(), " ")); m != nil {
			s.health = m[1]
		} else if !check.Get("disable").Is() {
			s.note("Its healthcheck is a command and was left out: a service is asked over HTTP at health.path.")
		}
		if d, err := time.ParseDuration(check.Get("start_period").Str()); err == nil && d > time.Minute {
			s.startS = uint32(min(d/time.Second, 3600))
		}
	}
	if d, err := time.ParseDuration(v.Get("stop_grace_period").Str()); err == nil && d >= time.Second {
		s.stopS = uint32(min(d/time.Second, 600))
	}
	for _, f := range v.Get("env_file").Strings() {
		s.note("Variables are in a file too, which is not read: %s", clean.Line(clean.Visible(f), 200))
	}
	for _, f := range v.Get("env_file").List {
		if path := f.Get("path").Str(); path != "" {
			s.note("Variables are in a file too, which is not read: %s", clean.Line(clean.Visible(path), 200))
		}
	}
	if n, ok := v.At("deploy", "replicas").Number(); ok && n != 1 {
		s.note("It asks for %d replicas; a service is one container.", n)
	}
	if how := v.Get("restart").Str(); how != "" && how != "no" {
		s.note("restart: %s was left out.", clean.Line(clean.Visible(how), 32))
		c.Note("What a file says of restarts was left out: a service that ends by itself is started again if its restart.max says so.")
	}
	for _, key := range v.Keys {
		switch {
		case slices.Contains(composeQuiet, key) || key == "env_file" || strings.HasPrefix(key, "x-"):
		case key == "secrets" || key == "configs":
			s.note("%s was left out: what is in them is not copied.", key)
		default:
			s.note("%s was left out.", clean.Line(clean.Visible(key), 64))
		}
	}
}

// sort notes in which profiles a service is.
func (c *compose) sort(id string, v *boundedyaml.Value) {
	names := c.texts(v.Get("profiles"))
	if len(names) == 0 {
		c.always = append(c.always, id)
	}
	for _, name := range names {
		if _, known := c.profiles[name]; !known {
			c.order = append(c.order, name)
		}
		c.profiles[name] = append(c.profiles[name], id)
	}
}

// modes makes a mode of each profile, with the services that are in none: Compose starts those with every profile.
func (c *compose) modes() {
	if len(c.always) > 0 {
		name := c.text(c.root.Get("name"))
		if proposal.ID(name) == "" {
			name = filepath.Base(c.base)
		}
		if id := proposal.FreeID(name, c.modeIDs); id != "" {
			c.Candidate(id, nil, c.always, "The services of "+c.file+" that are in no profile: docker compose up starts them.")
		}
	}
	for _, name := range c.order {
		if id := proposal.FreeID(name, c.modeIDs); id != "" {
			c.Mode(id, nil, append(slices.Clone(c.always), c.profiles[name]...), "The profile "+clean.Line(clean.Visible(name), 64)+" of "+c.file+".")
		}
	}
}
