// Package catalog reads the file in which a human says what the executor may run: GPUs, models and services.
//
// It is read by the executor, the process that touches the host, and by the operator's program, which checks and drafts it.
// It trusts the file's owner, as one trusts whoever may edit a
// unit file, and still checks everything: a mistake is refused with its line and column, names are cleaned, programs are
// resolved to absolute paths, and nothing in it ever reaches a shell. No RPC changes a catalog.
package catalog

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
)

// Names of the drivers that a service may use.
const (
	// DriverProcess starts a program of the host.
	DriverProcess = "process"
	// DriverSystemd starts a unit that systemd knows.
	DriverSystemd = "systemd"
	// DriverDocker starts a container.
	DriverDocker = "docker"
	// DriverNull does nothing, for measuring.
	DriverNull = "null"
)

// How a service can sleep.
const (
	SleepNone = "none"
	// SleepVLLM1 and SleepVLLM2 are vLLM's sleep levels: weights in the host's memory, and weights dropped.
	SleepVLLM1 = "vllm-l1"
	SleepVLLM2 = "vllm-l2"
	// SleepLlamaRouter unloads every model of a llama-server in router mode.
	SleepLlamaRouter = "llama-router"
)

// What the boot entry may say beside the id of a mode.
const (
	BootNone = "none"
	BootLast = "last"
)

// What a service is expected to reach.
const (
	// NetworkHost: whatever the host reaches.
	NetworkHost = "host"
	// NetworkLoopback: this host alone.
	NetworkLoopback = "loopback"
	// NetworkNone: nothing but its own port.
	NetworkNone = "none"
)

// GPU is a GPU that a human declared: a simulated one, or a real one by UUID or by index.
type GPU struct {
	Index uint32 `yaml:"index" json:"index"`
	// UUID is a real GPU's, "GPU-…"; it wins over the index, which a reboot may change.
	UUID string `yaml:"uuid" json:"uuid,omitempty"`
	Name string `yaml:"name" json:"name"`
	// MemoryMiB is what a simulated GPU has; a real one is measured.
	MemoryMiB uint32 `yaml:"memory_mib" json:"memory_mib,omitempty"`
	Simulated bool   `yaml:"simulated" json:"simulated"`
}

// Model is a model that services serve.
type Model struct {
	ID string `yaml:"id" json:"id"`
	// ServedName is the name to use in requests to the service.
	ServedName string `yaml:"served_name" json:"served_name"`
	// File is a file or folder of this host; Source says in words where the model came from ("hf:Qwen/Qwen3-32B"). Agents see
	// Source alone.
	File   string `yaml:"file" json:"file,omitempty"`
	Source string `yaml:"source" json:"source,omitempty"`
	// Card is what decides how much memory the model takes, for estimates. nil: it is read from File, if that is given.
	Card *model.Card `yaml:"card" json:"card,omitempty"`
}

// AnyContentType is for a service that answers a health check with whatever it likes.
const AnyContentType = "*/*"

// Health says how to find out whether a service answers (SEC-H1..H5).
type Health struct {
	Path     string `yaml:"path" json:"path"`
	TimeoutS uint32 `yaml:"timeout_s" json:"timeout_s"`
	// IntervalS is the time between checks of a running service.
	IntervalS uint32 `yaml:"interval_s" json:"interval_s"`
	// UnhealthyAfter and HealthyAfter are how many checks in a row change the verdict.
	UnhealthyAfter uint32 `yaml:"unhealthy_after" json:"unhealthy_after"`
	HealthyAfter   uint32 `yaml:"healthy_after" json:"healthy_after"`
	// ContentType is what the answer must be, without parameters: "application/json", or AnyContentType. "": JSON, plain text, or
	// none.
	ContentType string `yaml:"content_type" json:"content_type,omitempty"`
}

// Idle says what becomes of a service that nobody uses.
type Idle struct {
	// Action is "sleep" or "stop".
	Action string `yaml:"action" json:"action"`
	AfterS uint32 `yaml:"after_s" json:"after_s"`
}

// Restart bounds how often a service that ended by itself is started again: at most Max times within WithinS. Max 0: never.
type Restart struct {
	Max     uint32 `yaml:"max" json:"max"`
	WithinS uint32 `yaml:"within_s" json:"within_s"`
}

