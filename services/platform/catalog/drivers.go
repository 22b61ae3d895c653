package catalog

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/pattern"
)

const (
	maxMounts = 32
	maxTmpfs  = 16
	maxUnit   = 255
)

var (
	// ENV-1: what an entry may name. The loader's own variables would run other code in the approved program.
	environmentPattern = pattern.New(`\A[A-Za-z_][A-Za-z0-9_]{0,63}\z`)
	loaderPattern      = pattern.New(`\ALD_(PRELOAD|AUDIT|DEBUG|PROFILE)`)
	// CRD-1: an entry is shown to approvers and recorded, so a secret has no place in it.
	secretPattern = pattern.New(`(?i)(\A|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|(API|ACCESS|PRIVATE|SECRET)_?KEY)\z`)
	userPattern   = pattern.New(`\A[a-z_][a-z0-9_\-]{0,31}\z`)
	// SEC-D1, and that it is a service which systemd can start: not a template without its instance, no leading dash.
	unitPattern = pattern.New(`\A[a-zA-Z0-9_][a-zA-Z0-9_:.\-]*(@[a-zA-Z0-9_:.\-]+)?\.service\z`)
	// The grammar of image references without its oddities: an optional registry with port, a path, and then a digest or a tag.
	imagePattern = pattern.New(`\A([a-z0-9]+([.\-][a-z0-9]+)*(:[0-9]{1,5})?/)?[a-z0-9]+([._\-/][a-z0-9]+|__[a-z0-9]+)*` +
		`(:[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127})?(@sha256:[0-9a-f]{64})?\z`)
	digestPattern        = pattern.New(`@sha256:[0-9a-f]{64}\z`)
	containerUserPattern = pattern.New(`\A[1-9][0-9]{0,8}(:[0-9]{1,9})?\z`)
)

// IsUnit reports whether a name is one of a systemd service that can be started (SEC-D1): no leading dash, no template without its
// instance.
func IsUnit(name string) bool { return len(name) <= maxUnit && unitPattern().MatchString(name) }

