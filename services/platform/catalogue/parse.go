package catalogue

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
)

// Bounds of a catalogue. They keep a slip of the pen from becoming a list that nobody can read or a host that nobody
// can use.
const (
	maxFileBytes    = 1 << 20
	maxGPUs         = 64
	maxModels       = 1024
	maxServices     = 1024
	maxArguments    = 128
	maxArgument     = 4096
	maxEnvironment  = 64
	maxVRAMMiB      = 1 << 24
	maxName         = 64
	maxDescription  = 300
	defaultLogBytes = 10 << 20
	minLogBytes     = 64 << 10
	maxLogBytes     = 1 << 30
)

var (
	// SEC-V1.
	idPattern    = regexp.MustCompile(`\A[a-zA-Z0-9][a-zA-Z0-9_\-]{0,63}\z`)
	modelPattern = regexp.MustCompile(`\A[a-zA-Z0-9][a-zA-Z0-9_\-./]{0,127}\z`)
	pathPattern  = regexp.MustCompile(`\A/[A-Za-z0-9._~/\-]{0,127}\z`)
	// ENV-1: what an entry may name. The loader's own variables would run other code in the approved program.
	environmentPattern = regexp.MustCompile(`\A[A-Za-z_][A-Za-z0-9_]{0,63}\z`)
	loaderPattern      = regexp.MustCompile(`\ALD_(PRELOAD|AUDIT|DEBUG|PROFILE)`)
	// CRD-1: an entry is shown to approvers and recorded, so a secret has no place in it.
	secretPattern = regexp.MustCompile(`(?i)(\A|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|(API|ACCESS|PRIVATE|SECRET)_?KEY)\z`)
	userPattern   = regexp.MustCompile(`\A[a-z_][a-z0-9_\-]{0,31}\z`)
)

