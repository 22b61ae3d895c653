package signedchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/statement"
)

// Signer is whose key signs.
type Signer struct {
	Operator string
	Key      signingkey.Source
}

// FindSigner is this operator; or, under sudo, the operator who called it, since root approves nothing.
func FindSigner(cfg installdir.Config, getenv func(string) string) (Signer, error) {
	cfg, err := FindOperator(cfg, getenv)
	return Signer{cfg.Operator, signingkey.Source{File: cfg.SigningKey, AgentSocket: getenv("SSH_AUTH_SOCK"), Ask: signingkey.AskTerminal}}, err
}

// FindOperator is FindSigner's configuration; after an error it is the one that was given.
func FindOperator(cfg installdir.Config, getenv func(string) string) (installdir.Config, error) {
	if _, err := os.Stat(cfg.SigningKey); err == nil {
		return cfg, nil
	}
	name := getenv("SUDO_USER")
	if os.Geteuid() != 0 || name == "" || name == "root" {
		return cfg, fmt.Errorf("%s is missing", clean.Visible(cfg.SigningKey))
	}
	caller, err := user.Lookup(name)
	if err != nil {
		return cfg, fmt.Errorf("there is no user %s", clean.Visible(name))
	}
	// Their own word, from their own folder: what they sign counts where their key does.
	theirs, err := installdir.LoadConfig(installdir.Home{Dir: filepath.Join(caller.HomeDir, ".durward")}.Config("operator"))
	if err != nil {
		return cfg, fmt.Errorf("%s is no operator here", clean.Visible(name))
	}
	return theirs, nil
}

// Sign opens the key once, for what was shown together, and signs. touch is called before each signature that a security key makes.
func (s Signer) Sign(ctx context.Context, statements []*statement.Statement, touch func()) (out []*callv1.HumanStatement, err error) {
	key, err := s.Key.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, key.Close()) }()
	for _, st := range statements {
		if key.Protection == "touch" {
			touch()
		}
		signed, err := statement.Sign(st, key)
		if err != nil {
			return nil, cmp.Or(ctx.Err(), err)
		}
		out = append(out, signed)
	}
	return out, nil
}
