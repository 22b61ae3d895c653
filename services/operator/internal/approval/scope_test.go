package approval

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/statement"
)

func keyBound(t *testing.T) *vaultv1.Operation {
	t.Helper()
	op := operation(t)
	op.KeyBound = true
	return op
}

func TestScopeRejects(t *testing.T) {
	good := Within{For: time.Hour, Uses: 10}
	for _, c := range []struct {
		name   string
		change func(*vaultv1.Operation, *Within)
		want   error
	}{
		{"a bearer client", func(o *vaultv1.Operation, _ *Within) { o.KeyBound = false }, ErrBearer},
		{"nine hours", func(_ *vaultv1.Operation, w *Within) { w.For = 9 * time.Hour }, ErrWithin},
		{"no time", func(_ *vaultv1.Operation, w *Within) { w.For = 0 }, ErrWithin},
		{"less than none", func(_ *vaultv1.Operation, w *Within) { w.For = -time.Hour }, ErrWithin},
		{"no use", func(_ *vaultv1.Operation, w *Within) { w.Uses = 0 }, ErrWithin},
		{"1001 uses", func(_ *vaultv1.Operation, w *Within) { w.Uses = 1001 }, ErrWithin},
		{"an unknown tool", func(_ *vaultv1.Operation, w *Within) { w.Tools = []string{"format_disk"} }, ErrWithin},
		{"a tool with other arguments", func(_ *vaultv1.Operation, w *Within) { w.Tools = []string{"switch_mode"} }, ErrWithin},
		{"an argument that there is not", func(_ *vaultv1.Operation, w *Within) { w.Free = []string{"force"} }, ErrWithin},
		{"another definition of the tool", func(o *vaultv1.Operation, _ *Within) { o.Tier = optionsv1.Tier_TIER_READ }, ErrTool},
		{"arguments that are not canonical", func(o *vaultv1.Operation, _ *Within) { o.Arguments = []byte(`{ }`) }, ErrArguments},
	} {
		op, w := keyBound(t), good
		c.change(op, &w)
		if _, err := NewScope(op, w); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	scope, err := NewScope(keyBound(t), good)
	must(t, err)
	for name, lie := range map[string]func(*executorv1.PreviewCallResponse){
		"another executor answers": func(p *executorv1.PreviewCallResponse) { p.Audience = "spiffe://durward.local/executor/other" },
		"an entry not canonical":   func(p *executorv1.PreviewCallResponse) { p.Subject.Entry = []byte(`{ }`) },
		"no entry":                 func(p *executorv1.PreviewCallResponse) { p.Subject = nil },
		"a halt in between":        func(p *executorv1.PreviewCallResponse) { p.Epoch = 9 },
	} {
		p := preview()
		lie(p)
		if st, err := signer(t).Scope(scope, []*executorv1.PreviewCallResponse{p}); err == nil {
			t.Errorf("%s: %+v", name, st)
		}
	}
	if _, err := signer(t).Scope(scope, nil); err == nil {
		t.Error("a scope over nothing that was previewed")
	}
}

// covers reports whether a scope lets a call run.
func covers(t *testing.T, st *statement.Statement, tool, arguments string, entry []byte) error {
	t.Helper()
	found, ok := contract.Lookup(tool)
	if !ok {
		t.Fatal(tool)
	}
	digest, subject := canonical.Digest([]byte(arguments)), canonical.Digest(entry)
	return (&statement.Verified{Statement: st}).Covers(&callv1.Grant{
		OperationId: strings.Repeat("b", 32), Use: 1, Principal: "claude-code", Session: "s-abc", Channel: callv1.Channel_CHANNEL_CLI,
		Tool: found.Ref(), ArgumentsDigest: digest[:], Audience: executorID, Epoch: 3,
	}, found.Ref(), found.Tier, []byte(arguments), subject[:])
}

// TestScopeLetsExactlyWhatWasShown: pinned values and definitions, and no others.
func TestScopeLetsExactlyWhatWasShown(t *testing.T) {
	op := keyBound(t)
	scope, err := NewScope(op, Within{For: 2 * time.Hour, Uses: 5, Tools: []string{"stop_service", "start_service"}})
	must(t, err)
	calls, err := scope.Calls([]string{"never", "asked"})
	if err != nil || len(calls) != 2 || calls[0].Tool.Name != "start_service" || calls[1].Tool.Name != "stop_service" {
		t.Fatalf("%d calls, %v", len(calls), err)
	}
	st, err := signer(t).Scope(scope, []*executorv1.PreviewCallResponse{preview(), preview()})
	must(t, err)
	entry := preview().GetSubject().GetEntry()
	for _, tool := range []string{"start_service", "stop_service"} {
		if err := covers(t, st, tool, `{"service_id":"demo-chat"}`, entry); err != nil {
			t.Errorf("%s: %v", tool, err)
		}
		if err := covers(t, st, tool, `{"service_id":"other"}`, entry); err == nil {
			t.Errorf("%s: it lets another service", tool)
		}
		if err := covers(t, st, tool, `{"service_id":"demo-chat"}`, []byte(`{"argv":["/bin/sh"]}`)); err == nil {
			t.Errorf("%s: it lets a changed definition", tool)
		}
	}
	if err := covers(t, st, "sleep_service", `{"service_id":"demo-chat"}`, entry); err == nil {
		t.Error("it lets another tool")
	}
	if st.Uses != 5 || st.ExpiresAt != "2026-01-02T05:04:05Z" || st.AnySubject || len(st.SubjectDigests) != 1 {
		t.Errorf("%+v", st)
	}
	text := strings.Join(Words(st, testNow), "\n")
	for _, want := range []string{"claude-code's session s-abc", "start_service, stop_service", `service_id exactly "demo-chat"`,
		"on nothing but what is defined as the statement's subject_digests say (1 of", "5 times at most", "2:00:00 from now", "durward standing revoke"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

func TestFreedArgumentListsEveryCandidate(t *testing.T) {
	scope, err := NewScope(keyBound(t), Within{For: time.Hour, Uses: 1, Free: []string{"service_id"}})
	must(t, err)
	if scope.Candidates() != "Service" {
		t.Fatalf("candidates %q", scope.Candidates())
	}
	calls, err := scope.Calls([]string{"demo-chat", "embed"})
	if err != nil || len(calls) != 2 || string(calls[1].Arguments) != `{"service_id":"embed"}` {
		t.Fatalf("%v, %v", calls, err)
	}
	other := preview()
	other.Subject = &callv1.Subject{Label: "service embed", Entry: []byte(`{"id":"embed"}`)}
	st, err := signer(t).Scope(scope, []*executorv1.PreviewCallResponse{preview(), other})
	must(t, err)
	if err := covers(t, st, "start_service", `{"service_id":"embed"}`, []byte(`{"id":"embed"}`)); err != nil {
		t.Error(err)
	}
	if err := covers(t, st, "start_service", `{"service_id":"new"}`, []byte(`{"id":"new"}`)); err == nil {
		t.Error("it lets a service that nobody was shown")
	}
	// A hostile catalog's id is no argument.
	if _, err := scope.Calls([]string{"a;rm -rf /"}); err == nil {
		t.Error("a hostile id was taken")
	}
	anything, err := NewScope(keyBound(t), Within{For: time.Hour, Uses: 1, Free: []string{"service_id"}, Any: true})
	if err != nil || anything.Candidates() != "" {
		t.Errorf("--any lists candidates: %v", err)
	}
}

// A plan cannot be pinned for later: the scope says that any will do, in words.
func TestScopeOfASwitch(t *testing.T) {
	op, p := switching(t)
	op.KeyBound = true
	scope, err := NewScope(op, Within{For: time.Hour, Uses: 3})
	must(t, err)
	st, err := signer(t).Scope(scope, []*executorv1.PreviewCallResponse{p})
	must(t, err)
	if !st.AnySubject || len(st.Free) != 1 || st.Free[0] != "/plan_digest" {
		t.Errorf("%+v", st)
	}
	text := strings.Join(Words(st, testNow), "\n")
	if !strings.Contains(text, "switch_mode (DESTRUCTIVE)") {
		t.Errorf("it does not say what it may do:\n%s", text)
	}
	if !strings.Contains(text, "ANY plan_digest") || !strings.Contains(text, "WHATEVER") || !strings.Contains(text, "none can be named beforehand") {
		t.Errorf("it does not say so:\n%s", text)
	}
	plan := strings.Repeat("e", 64)
	if err := covers(t, st, "switch_mode", `{"mode_id":"coding","plan_digest":"`+plan+`"}`, []byte(`{"any":1}`)); err != nil {
		t.Error(err)
	}
	for _, arguments := range []string{`{"mode_id":"chatting","plan_digest":"` + plan + `"}`,
		`{"margin_mib_override":0,"mode_id":"coding","plan_digest":"` + plan + `"}`} {
		if err := covers(t, st, "switch_mode", arguments, []byte(`{}`)); err == nil {
			t.Errorf("it lets %s", arguments)
		}
	}
}

func TestDangerousRejects(t *testing.T) {
	session := func() *vaultv1.OpenSession {
		return &vaultv1.OpenSession{Session: "s-abcdef", Principal: "claude-code", Channel: callv1.Channel_CHANNEL_CLI, KeyBound: true}
	}
	for _, c := range []struct {
		name   string
		change func(*vaultv1.OpenSession)
		life   time.Duration
		sink   uint64
		want   error
	}{
		{"a bearer session", func(s *vaultv1.OpenSession) { s.KeyBound = false }, time.Hour, 3, ErrBearer},
		{"over messaging", func(s *vaultv1.OpenSession) { s.Channel = callv1.Channel_CHANNEL_MESSAGING }, time.Hour, 3, ErrMessaging},
		{"nine hours", func(*vaultv1.OpenSession) {}, 9 * time.Hour, 3, ErrWithin},
		{"no time", func(*vaultv1.OpenSession) {}, 0, 3, ErrWithin},
		{"a halt in between", func(*vaultv1.OpenSession) {}, time.Hour, 4, ErrEpoch},
		{"nobody's", func(s *vaultv1.OpenSession) { s.Principal = "" }, time.Hour, 3, ErrWithin},
	} {
		s := session()
		c.change(s)
		if st, err := signer(t).Dangerous(s, c.life, 200, 3, c.sink); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v; want %v", c.name, st, err, c.want)
		}
	}
	st, err := signer(t).Dangerous(session(), 8*time.Hour, 200, 3, 3)
	must(t, err)
	if text := strings.Join(Words(st, testNow), "\n"); !strings.Contains(text, "DANGEROUS MODE for claude-code's session s-abcdef") || !strings.Contains(text, "200 times at most") {
		t.Error(text)
	}
	for _, uses := range []int{0, 1001} {
		if _, err := signer(t).Dangerous(session(), time.Hour, uses, 3, 3); !errors.Is(err, ErrWithin) {
			t.Errorf("%d uses: %v", uses, err)
		}
	}
	if Phrase(session()) != "dangerous claude-code abcdef" {
		t.Error(Phrase(session()))
	}
}

func TestFindSession(t *testing.T) {
	list := []*vaultv1.OpenSession{
		{Session: "s-aaaabbbb", Principal: "x", OpenedAt: timestamppb.New(testNow.Add(time.Minute))},
		{Session: "s-aaaacccc", Principal: "x", OpenedAt: timestamppb.New(testNow)}, {Session: "s-zzzz", Principal: "y"},
	}
	for _, name := range []string{"", "s-", "s-aaa", "s-bbbb", "aaaabbbbb", "\u202eaaaa"} {
		if _, err := FindSession(name, list); !errors.Is(err, ErrNoSuchSession) {
			t.Errorf("%q: %v", name, err)
		}
	}
	var ambiguous *AmbiguousError
	if _, err := FindSession("s-aaaa", list); !errors.As(err, &ambiguous) {
		t.Errorf("two fit: %v", err)
	}
	if one, err := FindSession("aaaab", list); err != nil || one.GetSession() != "s-aaaabbbb" {
		t.Errorf("%v, %v", one, err)
	}
	if n := SessionNumbers(list); n["s-aaaabbbb"] != 2 || n["s-aaaacccc"] != 1 || n["s-zzzz"] != 1 {
		t.Errorf("%v", n)
	}
}

var escape = regexp.MustCompile(`\\u\{([0-9A-F]+)\}|\\x\{([0-9A-F]{2})\}`)

// unescape turns what an approver sees back into the bytes that it stands for.
func unescape(s string) string {
	return escape.ReplaceAllStringFunc(s, func(e string) string {
		n, err := strconv.ParseUint(e[3:len(e)-1], 16, 32)
		if err != nil {
			return e
		}
		if e[1] == 'x' {
			return string([]byte{byte(n)})
		}
		return string(rune(n))
	})
}

// hostileText is a string that an agent would like an approver to misread.
func hostileText(r *rand.Rand) string {
	parts := []string{"\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\x1b[2K", "\x1b]0;x\x07", "\u009b31m", "\r\n", "\t", "а", "ﬀ", "\U000e0041", `\u{202E}`,
		`\x{1B}`, `"`, `\`, "日本", "e\u0301", "[bold red]", "K7F3  READ", "\u2028", "\x00", "\x7f", "x"}
	var b strings.Builder
	for range r.IntN(40) {
		b.WriteString(parts[r.IntN(len(parts))])
	}
	if r.IntN(50) == 0 {
		b.WriteString(strings.Repeat("A", 10_000))
	}
	return b.String()
}

// TestApproverSeesTheBytes: 1,000 hostile strings, 10 kB and more among them; what is shown, escaped, is byte for byte what the
// sink executes.
func TestApproverSeesTheBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for range 1000 {
		raw, err := canonical.Marshal(map[string]any{hostileText(r): hostileText(r), "list": []string{hostileText(r)}})
		must(t, err)
		lines := Lines(raw)
		for _, line := range lines {
			if strings.ContainsAny(line, "\x1b\r\n\u202e\u200b\u2028") {
				t.Fatalf("a hostile character came through: %q", line)
			}
		}
		var shown bytes.Buffer
		if err := json.Compact(&shown, []byte(unescape(strings.Join(lines, "\n")))); err != nil {
			t.Fatalf("%v in %q", err, lines)
		}
		if !bytes.Equal(shown.Bytes(), raw) {
			t.Fatalf("shown\n%q\nexecuted\n%q", shown.Bytes(), raw)
		}
	}
}

func TestCardOfASwitch(t *testing.T) {
	op, p := switching(t)
	op.KeyBound, op.Rule, op.PolicyTier = true, "tools/switch_mode/tier", optionsv1.Tier_TIER_DESTRUCTIVE
	p.Fit = &executorv1.SimulateModeResponse{Fits: true, Gpus: []*executorv1.GpuForecast{
		{Index: 0, NowMib: 22630, AfterMib: 19866, FreeMib: 4710, TotalMib: 24576, Source: "measured"}}}
	c := Card{Number: "K7F3", Operation: op, Preview: p, SessionNumber: 2, Session: &vaultv1.OpenSession{Agent: "coder"}}
	text := strings.Join(c.Lines(testNow), "\n")
	digest := canonical.Digest(p.GetSubject().GetEntry())
	hex := fmt.Sprintf("%x", digest)
	for _, want := range []string{"K7F3  DESTRUCTIVE  switch_mode", Destructive, "claude-code/coder, session 2, s-abc", "key-bound: one durward mcp",
		"fits now", "GPU 0: 1.9 of 24.0 GiB free now, 4.6 afterwards (measured)", "digest " + hex[:4] + "·" + hex[60:], "because of tools/switch_mode/tier"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	// What fits of another plan says nothing of this one.
	p.Subject.Entry = []byte(`{}`)
	if text := strings.Join(c.Lines(testNow), "\n"); strings.Contains(text, "fits now") || !strings.Contains(text, "NOT THE PLAN") {
		t.Errorf("another plan's numbers are shown:\n%s", text)
	}
	op, p = operation(t), preview()
	op.PolicyTier = optionsv1.Tier_TIER_DESTRUCTIVE
	if got := (Card{Number: "K7F3", Operation: op, Preview: p}).Lines(testNow); !strings.Contains(got[0], "DESTRUCTIVE (by your rules; WRITE by itself)") ||
		strings.TrimSpace(got[1]) != Destructive {
		t.Errorf("%q", got)
	}
}
