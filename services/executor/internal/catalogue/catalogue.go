// Package catalogue reads the file in which a human says what the executor may run: GPUs, models and services.
//
// It runs in the executor, the process that touches the host. It trusts the file's owner, as one trusts whoever may edit a
// unit file, and still checks everything: a mistake is refused with its line and column, names are cleaned, programs are
// resolved to absolute paths, and nothing in it ever reaches a shell. No RPC changes a catalogue.
package catalogue

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/config"
)

// Names of the drivers that a service may use.
const (
	// DriverProcess starts a program of the host.
	DriverProcess = "process"
	// DriverNull does nothing, for measuring.
	DriverNull = "null"
)

// GPU is a GPU that a human declared. Only simulated ones can be declared: real ones are measured.
type GPU struct {
	Index     uint32 `yaml:"index" json:"index"`
	Name      string `yaml:"name" json:"name"`
	MemoryMiB uint32 `yaml:"memory_mib" json:"memory_mib"`
	Simulated bool   `yaml:"simulated" json:"simulated"`
}

// Model is a model that services serve.
type Model struct {
	ID string `yaml:"id" json:"id"`
	// ServedName is the name to use in requests to the service.
	ServedName string `yaml:"served_name" json:"served_name"`
}

// Health says how to find out whether a service answers.
type Health struct {
	Path     string `yaml:"path" json:"path"`
	TimeoutS uint32 `yaml:"timeout_s" json:"timeout_s"`
}

// Service is one resolved entry: what an approver sees, byte for byte, in its JSON form.
type Service struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Description string            `json:"description"`
	Driver      string            `json:"driver"`
	Argv        []string          `json:"argv,omitempty"`
	Environment map[string]string `json:"environment,omitempty"`
	WorkingDir  string            `json:"working_dir,omitempty"`
	// RunAs is the user that the program runs as; empty in development for the executor's own.
	RunAs         string   `json:"run_as,omitempty"`
	Port          uint32   `json:"port,omitempty"`
	BaseURL       string   `json:"base_url,omitempty"`
	Health        *Health  `json:"health,omitempty"`
	Model         *Model   `json:"model,omitempty"`
	VRAMMiB       uint32   `json:"vram_mib"`
	GPUs          []uint32 `json:"gpus,omitempty"`
	StartTimeoutS uint32   `json:"start_timeout_s"`
	StopTimeoutS  uint32   `json:"stop_timeout_s"`
	LogMaxBytes   int64    `json:"log_max_bytes"`
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

// ServedModel is the model's name in requests to the service, or "".
func (s *Service) ServedModel() string {
	if s.Model == nil {
		return ""
	}
	return s.Model.ServedName
}

// Unreadable stands in the place of the digest of a program file that is missing or may not be read.
const Unreadable = "unreadable"

// Subject returns the RFC 8785 JSON of the entry with the SHA-256 of its program file as it is now: the bytes whose
// digest a human signs. programDigest is "" for a driver without a program, and Unreadable for a program without a digest.
func (s *Service) Subject(programDigest string) ([]byte, error) {
	return canonical.Marshal(struct {
		*Service
		ProgramSHA256 string `json:"program_sha256,omitempty"`
	}{s, programDigest})
}

// Catalogue is one good reading of the file. It is immutable and safe for concurrent use.
type Catalogue struct {
	// GPUs, Models and Services are in the file's order.
	GPUs     []GPU
	Models   []Model
	Services []*Service
	// Digest is "sha256:…" over the file's bytes.
	Digest string
	byID   map[string]*Service
}

// Lookup finds a service by id.
func (c *Catalogue) Lookup(id string) (*Service, bool) {
	s, ok := c.byID[id]
	return s, ok
}

// Suggest returns at most five ids that look like id, the nearest first.
func (c *Catalogue) Suggest(id string) []string {
	near := config.Suggest(id, slices.SortedFunc(maps.Keys(c.byID), cmp.Compare[string]))
	return near[:min(len(near), 5)]
}
