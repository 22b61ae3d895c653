package statement

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/trust"
)

// Verified is a statement whose signature, operator and time were found good.
type Verified struct {
	*Statement
	// Digest is SHA-256 of the signed bytes: what uses are counted by.
	Digest [32]byte
	// Key is the operator's key that signed.
	Key ssh.PublicKey
	// Ends is when the statement expires, without skew.
	Ends time.Time
}

// Verify checks the signature against the operators' keys at now, that the statement names the operator who signed, and
// its times within Skew of now.
func Verify(h *callv1.HumanStatement, operators *trust.AllowedSigners, now time.Time) (*Verified, error) {
	s, key, err := verifySignature(h, operators, now)
	if err != nil {
		return nil, err
	}
	if s.historical() {
		return nil, ErrHistorical
	}
	v := &Verified{Statement: s, Digest: canonical.Digest(h.GetStatement()), Key: key, Ends: s.Expires()}
	if err := v.inTime(now); err != nil {
		return nil, err
	}
	return v, nil
}

// Stands checks what may have changed since a statement was verified: that its key is still that operator's, and its times within Skew of now.
func (v *Verified) Stands(operators *trust.AllowedSigners, now time.Time) error {
	signer, err := operators.Find(v.Key, Namespace, now)
	if err != nil {
		return err
	}
	if v.Operator != signer.Operator {
		return ErrOperator
	}
	return v.inTime(now)
}

func (v *Verified) inTime(now time.Time) error {
	from, _ := parseTime(v.NotBefore) // check() parsed it before
	if now.Add(Skew).Before(from) || !now.Add(-Skew).Before(v.Ends) {
		return ErrTime
	}
	return nil
}

// VerifySignature checks the signature against the operators' keys at a time, and that the statement names the operator
// who signed. It does not judge the statement's own times: it is for verifying history.
func VerifySignature(h *callv1.HumanStatement, operators *trust.AllowedSigners, at time.Time) (*Statement, error) {
	s, _, err := verifySignature(h, operators, at)
	return s, err
}

func verifySignature(h *callv1.HumanStatement, operators *trust.AllowedSigners, at time.Time) (*Statement, ssh.PublicKey, error) {
	signature, err := unarmor(h.GetSignature())
	if err != nil {
		return nil, nil, err
	}
	signer, err := operators.Find(signature.PublicKey, Namespace, at)
	if err != nil {
		return nil, nil, err
	}
	if err := sshsig.Verify(bytes.NewReader(h.GetStatement()), signature, signer.Key, sshsig.HashSHA512, Namespace); err != nil {
		return nil, nil, ErrSignature
	}
	s, err := Parse(h.GetStatement())
	if err != nil {
		return nil, nil, err
	}
	if s.Operator != signer.Operator {
		return nil, nil, ErrOperator
	}
	return s, signer.Key, nil
}

// Covers reports whether the statement allows the call that a grant is for: nil, or ErrCover with what differs. tool is
// the verifier's own definition, arguments the RFC 8785 form of what would be executed, subject the SHA-256 of the definition that
// would be acted on, as the verifier itself has it; nil for a verifier that has none (the vault), which then goes by the grant's,
// and where that has none too leaves a standing statement's subjects to the sink. Uses and halts, and which tools dangerous mode
// is for, are the caller's to judge.
func (v *Verified) Covers(g *callv1.Grant, tool *callv1.ToolRef, tier optionsv1.Tier, arguments, subject []byte) error {
	differs := func(what string) error { return fmt.Errorf("%w: %s", ErrCover, what) }
	switch {
	case v.Audience != g.GetAudience():
		return differs("audience")
	case v.Epoch != g.GetEpoch():
		return differs("epoch")
	case v.Principal != g.GetPrincipal():
		return differs("principal")
	case v.Session != g.GetSession():
		return differs("session")
	case v.Channel != ChannelName(g.GetChannel()):
		return differs("channel")
	}
	sum := canonical.Digest(arguments)
	if !bytes.Equal(sum[:], g.GetArgumentsDigest()) {
		return differs("arguments digest")
	}
	own, granted := ToolOf(tool), ToolOf(g.GetTool())
	if own != granted {
		return differs("tool definition")
	}
	switch v.Kind {
	case KindApprove, KindCommand:
		switch {
		case v.Operation != g.GetOperationId() || g.GetUse() != 1:
			return differs("operation")
		case *v.Tool != own:
			return differs("tool")
		case v.Tier != contract.TierName(tier):
			return differs("tier")
		case !bytes.Equal(v.Arguments, arguments):
			return differs("arguments")
		case v.SubjectDigest != canonical.FormatDigest(g.GetSubjectDigest()):
			return ErrSubject
		}
		return nil
	case KindScope:
		if !slices.Contains(v.Tools, own) {
			return differs("tool")
		}
		if subject == nil {
			subject = g.GetSubjectDigest()
		}
		if len(subject) > 0 && !v.AnySubject && !slices.Contains(v.SubjectDigests, canonical.FormatDigest(subject)) {
			return ErrSubject
		}
		return v.coversArguments(arguments)
	case KindDangerous:
		if !g.GetDangerous() {
			return differs("mode")
		}
		return nil
	default:
		return differs("kind")
	}
}

// coversArguments holds every argument to a scope: pinned to its value, or free; an argument that is neither is refused,
// and so is a pinned one that is absent.
func (v *Verified) coversArguments(arguments []byte) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(arguments, &object); err != nil {
		return fmt.Errorf("%w: arguments", ErrCover)
	}
	for _, pin := range v.Pinned {
		key := argumentAt(pin.Pointer)
		value, ok := object[key]
		if !ok || !bytes.Equal(value, pin.Value) {
			return fmt.Errorf("%w: a pinned argument", ErrCover)
		}
		delete(object, key)
	}
	for _, p := range v.Free {
		delete(object, argumentAt(p))
	}
	if len(object) > 0 {
		return fmt.Errorf("%w: an argument that is neither pinned nor free", ErrCover)
	}
	return nil
}

// argumentAt is the argument that a pointer of one segment names: scopes pin whole arguments.
func argumentAt(pointer string) string { return jsontext.Pointer(pointer).LastToken() }
