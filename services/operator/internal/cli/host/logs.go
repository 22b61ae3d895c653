package host

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/platform/clean"
)

const (
	// pageLines is the most that one call of service_logs returns.
	pageLines = 40
	// maxFollowed is how many earlier lines a followed log begins with at most.
	maxFollowed = 1000
	// tailBegins is how long the first lines may take, which a journal may have to be searched for. An executor that is older than this
	// program may say nothing where there are none.
	tailBegins = 10 * time.Second
	// tailQuiet is how long nothing more comes when all lines that are there have come: the executor looks for new ones once a
	// second.
	tailQuiet = 500 * time.Millisecond
)

func (a *app) logsCommand() *cobra.Command {
	var follow bool
	var lines uint32
	var cursor string
	cmd := &cobra.Command{
		Use:   "logs ID",
		Short: "A service's own log; -f follows it",
		Long: `Prints the last lines of a service's log. With -f it stays and prints each new line until Ctrl-C.

The lines are the service's own words: whoever writes to it can make it write anything. Escape codes and
other hidden characters are removed.

Without -f, --json gives a cursor (up to -n 40): --cursor reads on from there. With -f, --json is one object a line.`,
		Example: `  durward logs demo-chat
  durward logs demo-chat -f --tail 200
  durward logs demo-chat --json | jq -r .cursor`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.CompleteEntries("service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case lines > maxFollowed, lines < 1 && !follow:
				return cli.Usage("", "-n is at most %d, and at least 1 without -f", maxFollowed)
			case cursor != "" && (follow || lines > pageLines):
				return cli.Usage("", "--cursor has no meaning with -f, and reads at most %d lines", pageLines)
			}
			return a.Run(cmd.Context(), func(ctx context.Context, s *cli.Session) error {
				switch {
				case follow:
					return a.followLogs(ctx, s, args[0], lines)
				case lines > pageLines:
					return a.showTail(ctx, s, args[0], lines)
				default:
					return a.showLogs(ctx, s, args[0], cursor, lines)
				}
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "stay, and print each new line")
	cmd.Flags().Uint32VarP(&lines, "tail", "n", pageLines, "how many of the last lines, up to 1000")
	cmd.Flags().StringVar(&cursor, "cursor", "", "read on behind the place where an earlier answer ended")
	return cmd
}

func (a *app) showLogs(ctx context.Context, s *cli.Session, id, cursor string, lines uint32) error {
	request := &executorv1.ServiceLogsRequest{ServiceId: &id, Lines: &lines}
	if cursor != "" {
		request.Cursor = &cursor
	}
	page, err := s.Executor.Tools.ServiceLogs(ctx, request)
	if err != nil {
		return err
	}
	return a.Show(page, func() {
		if page.GetLog() != "" {
			a.Out.Printf("%s\n", clean.Block(page.GetLog(), pageLines*cli.MaxLogLine))
		}
		if page.GetMore() {
			a.Out.Remark("%s", a.Out.Dim("There is more: --cursor "+clean.Line(page.GetCursor(), 256)))
		}
	})
}

// showTail prints more of the last lines than one answer holds: those with which a followed log begins.
func (a *app) showTail(ctx context.Context, s *cli.Session, id string, lines uint32) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.Executor.FollowLogs(ctx, &executorv1.FollowLogsRequest{ServiceId: id, Lines: lines})
	if err != nil {
		return err
	}
	received := make(chan []string)
	failure := make(chan error, 1)
	go func() {
		for {
			said, err := stream.Recv()
			if err != nil {
				failure <- err
				return
			}
			select {
			case received <- said.GetLines():
			case <-ctx.Done():
				failure <- ctx.Err()
				return
			}
		}
	}()
	var all []string
	patience := tailBegins
	for quiet := false; !quiet && len(all) < int(lines); {
		select {
		case some := <-received:
			all, patience = append(all, some...), tailQuiet
		case err := <-failure:
			return err
		case <-time.After(patience):
			quiet = true
		}
	}
	cancel()
	for i, line := range all {
		all[i] = clean.Text(line, cli.MaxLogLine)
	}
	return a.Show(&executorv1.ServiceLogsResponse{ServiceId: id, Log: strings.Join(all, "\n")}, func() {
		for _, line := range all {
			a.Out.Printf("%s\n", line)
		}
	})
}

func (a *app) followLogs(ctx context.Context, s *cli.Session, id string, lines uint32) error {
	ended := cli.Unreachable("Start it again: durward logs -f "+clean.Visible(id), "the executor ended the log")
	return s.FollowLog(ctx, a.Now, ended, id, lines, func(said []string) error {
		for _, line := range said {
			err := a.ShowLine(map[string]string{"service_id": id, "line": line}, func() { a.Out.Printf("%s\n", clean.Text(line, cli.MaxLogLine)) })
			if err != nil {
				return err
			}
		}
		return nil
	})
}
