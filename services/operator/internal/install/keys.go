package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/durable"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pki"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// keys makes the authority and the processes' signing keys, and the public halves in the trust folder.
func (p *Plan) keys() error {
	if err := p.authority(); err != nil {
		return err
	}
	if err := p.grantKey(); err != nil {
		return err
	}
	return p.logKey()
}

// grantKey makes the vault's signing key, and the next one where it ends soon.
func (p *Plan) grantKey() error {
	keyFile, signersFile := keysDir+"/grant.key", trustDir+"/"+trust.FileGrantSigners
	holder, mode := p.secret("vault")
	next, err := installdir.SucceedGrantKey(p.on(keyFile), p.on(trustDir), p.opts.Now())
	if err != nil {
		return err
	}
	if next != nil {
		p.add(Step{Verb: Change, What: describe(keyFile, holder, mode), restart: true,
			Note: fmt.Sprintf("%s; %s follows it, and stands beside it in %s", next.Old.Sentence(p.opts.Now()), next.KID, signersFile),
			do: func(context.Context) (string, error) {
				if err := p.put(signersFile, next.Signers, owner{}, 0o644); err != nil {
					return "", err
				}
				return "", p.put(keyFile, next.Key, holder, mode)
			}})
		return nil
	}
	if err := p.once(keyFile, holder, mode, installdir.NewGrantKey); err != nil {
		return err
	}
	return p.once(signersFile, owner{}, 0o644, func() ([]byte, error) { return installdir.GrantSigners(p.on(keyFile), p.opts.Now()) })
}

// secret is whose file a process's key is. systemd hands it to the process (LoadCredential); into a container the file itself is mounted,
// so that its group must be the process's. The folder is root's alone either way.
func (p *Plan) secret(role string) (owner, fs.FileMode) {
	if p.opts.Containers {
		return owner{group: User(role)}, 0o640
	}
	return owner{}, 0o600
}

func (p *Plan) authority() error {
	keyFile := pkiDir + "/" + pki.FileCAKey
	info, err := os.Lstat(p.on(keyFile))
	switch {
	case elsewhere(p.opts.Root):
		p.add(Step{Verb: Same, What: trustDir + "/" + trust.FileCA, Note: "certificates come from an authority that is not on this host"})
		return nil
	case errors.Is(err, fs.ErrNotExist):
		p.add(Step{Verb: Make, What: describe(keyFile, owner{}, 0o600), Note: "the certificate authority of " + identity.DefaultTrustDomain,
			do: func(context.Context) (string, error) {
				ca, err := pki.NewCA(identity.DefaultTrustDomain)
				if err != nil {
					return "", err
				}
				return "", ca.Write(p.on(pkiDir))
			}})
	case err != nil:
		return err
	case !p.as(info, owner{}, 0o600):
		// Load would refuse it, and rightly: who knows who has read it.
		return fmt.Errorf("%s is not root's alone: ask who has read it, and make a new one if in doubt", keyFile)
	default:
		p.add(Step{Verb: Same, What: describe(keyFile, owner{}, 0o600)})
	}
	return p.once(trustDir+"/"+trust.FileCA, owner{}, 0o644, func() ([]byte, error) {
		ca, err := pki.Load(p.on(pkiDir))
		if err != nil {
			return nil, err
		}
		return ca.CertificatePEM(), nil
	})
}

// logKey makes both halves of the log's key. Another public half would be another log, so that one without the other is made
// only where there is neither.
func (p *Plan) logKey() error {
	secretFile, publicFile := keysDir+"/log.key", trustDir+"/"+trust.FileLogKeys
	holder, mode := p.secret("audit")
	_, secretErr := os.Lstat(p.on(secretFile))
	_, publicErr := os.Lstat(p.on(publicFile))
	switch {
	case secretErr == nil && publicErr != nil:
		return fmt.Errorf("%s is there and %s is not: restore it from a backup", secretFile, publicFile)
	case errors.Is(secretErr, fs.ErrNotExist) && publicErr == nil && p.used("audit"):
		return fmt.Errorf("%s is gone, and %s and the log are there: restore it from a backup", secretFile, publicFile)
	case secretErr == nil:
		if err := p.once(secretFile, holder, mode, nil); err != nil {
			return err
		}
		return p.once(publicFile, owner{}, 0o644, nil)
	case !errors.Is(secretErr, fs.ErrNotExist):
		return secretErr
	}
	p.add(Step{Verb: Make, What: describe(secretFile, holder, mode), Note: "and its public half, " + publicFile,
		do: func(context.Context) (string, error) {
			secret, verifiers, err := installdir.NewLogKey()
			if err != nil {
				return "", err
			}
			// The public half first: a key whose public half was lost could not be used, and is made again.
			if err := p.put(publicFile, verifiers, owner{}, 0o644); err != nil {
				return "", err
			}
			return "", p.put(secretFile, secret, holder, mode)
		}})
	return nil
}

