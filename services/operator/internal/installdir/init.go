package installdir

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"

	"golang.org/x/mod/sumdb/note"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/pattern"
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

// instances are the last parts of the processes' identities.
var instances = map[string]string{"gateway": "main", "vault": "main", "executor": "local", "audit": "main", roleRelay: "main", roleEgress: "local"}

var operatorPattern = pattern.New(`^[a-z0-9][a-z0-9_-]{0,31}$`)

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

// Check reports a name or a port that no home is made with.
func (o Options) Check() error {
	if !operatorPattern().MatchString(o.Operator) {
		return fmt.Errorf("operator name %q: use a-z, 0-9, _ and -, at most 32, beginning with a letter or digit", o.Operator)
	}
	if o.BasePort != 0 && (o.BasePort < 1024 || o.BasePort > maxBasePort) {
		return fmt.Errorf("base port %d: use 1024 to %d", o.BasePort, maxBasePort)
	}
	return nil
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

// Signer is the operator whose key this home holds, as its trust folder names them; "" where it names none. A home whose operator.yaml
// is gone still knows that name.
func (h Home) Signer(now time.Time) string {
	public, err := signingkey.ReadPublic(h.Key("operator_ed25519.pub"))
	if err != nil {
		return ""
	}
	signers, err := trust.ReadAllowedSigners(h.Trust())
	if err != nil {
		return ""
	}
	signer, _ := signers.Find(public, statement.Namespace, now) // the zero Signer where there is none
	return signer.Operator
}

// Addresses of one process.
type Addresses struct{ GRPC, Health string }

// values are what the templates are filled with.
type values struct {
	Home                            Home
	Operator                        string
	Gateway, Vault, Executor, Audit Addresses
}

// at takes the addresses of a home that is there, so that a file which is made anew fits the others.
func (v *values) at(own Config) {
	v.Vault = Addresses{own.Vault.Address, own.Health.Vault}
	v.Executor = Addresses{own.Executor.Address, own.Health.Executor}
	v.Audit = Addresses{own.Audit.Address, own.Health.Audit}
	if u, err := url.Parse(own.MCPURL); err == nil && u.Port() != "" {
		v.Gateway = Addresses{u.Host, own.Health.Gateway}
	}
}

// Identity writes a process's SPIFFE ID.
func (v values) Identity(role string) (string, error) {
	id, err := ProcessIdentity(role, v.Operator)
	return id.String(), err
}

// ProcessIdentity is who a process of an installation is; operator names the operator, where the role is one or an operator's notifier.
func ProcessIdentity(role, operator string) (identity.ID, error) {
	if dir, name := path.Split(role); dir == toolsDir+"/" {
		return identity.New(identity.DefaultTrustDomain, optionsv1.Role_ROLE_TOOL, name)
	}
	r, err := identity.ParseRole(role)
	if err != nil {
		return identity.ID{}, fmt.Errorf("identity: %w", err)
	}
	instance := instances[role]
	if r == optionsv1.Role_ROLE_OPERATOR || r == optionsv1.Role_ROLE_NOTIFIER {
		instance = operator
	}
	return identity.New(identity.DefaultTrustDomain, r, instance)
}

// maxBasePort leaves room for the ports of the processes and of the example's services.
const maxBasePort = 65535 - demoOffset - 2

func addresses(base, offset int) Addresses {
	at := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	return Addresses{GRPC: at(base + offset), Health: at(base + offset + healthOffset)}
}

// byPort are the processes in the order of their ports.
var byPort = []string{"gateway", "vault", "executor", "audit"}

// Listeners are where the processes listen, in the order of their ports: what their files say, where these are there, and else the ports
// from base on. 0 means DefaultBasePort.
func (h Home) Listeners(base int) (out []Listeners, err error) {
	for offset, role := range byPort {
		l, err := ReadListeners(h.Config(role))
		if errors.Is(err, fs.ErrNotExist) {
			of := addresses(cmp.Or(base, DefaultBasePort), offset)
			l, err = Listeners{Listen: of.GRPC, HealthListen: of.Health}, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// ErrLost means that a key of a home that was made is gone, or the trust folder. Another one in its place would be trusted by nobody.
var ErrLost = errors.New("is gone")

// Init makes what is missing of the home, and changes nothing that is there but the vault's signing key, where that ends soon; it returns the
// names of what it made. A second call makes nothing. ErrLost: it makes no key anew whose public half is trusted already.
func (h Home) Init(opts Options) (made []string, err error) {
	if err := opts.Check(); err != nil {
		return nil, err
	}
	base := opts.BasePort
	opts.BasePort = cmp.Or(base, DefaultBasePort)
	// Before the folders: what was moved away is put back by moving it to where there is none.
	if err := h.Lost(); err != nil {
		return nil, err
	}
	if err := h.makeFolders(); err != nil {
		return nil, err
	}
	m := &maker{home: h, opts: opts, values: values{
		Home: h, Operator: opts.Operator,
		Gateway: addresses(opts.BasePort, 0), Vault: addresses(opts.BasePort, 1),
		Executor: addresses(opts.BasePort, 2), Audit: addresses(opts.BasePort, 3),
	}}
	if !h.Exists() {
		listeners, err := h.Listeners(base)
		if err != nil {
			return nil, err
		}
		for i, of := range []*Addresses{&m.values.Gateway, &m.values.Vault, &m.values.Executor, &m.values.Audit} {
			*of = Addresses{GRPC: listeners[i].Listen, Health: listeners[i].HealthListen}
		}
	} else if own, err := h.Load(); err == nil && base == 0 {
		m.values.at(own)
	}
	for _, step := range []func() error{m.authority, m.grantKey, m.logKey, m.signingKey, m.revoked, m.configs} {
		if err := step(); err != nil {
			return m.made, err
		}
	}
	return m.made, nil
}

// Lost returns ErrLost where a home that was made has a key's public half alone, or not that of the log's key, which nothing makes
// anew: revoked.yaml and allowed_signers, which would be, do not say then whom people had let in and shut out.
func (h Home) Lost() error {
	if !h.Exists() {
		return nil // it is being made
	}
	for _, key := range []struct{ secret, public string }{
		{h.PKI(pki.FileCAKey), h.Trust(trust.FileCA)},
		{h.Key("grant.key"), h.Trust(trust.FileGrantSigners)},
		{h.Key("log.key"), h.Trust(trust.FileLogKeys)},
	} {
		gone, err := missing(key.secret)
		if err != nil {
			return err
		}
		if unknown, err := missing(key.public); err != nil || gone && !unknown {
			return cmp.Or(err, fmt.Errorf("%s %w, and what it signed is verified with %s", key.secret, ErrLost, key.public))
		}
	}
	secret, public := h.Key("log.key"), h.Trust(trust.FileLogKeys)
	gone, err1 := missing(public)
	none, err2 := missing(secret)
	if err := errors.Join(err1, err2); err != nil || !gone || none {
		return err
	}
	return fmt.Errorf("%s %w, and what %s signed is verified with it", public, ErrLost, secret)
}

func (h Home) makeFolders() error {
	if err := h.check(); err != nil {
		return err
	}
	for _, folder := range h.folders() {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return h.unusable(err)
		}
	}
	return h.check() // a folder with the sticky bit lets others make one first
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

// missing reports whether path has to be made.
func missing(path string) (bool, error) {
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("home folder: %w", err)
	}
	return err != nil, nil
}

// renderOnce makes a configuration that is missing from its template, and reports whether it did.
func renderOnce(path, template string, values any) (made bool, err error) {
	if need, err := missing(path); err != nil || !need {
		return false, err
	}
	data, err := Render(templates, "templates", template, values)
	if err != nil {
		return false, err
	}
	return true, CreateFile(path, data, 0o600)
}

// once creates a file that is missing with what data returns.
func (m *maker) once(path string, data func() ([]byte, error)) error {
	need, err := missing(path)
	if err != nil || !need {
		return err
	}
	raw, err := data()
	if err != nil {
		return err
	}
	return m.create(path, raw)
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
	return m.once(m.home.Trust(trust.FileCA), func() ([]byte, error) { return ca.CertificatePEM(), nil })
}

func (m *maker) grantKey() error {
	path := m.home.Key("grant.key")
	if err := m.once(path, NewGrantKey); err != nil {
		return err
	}
	if err := m.once(m.home.Trust(trust.FileGrantSigners), func() ([]byte, error) { return GrantSigners(path, time.Now()) }); err != nil {
		return err
	}
	next, err := SucceedGrantKey(path, m.home.Trust(), time.Now())
	if err != nil || next == nil {
		return err
	}
	if err := WriteFile(m.home.Trust(trust.FileGrantSigners), next.Signers, 0o600); err != nil {
		return err
	}
	m.noted(path)
	return WriteFile(path, next.Key, 0o600)
}

func (m *maker) logKey() error {
	path, public := m.home.Key("log.key"), m.home.Trust(trust.FileLogKeys)
	need, err := missing(path)
	if err != nil || !need {
		return err
	}
	secret, verifiers, err := NewLogKey()
	if err != nil {
		return err
	}
	// The public half first: a key whose public half was lost could not be used, and is made again.
	if err := WriteFile(public, verifiers, 0o600); err != nil {
		return err
	}
	m.noted(public)
	return m.create(path, secret)
}

// NewLogKey makes audit's checkpoint key, and the trust folder's file with its public half.
func NewLogKey() (secret, verifiers []byte, err error) {
	audit, err := ProcessIdentity("audit", "")
	if err != nil {
		return nil, nil, err
	}
	private, verifier, err := note.GenerateKey(rand.Reader, logproof.Origin(audit.String()))
	if err != nil {
		return nil, nil, fmt.Errorf("generate the log key: %w", err)
	}
	return []byte(private + "\n"), []byte("# audit's checkpoint keys, one verifier key (C2SP signed-note) a line\n" + verifier + "\n"), nil
}

func (m *maker) signingKey() error {
	path := m.home.Key("operator_ed25519")
	if nobody, err := missing(m.home.Trust(trust.FileAllowedSigners)); err != nil || m.home.Exists() && !nobody {
		return err // another key could approve nothing, and the private half may be kept elsewhere
	}
	if err := m.once(path, func() (private []byte, err error) {
		var passphrase, public []byte
		if !m.opts.Development {
			if m.opts.Passphrase == nil {
				return nil, signingkey.ErrNeedsHuman
			}
			if passphrase, err = m.opts.Passphrase(); err != nil {
				return nil, err
			}
			defer clear(passphrase)
		}
		if private, public, err = signingkey.Generate(m.opts.Operator+"@durward", passphrase); err != nil {
			return nil, err
		}
		return private, WriteFile(path+".pub", public, 0o600)
	}); err != nil {
		return err
	}
	return m.once(m.home.Trust(trust.FileAllowedSigners), func() ([]byte, error) {
		public, err := signingkey.ReadPublic(path + ".pub")
		if err != nil {
			return nil, err
		}
		return []byte("# Operators' signing keys (ssh-keygen(1), ALLOWED SIGNERS). Change it with `durward operator`.\n" +
			trust.FormatSigner(m.opts.Operator, public, statement.Namespace) + "\n"), nil
	})
}

func (m *maker) revoked() error {
	return m.once(m.home.Trust(trust.FileRevoked), func() ([]byte, error) {
		return []byte("# Identities that are no longer let in: spiffe://durward.local/gateway/main\nrevoked: []\n"), nil
	})
}

func (m *maker) configs() error {
	render := func(path, template string) error {
		return m.once(path, func() ([]byte, error) { return Render(templates, "templates", template, m.values) })
	}
	for _, name := range []string{"security", "tools"} {
		if err := render(m.home.Security(name+".yaml"), name); err != nil {
			return err
		}
	}
	// operator.yaml last: its presence says that the home is complete.
	for _, name := range []string{"audit", "vault", "executor", "gateway", "clients", "catalogue", "operator"} {
		var err error
		switch path := m.home.Config(name); {
		case name != "catalogue":
			err = render(path, name)
		case m.opts.Development:
			err = m.once(path, func() ([]byte, error) { return exampleCatalog(m.opts.BasePort) })
		default:
			// The example's services have no user of their own, which only a development executor accepts.
			err = render(path, "catalogue-empty")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Render fills in the template folder/NAME.yaml of files: the configuration of one process, in development and on a host of its
// own. A template writes strings with its function yaml.
func Render(files fs.FS, folder, name string, values any) ([]byte, error) {
	raw, err := fs.ReadFile(files, folder+"/"+name+".yaml")
	if err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", name, err)
	}
	t, err := template.New(name).Funcs(template.FuncMap{"yaml": edit.Text}).Parse(string(raw))
	if err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", name, err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, values); err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", name, err)
	}
	return b.Bytes(), nil
}
