package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/driver/launch"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/containerpolicy"
)

const (
	// defaultPIDs is for entries that say nothing: a model server with its threads, and no fork bomb.
	defaultPIDs = 8192
	// tmpfsBytes bounds a folder in memory. Programs may run from it: engines compile their kernels at run time.
	tmpfsBytes = 4 << 30
	mib        = 1 << 20
)

// spec is a container as it is sent.
type spec struct {
	config *container.Config
	host   *container.HostConfig
}

// check judges it as the JSON that is sent.
func (s spec) check(rules *containerpolicy.Rules) error {
	raw, err := json.Marshal(container.InspectResponse{Config: s.config, HostConfig: s.host})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return rules.Check(raw)
}

// make builds a service's container. It says everything that a daemon's configuration could decide otherwise.
func (d *Driver) make(s *catalog.Service, i img, r *containerpolicy.Rules) (spec, error) {
	k := s.Container
	off, on := false, true
	pids := int64(defaultPIDs)
	if s.Limits.PIDs > 0 {
		pids = int64(s.Limits.PIDs)
	}
	stop := int(s.StopTimeoutS)
	out := spec{
		config: &container.Config{
			User: k.User, Image: i.id, Entrypoint: k.Entrypoint, Cmd: k.Command, Env: variables(s),
			// Health is asked for from outside; what an image has of its own would only run beside it.
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
			Labels:      map[string]string{containerpolicy.LabelService: s.ID, containerpolicy.LabelMade: "true"},
			StopSignal:  "SIGTERM", StopTimeout: &stop,
		},
		host: &container.HostConfig{
			NetworkMode:    networkMode(s),
			RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
			CapDrop:        []string{"ALL"},
			SecurityOpt:    []string{"no-new-privileges"},
			CgroupnsMode:   container.CgroupnsModePrivate,
			IpcMode:        container.IPCModePrivate,
			ReadonlyRootfs: true,
			Runtime:        "runc",
			MaskedPaths:    containerpolicy.MaskedPaths(),
			ReadonlyPaths:  containerpolicy.ReadonlyPaths(),
			ShmSize:        int64(k.ShmMiB) * mib,
			Init:           &on,
			LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{
				"max-size": strconv.FormatInt(s.LogMaxBytes, 10), "max-file": "2",
			}},
			Resources: container.Resources{
				Memory: r.MemoryBytes, MemorySwap: r.MemoryBytes, // the same: none of it is swap
				NanoCPUs: r.NanoCPUs, PidsLimit: &pids, OomKillDisable: &off,
			},
		},
	}
	if k.Port != 0 {
		inside, ok := network.PortFrom(uint16(k.Port), network.TCP)
		if !ok {
			return spec{}, fmt.Errorf("%w: port %d", driver.ErrContainer, k.Port)
		}
		out.config.ExposedPorts = network.PortSet{inside: {}}
		out.host.PortBindings = network.PortMap{inside: {{
			HostIP: netip.AddrFrom4([4]byte{127, 0, 0, 1}), HostPort: strconv.FormatUint(uint64(s.Port), 10),
		}}}
	}
	for _, m := range k.Mounts {
		source, err := containerpolicy.Resolve(m.Source)
		if err != nil {
			return spec{}, fmt.Errorf("%w: a mount: %w", driver.ErrContainer, err)
		}
		out.host.Mounts = append(out.host.Mounts, mount.Mount{
			Type: mount.TypeBind, Source: source, Target: m.Target, ReadOnly: !m.Writable,
			// Not recursive: what else the host has mounted below the folder stays outside.
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate, NonRecursive: true},
		})
	}
	if len(k.Tmpfs) > 0 {
		size := int64(tmpfsBytes)
		if r.MemoryBytes > 0 {
			size = min(size, r.MemoryBytes)
		}
		out.host.Tmpfs = map[string]string{}
		for _, place := range k.Tmpfs {
			out.host.Tmpfs[place] = "rw,nosuid,nodev,exec,mode=1777,size=" + strconv.FormatInt(size, 10)
		}
	}
	if len(r.GPUs) > 0 {
		out.host.DeviceRequests = []container.DeviceRequest{deviceRequest(k.GPUAccess, r.GPUs)}
	}
	return out, nil
}

// credentialsInside is where a container finds its credentials.
const credentialsInside = "/run/credentials/"

