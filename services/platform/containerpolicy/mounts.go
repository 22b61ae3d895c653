package containerpolicy

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/pattern"
)

var tmpfsOption = pattern.New(
	`\A(rw|ro|nosuid|nodev|noexec|exec|noatime|size=[0-9]{1,13}[kmgKMG]?|mode=0?[0-7]{3,4}|uid=[0-9]{1,9}|gid=[0-9]{1,9})\z`)

// mount is one in the newer form. The options of kinds that are not mounted are looked at for being there.
type mount struct {
	Type, Source, Target, Consistency string
	ReadOnly                          bool
	BindOptions                       *struct {
		Propagation                    string
		CreateMountpoint, NonRecursive bool
	}
	VolumeOptions, ImageOptions, ClusterOptions any
	TmpfsOptions                                *struct{ Options []any }
}

// mountPoint is a mount as the daemon reports it.
type mountPoint struct {
	Type, Source, Destination, Propagation string
	RW                                     bool
}

// given reports whether a mount is of one of the executor's own files, which only this container gets.
func (k *check) given(source, target string, writable bool) bool {
	return !writable && source != "" && k.Given[target] == source
}

// mounts judges mounts in the newer form.
func mounts(k *check) string {
	for _, m := range k.Host.Mounts {
		if wrong := k.mount(m); wrong != "" {
			return wrong
		}
	}
	return ""
}

func (k *check) mount(m mount) string {
	if wrong := Target(m.Target); wrong != "" {
		return wrong
	}
	switch {
	case m.Consistency != "" && m.Consistency != "default":
		return "consistency has no rule"
	case m.VolumeOptions != nil || m.ImageOptions != nil || m.ClusterOptions != nil:
		return "only folders of the host and memory are mounted"
	}
	switch m.Type {
	case "tmpfs":
		if o := m.TmpfsOptions; o != nil && len(o.Options) > 0 {
			return "options of a tmpfs have no rule"
		}
		return unless(m.Source == "" && m.BindOptions == nil, "a tmpfs has no source")
	case "bind":
		if m.TmpfsOptions != nil {
			return "is a folder and memory at once"
		}
		if o := m.BindOptions; o != nil && (!private(o.Propagation) || o.CreateMountpoint) {
			return "mounts must not pass through to the host and back"
		}
		if k.given(m.Source, m.Target, !m.ReadOnly) {
			return ""
		}
		return k.source(m.Source, m.BindOptions == nil || !m.BindOptions.NonRecursive)
	}
	return safe(m.Type) + " is not mounted here"
}

// binds judges mounts in the older form, SOURCE:TARGET[:OPTIONS].
func binds(k *check) string {
	for _, b := range k.Host.Binds {
		parts := strings.Split(b, ":")
		if len(parts) < 2 || len(parts) > 3 {
			return safe(b) + " is not SOURCE:TARGET:OPTIONS"
		}
		if len(parts) == 3 {
			for option := range strings.SplitSeq(parts[2], ",") {
				if option != "ro" && option != "rw" && (option == "" || !private(option)) {
					return safe(option) + " has no rule"
				}
			}
		}
		if wrong := Target(parts[1]) + k.source(parts[0], true); wrong != "" {
			return wrong
		}
	}
	return ""
}

// tmpfs judges folders in memory: they must not bring devices or other users' rights, as the daemon's defaults see to.
func tmpfs(k *check) string {
	for place, options := range k.Host.Tmpfs {
		if wrong := Target(place); wrong != "" {
			return wrong
		}
		for option := range strings.SplitSeq(options, ",") {
			if option != "" && !tmpfsOption().MatchString(option) {
				return safe(option) + " has no rule"
			}
		}
	}
	return ""
}

// reported judges what the daemon says that it did.
func (k *check) reported() {
	fields := len(k.found)
	for _, m := range k.container.Mounts {
		if wrong := k.mountPoint(m); wrong != "" {
			k.report("Mounts", wrong)
		}
	}
	if k.AppArmorProfile == "unconfined" {
		k.report("AppArmorProfile", "must not be unconfined")
	}
	if wrong := k.ports(k.NetworkSettings.Ports); wrong != "" {
		k.report("NetworkSettings.Ports", wrong)
	}
	for name, endpoint := range k.NetworkSettings.Networks {
		switch {
		case !slices.Contains(networks, name) || (k.Host.NetworkMode == "none") != (name == "none"):
			k.report("NetworkSettings.Networks", safe(name)+" is not the network that was asked for")
		case endpoint != nil && (len(endpoint.Links) > 0 || len(endpoint.DriverOpts) > 0):
			k.report("NetworkSettings.Networks", "links and driver options have no rule")
		}
	}
	slices.Sort(k.found[fields:])
}

func (k *check) mountPoint(m mountPoint) string {
	switch m.Type {
	case "tmpfs":
		return Target(m.Destination)
	case "bind":
		if !private(m.Propagation) {
			return "mounts must not pass through to the host and back"
		}
		if k.given(m.Source, m.Destination, m.RW) {
			return Target(m.Destination)
		}
		// Whether what is mounted below comes along is said in HostConfig, and judged there.
		return Target(m.Destination) + k.source(m.Source, false)
	}
	return safe(m.Type) + " at " + safe(m.Destination) + ": a volume has no bound, and may be anything that its driver finds"
}

func private(propagation string) bool {
	return propagation == "" || propagation == "private" || propagation == "rprivate"
}

// Target says what is wrong with a place inside a container, or "".
func Target(path string) string {
	switch {
	case !Plain(path) || path == "/":
		return safe(path) + " is not a place in a container"
	case catalog.Kernels(path):
		return safe(path) + " would lay itself over the kernel's files"
	}
	return ""
}

// Plain reports whether a path is absolute, in its shortest form, and without characters that mean something to a daemon.
func Plain(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && len(path) <= 4096 &&
		!strings.ContainsFunc(path, func(r rune) bool { return r < 0x20 || r == 0x7f || r == ':' || r == ',' })
}

// uid is the number of the user that the container runs as.
func (k *check) uid() (uid, gid uint32) {
	u, g, _ := strings.Cut(k.Config.User, ":")
	un, err := strconv.ParseUint(u, 10, 32)
	if err != nil {
		return 0, 0
	}
	gn, err := strconv.ParseUint(g, 10, 32)
	if err != nil {
		gn = 0
	}
	return uint32(un), uint32(gn)
}
