package enginecmd

import (
	"path/filepath"
	"slices"
	"strings"
)

// runners start another program, most of them with other rights, elsewhere, or again and again; what they run is not what a command
// line seems to name. Those that change nothing but a priority are Unwrap's.
var runners = strings.Fields(`ansible at batch bwrap cgexec chpst chroot chrt command crictl ctr daemonize distrobox doas exec expect find firejail flock
	gdb gosu incus kubectl lxc lxc-attach machinectl make mosh nerdctl nsenter parallel pkexec prlimit proot pwsh runuser screen script setarch setpriv
	ssh sshpass start-stop-daemon strace su su-exec sudo supervisord systemctl systemd-run time timeout tmux toolbox unshare watch xargs`)

// interpreter is how a language's program is handed code in its arguments.
type interpreter struct {
	// code are the letters of options that are followed by code; values those that take another argument; ends those behind which
	// everything is the program's own.
	code, values, ends string
}

var interpreters = map[string]interpreter{
	"awk": {}, "gawk": {}, "mawk": {}, "nawk": {}, "tclsh": {},
	"python": {code: "c", values: "XW", ends: "m"}, "pypy": {code: "c", values: "XW", ends: "m"},
	"perl": {code: "eE", values: "I"}, "ruby": {code: "e", values: "ICEr"}, "lua": {code: "e", values: "l"}, "luajit": {code: "e", values: "l"},
	"node": {code: "ep", values: "rC"}, "nodejs": {code: "ep", values: "rC"}, "deno": {code: "ep"}, "bun": {code: "ep"},
	"php": {code: "rBRE", values: "dcz", ends: "f"}, "julia": {code: "eE", values: "LJCtp"}, "Rscript": {code: "e"}, "R": {code: "e"}, "guile": {code: "c", values: "L"},
}

// Indirect says by what a command line runs something else than the program and the arguments that it names, as what follows "its
// command": a shell, a program that starts another one (timeout, sudo, ssh), an interpreter that is handed code, a shell with -c
// anywhere behind. It is "" for a plain command line. What Unwrap takes away is passed over.
func Indirect(argv []string) string {
	argv, _, ok := Unwrap(argv)
	if !ok {
		return "is started by a program that is told something that is not understood"
	}
	base := filepath.Base(argv[0])
	name := strings.TrimRight(base, "0123456789.-")
	language, known := interpreters[name]
	switch {
	case Shell(base):
		return "is run by a shell, " + base
	case slices.Contains(runners, base):
		return "is started by " + base + ", which runs another program"
	case known && (language == interpreter{} || language.handed(argv[1:])):
		return "is code for " + name
	}
	if _, engine := Read(argv, nil); engine {
		return "" // an engine starts nothing that its arguments name
	}
	for i := range argv {
		if Shell(argv[i]) && (interpreter{code: "c"}).handed(argv[i+1:]) {
			return "is run by a shell, " + filepath.Base(argv[i])
		}
	}
	return ""
}

// handed reports whether the options at the front of an interpreter's arguments hand it code.
func (in interpreter) handed(args []string) bool {
	if in.code == "ep" && first(args) == "eval" {
		return true
	}
	for i := 0; i < len(args); i++ {
		a := args[i]
		if strings.HasPrefix(a, "--") {
			name, _, _ := strings.Cut(a, "=")
			if name == "--" {
				return false
			}
			if slices.Contains([]string{"--eval", "--print", "--command", "--execute", "--run"}, name) {
				return true
			}
			continue
		}
		if !strings.HasPrefix(a, "-") || a == "-" {
			return false
		}
		for n := 1; n < len(a); n++ {
			switch letter := a[n : n+1]; {
			case strings.Contains(in.code, letter):
				return true
			case strings.Contains(in.ends, letter):
				return false
			case strings.Contains(in.values, letter):
				if n == len(a)-1 {
					i++
				}
				n = len(a)
			}
		}
	}
	return false
}
