package main

import (
	"errors"
	"fmt"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/gpu/find"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/sink/wiring"
)

// settings is the executor's configuration file.
type settings struct {
	config.Common  `yaml:",inline"`
	config.Guarded `yaml:",inline"`

	// Vault redeems grants and is told of outcomes. Required.
	Vault config.Peer `yaml:"vault"`
	// Audit gets every record. Required.
	Audit config.Peer `yaml:"audit"`
	// Catalog is the file, or the folder of .yaml files, that says what may be run, owned by a human and read again when it changes. Required, absolute.
	Catalog string `yaml:"catalogue"`
	// ProgramsDir is the folder where programs that the catalog names without a slash are looked for before PATH.
	// Empty: the folder of the executor's own program.
	ProgramsDir string `yaml:"programs_dir"`
	// Unattended lists calls beyond READ that run here on a grant without a human's statement: a tool's name, or {tool, clients,
	// arguments: {name: [values]}, until}, all of which must be met. until is a time (RFC 3339) by this host's clock, from which on the
	// entry lets nothing run. DANGEROUS: whoever controls the vault can then make them. Empty:
	// none. Read again within a second when the file changes.
	Unattended []any `yaml:"unattended"`

	// Systemd says how units are reached.
	Systemd struct {
		// Manager is "system" (default) or "user": whose units the catalog's systemd services are.
		Manager string `yaml:"manager"`
	} `yaml:"systemd"`
	// Docker says how containers are reached.
	Docker struct {
		// Socket is the Docker Engine's Unix socket, an absolute path. Empty: no service may use the docker driver.
		Socket string `yaml:"socket"`
		// CredentialsDir is a folder in memory (a tmpfs) that Docker sees too, an absolute path; containers get their credentials out of it.
		// It is made where it is missing, and nobody else may get into it. Empty: /dev/shm/durward-UID.
		CredentialsDir string `yaml:"credentials_dir"`
	} `yaml:"docker"`
	// InContainer says that the executor runs in a container, from which the docker driver alone reaches the host.
	InContainer bool `yaml:"in_container"`
	// GPU says how GPUs are measured.
	GPU struct {
		// Source is "auto" (default: the driver's library, else nvidia-smi, else none), "nvml", "nvidia-smi" or "none".
		Source string `yaml:"source"`
		// Library is the file of the driver's library; empty: the loader finds libnvidia-ml.so.1.
		Library string `yaml:"library"`
		// Program is nvidia-smi, an absolute path; empty: found in PATH.
		Program string `yaml:"program"`
		// LlamaFitParams is llama.cpp's program llama-fit-params, an absolute path: it is asked what a service of llama.cpp takes whose
		// model is a file of this host, where nobody measured or declared it. DANGEROUS: it runs with the executor's rights and reads
		// the model's file. Empty: nobody is asked.
		LlamaFitParams string `yaml:"llama_fit_params"`
		// MarginMiB stays free on each GPU beyond what services need. Not given: 512.
		MarginMiB *uint32 `yaml:"margin_mib"`
		// MarginOverrideMinMiB is how far below MarginMiB an agent's margin_mib_override may go. Not given: not at all.
		MarginOverrideMinMiB *uint32 `yaml:"margin_override_min_mib"`
	} `yaml:"gpu"`

	// development is set by -development and by nothing else.
	development bool
	// path is the file's own, by the command line.
	path func() string
}

// InDevelopment and Obeyed implement process.Guarded.
func (s *settings) InDevelopment() bool { return s.development }
func (s *settings) Obeyed() []string    { return []string{s.Catalog} }

// Rules implements wiring.Settings.
func (s *settings) Rules() (unattended []any, others any) {
	rest := *s
	rest.Unattended, rest.path, rest.development = nil, nil, false
	return s.Unattended, rest
}

// Validate checks the whole file.
func (s *settings) Validate() error {
	problems := []error{s.Common.Validate(), wiring.CheckPeers(s.Vault, s.Audit), config.CheckAbsolute(map[string]string{"catalogue": s.Catalog}, map[string]string{
		"programs_dir": s.ProgramsDir, "docker.socket": s.Docker.Socket,
		"gpu.library": s.GPU.Library, "gpu.program": s.GPU.Program, "gpu.llama_fit_params": s.GPU.LlamaFitParams,
	})}
	switch s.Systemd.Manager {
	case "", "system", "user":
	default:
		problems = append(problems, errors.New(`systemd.manager: must be "system" or "user"`))
	}
	switch s.GPU.Source {
	case "", find.Auto, find.None, gpu.SourceNVML, gpu.SourceSMI:
	default:
		problems = append(problems, fmt.Errorf("gpu.source: %w", find.ErrKind))
	}
	if s.GPU.MarginMiB != nil && *s.GPU.MarginMiB > maxMarginMiB {
		problems = append(problems, fmt.Errorf("gpu.margin_mib: must be at most %d", maxMarginMiB))
	}
	if least := s.GPU.MarginOverrideMinMiB; least != nil && *least > s.marginMiB() {
		problems = append(problems, errors.New("gpu.margin_override_min_mib: must be at most gpu.margin_mib; leave it out to allow no less"))
	}
	_, err := wiring.CheckUnattended(s.Unattended, optionsv1.Role_ROLE_EXECUTOR)
	return errors.Join(append(problems, err)...)
}

// maxMarginMiB bounds the margin, so that a slip of the pen is seen.
const maxMarginMiB = 1 << 20

// marginMiB is what stays free on each GPU.
func (s *settings) marginMiB() uint32 {
	if s.GPU.MarginMiB == nil {
		return capacity.DefaultMargin
	}
	return *s.GPU.MarginMiB
}
