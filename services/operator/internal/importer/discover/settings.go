package discover

import (
	"cmp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/containerpolicy"
)

// limits are what a container may take at most; 0: there is no limit.
type limits struct{ memoryMiB, cpuPercent, pids uint32 }

func (l limits) fields() (out yaml.MapSlice) {
	for _, one := range []struct {
		key   string
		value uint32
	}{{"memory_mib", l.memoryMiB}, {"cpu_percent", l.cpuPercent}, {"pids", l.pids}} {
		if one.value > 0 {
			out = append(out, yaml.MapItem{Key: one.key, Value: one.value})
		}
	}
	return out
}

// hostRead are fields of HostConfig that are read, that unsafe judges, or that say nothing about what the container may do.
var hostRead = strings.Fields(`AutoRemove Binds CapAdd CapDrop Cgroup CgroupnsMode ConsoleSize ContainerIDFile DeviceCgroupRules DeviceRequests Devices Init IpcMode
	Isolation LogConfig MaskedPaths Memory MemorySwap Mounts NanoCpus NetworkMode PidMode PidsLimit PortBindings Privileged PublishAllPorts ReadonlyPaths ReadonlyRootfs
	Runtime ShmSize Tmpfs UTSMode UsernsMode VolumesFrom`)

// settings reads what an entry can say of a container beside its image, and names what it cannot.
func (c *Container) settings(seen inspection, base image) {
	h := seen.HostConfig
	c.Tmpfs = []string{"/tmp"}
	for place := range part[map[string]string](h, "Tmpfs") {
		if containerpolicy.Plain(place) && !slices.Contains(c.Tmpfs, place) {
			c.Tmpfs = append(c.Tmpfs, place)
		}
	}
	slices.Sort(c.Tmpfs)
	if memory := part[int64](h, "Memory"); memory > 0 {
		c.limits.memoryMiB = uint32(min(max(memory>>20, 1), 1<<24))
	}
	if cpus := part[int64](h, "NanoCpus"); cpus > 0 {
		c.limits.cpuPercent = uint32(min(max(cpus/10_000_000, 1), 102_400))
	}
	if pids := part[*int64](h, "PidsLimit"); pids != nil && *pids > 0 {
		c.limits.pids = uint32(min(*pids, 1<<20))
	}
	for field, raw := range h {
		quiet := slices.Contains(hostRead, field) || canonical.Empty(raw)
		switch field {
		case "RestartPolicy":
			name := part[struct{ Name string }](h, field).Name
			quiet = name == "" || name == "no"
		case "SecurityOpt":
			quiet = !slices.ContainsFunc(part[[]string](h, field), func(o string) bool { return !strings.HasPrefix(o, "no-new-privileges") })
		case "OomScoreAdj", "MemorySwappiness":
			quiet = quiet || string(raw) == "-1"
		}
		if !quiet {
			c.Dropped = append(c.Dropped, clean.Line(clean.Visible(field), 64))
		}
	}
	if folder := part[string](seen.Config, "WorkingDir"); cmp.Or(folder, "/") != cmp.Or(base.Config.WorkingDir, "/") {
		c.Dropped = append(c.Dropped, "WorkingDir")
	}
	slices.Sort(c.Dropped)
	c.Dropped = c.Dropped[:min(len(c.Dropped), 16)]
}
