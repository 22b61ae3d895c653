package catalog

import (
	"cmp"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/pattern"
)

// Bounds of an entry.
const (
	maxArguments    = 128
	maxArgument     = 4096
	maxEnvironment  = 64
	maxCredentials  = 16
	maxWrites       = 16
	maxDigests      = 256
	maxWeek         = 7 * 24 * 3600
	defaultLogBytes = 10 << 20
	minLogBytes     = 64 << 10
	maxLogBytes     = 1 << 30
	// defaultStallS is how long a start may show no sign of life; what Ollama allows a model to load.
	defaultStallS = 300
)

var (
	pathPattern = pattern.New(`\A/[A-Za-z0-9._~/\-]{0,127}\z`)
	// What stands for the type of an answer: "application/json".
	contentTypePattern = pattern.New(`\A[a-z]{1,32}/[a-z0-9.+\-]{1,64}\z`)
	credentialPattern  = pattern.New(`\A[a-z0-9][a-z0-9_.\-]{0,63}\z`)
)

// service is an entry as it stands in the file.
type service struct {
	Service     `yaml:",inline"`
	Model       string         `yaml:"model"`
	ExtraConfig map[string]any `yaml:"extra_config"`
}

// service resolves one entry.
func (c *checker) service(at spot, in *service) (*Service, *problem) {
	if !idPattern().MatchString(in.ID) {
		return nil, wrong(at.in(".id"), "a service id is up to 64 letters, digits, _ and -, and begins with a letter or digit")
	}
	resolved := in.Service
	out := &resolved
	out.Name, out.Description = cmp.Or(clean.Line(in.Name, maxName), in.ID), clean.Line(in.Description, maxDescription)
	for _, step := range []func(spot, *service, *Service) *problem{
		c.given, c.driver, c.resources, answers, sleeping, residence, limits, credentials, extraConfig,
	} {
		if p := step(at, in, out); p != nil {
			return nil, p
		}
	}
	return out, nil
}

// given refuses a driver that the configuration does not give.
func (c *checker) given(at spot, in *service, _ *Service) *problem {
	if c.opts.Drivers != nil && !slices.Contains(c.opts.Drivers, in.Driver) {
		if c.opts.InContainer && in.Driver != DriverDocker {
			return wrong(at.in(".driver"), "the executor runs in a container, from which it starts no program and no unit of the host: use the driver docker")
		}
		return wrong(at.in(".driver"), "this executor's configuration does not give it the %s driver", in.Driver)
	}
	return nil
}

// resources resolves the model and the GPUs that an entry names.
func (c *checker) resources(at spot, in *service, out *Service) *problem {
	if in.Model != "" {
		i := slices.IndexFunc(c.out.Models, func(m Model) bool { return m.ID == in.Model })
		if i < 0 {
			return wrong(at.in(".model"), "model %q is not defined under models", in.Model)
		}
		out.Model = &c.out.Models[i]
	}
	for i, index := range in.GPUs {
		here := at.in(".gpus[%d]", i)
		if slices.Contains(in.GPUs[:i], index) {
			return wrong(here, "GPU %d is named twice", index)
		}
		if !c.listed[index] { // one that is wrong is told of by itself
			return wrong(here, "GPU %d is not defined under gpus", index)
		}
	}
	switch {
	case in.VRAMMiB > maxVRAMMiB:
		return wrong(at.in(".vram_mib"), "vram_mib must be at most %d", maxVRAMMiB)
	case in.VRAMMiB > 0 && len(in.GPUs) == 0:
		return wrong(at.in(".vram_mib"), "vram_mib needs gpus: memory that is on no GPU cannot be counted")
	}
	return nil
}

// answers checks where the service answers and how one finds out whether it does.
func answers(at spot, in *service, out *Service) *problem {
	switch {
	case in.Port > 65535:
		return wrong(at.in(".port"), "a port is 1 to 65535")
	case in.Port == 0 && in.Driver == DriverProcess:
		return wrong(at, "a process service needs a port, 1 to 65535")
	case in.Port == 0 && (in.BaseURL != "" || in.Health != nil || in.OpenAI):
		return wrong(at, "base_url, health and openai need a port")
	case in.Port == 0, in.Driver == DriverNull:
		return nil
	}
	if p := baseURL(at, in, out); p != nil {
		return p
	}
	return health(at.in(".health"), in, out)
}

