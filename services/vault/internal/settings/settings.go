// Package settings is the vault's configuration file. deploy/config/vault.yaml is an example with every field.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/keyfile"
	"durward.internal/services/platform/postgres"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/trust"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/keyring"
)

// Settings is vault.yaml.
type Settings struct {
	config.Common  `yaml:",inline"`
	config.Guarded `yaml:",inline"`
	// ClientsFile is clients.yaml: who may connect. Required, absolute; read again when it changes.
	ClientsFile string `yaml:"clients_file"`
	// GrantKey is the file of the key that signs grants and permits, made by the installer. It says by which name grant_signers.yaml knows
	// the key. Required, absolute, 0600.
	GrantKey string `yaml:"grant_key"`
	// KID was that name. It has no effect: the next key, which the installer puts into the same file, has another.
	KID string `yaml:"kid"`
	// Audit is where records go. Required: audit cannot be turned off.
	Audit config.Peer `yaml:"audit"`
	// Sinks are the processes that may act on grants and permits, at most one a role. At least one is required.
	Sinks []Sink `yaml:"sinks"`
	// SecurityDir is the folder of the security configuration: settings, short cuts, policies, in layers. Optional, absolute; without
	// it what is built in binds. Humans own it; it is read again when it changes.
	SecurityDir string `yaml:"security_dir"`
	// Database is where the state is kept. Optional; vault.db in the state folder.
	Database postgres.Settings `yaml:"database"`
	// Limits bound what clients have open and waiting, all together.
	Limits Limits `yaml:"limits"`

	// Credentials says where the key comes from that stored credentials are kept under.
	Credentials Credentials `yaml:"credentials"`

	// Privacy says what personal data agents do not see.
	Privacy Privacy `yaml:"privacy"`

	// Development is set by -development and by nothing else: one Unix user runs everything, so that GatewayUser is not looked at.
	Development bool `yaml:"-"`
}

// ClientsName is what records and people call the clients file, wherever it lies.
const ClientsName = "clients.yaml"

// Sink is one process that acts.
type Sink struct {
	// Role is executor or egress.
	Role string `yaml:"role"`
	// Identity is its whole SPIFFE ID, which its certificate must carry to redeem a grant.
	Identity string `yaml:"identity"`
}

// Credentials is about the stored credentials.
type Credentials struct {
	// Key is "file" (credentials.key in state_dir, made when it is first needed: whoever reads that folder has the values), "systemd"
	// (LoadCredentialEncrypted=durward-credentials in the unit) or "passphrase" (an operator runs durward vault unseal after each
	// start). Empty: file.
	Key string `yaml:"key"`
}

// CredentialKey is where that key comes from.
func (s *Settings) CredentialKey() string { return cmp.Or(s.Credentials.Key, keyring.SourceFile) }

// Limits are the caps over all clients; each client's own are in clients.yaml.
type Limits struct {
	// Sessions is how many sessions may be open; 0 means 4096.
	Sessions int `yaml:"sessions"`
	// Pending is how many operations may wait for a human; 0 means 50.
	Pending int `yaml:"pending"`
}

// Validate checks everything that can be checked without opening other files. Every problem is reported, by its key.
func (s *Settings) Validate() error {
	problems := []error{s.Common.Validate(), s.Database.Validate(), config.CheckAbsolute(
		map[string]string{"clients_file": s.ClientsFile, "grant_key": s.GrantKey}, map[string]string{"security_dir": s.SecurityDir})}
	if err := s.Audit.Validate(); err != nil {
		problems = append(problems, fmt.Errorf("audit: %w", err))
	}
	if s.Limits.Sessions < 0 || s.Limits.Sessions > 1<<16 {
		problems = append(problems, errors.New("limits.sessions: must be 0 (for 4096) to 65536"))
	}
	if s.Limits.Pending < 0 || s.Limits.Pending > 1000 {
		problems = append(problems, errors.New("limits.pending: must be 0 (for 50) to 1000"))
	}
	if !slices.Contains([]string{keyring.SourceFile, keyring.SourceSystemd, keyring.SourcePassphrase}, s.CredentialKey()) {
		problems = append(problems, errors.New("credentials.key: must be file, systemd or passphrase"))
	}
	_, err := s.SinkIDs()
	_, errAudit := s.AuditID()
	return errors.Join(append(problems, err, errAudit, s.Privacy.Validate())...)
}

// InDevelopment and Obeyed implement process.Guarded. What of clients.yaml and the security configuration is the gateway's user's is
// judged file by file as it is read.
func (s *Settings) InDevelopment() bool { return s.Development }
func (s *Settings) Obeyed() []string    { return nil }

// Security returns what to read of the security configuration.
func (s *Settings) Security() (security.Options, error) {
	foreign, err := ownership.Gateway(s.GatewayUser, s.Development)
	return security.Options{
		Dir: s.SecurityDir, Also: map[string]string{ClientsName: s.ClientsFile}, Foreign: foreign,
	}, err
}

// Check reads the files that bind clients as a start would, and changes nothing. Every problem is reported, by file and line. On a
// host that has none of them there is nothing to check.
func (s *Settings) Check() error {
	if err := keyfile.Check(s.GrantKey, filepath.Join(s.StateDir, keyring.File)); err != nil {
		return err
	}
	if err := postgres.Check(s.Database); err != nil {
		return err
	}
	if missing(s.ClientsFile) && (s.SecurityDir == "" || missing(s.SecurityDir)) {
		return nil
	}
	options, err := s.Security()
	if err != nil {
		return err
	}
	_, errClients := clients.Read(s.ClientsFile)
	_, err = security.Try(options, nil)
	return errors.Join(errClients, err)
}

func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
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

// Warnings are what Check lets pass and most likely nobody meant, as sentences. There are none where Check has an error.
func (s *Settings) Warnings() []string {
	options, err := s.Security()
	if err != nil {
		return nil
	}
	list, err := clients.Read(s.ClientsFile)
	if err != nil {
		return nil
	}
	state, err := security.Try(options, nil)
	if err != nil {
		return nil
	}
	var operators []string
	if roots, err := trust.Read(s.TrustDir); err == nil {
		for _, signer := range roots.AllowedSigners.All() {
			operators = append(operators, signer.Operator)
		}
	}
	return fourEyes(state, list, operators)
}

// fourEyes tells of clients that nobody can approve anything for, and of operators that count as somebody else for every client.
func fourEyes(state *security.State, list []*clients.Client, operators []string) []string {
	var out []string
	required := false
	for _, c := range list {
		if c.Revoked || !state.Values(c.ID, c.User).FourEyes {
			continue
		}
		required = true
		if c.User == "" {
			out = append(out, fmt.Sprintf("approvals.four_eyes: the client %s has no user, so nothing that it asks for can be approved; "+
				"set user: for it in clients.yaml", c.ID))
		}
	}
	if !required {
		return nil
	}
	slices.Sort(operators)
	for _, name := range slices.Compact(operators) {
		if !clients.IsUser(name) {
			out = append(out, fmt.Sprintf("approvals.four_eyes: no user: of clients.yaml can be the operator %s, who therefore counts as another "+
				"human than every client's own; give the operator's key a name of a-z, 0-9, _ and -", clean.Visible(name)))
		}
	}
	return out
}
