package installdir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/goccy/go-yaml"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/health"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pki"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/trust"
)

// Certificate is the state of one leaf.
type Certificate struct {
	Role      string    `json:"role"`
	Identity  string    `json:"identity"`
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
	// Problem says why the certificate cannot be used. Where it cannot be read, the other fields but Role are zero.
	Problem string `json:"problem,omitempty"`
}

// Judge judges a certificate and its key as the process does that has them, is id, and is a member of these groups.
func Judge(trustDir string, files identity.Files, id identity.ID, members ...uint32) error {
	roots, err := trust.Open(trustDir)
	if err != nil {
		return err
	}
	defer roots.Close()
	is, err := identity.Open(files, roots, members...)
	if err == nil && is.ID() != id {
		err = fmt.Errorf("it is for %s, not %s", is.ID(), id)
	}
	return err
}

// Certificates returns every leaf of this home, in the order of the roles, the operator's and its notifier's last, if it has one. Where
// the processes have users of their own (durward install), the operator's is the only one.
func (h Home) Certificates() []Certificate {
	roles, operators := append(Roles(), "operator"), h.TLS("operator", pki.FileCertificate)
	added := Added(h.path("tls"))
	cfg, err := h.Load()
	if err == nil && cfg.Egress != nil && !slices.Contains(added, roleEgress) {
		added = append(added, roleEgress) // its folder is gone whole
	}
	if alone, missed := missing(h.Config("vault")); err == nil && missed == nil && alone {
		roles, operators = roles[len(roles)-1:], cfg.TLS.Certificate
	} else if none, err := missing(h.TLS(notifier, "")); err == nil && !none && h.workloadAPI(notifier) == "" {
		roles = append(roles, notifier)
	}
	if len(roles) > 1 {
		roles = slices.Concat(roles[:len(roles)-1], added, roles[len(roles)-1:])
	}
	if h.workloadAPI(notifier) != "" {
		roles = append(roles, notifier)
	}
	var out []Certificate
	for _, role := range roles {
		if api := h.workloadAPI(role); api != "" {
			switch role {
			case "operator":
				out = append(out, ownSupply(role, optionsv1.Role_ROLE_OPERATOR, cfg.TLS, cfg.TrustDir))
			case notifier:
				out = append(out, ownSupply(role, optionsv1.Role_ROLE_NOTIFIER, config.OwnTLS{WorkloadAPI: api}, cfg.TrustDir))
			default:
				out = append(out, Supplied(role, api, cfg.Health.Of(role)))
			}
			continue
		}
		c := Certificate{Role: role}
		file := h.TLS(role, pki.FileCertificate)
		if role == "operator" {
			file = operators
		}
		leaf, err := pki.ReadLeaf(file)
		if err == nil && role != "operator" {
			_, err = pki.ReadPair(filepath.Dir(file))
		}
		if errors.Is(err, pki.ErrMismatch) {
			c.Problem = "it is another key's than the one beside it"
		} else if err != nil {
			c.Problem = "it is missing or unreadable"
		} else {
			c.Identity, c.NotBefore, c.NotAfter = leaf.ID.String(), leaf.NotBefore.UTC(), leaf.NotAfter.UTC()
			key := cmp.Or(map[string]string{"operator": cfg.TLS.Key}[role], filepath.Join(filepath.Dir(file), pki.FileKey))
			if err := Judge(cmp.Or(cfg.TrustDir, h.Trust()), identity.Files{Certificate: file, Key: key}, leaf.ID); err != nil {
				c.Problem = err.Error()
			}
		}
		out = append(out, c)
	}
	return out
}

// workloadAPI is WorkloadAPI of a role's configuration in this home.
func (h Home) workloadAPI(role string) string {
	if role == notifier {
		role = "notify"
	}
	return WorkloadAPI(h.Config(role))
}

