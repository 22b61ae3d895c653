package discover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/containerpolicy"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/pattern"
)

// Docker asks a Docker Engine what its containers are.
type Docker struct {
	// Socket is the daemon's, an absolute path.
	Socket string
	// Proc is where the kernel tells of processes; "": /proc.
	Proc string
	// Holders are the programs that hold memory of GPUs.
	Holders []Holder
	// Prober asks what listens; nil: nobody is asked.
	Prober *Prober
}

// Container is a container that serves a model, or seems to.
type Container struct {
	Server
	// Service is what its label says, "" where it has none: such a container cannot be adopted, since no label can be added to it.
	Service string
	// Image is NAME@sha256:DIGEST where the daemon knows a digest, else NAME:TAG.
	Image  string
	Digest bool
	// Inside is the port in the container.
	Inside uint32
	// Mounts are the folders of the host in it.
	Mounts []catalog.Mount
	// published is the address that its port is published on, "" for all.
	published string
	// dropped are settings that an entry has no place for.
	dropped []string
	// compose is what it is, as a Compose file would say it.
	compose *boundedyaml.Value
}

const (
	dockerTimeout = 5 * time.Second
	maxDocker     = 4 << 20
	maxContainers = 1024
)

var containerID = pattern.New(`\A[0-9a-f]{12,64}\z`)

// daemon speaks to one.
type daemon struct{ client *http.Client }

func newDaemon(socket string) (*daemon, error) {
	if !filepath.IsAbs(socket) || filepath.Clean(socket) != socket {
		return nil, errors.New("the socket must be an absolute path in its shortest form")
	}
	dialer := &net.Dialer{Timeout: dockerTimeout}
	return &daemon{newClient(dockerTimeout, func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", socket)
	})}, nil
}

// get asks for one resource. No other verb is ever sent: whoever may send them is root.
func (d *daemon) get(ctx context.Context, path string, into any) error {
	// Without a version in its path, the daemon answers in its own; what is read here has been the same since 2015.
	status, raw, err := get(ctx, d.client, "http://docker"+path, maxDocker)
	switch {
	case err != nil:
		if asked, is := errors.AsType[*url.Error](err); is { // the URL is this program's own
			err = asked.Err
		}
		return fmt.Errorf("docker does not answer: %w", err)
	case status != http.StatusOK:
		return fmt.Errorf("docker answers %d", status)
	case json.Unmarshal(raw, into) != nil:
		return errors.New("docker writes what is not understood")
	}
	return nil
}

// inspection is what matters of a container, as the daemon describes it.
type inspection struct {
	Name       string
	Image      string
	Path       string
	Args       []string
	State      struct{ Running bool }
	Config     map[string]json.RawMessage
	HostConfig map[string]json.RawMessage
	Mounts     []mountPoint
}

type mountPoint struct {
	Type, Source, Destination string
	RW                        bool
}

type binding struct{ HostIP, HostPort string }

// image is what matters of an image.
type image struct {
	RepoDigests []string
	Config      struct {
		Env, Cmd, Entrypoint []string
		WorkingDir           string
	}
}

// Containers finds those that ask for GPUs, run an engine that is known, or have the label of a service, in the order of their names.
// rules are what a human allows; what only the executor can see (sockets in a folder, who may rename one, the host's mount table) is judged by
// it alone, when the container is used.
func (d Docker) Containers(ctx context.Context, rules containerpolicy.Rules) ([]Container, []Passed, error) {
	at, err := newDaemon(d.Socket)
	if err != nil {
		return nil, nil, err
	}
	var list []struct {
		ID string `json:"Id"`
	}
	if err := at.get(ctx, "/containers/json?all=1", &list); err != nil {
		return nil, nil, err
	}
	if len(list) > maxContainers {
		return nil, nil, fmt.Errorf("docker has more than %d containers", maxContainers)
	}
	running := readProcesses(cmp.Or(d.Proc, "/proc"))
	var out []Container
	var passed []Passed
	for _, entry := range list {
		if !containerID().MatchString(entry.ID) {
			return nil, nil, errors.New("docker writes what is not understood")
		}
		var raw json.RawMessage
		var seen inspection
		if err := at.get(ctx, "/containers/"+entry.ID+"/json", &raw); err != nil || json.Unmarshal(raw, &seen) != nil {
			passed = append(passed, Passed{entry.ID[:12], "the daemon did not say what it is"})
			continue
		}
		var base image
		if imageID().MatchString(seen.Image) {
			// An image that was removed since is not there to be read, and the container then cannot be made anew.
			_ = at.get(ctx, "/images/"+seen.Image+"/json", &base)
		}
		c, ours := d.container(ctx, seen, base, entry.ID, running)
		switch {
		case ours && isMade(seen):
			passed = append(passed, Passed{c.Name, "the executor made it"})
		case ours:
			own := rules
			own.NamesOnly, own.ImageEnvironment, own.Port, own.HostPort = true, base.Config.Env, c.Inside, c.Port
			c.Refused = own.Refusals(raw)
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b Container) int { return strings.Compare(a.Subject, b.Subject) })
	slices.SortFunc(passed, func(a, b Passed) int { return strings.Compare(a.Name, b.Name) })
	return out, passed, nil
}

