// Command programs compiles the programs that black-box tests start, and prints NAME=DIGEST for the environment of the tests,
// a line for each kind of build that it is given: plain, weak, conformance, nvml, weak-nvml, race, nvml-race. Run it
// anywhere in the repository.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"durward.internal/deploy/e2e/programs"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(names []string) error {
	workspace, err := exec.Command("go", "env", "GOWORK").Output()
	if err != nil {
		return fmt.Errorf("look for go.work: %w", err)
	}
	root := filepath.Dir(string(bytes.TrimSpace(workspace)))
	for _, name := range names {
		build, err := programs.Parse(name)
		if err != nil {
			return err
		}
		dir, err := programs.Compile(root, build)
		if err != nil {
			return err
		}
		digest, err := programs.Digest(dir)
		if err != nil {
			return err
		}
		fmt.Printf("%s=%s\n", build.Variable(), digest)
	}
	return nil
}
