package installdir

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/goccy/go-yaml"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/security"
)

// Config is config/operator.yaml.
type Config struct {
	// Operator is the name in trust/allowed_signers under which this person signs. Required.
	Operator string `yaml:"operator"`
	// TrustDir is the folder of trust roots. Required, absolute.
	TrustDir string `yaml:"trust_dir"`
	// StateDir keeps the last checkpoint that was verified. Required, absolute.
	StateDir string `yaml:"state_dir"`
	// TLS is where the certificate of spiffe://TRUST_DOMAIN/operator/OPERATOR comes from. Required.
	TLS config.OwnTLS `yaml:"tls"`
	// SigningKey is an OpenSSH private key file, or a .pub file whose private half ssh-agent holds. Required, absolute.
	SigningKey string `yaml:"signing_key"`
	// Clients is the vault's clients.yaml, for `durward client`. Required, absolute.
	Clients string `yaml:"clients"`
	// SecurityDir is the vault's security_dir, for `durward config` and `durward policy`; ExecutorConfig and GatewayConfig are the
	// other files that hold rules; egress' is egress.yaml beside the executor's. Optional, absolute: security/, executor.yaml and gateway.yaml
	// beside Clients.
	SecurityDir    string `yaml:"security_dir"`
	ExecutorConfig string `yaml:"executor_config"`
	GatewayConfig  string `yaml:"gateway_config"`
	// Vault, Executor and Audit are where the processes listen and who they must prove to be. Required.
	Vault    config.Peer `yaml:"vault"`
	Executor config.Peer `yaml:"executor"`
	Audit    config.Peer `yaml:"audit"`
	// Egress is the same for the process that reaches other hosts. Optional: without it there is none here.
	Egress *config.Peer `yaml:"egress"`
	// MCPURL is where agents connect. Required.
	MCPURL string `yaml:"mcp_url"`
	// Health is each process's health listener, host:port. Required.
	Health HealthAddresses `yaml:"health"`
}

// Roles returns the names of the processes that there are, in the order in which they start.
func (c Config) Roles() []string {
	if c.Egress == nil {
		return Roles()
	}
	return slices.Insert(Roles(), slices.Index(roles, "gateway"), roleEgress)
}

// Security is what to read of the security configuration. A folder that is not there yet is empty.
func (c Config) Security() security.Options {
	if _, err := os.Stat(c.SecurityDir); errors.Is(err, fs.ErrNotExist) {
		return security.Options{}
	}
	return security.Options{Dir: c.SecurityDir}
}

// HealthAddresses are the processes' health listeners.
type HealthAddresses struct {
	Gateway  string `yaml:"gateway"`
	Vault    string `yaml:"vault"`
	Executor string `yaml:"executor"`
	Audit    string `yaml:"audit"`
	Egress   string `yaml:"egress"`
}

// Of returns the address of a role's health listener.
func (h HealthAddresses) Of(role string) string {
	return map[string]string{"gateway": h.Gateway, "vault": h.Vault, "executor": h.Executor, "audit": h.Audit, roleEgress: h.Egress}[role]
}

// EgressConfig is egress' own file, beside the executor's; where there is no egress there is none.
func (c Config) EgressConfig() string {
	return filepath.Join(filepath.Dir(c.ExecutorConfig), roleEgress+".yaml")
}

// ServersDir is the folder of servers.yaml and servers.lock, beside clients.yaml.
func (c Config) ServersDir() string { return filepath.Dir(c.Clients) }

// Servers are the ids of servers.yaml, as far as it can be read.
func (c Config) Servers() (ids []string) {
	text, err := os.ReadFile(filepath.Join(c.ServersDir(), downstream.File))
	if err != nil {
		return nil
	}
	entries, err := downstream.ReadFile(downstream.File, text)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		ids = append(ids, e.ID)
	}
	return ids
}

// Load reads and checks config/operator.yaml.
func (h Home) Load() (Config, error) {
	if err := h.check(); err != nil {
		return Config{}, err
	}
	c, err := LoadConfig(h.Config("operator"))
	if err != nil {
		return c, err
	}
	return c, h.copied(c)
}

