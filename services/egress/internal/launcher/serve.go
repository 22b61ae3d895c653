package launcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"durward.internal/services/egress/internal/sandbox"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/downstream"
)

// Config is what Serve needs.
type Config struct {
	// Sandbox starts children.
	Sandbox sandbox.Launcher
	// Pinned finds a server that is in force now. Its error is a sentence for a human.
	Pinned func(id string) (*downstream.Pinned, error)
	Logger *slog.Logger
}

// Serve answers at a socket until ctx ends; the listener's address says who may come (rpc.Listen). Children end with it.
func Serve(ctx context.Context, listener net.Listener, cfg Config) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		conn, err := listener.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		own, ok := conn.(*net.UnixConn)
		if !ok {
			return errors.New("the launcher listens at a Unix socket alone")
		}
		running.Go(func() { cfg.child(ctx, own) })
	}
}

// child starts one child and holds it until it, or egress' end of the connection, ends.
func (cfg Config) child(ctx context.Context, conn *net.UnixConn) {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(patience))
	var asked request
	files, err := read(conn, &asked)
	closeAll(files)
	if err != nil {
		return
	}
	id := clean.Line(asked.Server, 64)
	process, err := cfg.start(ctx, asked)
	if err != nil {
		cfg.Logger.Warn("a server does not start", "server", id, "cause", err)
		_ = write(conn, answer{Failed: err.Error()})
		return
	}
	if files, err = descriptors(process); err == nil {
		err = write(conn, answer{}, files...)
	}
	closeAll(files)
	_ = conn.SetDeadline(time.Time{})
	if err != nil {
		process.Kill()
		cfg.Logger.Warn("a server does not start", "server", id, "cause", err, "ended", process.Wait())
		return
	}
	cfg.Logger.Info("a server runs", "server", id)
	go orders(conn, process)
	err = process.Wait()
	cfg.Logger.Info("a server ended", "server", id, "cause", err)
	ended := answer{Ended: true}
	if err != nil {
		ended.Failed = err.Error()
	}
	_ = write(conn, ended)
}

func (cfg Config) start(ctx context.Context, asked request) (*sandbox.Process, error) {
	pinned, err := cfg.Pinned(asked.Server)
	if err != nil {
		return nil, err
	}
	if pinned.Entry.Shared {
		asked.User = ""
	}
	return cfg.Sandbox.Start(ctx, sandbox.Start{Server: pinned, User: asked.User, Env: asked.Env, Network: asked.Network})
}

// orders obeys egress, and ends the child with egress' end of the connection.
func orders(conn *net.UnixConn, process *sandbox.Process) {
	defer process.Kill()
	for {
		var o order
		files, err := read(conn, &o)
		closeAll(files)
		if err != nil || o.Order == orderKill {
			return
		}
		var done answer
		if err := process.Freeze(o.Order == orderFreeze); err != nil {
			done.Failed = err.Error()
		}
		if write(conn, done) != nil {
			return
		}
	}
}

// descriptors are a child's, as files that can be passed on; this process' own are given up.
func descriptors(p *sandbox.Process) (files []*os.File, err error) {
	for _, end := range []any{p.Stdin, p.Stdout, p.Stderr} {
		f, ok := end.(*os.File)
		if !ok {
			return files, fmt.Errorf("a child's pipe is %T", end)
		}
		files = append(files, f)
	}
	if p.Proxy == nil {
		return files, nil
	}
	listener, ok := p.Proxy.(*net.UnixListener)
	if !ok {
		return files, fmt.Errorf("a child's socket is %T", p.Proxy)
	}
	defer func() { _ = listener.Close() }()
	f, err := listener.File()
	if err != nil {
		return files, err
	}
	return append(files, f), nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
