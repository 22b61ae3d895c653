package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sys/unix"
)

// pipe is the SDK's connection to a child, over its standard input and output: a frame a line.
type pipe struct {
	*frames
	in   *bufio.Scanner
	ends []io.Closer
	// queue holds what waits to be written, so that a child that reads nothing holds up no call.
	queue  chan []byte
	closed chan struct{}
	close  sync.Once
	failed func(error)
}

const maxQueued = 64

var (
	errLong   = fmt.Errorf("it sent a message of more than %d MiB", maxFrame>>20)
	errSilent = errors.New("it closed its output")
	errDeaf   = errors.New("it does not read what it is sent")
)

// newPipe returns the connection. failed hears once why the child cannot go on; a frame that cannot be written within patience is a reason.
func newPipe(f *frames, p *Process, patience time.Duration, failed func(error)) *pipe {
	c := &pipe{
		frames: f, in: bufio.NewScanner(p.Stdout), ends: []io.Closer{p.Stdin, p.Stdout},
		queue: make(chan []byte, maxQueued), closed: make(chan struct{}), failed: failed,
	}
	c.in.Buffer(make([]byte, 0, 64<<10), maxFrame)
	go c.write(p.Stdin, patience)
	return c
}

// Connect implements mcp.Transport.
func (c *pipe) Connect(context.Context) (mcp.Connection, error) { return c, nil }

// SessionID implements mcp.Connection.
func (c *pipe) SessionID() string { return "" }

// Read implements mcp.Connection. Close ends it.
func (c *pipe) Read(context.Context) (jsonrpc.Message, error) {
	for c.in.Scan() {
		message, err := c.received(c.in.Bytes())
		if err != nil {
			c.failed(err)
			return nil, err
		}
		if message != nil {
			return message, nil
		}
	}
	err := errSilent
	if errors.Is(c.in.Err(), bufio.ErrTooLong) {
		err = errLong
	}
	c.failed(err)
	return nil, err
}

// Write implements mcp.Connection.
func (c *pipe) Write(ctx context.Context, message jsonrpc.Message) error {
	line, err := encode(message)
	if err != nil {
		return err
	}
	c.sent(message)
	line = append(line, '\n')
	if _, answer := message.(*jsonrpc.Response); answer {
		// A child that asks and does not read is not waited for.
		select {
		case c.queue <- line:
			return nil
		default:
			c.failed(errDeaf)
			return errDeaf
		}
	}
	select {
	case c.queue <- line:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.closed:
		return io.ErrClosedPipe
	}
}

// encode writes a message in RFC 8785 form: arguments leave as the bytes that were decided on.
func encode(message jsonrpc.Message) ([]byte, error) {
	line, err := jsonrpc.EncodeMessage(message)
	if err != nil {
		return nil, err
	}
	value := jsontext.Value(line)
	err = value.Canonicalize()
	return value, err
}

func (c *pipe) write(to io.Writer, patience time.Duration) {
	for put := c.first; ; put = plainly {
		select {
		case <-c.closed:
			return
		case line := <-c.queue:
			late := time.AfterFunc(patience, func() { c.failed(errDeaf) })
			err := put(to, line)
			late.Stop()
			if err != nil {
				return // the reader says why
			}
		}
	}
}

func plainly(to io.Writer, line []byte) error {
	_, err := to.Write(line)
	return err
}

// first writes the first frame, which an empty pipe takes at once or not at all.
func (f *frames) first(to io.Writer, line []byte) (err error) {
	f.asking.Lock()
	defer f.asking.Unlock()
	err = plainly(to, line)
	f.taken = err == nil
	return err
}

// unread reports whether a child has not read the first frame: the pipe did not take it, or it waits there.
func (f *frames) unread(to io.Writer) bool {
	f.asking.Lock()
	taken := f.taken
	f.asking.Unlock()
	waits := 0
	if end, is := to.(*os.File); is {
		if raw, err := end.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { waits, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) // #nosec G115 -- a descriptor is an int
		}
	}
	return !taken || waits > 0
}

// Close implements mcp.Connection.
func (c *pipe) Close() error {
	c.close.Do(func() {
		close(c.closed)
		for _, end := range c.ends {
			_ = end.Close()
		}
	})
	return nil
}