// health fills in and checks how health is asked for (SEC-H1..H5).
func health(at spot, in *service, out *Service) *problem {
	h := Health{Path: "/health", TimeoutS: 2, IntervalS: 2, UnhealthyAfter: 3, HealthyAfter: 1}
	if given := in.Health; given != nil {
		h.Path = cmp.Or(given.Path, h.Path)
		h.TimeoutS = cmp.Or(given.TimeoutS, h.TimeoutS)
		h.IntervalS = cmp.Or(given.IntervalS, h.IntervalS)
		h.UnhealthyAfter = cmp.Or(given.UnhealthyAfter, h.UnhealthyAfter)
		h.HealthyAfter = cmp.Or(given.HealthyAfter, h.HealthyAfter)
		h.ContentType = given.ContentType
	}
	switch {
	case !pathPattern().MatchString(h.Path) || hasDotDot(h.Path):
		return wrong(at.in(".path"), "a health path begins with / and holds letters, digits, . _ ~ - and /, without .. segments")
	case h.TimeoutS > 30:
		return wrong(at.in(".timeout_s"), "health.timeout_s must be 1 to 30")
	case h.IntervalS > 300:
		return wrong(at.in(".interval_s"), "health.interval_s must be 1 to 300")
	case h.UnhealthyAfter > 100:
		return wrong(at.in(".unhealthy_after"), "health.unhealthy_after must be 1 to 100")
	case h.HealthyAfter > 100:
		return wrong(at.in(".healthy_after"), "health.healthy_after must be 1 to 100")
	case h.ContentType != "" && h.ContentType != AnyContentType && !contentTypePattern().MatchString(h.ContentType):
		return wrong(at.in(".content_type"), "health.content_type is a media type without parameters, in small letters, or */*")
	}
	out.Health = &h
	return nil
}

// baseURL is where clients on this host reach the service.
func baseURL(at spot, in *service, out *Service) *problem {
	port := strconv.FormatUint(uint64(in.Port), 10)
	if in.BaseURL == "" {
		out.BaseURL = "http://127.0.0.1:" + port + "/v1"
		return nil
	}
	at = at.in(".base_url")
	u, err := url.Parse(in.BaseURL)
	if err != nil || u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" || len(in.BaseURL) > 256 {
		return wrong(at, "base_url must be http://ADDRESS:PORT/PATH and nothing more")
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err != nil || !addr.Unmap().IsLoopback() {
		return wrong(at, "base_url must name a loopback address of this host")
	}
	if u.Port() != port {
		return wrong(at, "base_url must name the service's own port %s", port)
	}
	if u.Path != "" && (!pathPattern().MatchString(u.Path) || hasDotDot(u.Path)) {
		return wrong(at, "base_url's path holds letters, digits, . _ ~ - and /, without .. segments")
	}
	return nil
}

// Address is where the executor reaches the service: at 127.0.0.1, or where base_url says that it listens. A container is published at
// 127.0.0.1, whatever clients are told.
func (s *Service) Address() netip.AddrPort {
	at := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if u, err := url.Parse(s.BaseURL); err == nil && s.Driver != DriverDocker {
		if named, err := netip.ParseAddr(u.Hostname()); err == nil {
			at = named.Unmap()
		}
	}
	return netip.AddrPortFrom(at, uint16(s.Port))
}

// sleeping checks how the service sleeps.
func sleeping(at spot, in *service, out *Service) *problem {
	switch in.Sleep {
	case "", SleepNone:
		out.Sleep = SleepNone
		if in.SleepMiB > 0 {
			return wrong(at.in(".sleep_mib"), "sleep_mib has no meaning for a service that does not sleep")
		}
		return nil
	case SleepVLLM1, SleepVLLM2, SleepLlamaRouter:
	default:
		return wrong(at.in(".sleep"), "sleep must be %q, %q, %q or %q", SleepNone, SleepVLLM1, SleepVLLM2, SleepLlamaRouter)
	}
	switch {
	case in.Driver == DriverNull:
		return wrong(at.in(".sleep"), "the null driver runs nothing that could sleep")
	case in.Port == 0:
		return wrong(at.in(".sleep"), "a service that sleeps needs a port: its engine is asked over HTTP")
	case len(in.GPUs) == 0 || in.VRAMMiB == 0:
		return wrong(at.in(".sleep"), "a service that sleeps needs gpus and vram_mib: that it sleeps is seen by its memory")
	case in.SleepMiB >= in.VRAMMiB:
		return wrong(at.in(".sleep_mib"), "sleep_mib, what it keeps while it sleeps, must be less than vram_mib")
	}
	return nil
}

