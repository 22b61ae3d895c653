package statecopy

import (
	"os"
	"path/filepath"
)

// This file makes a negative control of deploy/e2e: a restore that leaves a state as its copy has it.

// AsItWas is a file in the state folder that removes the guard: the operator's program starts the restore, and hands it no flags of ours.
const AsItWas = "restore-as-it-was"

func voids(folder string) bool {
	_, err := os.Lstat(filepath.Join(folder, AsItWas))
	return err != nil
}
