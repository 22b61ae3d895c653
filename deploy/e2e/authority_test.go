package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/statement"
)

// bound lets a key-bound client in and connects it through the bridge.
func bound(h *harness.Host, name string, flags ...string) *harness.Client {
	h.AddKeyBound(name, append(slices.Clone(ceiling), flags...)...)
	return h.ConnectStdio(name)
}

// sessionOf is the reference of the one open session of a client.
func sessionOf(t *testing.T, h *harness.Host, client string) string {
	t.Helper()
	var list struct {
		Sessions []struct{ Session, Principal string }
	}
	h.DurwardJSON(&list, "sessions")
	var found []string
	for _, s := range list.Sessions {
		if s.Principal == client {
			found = append(found, s.Session)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s has the sessions %v, want one", client, found)
	}
	return found[0]
}

// switchTo is the call that switches to a mode by the plan of now.
func switchTo(t *testing.T, agent *harness.Client, mode string) harness.Envelope {
	t.Helper()
	var plan struct {
		PlanDigest string `json:"plan_digest"`
	}
	agent.Ask("simulate_mode", map[string]any{"mode_id": mode}).Decode(t, &plan)
	return agent.Ask("switch_mode", map[string]any{"mode_id": mode, "plan_digest": plan.PlanDigest})
}

// isStatus checks an answer's status.
func isStatus(t *testing.T, want string, e harness.Envelope) harness.Envelope {
	t.Helper()
	if e.Status != want {
		t.Fatalf("status %s, want %s: %s", e.Status, want, e.Raw)
	}
	return e
}

// asks checks that a person is asked, and says no, so that the next call asks again.
func asks(t *testing.T, h *harness.Host, e harness.Envelope) {
	t.Helper()
	isStatus(t, "pending_approval", e)
	h.Deny(e.OperationID, "not now")
}

// soon waits until a call has a status: the rules are re-read within a second.
func soon(t *testing.T, want string, call func() harness.Envelope) harness.Envelope {
	t.Helper()
	var e harness.Envelope
	harness.Eventually(t, "the answer is "+want, func() error {
		if e = call(); e.Status != want {
			return fmt.Errorf("it is %s", e.Raw)
		}
		return nil
	})
	return e
}

// readsDangerous reports whether the record of a read says that its session was in dangerous mode (AUD-1).
func readsDangerous(t *testing.T, h *harness.Host, e harness.Envelope) (dangerous bool) {
	t.Helper()
	harness.Eventually(t, "the read is recorded", func() error {
		records := h.Records(&auditv1.SearchRecordsRequest{RequestId: e.RequestID, Kinds: []auditv1.Kind{auditv1.Kind_KIND_READ}})
		if len(records) != 1 {
			return fmt.Errorf("%d records", len(records))
		}
		dangerous = records[0].GetRecord().GetBody().GetDangerous()
		return nil
	})
	return dangerous
}

// told checks the records of a call that nobody was asked about: each stage in its order, the tag of dangerous mode, the source
// that names a rule, and the human's statement that stands behind it ("" for none).
func told(t *testing.T, h *harness.Host, e harness.Envelope, rule string, dangerous bool, kind string) {
	t.Helper()
	var kinds []auditv1.Kind
	id := ""
	for _, entry := range h.Records(&auditv1.SearchRecordsRequest{OperationId: e.OperationID}) {
		record := entry.GetRecord()
		body := record.GetBody()
		kinds = append(kinds, record.GetKind())
		switch record.GetKind() {
		case auditv1.Kind_KIND_APPROVED:
			if rule != "" && !strings.Contains(body.GetDecisionSource()+" "+body.GetDetails()["rule"], rule) {
				t.Errorf("APPROVED names %q and rule %q, want %s", body.GetDecisionSource(), body.GetDetails()["rule"], rule)
			}
			if (kind != "") != (body.GetStatement() != nil) {
				t.Errorf("APPROVED has the statement %v", body.GetStatement())
			}
			if kind != "" {
				st, err := statement.Parse(body.GetStatement().GetStatement())
				if err != nil || string(st.Kind) != kind {
					t.Errorf("APPROVED by %v, %v, want a statement of kind %s", st, err, kind)
				} else {
					id = st.ID
				}
			}
		case auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME:
			if got := body.GetDetails(); got["statement_kind"] != kind || got["statement_id"] != id || kind == "" && got["unattended"] != "yes" {
				t.Errorf("%s: details %v, want a statement %q of kind %q", record.GetKind(), got, id, kind)
			}
		case auditv1.Kind_KIND_ASKED:
			t.Errorf("somebody was asked")
		}
		if record.GetKind() != auditv1.Kind_KIND_NOTE && body.GetDangerous() != dangerous {
			t.Errorf("%s: dangerous is %t", record.GetKind(), body.GetDangerous())
		}
	}
	inOrder(t, kinds, auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_REDEEMED, auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME)
	if e.Meta["durward/receipt"] == nil {
		t.Errorf("the answer carries no receipt: %v", e.Meta)
	}
}

// inOrder checks that the log holds kinds, one behind the other.
func inOrder(t *testing.T, kinds []auditv1.Kind, want ...auditv1.Kind) {
	t.Helper()
	at := 0
	for _, kind := range want {
		found := slices.Index(kinds[at:], kind)
		if found < 0 {
			t.Errorf("no %s after the stages before it: the log holds %v", kind, kinds)
			return
		}
		at += found + 1
	}
}

// TestPolicyAllow: a rule that a person signed lets one client switch to one mode without asking: not to another, not another
// client; and it is over as soon as it is removed.
func TestPolicyAllow(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{Catalog: harness.ModesCatalog})
	cursor, other := bound(h, "cursor"), bound(h, "other")
	asks(t, h, switchTo(t, cursor, harness.NightMode))

	// Without a person nothing changes, and the lines to edit are named.
	before := h.Digest("config")
	out := h.Run("", "policy", "allow", "--client", "cursor", "--tool", "switch_mode", "--mode", harness.NightMode)
	if out.Code != 4 || !strings.Contains(out.Stderr, "Edit by hand") || !strings.Contains(out.Stderr, "allow.cedar") {
		t.Errorf("without a terminal: exit code %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	if after := h.Digest("config"); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Error("a refused change left something behind")
	}

	x := h.AtTerminal(t, 120, "policy", "allow", "--client", "cursor", "--tool", "switch_mode", "--mode", harness.NightMode)
	defer x.Close()
	for _, text := range []string{"policy/allow.cedar", "executor.yaml", "The statement that you sign, whole", "Sign and change it?"} {
		x.Waits(text)
	}
	x.Types("y\n")
	x.Waits("it is in force")
	x.Ends(0)
	// The executor reads its own list again within a second; a call that comes before that is refused there.
	harness.Eventually(t, "the executor has read its list", func() error {
		if !strings.Contains(h.ReadFile("logs/executor.log"), "1 call may run without a human's statement") {
			return errors.New("it has not said so")
		}
		return nil
	})

	done := soon(t, "ok", func() harness.Envelope {
		e := switchTo(t, cursor, harness.NightMode)
		if e.Status == "pending_approval" {
			h.Deny(e.OperationID, "the rule is not in force yet")
		}
		return e
	})
	var rules struct {
		Rules []struct{ Rule, File string }
	}
	h.DurwardJSON(&rules, "policy", "list")
	at := slices.IndexFunc(rules.Rules, func(r struct{ Rule, File string }) bool { return strings.HasSuffix(r.File, "allow.cedar") })
	if at < 0 {
		t.Fatalf("policy list does not have the rule: %+v", rules)
	}
	rule := rules.Rules[at].Rule
	told(t, h, done, rule+" (", false, "")
	asks(t, h, switchTo(t, cursor, harness.DayMode))
	asks(t, h, cursor.Ask("stop_service", map[string]any{"service_id": harness.SleepyService}))
	asks(t, h, switchTo(t, other, harness.NightMode))

	for line, want := range map[string]string{
		"cursor switch_mode mode_id=" + harness.NightMode: rule,
		"cursor switch_mode mode_id=" + harness.DayMode:   "asks",
	} {
		if out := h.Durward(append([]string{"policy", "explain", "--as"}, strings.Fields(line)...)...); !strings.Contains(strings.ToLower(out), want) {
			t.Errorf("policy explain --as %s does not say %q:\n%s", line, want, out)
		}
	}

	h.Durward("policy", "remove", rule, "--yes")
	harness.Eventually(t, "the removed rule counts no more", func() error {
		e := switchTo(t, cursor, harness.NightMode)
		if e.Status != "pending_approval" {
			return fmt.Errorf("%s", e.Raw)
		}
		h.Deny(e.OperationID, "not now")
		return nil
	})
	if strings.Contains(h.ReadFile("config/executor.yaml"), rule) {
		t.Error("the executor's list still has the entry")
	}
	h.Durward("audit", "verify", "--complete")
}

// TestSettingsReachAgents: what a person sets is what security_config tells, with the layer that it comes from; what an agent
// overrides ends with its session.
func TestSettingsReachAgents(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	agent := bound(h, "cursor")
	tells := func(agent *harness.Client, want ...string) error {
		e := agent.Ask("security_config", map[string]any{})
		if e.Status != "ok" {
			return fmt.Errorf("%s", e.Raw)
		}
		for _, text := range want {
			if !strings.Contains(string(e.Result), text) {
				return fmt.Errorf("no %s in %s", text, e.Result)
			}
		}
		return nil
	}
	h.Durward("config", "set", "approvals.wait_s", "300", "--yes")
	harness.Eventually(t, "security_config tells the new value", func() error { return tells(agent, "approvals.wait_s", "300", "system") })
	asked := isStatus(t, "pending_approval", agent.Ask("start_service", demo))
	expires, err := time.Parse(time.RFC3339, asked.ExpiresAt)
	if wait := time.Until(expires); err != nil || wait > 5*time.Minute || wait < 4*time.Minute {
		t.Errorf("it waits until %s, %v", asked.ExpiresAt, err)
	}
	h.Deny(asked.OperationID, "not now")

	// An agent lowers its own ceiling for its session: said in the answer, and gone in the next session.
	before := h.Digest("config")
	lowered := isStatus(t, "ok", agent.Ask("security_config", map[string]any{"tier_ceiling_override": "READ"}))
	if !strings.Contains(string(lowered.Audit), `"persistent":false`) || len(lowered.Warnings) == 0 {
		t.Errorf("the override is not told: %s", lowered.Raw)
	}
	isStatus(t, "denied", agent.Ask("start_service", demo))
	asks(t, h, h.ConnectStdio("cursor").Ask("start_service", demo))
	if after := h.Digest("config"); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Error("an override changed a file")
	}

	// What a person sets holds in the sessions that are open, too, and as long as it is set. Who signs hears of it with the next renewal.
	open := h.ConnectRaw(h.AddClient("agent", ceiling...))
	listed := func() bool {
		return strings.Contains(open.Send([]byte(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)).Body, `"name":"start_service"`)
	}
	if !listed() {
		t.Error("start_service is not listed at first")
	}
	h.Durward("config", "set", "tier_ceiling", "READ", "--yes")
	harness.Eventually(t, "the ceiling of everybody is lower", func() error {
		if listed() {
			return errors.New("start_service is listed in a session that is open")
		}
		return tells(h.ConnectStdio("cursor"), `READ`)
	})
	soon(t, "denied", func() harness.Envelope { return h.ConnectStdio("cursor").Ask("start_service", demo) })
	h.Durward("config", "unset", "tier_ceiling", "--yes")
	harness.Eventually(t, "the ceiling is as it was", func() error {
		e := h.ConnectStdio("cursor").Ask("start_service", demo)
		if e.Status != "pending_approval" {
			return fmt.Errorf("%s", e.Raw)
		}
		if !listed() {
			return errors.New("start_service is not listed in a session that is open")
		}
		return nil
	})
	if out := h.Durward("config", "show", "--origin"); !strings.Contains(out, "approvals.wait_s") || !strings.Contains(out, "security.yaml") {
		t.Errorf("config show --origin:\n%s", out)
	}
	if out := h.Run("", "config", "set", "approvals.wait", "300", "--yes"); out.Code != 2 || !strings.Contains(out.Stderr, "approvals.wait_s") {
		t.Errorf("a misspelt setting: exit code %d\n%s", out.Code, out.Stderr)
	}
}

