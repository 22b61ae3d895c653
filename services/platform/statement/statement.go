// Package statement is what a human signs: the canonical JSON of what the operator's program displayed, under an SSH
// signature (SSHSIG, namespace durward-approval) that `ssh-keygen -Y verify` verifies years later.
//
// The operator's program makes statements; the vault keeps them as evidence; a sink verifies them itself, against its own
// allowed_signers, before it looks at the vault's signature. Nothing here trusts the vault.
package statement

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
)

// Namespace is the SSHSIG namespace of every statement.
const Namespace = "durward-approval"

// Type and Version begin every statement, so that no other signed JSON can be taken for one. Dangerous mode and its confirmation
// are of VersionConfirmed: before, one statement was enough.
const (
	Type             = "durward.statement"
	Version          = 1
	VersionConfirmed = 2
)

// Skew is how far a verifier's clock may be from the operator's.
const Skew = 5 * time.Minute

// MaxUses bounds how often a standing statement may be used.
const MaxUses = 1000

// Kind says what the human agreed to.
type Kind string

// The kinds of statement.
const (
	// KindApprove: one operation that an agent asked for, once.
	KindApprove Kind = "approve"
	// KindCommand: one call that the human makes, once.
	KindCommand Kind = "command"
	// KindScope: calls of these tools by this session, within pinned arguments, so many times, until then.
	KindScope Kind = "scope"
	// KindDangerous: WRITE and DESTRUCTIVE calls of this session without asking, so many times, until then (DNG-1). It takes a
	// second statement, KindConfirm.
	KindDangerous Kind = "dangerous"
	// KindConfirm: a statement of KindDangerous, once more.
	KindConfirm Kind = "confirm"
	// KindResume: an end to a halt.
	KindResume Kind = "resume"
	// KindConfig: a change of one file of the security configuration, by its digests before and after.
	KindConfig Kind = "config"
	// KindPrune: the bodies of old records of the audit log go (AUD-5).
	KindPrune Kind = "prune"
	// KindHold: a legal hold on records, which no pruning reaches.
	KindHold Kind = "hold"
	// KindRelease: an end to a hold.
	KindRelease Kind = "release"
	// KindRestore: the log goes on from a backup, and what came after it is lost.
	KindRestore Kind = "restore"
	// KindCredential: a stored credential is added, gets a new value, or is granted to services.
	KindCredential Kind = "credential"
	// KindServers: the tools of other people's MCP servers are accepted as they were shown.
	KindServers Kind = "servers"
)

// maxLife bounds how long each kind may stand.
var maxLife = map[Kind]time.Duration{
	KindApprove:    time.Hour,
	KindCommand:    10 * time.Minute,
	KindScope:      8 * time.Hour,
	KindDangerous:  8 * time.Hour,
	KindConfirm:    8 * time.Hour,
	KindResume:     10 * time.Minute,
	KindConfig:     10 * time.Minute,
	KindPrune:      10 * time.Minute,
	KindHold:       10 * time.Minute,
	KindRelease:    10 * time.Minute,
	KindCredential: 10 * time.Minute,
	KindRestore:    10 * time.Minute,
	KindServers:    10 * time.Minute,
}