// Limits bound what a service may take of the host, where its driver can enforce it; 0 is no limit.
type Limits struct {
	MemoryMiB uint32 `yaml:"memory_mib" json:"memory_mib,omitempty"`
	// CPUPercent is of one processor: 250 is two and a half.
	CPUPercent uint32 `yaml:"cpu_percent" json:"cpu_percent,omitempty"`
	PIDs       uint32 `yaml:"pids" json:"pids,omitempty"`
}

// Mount is a folder or file of the host inside a container, read-only unless Writable.
type Mount struct {
	Source   string `yaml:"source" json:"source"`
	Target   string `yaml:"target" json:"target"`
	Writable bool   `yaml:"writable" json:"writable,omitempty"`
}

// Container is what the docker driver runs.
type Container struct {
	// Image is NAME@sha256:DIGEST; NAME:TAG only with AllowTag.
	Image    string `yaml:"image" json:"image"`
	AllowTag bool   `yaml:"allow_tag" json:"allow_tag,omitempty"`
	// Adopt: the container is not made but found, by its label durward.service=ID, and must be no wider than one that is made.
	Adopt bool `yaml:"adopt" json:"adopt,omitempty"`
	// Entrypoint replaces the image's, and then the image's command is not used; it is never a shell.
	Entrypoint []string `yaml:"entrypoint" json:"entrypoint,omitempty"`
	// Command replaces the image's.
	Command []string `yaml:"command" json:"command,omitempty"`
	// User is "UID" or "UID:GID", never 0.
	User string `yaml:"user" json:"user,omitempty"`
	// Port is the container's own; it is published as the service's port on 127.0.0.1.
	Port   uint32  `yaml:"port" json:"port,omitempty"`
	Mounts []Mount `yaml:"mounts" json:"mounts,omitempty"`
	// Tmpfs are folders that are writable and gone with the container.
	Tmpfs     []string `yaml:"tmpfs" json:"tmpfs,omitempty"`
	ShmMiB    uint32   `yaml:"shm_mib" json:"shm_mib,omitempty"`
	GPUAccess string   `yaml:"gpu_access" json:"gpu_access,omitempty"` // "cdi" or "device-request"
}

// Containers is what a human allows containers on this host beyond the built-in rules.
type Containers struct {
	// Mounts are the folders of the host that container mounts may lie in, symbolic links resolved.
	Mounts []string `yaml:"mounts" json:"mounts,omitempty"`
	// Environment are further keys that containers may be given.
	Environment []string `yaml:"environment" json:"environment,omitempty"`
}

