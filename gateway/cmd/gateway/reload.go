package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"durward.internal/services/platform/config"
)

// reloadEvery is how soon a change of the configuration file is seen.
const reloadEvery = time.Second

// maxSettings is how much of the file is read, in bytes: config.Parse takes no more either.
const maxSettings = 1<<20 + 1

// reloader reads the configuration file again when a human has changed it, and takes up the one setting that need not wait for a
// restart: allowed_origins. A file that is broken, or would not start a gateway, changes nothing until it is whole again.
type reloader struct {
	path   string
	began  *settings
	apply  func(origins []string)
	logger *slog.Logger

	seen fs.FileInfo
	// read is what the file said when it was read last, and wrong what is wrong with that: of the content, however often the file
	// is gone and back.
	read  []byte
	wrong error
	now   []string

	mu  sync.Mutex
	err error
}

// newReloader returns a reloader of the file that began was read from. What the file says then is what later readings are compared
// with: what a running process made of its settings is another thing.
func newReloader(path string, began *settings, apply func([]string), logger *slog.Logger) *reloader {
	r := &reloader{path: path, began: began, apply: apply, logger: logger, now: began.AllowedOrigins}
	again := new(settings)
	if err := config.Load(path, again); err == nil {
		again.AllowRemote = began.AllowRemote
		if again.Validate() == nil {
			r.began = again
		}
	}
	return r
}

// Err is why the file is not what is in force; nil: it is.
func (r *reloader) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Run looks at the file until ctx ends.
func (r *reloader) Run(ctx context.Context) {
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			err := r.look()
			r.mu.Lock()
			r.err = err
			r.mu.Unlock()
		}
	}
}

// look takes up the file if it changed.
func (r *reloader) look() error {
	info, err := os.Stat(r.path)
	if err != nil {
		r.seen = nil
		return errors.New("the configuration file cannot be found")
	}
	if !info.Mode().IsRegular() || info.Size() >= maxSettings {
		r.seen = nil
		return errors.New("the configuration file is no regular file of at most 1 MB")
	}
	if r.seen != nil && os.SameFile(r.seen, info) && r.seen.Size() == info.Size() && r.seen.ModTime().Equal(info.ModTime()) {
		return r.wrong
	}
	data, err := os.ReadFile(r.path)
	if err != nil {
		return errors.New("the configuration file cannot be read")
	}
	// What was written within the clock's grain of the last look may look alike: it is read once more.
	r.seen = nil
	if time.Since(info.ModTime()) > 2*reloadEvery {
		r.seen = info
	}
	if r.read == nil || !bytes.Equal(r.read, data) {
		r.read, r.wrong = data, r.take(data)
	}
	return r.wrong
}

// take takes up what the file says, or says what is wrong with it.
func (r *reloader) take(data []byte) error {
	fresh := new(settings)
	if err := config.Parse(r.path, data, fresh); err != nil {
		return err
	}
	fresh.AllowRemote = r.began.AllowRemote
	if err := fresh.Validate(); err != nil {
		return err
	}
	if !slices.Equal(r.now, fresh.AllowedOrigins) {
		r.apply(fresh.AllowedOrigins)
		r.now = fresh.AllowedOrigins
		r.logger.Info("allowed origins taken up", "count", len(r.now))
	}
	fresh.AllowedOrigins = r.began.AllowedOrigins
	if !reflect.DeepEqual(fresh, r.began) {
		r.logger.Warn("the configuration file says something else than what is in force: all but allowed_origins takes a restart")
	}
	return nil
}