// residence checks when the service may be stopped and started without being asked for.
func residence(at spot, in *service, out *Service) *problem {
	if in.MinResidenceS > maxWeek {
		return wrong(at.in(".min_residence_s"), "min_residence_s must be at most %d, a week", maxWeek)
	}
	if in.Idle != nil {
		here := at.in(".idle")
		switch {
		case in.Pin:
			return wrong(here, "a service with pin never goes idle")
		case in.Driver == DriverNull:
			return wrong(here, "the null driver runs nothing that could be idle")
		case in.Idle.Action != "sleep" && in.Idle.Action != "stop":
			return wrong(here.in(".action"), `idle.action must be "sleep" or "stop"`)
		case in.Idle.Action == "sleep" && out.Sleep == SleepNone:
			return wrong(here.in(".action"), "this service cannot sleep: its entry says no sleep")
		case in.Port == 0:
			return wrong(here, "a service without a port shows nobody whether it is used, so that it cannot be idle")
		case in.Idle.AfterS < 1 || in.Idle.AfterS > maxWeek:
			return wrong(here.in(".after_s"), "idle.after_s must be 1 to %d, a week", maxWeek)
		}
	}
	here := at.in(".restart")
	switch {
	case in.Restart.Max == 0 && in.Restart.WithinS > 0:
		return wrong(here, "restart.within_s has no meaning without restart.max")
	case in.Restart.Max > 10:
		return wrong(here.in(".max"), "restart.max must be at most 10")
	case in.Restart.Max > 0 && in.Driver == DriverNull:
		return wrong(here, "the null driver runs nothing that could end by itself")
	case in.Restart.Max > 0 && in.Restart.WithinS == 0:
		out.Restart.WithinS = 600
	case in.Restart.WithinS > 24*3600:
		return wrong(here.in(".within_s"), "restart.within_s must be at most 86400")
	}
	return nil
}

// limits fills in and checks the times and sizes.
func limits(at spot, in *service, out *Service) *problem {
	out.StartTimeoutS = cmp.Or(out.StartTimeoutS, 60)
	out.StopTimeoutS = cmp.Or(out.StopTimeoutS, 10)
	out.LogMaxBytes = cmp.Or(out.LogMaxBytes, defaultLogBytes)
	out.StallTimeoutS = cmp.Or(out.StallTimeoutS, min(defaultStallS, out.StartTimeoutS))
	switch {
	case out.StartTimeoutS > 3600:
		return wrong(at.in(".start_timeout_s"), "start_timeout_s must be 1 to 3600")
	case out.StallTimeoutS > out.StartTimeoutS:
		return wrong(at.in(".stall_timeout_s"), "stall_timeout_s must be at most start_timeout_s, %d", out.StartTimeoutS)
	case out.StopTimeoutS > 600:
		return wrong(at.in(".stop_timeout_s"), "stop_timeout_s must be 1 to 600")
	case out.LogMaxBytes < minLogBytes || out.LogMaxBytes > maxLogBytes:
		return wrong(at.in(".log_max_bytes"), "log_max_bytes must be %d to %d", minLogBytes, maxLogBytes)
	case len(in.Writes) > maxWrites || slices.ContainsFunc(in.Writes, func(w string) bool { return !plainPath(w) }):
		return wrong(at.in(".writes"), "writes is up to %d absolute paths in their shortest form", maxWrites)
	case len(in.Digests) > maxDigests || slices.ContainsFunc(in.Digests, func(d string) bool { return !plainPath(d) || slices.Contains(in.Writes, d) }):
		return wrong(at.in(".digests"), "digests is up to %d absolute paths in their shortest form, none of which the service writes", maxDigests)
	case len(in.Writes)+len(in.Digests) > 0 && in.Driver != DriverProcess && in.Driver != DriverSystemd:
		return wrong(at.in(".writes"), "writes and digests are for process and systemd services, whose arguments are held to the files that they name")
	case in.Limits != Limits{} && in.Driver != DriverProcess && in.Driver != DriverDocker:
		return wrong(at.in(".limits"), "limits are for process and docker services; a unit says its own")
	case in.Limits.MemoryMiB > maxVRAMMiB:
		return wrong(at.in(".limits.memory_mib"), "limits.memory_mib must be at most %d", maxVRAMMiB)
	case in.Limits.CPUPercent > 100*1024:
		return wrong(at.in(".limits.cpu_percent"), "limits.cpu_percent must be at most %d", 100*1024)
	case in.Limits.PIDs > 1<<20:
		return wrong(at.in(".limits.pids"), "limits.pids must be at most %d", 1<<20)
	}
	switch in.Network {
	case "", NetworkHost, NetworkLoopback, NetworkNone:
		return nil
	}
	return wrong(at.in(".network"), "network must be %q, %q or %q", NetworkHost, NetworkLoopback, NetworkNone)
}

