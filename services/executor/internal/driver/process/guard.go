package process

import "os"

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// output is what a program writes to: the pipe to its log's keeper, and never the file.
func output(pipe *os.File, _ string) *os.File { return pipe }
