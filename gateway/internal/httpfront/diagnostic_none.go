//go:build !conformance

package httpfront

import (
	"net/http"

	"github.com/go-json-experiment/json/jsontext"
)

// The conformance suite needs methods, headers, declared capabilities and answers to a server's requests that no shipped build
// takes.
// They are in diagnostic.go, which only the tag conformance compiles.

func diagnosticMethods(map[string]method) {}

func diagnosticMeta(jsontext.Value) []byte { return nil }

func diagnosticHeaders(_, _ http.Header) {}

func diagnosticAnswer(_, _, _ jsontext.Value) *Frame { return nil }