// give adds files that a launcher made, and the variables that name them.
func (s *spec) give(files []launch.File, rules *containerpolicy.Rules) {
	rules.Given = map[string]string{}
	for _, f := range files {
		inside := credentialsInside + f.Name
		rules.Given[inside] = f.Path
		rules.Environment = append(slices.Clone(rules.Environment), f.Variable)
		s.host.Mounts = append(s.host.Mounts, mount.Mount{
			Type: mount.TypeBind, Source: f.Path, Target: inside, ReadOnly: true,
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate, NonRecursive: true},
		})
		s.config.Env = append(slices.DeleteFunc(s.config.Env, func(set string) bool { return strings.HasPrefix(set, f.Variable+"=") }), f.Variable+"="+inside)
	}
}

// networkMode: without a port a container that needs no network gets none. One with a port needs a bridge, which leads out.
func networkMode(s *catalog.Service) container.NetworkMode {
	if s.Container.Port == 0 && s.Network != catalog.NetworkHost {
		return network.NetworkNone
	}
	return network.NetworkBridge
}

// enforced says whether the entry's network expectation holds.
func enforced(s *catalog.Service, mode container.NetworkMode) driver.Network {
	switch {
	case s.Network == "", s.Network == catalog.NetworkHost:
		return driver.NetworkUnasked
	case mode.IsNone():
		return driver.NetworkEnforced
	}
	return driver.NetworkNotEnforced
}

// deviceRequest asks for GPUs by UUID.
func deviceRequest(access string, uuids []string) container.DeviceRequest {
	if access == "cdi" {
		ids := make([]string, len(uuids))
		for i, uuid := range uuids {
			ids[i] = containerpolicy.CDIPrefix + uuid
		}
		return container.DeviceRequest{Driver: "cdi", DeviceIDs: ids}
	}
	return container.DeviceRequest{
		Driver: "nvidia", DeviceIDs: slices.Clone(uuids), Capabilities: [][]string{{"gpu", "compute", "utility"}},
	}
}

// variables are the entry's, and the one that keeps an image from asking for GPUs by itself where NVIDIA's runtime is the
// daemon's default. With a device request the daemon says that variable itself.
func variables(s *catalog.Service) []string {
	var out []string
	for key, value := range s.Environment {
		out = append(out, key+"="+value)
	}
	if s.Container.GPUAccess != "device-request" {
		out = append(out, containerpolicy.VisibleDevices+"="+containerpolicy.NoDevices)
	}
	slices.Sort(out)
	return out
}

// differs says by what a container is not the one that was sent.
func (s spec) differs(c container.InspectResponse, i img) error {
	problems := []error{sameImage(c, i)}
	differ := func(what string, sent, seen any) {
		if !reflect.DeepEqual(sent, seen) {
			problems = append(problems, fmt.Errorf("%s is not as it was sent", what))
		}
	}
	command, h := i.cmd, c.HostConfig
	entrypoint := i.entry
	if len(s.config.Entrypoint) > 0 {
		entrypoint, command = s.config.Entrypoint, nil // which the image's command was not made for
	}
	if len(s.config.Cmd) > 0 {
		command = s.config.Cmd
	}
	differ("the command", words(command), words(c.Config.Cmd))
	differ("the entrypoint", words(entrypoint), words(c.Config.Entrypoint))
	differ("the user", s.config.User, c.Config.User)
	differ("the network", s.host.NetworkMode, h.NetworkMode)
	differ("Mounts", len(s.host.Mounts), len(h.Mounts))
	for n := range min(len(s.host.Mounts), len(h.Mounts)) {
		differ("a mount", s.host.Mounts[n], h.Mounts[n])
	}
	differ("Binds", 0, len(h.Binds))
	differ("the memory limit", s.host.Memory, h.Memory)
	differ("the processor limit", s.host.NanoCPUs, h.NanoCPUs)
	differ("the process limit", s.host.PidsLimit, h.PidsLimit)
	differ("the GPUs", len(s.host.DeviceRequests), len(h.DeviceRequests))
	for n := range min(len(s.host.DeviceRequests), len(h.DeviceRequests)) {
		differ("the GPUs", s.host.DeviceRequests[n].DeviceIDs, h.DeviceRequests[n].DeviceIDs)
	}
	return errors.Join(problems...)
}

// words makes nothing said and nothing there the same.
func words(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

func sameImage(c container.InspectResponse, i img) error {
	if c.Image != i.id {
		return errors.New("the image is not the entry's")
	}
	return nil
}