// enableDangerous goes through the whole ceremony at a terminal.
func enableDangerous(t *testing.T, h *harness.Host, client, session, length string) {
	t.Helper()
	x := h.AtTerminal(t, 120, "dangerous", "enable", "--session", session, "--for", length)
	defer x.Close()
	x.Waits("Type this to go on")
	x.Types("dangerous " + client + " " + strings.TrimPrefix(session, "s-")[:6] + "\n")
	x.Waits("Asking again in")
	x.Waits("put it into force?")
	x.Types("yes\n")
	x.Waits("in force")
	x.Ends(0)
}

// TestDangerousModeAtATerminal: a person lets one session change things without being asked; every answer of it says so, and no
// other session has anything of it; it ends at once.
func TestDangerousModeAtATerminal(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	agent := bound(h, "cursor")
	session := sessionOf(t, h, "cursor")
	if out := h.Run("yes\n", "dangerous", "enable", "--session", session); out.Code != 4 {
		t.Errorf("without a terminal: exit code %d\n%s", out.Code, out.Stderr)
	}
	// Not the phrase, and not confirmed: nothing is in force.
	x := h.AtTerminal(t, 120, "dangerous", "enable", "--session", session)
	defer x.Close()
	x.Waits("Type this to go on")
	x.Types("yes\n")
	x.Ends(4)
	asks(t, h, agent.Ask("start_service", demo))
	x = h.AtTerminal(t, 120, "dangerous", "enable", "--session", session)
	defer x.Close()
	x.Waits("Type this to go on")
	x.Types("dangerous cursor " + strings.TrimPrefix(session, "s-")[:6] + "\n")
	x.Waits("put it into force?")
	x.Types("no\n")
	x.Ends(4)
	asks(t, h, agent.Ask("start_service", demo))

	// A proposal that still waited would be in the way of another.
	enableDangerous(t, h, "cursor", session, "10m")
	other := h.ConnectStdio("cursor")
	done := isStatus(t, "ok", agent.Ask("start_service", demo))
	told(t, h, done, "dangerous-mode-runs", true, "dangerous")
	if n := h.Starts(harness.DemoService); n != 1 {
		t.Errorf("the service was started %d times", n)
	}
	if len(done.Warnings) == 0 || !strings.HasPrefix(done.Warnings[0], "DANGEROUS MODE until ") || !strings.HasPrefix(done.Summary, "DANGEROUS MODE until ") {
		t.Errorf("the answer does not say so: %s", done.Raw)
	}
	if e := agent.Ask("gpu_status", nil); len(e.Warnings) == 0 || !strings.HasPrefix(e.Warnings[0], "DANGEROUS MODE") {
		t.Errorf("a read does not say so: %s", e.Raw)
	} else if !readsDangerous(t, h, e) {
		t.Error("the record of a read in dangerous mode does not say so")
	}
	if e := other.Ask("gpu_status", nil); strings.Contains(string(e.Raw), "DANGEROUS") {
		t.Errorf("another session says so: %s", e.Raw)
	}
	asks(t, h, other.Ask("stop_service", demo))
	for _, command := range [][]string{{"sessions"}, {"status"}, {"approvals"}, {"services"}} {
		if out := h.Run("", command...); out.Code == 0 && command[0] != "services" && !strings.Contains(out.Stderr, "DANGEROUS MODE: cursor") {
			t.Errorf("durward %s does not warn: %q", command[0], out.Stderr)
		}
	}
	if out := h.Durward("dangerous", "status"); !strings.Contains(out, "cursor") {
		t.Errorf("dangerous status: %s", out)
	}

	h.Durward("dangerous", "disable")
	asks(t, h, agent.Ask("stop_service", demo))
	harness.Eventually(t, "the answers say it no more", func() error {
		if e := agent.Ask("gpu_status", nil); strings.Contains(string(e.Raw), "DANGEROUS") || readsDangerous(t, h, e) {
			return fmt.Errorf("%s", e.Raw)
		}
		return nil
	})

	// A panic ends it too, and a resume brings nothing back.
	enableDangerous(t, h, "cursor", session, "10m")
	h.Durward("panic")
	h.Durward("resume", "--yes")
	harness.Eventually(t, "calls are taken again", func() error {
		e := agent.Ask("stop_service", demo)
		if e.Status == "ok" {
			t.Fatalf("dangerous mode outlived a panic: %s", e.Raw)
		}
		if e.Status != "pending_approval" {
			return fmt.Errorf("%s", e.Raw)
		}
		return nil
	})
	h.Durward("audit", "verify", "--complete")
}

