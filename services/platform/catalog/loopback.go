package catalog

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"durward.internal/services/platform/enginecmd"
)

var (
	// ErrBeyond and ErrOpen are why a program would be reached from other hosts.
	ErrBeyond = errors.New("it is told to listen beyond this host: a service listens on 127.0.0.1 or ::1 alone (not loopback)")
	ErrOpen   = errors.New("it listens on every address unless it is told otherwise: give it --host 127.0.0.1")
)

// hostOptions are how servers are told where to listen, by names that mean nothing else. What else a program calls it, enginecmd knows.
var hostOptions = []string{
	"--address", "--bind", "--bind-addr", "--bind-address", "--host", "--hostname", "--http-address", "--http_address", "--ip",
	"--listen", "--listen-addr", "--listen-address", "--listen-host", "--server-name", "--server_name", "--api-host",
}

// hostVariables are the same in the environment.
var hostVariables = []string{
	"BIND", "BIND_ADDRESS", "GRADIO_SERVER_NAME", "HOST", "LLAMA_ARG_HOST", "OLLAMA_HOST", "SGLANG_HOST", "VLLM_HOST",
}

// Loopback refuses a program that would be reached from other hosts by what it is told, or, where that is known of it, by what it
// is not told, and says where in the entry: ".argv[3]", ".environment.HOST". It knows the usual options and variables and the
// unspecified address wherever it stands; the packet filter of a rendered unit is the second line.
func Loopback(argv []string, env map[string]string) (at string, err error) {
	told := false
	listener, _ := enginecmd.Listens(argv)
	for i, argument := range argv[1:] {
		if everywhere(argument) {
			return argumentAt(i + 1), ErrBeyond
		}
		name, value, joined := strings.Cut(argument, "=")
		if joined && strings.HasPrefix(name, "-") && everywhere(value) {
			return argumentAt(i + 1), ErrBeyond
		}
		long := name
		if len(name) > 1 && name[0] == '-' && name[1] != '-' {
			long = "-" + name // Go's flags know one dash
		}
		_, _, own := enginecmd.Names(listener.Host, name)
		own = own || slices.Contains(hostOptions, long)
		if !own && name != "-b" {
			continue
		}
		place := i + 1
		if !joined {
			if i+2 >= len(argv) {
				continue
			}
			place, value = i+2, argv[i+2]
		}
		if !own && !isAddress(value) {
			continue // of a program that is not known, -b is what its value says: an address, or a batch size
		}
		if !local(value) {
			return argumentAt(place), ErrBeyond
		}
		told = true
	}
	for _, key := range sortedKeys(env) {
		value, place := env[key], ".environment."+key
		if everywhere(value) {
			return place, ErrBeyond
		}
		if slices.Contains(hostVariables, key) {
			if !local(value) {
				return place, ErrBeyond
			}
			told = true
		}
	}
	if !told && (listener.Open || open(argv)) {
		return ".argv", ErrOpen
	}
	return "", nil
}

func argumentAt(i int) string { return fmt.Sprintf(".argv[%d]", i) }

// open reports whether the program is vLLM's server, or Ray's, which listen everywhere by default.
func open(argv []string) bool {
	base := filepath.Base(argv[0])
	if base == "vllm" {
		return slices.Contains(argv, "serve")
	}
	return strings.HasPrefix(base, "python") && slices.ContainsFunc(argv, func(a string) bool {
		return strings.HasPrefix(a, "vllm.entrypoints") || filepath.Base(a) == "vllm" && slices.Contains(argv, "serve")
	})
}

// isAddress reports whether text is an IP address, with or without a port.
func isAddress(text string) bool {
	if _, err := netip.ParseAddrPort(text); err == nil {
		return true
	}
	_, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return err == nil
}

// everywhere reports whether text is the unspecified address, with or without a port.
func everywhere(text string) bool {
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return ap.Addr().Unmap().IsUnspecified()
	}
	addr, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return err == nil && addr.Unmap().IsUnspecified()
}

// local reports whether a host, with or without a scheme and a port, is this host's loopback interface.
func local(value string) bool {
	if _, rest, ok := strings.Cut(value, "://"); ok {
		value = strings.TrimSuffix(rest, "/")
	}
	if strings.HasPrefix(value, "/") || strings.HasPrefix(value, "unix:") {
		return true // a socket file
	}
	if ap, err := netip.ParseAddrPort(value); err == nil {
		return ap.Addr().Unmap().IsLoopback()
	}
	if addr, err := netip.ParseAddr(strings.Trim(value, "[]")); err == nil {
		return addr.Unmap().IsLoopback()
	}
	host, _, _ := strings.Cut(value, ":")
	return host == "localhost"
}
