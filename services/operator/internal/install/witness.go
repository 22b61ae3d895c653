package install

import (
	"crypto/ed25519"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/trust"
)

// witness makes the witness's key and file, and has every verifier of this host trust it.
func (p *Plan) witness() error {
	if !p.opts.Witness {
		return nil
	}
	v := p.values()
	p.folder(witnessDir, owner{}, 0o755)
	if err := p.once(witnessKey, owner{group: User(witness)}, 0o640, func() ([]byte, error) {
		_, key, err := ed25519.GenerateKey(nil)
		return []byte(logproof.FormatCosigner(witnessName, key)), err
	}); err != nil {
		return err
	}
	if err := p.once(witnessDir+"/auditwitness.yaml", owner{}, 0o644, func() (_ []byte, err error) {
		if v.Logs, err = p.logKeys(); err != nil {
			return nil, err
		}
		return v.render("auditwitness")
	}); err != nil {
		return err
	}
	// Files that are there are a human's. What they lack is said.
	if public, err := p.witnessKey(); err == nil {
		p.lacks(trustDir+"/"+trust.FileWitnesses, public, "its witnesses are yours to choose; this host's is "+public)
	}
	p.lacks(etc+"/auditrelay.yaml", v.WitnessURL(), "it is yours; this host's witness is at "+v.WitnessURL())
	return p.once(trustDir+"/"+trust.FileWitnesses, owner{}, 0o644, func() ([]byte, error) {
		public, err := p.witnessKey()
		return fmt.Appendf(nil, "# Who cosigns the log, and how many of them must. deploy/docs/audit.md says what a witness on another machine adds.\n"+
			"witnesses:\n  - %s\nquorum: 1\n", public), err
	})
}

// lacks is a step that says what a file does not have which is there.
func (p *Plan) lacks(path, text, note string) {
	if b, err := os.ReadFile(p.on(path)); err == nil && !strings.Contains(string(b), text) {
		p.add(Step{Verb: Keep, What: path, Note: note})
	}
}

// witnessKey is the public half of the witness's key.
func (p *Plan) witnessKey() (string, error) {
	text, err := os.ReadFile(p.on(witnessKey))
	if err != nil {
		return "", err
	}
	signer, err := logproof.ParseCosigner(string(text), time.Now)
	if err != nil {
		return "", fmt.Errorf("%s: %w", witnessKey, err)
	}
	return signer.String(), nil
}

// logKeys are the public keys of this host's log.
func (p *Plan) logKeys() ([]string, error) {
	if _, err := trust.ReadLogKeys(p.on(trustDir)); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(p.on(trustDir + "/" + trust.FileLogKeys))
	return slices.Collect(trust.Lines(text)), err
}