// shells may not be a service's program: an entry is an argument vector, and a shell would make a language of it.
var shells = []string{"sh", "bash", "dash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "busybox"}

// Options say on which host a catalogue is read.
type Options struct {
	// ProgramsDir is where a program named without a slash is looked for first, before PATH. May be empty.
	ProgramsDir string
	// Development allows services without run_as, which then run as the executor's own user.
	Development bool
	// UID is the executor's own user id.
	UID int
	// Users finds a user by name; nil means the host's own users.
	Users func(name string) (*user.User, error)
}

// document is the file.
type document struct {
	Version  int       `yaml:"version"`
	GPUs     []GPU     `yaml:"gpus"`
	Models   []Model   `yaml:"models"`
	Services []service `yaml:"services"`
}

type service struct {
	ID            string            `yaml:"id"`
	Name          string            `yaml:"name"`
	Description   string            `yaml:"description"`
	Driver        string            `yaml:"driver"`
	Argv          []string          `yaml:"argv"`
	Environment   map[string]string `yaml:"environment"`
	WorkingDir    string            `yaml:"working_dir"`
	RunAs         string            `yaml:"run_as"`
	Port          uint32            `yaml:"port"`
	BaseURL       string            `yaml:"base_url"`
	Health        *Health           `yaml:"health"`
	Model         string            `yaml:"model"`
	VRAMMiB       uint32            `yaml:"vram_mib"`
	GPUs          []uint32          `yaml:"gpus"`
	StartTimeoutS uint32            `yaml:"start_timeout_s"`
	StopTimeoutS  uint32            `yaml:"stop_timeout_s"`
	LogMaxBytes   int64             `yaml:"log_max_bytes"`
}

// Load reads and checks a catalogue file. Its errors say file, line and column, and what is wrong, for a human; they do
// not leave the process otherwise.
func Load(file string, opts Options) (*Catalogue, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("catalogue: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("catalogue: %w", err)
	}
	return Parse(file, raw, opts)
}

// Parse checks a catalogue's bytes; name stands for the file in errors.
func Parse(name string, raw []byte, opts Options) (*Catalogue, error) {
	if len(raw) > maxFileBytes {
		return nil, fmt.Errorf("%s: larger than 1 MB", name)
	}
	var doc document
	if err := config.Parse(name, raw, &doc); err != nil {
		return nil, err
	}
	if opts.Users == nil {
		opts.Users = user.Lookup
	}
	c := checker{opts: opts, doc: &doc, out: &Catalogue{byID: map[string]*Service{}}}
	if p := c.check(); p != nil {
		line, column := position(raw, p.at)
		return nil, fmt.Errorf("%s:%d:%d: %s", name, line, column, p.what)
	}
	digest := canonical.Digest(raw)
	c.out.Digest = canonical.FormatDigest(digest[:])
	return c.out, nil
}

// problem is what is wrong, and where, as a YAML path.
type problem struct{ at, what string }

func wrong(at, format string, args ...any) *problem {
	return &problem{at: at, what: fmt.Sprintf(format, args...)}
}

type checker struct {
	opts Options
	doc  *document
	out  *Catalogue
}

func (c *checker) check() *problem {
	if c.doc.Version != 1 {
		return wrong("$.version", "version must be 1, the only one that this program knows")
	}
	if p := c.gpus(); p != nil {
		return p
	}
	if p := c.models(); p != nil {
		return p
	}
	if len(c.doc.Services) > maxServices {
		return wrong("$.services", "more than %d services", maxServices)
	}
	ports := map[uint32]string{}
	for i := range c.doc.Services {
		at := fmt.Sprintf("$.services[%d]", i)
		s, p := c.service(at, &c.doc.Services[i])
		if p != nil {
			return p
		}
		if _, taken := c.out.byID[s.ID]; taken {
			return wrong(at+".id", "service %q is defined twice", s.ID)
		}
		if other, taken := ports[s.Port]; taken && s.Port != 0 {
			return wrong(at+".port", "port %d is service %q's already", s.Port, other)
		}
		ports[s.Port] = s.ID
		c.out.byID[s.ID] = s
		c.out.Services = append(c.out.Services, s)
	}
	return nil
}

func (c *checker) gpus() *problem {
	if len(c.doc.GPUs) > maxGPUs {
		return wrong("$.gpus", "more than %d GPUs", maxGPUs)
	}
	for i, g := range c.doc.GPUs {
		at := fmt.Sprintf("$.gpus[%d]", i)
		switch {
		case !g.Simulated:
			return wrong(at, "a GPU in the catalogue must say simulated: true; real ones are found, not declared")
		case slices.ContainsFunc(c.out.GPUs, func(o GPU) bool { return o.Index == g.Index }):
			return wrong(at+".index", "GPU %d is defined twice", g.Index)
		case g.Index >= maxGPUs:
			return wrong(at+".index", "a GPU's index is below %d", maxGPUs)
		case g.MemoryMiB == 0 || g.MemoryMiB > maxVRAMMiB:
			return wrong(at+".memory_mib", "memory_mib must be 1 to %d", maxVRAMMiB)
		}
		if g.Name = clean.Line(g.Name, maxName); g.Name == "" {
			return wrong(at, "a GPU needs a name")
		}
		c.out.GPUs = append(c.out.GPUs, g)
	}
	return nil
}

func (c *checker) models() *problem {
	if len(c.doc.Models) > maxModels {
		return wrong("$.models", "more than %d models", maxModels)
	}
	for i, m := range c.doc.Models {
		at := fmt.Sprintf("$.models[%d]", i)
		switch {
		case !modelPattern.MatchString(m.ID) || hasDotDot(m.ID):
			return wrong(at+".id", "a model id is up to 128 letters, digits, _ - . / and holds no .. segment")
		case slices.ContainsFunc(c.out.Models, func(o Model) bool { return o.ID == m.ID }):
			return wrong(at+".id", "model %q is defined twice", m.ID)
		}
		if m.ServedName == "" {
			m.ServedName = m.ID
		}
		if m.ServedName = clean.Line(m.ServedName, 128); m.ServedName == "" {
			return wrong(at+".served_name", "served_name holds nothing that can be shown")
		}
		c.out.Models = append(c.out.Models, m)
	}
	return nil
}

func (c *checker) service(at string, in *service) (*Service, *problem) {
	if !idPattern.MatchString(in.ID) {
		return nil, wrong(at+".id", "a service id is up to 64 letters, digits, _ and -, and begins with a letter or digit")
	}
	out := &Service{
		ID:            in.ID,
		Name:          clean.Line(in.Name, maxName),
		Description:   clean.Line(in.Description, maxDescription),
		Driver:        in.Driver,
		Environment:   in.Environment,
		WorkingDir:    in.WorkingDir,
		RunAs:         in.RunAs,
		Port:          in.Port,
		BaseURL:       in.BaseURL,
		VRAMMiB:       in.VRAMMiB,
		StartTimeoutS: in.StartTimeoutS,
		StopTimeoutS:  in.StopTimeoutS,
		LogMaxBytes:   in.LogMaxBytes,
	}
	if out.Name == "" {
		out.Name = out.ID
	}
	if p := c.resources(at, in, out); p != nil {
		return nil, p
	}
	if p := limits(at, out); p != nil {
		return nil, p
	}
	switch in.Driver {
	case DriverNull:
		if len(in.Argv) > 0 || in.RunAs != "" || in.Health != nil {
			return nil, wrong(at, "the null driver runs nothing: argv, run_as and health have no meaning with it")
		}
		return out, nil
	case DriverProcess:
		return out, c.process(at, in, out)
	default:
		return nil, wrong(at+".driver", "driver must be %q or %q", DriverProcess, DriverNull)
	}
}

// resources resolves the model and the GPUs that an entry names.
func (c *checker) resources(at string, in *service, out *Service) *problem {
	if in.Model != "" {
		i := slices.IndexFunc(c.out.Models, func(m Model) bool { return m.ID == in.Model })
		if i < 0 {
			return wrong(at+".model", "model %q is not defined under models", in.Model)
		}
		out.Model = &c.out.Models[i]
	}
	if in.VRAMMiB > maxVRAMMiB {
		return wrong(at+".vram_mib", "vram_mib must be at most %d", maxVRAMMiB)
	}
	for i, index := range in.GPUs {
		here := fmt.Sprintf("%s.gpus[%d]", at, i)
		if slices.Contains(out.GPUs, index) {
			return wrong(here, "GPU %d is named twice", index)
		}
		if !slices.ContainsFunc(c.out.GPUs, func(g GPU) bool { return g.Index == index }) {
			return wrong(here, "GPU %d is not defined under gpus", index)
		}
		out.GPUs = append(out.GPUs, index)
	}
	return nil
}

// limits fills in and checks the times and sizes.
func limits(at string, out *Service) *problem {
	if out.StartTimeoutS == 0 {
		out.StartTimeoutS = 60
	}
	if out.StopTimeoutS == 0 {
		out.StopTimeoutS = 10
	}
	if out.LogMaxBytes == 0 {
		out.LogMaxBytes = defaultLogBytes
	}
	switch {
	case out.StartTimeoutS > 3600:
		return wrong(at+".start_timeout_s", "start_timeout_s must be 1 to 3600")
	case out.StopTimeoutS > 600:
		return wrong(at+".stop_timeout_s", "stop_timeout_s must be 1 to 600")
	case out.LogMaxBytes < minLogBytes || out.LogMaxBytes > maxLogBytes:
		return wrong(at+".log_max_bytes", "log_max_bytes must be %d to %d", minLogBytes, maxLogBytes)
	}
	return nil
}

// process checks what the process driver will be given.
func (c *checker) process(at string, in *service, out *Service) *problem {
	var p *problem
	if out.Argv, p = c.argv(at, in.Argv); p != nil {
		return p
	}
	if p := environment(at, in.Environment); p != nil {
		return p
	}
	if in.WorkingDir != "" && (!filepath.IsAbs(in.WorkingDir) || filepath.Clean(in.WorkingDir) != in.WorkingDir || hasControl(in.WorkingDir)) {
		return wrong(at+".working_dir", "working_dir must be an absolute path in its shortest form")
	}
	if p := c.runAs(at, in.RunAs); p != nil {
		return p
	}
	if in.Port == 0 || in.Port > 65535 {
		return wrong(at, "a process service needs a port, 1 to 65535")
	}
	if p := baseURL(at, in, out); p != nil {
		return p
	}
	h := Health{Path: "/health", TimeoutS: 2}
	if in.Health != nil {
		if in.Health.Path != "" {
			h.Path = in.Health.Path
		}
		if in.Health.TimeoutS != 0 {
			h.TimeoutS = in.Health.TimeoutS
		}
	}
	if !pathPattern.MatchString(h.Path) || hasDotDot(h.Path) {
		return wrong(at+".health.path", "a health path begins with / and holds letters, digits, . _ ~ - and /, without .. segments")
	}
	if h.TimeoutS > 30 {
		return wrong(at+".health.timeout_s", "health.timeout_s must be 1 to 30")
	}
	out.Health = &h
	return nil
}

// argv resolves the program and keeps every argument as it is.
func (c *checker) argv(at string, argv []string) ([]string, *problem) {
	at += ".argv"
	if len(argv) == 0 || len(argv) > maxArguments {
		return nil, wrong(strings.TrimSuffix(at, ".argv"), "a process service needs argv: a program and up to %d arguments", maxArguments-1)
	}
	for i, a := range argv {
		if len(a) > maxArgument || strings.ContainsRune(a, 0) {
			return nil, wrong(fmt.Sprintf("%s[%d]", at, i), "an argument is at most %d bytes and holds no zero byte", maxArgument)
		}
	}
	program := argv[0]
	switch {
	case slices.Contains(shells, filepath.Base(program)):
		return nil, wrong(at+"[0]", "a shell cannot be a service's program; name the program and its arguments")
	case filepath.IsAbs(program):
		if filepath.Clean(program) != program || hasControl(program) {
			return nil, wrong(at+"[0]", "the program's path must be in its shortest form")
		}
	case program == "" || program == "." || program == ".." || strings.Contains(program, "/") || hasControl(program):
		return nil, wrong(at+"[0]", "the program must be an absolute path, or a bare name found in programs_dir or PATH")
	default:
		found, err := c.find(program)
		if err != nil {
			return nil, wrong(at+"[0]", "program %q was not found in programs_dir or PATH", program)
		}
		program = found
	}
	return append([]string{program}, argv[1:]...), nil
}

func (c *checker) find(name string) (string, error) {
	if c.opts.ProgramsDir != "" {
		file := filepath.Join(c.opts.ProgramsDir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return filepath.Abs(file)
		}
	}
	file, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	if !filepath.IsAbs(file) {
		return "", errors.New("found in a relative folder of PATH")
	}
	return file, nil
}

func environment(at string, env map[string]string) *problem {
	at += ".environment"
	if len(env) > maxEnvironment {
		return wrong(at, "more than %d variables", maxEnvironment)
	}
	for key, value := range env {
		here := at + "." + key
		switch {
		case !environmentPattern.MatchString(key):
			return wrong(at, "an environment key is letters, digits and _, at most 64")
		case loaderPattern.MatchString(key):
			return wrong(here, "%s would change which code the program runs", key)
		case secretPattern.MatchString(key):
			return wrong(here, "%s looks like a secret: an entry is shown to approvers and recorded; let the program read it from a file", key)
		case len(value) > maxArgument || strings.ContainsRune(value, 0):
			return wrong(here, "a value is at most %d bytes and holds no zero byte", maxArgument)
		}
	}
	return nil
}

// runAs: outside development a service has a user of its own, which is neither root nor the executor's.
func (c *checker) runAs(at, name string) *problem {
	if name == "" {
		if c.opts.Development {
			return nil
		}
		return wrong(at, "a process service needs run_as, a user of its own (only a development executor runs services as itself)")
	}
	at += ".run_as"
	if !userPattern.MatchString(name) {
		return wrong(at, "run_as is the name of a user")
	}
	u, err := c.opts.Users(name)
	if err != nil {
		return wrong(at, "user %q does not exist on this host", name)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return wrong(at, "user %q has no numeric id", name)
	}
	if !c.opts.Development && (uid == 0 || uid == c.opts.UID) {
		return wrong(at, "run_as must be neither root nor the executor's own user")
	}
	return nil
}

// baseURL is where clients on this host reach the service.
func baseURL(at string, in *service, out *Service) *problem {
	port := strconv.FormatUint(uint64(in.Port), 10)
	if in.BaseURL == "" {
		out.BaseURL = "http://127.0.0.1:" + port + "/v1"
		return nil
	}
	at += ".base_url"
	u, err := url.Parse(in.BaseURL)
	if err != nil || u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" || len(in.BaseURL) > 256 {
		return wrong(at, "base_url must be http://ADDRESS:PORT/PATH and nothing more")
	}
	addr, err := netip.ParseAddr(u.Hostname())
	if err != nil || !addr.Unmap().IsLoopback() {
		return wrong(at, "base_url must name a loopback address of this host")
	}
	if u.Port() != port {
		return wrong(at, "base_url must name the service's own port %s", port)
	}
	if u.Path != "" && (!pathPattern.MatchString(u.Path) || hasDotDot(u.Path)) {
		return wrong(at, "base_url's path holds letters, digits, . _ ~ - and /, without .. segments")
	}
	return nil
}

func hasDotDot(s string) bool {
	return slices.Contains(strings.Split(s, "/"), "..") || path.Clean("/"+s) == "/.."
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f || r == 0xfffd })
}
