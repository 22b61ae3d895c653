package enginecmd

import (
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Container is what the command line of `docker run` or `podman run` says.
type Container struct {
	Image string
	// Command is what follows the image: arguments of its entrypoint, or a program of its own.
	Command []string
	// Options are those before the image, in order, by their long names without dashes: "env" is "KEY=VALUE", or "KEY" for the value that
	// the caller has, "publish" as -p has it. A flag's value is "true".
	Options []Option
}

// Option is one option of a command line.
type Option struct{ Name, Value string }

// All are the values of an option, in order.
func (c Container) All(name string) (values []string) {
	for _, o := range c.Options {
		if o.Name == name {
			values = append(values, o.Value)
		}
	}
	return values
}

// Flags of `docker run` and `podman run` that take no value. Source: docs.docker.com/reference/cli/docker/container/run.
const (
	containerFlags = "--detach --interactive --tty --rm --init --privileged --read-only --no-healthcheck --oom-kill-disable " +
		"--publish-all --sig-proxy --disable-content-trust --quiet --use-api-socket --replace --no-hosts --no-hostname"
	containerValues = "--add-host --annotation --attach --blkio-weight --blkio-weight-device --cap-add --cap-drop --cgroup-parent " +
		"--cgroupns --cidfile --cpu-count --cpu-percent --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime --cpu-shares --cpus " +
		"--cpuset-cpus --cpuset-mems --detach-keys --device --device-cgroup-rule --device-read-bps --device-read-iops " +
		"--device-write-bps --device-write-iops --dns --dns-opt --dns-option --dns-search --domainname --entrypoint --env --env-file " +
		"--expose --gpus --group-add --health-cmd --health-interval --health-retries --health-start-interval --health-start-period " +
		"--health-timeout --hostname --ip --ip6 --ipc --isolation --label --label-file --link --link-local-ip --log-driver --log-opt " +
		"--mac-address --memory --memory-reservation --memory-swap --memory-swappiness --mount --name --net --net-alias --network " +
		"--network-alias --oom-score-adj --pid --pids-limit --platform --publish --pull --restart --runtime --secret --security-opt " +
		"--shm-size --stop-signal --stop-timeout --storage-opt --sysctl --tmpfs --ulimit --user --userns --uts --volume " +
		"--volume-driver --volumes-from --workdir"
)

// containerShort are the letters for those.
var containerShort = map[byte]string{
	'd': "--detach", 'i': "--interactive", 't': "--tty", 'P': "--publish-all", 'q': "--quiet",
	'a': "--attach", 'c': "--cpu-shares", 'e': "--env", 'h': "--hostname", 'l': "--label", 'm': "--memory", 'p': "--publish",
	'u': "--user", 'v': "--volume", 'w': "--workdir",
}

// ReadContainer reads `docker run`, `docker container run` and `podman run` and says whether it is one whose every option is known.
func ReadContainer(argv []string) (Container, bool) {
	var c Container
	if len(argv) < 3 || len(argv) > maxArguments {
		return c, false
	}
	if base := filepath.Base(argv[0]); base != "docker" && base != "podman" {
		return c, false
	}
	args := argv[1:]
	if args[0] == "container" {
		args = args[1:]
	}
	if args[0] != "run" {
		return c, false
	}
	args = args[1:]
	for len(args) > 0 {
		a := args[0]
		args = args[1:]
		switch {
		case a == "--":
			return c.image(args)
		case strings.HasPrefix(a, "--"):
			name, text, joined := strings.Cut(a, "=")
			switch {
			case has(containerFlags, name):
				if text != "false" {
					c.set(name, "true")
				}
				continue
			case !has(containerValues, name):
				return c, false
			case !joined && len(args) == 0:
				return c, false
			case !joined:
				text, args = args[0], args[1:]
			}
			c.set(name, text)
		case len(a) > 1 && a[0] == '-':
			var ok bool
			if args, ok = c.short(a[1:], args); !ok {
				return c, false
			}
		default:
			return c.image(append([]string{a}, args...))
		}
	}
	return c, false
}

// short reads letters that stand together: -it, -p8080:80.
func (c *Container) short(letters string, args []string) (rest []string, ok bool) {
	for i := range len(letters) {
		name := containerShort[letters[i]]
		switch {
		case name == "":
			return nil, false
		case has(containerFlags, name):
			c.set(name, "true")
			continue
		}
		text := strings.TrimPrefix(letters[i+1:], "=")
		if i+1 == len(letters) {
			if len(args) == 0 {
				return nil, false
			}
			text, args = args[0], args[1:]
		}
		c.set(name, text)
		return args, true
	}
	return args, true
}

func (c *Container) set(name, value string) {
	switch name = strings.TrimPrefix(name, "--"); name {
	case "net":
		name = "network"
	case "gpus":
		value = strings.Trim(value, `"'`)
	}
	c.Options = append(c.Options, Option{name, value})
}

func (c *Container) image(args []string) (Container, bool) {
	if len(args) == 0 || args[0] == "" {
		return *c, false
	}
	c.Image, c.Command = args[0], args[1:]
	return *c, true
}

// engine reads what runs inside, with the port as the host publishes it.
func (c *Container) engine() (Command, bool) {
	env := map[string]string{}
	for _, one := range c.All("env") {
		if key, text, ok := strings.Cut(one, "="); ok {
			env[key] = text
		}
	}
	entrypoint := c.All("entrypoint")
	entrypoint = entrypoint[max(0, len(entrypoint)-1):] // the last wins
	out, ok := InContainer(c.Image, entrypoint, c.Command, env)
	if !ok {
		return out, false
	}
	published := c.All("publish")
	for _, one := range published {
		host, outside, inside := Published(one)
		if inside != 0 && (inside == out.Port || out.Port == 0 || len(published) == 1) {
			if out.Host = host; host == "" {
				out.Host = "0.0.0.0" // where Docker publishes unless it is told otherwise
			}
			out.Port = outside
			break
		}
	}
	return out, true
}

// Published reads what -p and a Compose file's short syntax say: [[HOST:]OUTSIDE:]INSIDE[/tcp]. What is no single port is 0.
func Published(text string) (host string, outside, inside uint32) {
	text, protocol, _ := strings.Cut(text, "/")
	if protocol != "" && protocol != "tcp" {
		return "", 0, 0
	}
	i := strings.LastIndexByte(text, ':')
	inside = port(text[i+1:])
	if i < 0 {
		return "", 0, inside
	}
	text = text[:i]
	if i = strings.LastIndexByte(text, ':'); i >= 0 {
		host = strings.Trim(text[:i], "[]")
	}
	return host, port(text[i+1:]), inside
}

// InContainer reads what runs in a container, whose image's entrypoint may be replaced.
func InContainer(image string, entrypoint, command []string, environment map[string]string) (Command, bool) {
	if len(entrypoint) > 0 {
		return Read(slices.Concat(entrypoint, command), environment)
	}
	return inImage(image, command, environment)
}

// inImage reads the command of a container by what is known of well-known images: their entrypoint is an engine already.
// Sources: docker/Dockerfile of vllm-project/vllm, .devops/cuda.Dockerfile of ggml-org/llama.cpp, Dockerfile of ollama/ollama.
func inImage(image string, command []string, environment map[string]string) (Command, bool) {
	if len(command) > 0 && !strings.HasPrefix(command[0], "-") {
		if c, ok := Read(command, environment); ok {
			return c, true
		}
		if Indirect(command) != "" {
			return Command{}, false // whatever the image is, a shell runs something else in it
		}
	}
	name, _, _ := strings.Cut(image, "@")
	tag := ""
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, tag = name[:i], name[i+1:]
	}
	variable := func(key string) string { return environment[key] }
	switch base := path.Base(name); {
	case strings.HasPrefix(base, "vllm-openai"):
		return readVLLM(command), true
	case base == "llama.cpp" && (strings.HasPrefix(tag, "server") || tag == ""):
		return readLlama(command, variable), true
	case base == "llama.cpp" && strings.HasPrefix(tag, "full") && (first(command) == "--server" || first(command) == "-s"):
		return readLlama(command[1:], variable), true
	case name == "ollama/ollama" || strings.HasSuffix(name, "/ollama/ollama"):
		return readOllama(variable), true
	}
	return Command{}, false
}
