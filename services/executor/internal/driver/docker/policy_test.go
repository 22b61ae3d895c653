package docker

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/blkiodev"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"

	"durward.internal/services/platform/containerpolicy"
)

const (
	uuid  = "GPU-11111111-2222-3333-4444-555555555555"
	other = "GPU-99999999-2222-3333-4444-555555555555"
)

// described is a container, to be made or as the daemon reports it.
type described struct {
	Config    *container.Config
	Host      *container.HostConfig
	Networks  map[string]*network.EndpointSettings
	Published network.PortMap
	Mounts    []container.MountPoint
	AppArmor  string
}

func (d described) check(rules *containerpolicy.Rules) error {
	raw, err := json.Marshal(container.InspectResponse{
		Config: d.Config, HostConfig: d.Host, Mounts: d.Mounts, AppArmorProfile: d.AppArmor,
		NetworkSettings: &container.NetworkSettings{Networks: d.Networks, Ports: d.Published},
	})
	if err != nil {
		return err
	}
	return rules.Check(raw)
}

// plainest is a container as it should be.
func plainest() described {
	return described{
		Config: &container.Config{User: "1000:1000", Image: "registry.example/vllm@sha256:" + strings.Repeat("a", 64), Env: []string{"HF_HOME=/cache"}},
		Host: &container.HostConfig{
			NetworkMode: "bridge", CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"}, CgroupnsMode: "private", IpcMode: "private",
			ReadonlyRootfs: true, Runtime: "runc", MaskedPaths: containerpolicy.MaskedPaths(), ReadonlyPaths: containerpolicy.ReadonlyPaths(),
			LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "10m", "max-file": "2"}},
			Resources: container.Resources{PidsLimit: new(int64(100))},
		},
	}
}

func bindings(ip string, port string) network.PortMap {
	addr, _ := netip.ParseAddr(ip)
	return network.PortMap{network.MustParsePort("8080/tcp"): {{HostIP: addr, HostPort: port}}}
}