// TestScopeAtTheCommandLine: an approval for several calls covers what was shown, so often, in that session.
func TestScopeAtTheCommandLine(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	agent := bound(h, "cursor")
	asked := isStatus(t, "pending_approval", agent.Ask("start_service", demo))
	waiting := h.Approvals()
	if len(waiting) != 1 {
		t.Fatalf("%d operations wait", len(waiting))
	}
	h.Durward("approve", waiting[0].Number, "--scope", "--uses", "3", "--for", "10m", "--tool", "stop_service", "--yes")
	isStatus(t, "ok", agent.Ask("wait_operation", asked.Next.Arguments))
	stopped := isStatus(t, "ok", agent.Ask("stop_service", demo))
	told(t, h, stopped, "", false, "scope")
	asks(t, h, agent.Ask("start_service", map[string]any{"service_id": harness.SlowService}))
	asks(t, h, h.ConnectStdio("cursor").Ask("start_service", demo))
	isStatus(t, "ok", agent.Ask("start_service", demo))
	asks(t, h, agent.Ask("stop_service", demo))
	if n := h.Starts(harness.DemoService); n != 2 {
		t.Errorf("%d starts", n)
	}
	h.Durward("audit", "verify", "--complete")
}

// TestMuteFromTheCommandLine: a muted client asks nobody, and may ask again afterwards.
func TestMuteFromTheCommandLine(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	agent := bound(h, "cursor")
	waits := isStatus(t, "pending_approval", agent.Ask("start_service", demo))
	h.Durward("mute", "cursor", "--for", "10m")
	isStatus(t, "denied", agent.Ask("wait_operation", waits.Next.Arguments))
	e := agent.Ask("start_service", demo)
	if e.Status == "pending_approval" || !strings.Contains(string(e.Raw), "MUTED") && !strings.Contains(string(e.Raw), "muted") {
		t.Errorf("a muted client: %s", e.Raw)
	}
	if len(h.Approvals()) != 0 {
		t.Error("somebody was asked")
	}
	isStatus(t, "ok", agent.Ask("gpu_status", nil))
	h.Durward("mute", "cursor", "--off")
	asks(t, h, agent.Ask("start_service", demo))
}

