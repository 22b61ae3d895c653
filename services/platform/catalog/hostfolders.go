package catalog

import (
	"path/filepath"
	"slices"
	"strings"

	"durward.internal/services/platform/clean"
)

// hostFolders are folders of the host that no container sees a part of (SEC-D9): the system's own, and those whose files decide who may
// do what on it, so that who writes there owns the host.
var hostFolders = []string{
	"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/root", "/run", "/sbin", "/snap", "/sys", "/usr",
	"/var/backups", "/var/run", "/var/spool",
	"/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/dpkg", "/var/lib/durward", "/var/lib/kubelet", "/var/lib/libvirt",
	"/var/lib/lxc", "/var/lib/lxd", "/var/lib/machines", "/var/lib/private", "/var/lib/rancher", "/var/lib/rpm", "/var/lib/snapd", "/var/lib/systemd",
}

// homes hold the users' own folders.
var homes = []string{"/home", "/var/home"}

// modelFolders are hidden folders in which well-known tools keep models and nothing that lets anybody in.
var modelFolders = []string{".cache", ".lmstudio/models", ".ollama/models"}

// HostFolders are the folders of the host that no container sees a part of, nor a folder that holds one of them.
func HostFolders() []string { return slices.Clone(hostFolders) }

// Unmountable is why no container may have a folder or file of the host, whatever a human allows, as what follows "its mount"; "" where
// it may. The path is absolute and in its shortest form, the answer clean. It is judged by its name alone: where links lead, the executor sees.
func Unmountable(path string) string {
	if path == "/" {
		return "is the whole host"
	}
	for _, no := range hostFolders {
		switch {
		case Within(path, no):
			return "lies in " + no + ", which is the system's"
		case Within(no, path):
			return "holds " + no + ", which is the system's"
		}
	}
	for _, home := range homes {
		if path == home || filepath.Dir(path) == home || Within(home, path) {
			return "is all of a user's own folder, with the keys in it"
		}
	}
	if path == "/tmp" || path == "/var/tmp" {
		return "is everybody's, with the sockets in it"
	}
	if name := hidden(path); name != "" {
		why := "lies in the hidden folder " + clean.Line(clean.Visible(name), 64) + ", where programs keep keys and settings"
		for _, yes := range modelFolders {
			if first, _, below := strings.Cut(yes, "/"); first == name && below {
				why += "; " + yes + " may be mounted"
			} else if first == name {
				why += "; a folder below " + yes + " may be mounted"
			}
		}
		return why
	}
	return ""
}

// Within reports whether an absolute path is a folder or lies in it. Both are in their shortest form.
func Within(path, folder string) bool {
	return path == folder || folder == "/" || strings.HasPrefix(path, folder+"/")
}

// hidden is the first element of a path whose name begins with a dot, unless only models lie behind it.
func hidden(path string) string {
	for at, rest := 0, path; ; {
		i := strings.Index(rest, "/.")
		if i < 0 {
			return ""
		}
		at += i + 1
		rest = path[at:]
		// A folder below the cache, never the cache as a whole.
		if !slices.ContainsFunc(modelFolders, func(yes string) bool {
			return strings.HasPrefix(rest, yes+"/") || rest == yes && strings.Contains(yes, "/")
		}) {
			name, _, _ := strings.Cut(rest, "/")
			return name
		}
	}
}
