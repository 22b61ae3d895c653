package keyfile

import "os"

// This file makes a negative control of deploy/e2e: keys that everybody can read. It is switched by the environment, since not every
// program that has a key has a flag for that.

var open = os.Getenv("DURWARD_WEAKEN") == "key-mode"

func modeHolds(private bool) bool { return private || open }
