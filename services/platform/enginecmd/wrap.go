package enginecmd

import (
	"path/filepath"
	"slices"
	"strings"
)

// maxWrappers bounds how many programs may stand before the one that matters.
const maxWrappers = 8

// Unwrap takes away the programs that do nothing but start another one: env, nice, ionice, numactl, taskset, setsid, nohup, stdbuf,
// `uv run`, tini and dumb-init. environment is what env sets. ok is false where one of them is told something that this package
// does not know, or where nothing is left to run. The arguments themselves are never changed.
func Unwrap(argv []string) (inner []string, environment map[string]string, ok bool) {
	for range maxWrappers {
		if len(argv) == 0 {
			return nil, environment, false
		}
		rest, known, good := unwrapOne(argv, &environment)
		if !known {
			return argv, environment, true
		}
		if !good {
			return nil, environment, false
		}
		argv = rest
	}
	return nil, environment, false
}

// wrapper is how many of its own arguments a program has.
type wrapper struct {
	// flags stand alone; values take the next argument unless it is joined. Names are separated by spaces.
	flags, values string
	// numbers: "-5" is one of its options, as for nice.
	numbers bool
	// positional arguments come before the program.
	positional int
}

var wrappers = map[string]wrapper{
	"nice":      {values: "-n --adjustment", numbers: true},
	"ionice":    {flags: "-t --ignore", values: "-c --class -n --classdata"},
	"numactl":   {flags: "-l --localalloc -a --all -b --balancing", values: "-N --cpunodebind -m --membind -i --interleave -C --physcpubind -p --preferred -w --weighted-interleave"},
	"taskset":   {flags: "-a --all-tasks -c --cpu-list", positional: 1},
	"setsid":    {flags: "-w --wait -f --fork -c --ctty"},
	"nohup":     {},
	"stdbuf":    {values: "-i --input -o --output -e --error"},
	"tini":      {flags: "-g -s -v -w", values: "-p -e"},
	"dumb-init": {flags: "-c --single-child -v --verbose", values: "-r --rewrite"},
}

// unwrapOne takes one wrapper away. known: argv begins with one.
func unwrapOne(argv []string, environment *map[string]string) (rest []string, known, good bool) {
	base := filepath.Base(argv[0])
	if base == "env" {
		rest, good = unwrapEnv(argv[1:], environment)
		return rest, true, good
	}
	if base == "uv" && len(argv) > 2 && argv[1] == "run" && !strings.HasPrefix(argv[2], "-") {
		return argv[2:], true, true
	}
	w, known := wrappers[base]
	if !known {
		return nil, false, false
	}
	args, positional := argv[1:], w.positional
	for len(args) > 0 {
		a := args[0]
		name, _, joined := strings.Cut(a, "=")
		switch {
		case a == "--":
			args = args[1:]
			if positional > 0 {
				return args[min(positional, len(args)):], true, len(args) > positional
			}
			return args, true, len(args) > 0
		case !strings.HasPrefix(a, "-") || a == "-":
			if positional == 0 {
				return args, true, true
			}
			positional--
			args = args[1:]
		case has(w.flags, a):
			args = args[1:]
		case has(w.values, name) && joined:
			args = args[1:]
		case has(w.values, a):
			args = args[min(2, len(args)):]
		case w.numbers && strings.Trim(a[1:], "0123456789") == "":
			args = args[1:]
		case len(a) > 2 && a[1] != '-' && has(w.values, a[:2]):
			args = args[1:] // -n5
		default:
			return nil, true, false
		}
	}
	return nil, true, false
}

// unwrapEnv reads env's variables. Its --split-string is a small shell's language, which is not read.
func unwrapEnv(args []string, environment *map[string]string) (rest []string, good bool) {
	for len(args) > 0 {
		a := args[0]
		key, text, assigned := strings.Cut(a, "=")
		switch {
		case a == "-i" || a == "-" || a == "--ignore-environment" || strings.HasPrefix(a, "--unset=") || a == "--":
			args = args[1:]
		case a == "-u" || a == "--unset":
			args = args[min(2, len(args)):]
		case strings.HasPrefix(a, "-"):
			return nil, false
		case assigned && key != "":
			if *environment == nil {
				*environment = map[string]string{}
			}
			(*environment)[key] = text
			args = args[1:]
		default:
			return args, true
		}
	}
	return nil, false
}

// has reports whether a word is among those of a list with spaces.
func has(words, word string) bool { return slices.Contains(strings.Fields(words), word) }

// Env takes env away from the front of an argument vector, and what it sets. One that does not begin with it is returned as it is.
func Env(argv []string) (inner []string, environment map[string]string, ok bool) {
	if len(argv) == 0 || filepath.Base(argv[0]) != "env" {
		return argv, nil, true
	}
	inner, ok = unwrapEnv(argv[1:], &environment)
	return inner, environment, ok
}