// credentials are names alone: a value has no place in a file that approvers see.
func credentials(at spot, in *service, _ *Service) *problem {
	if len(in.Credentials) > maxCredentials {
		return wrong(at.in(".credentials"), "more than %d credentials", maxCredentials)
	}
	for i, name := range in.Credentials {
		here := at.in(".credentials[%d]", i)
		switch {
		case !credentialPattern().MatchString(name):
			return wrong(here, "a credential's name is up to 64 small letters, digits, _ - and .; its value is never written here")
		case slices.Contains(in.Credentials[:i], name):
			return wrong(here, "credential %q is named twice", name)
		}
	}
	return nil
}

// extraKeys is what extra_config may hold (SEC-D6): facts about the engine, each of a shape that no program could take for an
// option or a path.
var extraKeys = sync.OnceValue(func() map[string]*regexp.Regexp { // compiled when a catalog is read: most commands read none
	return map[string]*regexp.Regexp{
		"engine":                 regexp.MustCompile(`\A(vllm|llama\.cpp|sglang|ollama|tensorrt-llm|other)\z`),
		"engine_version":         regexp.MustCompile(`\A[0-9][0-9A-Za-z.+]{0,31}\z`),
		"context_size":           regexp.MustCompile(`\A[1-9][0-9]{0,7}\z`),
		"parallel":               regexp.MustCompile(`\A[1-9][0-9]{0,3}\z`),
		"tensor_parallel":        regexp.MustCompile(`\A[1-9][0-9]?\z`),
		"gpu_memory_utilization": regexp.MustCompile(`\A(0\.[0-9]{1,4}|1(\.0)?)\z`),
		"dtype":                  regexp.MustCompile(`\A[a-z][a-z0-9_]{0,31}\z`),
		"kv_cache_dtype":         regexp.MustCompile(`\A[a-z][a-z0-9_]{0,31}\z`),
		"quantization":           regexp.MustCompile(`\A[A-Za-z][A-Za-z0-9_]{0,31}\z`),
		// What an estimate needs to know where the command line is not in the catalog (a unit's, an adopted container's).
		"kv_cache_dtype_k":      regexp.MustCompile(`\A[a-z][a-z0-9_]{0,31}\z`),
		"kv_cache_dtype_v":      regexp.MustCompile(`\A[a-z][a-z0-9_]{0,31}\z`),
		"kv_cache_memory_bytes": regexp.MustCompile(`\A[1-9][0-9]{0,13}\z`),
		"kv_unified":            regexp.MustCompile(`\A(on|off)\z`),
		"batch_size":            regexp.MustCompile(`\A[1-9][0-9]{0,5}\z`),
		"micro_batch_size":      regexp.MustCompile(`\A[1-9][0-9]{0,5}\z`),
		"gpu_layers":            regexp.MustCompile(`\A(0|[1-9][0-9]{0,3})\z`),
		"flash_attention":       regexp.MustCompile(`\A(on|off)\z`),
		"fit":                   regexp.MustCompile(`\A(on|off)\z`),
		"fit_target_mib":        regexp.MustCompile(`\A[1-9][0-9]{0,5}\z`),
		"split_mode":            regexp.MustCompile(`\A(none|layer|row|tensor)\z`),
		"tensor_split":          regexp.MustCompile(`\A[0-9]{1,6}(\.[0-9]{1,4})?(,[0-9]{1,6}(\.[0-9]{1,4})?){0,63}\z`),
		"main_gpu":              regexp.MustCompile(`\A(0|[1-9][0-9]?)\z`),
	}
})

// IsExtra reports whether a value may stand under a key of extra_config.
func IsExtra(key, value string) bool {
	pattern, known := extraKeys()[key]
	return known && pattern.MatchString(value)
}

func extraConfig(at spot, in *service, out *Service) *problem {
	at = at.in(".extra_config")
	for _, key := range sortedKeys(in.ExtraConfig) {
		pattern, known := extraKeys()[key]
		if !known {
			return wrong(at.in(".%s", safeKey(key)), "extra_config knows %s", strings.Join(sortedKeys(extraKeys()), ", "))
		}
		value, ok := scalar(in.ExtraConfig[key])
		if !ok || !pattern.MatchString(value) {
			return wrong(at.in(".%s", key), "%s does not look like one", key)
		}
		if out.ExtraConfig == nil {
			out.ExtraConfig = map[string]string{}
		}
		out.ExtraConfig[key] = value
	}
	return nil
}

// scalar returns a YAML scalar as it would be written.
func scalar(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case uint64:
		return strconv.FormatUint(v, 10), true
	case int64:
		return strconv.FormatInt(v, 10), true
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), true
	}
	return "", false
}

// safeKey keeps a strange key from being taken for a YAML path.
func safeKey(key string) string {
	if environmentPattern().MatchString(key) {
		return key
	}
	return "?"
}

func hasDotDot(s string) bool {
	return slices.Contains(strings.Split(s, "/"), "..") || path.Clean("/"+s) == "/.."
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f || r == 0xfffd })
}