var imageID = pattern.New(`\Asha256:[0-9a-f]{64}\z`)

func isMade(c inspection) bool {
	labels := part[map[string]string](c.Config, "Labels")
	return labels[containerpolicy.LabelMade] == "true" && labels[containerpolicy.LabelService] != ""
}

// engineImages are parts of the names of images that serve models, for those whose command line says nothing.
var engineImages = []string{
	"/vllm-openai", "llama.cpp", "ollama/ollama", "sglang", "text-generation-inference", "text-embeddings-inference", "tensorrt", "tritonserver",
	"infinity", "localai", "tabbyapi", "koboldcpp", "lmdeploy", "aphrodite",
}

// container makes of an inspection what the proposal needs, and reports whether it serves a model or is to be adopted.
func (d Docker) container(ctx context.Context, seen inspection, base image, id string, running processes) (Container, bool) {
	name := strings.TrimPrefix(seen.Name, "/")
	c := Container{Server: Server{Name: clean.Line(name, 128), Subject: name, Running: seen.State.Running}}
	c.Service = part[map[string]string](seen.Config, "Labels")[containerpolicy.LabelService]
	all := part[[]string](seen.Config, "Env")
	pairs := slices.DeleteFunc(slices.Clone(all), func(pair string) bool { return slices.Contains(base.Config.Env, pair) })
	c.Environment, c.Withheld = environment(pairs)
	values, _ := environment(all)
	c.Command, c.Recognised = enginecmd.Read(append([]string{seen.Path}, seen.Args...), values)
	c.Image, c.Digest = imageName(part[string](seen.Config, "Image"), base.RepoDigests)
	c.ports(seen)
	for _, m := range seen.Mounts {
		if m.Type == "bind" && m.Destination != "/" {
			c.Mounts = append(c.Mounts, catalog.Mount{Source: m.Source, Target: m.Destination})
		}
	}
	c.compose, c.dropped = seen.compose(base, &c, pairs), seen.dropped(base)
	var pids []int
	for pid, group := range running.group {
		if strings.Contains(group, id) {
			pids = append(pids, pid)
		}
	}
	c.hold(d.Holders, pids)
	known := c.Recognised || slices.ContainsFunc(engineImages, func(part string) bool { return strings.Contains(c.Image, part) })
	if !known && c.Service == "" && !c.compose.Get("gpus").IsSet() && len(c.GPUs) == 0 {
		return c, false
	}
	if c.Running {
		c.ask(ctx, d.Prober, c.published)
	}
	return c, true
}

// deviceRequest is how GPUs are asked for, in every way that there is.
type deviceRequest struct {
	Driver       string
	Count        int
	DeviceIDs    []string
	Capabilities [][]string
}

// gpu reports whether it is a GPU that is asked for.
func (r deviceRequest) gpu() bool {
	return r.Driver == "nvidia" || slices.ContainsFunc(r.DeviceIDs, func(id string) bool { return strings.HasPrefix(id, containerpolicy.CDIPrefix) }) ||
		slices.ContainsFunc(r.Capabilities, func(all []string) bool { return slices.Contains(all, "gpu") })
}

// ports finds the one port that is published, or of several the engine's own.
func (c *Container) ports(seen inspection) {
	inside, best := number32(portOf(c.Command, c.Recognised)), ""
	published := part[map[string][]binding](seen.HostConfig, "PortBindings")
	for key, bindings := range published {
		number, proto, _ := strings.Cut(key, "/")
		if proto != "tcp" || len(bindings) == 0 {
			continue
		}
		if best == "" || number == inside || best != inside && number < best {
			best = number
			c.Port, c.published = portNumber(bindings[0].HostPort), bindings[0].HostIP
		}
	}
	c.Inside = portNumber(best)
}

func portNumber(s string) uint32 {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// imageName is the image by its digest, if the daemon knows one for the name that the container was made with.
func imageName(name string, digests []string) (string, bool) {
	if strings.Contains(name, "@sha256:") {
		return name, true
	}
	repository := name
	if slash, colon := strings.LastIndex(name, "/"), strings.LastIndex(name, ":"); colon > slash {
		repository = name[:colon]
	}
	for _, d := range digests {
		if digested, _, ok := strings.Cut(d, "@"); ok && (digested == repository || strings.TrimPrefix(digested, "docker.io/") == repository) {
			return d, true
		}
	}
	return name, false
}
