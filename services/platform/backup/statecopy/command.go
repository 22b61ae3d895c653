package statecopy

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"filippo.io/age"

	"durward.internal/services/platform/backup"
)

// Command is what a program's flags ask for.
type Command struct {
	recipients string
	restore    bool
}

// Flags adds -backup and -restore.
func (c *Command) Flags(f *flag.FlagSet) {
	f.StringVar(&c.recipients, "backup", "", "write a copy of the state to the standard output, encrypted to these age `recipients` (comma-separated), and exit (durward backup)")
	f.BoolVar(&c.restore, "restore", false, "put the copy in the standard input in the place of the state, and exit (durward restore)")
}

// Run does what the flags ask for, and reports whether they ask for anything.
func (c *Command) Run(ctx context.Context, p Part, in io.Reader, out io.Writer) (bool, error) {
	switch {
	case c.recipients != "":
		recipients, err := age.ParseRecipients(strings.NewReader(strings.ReplaceAll(c.recipients, ",", "\n")))
		if err != nil {
			return true, fmt.Errorf("-backup: %w", err)
		}
		// Who reads may break off, for a disk that is full, say: that is an error like others, after which the copy in the clear is removed.
		signal.Ignore(syscall.SIGPIPE)
		buffered := bufio.NewWriterSize(out, backup.MaxLine)
		return true, errors.Join(p.Write(ctx, buffered, recipients), buffered.Flush())
	case c.restore:
		buffered := bufio.NewReaderSize(in, backup.MaxLine)
		given, err := backup.ReadGiven(buffered)
		if err != nil {
			return true, err
		}
		return true, p.Restore(ctx, buffered, given, time.Now())
	default:
		return false, nil
	}
}
