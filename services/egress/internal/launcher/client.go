package launcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"durward.internal/services/egress/internal/sandbox"
	"durward.internal/services/platform/rpc"
)

// Client has the launcher at an address start children: unix:PATH,user=NAME, of which the kernel says that NAME listens there.
type Client struct{ Address string }

// Start implements sandbox.Launcher. Of the server it names the id alone.
func (c Client) Start(ctx context.Context, s sandbox.Start) (_ *sandbox.Process, err error) {
	conn, err := rpc.DialContext(ctx, c.Address)
	if err != nil {
		return nil, fmt.Errorf("the launcher of other people's servers does not answer: look at durward-launcher.service (%w)", err)
	}
	own, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("the launcher is at a Unix socket alone"), conn.Close())
	}
	defer func() {
		if err != nil {
			_ = own.Close()
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = own.SetDeadline(time.Unix(1, 0)) })
	_ = own.SetDeadline(time.Now().Add(patience))
	if err := write(own, request{Server: s.Server.Entry.ID, User: s.User, Env: s.Env, Network: s.Network}); err != nil {
		return nil, fmt.Errorf("the launcher takes no request: %w", err)
	}
	var said answer
	files, err := read(own, &said)
	if err == nil && said.Failed != "" {
		err = errors.New(said.Failed)
	}
	if err == nil && (len(files) < 3 || len(files) > 4) {
		err = errors.New("the launcher hands over no child")
	}
	if err == nil && !stop() {
		err = ctx.Err()
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	_ = own.SetDeadline(time.Time{})
	r := &remote{conn: own, done: make(chan struct{}), answers: make(chan answer, 1)}
	p := &sandbox.Process{Stdin: files[0], Stdout: files[1], Stderr: files[2], Control: r}
	if len(files) == 4 {
		if p.Proxy, err = net.FileListener(files[3]); err != nil {
			closeAll(files)
			return nil, err
		}
		closeAll(files[3:])
	}
	go r.listen()
	return p, nil
}

// remote is a child that the launcher holds.
type remote struct {
	conn *net.UnixConn
	done chan struct{}
	err  error

	mu      sync.Mutex // one order at a time
	answers chan answer
}

// listen reads what the launcher says, to the end.
func (r *remote) listen() {
	defer close(r.done)
	defer func() { _ = r.conn.Close() }()
	for {
		var said answer
		files, err := read(r.conn, &said)
		closeAll(files)
		switch {
		case err != nil:
			r.err = errors.New("the launcher ended, and the server with it")
			return
		case said.Ended:
			if said.Failed != "" {
				r.err = errors.New(said.Failed)
			}
			return
		}
		select {
		case r.answers <- said:
		default: // nobody asked
		}
	}
}

// Wait implements sandbox.Control.
func (r *remote) Wait() error {
	<-r.done
	return r.err
}

// Kill implements sandbox.Control. Where the launcher does not take the order, it takes the end of the connection for one.
func (r *remote) Kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.conn.SetWriteDeadline(time.Now().Add(time.Second))
	if write(r.conn, order{orderKill}) != nil {
		_ = r.conn.Close()
	}
}

// Freeze implements sandbox.Control.
func (r *remote) Freeze(frozen bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := order{orderThaw}
	if frozen {
		o.Order = orderFreeze
	}
	err := write(r.conn, o)
	select {
	case <-r.done:
		return nil // what ended does nothing more
	default:
	}
	if err != nil {
		return fmt.Errorf("the launcher takes no order: %w", err)
	}
	select {
	case said := <-r.answers:
		if said.Failed != "" {
			return errors.New(said.Failed)
		}
		return nil
	case <-r.done:
		return nil
	case <-time.After(patience):
		return os.ErrDeadlineExceeded
	}
}
