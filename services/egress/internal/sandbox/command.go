package sandbox

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/pattern"
)

// tmpBytes is the size of a child's /tmp, and of its own folder where that is in memory too.
const tmpBytes = 64 << 20

var variable = pattern.New(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// inside is what is laid into one child's sandbox.
type inside struct {
	entry *downstream.Entry
	// program is the copy of the pinned program; tree that of a package, and bin its program in there.
	program, tree, bin string
	// data is the child's own folder on the host; empty: it is in memory, and ends with the child. relay and proxy are empty without a network.
	data, relay, proxy string
	// etc holds the few files of /etc that programs ask for.
	etc string
	env map[string]string
}

// arguments are what bubblewrap reads from a pipe, NUL-separated. In its own argument vector, which everybody on the host may read, stand
// neither paths nor values.
func (in inside) arguments() ([]byte, error) {
	var a []string
	add := func(words ...string) { a = append(a, words...) }
	add("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv",
		"--uid", "1000", "--gid", "1000", "--hostname", "sandbox")
	add("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
		"--symlink", "usr/sbin", "/sbin")
	// Files of the kernel are writable for the host's root, capabilities or none: where this process is root, its children are.
	add("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev", "--size", strconv.Itoa(tmpBytes), "--perms", "1777", "--tmpfs", "/tmp",
		"--dir", "/run", "--perms", "0755", "--dir", "/etc", "--ro-bind", filepath.Join(in.etc, "passwd"), "/etc/passwd")
	for _, public := range []string{"/etc/ssl/certs", "/etc/alternatives", "/etc/ld.so.cache", "/etc/fonts"} {
		add("--ro-bind-try", public, public)
	}
	for _, tells := range []string{"/proc/kallsyms", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug"} {
		if _, err := os.Stat(tells); err == nil { // what a kernel tells of itself depends on how it was built
			add("--ro-bind", "/dev/null", tells)
		}
	}
	box := in.entry.Sandbox
	for _, path := range slices.Sorted(slices.Values(box.Read)) {
		add("--ro-bind", path, path)
	}
	for _, path := range slices.Sorted(slices.Values(box.Write)) {
		add("--bind", path, path)
	}
	if in.program != "" {
		add("--ro-bind", in.program, in.at())
	}
	if in.tree != "" {
		add("--ro-bind", in.tree, packagePath)
	}
	if in.data == "" {
		add("--size", strconv.Itoa(tmpBytes), "--perms", "0700", "--tmpfs", "/data")
	} else {
		add("--bind", in.data, "/data")
	}
	add("--chdir", "/data")
	env := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/data", "TMPDIR": "/tmp", "LANG": "C.UTF-8"}
	maps.Copy(env, in.env)
	if in.relay != "" {
		add("--ro-bind", in.relay, relayPath, "--bind", in.proxy, proxySocket)
		for _, name := range []string{"HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"} {
			env[name] = "http://" + proxyAddr
		}
		env["NODE_USE_ENV_PROXY"] = "1"
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !variable().MatchString(name) || strings.ContainsRune(env[name], 0) {
			return nil, fmt.Errorf("the variable %q is no name of letters, digits and _, or its value holds a zero byte", name)
		}
		add("--setenv", name, env[name])
	}
	// Without these, / and /dev are memory that the child may fill.
	add("--remount-ro", "/dev", "--remount-ro", "/")
	if slices.ContainsFunc(a, func(word string) bool { return strings.ContainsRune(word, 0) }) {
		return nil, errors.New("a path with a zero byte names nothing")
	}
	return []byte(strings.Join(a, "\x00") + "\x00"), nil
}

// at is where the child finds its program: at the path of the human's file. What leads there by a link is laid where the link ends, where
// that is in the system's folder, which the child sees whole.
func (in inside) at() string {
	path := in.entry.Program.Path
	if real, err := filepath.EvalSymlinks(path); err == nil && within(real, "/usr") {
		return real
	}
	return path
}

// command is what runs in the sandbox.
func (in inside) command() []string {
	var run []string
	if in.relay != "" {
		run = []string{relayPath, RelayWord}
	}
	if in.bin != "" {
		return append(append(run, "/usr/bin/env", "node", in.bin), in.entry.NPM.Args...)
	}
	return append(append(run, in.entry.Program.Path), in.entry.Program.Args...)
}