// Statement is the signed JSON object. Absent members are left out. Times are RFC 3339 in UTC with whole seconds;
// digests are "sha256:<hex>".
type Statement struct {
	Type     string `json:"type"`
	Version  int    `json:"version"`
	Kind     Kind   `json:"kind"`
	ID       string `json:"id"`
	Operator string `json:"operator"`

	IssuedAt  string `json:"issued_at"`
	NotBefore string `json:"not_before"`
	ExpiresAt string `json:"expires_at"`

	// Epoch is the epoch that the statement holds in; for a resume, the epoch that it begins.
	Epoch uint64 `json:"epoch"`
	// Audience is the sink that may act on it (a SPIFFE ID); for a resume, the process that it wakes.
	Audience string `json:"audience"`

	Principal string `json:"principal,omitempty"`
	Session   string `json:"session,omitempty"`
	Channel   string `json:"channel,omitempty"`
	Operation string `json:"operation,omitempty"`

	// Tool, Tier and arguments: for approve and command.
	Tool            *Tool           `json:"tool,omitempty"`
	Tier            string          `json:"tier,omitempty"`
	Arguments       json.RawMessage `json:"arguments,omitempty"`
	ArgumentsDigest string          `json:"arguments_digest,omitempty"`
	// Target is the human's name for what is acted on; SubjectDigest pins its definition.
	Target        string   `json:"target,omitempty"`
	SubjectDigest string   `json:"subject_digest,omitempty"`
	Plan          []string `json:"plan,omitempty"`
	// Disclosures are the values that the sink gets in the place of references in the arguments; no other reference is resolved.
	Disclosures []Disclosure `json:"disclosures,omitempty"`
	// AgentReason is what the agent said it wants; it was displayed as untrusted.
	AgentReason string `json:"agent_reason,omitempty"`

	// For scope: the tools, the argument pointers (RFC 6901) that must have these values, those that may have any, and the
	// definitions that may be acted on.
	Tools          []Tool   `json:"tools,omitempty"`
	Pinned         []Pin    `json:"pinned,omitempty"`
	Free           []string `json:"free,omitempty"`
	SubjectDigests []string `json:"subject_digests,omitempty"`
	// AnySubject: whatever the sink's own catalog, which a human owns, says of them at the time of the call. A scope has this or
	// SubjectDigests. A switch of modes has no other choice, since its plan depends on what runs.
	AnySubject bool `json:"any_subject,omitempty"`

	// Change is for config.
	Change *Change `json:"change,omitempty"`

	// Prune is for prune, Hold for hold; Releases is for release: the digest of the statement of kind hold.
	Prune    *Prune `json:"prune,omitempty"`
	Hold     *Hold  `json:"hold,omitempty"`
	Releases string `json:"releases,omitempty"`
	// Restore is for restore.
	Restore *Restore `json:"restore,omitempty"`
	// Credential is for credential.
	Credential *Credential `json:"credential,omitempty"`
	// Servers is for servers.
	Servers *Servers `json:"servers,omitempty"`

	// Confirms is for confirm: the digest of the statement of kind dangerous.
	Confirms string `json:"confirms,omitempty"`

	// Uses is how often it may be used: 1 for approve and command. Absent for confirm, and where no call is meant.
	Uses int `json:"uses,omitempty"`
}

// Tool names a tool in a statement.
type Tool struct {
	Name             string `json:"name"`
	Source           string `json:"source"`
	DefinitionDigest string `json:"definition_digest"`
}

// Pin fixes one argument of a scope.
type Pin struct {
	Pointer string          `json:"pointer"`
	Value   json.RawMessage `json:"value"`
}

// Change is one file of the security configuration, changed by a human's program. Digests are of the whole file; "" where there
// is none before, or none after.
type Change struct {
	// File is the file's name: "security.yaml", "policy/allow.cedar", "clients.yaml", "executor.yaml".
	File   string `json:"file"`
	Before string `json:"before"`
	After  string `json:"after"`
	// Lines are the difference as it was shown: each begins with "+", "-" or a space.
	Lines []string `json:"lines"`
}

// Reasons why a statement is refused; for records, not for callers.
var (
	ErrMalformed = errors.New("the statement is not a well-formed statement")
	ErrSignature = errors.New("the statement's signature does not verify")
	ErrOperator  = errors.New("the statement names another operator than the one who signed")
	ErrTime      = errors.New("the statement is not valid at this time")
	ErrCover     = errors.New("the statement is for something else")
	// ErrSubject is an ErrCover: the call would act on another definition than the statement is for.
	ErrSubject = fmt.Errorf("%w: subject", ErrCover)
)

// FormatTime writes a statement's time.
func FormatTime(t time.Time) string { return t.UTC().Truncate(time.Second).Format(time.RFC3339) }

func parseTime(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil || FormatTime(t) != s {
		return time.Time{}, ErrMalformed
	}
	return t, nil
}

// ToolOf writes a ToolRef as statements hold it.
func ToolOf(ref *callv1.ToolRef) Tool {
	return Tool{Name: ref.GetName(), Source: ref.GetSource(), DefinitionDigest: canonical.FormatDigest(ref.GetDefinitionDigest())}
}

// ChannelName is the word for a channel in statements and on screens.
func ChannelName(c callv1.Channel) string {
	return strings.ToLower(strings.TrimPrefix(c.String(), "CHANNEL_"))
}

// Expires is when a checked statement ends.
func (s *Statement) Expires() time.Time {
	until, _ := parseTime(s.ExpiresAt)
	return until
}