func TestCheckRefuses(t *testing.T) {
	rules := &containerpolicy.Rules{Port: 8080, HostPort: 9000, GPUs: []string{uuid}, MemoryBytes: 1 << 30, NanoCPUs: 1e9, PIDs: 200, ImageEnvironment: []string{
		"PATH=/", "LD_LIBRARY_PATH=/usr/local/cuda/lib64", "NVIDIA_VISIBLE_DEVICES=all", "LD_PRELOAD=/x.so", "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
		"LD_LIBRARY_PATH=:./x", "LD_LIBRARY_PATH=/usr/lib:", "LD_LIBRARY_PATH=evil", "LD_LIBRARY_PATH=/proc/self/cwd/x", "GCONV_PATH=/x",
		"LD_LIBRARY_PATH=/usr/../proc/self/cwd", "LD_LIBRARY_PATH=/usr/lib:/tmp", "LD_ORIGIN_PATH=/x", "GLIBC_TUNABLES=glibc.rtld.nns=1",
		"NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_DRIVER_CAPABILITIES=all,compute", "NVIDIA_DRIVER_CAPABILITIES=", "NVIDIA_MOFED=enabled",
		"NVIDIA_IMEX_CHANNELS=all", "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=535", "NVIDIA_PRODUCT_NAME=CUDA",
		"LD_LIBRARY_PATH=/usr/local/nvidia/lib/:/usr/local/nvidia/lib64",
	}}
	good := func() described {
		c := plainest()
		c.Host.Memory, c.Host.NanoCPUs = 1<<30, 1e9
		return c
	}
	if err := good().check(rules); err != nil {
		t.Fatalf("what should pass does not: %v", err)
	}
	type change func(c *container.Config, h *container.HostConfig)
	host := func(f func(h *container.HostConfig)) change {
		return func(_ *container.Config, h *container.HostConfig) { f(h) }
	}
	config := func(f func(c *container.Config)) change {
		return func(c *container.Config, _ *container.HostConfig) { f(c) }
	}
	option := func(o string) change {
		return host(func(h *container.HostConfig) { h.SecurityOpt = append(h.SecurityOpt, o) })
	}
	env := func(e ...string) change { return config(func(c *container.Config) { c.Env = e }) }
	device := func(d container.DeviceRequest) change {
		return host(func(h *container.HostConfig) { h.DeviceRequests = []container.DeviceRequest{d} })
	}
	gpu := [][]string{{"gpu", "compute", "utility"}}
	for name, change := range map[string]change{
		"no configuration at all":  config(func(c *container.Config) { *c = container.Config{} }),
		"no host configuration":    host(func(h *container.HostConfig) { *h = container.HostConfig{} }),
		"privileged":               host(func(h *container.HostConfig) { h.Privileged = true }),
		"a capability added":       host(func(h *container.HostConfig) { h.CapAdd = []string{"SYS_ADMIN"} }),
		"all capabilities added":   host(func(h *container.HostConfig) { h.CapAdd = []string{"ALL"} }),
		"capabilities kept":        host(func(h *container.HostConfig) { h.CapDrop = []string{"NET_RAW"} }),
		"host network":             host(func(h *container.HostConfig) { h.NetworkMode = "host" }),
		"another's network":        host(func(h *container.HostConfig) { h.NetworkMode = "container:db" }),
		"a macvlan or any network": host(func(h *container.HostConfig) { h.NetworkMode = "lan" }),
		"host pids":                host(func(h *container.HostConfig) { h.PidMode = "host" }),
		"another's pids":           host(func(h *container.HostConfig) { h.PidMode = "container:db" }),
		"host ipc":                 host(func(h *container.HostConfig) { h.IpcMode = "host" }),
		"shareable ipc":            host(func(h *container.HostConfig) { h.IpcMode = "shareable" }),
		"ipc left open":            host(func(h *container.HostConfig) { h.IpcMode = "" }),
		"host uts":                 host(func(h *container.HostConfig) { h.UTSMode = "host" }),
		"host users":               host(func(h *container.HostConfig) { h.UsernsMode = "host" }),
		"host cgroups":             host(func(h *container.HostConfig) { h.CgroupnsMode = "host" }),
		"another's cgroup":         host(func(h *container.HostConfig) { h.Cgroup = "container:db" }),
		"a cgroup of the host":     host(func(h *container.HostConfig) { h.CgroupParent = "/" }),
		"a writable root":          host(func(h *container.HostConfig) { h.ReadonlyRootfs = false }),
		"nvidia's runtime":         host(func(h *container.HostConfig) { h.Runtime = "nvidia" }),
		"a restart policy":         host(func(h *container.HostConfig) { h.RestartPolicy.Name = "always" }),
		"a count of restarts":      host(func(h *container.HostConfig) { h.RestartPolicy.MaximumRetryCount = 1 }),
		"removed by itself":        host(func(h *container.HostConfig) { h.AutoRemove = true }),
		"every port published":     host(func(h *container.HostConfig) { h.PublishAllPorts = true }),
		"published everywhere":     host(func(h *container.HostConfig) { h.PortBindings = bindings("0.0.0.0", "9000") }),
		"published anywhere":       host(func(h *container.HostConfig) { h.PortBindings = bindings("", "9000") }),
		"published on the LAN":     host(func(h *container.HostConfig) { h.PortBindings = bindings("192.0.2.1", "9000") }),
		"mapped loopback":          host(func(h *container.HostConfig) { h.PortBindings = bindings("::ffff:127.0.0.1", "9000") }),
		"another port":             host(func(h *container.HostConfig) { h.PortBindings = bindings("127.0.0.1", "22") }),
		"any port":                 host(func(h *container.HostConfig) { h.PortBindings = bindings("127.0.0.1", "") }),
		"another port of its own": host(func(h *container.HostConfig) {
			h.PortBindings = network.PortMap{network.MustParsePort("22/tcp"): bindings("127.0.0.1", "9000")[network.MustParsePort("8080/tcp")]}
		}),
		"another protocol": host(func(h *container.HostConfig) {
			h.PortBindings = network.PortMap{network.MustParsePort("8080/udp"): bindings("127.0.0.1", "9000")[network.MustParsePort("8080/tcp")]}
		}),
		"a device": host(func(h *container.HostConfig) {
			h.Devices = []container.DeviceMapping{{PathOnHost: "/dev/sda", PathInContainer: "/dev/sda"}}
		}),
		"a device rule":        host(func(h *container.HostConfig) { h.DeviceCgroupRules = []string{"c *:* rwm"} }),
		"volumes of another":   host(func(h *container.HostConfig) { h.VolumesFrom = []string{"db"} }),
		"links":                host(func(h *container.HostConfig) { h.Links = []string{"db:db"} }),
		"extra hosts":          host(func(h *container.HostConfig) { h.ExtraHosts = []string{"host:host-gateway"} }),
		"a name server":        host(func(h *container.HostConfig) { h.DNS = []netip.Addr{netip.MustParseAddr("192.0.2.1")} }),
		"more groups":          host(func(h *container.HostConfig) { h.GroupAdd = []string{"docker"} }),
		"kept from the killer": host(func(h *container.HostConfig) { h.OomKillDisable = new(true) }),
		"kept from the score":  host(func(h *container.HostConfig) { h.OomScoreAdj = -999 }),
		"unmasked":             host(func(h *container.HostConfig) { h.MaskedPaths = []string{} }),
		"one path unmasked":    host(func(h *container.HostConfig) { h.MaskedPaths = h.MaskedPaths[1:] }),
		"proc writable":        host(func(h *container.HostConfig) { h.ReadonlyPaths = nil }),
		"a sysctl":             host(func(h *container.HostConfig) { h.Sysctls = map[string]string{"kernel.core_pattern": "|/x"} }),
		"annotations":          host(func(h *container.HostConfig) { h.Annotations = map[string]string{"run.oci.keep_original_groups": "1"} }),
		"no limit of processes": host(func(h *container.HostConfig) {
			h.PidsLimit = nil
		}),
		"unlimited processes":      host(func(h *container.HostConfig) { h.PidsLimit = new(int64(-1)) }),
		"more processes":           host(func(h *container.HostConfig) { h.PidsLimit = new(int64(201)) }),
		"more memory":              host(func(h *container.HostConfig) { h.Memory++ }),
		"no limit of memory":       host(func(h *container.HostConfig) { h.Memory = 0 }),
		"endless swap":             host(func(h *container.HostConfig) { h.MemorySwap = -1 }),
		"much swap":                host(func(h *container.HostConfig) { h.MemorySwap = 1 << 40 }),
		"more processors":          host(func(h *container.HostConfig) { h.NanoCPUs = 2e9 }),
		"no limit of processors":   host(func(h *container.HostConfig) { h.NanoCPUs = 0 }),
		"a limit lifted":           host(func(h *container.HostConfig) { h.NanoCPUs, h.CPUQuota = 0, -1 }),
		"a wide quota":             host(func(h *container.HostConfig) { h.NanoCPUs, h.CPUQuota = 0, 200_001 }),
		"real time":                host(func(h *container.HostConfig) { h.CPURealtimeRuntime = 1000 }),
		"a wide ulimit":            host(func(h *container.HostConfig) { h.Ulimits = []*container.Ulimit{{Name: "rtprio", Hard: 99, Soft: 99}} }),
		"an empty ulimit":          host(func(h *container.HostConfig) { h.Ulimits = []*container.Ulimit{nil} }),
		"a log elsewhere":          host(func(h *container.HostConfig) { h.LogConfig.Type = "syslog" }),
		"an endless log":           host(func(h *container.HostConfig) { h.LogConfig.Config = nil }),
		"a log without bound":      host(func(h *container.HostConfig) { h.LogConfig.Config["max-size"] = "-1" }),
		"a huge log":               host(func(h *container.HostConfig) { h.LogConfig.Config["max-size"] = "999g" }),
		"many logs":                host(func(h *container.HostConfig) { h.LogConfig.Config["max-file"] = "11" }),
		"a log option":             host(func(h *container.HostConfig) { h.LogConfig.Config["env-regex"] = ".*" }),
		"a volume driver":          host(func(h *container.HostConfig) { h.VolumeDriver = "nfs" }),
		"a tmpfs over /proc":       host(func(h *container.HostConfig) { h.Tmpfs = map[string]string{"/proc/x": ""} }),
		"a tmpfs over the root":    host(func(h *container.HostConfig) { h.Tmpfs = map[string]string{"/": ""} }),
		"a tmpfs with set-uid":     host(func(h *container.HostConfig) { h.Tmpfs = map[string]string{"/x": "suid"} }),
		"a tmpfs with devices":     host(func(h *container.HostConfig) { h.Tmpfs = map[string]string{"/x": "rw,dev"} }),
		"a weight of a device":     host(func(h *container.HostConfig) { h.BlkioWeightDevice = []*blkiodev.WeightDevice{{Path: "/dev/sda"}} }),
		"no security option":       host(func(h *container.HostConfig) { h.SecurityOpt = nil }),
		"new privileges":           host(func(h *container.HostConfig) { h.SecurityOpt = []string{"no-new-privileges=false"} }),
		"seccomp off":              option("seccomp=unconfined"),
		"seccomp off, old form":    option("seccomp:unconfined"),
		"seccomp from a file":      option("seccomp=/etc/profile.json"),
		"seccomp that allows":      option(`seccomp={"defaultAction":"SCMP_ACT_ALLOW"}`),
		"seccomp that logs":        option(`seccomp={"defaultAction":"SCMP_ACT_LOG"}`),
		"seccomp that mounts":      option(`seccomp={"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read","mount"],"action":"SCMP_ACT_ALLOW"}]}`),
		"seccomp, the old names":   option(`seccomp={"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"name":"bpf","action":"SCMP_ACT_ALLOW"}]}`),
		"seccomp, other case":      option(`seccomp={"DEFAULTACTION":"SCMP_ACT_ALLOW","defaultaction":"SCMP_ACT_ALLOW"}`),
		"apparmor off":             option("apparmor=unconfined"),
		"apparmor off, old form":   option("apparmor:unconfined"),
		"labels off":               option("label=disable"),
		"labels off, old form":     option("label:disable"),
		"a label of the host":      option("label=type:spc_t"),
		"a label's user":           option("label=user:root"),
		"unmasked by option":       option("systempaths=unconfined"),
		"write to cgroups":         option("writable-cgroups=true"),
		"an unknown option":        option("x=y"),
		"root":                     config(func(c *container.Config) { c.User = "0" }),
		"root by group of digits":  config(func(c *container.Config) { c.User = "00:0" }),
		"root by name":             config(func(c *container.Config) { c.User = "root" }),
		"root by default":          config(func(c *container.Config) { c.User = "" }),
		"a user by name":           config(func(c *container.Config) { c.User = "nobody" }),
		"a huge user that is root": config(func(c *container.Config) { c.User = "4294967296" }),
		"a terminal":               config(func(c *container.Config) { c.Tty = true }),
		"an open input":            config(func(c *container.Config) { c.OpenStdin = true }),
		"a strange image":          config(func(c *container.Config) { c.Image = "--privileged" }),
		"a domain":                 config(func(c *container.Config) { c.Domainname = "x" }),
		"a strange host name":      config(func(c *container.Config) { c.Hostname = "a b" }),
		"a signal that stops":      config(func(c *container.Config) { c.StopSignal = "SIGSTOP" }),
		"a key without a value":    env("HOME"),
		"a strange key":            env("A-B=1"),
		"an empty key":             env("=1"),
		"a key twice":              env("HOME=/a", "HOME=/b"),
		"a key that nobody allows": env("FOO=1"),
		"preload":                  env("LD_PRELOAD=/y.so"),
		"preload by the image":     env("LD_PRELOAD=/x.so"),
		"a library path":           env("LD_LIBRARY_PATH=/models"),
		"all GPUs":                 env("NVIDIA_VISIBLE_DEVICES=all"),
		"a GPU by environment":     env("NVIDIA_VISIBLE_DEVICES=" + uuid),
		"capabilities of a GPU":    env("NVIDIA_DRIVER_CAPABILITIES=all"),
		"a mount by environment":   env("NVIDIA_IMEX_CHANNELS=all"),
		"a mount by the image":     env("NVIDIA_MOFED=enabled"),
		"every capability":         env("NVIDIA_DRIVER_CAPABILITIES=all,compute"),
		"no capability by name":    env("NVIDIA_DRIVER_CAPABILITIES="),
		"a folder here, first":     env("LD_LIBRARY_PATH=:./x"),
		"a folder here, last":      env("LD_LIBRARY_PATH=/usr/lib:"),
		"a relative folder":        env("LD_LIBRARY_PATH=evil"),
		"wherever it is":           env("LD_LIBRARY_PATH=/proc/self/cwd/x"),
		"around a corner":          env("LD_LIBRARY_PATH=/usr/../proc/self/cwd"),
		"everybody's folder":       env("LD_LIBRARY_PATH=/usr/lib:/tmp"),
		"a library's origin":       env("LD_ORIGIN_PATH=/x"),
		"the library's converters": env("GCONV_PATH=/x"),
		"the library's tunables":   env("GLIBC_TUNABLES=glibc.rtld.nns=1"),
		"all GPUs by request":      device(container.DeviceRequest{Driver: "nvidia", Count: -1, Capabilities: gpu}),
		"one GPU, any":             device(container.DeviceRequest{Driver: "nvidia", Count: 1, Capabilities: gpu}),
		"a GPU by index":           device(container.DeviceRequest{Driver: "nvidia", DeviceIDs: []string{"0"}, Capabilities: gpu}),
		"another's GPU":            device(container.DeviceRequest{Driver: "nvidia", DeviceIDs: []string{uuid, other}, Capabilities: gpu}),
		"another driver":           device(container.DeviceRequest{Driver: "amd", DeviceIDs: []string{uuid}, Capabilities: gpu}),
		"no driver":                device(container.DeviceRequest{DeviceIDs: []string{uuid}, Capabilities: gpu}),
		"graphics": device(container.DeviceRequest{
			Driver: "nvidia", DeviceIDs: []string{uuid}, Capabilities: [][]string{{"gpu", "graphics"}},
		}),
		"or something else": device(container.DeviceRequest{
			Driver: "nvidia", DeviceIDs: []string{uuid}, Capabilities: [][]string{{"gpu"}, {"x"}},
		}),
		"a driver's option": device(container.DeviceRequest{
			Driver: "nvidia", DeviceIDs: []string{uuid}, Capabilities: gpu, Options: map[string]string{"a": "b"},
		}),
		"all by CDI":              device(container.DeviceRequest{Driver: "cdi", DeviceIDs: []string{"nvidia.com/gpu=all"}}),
		"another kind by CDI":     device(container.DeviceRequest{Driver: "cdi", DeviceIDs: []string{"vendor.com/host=" + uuid}}),
		"a UUID without its kind": device(container.DeviceRequest{Driver: "cdi", DeviceIDs: []string{uuid}}),
	} {
		c := good()
		change(c.Config, c.Host)
		if err := c.check(rules); err == nil {
			t.Errorf("%s passes", name)
		}
	}
	for name, change := range map[string]change{
		"CDI":                            device(container.DeviceRequest{Driver: "cdi", DeviceIDs: []string{"nvidia.com/gpu=" + uuid}}),
		"a device request":               device(container.DeviceRequest{Driver: "nvidia", DeviceIDs: []string{uuid}, Capabilities: gpu}),
		"the image's own variables":      env("PATH=/", "LD_LIBRARY_PATH=/usr/local/cuda/lib64", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
		"an image of CUDA":               env("LD_LIBRARY_PATH=/usr/local/nvidia/lib/:/usr/local/nvidia/lib64", "NVIDIA_PRODUCT_NAME=CUDA", "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=535"),
		"no GPU by environment":          env("NVIDIA_VISIBLE_DEVICES=void"),
		"a seccomp profile that denies":  option(`seccomp={"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW"}]}`),
		"an apparmor profile":            option("apparmor=docker-default"),
		"a port on loopback":             host(func(h *container.HostConfig) { h.PortBindings = bindings("127.0.0.1", "9000") }),
		"no new privileges, spelled out": host(func(h *container.HostConfig) { h.SecurityOpt = []string{"no-new-privileges:true"} }),
		"a quota":                        host(func(h *container.HostConfig) { h.NanoCPUs, h.CPUQuota, h.CPUPeriod = 0, 50_000, 50_000 }),
		"the image's wish with a request": func(c *container.Config, h *container.HostConfig) {
			c.Env = []string{"NVIDIA_VISIBLE_DEVICES=all"}
			h.DeviceRequests = []container.DeviceRequest{{Driver: "nvidia", DeviceIDs: []string{uuid}, Capabilities: gpu}}
		},
	} {
		c := good()
		change(c.Config, c.Host)
		if err := c.check(rules); err != nil {
			t.Errorf("%s does not pass: %v", name, err)
		}
	}
}

// ruled are the fields that a rule judges or that are free. Every one must be a field of Docker's structures.
var ruled = map[string][]string{
	"Config": strings.Fields(`ArgsEscaped AttachStderr AttachStdin AttachStdout Cmd Entrypoint Env ExposedPorts Healthcheck Hostname Image Labels
		NetworkDisabled OnBuild OpenStdin Shell StdinOnce StopSignal StopTimeout Tty User Volumes WorkingDir`),
	"HostConfig": strings.Fields(`AutoRemove Binds CapAdd CapDrop CgroupnsMode ConsoleSize CpuPeriod CpuQuota CpusetCpus DeviceRequests Init IpcMode Isolation
		LogConfig MaskedPaths Memory MemoryReservation MemorySwap MemorySwappiness Mounts NanoCpus NetworkMode OomKillDisable PidMode PidsLimit PortBindings
		Privileged PublishAllPorts ReadonlyPaths ReadonlyRootfs RestartPolicy Runtime SecurityOpt ShmSize Sysctls Tmpfs UTSMode Ulimits UsernsMode`),
}

// TestEveryOtherFieldIsRefused sets each field of Docker's structures without a rule, and finds each rule's field.
func TestEveryOtherFieldIsRefused(t *testing.T) {
	for part, structure := range map[string]func(described) any{
		"Config": func(d described) any { return d.Config }, "HostConfig": func(d described) any { return d.Host },
	} {
		left := slices.Clone(ruled[part])
		for i, f := range fields(reflect.ValueOf(structure(plainest())).Elem()) {
			if at := slices.Index(left, f.name); at >= 0 {
				left = slices.Delete(left, at, at+1)
				continue
			}
			c := plainest()
			fill(t, fields(reflect.ValueOf(structure(c)).Elem())[i].value)
			if err := c.check(&containerpolicy.Rules{}); err == nil || !strings.Contains(err.Error(), part+"."+f.name+": no rule allows it") {
				t.Errorf("%s may say anything: %v", f.name, err)
			}
		}
		if len(left) > 0 {
			t.Errorf("rules for fields that do not exist: %v", left)
		}
	}
}

type field struct {
	name  string // the daemon's name for it
	value reflect.Value
}

// fields are a structure's fields with those of the structures that it embeds.
func fields(v reflect.Value) []field {
	var out []field
	for i := range v.NumField() {
		t := v.Type().Field(i)
		if t.Anonymous {
			out = append(out, fields(v.Field(i))...)
			continue
		}
		name, _, _ := strings.Cut(t.Tag.Get("json"), ",")
		out = append(out, field{cmp.Or(name, t.Name), v.Field(i)})
	}
	return out
}

// fill gives a field something to say.
func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.String:
		v.SetString("x")
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem())
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	default:
		t.Fatalf("a field of kind %v", v.Kind())
	}
}

