package containerpolicy

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"durward.internal/services/platform/pattern"
)

// Bounds of what an adopted container may be given where the entry says nothing.
const (
	maxPIDs     = 1 << 20
	maxLogBytes = 2 << 30
	maxLogFiles = 10
	maxFiles    = 1 << 20
)

var (
	userPattern = pattern.New(`\A[1-9][0-9]{0,8}(:[0-9]{1,9})?\z`)
	hostname    = pattern.New(`\A[a-zA-Z0-9]([a-zA-Z0-9.\-]{0,62})?\z`)
	imageName   = pattern.New(`\A(sha256:[0-9a-f]{64}|[a-z0-9][a-zA-Z0-9._:/\-]{0,254}(@sha256:[0-9a-f]{64})?)\z`)
	cpuSet      = pattern.New(`\A[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*\z`)
	logSize     = pattern.New(`\A([1-9][0-9]{0,9})([bkmg]?)\z`)
	stopSignal  = pattern.New(`\A(|SIGTERM|SIGINT|SIGQUIT|SIGHUP|15|2|3|1)\z`)
)

// container is a container in Docker's JSON, as far as it is judged. What a structure does not name is in its Others. A name
// that comes twice makes the whole unreadable.
type container struct {
	Config *config
	Host   *hostConfig `json:"HostConfig"`
	// What follows is there once the daemon has made the container.
	AppArmorProfile string
	Mounts          []mountPoint
	NetworkSettings struct {
		Ports    portMap
		Networks map[string]*struct {
			Links      []string
			DriverOpts map[string]string
		}
	}
}

// config could run anywhere.
type config struct {
	Hostname, User, Image, StopSignal string
	Env                               []string
	Tty, OpenStdin                    bool
	Others                            map[string]jsontext.Value `json:",embed"`
}

// hostConfig touches the host.
type hostConfig struct {
	Privileged, PublishAllPorts, ReadonlyRootfs, AutoRemove                       bool
	CapAdd, CapDrop, SecurityOpt, MaskedPaths, ReadonlyPaths, Binds               []string
	CgroupnsMode, IpcMode, PidMode, UTSMode, UsernsMode, NetworkMode              string
	Runtime, Isolation, CpusetCpus                                                string
	Sysctls, Tmpfs, Annotations, StorageOpt                                       map[string]string
	ShmSize, Memory, MemorySwap, MemoryReservation, NanoCpus, CpuPeriod, CpuQuota int64
	PidsLimit, Umask                                                              *int64
	OomKillDisable                                                                *bool
	PortBindings                                                                  portMap
	DeviceRequests                                                                []deviceRequest
	Mounts                                                                        []mount
	RestartPolicy                                                                 struct {
		Name              string
		MaximumRetryCount int
	}
	LogConfig struct {
		Type   string
		Config map[string]string
	}
	Ulimits []*struct {
		Name       string
		Hard, Soft int64
	}
	Others map[string]jsontext.Value `json:",embed"`
}

// portMap are addresses and ports of the host by a port of the container, such as 8000/tcp.
type portMap map[string][]struct {
	HostIP   string `json:"HostIp"`
	HostPort string
}

// configFree and hostFree may say anything: it stays inside the container, is the image's own, or is judged elsewhere: what the
// daemon makes of Volumes is in Mounts. A health check runs inside the container, as the container.
var (
	configFree = []string{
		"AttachStdin", "AttachStdout", "AttachStderr", "StdinOnce", "ExposedPorts", "Cmd", "Entrypoint", "Shell", "OnBuild", "ArgsEscaped",
		"WorkingDir", "Labels", "Healthcheck", "NetworkDisabled", "StopTimeout", "Volumes",
	}
	hostFree = []string{"MemorySwappiness", "ConsoleSize", "Init"}
)

var configRules = map[string]rule{
	"Hostname": func(k *check) string {
		return unless(k.Config.Hostname == "" || hostname().MatchString(k.Config.Hostname), "is not a plain name")
	},
	"User": user,
	"Image": func(k *check) string {
		return unless(imageName().MatchString(k.Config.Image), "is not an image's name")
	},
	"Env": environment,
	"StopSignal": func(k *check) string {
		return unless(stopSignal().MatchString(k.Config.StopSignal), "is not one that asks a program to end")
	},
	"Tty":       func(k *check) string { return unless(!k.Config.Tty, "a service has no terminal") },
	"OpenStdin": func(k *check) string { return unless(!k.Config.OpenStdin, "a service has no input") },
}

