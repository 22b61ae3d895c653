package main

import (
	"errors"
	"fmt"
	"path/filepath"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/identity"
)

// settings is the executor's configuration file.
type settings struct {
	config.Common `yaml:",inline"`

	// Vault redeems grants and is told of outcomes. Required.
	Vault config.Peer `yaml:"vault"`
	// Audit gets every record. Required.
	Audit config.Peer `yaml:"audit"`
	// Catalogue is the file that says what may be run, owned by a human and read again when it changes. Required, absolute.
	Catalogue string `yaml:"catalogue"`
	// ProgramsDir is the folder where programs that the catalogue names without a slash are looked for before PATH.
	// Empty: the folder of the executor's own program.
	ProgramsDir string `yaml:"programs_dir"`
	// Unattended names tools beyond READ that run here on a grant without a human's statement. DANGEROUS: whoever
	// controls the vault can then run them. Empty: none.
	Unattended []string `yaml:"unattended"`

	// development is set by -development and by nothing else.
	development bool
}

// Validate checks the whole file.
func (s *settings) Validate() error {
	problems := []error{s.Common.Validate()}
	for _, peer := range []struct {
		key  string
		peer config.Peer
		role optionsv1.Role
	}{{"vault", s.Vault, optionsv1.Role_ROLE_VAULT}, {"audit", s.Audit, optionsv1.Role_ROLE_AUDIT}} {
		if err := peer.peer.Validate(); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", peer.key, err))
			continue
		}
		id, err := identity.Parse(peer.peer.Identity)
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("%s.identity: %w", peer.key, err))
		case id.Role() != peer.role:
			problems = append(problems, fmt.Errorf("%s.identity: is not an identity of role %s", peer.key, peer.key))
		}
	}
	if !filepath.IsAbs(s.Catalogue) {
		problems = append(problems, errors.New("catalogue: must be an absolute path"))
	}
	if s.ProgramsDir != "" && !filepath.IsAbs(s.ProgramsDir) {
		problems = append(problems, errors.New("programs_dir: must be an absolute path"))
	}
	return errors.Join(problems...)
}
