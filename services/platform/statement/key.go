package statement

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

// Signature formats that count. RSA's says which hash it is of, whatever the key's type says.
var formats = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
	ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256,
}

// skRest is what a security key's signature has behind it: its flags and its counter.
const skRest = 5

// Widths of a line of armour: that of PEM, which sshsig.Armor writes, and that of ssh-keygen.
var widths = []int{64, 70}

// unarmor reads a signature in the one spelling that ssh-keygen would take too: nothing before or behind the armour, no headers
// in it, no bytes behind the signature or within it. Whoever could send another spelling could show a human's approval to
// Durward that nobody else accepts as one.
func unarmor(armoured []byte) (*sshsig.Signature, error) {
	s, err := sshsig.Unarmor(armoured)
	if err != nil || !slices.Contains(formats, s.Signature.Format) {
		return nil, ErrSignature
	}
	rest := 0
	if strings.HasPrefix(s.Signature.Format, "sk-") {
		rest = skRest
	}
	blob := s.Marshal()
	if !spelled(len(s.Signature.Rest) == rest &&
		slices.ContainsFunc(widths, func(width int) bool { return bytes.Equal(armoured, armor(blob, width)) })) {
		return nil, ErrSignature
	}
	return s, nil
}

// armor writes a signature with lines of a width.
func armor(blob []byte, width int) []byte {
	out := []byte("-----BEGIN " + sshsig.PEMType + "-----\n")
	for line := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString(blob)), width) {
		out = append(append(out, line...), '\n')
	}
	return append(out, "-----END "+sshsig.PEMType+"-----\n"...)
}