// TestWhatTheDaemonReports looks at what only a container that is there can say.
func TestWhatTheDaemonReports(t *testing.T) {
	for name, change := range map[string]func(c *described){
		"a volume of the image": func(c *described) {
			c.Mounts = []container.MountPoint{{Type: mount.TypeVolume, Name: "x", Source: "/var/lib/docker/volumes/x/_data", Destination: "/data"}}
		},
		"a mount that was not asked for": func(c *described) {
			c.Mounts = []container.MountPoint{{Type: mount.TypeBind, Source: "/etc", Destination: "/data"}}
		},
		"a shared mount": func(c *described) {
			c.Mounts = []container.MountPoint{{Type: mount.TypeBind, Source: "/srv", Destination: "/data", Propagation: mount.PropagationRShared}}
		},
		"no profile":      func(c *described) { c.AppArmor = "unconfined" },
		"an open port":    func(c *described) { c.Published = bindings("0.0.0.0", "9000") },
		"another network": func(c *described) { c.Networks = map[string]*network.EndpointSettings{"bridge": {}, "lan": {}} },
		"not the network": func(c *described) { c.Networks = map[string]*network.EndpointSettings{"none": {}} },
		"a driver option": func(c *described) {
			c.Networks = map[string]*network.EndpointSettings{"bridge": {DriverOpts: map[string]string{"a": "b"}}}
		},
		"a link elsewhere": func(c *described) {
			c.Networks = map[string]*network.EndpointSettings{"bridge": {Links: []string{"db"}}}
		},
	} {
		c := plainest()
		change(&c)
		if err := c.check(&containerpolicy.Rules{Port: 8080, HostPort: 9000}); err == nil {
			t.Errorf("%s passes", name)
		}
	}
	c := plainest()
	c.Networks = map[string]*network.EndpointSettings{"bridge": {}}
	c.Published = bindings("127.0.0.1", "9000")
	c.Mounts = []container.MountPoint{{Type: mount.TypeTmpfs, Destination: "/cache"}}
	if err := c.check(&containerpolicy.Rules{Port: 8080, HostPort: 9000}); err != nil {
		t.Errorf("what is as asked for does not pass: %v", err)
	}
}

