package httpfront

import (
	"net/http"

	"github.com/go-json-experiment/json/jsontext"
)

// The conformance suite needs methods, headers, declared capabilities and answers to a server's requests that no shipped build
// takes.
// A build for the suite has the twin of this file in deploy/e2e/conformance/overlay instead.

func diagnosticMethods(map[string]method) {}

func diagnosticMeta(jsontext.Value) []byte { return nil }

func diagnosticHeaders(_, _ http.Header) {}

func diagnosticAnswer(_, _, _ jsontext.Value) *Frame { return nil }
