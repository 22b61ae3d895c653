package trust

import (
	"bufio"
	"bytes"
	"crypto/rsa"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// Signer is one line of allowed_signers: an operator's signing key.
type Signer struct {
	// Operator is the line's principal: exactly one, no pattern.
	Operator string
	Key      ssh.PublicKey
	// Namespaces is empty when the line does not limit them.
	Namespaces []string
	// ValidAfter and ValidBefore are zero when the line does not limit them.
	ValidAfter, ValidBefore time.Time
}

// AllowedSigners is a parsed allowed_signers file. It is immutable.
type AllowedSigners struct{ signers []Signer }

// ErrUnknownSigner is returned for a key that no operator holds, or not now, or not for that namespace.
var ErrUnknownSigner = errors.New("the signature's key is not an operator's")

// ReadAllowedSigners reads the allowed_signers of a trust folder, and nothing else of it.
func ReadAllowedSigners(dir string) (*AllowedSigners, error) {
	return read(dir, FileAllowedSigners, ParseAllowedSigners)
}

// ParseAllowedSigners reads OpenSSH's ALLOWED_SIGNERS format (ssh-keygen(1)), narrowed to what can be judged without
// doubt: one literal principal a line; the options namespaces, valid-after and valid-before; plain keys, no authorities.
func ParseAllowedSigners(b []byte) (*AllowedSigners, error) {
	out := &AllowedSigners{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		s, err := parseSigner(line)
		if s.Key != nil {
			err = formHolds(err)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		out.signers = append(out.signers, s)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return out, nil
}

// parseSigner returns with what speaks against a line what was read of it until then.
func parseSigner(line string) (Signer, error) {
	operator, rest, ok := strings.Cut(line, " ")
	if !ok || strings.ContainsAny(operator, `*?!,"`) {
		return Signer{}, errors.New("must begin with one literal operator name")
	}
	key, _, options, _, err := ssh.ParseAuthorizedKey([]byte(strings.TrimSpace(rest)))
	if err != nil {
		return Signer{}, errors.New("holds no readable public key")
	}
	s := Signer{Operator: operator, Key: key}
	if _, isCert := key.(*ssh.Certificate); isCert {
		return s, errors.New("holds a certificate; only plain keys are accepted")
	}
	if err := strong(key); err != nil {
		return s, err
	}
	var seen []string
	for _, option := range options {
		name, quoted, _ := strings.Cut(option, "=")
		name = strings.ToLower(name)
		if slices.Contains(seen, name) {
			return s, fmt.Errorf("has the option %q twice", name)
		}
		seen = append(seen, name)
		value, err := dequote(quoted)
		if err != nil {
			return s, fmt.Errorf("the value of the option %q %w", name, err)
		}
		switch name {
		case "namespaces":
			s.Namespaces = strings.Split(value, ",")
			if slices.ContainsFunc(s.Namespaces, func(n string) bool { return n == "" || strings.ContainsAny(n, "*?! \t") }) {
				return s, errors.New("each of its namespaces must be a literal name: no pattern, none negated")
			}
		case "valid-after":
			if s.ValidAfter, err = parseSSHTime(value); err != nil {
				return s, err
			}
		case "valid-before":
			if s.ValidBefore, err = parseSSHTime(value); err != nil {
				return s, err
			}
		default:
			return s, fmt.Errorf("has the option %q, which is not accepted here", name)
		}
	}
	return s, nil
}

// dequote takes a value out of its double quotes, in which no quote is escaped.
func dequote(s string) (string, error) {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' || strings.ContainsAny(s[1:len(s)-1], `"\\`) {
		return "", errors.New("must stand in double quotes")
	}
	return s[1 : len(s)-1], nil
}

// minRSA is the least length of an RSA key's modulus, in bits: 112 bits of strength (NIST SP 800-57 part 1, table 2).
const minRSA = 2048

// strong refuses keys of kinds and lengths that somebody could forge a signature of.
func strong(key ssh.PublicKey) error {
	switch key.Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256:
		return nil
	case ssh.KeyAlgoRSA:
		if held, ok := key.(ssh.CryptoPublicKey); ok {
			if public, ok := held.CryptoPublicKey().(*rsa.PublicKey); ok && public.N.BitLen() >= minRSA {
				return nil
			}
		}
		return fmt.Errorf("holds an RSA key of less than %d bits", minRSA)
	}
	return fmt.Errorf("holds a key of the kind %q, which is not accepted", key.Type())
}

// parseSSHTime reads YYYYMMDD[HHMM[SS]] with an optional Z. Without Z OpenSSH means local time, which differs between
// hosts that must agree, so it is refused.
func parseSSHTime(s string) (time.Time, error) {
	digits, utc := strings.CutSuffix(s, "Z")
	layout := map[int]string{8: "20060102", 12: "200601021504", 14: "20060102150405"}[len(digits)]
	if !utc || layout == "" {
		return time.Time{}, fmt.Errorf("time %q is not YYYYMMDD[HHMM[SS]]Z", s)
	}
	t, err := time.Parse(layout, digits)
	if err != nil {
		return time.Time{}, fmt.Errorf("time %q is not YYYYMMDD[HHMM[SS]]Z", s)
	}
	return t, nil
}

// Find returns the operator who holds the key for the namespace at now.
func (a *AllowedSigners) Find(key ssh.PublicKey, namespace string, now time.Time) (Signer, error) {
	if a == nil {
		return Signer{}, ErrUnknownSigner
	}
	wire := key.Marshal()
	for _, s := range a.signers {
		if !bytes.Equal(s.Key.Marshal(), wire) {
			continue
		}
		if len(s.Namespaces) > 0 && !slices.Contains(s.Namespaces, namespace) {
			continue
		}
		if !s.ValidAfter.IsZero() && now.Before(s.ValidAfter) || !s.ValidBefore.IsZero() && !now.Before(s.ValidBefore) {
			continue
		}
		return s, nil
	}
	return Signer{}, ErrUnknownSigner
}

// All returns the signers in file order.
func (a *AllowedSigners) All() []Signer {
	if a == nil {
		return nil
	}
	return slices.Clone(a.signers)
}

// FormatSigner writes one allowed_signers line.
func FormatSigner(operator string, key ssh.PublicKey, namespace string) string {
	return fmt.Sprintf("%s namespaces=%q %s", operator, namespace, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))))
}