// Service is one resolved entry: what an approver sees, byte for byte, in its JSON form. What has a key of YAML stands so in the file.
type Service struct {
	ID          string            `yaml:"id" json:"id"`
	Name        string            `yaml:"name" json:"name"`
	Description string            `yaml:"description" json:"description"`
	Driver      string            `yaml:"driver" json:"driver"`
	Unit        string            `yaml:"unit" json:"unit,omitempty"`
	Container   *Container        `yaml:"container" json:"container,omitempty"`
	Argv        []string          `yaml:"argv" json:"argv,omitempty"`
	Environment map[string]string `yaml:"environment" json:"environment,omitempty"`
	WorkingDir  string            `yaml:"working_dir" json:"working_dir,omitempty"`
	// RunAs is the user that the program runs as; empty in development for the executor's own.
	RunAs   string  `yaml:"run_as" json:"run_as,omitempty"`
	Port    uint32  `yaml:"port" json:"port,omitempty"`
	BaseURL string  `yaml:"base_url" json:"base_url,omitempty"`
	Health  *Health `yaml:"health" json:"health,omitempty"`
	// OpenAI: it answers OpenAI's API under BaseURL, so that one token can be asked for before it counts as ready.
	OpenAI  bool     `yaml:"openai" json:"openai,omitempty"`
	Model   *Model   `yaml:"-" json:"model,omitempty"`
	VRAMMiB uint32   `yaml:"vram_mib" json:"vram_mib"`
	GPUs    []uint32 `yaml:"gpus" json:"gpus,omitempty"`
	Sleep   string   `yaml:"sleep" json:"sleep"`
	// SleepMiB is what it keeps on its GPUs while it sleeps, declared as VRAMMiB is.
	SleepMiB  uint32   `yaml:"sleep_mib" json:"sleep_mib,omitempty"`
	DependsOn []string `yaml:"depends_on" json:"depends_on,omitempty"`
	// Pin: no switch and no idle rule stops it.
	Pin bool `yaml:"pin" json:"pin,omitempty"`
	// MinResidenceS is how long it stays once it runs before a switch may stop it.
	MinResidenceS uint32  `yaml:"min_residence_s" json:"min_residence_s,omitempty"`
	Idle          *Idle   `yaml:"idle" json:"idle,omitempty"`
	Restart       Restart `yaml:"restart" json:"restart"`
	Limits        Limits  `yaml:"limits" json:"limits"`
	// Credentials are names of what the vault will put in; no value is ever here.
	Credentials []string `yaml:"credentials" json:"credentials,omitempty"`
	// ExtraConfig holds facts about the engine, from an allow-list of keys (SEC-D6).
	ExtraConfig map[string]string `yaml:"-" json:"extra_config,omitempty"`
	// Network is what the service is expected to reach, or "" for no expectation.
	Network       string `yaml:"network" json:"network,omitempty"`
	StartTimeoutS uint32 `yaml:"start_timeout_s" json:"start_timeout_s"`
	// StallTimeoutS is how long a start may go without progress; each sign of progress extends it, up to StartTimeoutS.
	StallTimeoutS uint32 `yaml:"stall_timeout_s" json:"stall_timeout_s"`
	StopTimeoutS  uint32 `yaml:"stop_timeout_s" json:"stop_timeout_s"`
	LogMaxBytes   int64  `yaml:"log_max_bytes" json:"log_max_bytes"`
	// Writes are files among the arguments that the service itself changes: no approval holds them.
	Writes []string `yaml:"writes" json:"writes,omitempty"`
	// Digests are files whose whole content an approval holds, whatever their size: a model's weights.
	Digests []string `yaml:"digests" json:"digests,omitempty"`
}

// Mode is a named set of services that run together.
type Mode struct {
	ID          string `yaml:"id" json:"id"`
	Name        string `yaml:"name" json:"name"`
	Description string `yaml:"description" json:"description"`
	// Services are ids in the order in which they are started.
	Services []string `yaml:"services" json:"services"`
}

// StartTimeout is how long the service may take to become healthy.
func (s *Service) StartTimeout() time.Duration { return time.Duration(s.StartTimeoutS) * time.Second }

// StopTimeout is how long the service may take to end after SIGTERM.
func (s *Service) StopTimeout() time.Duration { return time.Duration(s.StopTimeoutS) * time.Second }

// Program is the absolute path of the program, or "" where the driver runs none.
func (s *Service) Program() string {
	if len(s.Argv) == 0 {
		return ""
	}
	return s.Argv[0]
}

// SharesPort reports whether both services answer at one port, so that they cannot run together.
func (s *Service) SharesPort(other *Service) bool {
	return s != other && s.Port != 0 && s.Port == other.Port
}

// ServedModel is the model's name in requests to the service, or "".
func (s *Service) ServedModel() string {
	if s.Model == nil {
		return ""
	}
	return s.Model.ServedName
}

// StallTimeout is how long a start may go without progress.
func (s *Service) StallTimeout() time.Duration { return time.Duration(s.StallTimeoutS) * time.Second }

// Visible are the indexes of those of the service's GPUs that CUDA_VISIBLE_DEVICES leaves its engine, in the order in which it sees them. A
// program counts the host's GPUs, a container those that it was given, from the lowest index on. A list that names them otherwise, or
// others, is passed over.
func (s *Service) Visible() []uint32 {
	_, added, _ := enginecmd.Unwrap(s.Argv)
	const key = "CUDA_VISIBLE_DEVICES"
	given := slices.Sorted(slices.Values(s.GPUs))
	var seen []uint32
	for name := range strings.SplitSeq(cmp.Or(added[key], s.Environment[key]), ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(name), 10, 32)
		if err == nil && s.Container != nil && n < uint64(len(given)) {
			n = uint64(given[n])
		}
		if err != nil || !slices.Contains(s.GPUs, uint32(n)) || slices.Contains(seen, uint32(n)) {
			return s.GPUs
		}
		seen = append(seen, uint32(n))
	}
	return seen
}