// folder makes a folder with a file in it, below a parent that only we may write to.
func folder(t *testing.T, path ...string) string {
	t.Helper()
	dir := filepath.Join(path...)
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	return dir
}

// temp is a temporary folder by its real name.
func temp(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return dir
}

func TestMountSources(t *testing.T) {
	root := temp(t)
	allowed := folder(t, root, "models")
	inside := folder(t, allowed, "llama")
	beside := folder(t, root, "modelsfoo")
	private := folder(t, root, "private")
	refusedHere := folder(t, allowed, "state", "deep")
	open := folder(t, allowed, "open")
	below := folder(t, open, "below")
	must(t, os.Chmod(open, 0o777))
	link := filepath.Join(allowed, "link")
	inward := filepath.Join(allowed, "inward")
	through := filepath.Join(root, "through")
	for at, to := range map[string]string{link: private, inward: inside, through: allowed} {
		must(t, os.Symlink(to, at))
	}
	listen := func(path string) {
		t.Helper()
		// Unix sockets have short names, so each is made by way of its folder's descriptor.
		dir, err := os.Open(filepath.Dir(path))
		must(t, err)
		defer dir.Close()
		l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
	}
	withSocket := folder(t, allowed, "withsocket", "a")
	listen(filepath.Join(allowed, "withsocket", "a", "models.gguf"))
	alone := filepath.Join(folder(t, allowed, "alone"), "weights")
	listen(alone)

	rules := &containerpolicy.Rules{Mounts: []string{allowed, "/", "/etc", "/root", through + "/nowhere"}, Refused: []string{filepath.Join(allowed, "state")}}
	judge := func(source string, change func(m *mount.Mount)) error {
		c := plainest()
		m := mount.Mount{Type: mount.TypeBind, Source: source, Target: "/models", BindOptions: &mount.BindOptions{NonRecursive: true}}
		if change != nil {
			change(&m)
		}
		c.Host.Mounts = []mount.Mount{m}
		return c.check(rules)
	}
	for name, source := range map[string]string{
		"the host":                  "/",
		"/etc, allowed or not":      "/etc",
		"below /etc":                "/etc/ssl",
		"/proc":                     "/proc",
		"/proc by a process":        "/proc/self/root",
		"/dev":                      "/dev",
		"a device":                  "/dev/null",
		"/sys":                      "/sys",
		"/root":                     "/root",
		"/var/run":                  "/var/run",
		"/run":                      "/run",
		"docker.sock":               "/var/run/docker.sock",
		"what holds a runtime":      "/var",
		"what holds its state":      "/var/lib",
		"a folder beside":           beside,
		"a private folder":          private,
		"by dots":                   allowed + "/../private",
		"by dots, back again":       allowed + "/llama/../../private",
		"dots that lead nowhere":    allowed + "/./llama",
		"a slash too many":          allowed + "//llama",
		"a slash at the end":        inside + "/",
		"by a link":                 link,
		"through a link":            link + "/file",
		"by a link within":          inward,
		"through a link from above": through + "/llama",
		"what is not there":         allowed + "/none",
		"a relative path":           "models",
		"an empty path":             "",
		"with a colon":              allowed + "/a:b",
		"what is ours":              refusedHere,
		"what holds ours":           allowed,
		"a hidden folder":           folder(t, allowed, ".ssh"),
		"below a hidden folder":     folder(t, allowed, ".config", "llama"),
		"a socket in it":            filepath.Dir(withSocket),
		"a socket itself":           alone,
		"where others may write":    below,
	} {
		if err := judge(source, nil); err == nil {
			t.Errorf("%s: %s is mounted", name, source)
		}
	}
	for name, change := range map[string]func(m *mount.Mount){
		"shared":         func(m *mount.Mount) { m.BindOptions.Propagation = mount.PropagationShared },
		"recursively so": func(m *mount.Mount) { m.BindOptions.Propagation = mount.PropagationRShared },
		"slave":          func(m *mount.Mount) { m.BindOptions.Propagation = mount.PropagationRSlave },
		"made by itself": func(m *mount.Mount) { m.BindOptions.CreateMountpoint = true },
		"a volume":       func(m *mount.Mount) { m.Type, m.Source = mount.TypeVolume, "x" },
		"a volume's driver": func(m *mount.Mount) {
			m.VolumeOptions = &mount.VolumeOptions{DriverConfig: &mount.Driver{Name: "local"}}
		},
		"an image":         func(m *mount.Mount) { m.Type = mount.TypeImage },
		"a pipe":           func(m *mount.Mount) { m.Type = mount.TypeNamedPipe },
		"a cluster":        func(m *mount.Mount) { m.Type = mount.TypeCluster },
		"over /proc":       func(m *mount.Mount) { m.Target = "/proc" },
		"over /sys":        func(m *mount.Mount) { m.Target = "/sys/fs/cgroup" },
		"over /dev":        func(m *mount.Mount) { m.Target = "/dev/shm" },
		"over the root":    func(m *mount.Mount) { m.Target = "/" },
		"over dots":        func(m *mount.Mount) { m.Target = "/x/../proc" },
		"relative":         func(m *mount.Mount) { m.Target = "x" },
		"a tmpfs' options": func(m *mount.Mount) { m.TmpfsOptions = &mount.TmpfsOptions{} },
	} {
		if err := judge(inside, change); err == nil {
			t.Errorf("%s is mounted", name)
		}
	}
	for _, source := range []string{inside, inside + "/file"} {
		if err := judge(source, nil); err != nil {
			t.Errorf("%s is not mounted: %v", source, err)
		}
	}
	for bind, pass := range map[string]bool{
		inside + ":/m": true, inside + ":/m:ro": true, inside + ":/m:rw,rprivate": true,
		inside + ":/m:rshared": false, inside + ":/m:z": false, inside + ":/m:Z": false, "name:/m": false, inside: false, inside + ":/m:": false,
		inside + ":/m:ro:x": false, "/etc:/m": false, "/:/m": false, link + ":/m": false, inside + ":/proc": false, inside + ":/m:ro,,": false,
	} {
		c := plainest()
		c.Host.Binds = []string{bind}
		if err := c.check(rules); (err == nil) != pass {
			t.Errorf("-v %s: %v", bind, err)
		}
	}
	// A user who owns the parent could put another folder in the source's place.
	if err := os.Chown(inside, 1000, 1000); err == nil {
		if err := judge(folder(t, inside, "deep"), nil); err == nil {
			t.Error("a folder is mounted whose parent belongs to the container's user")
		}
		if err := judge(inside, nil); err != nil {
			t.Errorf("the user's own folder is not mounted: %v", err)
		}
		must(t, os.Chmod(open, 0o777|os.ModeSticky))
		if err := judge(below, nil); err != nil {
			t.Errorf("a folder is not mounted that its owner alone can rename: %v", err)
		}
		must(t, os.Chown(below, 1000, 1000))
		if err := judge(below, nil); err == nil {
			t.Error("a folder is mounted that the container's user can rename")
		}
	}
}
