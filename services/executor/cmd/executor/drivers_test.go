package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/driver/null"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
)

// counted is a driver that counts how often it is opened and closed.
type counted struct {
	null.Driver
	closed int
}

func (c *counted) Close() error                     { c.closed++; return nil }
func (*counted) Warnings(*catalog.Service) []string { return []string{"careful"} }

func TestADriverIsOpenedWhenItIsNeeded(t *testing.T) {
	s := &catalog.Service{ID: "chat"}
	one, opened := &counted{}, 0
	d := &drivers{byName: map[string]func() service.Driver{}}
	d.later("used", slog.New(slog.DiscardHandler), func() (closer, error) { opened++; return one, nil })
	d.later("unused", slog.New(slog.DiscardHandler), func() (closer, error) { t.Error("opened for nothing"); return one, nil })
	d.later("broken", slog.New(slog.DiscardHandler), func() (closer, error) { return nil, errors.New("no bus") })
	used := d.byName["used"]()
	if err := used.Start(t.Context(), s, "", driver.AtOnce); err != nil || used.Status(s).State != driver.Running || opened != 1 {
		t.Errorf("%v, %v, opened %d times", err, used.Status(s), opened)
	}
	if w := used.(service.Warner).Warnings(s); !cmp.Equal(w, []string{"careful"}) {
		t.Errorf("warnings are %v", w)
	}
	broken := d.byName["broken"]()
	_, stop := broken.Stop(t.Context(), s)
	_, definition := broken.Definition(t.Context(), s)
	_, logs := broken.Logs(t.Context(), s, "", 1)
	for _, err := range []error{broken.Start(t.Context(), s, "", driver.AtOnce), stop, definition, logs} {
		if !errors.Is(err, driver.ErrNoManager) {
			t.Errorf("one that cannot be opened: %v", err)
		}
	}
	if _, warns := broken.(service.Warner); broken.Status(s).State != driver.Unknown || warns {
		t.Errorf("it looks %v", broken.Status(s))
	}
	if err := d.Close(); err != nil || one.closed != 1 {
		t.Errorf("close: %v, %d times", err, one.closed)
	}
}

func TestDriversAreTheConfigurations(t *testing.T) {
	for socket, want := range map[string]bool{"": false, "/nonexistent/docker.sock": true} {
		cfg := &settings{}
		cfg.StateDir, cfg.Docker.Socket = t.TempDir(), socket
		known := func() *catalog.Catalog { return &catalog.Catalog{} }
		d, err := openDrivers(cfg, known, gpu.New(gpu.Config{Catalog: known}), nil, slog.New(slog.DiscardHandler))
		must(t, err)
		box, ok := d.byName[catalog.DriverDocker]
		if ok != want {
			t.Errorf("socket %q: docker %t", socket, ok)
		}
		if ok {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			s := &catalog.Service{ID: "box", Driver: catalog.DriverDocker, Container: &catalog.Container{Image: "a"}}
			if err := box().Start(ctx, s, "", driver.AtOnce); err == nil {
				t.Error("a container was started without a daemon")
			}
		}
		for _, name := range []string{catalog.DriverProcess, catalog.DriverNull, catalog.DriverSystemd} {
			if _, ok := d.byName[name]; !ok {
				t.Errorf("no %s driver", name)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
