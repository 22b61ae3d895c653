// Package resource is what agents may read of Durward beside its tools: the URIs, strictly parsed, and the text behind each.
// It runs in the gateway, the untrusted edge. What it shows it fetches as the READ tools do, under the session's permit, so
// that the sink checks and records it; nothing is kept. Its texts hold no absolute path, environment value, credential or
// token (SEC-E2), whoever wrote them into the catalog.
package resource

import (
	"errors"
	"slices"
	"strings"
)

// Scheme begins every URI.
const Scheme = "durward://"

// Kind is what a URI is about.
type Kind string

// The kinds. Service, Mode, Model and Operation have an id.
const (
	Help      Kind = "help"
	GPU       Kind = "gpu"
	Services  Kind = "services"
	Service   Kind = "service"
	Modes     Kind = "modes"
	Mode      Kind = "mode"
	Models    Kind = "models"
	Model     Kind = "model"
	Config    Kind = "config"
	Results   Kind = "results"
	Operation Kind = "operation"
)

// Format is the form of a resource's text.
type Format string

// The formats. Markdown needs no word in the URI.
const (
	Markdown Format = ""
	JSON     Format = "json"
)

// MIME is the format's media type.
func (f Format) MIME() string {
	if f == JSON {
		return "application/json"
	}
	return "text/markdown"
}

// URI is a parsed URI. Each has one spelling.
type URI struct {
	Kind   Kind
	ID     string
	Format Format
}

// ErrURI is why a text is no URI of a resource. It says no more: what is wrong with a text from outside is of no use to it.
var ErrURI = errors.New("there is no such resource")

const (
	queryJSON        = "?format=json"
	prefixService    = "services/"
	prefixModes      = "modes/"
	prefixModels     = "models/"
	prefixOperations = "operations/"
)

// families are the kinds with an id: how their URIs begin, and what an id may be.
var families = map[Kind]struct {
	prefix string
	is     func(id string) bool
}{
	Service:   {prefixService, IsServiceID},
	Mode:      {prefixModes, IsModeID},
	Model:     {prefixModels, IsModelID},
	Operation: {prefixOperations, IsOperationID},
}

// Parse reads a URI: exactly a scheme, a name, an id where there is one, and the format where it is JSON. There is no
// escaping, no case folding, no user, host, port or fragment, and String(Parse(x)) == x. The error is ErrURI.
func Parse(s string) (URI, error) {
	name, ok := strings.CutPrefix(s, Scheme)
	if !ok {
		return URI{}, ErrURI
	}
	var u URI
	if name, ok = strings.CutSuffix(name, queryJSON); ok {
		u.Format = JSON
	}
	switch name {
	case string(Help), string(GPU), string(Services), string(Modes), string(Models), string(Config), string(Results):
		u.Kind = Kind(name)
		return u, nil
	}
	for kind, f := range families {
		if id, ok := strings.CutPrefix(name, f.prefix); ok && f.is(id) {
			u.Kind, u.ID = kind, id
			return u, nil
		}
	}
	return URI{}, ErrURI
}

// String returns the URI's one spelling.
func (u URI) String() string {
	name := string(u.Kind)
	if f, ok := families[u.Kind]; ok {
		name = f.prefix + u.ID
	}
	if u.Format == JSON {
		name += queryJSON
	}
	return Scheme + name
}

// Changes reports whether somebody may subscribe to the resource: it changes by itself.
func (u URI) Changes() bool { return u.Kind != Help && u.Kind != Config && u.Kind != Results }

// maxServiceID is the longest id of a service (SEC-V1).
const maxServiceID = 64

// isID reports whether s has 1 to most letters and digits, and behind the first of them also others.
func isID(s string, most int, others string) bool {
	for i, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || strings.IndexByte(others, c) < 0) {
			return false
		}
	}
	return s != "" && len(s) <= most
}

// IsServiceID reports whether s can be the id of a service (SEC-V1).
func IsServiceID(s string) bool { return isID(s, maxServiceID, "_-") }

// IsModeID reports whether s can be the id of a mode (SEC-V1).
func IsModeID(s string) bool { return IsServiceID(s) }

// maxModelID is the longest id of a model (SEC-V1).
const maxModelID = 128

// IsModelID reports whether s can be the id of a model (SEC-V1): words with dots and dashes, with slashes between them, none of
// which names a folder above.
func IsModelID(s string) bool {
	return isID(s, maxModelID, "_-./") && !slices.Contains(strings.Split(s, "/"), "..")
}

// IsOperationID reports whether s can be the id of an operation: 128 bits in hex.
func IsOperationID(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) == 32
}
