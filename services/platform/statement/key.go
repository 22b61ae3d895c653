package statement

import (
	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	callv1 "durward.internal/proto/gen/durward/call/v1"
)

// SigningKey returns the public key that a statement's signature names, whether or not the signature is good: ErrSignature
// when there is none.
func SigningKey(h *callv1.HumanStatement) (ssh.PublicKey, error) {
	signature, err := sshsig.Unarmor(h.GetSignature())
	if err != nil {
		return nil, ErrSignature
	}
	return signature.PublicKey, nil
}
