package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"reflect"
	"slices"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/filewatch"
)

// maxSettings is how much of the file is read, in bytes: config.Parse takes no more either.
const maxSettings = 1<<20 + 1

// reloader reads the configuration file again when a human has changed it, and takes up the one setting that need not wait for a
// restart: allowed_origins. A file that is broken, or would not start a gateway, changes nothing until it is whole again.
type reloader struct {
	*filewatch.Watcher
	path   string
	began  *settings
	apply  func(origins []string)
	logger *slog.Logger

	// read is what the file said when it was read last, and wrong what is wrong with that.
	read  []byte
	wrong error
	now   []string
}

// newReloader returns a reloader of the file that began was read from. What the file says then is what later readings are compared
// with: what a running process made of its settings is another thing.
func newReloader(path string, began *settings, apply func([]string), logger *slog.Logger) *reloader {
	r := &reloader{path: path, began: began, apply: apply, logger: logger, now: began.AllowedOrigins}
	r.Watcher = filewatch.New(filewatch.Paths(path), r.look)
	again := new(settings)
	if err := config.Load(path, again); err == nil {
		again.AllowRemote = began.AllowRemote
		if again.Validate() == nil {
			r.began = again
		}
	}
	return r
}

// look takes up the file if it changed.
func (r *reloader) look() error {
	info, err := os.Stat(r.path)
	if err != nil {
		return errors.New("the configuration file cannot be found")
	}
	if !info.Mode().IsRegular() || info.Size() >= maxSettings {
		return errors.New("the configuration file is no regular file of at most 1 MB")
	}
	data, err := os.ReadFile(r.path)
	if err != nil {
		return errors.New("the configuration file cannot be read")
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
