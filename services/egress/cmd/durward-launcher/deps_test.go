package main

import (
	"testing"

	"durward.internal/services/platform/platformtest"
)

// forbidden are packages that the launcher must never link, with the reason: it starts what others wrote, and has nothing to give away.
var forbidden = map[string]string{
	"durward.internal/services/platform/dialer":       "it dials nobody: children's connections leave through egress",
	"durward.internal/services/platform/sink":         "it acts on no grant",
	"durward.internal/services/platform/pki":          "issuing certificates is a human's process'",
	"durward.internal/services/egress/internal/child": "what children say is egress' to read",
	"durward.internal/services/vault":                 "deciding is the vault's",
	"durward.internal/services/executor":              "the host is another zone",
	"durward.internal/services/operator":              "humans' programs sign; a sink only verifies",
	"github.com/santhosh-tekuri/jsonschema":           "it holds no arguments to schemas",
	"github.com/modelcontextprotocol":                 "what children say is egress' to read",
	"modernc.org/sqlite":                              "it keeps nothing but the children's folders",
}

func TestDependencies(t *testing.T) {
	platformtest.Dependencies(t, forbidden, nil)
}
