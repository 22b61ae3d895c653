// Package settings is the vault's configuration file. deploy/config/vault.yaml is an example with every field.
package settings

import (
	"errors"
	"fmt"
	"path/filepath"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/identity"
)

// Settings is vault.yaml.
type Settings struct {
	config.Common `yaml:",inline"`
	// ClientsFile is clients.yaml: who may connect. Required, absolute; read again when it changes.
	ClientsFile string `yaml:"clients_file"`
	// GrantKey is the file of the key that signs grants and permits, made by the installer. Required, absolute, 0600.
	GrantKey string `yaml:"grant_key"`
	// KID is the name that grant_signers.yaml gives that key; the file must agree. Required.
	KID string `yaml:"kid"`
	// Audit is where records go. Required: audit cannot be turned off.
	Audit config.Peer `yaml:"audit"`
	// Sinks are the processes that may act on grants and permits, at most one a role. At least one is required.
	Sinks []Sink `yaml:"sinks"`
	// Limits bound what clients have open and waiting, all together.
	Limits Limits `yaml:"limits"`
}

// Sink is one process that acts.
type Sink struct {
	// Role is executor or egress.
	Role string `yaml:"role"`
	// Identity is its whole SPIFFE ID, which its certificate must carry to redeem a grant.
	Identity string `yaml:"identity"`
}

// Limits are the caps over all clients; each client's own are in clients.yaml.
type Limits struct {
	// Sessions is how many sessions may be open; 0 means 4096.
	Sessions int `yaml:"sessions"`
	// Pending is how many operations may wait for a human; 0 means 50.
	Pending int `yaml:"pending"`
}

// Validate checks everything that can be checked without opening other files. Every problem is reported, by its key.
func (s *Settings) Validate() error {
	problems := []error{s.Common.Validate()}
	for key, path := range map[string]string{"clients_file": s.ClientsFile, "grant_key": s.GrantKey} {
		if !filepath.IsAbs(path) {
			problems = append(problems, fmt.Errorf("%s: must be an absolute path", key))
		}
	}
	if s.KID == "" || len(s.KID) > 64 {
		problems = append(problems, errors.New("kid: must be the name of the grant key, 1 to 64 characters"))
	}
	if err := s.Audit.Validate(); err != nil {
		problems = append(problems, fmt.Errorf("audit: %w", err))
	}
	if s.Limits.Sessions < 0 || s.Limits.Sessions > 1<<16 {
		problems = append(problems, errors.New("limits.sessions: must be 0 (for 4096) to 65536"))
	}
	if s.Limits.Pending < 0 || s.Limits.Pending > 1000 {
		problems = append(problems, errors.New("limits.pending: must be 0 (for 50) to 1000"))
	}
	_, err := s.SinkIDs()
	_, errAudit := s.AuditID()
	return errors.Join(append(problems, err, errAudit)...)
}

// SinkIDs returns the sinks' identities.
func (s *Settings) SinkIDs() ([]identity.ID, error) {
	if len(s.Sinks) == 0 {
		return nil, errors.New("sinks: at least one is required")
	}
	var out []identity.ID
	seen := map[optionsv1.Role]bool{}
	for i, sink := range s.Sinks {
		id, err := identity.Parse(sink.Identity)
		role, errRole := identity.ParseRole(sink.Role)
		switch {
		case err != nil:
			return nil, fmt.Errorf("sinks[%d].identity: %w", i, err)
		case errRole != nil || role != optionsv1.Role_ROLE_EXECUTOR && role != optionsv1.Role_ROLE_EGRESS:
			return nil, fmt.Errorf("sinks[%d].role: must be executor or egress", i)
		case id.Role() != role:
			return nil, fmt.Errorf("sinks[%d].identity: has another role than %s", i, sink.Role)
		case seen[role]:
			return nil, fmt.Errorf("sinks[%d].role: %s is there twice", i, sink.Role)
		}
		seen[role] = true
		out = append(out, id)
	}
	return out, nil
}

// AuditID returns audit's identity.
func (s *Settings) AuditID() (identity.ID, error) {
	id, err := identity.Parse(s.Audit.Identity)
	if err != nil {
		return identity.ID{}, fmt.Errorf("audit.identity: %w", err)
	}
	if id.Role() != optionsv1.Role_ROLE_AUDIT {
		return identity.ID{}, errors.New("audit.identity: does not have the role audit")
	}
	return id, nil
}
