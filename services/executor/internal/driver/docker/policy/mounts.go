package policy

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
)

// insideRefused are folders of a container that nothing may be laid over: what is masked there would come to light.
var insideRefused = []string{"/proc", "/sys", "/dev"}

var tmpfsOption = regexp.MustCompile(
	`\A(rw|ro|nosuid|nodev|noexec|exec|noatime|size=[0-9]{1,13}[kmgKMG]?|mode=0?[0-7]{3,4}|uid=[0-9]{1,9}|gid=[0-9]{1,9})\z`)

// mounts judges mounts in the newer form.
func mounts(k *check) string {
	for _, m := range k.Host.Mounts {
		if wrong := k.mount(m); wrong != "" {
			return wrong
		}
	}
	return ""
}

func (k *check) mount(m mount.Mount) string {
	if wrong := target(m.Target); wrong != "" {
		return wrong
	}
	switch {
	case m.Consistency != "" && m.Consistency != mount.ConsistencyDefault:
		return "consistency has no rule"
	case m.VolumeOptions != nil || m.ImageOptions != nil || m.ClusterOptions != nil:
		return "only folders of the host and memory are mounted"
	}
	switch m.Type {
	case mount.TypeTmpfs:
		if o := m.TmpfsOptions; o != nil && len(o.Options) > 0 {
			return "options of a tmpfs have no rule"
		}
		return unless(m.Source == "" && m.BindOptions == nil, "a tmpfs has no source")
	case mount.TypeBind:
		o := m.BindOptions
		if o == nil {
			o = &mount.BindOptions{}
		}
		switch {
		case !private(o.Propagation) || o.CreateMountpoint:
			return "mounts must not pass through to the host and back"
		case m.TmpfsOptions != nil:
			return "is a folder and memory at once"
		}
		return k.source(m.Source, !o.NonRecursive)
	}
	return safe(string(m.Type)) + " is not mounted here"
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
				if option != "ro" && option != "rw" && (option == "" || !private(mount.Propagation(option))) {
					return safe(option) + " has no rule"
				}
			}
		}
		if wrong := target(parts[1]) + k.source(parts[0], true); wrong != "" {
			return wrong
		}
	}
	return ""
}

// tmpfs judges folders in memory: they must not bring devices or other users' rights, as the daemon's defaults see to.
func tmpfs(k *check) string {
	for place, options := range k.Host.Tmpfs {
		if wrong := target(place); wrong != "" {
			return wrong
		}
		for option := range strings.SplitSeq(options, ",") {
			if option != "" && !tmpfsOption.MatchString(option) {
				return safe(option) + " has no rule"
			}
		}
	}
	return ""
}

// reported judges what the daemon says that it did.
func (k *check) reported() {
	for _, m := range k.Container.Mounts {
		if wrong := k.mountPoint(m); wrong != "" {
			k.report("Mounts", "%s", wrong)
		}
	}
	if k.AppArmor == "unconfined" {
		k.report("AppArmorProfile", "must not be unconfined")
	}
	if wrong := k.ports(k.Published); wrong != "" {
		k.report("NetworkSettings.Ports", "%s", wrong)
	}
	for name, endpoint := range k.Networks {
		switch {
		case !slices.Contains(networks, name) || (k.Host.NetworkMode == "none") != (name == "none"):
			k.report("NetworkSettings.Networks", "%s is not the network that was asked for", safe(name))
		case endpoint == nil:
		case len(endpoint.Links) > 0 || len(endpoint.DriverOpts) > 0:
			k.report("NetworkSettings.Networks", "links and driver options have no rule")
		}
	}
}

func (k *check) mountPoint(m container.MountPoint) string {
	switch m.Type {
	case mount.TypeTmpfs:
		return target(m.Destination)
	case mount.TypeBind:
		if !private(m.Propagation) {
			return "mounts must not pass through to the host and back"
		}
		// Whether what is mounted below comes along is said in HostConfig, and judged there.
		return target(m.Destination) + k.source(m.Source, false)
	}
	return fmt.Sprintf("%s at %s: a volume has no bound, and may be anything that its driver finds",
		safe(string(m.Type)), safe(m.Destination))
}

func private(p mount.Propagation) bool {
	return p == "" || p == mount.PropagationPrivate || p == mount.PropagationRPrivate
}

// target judges a place inside the container.
func target(path string) string {
	switch {
	case !plain(path) || path == "/":
		return safe(path) + " is not a place in a container"
	case slices.ContainsFunc(insideRefused, func(no string) bool { return within(path, no) }):
		return safe(path) + " would lay itself over the kernel's files"
	}
	return ""
}

// plain reports whether a path is absolute, in its shortest form, and without characters that mean something to a daemon.
func plain(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && len(path) <= 4096 &&
		!strings.ContainsFunc(path, func(r rune) bool { return r < 0x20 || r == 0x7f || r == ':' || r == ',' })
}

// within reports whether path is folder or lies in it.
func within(path, folder string) bool {
	return path == folder || folder == "/" || strings.HasPrefix(path, folder+"/")
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
