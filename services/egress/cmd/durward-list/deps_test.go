package main

import (
	"testing"

	"durward.internal/services/platform/platformtest"
)

// forbidden are packages that the program must never link, with the reason: whoever takes it over has no more than what it was started with.
var forbidden = map[string]string{
	"google.golang.org/grpc":                           "it speaks with no process of Durward's",
	"durward.internal/services/platform/rpc":           "it speaks with no process of Durward's",
	"durward.internal/services/platform/pki":           "it issues nothing",
	"durward.internal/services/egress/internal/server": "it acts on no grant",
	"github.com/cedar-policy":                          "deciding is the vault's",
	"github.com/jackc/pgx":                             "it keeps nothing",
	"modernc.org/sqlite":                               "it keeps nothing",
}

func TestDependencies(t *testing.T) { platformtest.Dependencies(t, forbidden, nil) }