// TestRotationWithAnOverlap: a rotated client's programs go on; the old token lets in until its time, and not after it. What was let in
// with it before that may look until its permit is over, a minute at most, and asks for nothing.
func TestRotationWithAnOverlap(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	old := h.AddClient("dashboard", ceiling...)
	bridge := bound(h, "cursor")
	before := h.ConnectRaw(old)
	lets := func(token string) int {
		t.Helper()
		a, err := h.Raw(t.Context(), harness.RawRequest{Token: token, Body: harness.Handshake(harness.SessionRevision)})
		must(t, err)
		return a.HTTPStatus
	}
	const overlap = 10 * time.Second
	began := time.Now() // from here on at the earliest, and from the end of the commands at the latest
	h.Durward("client", "rotate", "dashboard", "--overlap", overlap.String(), "--yes")
	rotated := time.Now()
	h.Durward("client", "rotate", "cursor", "--overlap", overlap.String(), "--yes")
	fresh := strings.TrimSpace(h.ReadFile("clients/dashboard/token"))
	if fresh == old {
		t.Fatal("the token is the old one")
	}
	harness.Eventually(t, "the new token is taken", func() error {
		if status := lets(fresh); status != http.StatusOK {
			return fmt.Errorf("status %d", status)
		}
		return nil
	})
	if status := lets(old); status != http.StatusOK && time.Since(began) < overlap-2*time.Second {
		t.Errorf("the old token is refused during the overlap: %d", status)
	}
	isStatus(t, "ok", bridge.Ask("gpu_status", nil))
	if _, lag := h.Strain(func() {
		harness.Eventually(t, "the old token is refused", func() error {
			if status := lets(old); status != http.StatusUnauthorized {
				return fmt.Errorf("status %d", status)
			}
			return nil
		})
	}); time.Since(rotated) > overlap+2*time.Second+10*lag {
		t.Errorf("the old token was taken until %s after the rotation", time.Since(rotated))
	}
	if a := before.CallTool("start_service", fmt.Sprintf(`{"service_id":%q}`, harness.DemoService)); strings.Contains(a.Body, "pending_approval") {
		t.Errorf("a session of the old token asks for something: %s", a.Body)
	}
	// The bridge takes the new files up by itself. One call may hear that its session has ended.
	asks(t, h, soon(t, "pending_approval", func() harness.Envelope { return bridge.Ask("start_service", demo) }))
	isStatus(t, "ok", h.Connect(fresh).Ask("gpu_status", nil))
}

