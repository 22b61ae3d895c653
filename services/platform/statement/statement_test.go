package statement

import (
	"bytes"
	"crypto/ed25519"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/trust"
)

//go:embed testdata
var testdata embed.FS

var update = flag.Bool("update", false, "write the golden vectors anew")

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func signer(t testing.TB, seed byte) ssh.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32)))
	must(t, err)
	return s
}

func operators(t testing.TB, lines ...string) *trust.AllowedSigners {
	t.Helper()
	a, err := trust.ParseAllowedSigners([]byte(strings.Join(lines, "\n")))
	must(t, err)
	return a
}

const arguments = `{"service_id":"demo-chat"}`

func digest(b string) []byte {
	d := canonical.Digest([]byte(b))
	return d[:]
}

func toolRef() *callv1.ToolRef {
	return &callv1.ToolRef{Name: "start_service", Source: "native", DefinitionDigest: digest("definition")}
}

func approve() *Statement {
	tool := ToolOf(toolRef())
	return &Statement{
		Type: Type, Version: Version, Kind: KindApprove,
		ID: "000102030405060708090a0b0c0d0e0f", Operator: "ada",
		IssuedAt: FormatTime(now), NotBefore: FormatTime(now), ExpiresAt: FormatTime(now.Add(30 * time.Minute)),
		Epoch: 3, Audience: "spiffe://durward.local/executor/local",
		Principal: "claude-code", Session: "s-aaaa", Channel: "cli",
		Operation: "ffeeddccbbaa99887766554433221100",
		Tool:      &tool, Tier: "WRITE",
		Arguments: json.RawMessage(arguments), ArgumentsDigest: canonical.FormatDigest(digest(arguments)),
		Target: "service demo-chat", SubjectDigest: canonical.FormatDigest(digest("entry")),
		Plan:        []string{"start demo-chat on port 7450"},
		AgentReason: "the user \u202e asked <b>for</b> it",
		Uses:        1,
	}
}

func grantOf() *callv1.Grant {
	return &callv1.Grant{
		OperationId: "ffeeddccbbaa99887766554433221100", Use: 1, Principal: "claude-code", Session: "s-aaaa",
		Channel: callv1.Channel_CHANNEL_CLI, Tool: toolRef(), ArgumentsDigest: digest(arguments),
		SubjectDigest: digest("entry"), Audience: "spiffe://durward.local/executor/local", Epoch: 3,
	}
}

func scope() *Statement {
	s := approve()
	s.Kind, s.Uses = KindScope, 5
	s.Tools = []Tool{*s.Tool}
	s.Pinned = []Pin{{Pointer: "/service_id", Value: json.RawMessage(`"demo-chat"`)}}
	s.SubjectDigests = []string{s.SubjectDigest}
	s.Operation, s.Tool, s.Tier, s.Arguments, s.ArgumentsDigest, s.SubjectDigest = "", nil, "", nil, "", ""
	s.Target, s.Plan, s.AgentReason = "", nil, ""
	return s
}

// plain is a statement of kind dangerous, resume or config, which name no call.
func plain(kind Kind) *Statement {
	s := approve()
	s.Kind, s.Operation, s.Tool, s.Tier, s.Arguments, s.ArgumentsDigest = kind, "", nil, "", nil, ""
	s.Target, s.SubjectDigest, s.Plan, s.AgentReason, s.Uses = "", "", nil, "", 0
	switch kind {
	case KindDangerous:
		s.Version, s.Uses = VersionConfirmed, 200
	case KindConfirm:
		s.Version, s.Confirms = VersionConfirmed, canonical.FormatDigest(digest("first"))
	case KindConfig:
		s.Change = &Change{
			File: "policy/allow.cedar", After: canonical.FormatDigest(digest("after")), Lines: []string{"+permit (principal, action, resource);"},
		}
	case KindPrune:
		s.Prune = &Prune{
			Size: 4000, Before: FormatTime(now.AddDate(0, 0, -90)), Kinds: map[string]uint64{"KIND_READ": 1500, "KIND_INTENT": 20}, Held: 3,
			Oldest: FormatTime(now.AddDate(-1, 0, 0)), Newest: FormatTime(now.AddDate(0, 0, -91)),
		}
	case KindHold:
		s.Hold = &Hold{IDs: []string{"r-1", "ffeeddccbbaa99887766554433221100"}, Since: FormatTime(now.AddDate(0, 0, -2)), Until: FormatTime(now), Reason: "case 7"}
	case KindRelease:
		s.Releases = canonical.FormatDigest(digest("hold"))
	}
	switch kind {
	case KindResume, KindConfig, KindPrune, KindHold, KindRelease:
		s.Principal, s.Session, s.Channel = "", "", ""
		s.ExpiresAt = FormatTime(now.Add(5 * time.Minute))
	}
	return s
}