// shells may not be a service's program: an entry is an argument vector, and a shell would make a language of it.
var shells = []string{"sh", "bash", "dash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "busybox"}

// driver checks what only one driver understands.
func (c *checker) driver(at spot, in *service, out *Service) *problem {
	switch {
	case !slices.Contains([]string{DriverProcess, DriverSystemd, DriverDocker, DriverNull}, in.Driver):
		return wrong(at.in(".driver"), "driver must be %q, %q, %q or %q", DriverProcess, DriverSystemd, DriverDocker, DriverNull)
	case in.Unit != "" && in.Driver != DriverSystemd:
		return wrong(at.in(".unit"), "unit is for the systemd driver alone")
	case in.Container != nil && in.Driver != DriverDocker:
		return wrong(at.in(".container"), "container is for the docker driver alone")
	case in.Driver != DriverProcess && len(in.Argv) > 0 && in.Driver != DriverNull:
		return wrong(at.in(".argv"), "argv is for the process driver; a unit and an image say themselves what they run")
	case in.Driver != DriverProcess && in.WorkingDir != "":
		return wrong(at.in(".working_dir"), "working_dir is for the process driver alone")
	case in.Driver != DriverProcess && in.RunAs != "" && in.Driver != DriverNull:
		return wrong(at.in(".run_as"), "run_as is for the process driver; a unit says its user, and a container has container.user")
	case in.Driver != DriverProcess && in.Driver != DriverDocker && len(in.Environment) > 0:
		return wrong(at.in(".environment"), "environment is for process and docker services; a unit says its own")
	}
	switch in.Driver {
	case DriverNull:
		if len(in.Argv) > 0 || in.RunAs != "" || in.Health != nil {
			return wrong(at, "the null driver runs nothing: argv, run_as and health have no meaning with it")
		}
		return nil
	case DriverProcess:
		return c.process(at, in, out)
	case DriverSystemd:
		return unit(at.in(".unit"), in)
	}
	return c.container(at, in, out)
}

// process checks what the process driver will be given.
func (c *checker) process(at spot, in *service, out *Service) *problem {
	var p *problem
	if out.Argv, p = c.argv(at, in.Argv); p != nil {
		return p
	}
	if p := environment(at, in.Environment); p != nil {
		return p
	}
	if place, err := Loopback(out.Argv, in.Environment); err != nil {
		return wrong(at.in("%s", place), "%s", err.Error())
	}
	if in.WorkingDir != "" && !plainPath(in.WorkingDir) {
		return wrong(at.in(".working_dir"), "working_dir must be an absolute path in its shortest form")
	}
	return c.runAs(at, in.RunAs)
}

// unit checks the exact name of a unit (SEC-D1).
func unit(at spot, in *service) *problem {
	if !IsUnit(in.Unit) {
		return wrong(at, "unit is the whole name of one unit, such as vllm.service or vllm@chat.service")
	}
	return nil
}

// container checks what the docker driver will be given. What the daemon makes of it is checked by the driver.
func (c *checker) container(at spot, in *service, out *Service) *problem {
	if p := environment(at, in.Environment); p != nil {
		return p
	}
	if in.Container == nil {
		return wrong(at, "a docker service needs container")
	}
	at = at.in(".container")
	k := *in.Container
	switch {
	case len(k.Image) > 255 || !imagePattern().MatchString(k.Image):
		return wrong(at.in(".image"), "image is a reference such as registry.example/vllm@sha256:…")
	case !k.AllowTag && !digestPattern().MatchString(k.Image):
		return wrong(at.in(".image"), "an image is named by its digest, NAME@sha256:…; a tag can change, and needs allow_tag: true")
	case k.User == "" && !k.Adopt:
		return wrong(at, "a container needs user, as numbers and not 0: UID or UID:GID")
	case k.User != "" && !containerUserPattern().MatchString(k.User):
		return wrong(at.in(".user"), "user is UID or UID:GID in numbers, and not 0")
	case k.Port > 65535:
		return wrong(at.in(".port"), "a port is 1 to 65535")
	case (k.Port == 0) != (in.Port == 0):
		return wrong(at, "container.port, the container's own, and the service's port are given both or not at all")
	case len(k.Entrypoint) > 0 && enginecmd.Indirect(k.Entrypoint) != "":
		return wrong(at.in(".entrypoint"), "the entrypoint %s; name the program and its arguments", enginecmd.Indirect(k.Entrypoint))
	case k.Adopt && (len(k.Command)+len(k.Entrypoint) > 0 || len(k.Mounts) > 0 || len(k.Tmpfs) > 0 || k.ShmMiB > 0 || k.GPUAccess != "" || len(in.Environment) > 0):
		return wrong(at, "an adopted container is as it was made: entrypoint, command, mounts, tmpfs, shm_mib, gpu_access and environment have no meaning")
	case k.ShmMiB > maxVRAMMiB:
		return wrong(at.in(".shm_mib"), "shm_mib must be at most %d", maxVRAMMiB)
	case k.GPUAccess != "" && k.GPUAccess != "cdi" && k.GPUAccess != "device-request":
		return wrong(at.in(".gpu_access"), `gpu_access must be "cdi" or "device-request"`)
	case k.GPUAccess != "" && len(in.GPUs) == 0:
		return wrong(at.in(".gpu_access"), "gpu_access needs gpus")
	case k.GPUAccess == "" && len(in.GPUs) > 0 && !k.Adopt:
		k.GPUAccess = "device-request"
	}
	for key, words := range map[string][]string{".entrypoint": k.Entrypoint, ".command": k.Command} {
		if p := arguments(at.in("%s", key), words); p != nil {
			return p
		}
	}
	if p := c.mounts(at, k); p != nil {
		return p
	}
	out.Container = &k
	return nil
}

// Kernels reports whether a place in a container lies among the kernel's files. Nothing may be laid over them: what is masked there
// would come to light.
func Kernels(path string) bool {
	return Within(path, "/proc") || Within(path, "/sys") || Within(path, "/dev")
}

func (c *checker) mounts(at spot, k Container) *problem {
	if len(k.Mounts) > maxMounts || len(k.Tmpfs) > maxTmpfs {
		return wrong(at, "at most %d mounts and %d tmpfs", maxMounts, maxTmpfs)
	}
	var targets []string
	target := func(at spot, t string) *problem {
		switch {
		case !plainPath(t) || t == "/" || Kernels(t):
			return wrong(at, "a place in the container is an absolute path in its shortest form, neither / nor below /proc, /sys and /dev")
		case slices.Contains(targets, t):
			return wrong(at, "%s is used twice", t)
		}
		targets = append(targets, t)
		return nil
	}
	for i, m := range k.Mounts {
		here := at.in(".mounts[%d]", i)
		if !plainPath(m.Source) || !slices.ContainsFunc(c.out.Containers.Mounts, func(yes string) bool { return Within(m.Source, yes) }) {
			return wrong(here.in(".source"), "source must lie in one of the folders under containers.mounts, in its shortest form")
		}
		if why := Unmountable(m.Source); why != "" {
			return wrong(here.in(".source"), "no container may have it: it %s", why)
		}
		if p := target(here.in(".target"), m.Target); p != nil {
			return p
		}
	}
	for i, t := range k.Tmpfs {
		if p := target(at.in(".tmpfs[%d]", i), t); p != nil {
			return p
		}
	}
	return nil
}

// argv resolves the program and keeps every argument as it is.
func (c *checker) argv(at spot, argv []string) ([]string, *problem) {
	if len(argv) == 0 || len(argv) > maxArguments {
		return nil, wrong(at, "a process service needs argv: a program and up to %d arguments", maxArguments-1)
	}
	at = at.in(".argv")
	if p := arguments(at, argv); p != nil {
		return nil, p
	}
	program := argv[0]
	switch {
	case slices.Contains(shells, filepath.Base(program)):
		return nil, wrong(at.in("[0]"), "a shell cannot be a service's program; name the program and its arguments")
	case filepath.IsAbs(program):
		if filepath.Clean(program) != program || hasControl(program) {
			return nil, wrong(at.in("[0]"), "the program's path must be in its shortest form")
		}
	case program == "" || program == "." || program == ".." || strings.Contains(program, "/") || hasControl(program):
		return nil, wrong(at.in("[0]"), "the program must be an absolute path, or a bare name found in programs_dir or PATH")
	default:
		found, err := c.opts.Find(program)
		if err != nil {
			return nil, wrong(at.in("[0]"), "program %q was not found in programs_dir or PATH", program)
		}
		program = found
	}
	return append([]string{program}, argv[1:]...), nil
}

func arguments(at spot, argv []string) *problem {
	if len(argv) > maxArguments {
		return wrong(at, "more than %d arguments", maxArguments)
	}
	for i, a := range argv {
		if len(a) > maxArgument || strings.ContainsRune(a, 0) {
			return wrong(at.in("[%d]", i), "an argument is at most %d bytes and holds no zero byte", maxArgument)
		}
	}
	return nil
}

// Find returns the path of a program that an entry names by a bare name.
func (o Options) Find(name string) (string, error) {
	if o.ProgramsDir != "" {
		file := filepath.Join(o.ProgramsDir, name)
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

func environment(at spot, env map[string]string) *problem {
	at = at.in(".environment")
	if len(env) > maxEnvironment {
		return wrong(at, "more than %d variables", maxEnvironment)
	}
	for _, key := range sortedKeys(env) {
		if !environmentPattern().MatchString(key) {
			return environmentKey(at, key)
		}
		here := at.in(".%s", key)
		if p := environmentKey(here, key); p != nil {
			return p
		}
		if len(env[key]) > maxArgument || strings.ContainsRune(env[key], 0) {
			return wrong(here, "a value is at most %d bytes and holds no zero byte", maxArgument)
		}
	}
	return nil
}

func environmentKey(at spot, key string) *problem {
	switch {
	case !environmentPattern().MatchString(key):
		return wrong(at, "an environment key is letters, digits and _, at most 64")
	case loaderPattern().MatchString(key):
		return wrong(at, "%s would change which code the program runs", key)
	case secretPattern().MatchString(key):
		return wrong(at, "%s looks like a secret: an entry is shown to approvers and recorded; let the program read it from a file", key)
	}
	return nil
}

// ownUsers is how the names of the users begin that the installation makes for Durward's processes.
const ownUsers = "durward-"

// runAs: outside development a service has a user of its own, which is neither root nor the executor's.
func (c *checker) runAs(at spot, name string) *problem {
	if name == "" {
		if c.opts.Development {
			return nil
		}
		return wrong(at, "a process service needs run_as, a user of its own (only a development executor runs services as itself)")
	}
	at = at.in(".run_as")
	if strings.HasPrefix(name, ownUsers) {
		return wrong(at, "run_as may not be one of Durward's own users: the service could read what that process reads")
	}
	if !userPattern().MatchString(name) {
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
