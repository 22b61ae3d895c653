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
	byName map[string]func() service.Driver
	mu     sync.Mutex
	close  []func() error // of those that were opened
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
		byName: map[string]func() service.Driver{catalog.DriverProcess: service.Is(processes), catalog.DriverNull: service.Is(&null.Driver{})},
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
	return one().Definition(ctx, s)
}

// Close closes what was opened. It stops no service.
func (d *drivers) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
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
	d.byName[name] = sync.OnceValue(func() service.Driver {
		one, err := open()
		if err != nil {
			logger.Error("a driver cannot be used", "driver", name, "error", err)
			return service.Absent{State: driver.Unknown}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.close = append(d.close, one.Close)
		return one
	})
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
