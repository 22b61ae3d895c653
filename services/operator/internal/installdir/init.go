package installdir

import (
	"bytes"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/pki"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

//go:embed templates/*.yaml
var templates embed.FS

// Ports of an installation that names no others.
const (
	DefaultBasePort = 7430
	healthOffset    = 10
)

// firstKID is the name of the vault's first signing key.
const firstKID = "grant-1"

// grantKeyLife is how long the vault's first signing key is trusted; a new one is put beside it before.
const grantKeyLife = 2 * 365 * 24 * time.Hour

// instances are the last parts of the processes' identities.
var instances = map[string]string{"gateway": "main", "vault": "main", "executor": "local", "audit": "main"}

var operatorPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,31}$`)

// Options say how a new home is made.
type Options struct {
	// Development leaves the operator's signing key without a passphrase.
	Development bool
	// Operator is the name in allowed_signers and in the operator's identity: [a-z0-9][a-z0-9_-]{0,31}.
	Operator string
	// Passphrase is asked for once when a protected signing key is made.
	Passphrase func() ([]byte, error)
	// BasePort is the port of the gateway; vault, executor and audit listen on the next three, and each one's health
	// listener is 10 above. 0 means DefaultBasePort.
	BasePort int
}

// OperatorName turns a user's name into an operator's.
func OperatorName(user string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(user) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || b.Len() > 0 && (r == '_' || r == '-') {
			b.WriteRune(r)
		}
	}
	name := b.String()[:min(b.Len(), 32)]
	if name == "" {
		return "operator"
	}
	return name
}

// Addresses of one process.
type Addresses struct{ GRPC, Health string }

// values are what the templates are filled with.
type values struct {
	Home                            Home
	Operator                        string
	Gateway, Vault, Executor, Audit Addresses
}

// KID names the vault's first signing key.
func (values) KID() string { return firstKID }

// Identity writes a process's SPIFFE ID.
func (v values) Identity(role string) (string, error) {
	id, err := processIdentity(role, v.Operator)
	return id.String(), err
}

func processIdentity(role, operator string) (identity.ID, error) {
	r, err := identity.ParseRole(role)
	if err != nil {
		return identity.ID{}, fmt.Errorf("identity: %w", err)
	}
	instance := instances[role]
	if r == optionsv1.Role_ROLE_OPERATOR {
		instance = operator
	}
	return identity.New(identity.DefaultTrustDomain, r, instance)
}

func addresses(base, offset int) Addresses {
	at := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	return Addresses{GRPC: at(base + offset), Health: at(base + offset + healthOffset)}
}

// Init makes what is missing of the home, and changes nothing that is there; it returns the names of what it made. A second
// call makes nothing.
func (h Home) Init(opts Options) (made []string, err error) {
	if !operatorPattern.MatchString(opts.Operator) {
		return nil, fmt.Errorf("operator name %q: use a-z, 0-9, _ and -, at most 32, beginning with a letter or digit", opts.Operator)
	}
	if opts.BasePort == 0 {
		opts.BasePort = DefaultBasePort
	}
	if opts.BasePort < 1024 || opts.BasePort > 65535-healthOffset-3 {
		return nil, fmt.Errorf("base port %d: use 1024 to %d", opts.BasePort, 65535-healthOffset-3)
	}
	if err := h.makeFolders(); err != nil {
		return nil, err
	}
	m := &maker{home: h, opts: opts, values: values{
		Home: h, Operator: opts.Operator,
		Gateway: addresses(opts.BasePort, 0), Vault: addresses(opts.BasePort, 1),
		Executor: addresses(opts.BasePort, 2), Audit: addresses(opts.BasePort, 3),
	}}
	for _, step := range []func() error{m.authority, m.grantKey, m.logKey, m.signingKey, m.revoked, m.configs} {
		if err := step(); err != nil {
			return m.made, err
		}
	}
	return m.made, nil
}

func (h Home) makeFolders() error {
	if err := os.MkdirAll(h.Dir, 0o700); err != nil {
		return fmt.Errorf("home folder: %w", err)
	}
	info, err := os.Stat(h.Dir)
	if err != nil {
		return fmt.Errorf("home folder: %w", err)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others may write to %s: chmod 700 it first", h.Dir)
	}
	folders := []string{"config", "trust", "pki", "keys", "logs", "run", "clients",
		filepath.Join("config", "security"), filepath.Join("config", "security", "policy")}
	for _, role := range append(Roles(), "operator") {
		folders = append(folders, filepath.Join("tls", role), filepath.Join("state", role))
	}
	for _, folder := range folders {
		if err := os.MkdirAll(h.path(folder), 0o700); err != nil {
			return fmt.Errorf("home folder: %w", err)
		}
	}
	return nil
}

type maker struct {
	home   Home
	opts   Options
	values values
	made   []string
}

func (m *maker) create(path string, data []byte) error {
	if err := CreateFile(path, data, 0o600); err != nil {
		return err
	}
	m.noted(path)
	return nil
}

func (m *maker) noted(path string) {
	if name, err := filepath.Rel(m.home.Dir, path); err == nil {
		m.made = append(m.made, name)
	}
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// missing reports whether path has to be made.
func missing(path string) (bool, error) {
	there, err := exists(path)
	if err != nil {
		return false, fmt.Errorf("home folder: %w", err)
	}
	return !there, nil
}

func (m *maker) authority() error {
	need, err := missing(m.home.PKI(pki.FileCAKey))
	if err != nil {
		return err
	}
	var ca *pki.CA
	if need {
		if ca, err = pki.NewCA(identity.DefaultTrustDomain); err != nil {
			return err
		}
		if err := ca.Write(m.home.PKI()); err != nil {
			return err
		}
		m.noted(m.home.PKI(pki.FileCAKey))
	} else if ca, err = pki.Load(m.home.PKI()); err != nil {
		return err
	}
	if need, err = missing(m.home.Trust(trust.FileCA)); err != nil || !need {
		return err
	}
	return m.create(m.home.Trust(trust.FileCA), ca.CertificatePEM())
}

func (m *maker) grantKey() error {
	path := m.home.Key("grant.key")
	need, err := missing(path)
	if err != nil {
		return err
	}
	if need {
		key, err := grant.GenerateKey(firstKID)
		if err != nil {
			return err
		}
		if err := m.create(path, key.Format()); err != nil {
			return err
		}
	}
	if need, err = missing(m.home.Trust(trust.FileGrantSigners)); err != nil || !need {
		return err
	}
	key, err := grant.LoadKey(path)
	if err != nil {
		return err
	}
	// The day before: clocks differ, and a day is not worth a failed start.
	from := time.Now().UTC().Truncate(24 * time.Hour)
	return m.create(m.home.Trust(trust.FileGrantSigners), trust.FormatGrantSigners([]trust.GrantSigner{{
		KID: key.KID, Key: publicHalf(key), NotBefore: from, NotAfter: from.Add(grantKeyLife),
	}}))
}

func (m *maker) logKey() error {
	path, public := m.home.Key("log.key"), m.home.Trust(trust.FileLogKeys)
	need, err := missing(path)
	if err != nil || !need {
		return err
	}
	audit, err := processIdentity("audit", "")
	if err != nil {
		return err
	}
	secret, verifier, err := note.GenerateKey(rand.Reader, logproof.Origin(audit.String()))
	if err != nil {
		return fmt.Errorf("generate the log key: %w", err)
	}
	// The public half first: a key whose public half was lost could not be used, and is made again.
	if err := WriteFile(public, []byte("# audit's checkpoint keys, one verifier key (C2SP signed-note) a line\n"+verifier+"\n"), 0o600); err != nil {
		return err
	}
	m.noted(public)
	return m.create(path, []byte(secret+"\n"))
}

func (m *maker) signingKey() error {
	path := m.home.Key("operator_ed25519")
	need, err := missing(path)
	if err != nil {
		return err
	}
	if need {
		var passphrase []byte
		if !m.opts.Development {
			if m.opts.Passphrase == nil {
				return signingkey.ErrNeedsHuman
			}
			if passphrase, err = m.opts.Passphrase(); err != nil {
				return err
			}
			defer clear(passphrase)
		}
		private, public, err := signingkey.Generate(m.opts.Operator+"@durward", passphrase)
		if err != nil {
			return err
		}
		if err := WriteFile(path+".pub", public, 0o600); err != nil {
			return err
		}
		if err := m.create(path, private); err != nil {
			return err
		}
	}
	if need, err = missing(m.home.Trust(trust.FileAllowedSigners)); err != nil || !need {
		return err
	}
	public, err := signingkey.ReadPublic(path + ".pub")
	if err != nil {
		return err
	}
	return m.create(m.home.Trust(trust.FileAllowedSigners), []byte("# Operators' signing keys (ssh-keygen(1), ALLOWED SIGNERS). Change it with `durward operator`.\n"+
		trust.FormatSigner(m.opts.Operator, public, statement.Namespace)+"\n"))
}

func (m *maker) revoked() error {
	need, err := missing(m.home.Trust(trust.FileRevoked))
	if err != nil || !need {
		return err
	}
	return m.create(m.home.Trust(trust.FileRevoked), []byte("# Identities that are no longer let in: spiffe://durward.local/gateway/main\nrevoked: []\n"))
}

func (m *maker) configs() error {
	for _, name := range []string{"security", "tools"} {
		need, err := missing(m.home.Security(name + ".yaml"))
		if err != nil {
			return err
		}
		if !need {
			continue
		}
		data, err := Render(templates, "templates", name, m.values)
		if err != nil {
			return err
		}
		if err := m.create(m.home.Security(name+".yaml"), data); err != nil {
			return err
		}
	}
	// operator.yaml last: its presence says that the home is complete.
	for _, name := range []string{"audit", "vault", "executor", "gateway", "clients", "catalogue", "operator"} {
		need, err := missing(m.home.Config(name))
		if err != nil {
			return err
		}
		if !need {
			continue
		}
		from := name
		if name == "catalogue" && !m.opts.Development {
			// The example's services have no user of their own, which only a development executor accepts.
			from = "catalogue-empty"
		}
		data, err := Render(templates, "templates", from, m.values)
		if err != nil {
			return err
		}
		if err := m.create(m.home.Config(name), data); err != nil {
			return err
		}
	}
	return nil
}

// IsExampleCatalog reports whether the catalog is still the example that Init wrote.
func (h Home) IsExampleCatalog() bool {
	example, err := templates.ReadFile("templates/catalogue.yaml")
	if err != nil {
		return false
	}
	actual, err := os.ReadFile(h.Config("catalogue"))
	return err == nil && bytes.Equal(actual, example)
}