// Marshal checks the statement and returns the bytes that are displayed and signed: RFC 8785 JSON.
func (s *Statement) Marshal() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	return canonical.Marshal(s)
}

// Parse reads what Marshal writes, and nothing else: Marshal(Parse(x)) == x, or an error.
func Parse(raw []byte) (*Statement, error) {
	var s Statement
	if err := canonical.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return &s, nil
}

// check holds a statement to its kind: what it must say, and what it must not.
func (s *Statement) check() error {
	bad := func(what string) error { return fmt.Errorf("%w: %s", ErrMalformed, what) }
	life, ok := maxLife[s.Kind]
	if !ok {
		return bad("kind is unknown")
	}
	if s.Type != Type || s.Version != versionOf(s.Kind) && !s.historical() {
		return bad("type or version is unknown")
	}
	if len(s.ID) != 32 || s.Operator == "" || s.Epoch == 0 || s.Epoch >= 1<<53 || s.Audience == "" {
		return bad("id, operator, epoch or audience is missing")
	}
	issued, err1 := parseTime(s.IssuedAt)
	from, err2 := parseTime(s.NotBefore)
	until, err3 := parseTime(s.ExpiresAt)
	if err := errors.Join(err1, err2, err3); err != nil {
		return bad("a time is not RFC 3339 in UTC with whole seconds")
	}
	if !from.Before(until) || until.Sub(issued) > life || from.Before(issued) {
		return bad("it stands too long, or ends before it begins")
	}
	single := s.Tool != nil && s.Tier != "" && len(s.Arguments) > 0 && s.ArgumentsDigest != "" && s.SubjectDigest != "" &&
		s.Operation != "" && s.Uses == 1
	anySingle := s.Tool != nil || s.Tier != "" || len(s.Arguments) > 0 || s.ArgumentsDigest != "" || s.SubjectDigest != "" ||
		s.Operation != "" || s.Target != "" || len(s.Plan) > 0 || s.AgentReason != "" || len(s.Disclosures) > 0
	anyScope := len(s.Tools) > 0 || len(s.Pinned) > 0 || len(s.Free) > 0 || len(s.SubjectDigests) > 0 || s.AnySubject
	switch {
	case (s.Change != nil) != (s.Kind == KindConfig):
		return bad("a change is what a statement of kind config is about, and nothing else is")
	case (s.Credential != nil) != (s.Kind == KindCredential):
		return bad("a credential is what a statement of kind credential is about, and nothing else is")
	case (s.Restore != nil) != (s.Kind == KindRestore):
		return bad("a log is what a statement of kind restore is about, and nothing else is")
	case (s.Servers != nil) != (s.Kind == KindServers):
		return bad("servers are what a statement of kind servers is about, and nothing else is")
	case (s.Confirms != "") != (s.Kind == KindConfirm):
		return bad("another statement is what one of kind confirm is about, and nothing else is")
	case (s.Prune != nil) != (s.Kind == KindPrune) || (s.Hold != nil) != (s.Kind == KindHold) || (s.Releases != "") != (s.Kind == KindRelease):
		return bad("what the log keeps is what statements of the kinds prune, hold and release are about, and no other is")
	}
	party := s.Principal != "" && s.Session != "" && s.Channel != ""
	switch s.Kind {
	case KindApprove, KindCommand:
		if !single || anyScope || !party {
			return bad("it must name one call, whole, and nothing else")
		}
		if s.Kind == KindCommand && s.Principal != CommandPrincipal(s.Operator) {
			return bad("a command's principal is the operator who signs")
		}
		if err := canonical.Check(s.Arguments); err != nil || s.Arguments[0] != '{' {
			return bad("arguments are not a canonical object")
		}
		if canonical.DigestText(s.Arguments) != s.ArgumentsDigest {
			return bad("arguments and their digest disagree")
		}
		if _, err := canonical.ParseDigest(s.SubjectDigest); err != nil {
			return bad("subject digest is not a digest")
		}
		if err := s.checkDisclosures(); err != nil {
			return err
		}
		return checkTool(*s.Tool)
	case KindScope:
		if anySingle || !party || len(s.Tools) == 0 || s.Uses < 1 || s.Uses > MaxUses {
			return bad("a scope names tools, uses (1 to 1000) and whose it is, and no single call")
		}
		return s.checkScope()
	case KindDangerous, KindConfirm:
		if counted := s.Kind == KindDangerous && !s.historical(); anySingle || anyScope || !party ||
			counted != (s.Uses >= 1) || s.Uses > MaxUses {
			return bad("dangerous mode names a session, uses (1 to 1000, once) and nothing else")
		}
		if _, err := canonical.ParseDigest(s.Confirms); err != nil && s.Kind == KindConfirm {
			return bad("what it confirms is not a digest")
		}
		if s.Channel == ChannelName(callv1.Channel_CHANNEL_MESSAGING) {
			return bad("there is no dangerous mode over messaging")
		}
	case KindResume, KindConfig, KindPrune, KindHold, KindRelease, KindCredential, KindRestore, KindServers:
		if anySingle || anyScope || s.Uses != 0 || s.Principal != "" || s.Session != "" || s.Channel != "" {
			return bad("it names an epoch and an audience and no party")
		}
		switch s.Kind {
		case KindConfig:
			return s.Change.check()
		case KindCredential:
			return s.Credential.check()
		case KindRestore:
			return s.Restore.check()
		case KindServers:
			return s.Servers.check()
		case KindPrune:
			return s.Prune.check(issued)
		case KindHold:
			return s.Hold.check()
		case KindRelease:
			if _, err := canonical.ParseDigest(s.Releases); err != nil {
				return bad("what it releases is not a digest")
			}
		default:
		}
	}
	return nil
}