// historical is dangerous mode as one signature let it happen.
func historical() *Statement {
	s := plain(KindDangerous)
	s.Version, s.Uses = Version, 0
	return s
}

// anySubject is a scope for switches to one mode, by whatever plan.
func anySubject() *Statement {
	s := scope()
	s.SubjectDigests, s.AnySubject = nil, true
	s.Pinned, s.Free = []Pin{{Pointer: "/mode_id", Value: json.RawMessage(`"chat"`)}}, []string{"/plan_digest"}
	return s
}

// kinds is one statement of each kind.
func kinds() map[string]*Statement {
	return map[string]*Statement{
		"approve": approve(), "scope": scope(), "scope-any": anySubject(),
		"dangerous": plain(KindDangerous), "resume": plain(KindResume), "config": plain(KindConfig),
		"confirm": plain(KindConfirm), "dangerous-1": historical(),
		"prune": plain(KindPrune), "hold": plain(KindHold), "release": plain(KindRelease),
	}
}

func TestGoldenVector(t *testing.T) {
	for name, s := range kinds() {
		h, err := Sign(s, signer(t, 1))
		must(t, err)
		for suffix, got := range map[string][]byte{".json": h.Statement, ".json.sig": h.Signature} {
			file := "testdata/" + name + suffix
			if *update {
				must(t, os.WriteFile(file, got, 0o644))
				continue
			}
			want, err := testdata.ReadFile(file)
			must(t, err)
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-golden +got):\n%s", file, diff)
			}
		}
		back, err := Parse(h.Statement)
		must(t, err)
		if diff := cmp.Diff(s, back); diff != "" {
			t.Errorf("%s after a round trip (-want +got):\n%s", name, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	good, err := approve().Marshal()
	must(t, err)
	edit := func(old, new string) string {
		if !strings.Contains(string(good), old) {
			t.Fatalf("the sample holds no %q", old)
		}
		return strings.Replace(string(good), old, new, 1)
	}
	for name, raw := range map[string]string{
		"empty":                     "",
		"another object":            `{}`,
		"unknown field":             edit(`{"agent_reason"`, `{"a_new_field":1,"agent_reason"`),
		"case variant":              edit(`"kind"`, `"Kind"`),
		"null":                      edit(`"target":"service demo-chat"`, `"target":null`),
		"space":                     edit(`,"kind"`, `, "kind"`),
		"unknown version":           edit(`"version":1`, `"version":2`),
		"unknown kind":              edit(`"kind":"approve"`, `"kind":"approve-all"`),
		"arguments without digest":  edit(`demo-chat"},"arguments_digest"`, `demo-embed"},"arguments_digest"`),
		"fraction of a second":      edit(`"issued_at":"2026-11-21T12:00:00Z"`, `"issued_at":"2026-11-21T12:00:00.5Z"`),
		"local time":                edit(`"issued_at":"2026-11-21T12:00:00Z"`, `"issued_at":"2026-11-21T13:00:00+01:00"`),
		"stands too long":           edit(`"expires_at":"2026-11-21T12:30:00Z"`, `"expires_at":"2026-11-22T12:30:00Z"`),
		"begins before it was made": edit(`"not_before":"2026-11-21T12:00:00Z"`, `"not_before":"2026-11-21T11:00:00Z"`),
		"two uses":                  edit(`"uses":1`, `"uses":2`),
		"no uses":                   edit(`,"uses":1`, ``),
		"epoch 0":                   edit(`"epoch":3`, `"epoch":0`),
		"short tool digest":         edit(`"definition_digest":"sha256:`, `"definition_digest":"sha256:00`),
		"approval with scope":       edit(`"tool":`, `"free":["/x"],"tool":`),
	} {
		if _, err := Parse([]byte(raw)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: Parse = %v, want ErrMalformed", name, err)
		}
	}
	for name, spoil := range map[string]func(*Statement){
		"another type":              func(s *Statement) { s.Type = "durward.other" },
		"a short id":                func(s *Statement) { s.ID = s.ID[1:] },
		"an epoch beyond the last":  func(s *Statement) { s.Epoch = 1 << 53 },
		"no time at all":            func(s *Statement) { s.ExpiresAt = s.NotBefore },
		"a tool without a name":     func(s *Statement) { s.Tool.Name = "" },
		"a tool of no source":       func(s *Statement) { s.Tool.Source = "" },
		"scope of half a tool":      func(s *Statement) { *s = *scope(); s.Tools[0].DefinitionDigest = "" },
		"a pointer without a slash": func(s *Statement) { *s = *scope(); s.Free = []string{"wait"} },
		"config of a long name": func(s *Statement) {
			*s = *plain(KindConfig)
			s.Change.File = strings.Repeat("f", 257)
		},
		"prune, newest before oldest": func(s *Statement) { *s = *plain(KindPrune); s.Prune.Oldest = FormatTime(now.AddDate(0, 0, -90)) },
		"prune of endless logs":       func(s *Statement) { *s = *plain(KindPrune); s.Prune.Size = 1 << 53 },
		"prune that holds too much":   func(s *Statement) { *s = *plain(KindPrune); s.Prune.Held = s.Prune.Size + 1 },
		"prune of no kind":            func(s *Statement) { *s = *plain(KindPrune); s.Prune.Kinds[""] = 1 },
		"hold with a long reason": func(s *Statement) {
			*s = *plain(KindHold)
			s.Hold.Reason = strings.Repeat("r", maxHeldReason+1)
		},
		"hold of a long id": func(s *Statement) {
			*s = *plain(KindHold)
			s.Hold.IDs = []string{strings.Repeat("i", maxHeldID+1)}
		},
		"hold of too many": func(s *Statement) {
			*s = *plain(KindHold)
			for i := range MaxHeldIDs {
				s.Hold.IDs = append(s.Hold.IDs, fmt.Sprint(i))
			}
		},
		"command of somebody else":  func(s *Statement) { s.Kind, s.Principal = KindCommand, "operator:eve" },
		"dangerous with a tool":     func(s *Statement) { s.Kind = KindDangerous },
		"resume with a session":     func(s *Statement) { s.Kind = KindResume },
		"scope with one call":       func(s *Statement) { s.Kind = KindScope },
		"a plan that is free":       func(s *Statement) { *s = *scope(); s.Free = []string{"/plan_digest"} },
		"deep pointer":              func(s *Statement) { *s = *scope(); s.Free = []string{"/a/b"} },
		"pointer twice":             func(s *Statement) { *s = *scope(); s.Free = []string{"/service_id"} },
		"scope of 1001 uses":        func(s *Statement) { *s = *scope(); s.Uses = 1001 },
		"scope of nine hours":       func(s *Statement) { *s = *scope(); s.ExpiresAt = FormatTime(now.Add(9 * time.Hour)) },
		"pinned value not JSON":     func(s *Statement) { *s = *scope(); s.Pinned[0].Value = json.RawMessage(`demo`) },
		"arguments that are a list": func(s *Statement) { s.Arguments = json.RawMessage(`[]`) },
		"scope without a subject":   func(s *Statement) { *s = *scope(); s.SubjectDigests = nil },
		"scope of any and of some":  func(s *Statement) { *s = *scope(); s.AnySubject = true },
		"approval of any subject":   func(s *Statement) { s.AnySubject = true },
		"dangerous over messaging":  func(s *Statement) { *s = *plain(KindDangerous); s.Channel = "messaging" },
		"dangerous without uses":    func(s *Statement) { *s = *plain(KindDangerous); s.Uses = 0 },
		"dangerous of 1001 uses":    func(s *Statement) { *s = *plain(KindDangerous); s.Uses = 1001 },
		"dangerous, old, with uses": func(s *Statement) { *s = *plain(KindDangerous); s.Version = Version },
		"dangerous that confirms":   func(s *Statement) { *s = *plain(KindDangerous); s.Confirms = plain(KindConfirm).Confirms },
		"confirmation of nothing":   func(s *Statement) { *s = *plain(KindConfirm); s.Confirms = "" },
		"confirmation of no digest": func(s *Statement) { *s = *plain(KindConfirm); s.Confirms = "first" },
		"confirmation with uses":    func(s *Statement) { *s = *plain(KindConfirm); s.Uses = 1 },
		"old confirmation":          func(s *Statement) { *s = *plain(KindConfirm); s.Version = Version },
		"scope of version 2":        func(s *Statement) { *s = *scope(); s.Version = VersionConfirmed },
		"dangerous with a scope":    func(s *Statement) { *s = *plain(KindDangerous); s.AnySubject = true },
		"dangerous with a change":   func(s *Statement) { *s = *plain(KindDangerous); s.Change = plain(KindConfig).Change },
		"dangerous for nobody":      func(s *Statement) { *s = *plain(KindDangerous); s.Session = "" },
		"dangerous for nine hours":  func(s *Statement) { *s = *plain(KindDangerous); s.ExpiresAt = FormatTime(now.Add(9 * time.Hour)) },
		"config without a change":   func(s *Statement) { *s = *plain(KindConfig); s.Change = nil },
		"config of a session":       func(s *Statement) { *s = *plain(KindConfig); s.Session = "s-aaaa" },
		"config of no file":         func(s *Statement) { *s = *plain(KindConfig); s.Change.File = "" },
		"config without its lines":  func(s *Statement) { *s = *plain(KindConfig); s.Change.Lines = nil },
		"config that changes nothing": func(s *Statement) {
			*s = *plain(KindConfig)
			s.Change.Before = s.Change.After
		},
		"config with half a digest": func(s *Statement) { *s = *plain(KindConfig); s.Change.Before = "sha256:00" },
		"config for an hour":        func(s *Statement) { *s = *plain(KindConfig); s.ExpiresAt = FormatTime(now.Add(time.Hour)) },
		"a command of another":      func(s *Statement) { command(s, "eve") },
		"arguments, no object": func(s *Statement) {
			s.Arguments = []byte(`["demo-chat"]`)
			s.ArgumentsDigest = canonical.DigestText(s.Arguments)
		},
		"prune of a session":       func(s *Statement) { *s = *plain(KindPrune); s.Session = "s-aaaa" },
		"prune of nothing":         func(s *Statement) { *s = *plain(KindPrune); s.Prune = nil },
		"prune of a call":          func(s *Statement) { s.Prune = plain(KindPrune).Prune },
		"prune without counts":     func(s *Statement) { *s = *plain(KindPrune); s.Prune.Kinds = nil },
		"prune of more than all":   func(s *Statement) { *s = *plain(KindPrune); s.Prune.Kinds["KIND_READ"] = 4000 },
		"prune of none of a kind":  func(s *Statement) { *s = *plain(KindPrune); s.Prune.Kinds["KIND_READ"] = 0 },
		"prune of no tree":         func(s *Statement) { *s = *plain(KindPrune); s.Prune.Size = 0 },
		"prune of what is to come": func(s *Statement) { *s = *plain(KindPrune); s.Prune.Before = FormatTime(now.Add(time.Second)) },
		"prune without a time":     func(s *Statement) { *s = *plain(KindPrune); s.Prune.Before = "" },
		"prune of younger ones":    func(s *Statement) { *s = *plain(KindPrune); s.Prune.Newest = FormatTime(now) },
		"prune without its oldest": func(s *Statement) { *s = *plain(KindPrune); s.Prune.Oldest = "" },
		"prune that stands a day":  func(s *Statement) { *s = *plain(KindPrune); s.ExpiresAt = FormatTime(now.Add(24 * time.Hour)) },
		"hold of nothing":          func(s *Statement) { *s = *plain(KindHold); s.Hold.IDs, s.Hold.Since, s.Hold.Until = nil, "", "" },
		"hold without a reason":    func(s *Statement) { *s = *plain(KindHold); s.Hold.Reason = "" },
		"hold with half a time":    func(s *Statement) { *s = *plain(KindHold); s.Hold.Until = "" },
		"hold of no time":          func(s *Statement) { *s = *plain(KindHold); s.Hold.Since = s.Hold.Until },
		"hold of an id twice":      func(s *Statement) { *s = *plain(KindHold); s.Hold.IDs = []string{"a", "a"} },
		"hold of an empty id":      func(s *Statement) { *s = *plain(KindHold); s.Hold.IDs = []string{""} },
		"hold with a pruning":      func(s *Statement) { *s = *plain(KindHold); s.Prune = plain(KindPrune).Prune },
		"release of no digest":     func(s *Statement) { *s = *plain(KindRelease); s.Releases = "hold" },
		"release of nothing":       func(s *Statement) { *s = *plain(KindRelease); s.Releases = "" },
		"resume with a change":     func(s *Statement) { *s = *plain(KindResume); s.Change = plain(KindConfig).Change },
	} {
		s := approve()
		spoil(s)
		if _, err := s.Marshal(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: Marshal = %v, want ErrMalformed", name, err)
		}
	}
}

// TestEveryKindSaysItsFieldsAlone: a statement without one of its kind's fields, and one with a field of another kind beside them, is
// malformed, whichever field it is.
func TestEveryKindSaysItsFieldsAlone(t *testing.T) {
	may := map[Kind][]string{KindScope: {"Pinned", "Free"}}
	may[KindApprove] = []string{"Target", "Plan", "AgentReason"}
	may[KindCommand] = may[KindApprove]
	all := kinds()
	all["command"] = approve()
	command(all["command"], "ada")
	for name, good := range all {
		must(t, good.check())
		for i := range reflect.TypeFor[Statement]().NumField() {
			s, field := *good, reflect.TypeFor[Statement]().Field(i)
			value, what := reflect.ValueOf(&s).Elem().Field(i), "without"
			if slices.Contains(may[s.Kind], field.Name) {
				continue
			}
			switch {
			case !value.IsZero():
				value.SetZero()
			case value.Kind() == reflect.Pointer:
				value.Set(reflect.New(field.Type.Elem()))
			case value.Kind() == reflect.Slice:
				value.Set(reflect.MakeSlice(field.Type, 1, 1))
			case value.Kind() == reflect.String:
				value.SetString("x")
			case value.Kind() == reflect.Bool:
				value.SetBool(true)
			default:
				value.SetInt(1)
			}
			if !value.IsZero() {
				what = "with"
			}
			if err := s.check(); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s %s %s: %v", name, what, field.Name, err)
			}
		}
	}
}

