package rulefile

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// fileSigners is allowed_signers in statements and records.
const fileSigners = "trust/" + trust.FileAllowedSigners

var (
	// ErrNoOperator means that allowed_signers holds no key of an operator.
	ErrNoOperator = errors.New("no such operator")
	// ErrLastOperator means that nobody could approve or resume any more.
	ErrLastOperator = errors.New("it is the last operator")
)

// HeldError says whose key it is already.
type HeldError struct{ Operator string }

func (e *HeldError) Error() string { return "the key is held by " + e.Operator }

// SignersError means that allowed_signers has to be corrected first.
type SignersError struct{ error }

func (e *SignersError) Unwrap() error { return e.error }

// Signers are who may approve, in the file's order.
func Signers(raw []byte) ([]trust.Signer, error) {
	signers, err := trust.ParseAllowedSigners(raw)
	if err != nil {
		return nil, &SignersError{err}
	}
	return signers.All(), nil
}

// AddSigner enters an operator's key in allowed_signers. The error is a *HeldError where somebody holds it, a *SignersError where the
// file is not good.
func AddSigner(cfg installdir.Config, operator string, key ssh.PublicKey) ([]*signedchange.Plan, error) {
	return signersChange(cfg, func(before []byte) ([]byte, error) {
		signers, err := Signers(before)
		if err != nil {
			return nil, err
		}
		held := slices.IndexFunc(signers, func(s trust.Signer) bool { return bytes.Equal(s.Key.Marshal(), key.Marshal()) })
		if held >= 0 {
			return nil, &HeldError{signers[held].Operator}
		}
		if len(before) > 0 && before[len(before)-1] != '\n' {
			before = append(bytes.Clone(before), '\n')
		}
		return fmt.Appendln(bytes.Clone(before), trust.FormatSigner(operator, key, statement.Namespace)), nil
	})
}

// RemoveSigner takes every key of an operator out of allowed_signers: ErrNoOperator, ErrLastOperator where no key is left that counts now.
// With absent, an operator who has none is no error. A *SignersError: processes would not take up what is left, and go by what they know.
func RemoveSigner(cfg installdir.Config, operator string, now time.Time, absent bool) ([]*signedchange.Plan, error) {
	return signersChange(cfg, func(before []byte) ([]byte, error) {
		var after []byte
		for line := range bytes.Lines(before) {
			if first, _, _ := strings.Cut(strings.TrimSpace(string(line)), " "); first != operator {
				after = append(after, line...)
			}
		}
		switch {
		case len(after) == len(before) && absent:
			return before, nil
		case len(after) == len(before):
			return nil, ErrNoOperator
		}
		left, err := trust.ParseAllowedSigners(after)
		if err != nil {
			return nil, &SignersError{err}
		}
		if !slices.ContainsFunc(left.All(), func(s trust.Signer) bool {
			_, err := left.Find(s.Key, statement.Namespace, now)
			return err == nil
		}) {
			return nil, ErrLastOperator
		}
		return after, nil
	})
}

func signersChange(cfg installdir.Config, edit func([]byte) ([]byte, error)) ([]*signedchange.Plan, error) {
	return signedchange.PrepareOne(filepath.Join(cfg.TrustDir, trust.FileAllowedSigners), fileSigners, edit)
}
