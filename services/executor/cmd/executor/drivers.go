package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/driver/docker"
	"durward.internal/services/executor/internal/driver/launch"
	"durward.internal/services/executor/internal/driver/null"
	driverprocess "durward.internal/services/executor/internal/driver/process"
	"durward.internal/services/executor/internal/driver/systemd"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/sink"
)

// drivers are what runs services on this host.
type drivers struct {
	byName map[string]service.Driver
	close  []func() error
}

// drivers are the names of those that the configuration gives this executor.
func (s *settings) drivers() []string {
	names := []string{catalog.DriverNull}
	if !s.InContainer {
		names = append(names, catalog.DriverProcess, catalog.DriverSystemd)
	}
	if s.Docker.Socket != "" {
		names = append(names, catalog.DriverDocker)
	}
	return names
}

// openDrivers opens the drivers that the configuration gives this executor. Those that need another program, systemd or Docker,
// are opened when a service first needs them.
func openDrivers(cfg *settings, known func() *catalog.Catalog, gpus *gpu.Monitor, release launch.Release, logger *slog.Logger) (*drivers, error) {
	processes, err := driverprocess.New(driverprocess.Config{Dir: cfg.StateDir, Log: logger, Development: cfg.development, Release: release})
	if err != nil {
		return nil, err
	}
	d := &drivers{
		byName: map[string]service.Driver{catalog.DriverProcess: processes, catalog.DriverNull: &null.Driver{}},
		close:  []func() error{func() error { processes.Close(); return nil }},
	}
	d.later(catalog.DriverSystemd, logger, func() (closer, error) {
		return systemd.New(systemd.Config{
			Manager: cfg.Systemd.Manager, Development: cfg.development, Logger: logger,
			Release: release, Credentials: filepath.Join(cfg.StateDir, "credentials"),
		})
	})
	if cfg.Docker.Socket != "" {
		d.later(catalog.DriverDocker, logger, func() (closer, error) {
			return docker.New(docker.Config{
				Socket: cfg.Docker.Socket, Catalog: known, Logger: logger,
				Release: release, Credentials: cmp.Or(cfg.Docker.CredentialsDir, fmt.Sprintf("/dev/shm/durward-%d", os.Getuid())),
				UUID: func(index uint32) (string, bool) {
					g, ok := gpus.Last().Find(index)
					return g.UUID, ok && !g.Simulated && g.UUID != ""
				},
				Refused: append([]string{cfg.StateDir, cfg.TrustDir, cfg.Catalog, cfg.Docker.Socket}, cfg.TLS.Folders()...),
			})
		})
	}
	return d, nil
}

// Definition is the digest of what an entry names and does not hold, as its driver says it.
func (d *drivers) Definition(ctx context.Context, s *catalog.Service) (string, error) {
	one, ok := d.byName[s.Driver]
	if !ok {
		return "", fmt.Errorf("this executor's configuration does not give it the %s driver", s.Driver)
	}
	return one.Definition(ctx, s)
}

// Close closes what was opened. It stops no service.
func (d *drivers) Close() error {
	var errs []error
	for _, one := range d.close {
		errs = append(errs, one())
	}
	return errors.Join(errs...)
}

// closer is a driver that has something to close.
type closer interface {
	service.Driver
	Close() error
}

// later adds a driver that is opened when it is first used.
func (d *drivers) later(name string, logger *slog.Logger, open func() (closer, error)) {
	l := &lazy{open: sync.OnceValue(func() service.Driver {
		one, err := open()
		if err != nil {
			logger.Error("a driver cannot be used", "driver", name, "error", err)
			return missing{}
		}
		return one
	})}
	d.byName[name] = l
	d.close = append(d.close, l.Close)
}

// lazy is a driver that is opened when it is first used.
type lazy struct {
	open func() service.Driver
	mu   sync.Mutex
	used closer
}

func (l *lazy) driver() service.Driver {
	one := l.open()
	if c, ok := one.(closer); ok {
		l.mu.Lock()
		l.used = c
		l.mu.Unlock()
	}
	return one
}

// Close closes the driver if it was opened.
func (l *lazy) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.used == nil {
		return nil
	}
	return l.used.Close()
}

func (l *lazy) Status(s *catalog.Service) driver.Status { return l.driver().Status(s) }
func (l *lazy) Start(ctx context.Context, s *catalog.Service, definition string) error {
	return l.driver().Start(ctx, s, definition)
}
func (l *lazy) Stop(ctx context.Context, s *catalog.Service) (bool, error) {
	return l.driver().Stop(ctx, s)
}
func (l *lazy) Definition(ctx context.Context, s *catalog.Service) (string, error) {
	return l.driver().Definition(ctx, s)
}
func (l *lazy) Logs(ctx context.Context, s *catalog.Service, cursor string, lines int) (driver.Page, error) {
	return l.driver().Logs(ctx, s, cursor, lines)
}

// Warnings are the driver's, if it has any.
func (l *lazy) Warnings(s *catalog.Service) []string {
	if w, ok := l.driver().(service.Warner); ok {
		return w.Warnings(s)
	}
	return nil
}

// Pins are the driver's, if it has any.
func (l *lazy) Pins(ctx context.Context, s *catalog.Service) []string {
	if p, ok := l.driver().(service.Pinner); ok {
		return p.Pins(ctx, s)
	}
	return nil
}

// missing is a driver that could not be opened.
type missing struct{}

func (missing) Status(*catalog.Service) driver.Status {
	return driver.Status{State: driver.Unknown, Cause: driver.CauseNoManager}
}
func (missing) Start(context.Context, *catalog.Service, string) error { return driver.ErrNoManager }
func (missing) Stop(context.Context, *catalog.Service) (bool, error) {
	return false, driver.ErrNoManager
}
func (missing) Definition(context.Context, *catalog.Service) (string, error) {
	return "", driver.ErrNoManager
}
func (missing) Logs(context.Context, *catalog.Service, string, int) (driver.Page, error) {
	return driver.Page{}, driver.ErrNoManager
}

// releaseBy asks the vault for credentials in the name of the call that starts a service. What starts one without a call, a rule of the
// catalog or the undoing of a switch after a restart, gets what a human let the service have unattended.
func releaseBy(vault vaultv1.ReleaseServiceClient) launch.Release {
	return func(ctx context.Context, service string, names []string, public []byte) ([]byte, error) {
		grant := sink.Grant(ctx)
		response, err := vault.ReleaseCredentials(ctx, &vaultv1.ReleaseCredentialsRequest{Grant: grant, Service: service, Names: names, PublicKey: public})
		if grant == nil && fault.Is(err, callv1.Code_CODE_NOT_FOUND) {
			return nil, driver.ErrOnlyByCall
		}
		return response.GetSealed(), err
	}
}
