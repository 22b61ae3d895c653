package discover

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
)

// hostRead are fields of HostConfig that compose reads, or that say nothing about what the container may do.
var hostRead = strings.Fields(`AutoRemove Binds CapAdd CapDrop Cgroup CgroupnsMode ConsoleSize ContainerIDFile DeviceRequests Devices Init IpcMode Isolation LogConfig
	MaskedPaths Memory MemorySwap Mounts NanoCpus NetworkMode PidMode PidsLimit PortBindings Privileged PublishAllPorts ReadonlyPaths ReadonlyRootfs Runtime SecurityOpt
	ShmSize Tmpfs UTSMode UsernsMode`)

// hostKeys are fields of HostConfig and of a Compose file's service that say whose namespace, device or mount a container shares. What
// is the container's own, by the names that the daemon has for it, is left out.
var hostKeys = []struct{ field, key, own string }{
	{"PidMode", "pid", "private"}, {"IpcMode", "ipc", "private none shareable"}, {"UTSMode", "uts", ""}, {"UsernsMode", "userns_mode", ""},
	{"NetworkMode", "network_mode", "default bridge none"}, {"Runtime", "runtime", "runc io.containerd.runc.v2 nvidia"},
}

// compose says what a container is as a Compose file would. What no entry has a place for keeps its name.
func (seen inspection) compose(base image, c *Container, pairs []string) *boundedyaml.Value {
	h := seen.HostConfig
	v := boundedyaml.Make("image", c.Image, "user", part[string](seen.Config, "User"), "environment", pairs)
	list := func(key string, words ...string) {
		for _, word := range words {
			v.Add(key, &boundedyaml.Value{Kind: boundedyaml.Text, Text: word})
		}
	}
	if entrypoint := part[[]string](seen.Config, "Entrypoint"); !slices.Equal(entrypoint, base.Config.Entrypoint) {
		list("entrypoint", entrypoint...)
	}
	if command := part[[]string](seen.Config, "Cmd"); !slices.Equal(command, base.Config.Cmd) {
		list("command", command...)
	}
	for _, one := range hostKeys {
		if mode := part[string](h, one.field); !slices.Contains(strings.Fields(one.own), mode) {
			v.Set(one.key, mode)
		}
	}
	if part[bool](h, "Privileged") {
		v.Set("privileged", "true")
	}
	list("cap_add", slices.DeleteFunc(part[[]string](h, "CapAdd"), func(cap string) bool { return strings.HasSuffix(cap, "NET_BIND_SERVICE") })...)
	list("security_opt", part[[]string](h, "SecurityOpt")...)
	for _, d := range part[[]struct{ PathOnHost string }](h, "Devices") {
		list("devices", d.PathOnHost)
	}
	for _, r := range part[[]deviceRequest](h, "DeviceRequests") {
		if r.gpu() {
			count := ""
			if r.Count != 0 {
				count = strconv.Itoa(r.Count)
			}
			v.Add("gpus", boundedyaml.Make("count", count, "device_ids", r.DeviceIDs))
		}
	}
	// NVIDIA's runtime, which may be the daemon's usual one, believes the environment, the image's own too.
	for _, pair := range part[[]string](seen.Config, "Env") {
		key, ids, _ := strings.Cut(pair, "=")
		if key == "NVIDIA_VISIBLE_DEVICES" && part[string](h, "Runtime") == "nvidia" && !slices.Contains([]string{"", "none", "void"}, ids) {
			v.Add("gpus", boundedyaml.Make("device_ids", strings.Split(ids, ",")))
		}
	}
	number := func(key string, n int64) {
		if n > 0 {
			v.Set(key, strconv.FormatInt(n, 10))
		}
	}
	if shm := part[int64](h, "ShmSize"); shm > 64<<20 { // the daemon's default
		number("shm_size", shm)
	}
	number("mem_limit", part[int64](h, "Memory"))
	if cpus := part[int64](h, "NanoCpus"); cpus > 0 {
		v.Set("cpus", strconv.FormatFloat(float64(cpus)/1e9, 'f', 2, 64))
	}
	if pids := part[*int64](h, "PidsLimit"); pids != nil {
		number("pids_limit", *pids)
	}
	places := []string{"/tmp"}
	for place := range part[map[string]string](h, "Tmpfs") {
		if !slices.Contains(places, place) {
			places = append(places, place)
		}
	}
	slices.Sort(places)
	list("tmpfs", places...)
	slices.SortFunc(seen.Mounts, func(a, b mountPoint) int { return strings.Compare(a.Destination, b.Destination) })
	for _, m := range seen.Mounts {
		one := boundedyaml.Make("type", m.Type, "source", m.Source, "target", m.Destination)
		if !m.RW {
			one.Fields["read_only"] = &boundedyaml.Value{Kind: boundedyaml.Scalar, Text: "true"}
		}
		v.Add("volumes", one)
	}
	if c.Port != 0 && c.Inside != 0 {
		list("ports", c.published+":"+number32(c.Port)+":"+number32(c.Inside))
	}
	return v
}

// dropped are settings that an entry has no place for.
func (seen inspection) dropped(base image) (out []string) {
	for field, raw := range seen.HostConfig {
		quiet := slices.Contains(hostRead, field) || canonical.Empty(raw)
		switch field {
		case "RestartPolicy":
			name := part[struct{ Name string }](seen.HostConfig, field).Name
			quiet = name == "" || name == "no"
		case "OomScoreAdj", "MemorySwappiness":
			quiet = quiet || string(raw) == "-1"
		}
		if !quiet {
			out = append(out, clean.Line(clean.Visible(field), 64))
		}
	}
	if folder := part[string](seen.Config, "WorkingDir"); strings.Trim(folder, "/") != strings.Trim(base.Config.WorkingDir, "/") {
		out = append(out, "WorkingDir")
	}
	slices.Sort(out)
	return out[:min(len(out), 16)]
}

// part decodes one field of a container's configuration; what is missing or of another shape is left at zero.
func part[T any](fields map[string]json.RawMessage, key string) T {
	var v T
	if raw, ok := fields[key]; ok {
		_ = json.Unmarshal(raw, &v) // the rules refuse a field that is not what it should be
	}
	return v
}