var hostRules = map[string]rule{
	"Privileged": func(k *check) string { return unless(!k.Host.Privileged, "privileged containers are the host") },
	"PublishAllPorts": func(k *check) string {
		return unless(!k.Host.PublishAllPorts, "ports are published on 127.0.0.1, one by one")
	},
	"ReadonlyRootfs": func(k *check) string { return unless(k.Host.ReadonlyRootfs, "the root folder must be read-only") },
	"AutoRemove": func(k *check) string {
		return unless(!k.Host.AutoRemove, "a container that goes by itself tells nobody why")
	},
	"CapAdd": capabilitiesAdded,
	"CapDrop": func(k *check) string {
		return unless(slices.Contains(k.Host.CapDrop, "ALL") || slices.Contains(k.Host.CapDrop, "CAP_ALL"), "must drop ALL")
	},
	"SecurityOpt": securityOptions,
	"CgroupnsMode": func(k *check) string {
		return unless(k.Host.CgroupnsMode == "private", "must be private")
	},
	"IpcMode": func(k *check) string {
		return unless(k.Host.IpcMode == "private" || k.Host.IpcMode == "none", "must be private")
	},
	"PidMode":    func(k *check) string { return unless(k.Host.PidMode == "", "must be the container's own") },
	"UTSMode":    func(k *check) string { return unless(k.Host.UTSMode == "", "must be the container's own") },
	"UsernsMode": func(k *check) string { return unless(k.Host.UsernsMode == "", "must be the daemon's") },
	"NetworkMode": func(k *check) string {
		return unless(slices.Contains(networks, k.Host.NetworkMode), "must be bridge or none")
	},
	"Runtime": func(k *check) string {
		return unless(slices.Contains(runtimes, k.Host.Runtime), "another runtime than runc decides by itself what a container gets")
	},
	"Isolation": func(k *check) string {
		return unless(k.Host.Isolation == "" || k.Host.Isolation == "default", "is not for Linux")
	},
	"RestartPolicy": func(k *check) string {
		return unless((k.Host.RestartPolicy.Name == "" || k.Host.RestartPolicy.Name == "no") && k.Host.RestartPolicy.MaximumRetryCount == 0,
			"a container that starts by itself takes GPU memory behind a switch's back")
	},
	"MaskedPaths":    func(k *check) string { return holds(k.Host.MaskedPaths, maskedPaths) },
	"ReadonlyPaths":  func(k *check) string { return holds(k.Host.ReadonlyPaths, readonlyPaths) },
	"Sysctls":        sysctls,
	"LogConfig":      logConfig,
	"PortBindings":   portBindings,
	"DeviceRequests": deviceRequests,
	"Annotations":    func(k *check) string { return unless(len(k.Host.Annotations) == 0, noRule) },
	"StorageOpt":     func(k *check) string { return unless(len(k.Host.StorageOpt) == 0, noRule) },
	"Umask":          func(k *check) string { return unless(k.Host.Umask == nil, noRule) },
	"Binds":          binds,
	"Mounts":         mounts,
	"Tmpfs":          tmpfs,
	"ShmSize":        func(k *check) string { return unless(k.Host.ShmSize >= 0, "is negative") },
	"Memory": func(k *check) string {
		return limit(k.Host.Memory, k.MemoryBytes, 1<<62, k.MemoryBytes > 0)
	},
	"MemorySwap":        memorySwap,
	"MemoryReservation": func(k *check) string { return unless(k.Host.MemoryReservation >= 0, "is negative") },
	"NanoCpus":          processors,
	"CpuPeriod":         func(k *check) string { return unless(k.Host.CpuPeriod >= 0, "is negative") },
	"CpuQuota":          func(k *check) string { return unless(k.Host.CpuQuota >= 0, "must not lift the limit") },
	"CpusetCpus": func(k *check) string {
		return unless(k.Host.CpusetCpus == "" || cpuSet().MatchString(k.Host.CpusetCpus), "is not a set of processors")
	},
	"PidsLimit": func(k *check) string {
		if k.Host.PidsLimit == nil {
			return "must be set"
		}
		return limit(*k.Host.PidsLimit, k.PIDs, maxPIDs, true)
	},
	"OomKillDisable": func(k *check) string {
		return unless(k.Host.OomKillDisable == nil || !*k.Host.OomKillDisable, "what takes too much memory must be ended")
	},
	"Ulimits": ulimits,
}