// used reports whether a process has left anything in its state's folder.
func (p *Plan) used(role string) bool {
	there, err := os.ReadDir(p.on(stateDir + "/" + role))
	return err == nil && len(there) > 0
}

// certificates gives each process and operator a first certificate, or one in the place of a certificate that is due.
func (p *Plan) certificates() error {
	for _, role := range p.opts.connecting() {
		id, err := installdir.ProcessIdentity(role, "")
		if err != nil {
			return err
		}
		p.certificate(tlsDir+"/"+role, id, owner{group: User(role)}, 0o640)
	}
	// What was taken away has none that is renewed for ever. One that a human added beside this installation is the human's.
	for _, role := range p.before.connecting() {
		if dir := tlsDir + "/" + role; !slices.Contains(p.opts.connecting(), role) {
			p.add(Step{Verb: Remove, What: dir, Note: "nothing uses its certificate any more", do: func(context.Context) (string, error) { return "", os.RemoveAll(p.on(dir)) }})
		}
	}
	for _, name := range p.people() {
		operator := installdir.OperatorName(name)
		id, err := installdir.ProcessIdentity("operator", operator)
		if err != nil {
			return err
		}
		// The group is root, which renews it without the power to read everybody's files.
		if name == "root" {
			p.certificate(tlsDir+"/operators/"+operator, id, owner{}, 0o440)
			continue
		}
		p.certificate(tlsDir+"/operators/"+operator, id, owner{user: name}, 0o440)
		if id, err = installdir.ProcessIdentity("notifier", operator); err != nil {
			return err
		}
		p.certificate(tlsDir+"/notifiers/"+operator, id, owner{user: name}, 0o440)
	}
	return nil
}

func (p *Plan) certificate(dir string, id identity.ID, o owner, mode fs.FileMode) {
	s := Step{Verb: Same, What: describe(dir+"/"+pki.FileKey, o, mode)}
	keyInfo, keyErr := os.Lstat(p.on(dir + "/" + pki.FileKey))
	p.look(dir+"/"+pki.FileCertificate, o, mode)
	leaf, err := pki.ReadPair(p.on(dir))
	switch {
	case errors.Is(err, pki.ErrMismatch):
		s.Verb, s.Note = Change, "its certificate is another key's"
	case err != nil || keyErr != nil:
		s.Verb, s.Note = Make, "and its certificate for "+id.String()
	case leaf.ID != id:
		s.Verb, s.Note = Change, "its certificate is for "+leaf.ID.String()
	case leaf.Due(p.opts.Now()):
		s.Verb, s.Note = Change, "its certificate is due"
	case p.newRoot() || rootless(p.opts.Root, strings.TrimPrefix(dir, tlsDir+"/"), id):
		s.Verb, s.Note = Change, "its certificate is another authority's"
	case !p.placed(dir+"/"+pki.FileKey, keyInfo, o, mode):
		s.Verb, s.Note = Change, fmt.Sprintf("it is %04o", keyInfo.Mode().Perm())
	}
	s.do = func(context.Context) (string, error) {
		if elsewhere(p.opts.Root) {
			return "", fmt.Errorf("have your authority issue %s into %s, %04o, with the key beside it", id, dir, mode)
		}
		ca, err := pki.Load(p.on(pkiDir))
		if err != nil {
			return "", err
		}
		uid, gid, err := o.numbers(p.opts.Root)
		if err != nil {
			return "", err
		}
		certificate, key, err := ca.Issue(id, 0)
		if err != nil {
			return "", err
		}
		return "", pki.WriteLeafFor(p.on(dir), certificate, key, durable.Owner{UID: uid, GID: gid, Mode: mode})
	}
	p.add(s)
}