// TestProjectTrust: a project's file tightens the rules for its clients once a person trusts it, as it was then; and never more.
func TestProjectTrust(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	cursor, other := bound(h, "cursor"), bound(h, "other")
	file := t.TempDir() + "/durward.yaml"
	write := func(text string) {
		t.Helper()
		must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("tools:\n  start_service: {tier: DENIED}\n")
	asks(t, h, cursor.Ask("start_service", demo)) // a file that nobody trusts is nothing
	out := h.Durward("config", "trust", file, "--client", "cursor", "--yes")
	if !strings.Contains(out, "start_service") {
		t.Errorf("config trust does not show the file:\n%s", out)
	}
	soon(t, "denied", func() harness.Envelope {
		e := cursor.Ask("start_service", demo)
		if e.Status == "pending_approval" {
			h.Deny(e.OperationID, "not now")
		}
		return e
	})
	asks(t, h, other.Ask("start_service", demo))
	// What happens to the file afterwards changes nothing.
	write("tools: {}\n")
	isStatus(t, "denied", cursor.Ask("start_service", demo))
	// A file that loosens is refused.
	write("tools:\n  start_service: {tier: READ}\n")
	if out := h.Run("", "config", "trust", file, "--client", "cursor", "--yes"); out.Code != 2 {
		t.Errorf("a project that loosens: exit code %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	isStatus(t, "denied", cursor.Ask("start_service", demo))
	h.Durward("config", "untrust", file, "--yes")
	harness.Eventually(t, "the project's rules are gone", func() error {
		e := cursor.Ask("start_service", demo)
		if e.Status != "pending_approval" {
			return fmt.Errorf("%s", e.Raw)
		}
		return nil
	})
}

// TestChangesAreRecordedTwice: a change by durward is announced, adopted and recorded with both digests; a change by hand is
// found; a broken file is refused, and the last good one stays.
func TestChangesAreRecordedTwice(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	find := func(kind auditv1.Kind, about string) *auditv1.Record {
		t.Helper()
		var found *auditv1.Record
		harness.Eventually(t, kind.String()+" about "+about, func() error {
			for _, e := range h.Records(nil) {
				if raw, err := json.Marshal(e.GetRecord().GetBody()); err == nil && e.GetRecord().GetKind() == kind && strings.Contains(string(raw), about) {
					found = e.GetRecord()
				}
			}
			if found == nil {
				return fmt.Errorf("not in the log")
			}
			return nil
		})
		return found
	}
	h.Durward("config", "set", "approvals.wait_s", "600", "--yes")
	if r := find(auditv1.Kind_KIND_CONFIG_CHANGED, "approvals.wait_s"); r.GetBody().GetDetails()["digest_before"] == "" || r.GetBody().GetDetails()["digest_after"] == "" {
		t.Errorf("CONFIG_CHANGED: %v", r)
	}
	find(auditv1.Kind_KIND_CONFIG_ADOPTED, "security.yaml")
	good := h.ReadFile("config/security/security.yaml")
	h.WriteFile("config/security/security.yaml", good+"\n# by hand\n")
	find(auditv1.Kind_KIND_CONFIG_FOUND, "security.yaml")
	h.WriteFile("config/security/security.yaml", "settings: {approvals.wait_s: 600, tier_ceiling: [\n")
	find(auditv1.Kind_KIND_CONFIG_REFUSED, "security.yaml")
	var shown struct {
		Settings []struct {
			Name    string
			InForce string `json:"in_force"`
			Value   string
		}
		Files []struct{ Name, Problem string }
	}
	h.DurwardJSON(&shown, "config", "show")
	if at := slices.IndexFunc(shown.Files, func(f struct{ Name, Problem string }) bool { return f.Name == "security.yaml" }); at < 0 || shown.Files[at].Problem == "" {
		t.Errorf("config show does not tell of the broken file: %+v", shown.Files)
	}
	agent := bound(h, "cursor")
	if e := agent.Ask("security_config", nil); !strings.Contains(string(e.Result), "600") {
		t.Errorf("the last good file is not in force: %s", e.Raw)
	}
	h.WriteFile("config/security/security.yaml", good)
	h.Durward("audit", "verify", "--complete")
}

// TestRemoteIsHowTheCallerCame: a client that clients.yaml calls remote, and one whose bridge sshd started, are not at this host's
// terminal, whatever their channel (ACL-2).
func TestRemoteIsHowTheCallerCame(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	h.AddKeyBound("cursor")
	rule := `@id("not-from-elsewhere") forbid (principal, action == Action::"call:gpu_status", resource) when { context.remote };`
	must(t, os.WriteFile(h.Path("config", "security", "policy", "elsewhere.cedar"), []byte(rule), 0o600))
	harness.Eventually(t, "the rule is in force", func() error {
		if out := h.Durward("policy", "list"); !strings.Contains(out, "not-from-elsewhere") {
			return errors.New(out)
		}
		return nil
	})
	here, elsewhere := h.ConnectStdio("cursor"), h.ConnectStdio("cursor", "SSH_CONNECTION=192.0.2.1 1 192.0.2.2 22")
	isStatus(t, "ok", here.Ask("gpu_status", nil))
	isStatus(t, "denied", elsewhere.Ask("gpu_status", nil))
	isStatus(t, "ok", elsewhere.Ask("list_modes", nil))

	clients := h.Path("config", "clients.yaml")
	before, err := os.ReadFile(clients)
	must(t, err)
	must(t, os.WriteFile(clients, bytes.Replace(before, []byte("channel: cli\n"), []byte("channel: cli\n    remote: true\n"), 1), 0o600))
	soon(t, "denied", func() harness.Envelope { return h.ConnectStdio("cursor").Ask("gpu_status", nil) })
}