// WorkloadAPI returns where a process has its certificate from, by its configuration file; "": not from a Workload API.
func WorkloadAPI(file string) string {
	var cfg struct{ TLS config.OwnTLS }
	if raw, err := os.ReadFile(file); err != nil || yaml.Unmarshal(raw, &cfg) != nil {
		return ""
	}
	return cfg.TLS.WorkloadAPI
}

// supplyPatience bounds how long anybody is asked for a certificate that others supply.
const supplyPatience = 2 * time.Second

// Supplied is the certificate that a process has from a Workload API, as it says itself on its health address: it alone can ask there.
func Supplied(role, api, address string) Certificate {
	c := Certificate{Role: role}
	if id, err := ProcessIdentity(role, ""); err == nil {
		c.Identity = id.String()
	}
	metrics, err := health.Metrics(context.Background(), &http.Client{Timeout: supplyPatience}, address)
	c.NotBefore = time.Unix(int64(metrics["durward_certificate_start_timestamp_seconds"]), 0).UTC()
	c.NotAfter = time.Unix(int64(metrics["durward_certificate_expiry_timestamp_seconds"]), 0).UTC()
	if err != nil {
		c.Problem = "it comes from " + api + ", and the process does not answer"
	}
	return c
}

// ownSupply is a certificate that a Workload API supplies to programs of this Unix user: this one, and the operator's notifier.
func ownSupply(name string, role optionsv1.Role, tls config.OwnTLS, trustDir string) Certificate {
	c := Certificate{Role: name}
	ctx, stop := context.WithTimeout(context.Background(), supplyPatience)
	defer stop()
	roots, err := trust.Open(trustDir)
	if err == nil {
		defer roots.Close()
		var self *identity.Source
		if self, err = rpc.OpenIdentity(ctx, tls, role, roots); err == nil {
			c.Identity = self.ID().String()
			c.NotBefore, c.NotAfter = self.Lifetime()
			c.NotBefore, c.NotAfter = c.NotBefore.UTC(), c.NotAfter.UTC()
		}
	}
	if err != nil {
		c.Problem = err.Error()
	}
	return c
}

// RenewCertificates issues a new leaf to every role whose leaf has reached half its life at now, or to all when all is set,
// and returns the roles. The processes take them up by themselves.
func (h Home) RenewCertificates(operator string, now time.Time, all bool) (renewed []string, err error) {
	if need, err := missing(h.PKI(pki.FileCAKey)); err == nil && need {
		return nil, errors.New("this folder has no certificate authority: where Durward was installed (durward install), the command is sudo durward renew")
	}
	// Of two at once, one would put its certificate beside the other's key.
	release, err := h.await("certificates")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	ca, err := pki.Load(h.PKI())
	if err != nil {
		return nil, err
	}
	for _, c := range h.Certificates() {
		id, err := ProcessIdentity(c.Role, operator)
		if err != nil {
			return renewed, err
		}
		if h.workloadAPI(c.Role) != "" || !all && c.Problem == "" && c.Identity == id.String() && now.Before(halfLife(c)) {
			continue
		}
		if err := h.issue(ca, c.Role, id); err != nil {
			return renewed, err
		}
		renewed = append(renewed, c.Role)
	}
	return renewed, nil
}

// halfLife is when a leaf is due for renewal.
func halfLife(c Certificate) time.Time { return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) / 2) }

// certify issues a certificate for a process that is added to the home.
func (h Home) certify(role, operator string) (identity.ID, error) {
	ca, err := pki.Load(h.PKI())
	if err != nil {
		return identity.ID{}, err
	}
	id, err := ProcessIdentity(role, operator)
	if err != nil {
		return identity.ID{}, err
	}
	return id, h.issue(ca, role, id)
}

func (h Home) issue(ca *pki.CA, role string, id identity.ID) error {
	certificate, key, err := ca.Issue(id, 0)
	if err != nil {
		return err
	}
	if err = os.MkdirAll(h.TLS(role, ""), 0o700); err == nil {
		err = pki.WriteLeaf(h.path("tls", role), certificate, key)
	}
	if err != nil {
		return fmt.Errorf("certificate of %s: %w", role, err)
	}
	return nil
}