// newRoot reports whether the authority's root is made before the certificates are.
func (p *Plan) newRoot() bool {
	_, err := os.Lstat(p.on(trustDir + "/" + trust.FileCA))
	return errors.Is(err, fs.ErrNotExist)
}

// approves reports whether an operator has a key in allowed_signers.
func (p *Plan) approves(operator string) (bool, error) {
	signers, _, err := p.signers()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(signers.All(), func(s trust.Signer) bool { return s.Operator == operator }), nil
}

func (p *Plan) signers() (*trust.AllowedSigners, []byte, error) {
	raw, err := os.ReadFile(p.on(trustDir + "/" + trust.FileAllowedSigners))
	if err != nil {
		return nil, nil, err
	}
	signers, err := trust.ParseAllowedSigners(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("%s/%s: %w", trustDir, trust.FileAllowedSigners, err)
	}
	return signers, raw, nil
}

// join makes a member's own side, and lets the key approve that comes back. The note says what became of both.
func (p *Plan) join(ctx context.Context, who account, operator string) (note string, err error) {
	m := Member{
		Name: who.Name, Operator: operator, UID: who.UID, GID: who.GID, Home: who.Home, Root: p.opts.Root,
		SigningKey: p.opts.SigningKeys[who.Name], Without: who.Name == "root",
	}
	for _, name := range []string{Group, Operators} {
		gid, _, err := lookupGroup(p.opts.Root, name)
		if err != nil {
			return "", err
		}
		m.Groups = append(m.Groups, gid)
	}
	notYet := fmt.Sprintf("%[1]s cannot approve yet. As %[2]s: durward join. Then: sudo durward operator add %[1]s KEYFILE.pub", operator, who.Name)
	made, err := p.opts.Join(ctx, m)
	if made.Aside != "" {
		p.Aside = append(p.Aside, made.Aside)
		defer func() { note = strings.TrimPrefix(note+"; what was there lies in "+made.Aside, "; ") }()
	}
	switch {
	case m.Without:
		return "", err
	case errors.Is(err, ErrNoKey):
		return notYet, nil
	case err != nil:
		return "", err
	}
	key, _, options, rest, err := ssh.ParseAuthorizedKey(made.Public)
	if err != nil || len(options) > 0 || len(bytes.TrimSpace(rest)) > 0 {
		return "", errors.New("what came back is not one OpenSSH public key")
	}
	if !slices.Contains([]string{ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256}, key.Type()) {
		return "", fmt.Errorf("keys of the type of %s's are not accepted: use ed25519, or a security key", operator)
	}
	signers, raw, err := p.signers()
	if err != nil {
		return "", err
	}
	for _, s := range signers.All() {
		if bytes.Equal(s.Key.Marshal(), key.Marshal()) {
			return "the key is " + s.Operator + "'s already", nil
		}
	}
	if m.SigningKey == "" {
		if own := filepath.Join(who.Home, ".durward", "keys", "operator_ed25519"); made.File != own {
			return fmt.Sprintf("%s cannot approve yet: the operator.yaml there chooses the key %s. Name it yourself: sudo durward operator add %[1]s KEYFILE.pub",
				operator, made.File), nil
		}
		switch err := p.opts.Accept(ctx, m, made, ssh.FingerprintSHA256(key)); {
		case errors.Is(err, ErrNoKey):
			return notYet, nil
		case err != nil:
			return "", err
		}
	}
	if len(raw) > 0 && !strings.HasSuffix(string(raw), "\n") {
		raw = append(raw, '\n')
	}
	raw = append(raw, trust.FormatSigner(operator, key, statement.Namespace)+"\n"...)
	if err := p.put(trustDir+"/"+trust.FileAllowedSigners, raw, owner{}, 0o644); err != nil {
		return "", err
	}
	return operator + " may approve with " + ssh.FingerprintSHA256(key), nil
}