// copied returns an error for a folder that was copied from another that is still there: its configuration names the other's files, so that
// a restore, or processes, would change the other's state.
func (h Home) copied(c Config) error {
	other := Home{Dir: filepath.Dir(filepath.Dir(c.StateDir))}
	theirs, err := os.Stat(other.Config("operator"))
	if err != nil || other.State("operator") != c.StateDir {
		return nil //nolint:nilerr // there is no other
	}
	if own, err := os.Stat(h.Config("operator")); err != nil || os.SameFile(own, theirs) {
		return err
	}
	return fmt.Errorf("%s is a copy of %s, and its configuration names the files of that: have each file in %s name this folder's",
		h.Dir, other.Dir, h.path("config"))
}

// LoadConfig reads and checks an operator's configuration file.
func LoadConfig(path string) (Config, error) {
	var c Config
	if err := config.Load(path, &c); err != nil {
		return Config{}, err
	}
	if err := c.validate(); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	beside := filepath.Dir(c.Clients)
	for path, name := range map[*string]string{&c.SecurityDir: "security", &c.ExecutorConfig: "executor.yaml", &c.GatewayConfig: "gateway.yaml"} {
		if *path == "" {
			*path = filepath.Join(beside, name)
		}
	}
	if c.Egress == nil {
		if err := c.readShared(filepath.Join(beside, Shared+".yaml")); err != nil {
			return Config{}, err
		}
	}
	return c, nil
}

// Shared is the file beside Clients in which root says to the operators of a host what was added to its installation.
const Shared = "operators"

// readShared takes over what it says, where it is there.
func (c *Config) readShared(path string) error {
	var file struct {
		Egress *config.Peer `yaml:"egress"`
		Health string       `yaml:"egress_health"`
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := config.Load(path, &file); err != nil {
		return err
	}
	c.Egress, c.Health.Egress = file.Egress, file.Health
	if err := c.validate(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (c Config) validate() error {
	var problems []error
	if !operatorPattern().MatchString(c.Operator) {
		problems = append(problems, errors.New("operator: use a-z, 0-9, _ and -, at most 32"))
	}
	problems = append(problems, c.TLS.Validate(), config.CheckAbsolute(
		map[string]string{"trust_dir": c.TrustDir, "state_dir": c.StateDir, "signing_key": c.SigningKey, "clients": c.Clients},
		map[string]string{"security_dir": c.SecurityDir, "executor_config": c.ExecutorConfig, "gateway_config": c.GatewayConfig}))
	peers := map[string]config.Peer{"vault": c.Vault, "executor": c.Executor, "audit": c.Audit}
	if c.Egress != nil {
		peers[roleEgress] = *c.Egress
	}
	for name, peer := range peers {
		if err := peer.Validate(); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		} else if _, err := identity.Parse(peer.Identity); err != nil {
			problems = append(problems, fmt.Errorf("%s.identity: %w", name, err))
		}
	}
	if u, err := url.Parse(c.MCPURL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		problems = append(problems, errors.New("mcp_url: must be a URL, http://127.0.0.1:7430/mcp"))
	}
	for _, role := range c.Roles() {
		if err := config.CheckListen(c.Health.Of(role), true); err != nil {
			problems = append(problems, fmt.Errorf("health.%s: %w", role, err))
		}
	}
	return errors.Join(problems...)
}

// Listeners are the addresses that a process will take.
type Listeners struct {
	Listen       string `yaml:"listen"`
	HealthListen string `yaml:"health_listen"`
}

// ReadListeners reads them out of a process's file, which the process itself checks further.
func ReadListeners(path string) (Listeners, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Listeners{}, fmt.Errorf("configuration: %w", err)
	}
	var all map[string]any // which the process reads more strictly
	if err := config.Parse(path, raw, &all); err != nil {
		return Listeners{}, err
	}
	var l Listeners
	if err := yaml.Unmarshal(raw, &l); err != nil || l.Listen == "" || l.HealthListen == "" {
		return Listeners{}, fmt.Errorf("%s does not say listen and health_listen", path)
	}
	return l, nil
}
