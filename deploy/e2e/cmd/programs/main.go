// Command programs compiles the programs that black-box tests start, and prints NAME=DIGEST for the environment of the tests,
// a line for each kind of build that it is given: plain, weak, conformance, nvml, weak-nvml, race, nvml-race. With -overlay
// FILE it compiles nothing, and writes what go's -overlay takes for the one kind. Run it anywhere in the repository.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"durward.internal/deploy/e2e/programs"
)

func main() {
	overlay := flag.String("overlay", "", "write what go's -overlay takes into this `file`")
	flag.Parse()
	if err := run(flag.Args(), *overlay); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(names []string, overlay string) error {
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
		if overlay != "" {
			return build.WriteOverlay(root, overlay)
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
