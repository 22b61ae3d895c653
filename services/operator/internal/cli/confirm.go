package cli

import (
	"bufio"
	"context"
	"strings"

	"durward.internal/services/operator/internal/output"
)

// Interactive reports whether a person sits before this command.
func (a *App) Interactive() bool {
	return !a.JSON && output.IsTerminal(a.Streams.In) && output.IsTerminal(a.Streams.Out)
}

// Display is where a person looks before signing: the results' own place, or standard error when the results are for a
// program. Nothing is signed that was not shown.
func (a *App) Display() *output.Printer {
	if !a.JSON {
		return a.Out
	}
	return output.New(a.Streams.Err, a.Streams.Err, false, a.Streams.Getenv)
}

// Ask asks a person once and returns what they enter; false when the line does not come to its end. What was typed before the
// question is no answer to it.
func (a *App) Ask(ctx context.Context, question string) (string, bool) {
	ForgetTyped(a.Streams.In)
	a.Display().Printf("%s", question)
	type answer struct {
		text string
		ok   bool
	}
	answered := make(chan answer, 1)
	go func() {
		// It reads while there is a question alone: the passphrase comes from the same terminal.
		line, err := bufio.NewReader(a.Streams.In).ReadString('\n')
		answered <- answer{strings.TrimSpace(line), err == nil}
	}()
	select {
	case got := <-answered:
		return got.text, got.ok
	case <-ctx.Done():
		// Ctrl-C; the reading goroutine ends with the program.
		a.Display().Printf("\n")
		return "", false
	}
}

// Confirm asks a person, at the terminal. Without a terminal it refuses
// unless yes was given: what proves a human is the key, never a terminal.
func (a *App) Confirm(ctx context.Context, question string, yes bool) error {
	if yes {
		return nil
	}
	if !output.IsTerminal(a.Streams.In) {
		return Denied("At a terminal run the same command; in a script that a human started, add --yes.", "there is no terminal to ask at")
	}
	answer, _ := a.Ask(ctx, question+" [y/N] ") // what cannot be read is not a yes
	switch strings.ToLower(answer) {
	case "y", "yes":
		return nil
	}
	return Denied("", "nothing was done")
}
