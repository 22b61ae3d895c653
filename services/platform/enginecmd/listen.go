package enginecmd

import (
	"path/filepath"
	"strings"
)

// Listener is how a program is told where to listen.
type Listener struct {
	// Host and Port are its options, separated by spaces, the usual one first; "": it is told by its environment.
	Host, Port string
	// Default is its port unless it is told otherwise.
	Default uint32
	// Open: it listens on every address unless it is told otherwise.
	Open bool
}

// listeners are engines, and other programs that serve models, by name. An option means what its own program means by it: -b is an
// address for one and a batch size for another.
var listeners = map[string]Listener{
	LlamaCPP:         {Host: "--host", Port: "--port", Default: 8080},
	VLLM:             {Host: "--host", Port: "--port", Default: 8000, Open: true},
	SGLang:           {Host: "--host", Port: "--port", Default: 30000},
	Ollama:           {Default: 11434},
	"gunicorn":       {Host: "--bind -b", Default: 8000},
	"sd-server":      {Host: "--listen-ip -l", Port: "--listen-port", Default: 1234}, // stable-diffusion.cpp
	"whisper-server": {Host: "--host", Port: "--port", Default: 8080},                // whisper.cpp
}

// Listens returns how the program of an argument vector is told where to listen, if that is known of it.
func Listens(argv []string) (Listener, bool) {
	inner, _, ok := Unwrap(argv)
	if !ok {
		return Listener{}, false
	}
	if c, ok := read(inner, func(string) string { return "" }); ok {
		return ListensAs(c.Engine), true
	}
	base := filepath.Base(inner[0])
	if isPython(base) && len(inner) > 2 && inner[1] == "-m" {
		base = inner[2]
	}
	l, ok := listeners[base]
	l.Open = false // whatever else the program does, as `vllm bench`, it is no server
	return l, ok
}

// ListensAs is Listens for an engine.
func ListensAs(engine string) Listener { return listeners[engine] }

// Names reports whether an argument is one of the options, and returns what is joined to it by "=".
func Names(options, argument string) (value string, joined, ok bool) {
	name, value, joined := strings.Cut(argument, "=")
	return value, joined, has(options, name)
}

// Told is the last value that an argument vector has for the options, "" for none.
func Told(argv []string, options string) (last string) {
	for i := 1; i < len(argv); i++ {
		switch value, joined, ok := Names(options, argv[i]); {
		case ok && joined:
			last = value
		case ok && i+1 < len(argv):
			i++
			last = argv[i]
		}
	}
	return last
}
