package main

import (
	"flag"
	"io"
	"testing"
)

// TestGuardsAreKnown: a drill build of the vault knows every guard that the drills name, and refuses other names. It removes them
// all: run it alone.
func TestGuardsAreKnown(t *testing.T) {
	for name, known := range map[string]bool{
		"": false, "nothing": false, "reserve ": false, "reserve,nothing": false,
		"reserve": true, "ownership": true, "layers": true, "policy": true, "unattended": true, "agent": true, "callers": true, "ids": true,
		"announcement": true, "halted": true, "rotation-end": true, "usage-reservation": true,
		"approval": true, "unapproved": true, "owner": true, "spent": true, "proof": true,
		"self-approval": true, "key-bound": true, "standing-epoch": true, "standing-uses": true, "confirm-delay": true,
		"four-eyes": true, "spelling": true, "opening": true, "turns": true, "unseen": true, "forms": true, "stamps": true, "sink": true, "asked": true,
		"desktop-off": true, "desktop-channel": true, "desktop-killed": true, "desktop-span": true, "desktop-spacing": true, "desktop-each": true,
		"policy-error": true, "policy-project": true, "policy-known": true, "policy-binds": true, "policy-forbid": true,
		"layers,policy-project": true,
	} {
		flags := flag.NewFlagSet("vault", flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		guardFlags(flags)
		if err := flags.Parse([]string{"-weaken", name}); (err == nil) != known {
			t.Errorf("%q: %v", name, err)
		}
	}
}
