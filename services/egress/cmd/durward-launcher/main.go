// Command durward-launcher starts other people's MCP servers for egress, each in its sandbox, under a Unix user of its own. It runs what
// servers.yaml says and an operator accepted in servers.lock, which it reads and verifies itself at each start; egress, which asks, names a
// server and gives the values of its variables. It speaks to nobody else and dials nobody. In a sandbox it is also the relay to egress'
// proxy.
//
// It trusts its configuration, the two files, and the operators' keys in its trust folder. The servers are hostile, and so may egress be.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"durward.internal/services/egress/internal/launcher"
	"durward.internal/services/egress/internal/sandbox"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/release"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// version is the program's, as Git and the linker have it.
var version = release.Version()

// maxFile bounds each of the two files, in bytes.
const maxFile = 16 << 20

// settings is launcher.yaml.
type settings struct {
	config.Guarded `yaml:",inline"`
	// Listen is the socket at which egress asks: "unix:/run/durward/launcher/launcher.sock,user=durward-egress". Required.
	Listen string `yaml:"listen"`
	// Servers is servers.yaml; servers.lock is beside it. Required, absolute.
	Servers string `yaml:"servers"`
	// Packages is the folder in which npm packages are installed. Optional, absolute.
	Packages string `yaml:"packages"`
	// Own are folders that no server gets, whatever servers.yaml says: where Durward keeps its state, its keys and its rules. Optional,
	// absolute; those that this file names are among them.
	Own []string `yaml:"own"`
	// StateDir keeps the servers' own folders, and copies of their programs. Required, absolute.
	StateDir string `yaml:"state_dir"`
	// TrustDir holds the operators' keys. Required, absolute.
	TrustDir string `yaml:"trust_dir"`
	// LogLevel is debug, info (the default), warn or error.
	LogLevel string `yaml:"log_level"`

	common config.Common
}

// Shared implements process.Settings.
func (s *settings) Shared() *config.Common {
	s.common.TrustDir, s.common.StateDir, s.common.LogLevel = s.TrustDir, s.StateDir, s.LogLevel
	return &s.common
}

// InDevelopment and Obeyed implement process.Guarded. In development egress starts servers itself.
func (s *settings) InDevelopment() bool { return false }
func (s *settings) Obeyed() []string    { return []string{filepath.Dir(s.Servers), s.Packages} }

// Validate checks the whole file.
func (s *settings) Validate() error {
	var problems []error
	if at, err := config.ParseUnix(s.Listen); err != nil {
		problems = append(problems, fmt.Errorf("listen: %w", err))
	} else if len(at.Users) != 1 || len(at.Groups) > 0 {
		problems = append(problems, errors.New("listen: must name the one user who may come, egress' own"))
	}
	optional := map[string]string{"packages": s.Packages}
	for i, path := range s.Own {
		optional[fmt.Sprintf("own[%d]", i)] = path
	}
	problems = append(problems, config.CheckAbsolute(map[string]string{"servers": s.Servers, "state_dir": s.StateDir, "trust_dir": s.TrustDir}, optional))
	return errors.Join(problems...)
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == sandbox.RelayWord {
		os.Exit(sandbox.Relay(os.Args[2:]))
	}
	// Before anything is written: only this user may read it. Credentials pass through this memory: it is in no dump of a crash.
	syscall.Umask(0o077)
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	cfg := &settings{}
	os.Exit(process.Main(process.Program{
		Name: "durward-launcher", Version: version, Settings: cfg, Flags: drillFlags,
		Run: func(ctx context.Context, logger *slog.Logger) error { return run(ctx, cfg, logger) },
	}, os.Args[1:], os.Stdout, os.Stderr))
}

// run serves until ctx ends.
func run(ctx context.Context, cfg *settings, logger *slog.Logger) (err error) {
	if os.Geteuid() == 0 {
		return errors.New("this process runs as root: what breaks out of a sandbox would own the host; give it a user of its own")
	}
	unlock, err := process.LockState(cfg.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	local, err := sandbox.NewLocal(sandbox.Config{
		State: cfg.StateDir, Packages: cfg.Packages, Logger: logger,
		Own: append(slices.Clone(cfg.Own), cfg.StateDir, cfg.TrustDir, filepath.Dir(cfg.Servers), cfg.Packages),
	})
	if err != nil {
		return err
	}
	defer local.Close()
	listener, err := rpc.Listen(cfg.Listen, false)
	if err != nil {
		return err
	}
	defer listener.Close()
	logger.Info("serving", "listen", cfg.Listen)
	return launcher.Serve(ctx, listener, launcher.Config{Sandbox: local, Pinned: cfg.pinned, Logger: logger})
}

// pinned reads the files anew, and finds a server that is in force.
func (s *settings) pinned(id string) (*downstream.Pinned, error) {
	text, err := ownership.ReadFile(s.Servers, maxFile, s.common.Gateway)
	if err != nil {
		return nil, err
	}
	entries, err := downstream.ReadFile(filepath.Base(s.Servers), text)
	if err != nil {
		return nil, err
	}
	operators, err := trust.ReadAllowedSigners(s.TrustDir)
	if err != nil {
		return nil, err
	}
	lock := filepath.Join(filepath.Dir(s.Servers), downstream.LockFile)
	if text, err = ownership.ReadFile(lock, maxFile, s.common.Gateway); err != nil {
		return nil, err
	}
	signed, err := downstream.ReadLock(text, statement.ServersSigned(operators, time.Now()))
	if err != nil {
		return nil, fmt.Errorf("%s is not what an operator signed: %w", lock, err)
	}
	in, left := downstream.Join(entries, signed)
	if i := slices.IndexFunc(in, func(p downstream.Pinned) bool { return p.Entry.ID == id }); i >= 0 {
		return &in[i], nil
	}
	if i := slices.IndexFunc(left, func(l downstream.Left) bool { return l.ID == id }); i >= 0 {
		return nil, fmt.Errorf("server %s is not in force: %s", id, left[i].Why)
	}
	return nil, errors.New("there is no such server")
}
