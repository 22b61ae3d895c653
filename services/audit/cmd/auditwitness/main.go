// Command auditwitness is a witness of transparency logs: it cosigns each checkpoint that is proved to extend the one before, and
// nothing else. Run it on another machine than the log, best by other people. It dials nobody and needs nothing of Durward.
package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"golang.org/x/mod/sumdb/note"

	"durward.internal/services/audit/internal/witness"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/release"
	"durward.internal/services/platform/rpc"
)

// version is the program's, as Git and the linker have it.
var version = release.Version()

// Bounds of a connection: what is posted is small, and anybody may post.
const (
	patience  = 10 * time.Second
	drainTime = 5 * time.Second
)

// settings is witness.yaml.
type settings struct {
	// Listen is where it serves POST /add-checkpoint in clear. Required; loopback unless the command line says -dangerous-allow-remote.
	Listen string `yaml:"listen"`
	// StateDir keeps the newest checkpoint of each log. Required, absolute.
	StateDir string `yaml:"state_dir"`
	// Key is the file of the witness's key. Required, absolute, 0600.
	Key string `yaml:"key"`
	// Logs are the public keys of the logs that it cosigns (NAME+HASH+KEY), each named like its log. Required.
	Logs []string `yaml:"logs"`
	// LogLevel is debug, info (the default), warn or error.
	LogLevel string `yaml:"log_level"`

	common config.Common
	keys   []note.Verifier
}

// Shared implements process.Settings.
func (s *settings) Shared() *config.Common {
	s.common.StateDir, s.common.LogLevel = s.StateDir, s.LogLevel
	return &s.common
}

// Validate checks the whole file.
func (s *settings) Validate() error {
	var problems []error
	if err := config.CheckListen(s.Listen, s.common.AllowRemote); err != nil {
		problems = append(problems, fmt.Errorf("listen: %w", err))
	}
	problems = append(problems, config.CheckAbsolute(map[string]string{"state_dir": s.StateDir, "key": s.Key}, nil))
	if len(s.Logs) == 0 {
		problems = append(problems, errors.New("logs: names no log's public key"))
	}
	s.keys = nil
	for i, vkey := range s.Logs {
		key, err := note.NewVerifier(vkey)
		if err != nil {
			problems = append(problems, fmt.Errorf("logs[%d]: is not a log's public key (NAME+HASH+KEY)", i))
			continue
		}
		s.keys = append(s.keys, key)
	}
	return errors.Join(problems...)
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "-new-key" {
		if err := newKey(os.Args[2], os.Stdout, os.Stderr); err != nil {
			fmt.Fprintf(os.Stderr, "auditwitness: %v\n", err)
			os.Exit(process.ExitBadConfiguration)
		}
		return
	}
	s := &settings{}
	os.Exit(process.Main(process.Program{
		Name: "auditwitness", Version: version, Settings: s,
		Flags: func(f *flag.FlagSet) {
			f.String("new-key", "", "print a new key for the witness of that `name` and exit; alone on the command line")
		},
		Check: func() error { _, err := witness.LoadKey(s.Key); return err },
		Run:   func(ctx context.Context, logger *slog.Logger) error { return run(ctx, s, logger) },
	}, os.Args[1:], os.Stdout, os.Stderr))
}

// newKey writes a new key to stdout, and its public half, for verifiers' witnesses.yaml, to stderr.
func newKey(name string, stdout, stderr io.Writer) error {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	signer, err := logproof.NewCosigner(name, key, time.Now)
	if err != nil {
		return err
	}
	_, err = io.WriteString(stdout, logproof.FormatCosigner(name, key))
	fmt.Fprintln(stderr, signer)
	return err
}

func run(ctx context.Context, s *settings, logger *slog.Logger) (err error) {
	unlock, err := process.LockState(s.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	signer, err := witness.LoadKey(s.Key)
	if err != nil {
		return err
	}
	w, err := witness.New(witness.Config{Signer: signer, Logs: s.keys, Dir: s.StateDir, Logger: logger})
	if err != nil {
		return err
	}
	listener, err := rpc.Listen(s.Listen, s.common.AllowRemote)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: w.Handler(), ReadTimeout: patience, WriteTimeout: patience, IdleTimeout: patience, MaxHeaderBytes: 8 << 10,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	logger.Info("serving", "listen", s.Listen, "witness", signer.String(), "logs", len(s.keys))
	stopped := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
		defer cancel()
		_ = server.Shutdown(ctx) // what is cut off asks again
	})
	defer stopped()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