var (
	networks = []string{"default", "bridge", "none"}
	runtimes = []string{"", "runc", "io.containerd.runc.v2"}
	// What Docker 20.10 hides and protects in /proc and /sys; newer ones do more.
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/sched_debug", "/proc/scsi", "/sys/firmware",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// MaskedPaths and ReadonlyPaths are what a container that is made here has hidden and protected: the newest daemon's list, so
// that an older one does as much.
func MaskedPaths() []string {
	return append(slices.Clone(maskedPaths), "/proc/interrupts", "/proc/timer_stats", "/sys/devices/virtual/powercap")
}

// ReadonlyPaths says what is read-only in /proc.
func ReadonlyPaths() []string { return slices.Clone(readonlyPaths) }

func holds(have, want []string) string {
	for _, path := range want {
		if !slices.Contains(have, path) {
			return "lacks " + path
		}
	}
	return ""
}

// limit judges a limit against the tightest demand there is; 0 is no limit, and so are negative numbers.
func limit(have, want, most int64, demanded bool) string {
	switch {
	case have < 0, demanded && have == 0:
		return "must be set"
	case want > 0 && have > want:
		return "is more than the entry allows"
	case have > most:
		return "is more than " + strconv.FormatInt(most, 10)
	}
	return ""
}

// processors judges the limit of processor time, which can be said in two ways.
func processors(k *check) string {
	have := k.Host.NanoCpus
	if have == 0 && k.Host.CpuQuota > 0 {
		period := k.Host.CpuPeriod
		if period <= 0 {
			period = 100_000 // the kernel's, in microseconds
		}
		have = math.MaxInt64
		if high, low := bits.Mul64(uint64(k.Host.CpuQuota), 1e9); high < uint64(period)/2 { // else the quotient does not fit
			quotient, _ := bits.Div64(high, low, uint64(period))
			have = int64(quotient)
		}
	}
	return limit(have, k.NanoCPUs, 1<<62, k.NanoCPUs > 0)
}

// memorySwap is memory and swap together.
func memorySwap(k *check) string {
	m, s := k.Host.Memory, k.Host.MemorySwap
	switch {
	case s == 0, s >= m && s <= 2*m, s == -1 && k.NoSwapAccounting:
		return ""
	}
	return "must be between the memory limit and twice that"
}

// IsUser reports whether a container may run as the user: UID or UID:GID in numbers, and not 0.
func IsUser(user string) bool { return userPattern().MatchString(user) }

func user(k *check) string {
	switch {
	case !IsUser(k.Config.User):
		return "must be UID or UID:GID in numbers, and not 0"
	case k.User != "" && k.Config.User != k.User:
		return "is not the entry's"
	}
	return ""
}

// portBindings: SEC-D8's "loopback-published ports".
func portBindings(k *check) string { return k.ports(k.Host.PortBindings) }

func (k *check) ports(published portMap) string {
	inside, outside := fmt.Sprintf("%d/tcp", k.Port), strconv.FormatUint(uint64(k.HostPort), 10)
	for port, bindings := range published {
		for _, b := range bindings {
			if b.HostIP != "127.0.0.1" || k.Port == 0 || port != inside || b.HostPort != outside {
				return "one port, the entry's, is published, on 127.0.0.1 alone"
			}
		}
	}
	return ""
}

// logConfig: a log must end somewhere, and be one that the daemon reads back.
func logConfig(k *check) string {
	c := k.Host.LogConfig
	if c.Type != "json-file" && c.Type != "local" {
		return "must be json-file or local"
	}
	files := int64(1) // the daemon's own numbers, where max-file is not said
	if c.Type == "local" {
		files = 5
	}
	for key, value := range c.Config {
		switch key {
		case "max-size":
		case "max-file":
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil || n < 1 || n > maxLogFiles {
				return "max-file is out of bounds"
			}
			files = n
		case "compress", "mode":
		default:
			return "option " + safe(key) + " has no rule"
		}
	}
	size := logSize().FindStringSubmatch(strings.ToLower(c.Config["max-size"]))
	if size == nil {
		return "max-size must be set"
	}
	n, err := strconv.ParseInt(size[1], 10, 64)
	if err != nil {
		return "max-size must be set"
	}
	n <<= map[string]int{"": 0, "b": 0, "k": 10, "m": 20, "g": 30}[size[2]]
	return unless(n > 0 && n <= maxLogBytes/files, "the log would grow beyond bounds")
}

// ulimits: only what makes a container smaller, or gives a server the files that it needs.
func ulimits(k *check) string {
	for _, u := range k.Host.Ulimits {
		switch {
		case u == nil:
			return "is empty"
		case u.Name == "core" && u.Hard == 0 && u.Soft == 0:
		case u.Name == "nofile" && u.Hard > 0 && u.Hard <= maxFiles && u.Soft >= 0 && u.Soft <= u.Hard:
		default:
			return safe(u.Name) + " has no rule"
		}
	}
	return ""
}