// Share is what the service declares on one of its n GPUs when it declares mib in all: evenly, in whole MiB rounded up.
func Share(mib uint32, n int) uint32 {
	if n == 0 {
		return 0
	}
	return (mib + uint32(n) - 1) / uint32(n)
}

// Unreadable stands in the place of a definition's digest where what the entry names is missing or may not be read.
const Unreadable = "unreadable"

// Subject returns the RFC 8785 JSON of the entry with the digest of what it names and does not hold, as it is now: the bytes
// whose digest a human signs. definition is the SHA-256 of a program file or of a unit with its drop-ins, with the files that they
// are given, or of an image; ""
// for a driver that runs nothing, and Unreadable where it cannot be read.
func (s *Service) Subject(definition string) ([]byte, error) {
	return canonical.Marshal(struct {
		*Service
		Definition string `json:"definition_sha256,omitempty"`
	}{s, definition})
}

// Runs says what the entry runs, and how: all of it but what is known of it and when it runs. A restart by rule runs the same again.
func (s *Service) Runs() string {
	one := *s
	one.Name, one.Description, one.Model, one.VRAMMiB, one.SleepMiB, one.ExtraConfig = "", "", nil, 0, 0, nil
	one.DependsOn, one.Pin, one.MinResidenceS, one.Idle, one.Restart = nil, false, 0, nil, Restart{}
	one.Health, one.StartTimeoutS, one.StallTimeoutS, one.StopTimeoutS = nil, 0, 0, 0
	text, _ := one.Subject("") // what was read from a file can be written
	return string(text)
}

// Catalog is one good reading of the file. It is immutable and safe for concurrent use.
type Catalog struct {
	// GPUs, Models, Services and Modes are in the file's order.
	GPUs       []GPU
	Models     []Model
	Services   []*Service
	Modes      []*Mode
	Containers Containers
	// Boot is what is started with the host: BootNone, BootLast, or the id of a mode.
	Boot string
	// Digest is "sha256:…" over the file's bytes, or over the names and bytes of a folder's files.
	Digest string
	// Disabled are the entries that are wrong, and those that need them. Only with Options.Lenient is there any.
	Disabled []Disabled
	byID     map[string]*Service
}

// Disabled is an entry that is not in force. Kind is "service", "model", "mode" or "boot"; ID is empty where the entry has none that
// can be shown.
type Disabled struct {
	Kind, ID string
	Problem  Problem
}

// WhyDisabled returns what is wrong with an entry of that kind, "" where it is in force or not there.
func (c *Catalog) WhyDisabled(kind, id string) string {
	i := slices.IndexFunc(c.Disabled, func(d Disabled) bool { return d.Kind == kind && d.ID == id })
	if i < 0 {
		return ""
	}
	return c.Disabled[i].Problem.Error()
}

// Lookup finds a service by id.
func (c *Catalog) Lookup(id string) (*Service, bool) {
	s, ok := c.byID[id]
	return s, ok
}

// Mode finds a mode by id.
func (c *Catalog) Mode(id string) (*Mode, bool) {
	i := slices.IndexFunc(c.Modes, func(m *Mode) bool { return m.ID == id })
	if i < 0 {
		return nil, false
	}
	return c.Modes[i], true
}

// Members are a mode's services, in the order in which they are started.
func (c *Catalog) Members(m *Mode) []*Service {
	var out []*Service
	for _, id := range m.Services {
		if s, ok := c.Lookup(id); ok {
			out = append(out, s)
		}
	}
	return out
}

// Model finds a model by id.
func (c *Catalog) Model(id string) (*Model, bool) {
	i := slices.IndexFunc(c.Models, func(m Model) bool { return m.ID == id })
	if i < 0 {
		return nil, false
	}
	return &c.Models[i], true
}

// Suggest returns at most five ids that look like id, the nearest first.
func (c *Catalog) Suggest(id string) []string { return config.Suggest(id, c.ids()) }

// ids are the services', in no order.
func (c *Catalog) ids() []string { return slices.Collect(maps.Keys(c.byID)) }
