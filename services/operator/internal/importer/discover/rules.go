package discover

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
)

// Rules are what the executor lets a container be that an entry adopts (SEC-D7..D10). They are the executor's own, said once more over
// the daemon's JSON, since the operator's program may not link Docker's structures: a test of the executor holds both against the same
// containers. What only the executor can see (sockets in a folder, who may rename one, the host's mount table) is judged by it alone,
// when the container is used. A field without a rule must say nothing.
type Rules struct {
	// Mounts are the folders of the host that a human allows, Environment further keys.
	Mounts, Environment []string
	// GPUs are the UUIDs that the entry will name.
	GPUs []string
}

type judged struct {
	Rules
	inspection
	image
	// port is what would be published, inside and on the host.
	inside, port uint32
}

// rule says what is wrong with a field, "" if nothing is.
type rule func(j *judged, raw json.RawMessage) string

var (
	userPattern   = regexp.MustCompile(`\A[1-9][0-9]{0,8}(:[0-9]{1,9})?\z`)
	keyPattern    = regexp.MustCompile(`\A[A-Za-z_][A-Za-z0-9_]{0,63}\z`)
	hostname      = regexp.MustCompile(`\A[a-zA-Z0-9]([a-zA-Z0-9.\-]{0,62})?\z`)
	namePattern   = regexp.MustCompile(`\A(sha256:[0-9a-f]{64}|[a-z0-9][a-zA-Z0-9._:/\-]{0,254}(@sha256:[0-9a-f]{64})?)\z`)
	cpuSet        = regexp.MustCompile(`\A[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*\z`)
	logSize       = regexp.MustCompile(`\A([1-9][0-9]{0,9})([bkmg]?)\z`)
	profileName   = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._/\-]{0,127}\z`)
	tmpfsOption   = regexp.MustCompile(`\A(rw|ro|nosuid|nodev|noexec|exec|noatime|size=[0-9]{1,13}[kmgKMG]?|mode=0?[0-7]{3,4}|uid=[0-9]{1,9}|gid=[0-9]{1,9})\z`)
	stopSignals   = []string{"", "SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "15", "2", "3", "1"}
	maskedPaths   = []string{"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	// Folders of a container that nothing is laid over.
	insideRefused = []string{"/proc", "/sys", "/dev"}
	// Keys that any container may be given.
	plainKeys = []string{
		"HOME", "LANG", "LC_ALL", "TERM", "TZ", "USER", "XDG_CACHE_HOME",
		"HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE",
		"TOKENIZERS_PARALLELISM", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "NCCL_DEBUG", "PYTORCH_CUDA_ALLOC_CONF",
		"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "OMP_NUM_THREADS", "PYTHONUNBUFFERED",
		"VLLM_ATTENTION_BACKEND", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS",
		"VLLM_SERVER_DEV_MODE", "VLLM_USE_V1", "VLLM_WORKER_MULTIPROC_METHOD", "DO_NOT_TRACK",
		"LLAMA_CACHE", "LLAMA_LOG_VERBOSITY", "OLLAMA_MODELS", "OLLAMA_KEEP_ALIVE", "OLLAMA_NUM_PARALLEL",
	}
	loaders = []string{"LD_", "GCONV_PATH", "GETCONF_DIR", "GLIBC_TUNABLES", "MALLOC_TRACE", "LOCPATH", "NIS_PATH", "NLSPATH", "HOSTALIASES"}
)

func as[T any](raw json.RawMessage) (v T, ok bool) { return v, json.Unmarshal(raw, &v) == nil }

// one makes a rule of a test of a field's value.
func one[T any](good func(v T) bool, wrong string) rule {
	return func(_ *judged, raw json.RawMessage) string {
		if v, ok := as[T](raw); ok && good(v) {
			return ""
		}
		return wrong
	}
}

func among[T comparable](list ...T) func(T) bool {
	return func(v T) bool { return slices.Contains(list, v) }
}

func contains(want ...string) func([]string) bool {
	return func(have []string) bool {
		return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(have, w) })
	}
}

func free(*judged, json.RawMessage) string { return "" }

// configRules are of what could run anywhere, hostRules of what touches the host. A field that is in neither must be empty.
var configRules = map[string]rule{
	"Hostname":    one(func(v string) bool { return v == "" || hostname.MatchString(v) }, "is not a plain name"),
	"User":        one(userPattern.MatchString, "must be UID or UID:GID in numbers, and not 0"),
	"Image":       one(namePattern.MatchString, "is not an image's name"),
	"Env":         (*judged).variables,
	"StopSignal":  one(among(stopSignals...), "is not one that asks a program to end"),
	"Tty":         one(func(v bool) bool { return !v }, "a service has no terminal"),
	"OpenStdin":   one(func(v bool) bool { return !v }, "a service has no input"),
	"AttachStdin": free, "AttachStdout": free, "AttachStderr": free, "StdinOnce": free, "ExposedPorts": free, "Cmd": free, "Entrypoint": free,
	"Shell": free, "OnBuild": free, "ArgsEscaped": free, "WorkingDir": free, "Labels": free, "Healthcheck": free, "NetworkDisabled": free,
	"StopTimeout": free, "Volumes": free,
}

var hostRules = map[string]rule{
	"Privileged":      one(func(v bool) bool { return !v }, "privileged containers are the host"),
	"PublishAllPorts": one(func(v bool) bool { return !v }, "ports are published on 127.0.0.1, one by one"),
	"ReadonlyRootfs":  one(func(v bool) bool { return v }, "the root folder must be read-only"),
	"AutoRemove":      one(func(v bool) bool { return !v }, "a container that goes by itself tells nobody why"),
	"CapAdd": one(func(v []string) bool {
		return !slices.ContainsFunc(v, func(c string) bool { return c != "NET_BIND_SERVICE" && c != "CAP_NET_BIND_SERVICE" })
	}, "adds capabilities"),
	"CapDrop":       one(func(v []string) bool { return slices.Contains(v, "ALL") || slices.Contains(v, "CAP_ALL") }, "must drop ALL"),
	"SecurityOpt":   (*judged).security,
	"CgroupnsMode":  one(among("private"), "must be private"),
	"IpcMode":       one(among("private", "none"), "must be private"),
	"PidMode":       one(among(""), "must be the container's own"),
	"UTSMode":       one(among(""), "must be the container's own"),
	"UsernsMode":    one(among(""), "must be the daemon's"),
	"NetworkMode":   one(among("default", "bridge", "none"), "must be bridge or none"),
	"Runtime":       one(among("", "runc", "io.containerd.runc.v2"), "another runtime than runc decides by itself what a container gets"),
	"Isolation":     one(among("", "default"), "is not for Linux"),
	"RestartPolicy": (*judged).restarts,
	"MaskedPaths":   one(contains(maskedPaths...), "must hide what Docker hides"),
	"ReadonlyPaths": one(contains(readonlyPaths...), "must protect what Docker protects"),
	"Sysctls":       one(func(v map[string]string) bool { return len(v) == 0 }, "are judged by the executor alone; leave them out"),
	"LogConfig":     (*judged).logs,
	"PortBindings": func(j *judged, raw json.RawMessage) string {
		published, ok := as[map[string][]binding](raw)
		return unless(ok && j.published(published), "one port, the entry's, is published, on 127.0.0.1 alone")
	},
	"DeviceRequests":    (*judged).devices,
	"Binds":             (*judged).binds,
	"Mounts":            (*judged).mounts,
	"Tmpfs":             (*judged).tmpfs,
	"ShmSize":           one(func(v int64) bool { return v >= 0 }, "is negative"),
	"Memory":            one(func(v int64) bool { return v >= 0 }, "is negative"),
	"MemorySwap":        (*judged).swap,
	"MemoryReservation": one(func(v int64) bool { return v >= 0 }, "is negative"),
	"MemorySwappiness":  free,
	"NanoCpus":          one(func(v int64) bool { return v >= 0 }, "is negative"),
	"CpuPeriod":         one(func(v int64) bool { return v >= 0 }, "is negative"),
	"CpuQuota":          one(func(v int64) bool { return v >= 0 }, "must not lift the limit"),
	"CpusetCpus":        one(func(v string) bool { return v == "" || cpuSet.MatchString(v) }, "is not a set of processors"),
	"PidsLimit":         one(func(v *int64) bool { return v != nil && *v > 0 && *v <= 1<<20 }, "must be set"),
	"OomKillDisable":    one(func(v *bool) bool { return v == nil || !*v }, "what takes too much memory must be ended"),
	"Ulimits":           (*judged).ulimits,
	"ConsoleSize":       free,
	"Init":              free,
}

func unless(good bool, wrong string) string {
	if good {
		return ""
	}
	return wrong
}

// check lists by what the container is wider than the rules, in the order of the fields' names.
func (r Rules) check(seen inspection, base image, c Container) []string {
	j := &judged{Rules: r, inspection: seen, image: base, inside: c.Inside, port: c.Port}
	var out []string
	if seen.Config == nil || seen.HostConfig == nil {
		return []string{"it has no configuration"}
	}
	for _, side := range []struct {
		name  string
		said  map[string]json.RawMessage
		rules map[string]rule
	}{{"Config", seen.Config, configRules}, {"HostConfig", seen.HostConfig, hostRules}} {
		keys := map[string]bool{}
		for key := range side.rules {
			keys[key] = true
		}
		for key := range side.said {
			keys[key] = true
		}
		var found []string
		for key := range keys {
			raw, said := side.said[key]
			if !said {
				raw = json.RawMessage("null")
			}
			judge, known := side.rules[key]
			wrong := ""
			switch {
			case known:
				wrong = judge(j, raw)
			case !canonical.Empty(raw):
				wrong = "no rule allows it"
			}
			if wrong != "" {
				found = append(found, side.name+"."+clean.Line(key, 64)+": "+wrong)
			}
		}
		slices.Sort(found)
		out = append(out, found...)
	}
	return append(out, j.reported()...)
}

// reported judges what the daemon says that it did.
func (j *judged) reported() (out []string) {
	for _, m := range j.inspection.Mounts {
		switch {
		case m.Type == "tmpfs":
		case m.Type != "bind":
			out = append(out, "Mounts: a volume has no bound, and may be anything that its driver finds")
		case !private(m.Propagation):
			out = append(out, "Mounts: mounts must not pass through to the host and back")
		default:
			if wrong := target(m.Destination) + j.source(m.Source); wrong != "" {
				out = append(out, "Mounts: "+wrong)
			}
		}
	}
	if j.AppArmorProfile == "unconfined" {
		out = append(out, "AppArmorProfile: must not be unconfined")
	}
	if !j.published(j.NetworkSettings.Ports) {
		out = append(out, "NetworkSettings.Ports: one port, the entry's, is published, on 127.0.0.1 alone")
	}
	mode := part[string](j.HostConfig, "NetworkMode")
	for name, endpoint := range j.NetworkSettings.Networks {
		if !slices.Contains([]string{"default", "bridge", "none"}, name) || (mode == "none") != (name == "none") {
			out = append(out, "NetworkSettings.Networks: "+clean.Line(name, 64)+" is not the network that was asked for")
		} else if endpoint != nil && (len(endpoint.Links) > 0 || len(endpoint.DriverOpts) > 0) {
			out = append(out, "NetworkSettings.Networks: links and driver options have no rule")
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (j *judged) published(ports map[string][]binding) bool {
	for key, bindings := range ports {
		for _, b := range bindings {
			if b.HostIP != "127.0.0.1" || j.port == 0 || key != fmt.Sprintf("%d/tcp", j.inside) || b.HostPort != strconv.FormatUint(uint64(j.port), 10) {
				return false
			}
		}
	}
	return true
}

func (j *judged) variables(raw json.RawMessage) string {
	pairs, ok := as[[]string](raw)
	if !ok {
		return "is not a list"
	}
	seen := map[string]bool{}
	for _, pair := range pairs {
		key, value, found := strings.Cut(pair, "=")
		switch {
		case !found || !keyPattern.MatchString(key) || strings.ContainsRune(value, 0):
			return "holds what is not KEY=VALUE"
		case seen[key]:
			return key + " is set twice"
		case !j.mayBeSet(key, value, slices.Contains(j.image.Config.Env, pair)):
			return key + " is not allowed"
		}
		seen[key] = true
	}
	return ""
}

func (j *judged) mayBeSet(key, value string, byImage bool) bool {
	switch {
	case byImage && key == "LD_LIBRARY_PATH":
		return !slices.ContainsFunc(strings.Split(value, ":"), func(folder string) bool { return !lasting(folder) })
	case slices.ContainsFunc(loaders, func(l string) bool { return strings.HasPrefix(key, l) }):
		return false
	case key == "NVIDIA_VISIBLE_DEVICES":
		return value == "void" || value == "none" || byImage && slices.ContainsFunc(part[[]deviceRequest](j.HostConfig, "DeviceRequests"),
			func(r deviceRequest) bool { return r.Driver == "nvidia" })
	case strings.HasPrefix(key, "NVIDIA_"):
		return byImage && harmless(key, value)
	case byImage:
		return true
	}
	return slices.Contains(plainKeys, key) || slices.Contains(j.Environment, key)
}

func lasting(folder string) bool {
	return filepath.IsAbs(folder) && filepath.Clean(folder) == strings.TrimSuffix(folder, "/") &&
		!slices.ContainsFunc([]string{"/proc", "/dev", "/sys", "/run", "/var/run", "/tmp", "/var/tmp"}, func(root string) bool { return within(folder, root) })
}

func harmless(key, value string) bool {
	switch {
	case key == "NVIDIA_DRIVER_CAPABILITIES":
		for name := range strings.SplitSeq(value, ",") {
			if name != "compute" && name != "utility" && name != "video" {
				return false
			}
		}
		return true
	case strings.HasPrefix(key, "NVIDIA_REQUIRE_"), strings.HasSuffix(key, "_VERSION"):
		return true
	}
	return slices.Contains([]string{"NVIDIA_BUILD_ID", "NVIDIA_CUDA_END_OF_LIFE", "NVIDIA_DISABLE_REQUIRE", "NVIDIA_PRODUCT_NAME"}, key)
}

// security: no-new-privileges must be said, and profiles may be named. A seccomp profile that is written out is left to the executor, which
// weighs it: here it is refused.
func (j *judged) security(raw json.RawMessage) string {
	options, ok := as[[]string](raw)
	forbidden := false
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		switch {
		case slices.Contains([]string{"no-new-privileges", "no-new-privileges=true", "no-new-privileges:true"}, option):
			forbidden = true
		case name == "apparmor" && profileName.MatchString(value) && value != "unconfined", option == "seccomp=builtin":
		default:
			return clean.Line(name, 32) + " would loosen the container"
		}
	}
	return unless(ok && forbidden, "must say no-new-privileges")
}

func (j *judged) restarts(raw json.RawMessage) string {
	policy, ok := as[struct {
		Name              string
		MaximumRetryCount int
	}](raw)
	return unless(ok && (policy.Name == "" || policy.Name == "no") && policy.MaximumRetryCount == 0,
		"a container that starts by itself takes GPU memory behind a switch's back")
}

func (j *judged) logs(raw json.RawMessage) string {
	log, ok := as[struct {
		Type   string
		Config map[string]string
	}](raw)
	if !ok || log.Type != "json-file" && log.Type != "local" {
		return "must be json-file or local"
	}
	files := int64(1)
	for key, value := range log.Config {
		switch key {
		case "max-size", "compress", "mode":
		case "max-file":
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil || n < 1 || n > 10 {
				return "max-file is out of bounds"
			}
			files = n
		default:
			return "option " + clean.Line(key, 64) + " has no rule"
		}
	}
	size := logSize.FindStringSubmatch(strings.ToLower(log.Config["max-size"]))
	if size == nil {
		return "max-size must be set"
	}
	n, err := strconv.ParseInt(size[1], 10, 64)
	if err != nil {
		return "max-size must be set"
	}
	n <<= map[string]int{"": 0, "b": 0, "k": 10, "m": 20, "g": 30}[size[2]]
	return unless(n > 0 && n <= (2<<30)/files, "the log would grow beyond bounds")
}

func (j *judged) swap(raw json.RawMessage) string {
	swap, ok := as[int64](raw)
	memory := part[int64](j.HostConfig, "Memory")
	return unless(ok && (swap == 0 || memory > 0 && swap >= memory && swap <= 2*memory), "must be between the memory limit and twice that")
}

func (j *judged) ulimits(raw json.RawMessage) string {
	list, ok := as[[]*struct {
		Name       string
		Hard, Soft int64
	}](raw)
	for _, u := range list {
		switch {
		case u == nil:
			return "is empty"
		case u.Name == "core" && u.Hard == 0 && u.Soft == 0:
		case u.Name == "nofile" && u.Hard > 0 && u.Hard <= 1<<20 && u.Soft >= 0 && u.Soft <= u.Hard:
		default:
			return clean.Line(u.Name, 32) + " has no rule"
		}
	}
	return unless(ok, "is not a list")
}

func (j *judged) devices(raw json.RawMessage) string {
	requests, ok := as[[]deviceRequest](raw)
	for _, r := range requests {
		if r.Count != 0 || len(r.Options) > 0 || len(r.DeviceIDs) == 0 {
			return "GPUs are named one by one"
		}
		prefix := ""
		switch r.Driver {
		case "cdi":
			if prefix = cdiPrefix; len(r.Capabilities) > 0 {
				return "a CDI device has no capabilities"
			}
		case "nvidia":
			if len(r.Capabilities) != 1 || !slices.Contains(r.Capabilities[0], "gpu") {
				return "must ask for a gpu"
			}
			for _, c := range r.Capabilities[0] {
				if c != "gpu" && c != "compute" && c != "utility" {
					return clean.Line(c, 32) + " is not for computing"
				}
			}
		default:
			return "the driver must be cdi or nvidia"
		}
		for _, id := range r.DeviceIDs {
			uuid, found := strings.CutPrefix(id, prefix)
			if !found || !uuidPattern.MatchString(uuid) || !slices.Contains(j.GPUs, uuid) {
				return clean.Line(id, 64) + " is not one of the catalogue's GPUs by UUID"
			}
		}
	}
	return unless(ok, "is not a list")
}

func (j *judged) binds(raw json.RawMessage) string {
	list, ok := as[[]string](raw)
	for _, b := range list {
		parts := strings.Split(b, ":")
		if len(parts) < 2 || len(parts) > 3 {
			return clean.Line(b, 128) + " is not SOURCE:TARGET:OPTIONS"
		}
		if len(parts) == 3 {
			for option := range strings.SplitSeq(parts[2], ",") {
				if option != "ro" && option != "rw" && (option == "" || !private(option)) {
					return clean.Line(option, 32) + " has no rule"
				}
			}
		}
		if wrong := target(parts[1]) + j.source(parts[0]); wrong != "" {
			return wrong
		}
	}
	return unless(ok, "is not a list")
}

func (j *judged) mounts(raw json.RawMessage) string {
	list, ok := as[[]struct {
		Type, Source, Target, Consistency string
		BindOptions                       *struct {
			Propagation      string
			CreateMountpoint bool
		}
		VolumeOptions, ImageOptions, ClusterOptions, TmpfsOptions json.RawMessage
	}](raw)
	for _, m := range list {
		if wrong := target(m.Target); wrong != "" {
			return wrong
		}
		switch {
		case m.Consistency != "" && m.Consistency != "default", !canonical.Empty(orNull(m.VolumeOptions)), !canonical.Empty(orNull(m.ImageOptions)), !canonical.Empty(orNull(m.ClusterOptions)):
			return "only folders of the host and memory are mounted"
		case m.Type == "tmpfs" && m.Source == "" && m.BindOptions == nil:
		case m.Type == "bind" && canonical.Empty(orNull(m.TmpfsOptions)):
			if o := m.BindOptions; o != nil && (!private(o.Propagation) || o.CreateMountpoint) {
				return "mounts must not pass through to the host and back"
			}
			if wrong := j.source(m.Source); wrong != "" {
				return wrong
			}
		default:
			return clean.Line(m.Type, 32) + " is not mounted here"
		}
	}
	return unless(ok, "is not a list")
}

func orNull(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return json.RawMessage("null")
	}
	return raw
}

func (j *judged) tmpfs(raw json.RawMessage) string {
	places, ok := as[map[string]string](raw)
	for place, options := range places {
		if wrong := target(place); wrong != "" {
			return wrong
		}
		for option := range strings.SplitSeq(options, ",") {
			if option != "" && !tmpfsOption.MatchString(option) {
				return clean.Line(option, 32) + " has no rule"
			}
		}
	}
	return unless(ok, "is not a mapping")
}

// source judges a folder of the host by its name, and by where its symbolic links lead.
func (j *judged) source(path string) string {
	if !plain(path) {
		return clean.Line(path, 128) + " cannot be resolved"
	}
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		return clean.Line(path, 128) + " is reached through a symbolic link"
	}
	if path == "/" {
		return "the whole host is not mounted"
	}
	if !slices.ContainsFunc(j.Rules.Mounts, func(yes string) bool { return yes != "/" && within(path, yes) }) {
		return clean.Line(path, 128) + " lies in no folder that a human allows (containers.mounts)"
	}
	if why := catalog.Unmountable(path); why != "" {
		return clean.Line(path, 128) + " " + why
	}
	return ""
}

func target(path string) string {
	if !plain(path) || path == "/" {
		return clean.Line(path, 128) + " is not a place in a container"
	}
	if slices.ContainsFunc(insideRefused, func(no string) bool { return within(path, no) }) {
		return clean.Line(path, 128) + " would lay itself over the kernel's files"
	}
	return ""
}

func plain(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && len(path) <= 4096 &&
		!strings.ContainsFunc(path, func(r rune) bool { return r < 0x20 || r == 0x7f || r == ':' || r == ',' })
}

func within(path, folder string) bool {
	return path == folder || folder == "/" || strings.HasPrefix(path, folder+"/")
}

func private(propagation string) bool {
	return propagation == "" || propagation == "private" || propagation == "rprivate"
}
