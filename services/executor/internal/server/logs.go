package server

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/sink"
)

const (
	// maxLogLines is what one answer holds, and maxLogLine how long a line in it is, in characters.
	maxLogLines = 40
	maxLogLine  = 1000
	// aroundBytes is how much of a log is looked through on either side of an answer.
	aroundBytes = 16 << 10
	// followLines is what is read of a log at once, followBytes what one message of a stream holds, and followPause the time
	// between two looks.
	followLines = 200
	followBytes = 256 << 10
	followPause = time.Second
)

// ServiceLogs shows lines of a service's log: its own words, which the sink has looked through before they leave.
func (t *Tools) ServiceLogs(ctx context.Context, r *executorv1.ServiceLogsRequest) (*executorv1.ServiceLogsResponse, error) {
	s, err := t.services.Find(r.GetServiceId())
	if err != nil {
		return nil, err
	}
	n := maxLogLines
	if r.Lines != nil {
		n = min(int(r.GetLines()), maxLogLines)
	}
	page, err := t.services.Logs(ctx, s, r.GetCursor(), n)
	if err != nil {
		return nil, err
	}
	lines := make([]string, len(page.Lines))
	for i, line := range page.Lines {
		lines[i] = clean.Text(line, clean.Whole)
	}
	if len(page.Before)+len(page.After) > 0 {
		sink.Around(ctx, around(page))
	}
	sink.Cut(ctx, func(out *executorv1.ServiceLogsResponse) { out.Log = shortLines(out.GetLog(), maxLogLine) })
	sink.Summarise(ctx, s.ID+": "+count(len(lines), "line"))
	return &executorv1.ServiceLogsResponse{
		ServiceId: s.ID, Log: strings.Join(lines, "\n"), Cursor: page.Cursor, More: page.More,
	}, nil
}

// around is a page with what lies around it, as it is shown, but for less being cut off.
func around(page driver.Page) string {
	var lines []string
	size := 0
	for _, line := range slices.Backward(page.Before) {
		line = clean.Text(line, 2*maxLogLine)
		if size += len(line); size > aroundBytes {
			break
		}
		lines = append(lines, line)
	}
	slices.Reverse(lines)
	for _, line := range page.Lines {
		lines = append(lines, clean.Text(line, 2*maxLogLine))
	}
	size = 0
	for _, line := range page.After {
		line = clean.Text(line, 2*maxLogLine)
		if size += len(line); size > aroundBytes {
			break
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// shortLines is a text whose lines are at most so many characters long.
func shortLines(text string, most int) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = atWord(lines[i], most)
	}
	return strings.Join(lines, "\n")
}

// atWord is at most so many characters of a line, and no part of a word, nor of a reference, which has no spaces: half of a credential looks like none.
func atWord(line string, most int) string {
	short := clean.Text(line, most)
	if short == line {
		return line
	}
	return short[:strings.LastIndexByte(short, ' ')+1] + "…"
}

// FollowLogs sends a service's log as it is written. Its words are the service's; whoever shows them cleans them.
func (c *Control) FollowLogs(r *executorv1.FollowLogsRequest, stream grpc.ServerStreamingServer[executorv1.FollowLogsResponse]) error {
	ctx := stream.Context()
	if err := sink.Streaming(ctx); err != nil {
		return err
	}
	s, err := c.cfg.Services.Find(r.GetServiceId())
	if err != nil {
		return err
	}
	return follow(ctx, c.cfg.Services, s, int(r.GetLines()), func(lines []string) error {
		return stream.Send(&executorv1.FollowLogsResponse{Lines: lines})
	})
}

// logger reads logs; service.Manager is one.
type logger interface {
	Logs(ctx context.Context, s *catalog.Service, cursor string, lines int) (driver.Page, error)
}

// follow sends the last lines of a log and then each new one, until ctx ends.
func follow(ctx context.Context, from logger, s *catalog.Service, last int, send func([]string) error) error {
	page, err := from.Logs(ctx, s, "", max(last, 1)) // with none to send, it still says where the end is
	if last == 0 {
		page.Lines = nil
	}
	if err == nil && len(page.Lines) == 0 {
		err = send(nil) // or the caller would not know an empty log from a slow one
	}
	tick := time.NewTicker(followPause)
	defer tick.Stop()
	for {
		if err == nil {
			err = batches(page.Lines, send)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if !page.More {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-tick.C:
			}
		}
		page, err = from.Logs(ctx, s, page.Cursor, followLines)
	}
}

// batches sends lines in messages of a bounded size. What is not UTF-8 in them is replaced, as a message must be.
func batches(lines []string, send func([]string) error) error {
	size, begin := 0, 0
	for i, line := range lines {
		lines[i] = strings.ToValidUTF8(line, "�")
		if len(lines[i]) > followBytes {
			lines[i] = strings.ToValidUTF8(lines[i][:followBytes], "") + "…"
		}
		if size += len(lines[i]); size > followBytes && i > begin {
			if err := send(lines[begin:i]); err != nil {
				return err
			}
			begin, size = i, len(lines[i])
		}
	}
	if begin == len(lines) {
		return nil
	}
	return send(lines[begin:])
}