// command makes a statement that operator's command.
func command(s *Statement, operator string) {
	s.Kind, s.Principal, s.ExpiresAt = KindCommand, CommandPrincipal(operator), FormatTime(now.Add(time.Minute))
}

func TestWhatIsWrongWithAStatementIsSaid(t *testing.T) {
	s := approve()
	s.Kind = "approve-all"
	if _, err := s.Marshal(); err == nil || !strings.Contains(err.Error(), "kind is unknown") {
		t.Errorf("an unknown kind: %v", err)
	}
	command(s, s.Operator)
	ids, span := plain(KindHold), plain(KindHold)
	ids.Hold.Since, ids.Hold.Until, span.Hold.IDs = "", "", nil
	for what, s := range map[string]*Statement{"an operator's own command": s, "a hold of ids": ids, "a hold of a time": span} {
		if _, err := s.Marshal(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestVerifyRefuses(t *testing.T) {
	ada, eve := signer(t, 1), signer(t, 2)
	line := trust.FormatSigner("ada", ada.PublicKey(), Namespace)
	allowed := operators(t, line)
	good, err := Sign(approve(), ada)
	must(t, err)
	if _, err := Verify(good, allowed, now); err != nil {
		t.Fatalf("a good statement: %v", err)
	}
	forged, _ := Sign(approve(), eve)
	altered := proto.CloneOf(good)
	altered.Statement = bytes.Replace(altered.Statement, []byte("demo-chat"), []byte("demo-evil"), 1)
	otherNamespace, err := sshsig.Sign(bytes.NewReader(good.Statement), ada, sshsig.HashSHA512, "file")
	must(t, err)
	otherHash, err := sshsig.Sign(bytes.NewReader(good.Statement), ada, sshsig.HashSHA256, Namespace)
	must(t, err)
	for name, tc := range map[string]struct {
		h       *callv1.HumanStatement
		allowed *trust.AllowedSigners
		at      time.Time
		want    error
	}{
		"unknown signer":      {forged, allowed, now, trust.ErrUnknownSigner},
		"no operators":        {good, operators(t), now, trust.ErrUnknownSigner},
		"altered":             {altered, allowed, now, ErrSignature},
		"wrong namespace":     {&callv1.HumanStatement{Statement: good.Statement, Signature: sshsig.Armor(otherNamespace)}, allowed, now, ErrSignature},
		"wrong hash":          {&callv1.HumanStatement{Statement: good.Statement, Signature: sshsig.Armor(otherHash)}, allowed, now, ErrSignature},
		"no signature":        {&callv1.HumanStatement{Statement: good.Statement}, allowed, now, ErrSignature},
		"nothing":             {nil, allowed, now, ErrSignature},
		"key of another line": {good, operators(t, trust.FormatSigner("eve", ada.PublicKey(), Namespace)), now, ErrOperator},
		"key for other use":   {good, operators(t, trust.FormatSigner("ada", ada.PublicKey(), "file")), now, trust.ErrUnknownSigner},
		"key retired":         {good, operators(t, strings.Replace(line, " namespaces", ` valid-before="20261101Z",namespaces`, 1)), now, trust.ErrUnknownSigner},
		"too early":           {good, allowed, now.Add(-Skew - time.Second), ErrTime},
		"too late":            {good, allowed, now.Add(30*time.Minute + Skew), ErrTime},
	} {
		if _, err := Verify(tc.h, tc.allowed, tc.at); !errors.Is(err, tc.want) {
			t.Errorf("%s: Verify = %v, want %v", name, err, tc.want)
		}
	}
	for _, at := range []time.Time{now.Add(-Skew), now.Add(30*time.Minute + Skew - time.Second)} {
		if _, err := Verify(good, allowed, at); err != nil {
			t.Errorf("at %v: %v", at, err)
		}
	}
}

// TestStands: a statement that was verified stands no more when its key is no operator's, or another's, or its time is over.
func TestStands(t *testing.T) {
	v, key := verified(t, approve()), signer(t, 1).PublicKey()
	for name, c := range map[string]struct {
		allowed *trust.AllowedSigners
		at      time.Time
		want    error
	}{
		"as it was":             {operators(t, trust.FormatSigner("ada", key, Namespace)), now, nil},
		"no operator's key":     {operators(t), now, trust.ErrUnknownSigner},
		"another operator's":    {operators(t, trust.FormatSigner("eve", key, Namespace)), now, ErrOperator},
		"when its time is over": {operators(t, trust.FormatSigner("ada", key, Namespace)), now.Add(30*time.Minute + Skew), ErrTime},
	} {
		if err := v.Stands(c.allowed, c.at); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func verified(t *testing.T, s *Statement) *Verified {
	t.Helper()
	ada := signer(t, 1)
	h, err := Sign(s, ada)
	must(t, err)
	v, err := Verify(h, operators(t, trust.FormatSigner("ada", ada.PublicKey(), Namespace)), now)
	must(t, err)
	return v
}

func TestCoversExactlyWhatWasShown(t *testing.T) {
	tier := optionsv1.Tier_TIER_WRITE
	for name, s := range map[string]*Statement{"approve": approve(), "scope": scope()} {
		if err := verified(t, s).Covers(grantOf(), toolRef(), tier, []byte(arguments), nil); err != nil {
			t.Fatalf("%s: its own call: %v", name, err)
		}
		for field, spoil := range map[string]func(*callv1.Grant){
			"audience":         func(g *callv1.Grant) { g.Audience = "spiffe://durward.local/executor/other" },
			"epoch":            func(g *callv1.Grant) { g.Epoch++ },
			"principal":        func(g *callv1.Grant) { g.Principal = "cursor" },
			"session":          func(g *callv1.Grant) { g.Session = "s-bbbb" },
			"channel":          func(g *callv1.Grant) { g.Channel = callv1.Channel_CHANNEL_MESSAGING },
			"arguments digest": func(g *callv1.Grant) { g.ArgumentsDigest = digest("other") },
			"tool name":        func(g *callv1.Grant) { g.Tool.Name = "stop_service" },
			"tool definition":  func(g *callv1.Grant) { g.Tool.DefinitionDigest = digest("other") },
			"subject":          func(g *callv1.Grant) { g.SubjectDigest = digest("other") },
			"no subject":       func(g *callv1.Grant) { g.SubjectDigest = nil },
		} {
			g := grantOf()
			spoil(g)
			// A standing statement's grant names no subject, so the sink brings its own.
			own := g.GetSubjectDigest()
			if own == nil {
				own = digest("what the sink would act on")
			}
			if err := verified(t, s).Covers(g, toolRef(), tier, []byte(arguments), own); !errors.Is(err, ErrCover) {
				t.Errorf("%s, other %s: %v, want ErrCover", name, field, err)
			}
		}
		other := grantOf()
		other.ArgumentsDigest = digest(`{"service_id":"demo-embed"}`)
		if err := verified(t, s).Covers(other, toolRef(), tier, []byte(`{"service_id":"demo-embed"}`), nil); !errors.Is(err, ErrCover) {
			t.Errorf("%s, other arguments: %v, want ErrCover", name, err)
		}
		changed := toolRef()
		changed.DefinitionDigest = digest("changed since")
		if err := verified(t, s).Covers(grantOf(), changed, tier, []byte(arguments), nil); !errors.Is(err, ErrCover) {
			t.Errorf("%s, tool changed since: %v, want ErrCover", name, err)
		}
		both := grantOf()
		both.Tool = changed
		if err := verified(t, s).Covers(both, changed, tier, []byte(arguments), nil); !errors.Is(err, ErrCover) {
			t.Errorf("%s, another tool, which the grant names too: %v, want ErrCover", name, err)
		}
	}
	// What names no subject leaves it to the sink; what names another is refused without the sink's too, unless any will do.
	for name, c := range map[string]struct {
		s       *Statement
		subject []byte
		want    error
	}{
		"another subject":           {scope(), digest("other"), ErrSubject},
		"no subject":                {scope(), nil, nil},
		"another, where any may be": {anySubject(), digest("other"), nil},
	} {
		c.s.Pinned = scope().Pinned
		g := grantOf()
		g.SubjectDigest = c.subject
		if err := verified(t, c.s).Covers(g, toolRef(), tier, []byte(arguments), nil); !errors.Is(err, c.want) {
			t.Errorf("a scope, %s: %v, want %v", name, err, c.want)
		}
	}
	g := grantOf()
	g.Use = 2
	if err := verified(t, approve()).Covers(g, toolRef(), tier, []byte(arguments), nil); !errors.Is(err, ErrCover) {
		t.Errorf("an approval's second use: %v", err)
	}
	g = grantOf()
	g.OperationId = "00000000000000000000000000000000"
	if err := verified(t, approve()).Covers(g, toolRef(), tier, []byte(arguments), nil); !errors.Is(err, ErrCover) {
		t.Errorf("an approval for another operation: %v", err)
	}
	if err := verified(t, approve()).Covers(grantOf(), toolRef(), optionsv1.Tier_TIER_DESTRUCTIVE, []byte(arguments), nil); !errors.Is(err, ErrCover) {
		t.Errorf("an approval that was shown another tier: %v", err)
	}
}

func TestScopeLeavesNothingOpen(t *testing.T) {
	free := scope()
	free.Free = []string{"/wait"}
	extra := `{"service_id":"demo-chat","wait":true}`
	missing := `{"wait":true}`
	stray := `{"force":true,"service_id":"demo-chat"}`
	for args, want := range map[string]error{extra: nil, missing: ErrCover, stray: ErrCover} {
		g := grantOf()
		g.ArgumentsDigest = digest(args)
		if err := verified(t, free).Covers(g, toolRef(), optionsv1.Tier_TIER_WRITE, []byte(args), nil); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", args, err, want)
		}
	}
}

// What one signature let happen stays evidence, and lets nothing happen any more.
func TestOldDangerousModeIsHistory(t *testing.T) {
	ada := signer(t, 1)
	h, err := Sign(historical(), ada)
	must(t, err)
	keys := operators(t, trust.FormatSigner("ada", ada.PublicKey(), Namespace))
	if _, err := VerifySignature(h, keys, now); err != nil {
		t.Errorf("as history: %v", err)
	}
	if _, err := Verify(h, keys, now); !errors.Is(err, ErrHistorical) {
		t.Errorf("as authority: %v", err)
	}
}

// A confirmation names its statement by digest, and differs from it in nothing but that, its id and its time.
func TestConfirmedBy(t *testing.T) {
	first := verified(t, plain(KindDangerous))
	raw, err := first.Marshal()
	must(t, err)
	second := Confirmation(first.Statement, raw, strings.Repeat("c", 32), now.Add(ConfirmAfter))
	if err := first.ConfirmedBy(verified(t, second)); err != nil {
		t.Errorf("its confirmation: %v", err)
	}
	for name, spoil := range map[string]func(v *Verified){
		"another statement": func(v *Verified) { v.Confirms = plain(KindConfirm).Confirms },
		"another operator":  func(v *Verified) { v.Operator = "eve" },
		"another key":       func(v *Verified) { v.Key = signer(t, 2).PublicKey() },
		"another epoch":     func(v *Verified) { v.Epoch++ },
		"another audience":  func(v *Verified) { v.Audience += "2" },
		"another end":       func(v *Verified) { v.ExpiresAt = FormatTime(now.Add(time.Minute)) },
		"another principal": func(v *Verified) { v.Principal += "2" },
		"another session":   func(v *Verified) { v.Session += "2" },
		"another channel":   func(v *Verified) { v.Channel = "api" },
		"a second too soon": func(v *Verified) { v.IssuedAt = FormatTime(now.Add(ConfirmAfter - time.Second)) },
		"another kind":      func(v *Verified) { v.Kind = KindDangerous },
	} {
		v := verified(t, second)
		spoil(v)
		if err := first.ConfirmedBy(v); !errors.Is(err, ErrUnconfirmed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := *first
	other.Kind = KindScope
	if err := other.ConfirmedBy(verified(t, second)); !errors.Is(err, ErrUnconfirmed) {
		t.Errorf("a scope is confirmed: %v", err)
	}
	if err := verified(t, second).ConfirmedBy(verified(t, second)); !errors.Is(err, ErrUnconfirmed) {
		t.Errorf("a confirmation is confirmed: %v", err)
	}
}

func TestDangerousAndResume(t *testing.T) {
	d := plain(KindDangerous)
	g := grantOf()
	if err := verified(t, d).Covers(g, toolRef(), optionsv1.Tier_TIER_WRITE, []byte(arguments), nil); !errors.Is(err, ErrCover) {
		t.Errorf("dangerous mode covers a grant that does not say so: %v", err)
	}
	g.Dangerous = true
	if err := verified(t, d).Covers(g, toolRef(), optionsv1.Tier_TIER_WRITE, []byte(arguments), nil); err != nil {
		t.Errorf("dangerous mode: %v", err)
	}
	for _, kind := range []Kind{KindResume, KindConfig, KindConfirm} {
		r := plain(kind)
		call := &callv1.Grant{Audience: r.Audience, Epoch: r.Epoch, ArgumentsDigest: digest(arguments), Tool: toolRef(), Dangerous: true}
		if err := verified(t, r).Covers(call, toolRef(), optionsv1.Tier_TIER_WRITE, []byte(arguments), nil); !errors.Is(err, ErrCover) {
			t.Errorf("%s covers a call: %v", kind, err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	ada := signer(b, 1)
	allowed := operators(b, trust.FormatSigner("ada", ada.PublicKey(), Namespace))
	h, err := Sign(approve(), ada)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Verify(h, allowed, now); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range kinds() {
		raw, err := s.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := Parse(raw)
		if err != nil {
			return
		}
		again, err := s.Marshal()
		if err != nil || !bytes.Equal(again, raw) {
			t.Fatalf("Marshal(Parse(x)) = %q, %v, x = %q", again, err, raw)
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