func (s *Statement) checkScope() error {
	for _, t := range s.Tools {
		if err := checkTool(t); err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	if s.AnySubject == (len(s.SubjectDigests) > 0) {
		return fmt.Errorf("%w: a scope names the definitions that it is for, or says that any will do", ErrMalformed)
	}
	// A digest of a plan says what a human looked at; left free, a call may do what nobody saw, which has to be said.
	if slices.Contains(s.Free, "/plan_digest") && !s.AnySubject {
		return fmt.Errorf("%w: a plan may not be left free", ErrMalformed)
	}
	pointers := slices.Clone(s.Free)
	for _, pin := range s.Pinned {
		if err := canonical.Check(pin.Value); err != nil {
			return fmt.Errorf("%w: a pinned value is not canonical", ErrMalformed)
		}
		pointers = append(pointers, pin.Pointer)
	}
	for _, p := range pointers {
		if !strings.HasPrefix(p, "/") || strings.Contains(p[1:], "/") || seen[p] {
			return fmt.Errorf("%w: an argument pointer does not name one argument once", ErrMalformed)
		}
		seen[p] = true
	}
	for _, d := range s.SubjectDigests {
		if _, err := canonical.ParseDigest(d); err != nil {
			return fmt.Errorf("%w: a subject digest is not a digest", ErrMalformed)
		}
	}
	return nil
}

func (c *Change) check() error {
	bad := func(what string) error { return fmt.Errorf("%w: a change's %s", ErrMalformed, what) }
	if c.File == "" || len(c.File) > 256 || c.Lines == nil {
		return bad("file or lines are missing")
	}
	for _, d := range []string{c.Before, c.After} {
		if _, err := canonical.ParseDigest(d); err != nil && d != "" {
			return bad("digest is not a digest")
		}
	}
	if c.Before == c.After {
		return bad("digests are equal: it changes nothing")
	}
	return nil
}

func checkTool(t Tool) error {
	if _, err := canonical.ParseDigest(t.DefinitionDigest); err != nil || t.Name == "" || t.Source == "" {
		return fmt.Errorf("%w: a tool is not named by name, source and definition", ErrMalformed)
	}
	return nil
}

// CommandPrincipal is the principal of a human's own commands.
func CommandPrincipal(operator string) string { return "operator:" + operator }

// IsCommand reports whether a principal is an operator's command.
func IsCommand(principal string) bool { return strings.HasPrefix(principal, CommandPrincipal("")) }

// Sign displays nothing: the caller shows s.Marshal() first. It returns the evidence that grants carry.
func Sign(s *Statement, signer ssh.Signer) (*callv1.HumanStatement, error) {
	raw, err := s.Marshal()
	if err != nil {
		return nil, err
	}
	signature, err := sshsig.Sign(bytes.NewReader(raw), signer, sshsig.HashSHA512, Namespace)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return &callv1.HumanStatement{Statement: raw, Signature: sshsig.Armor(signature)}, nil
}
