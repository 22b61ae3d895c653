package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// system are folders of the host that no entry can name, nor what is in them: the sandbox has its own, or they are the host itself.
var system = []string{"/proc", "/sys", "/dev", "/run", "/var/run", "/etc", "/boot", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/data", "/var/lib", "/var/log"}

// checkFolders reports why an entry's folders cannot be given to a child. own are the folders that hold Durward's state.
func checkFolders(read, write, own []string) error {
	for _, path := range append(slices.Clone(read), write...) {
		if err := checkFolder(path, own); err != nil {
			return err
		}
		// The child could put a link where the other folder is, and have the next start bind what the link names.
		for _, writable := range write {
			if path != writable && within(path, writable) {
				return fmt.Errorf("the folder %s is in %s, which the server may write: name one of them", path, writable)
			}
		}
	}
	return nil
}

func checkFolder(path string, own []string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
		return fmt.Errorf("the folder %q is not written as an absolute, clean path", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("the folder %s is not there, or cannot be reached by the launcher's user", path)
	}
	info, err := os.Stat(real)
	switch {
	case real != path:
		return fmt.Errorf("the folder %s is reached through a link: name %s itself", path, real)
	case err != nil || !info.IsDir():
		return fmt.Errorf("%s is no folder", path)
	case path == "/", path == "/tmp", path == "/var/tmp":
		return fmt.Errorf("%s is everybody's: name the folders that the server needs", path)
	}
	for _, s := range system {
		if within(path, s) || within(s, path) {
			return fmt.Errorf("the folder %s holds, or is part of, %s, which is the host's own", path, s)
		}
	}
	for _, s := range own {
		if s != "" && (within(path, s) || within(s, path)) {
			return fmt.Errorf("the folder %s holds, or is part of, what Durward keeps: no server gets it", path)
		}
	}
	for _, home := range homes() {
		if within(home, path) {
			return fmt.Errorf("the folder %s holds the home folder %s, with its keys: name a folder in it", path, home)
		}
		if rest, err := filepath.Rel(home, path); err == nil && strings.HasPrefix(rest, ".") && !strings.HasPrefix(rest, "..") {
			return fmt.Errorf("the folder %s is among a user's settings and keys: no server gets it", path)
		}
	}
	return nil
}

// within reports whether a path is a folder or in it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// homes are the home folders of this host: those of its users, and whatever is in /home.
func homes() []string {
	all := []string{"/root"}
	entries, _ := os.ReadDir("/home") // none is none
	for _, e := range entries {
		all = append(all, filepath.Join("/home", e.Name()))
	}
	users, _ := os.ReadFile("/etc/passwd")
	for line := range strings.Lines(string(users)) {
		fields := strings.Split(line, ":")
		if len(fields) < 6 {
			continue
		}
		// Below 1000 are services' users, whose home is a folder of the system or of what they serve.
		if uid, err := strconv.Atoi(fields[2]); err == nil && uid >= 1000 && filepath.IsAbs(fields[5]) && fields[5] != "/" {
			all = append(all, filepath.Clean(fields[5]))
		}
	}
	return all
}
