package statement

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/platformtest/full"
	"durward.internal/services/platform/platformtest/installed"
	"durward.internal/services/platform/trust"
)

// keyed is a signer of a kind of key.
func keyed(t testing.TB, kind string) ssh.Signer {
	t.Helper()
	var key any
	var err error
	switch kind {
	case "ed25519":
		return signer(t, 1)
	case "ecdsa":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "rsa":
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	must(t, err)
	s, err := ssh.NewSignerFromKey(key)
	must(t, err)
	return s
}

// sshKeygen judges evidence as OpenSSH does.
func sshKeygen(t testing.TB, dir, allowedSigners, operator string, h *callv1.HumanStatement) bool {
	t.Helper()
	signature, allowed := filepath.Join(dir, "sig"), filepath.Join(dir, "allowed")
	for path, content := range map[string][]byte{signature: h.GetSignature(), allowed: []byte(allowedSigners)} {
		must(t, os.WriteFile(path, content, 0o600))
	}
	cmd := exec.CommandContext(t.Context(), "ssh-keygen", "-Y", "verify", "-f", allowed, "-I", operator, "-n", Namespace, "-s", signature,
		"-Overify-time=20261121120000Z")
	cmd.Stdin = bytes.NewReader(h.GetStatement())
	return cmd.Run() == nil
}

// TestASpellingThatSSHKeygenRefusesIsNoEvidence: a signature counts in one spelling alone, that of ssh-keygen or of PEM's line
// width, so that what a human signed cannot be shown to Durward in a form that nobody else accepts.
func TestASpellingThatSSHKeygenRefusesIsNoEvidence(t *testing.T) {
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		key := keyed(t, kind)
		line := trust.FormatSigner("ada", key.PublicKey(), Namespace)
		good, err := Sign(approve(), key)
		must(t, err)
		read, err := sshsig.Unarmor(good.GetSignature())
		must(t, err)
		blob := read.Marshal()
		trailing := *read
		inner := *read.Signature
		inner.Rest = []byte("x")
		trailing.Signature = &inner
		weak := *read
		format := *read.Signature
		format.Format = "ssh-rsa"
		weak.Signature = &format
		text := string(good.GetSignature())
		for name, c := range map[string]struct {
			signature string
			counts    bool
		}{
			"as it was signed":             {text, true},
			"with ssh-keygen's lines":      {string(armor(blob, 70)), true},
			"text before it":               {"I agree.\n" + text, false},
			"an empty line before it":      {"\n" + text, false},
			"text behind it":               {text + "I do not.\n", false},
			"a second signature behind it": {text + text, false},
			"no newline at the end":        {strings.TrimSuffix(text, "\n"), false},
			"headers":                      {string(pem.EncodeToMemory(&pem.Block{Type: sshsig.PEMType, Headers: map[string]string{"Comment": "x"}, Bytes: blob})), false},
			"lines of another width":       {string(armor(blob, 63)), false},
			"carriage returns":             {strings.ReplaceAll(text, "\n", "\r\n"), false},
			"bytes behind the blob":        {string(armor(append(slices.Clone(blob), 0), 64)), false},
			"bytes behind the signature":   {string(sshsig.Armor(&trailing)), false},
			"the hash of another time":     {string(sshsig.Armor(&weak)), false},
			"another type":                 {strings.ReplaceAll(text, "SSH SIGNATURE", "PGP SIGNATURE"), false},
		} {
			h := &callv1.HumanStatement{Statement: good.GetStatement(), Signature: []byte(c.signature)}
			_, err := Verify(h, operators(t, line), now)
			if (err == nil) != c.counts {
				t.Errorf("%s, %s: %v", kind, name, err)
			}
		}
	}
}

// TestWhatCountsHereCountsForSSHKeygen changes signatures and lines of allowed_signers at random: whatever is accepted here,
// ssh-keygen accepts too.
func TestWhatCountsHereCountsForSSHKeygen(t *testing.T) {
	installed.Program(t, "ssh-keygen")
	seed, n := full.Sample(t, 3000, 60)
	r := mathrand.New(mathrand.NewPCG(seed, 1))
	dir := t.TempDir()
	key, ecdsaKey := signer(t, 1), keyed(t, "ecdsa")
	options := []string{`namespaces="durward-approval"`, `namespaces="durward-approval,file"`, `namespaces="!durward-approval,*"`, `namespaces=durward-approval`,
		`namespaces="*"`, `valid-after="20200101Z"`, `valid-before="20300101Z"`, `valid-before="20200101Z"`, `valid-after=20200101Z`, `cert-authority`, ``}
	accepted := 0
	for range n {
		signing := key
		if r.IntN(2) == 0 {
			signing = ecdsaKey
		}
		h, err := Sign(approve(), signing)
		must(t, err)
		chosen := []string{options[r.IntN(len(options))], options[r.IntN(len(options))]}[:r.IntN(3)]
		chosen = slices.DeleteFunc(chosen, func(o string) bool { return o == "" })
		line := strings.Join(slices.Concat([]string{"ada"}, nonEmpty(strings.Join(chosen, ",")),
			[]string{strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signing.PublicKey())))}), " ") + "\n"
		signature := h.GetSignature()
		switch at := r.IntN(len(signature)); r.IntN(8) {
		case 0:
			signature[at] ^= 1 << r.IntN(7)
		case 1:
			h.Signature = slices.Insert(signature, at, byte("\n \r=A:"[r.IntN(6)]))
		case 2:
			h.Signature = slices.Delete(signature, at, at+1)
		}
		allowed, err := trust.ParseAllowedSigners([]byte(line))
		if err != nil {
			continue
		}
		if _, err := Verify(h, allowed, now); err != nil {
			continue
		}
		accepted++
		if !sshKeygen(t, dir, line, "ada", h) {
			t.Errorf("accepted here, and refused by ssh-keygen:\n%s%s", line, h.GetSignature())
		}
	}
	if accepted == 0 {
		t.Error("nothing was accepted: this shows nothing")
	}
	// The comparison sees a difference where there is one.
	h, err := Sign(approve(), key)
	must(t, err)
	line := fmt.Sprintf("ada %s", ssh.MarshalAuthorizedKey(key.PublicKey()))
	h.Signature = append([]byte("I agree.\n"), h.GetSignature()...)
	if sshKeygen(t, dir, line, "ada", h) {
		t.Error("ssh-keygen takes text before the armour")
	}
}

func nonEmpty(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}
