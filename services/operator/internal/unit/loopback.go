package unit

import (
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

var (
	errBeyond = errors.New("it is told to listen beyond this host: a unit's service listens on 127.0.0.1 or ::1 alone")
	errOpen   = errors.New("it listens on every address unless it is told otherwise: give it --host 127.0.0.1")
)

// hostOptions are how servers are told where to listen.
var hostOptions = []string{
	"-b", "--address", "--bind", "--bind-addr", "--bind-address", "--host", "--hostname", "--http-address", "--http_address", "--ip",
	"--listen", "--listen-addr", "--listen-address", "--listen-host", "--server-name", "--server_name", "--api-host",
}

// hostVariables are the same in the environment.
var hostVariables = []string{
	"BIND", "BIND_ADDRESS", "GRADIO_SERVER_NAME", "HOST", "LLAMA_ARG_HOST", "OLLAMA_HOST", "SGLANG_HOST", "VLLM_HOST",
}

// loopback refuses a program that would be reached from other hosts by what it is told, or, where that is known of it, by what
// it is not told. The packet filter of the unit is the second line: it holds on control groups of version 2 alone.
func loopback(argv []string, env map[string]string) error {
	told := false
	for i, argument := range argv[1:] {
		if everywhere(argument) {
			return errBeyond
		}
		name, value, joined := strings.Cut(argument, "=")
		if joined && strings.HasPrefix(name, "-") && everywhere(value) {
			return errBeyond
		}
		if len(name) > 1 && name[0] == '-' && name[1] != '-' && name != "-b" {
			name = "-" + name // Go's flags know one dash
		}
		if !slices.Contains(hostOptions, name) {
			continue
		}
		if !joined {
			if i+2 >= len(argv) {
				continue
			}
			value = argv[i+2]
		}
		if !local(value) {
			return errBeyond
		}
		told = true
	}
	for key, value := range env {
		if everywhere(value) {
			return errBeyond
		}
		if slices.Contains(hostVariables, key) {
			if !local(value) {
				return errBeyond
			}
			told = true
		}
	}
	if !told && open(argv) {
		return errOpen
	}
	return nil
}

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
