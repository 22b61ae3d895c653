package server

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/changelog"
)

func (v *vault) policies() vaultv1.PolicyServiceClient {
	return vaultv1.NewPolicyServiceClient(v.as(operator, platformtest.Operator))
}

func digestOf(text string) string {
	if text == "" {
		return ""
	}
	d := canonical.Digest([]byte(text))
	return canonical.FormatDigest(d[:])
}

// change is a human's signed announcement that a file changes from one text to another.
func (v *vault) change(file, before, after string, alter func(*statement.Statement)) *callv1.HumanStatement {
	v.t.Helper()
	s := &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindConfig, ID: grant.NewID(), Operator: platformtest.Operator,
		IssuedAt: statement.FormatTime(v.clock.Now()), NotBefore: statement.FormatTime(v.clock.Now()),
		ExpiresAt: statement.FormatTime(v.clock.Now().Add(statement.Skew)), Epoch: v.server.Halt.Now().Epoch, Audience: v.self.String(),
		Change: &statement.Change{File: file, Before: digestOf(before), After: digestOf(after), Lines: []string{"+" + after}},
	}
	if alter != nil {
		alter(s)
	}
	return v.sign(s)
}

func (v *vault) announce(h *callv1.HumanStatement) error {
	_, err := v.policies().AnnounceChange(v.t.Context(), &vaultv1.AnnounceChangeRequest{Statement: h})
	return err
}

func TestAnnouncementsAreRefused(t *testing.T) {
	v := newVault(t)
	forged := v.change("security.yaml", "", "x", nil)
	forged.Statement = []byte(strings.Replace(string(forged.GetStatement()), "security.yaml", "clients.yaml", 1))
	for name, h := range map[string]*callv1.HumanStatement{
		"forged":               forged,
		"for another vault":    v.change("security.yaml", "", "x", func(s *statement.Statement) { s.Audience = "spiffe://elsewhere/vault/main" }),
		"for a sink":           v.change("security.yaml", "", "x", func(s *statement.Statement) { s.Audience = v.ID(executor, "local").String() }),
		"of another epoch":     v.change("security.yaml", "", "x", func(s *statement.Statement) { s.Epoch = 7 }),
		"a resumption":         v.resumption(func(*statement.Statement) {}),
		"a command, not this":  v.command("a", func(*statement.Statement) {}),
		"another one's signed": v.change("security.yaml", "", "x", func(s *statement.Statement) { s.Operator = "mallory" }),
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, v.announce(h), callv1.Code_CODE_DENIED) })
	}
	if n := len(v.audit.of(auditv1.Kind_KIND_CONFIG_ADOPTED)); n != 0 {
		t.Errorf("%d announcements recorded", n)
	}
	good := v.change("security.yaml", "", "x", nil)
	v.must(v.announce(good))
	wantCode(t, v.announce(good), callv1.Code_CODE_ALREADY_SPENT)
	v.audit.set(func(f *fakeAudit) { f.down = true })
	wantCode(t, v.announce(v.change("security.yaml", "", "y", nil)), callv1.Code_CODE_AUDIT_UNAVAILABLE)
}

// changes are the records of what came into force, as kind, file and the first digits of the new digest.
func (v *vault) changes(kind auditv1.Kind) []string {
	var out []string
	for _, r := range v.audit.of(kind) {
		if r.GetStatus() == auditv1.Status_STATUS_OK {
			d := r.GetBody().GetDetails()
			out = append(out, d["file"]+" "+d["before"]+" "+d["after"])
		}
	}
	return out
}

// A change is adopted as a human's if a human announced exactly it, and found otherwise: also if it was made while no vault ran.
func TestChangesAreAdoptedOrFound(t *testing.T) {
	v := newVault(t)
	const first, second, third, planted = "{}\n", "approvals: {wait_s: 600}\n", "approvals: {wait_s: 700}\n", "approvals: {wait_s: 1800}\n"
	found, adopted := v.changes(auditv1.Kind_KIND_CONFIG_FOUND), v.changes(auditv1.Kind_KIND_CONFIG_ADOPTED)
	// The first start finds what is there, and raises no alarm about it.
	if len(found) != 1 || !strings.HasPrefix(found[0], "clients.yaml  sha256:") || len(adopted) != 0 {
		t.Fatalf("at the first start found %q, adopted %q", found, adopted)
	}
	reason := func(n int) string { return v.audit.of(auditv1.Kind_KIND_CONFIG_FOUND)[n].GetBody().GetReason() }
	if got := reason(0); got != "no rules were known before" {
		t.Errorf("at the first start: %q", got)
	}
	expect := func(wantFound, wantAdopted []string) {
		t.Helper()
		if diff := cmp.Diff(append(slices.Clone(found), wantFound...), v.changes(auditv1.Kind_KIND_CONFIG_FOUND)); diff != "" {
			t.Errorf("found (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(wantAdopted, v.changes(auditv1.Kind_KIND_CONFIG_ADOPTED)); diff != "" {
			t.Errorf("adopted (-want +got):\n%s", diff)
		}
	}
	line := func(before, after string) string { return "security.yaml " + digestOf(before) + " " + digestOf(after) }
	v.rule("security.yaml", second)
	expect([]string{line("", second)}, nil)
	v.must(v.announce(v.change("security.yaml", second, third, nil)))
	v.rule("security.yaml", third)
	expect([]string{line("", second)}, []string{line(second, third)})
	// An announcement is for its own change, and for one.
	v.must(v.announce(v.change("security.yaml", third, second, nil)))
	v.rule("security.yaml", planted)
	v.rule("security.yaml", third)
	expect([]string{line("", second), line(third, planted), line(planted, third)}, []string{line(second, third)})
	v.rule("security.yaml", second)
	expect([]string{line("", second), line(third, planted), line(planted, third)}, []string{line(second, third), line(third, second)})
	v.rule("security.yaml", third)
	v.rule("security.yaml", second)
	expect([]string{line("", second), line(third, planted), line(planted, third), line(second, third), line(third, second)},
		[]string{line(second, third), line(third, second)})
	// Nothing changed while it was down: nothing is found. Something did: it is.
	n := len(v.changes(auditv1.Kind_KIND_CONFIG_FOUND))
	v.restart()
	if got := len(v.changes(auditv1.Kind_KIND_CONFIG_FOUND)); got != n {
		t.Errorf("%d found after a restart without changes", got-n)
	}
	v.stop()
	v.must(os.Remove(filepath.Join(v.security, "security.yaml")))
	v.plant("policy/planted.cedar", "forbid (principal, action, resource);\n")
	v.start()
	late := v.changes(auditv1.Kind_KIND_CONFIG_FOUND)[n:]
	for at := 1; at < n+len(late); at++ {
		if got := reason(at); got != "nobody announced it" {
			t.Errorf("change %d: %q", at, got)
		}
	}
	if diff := cmp.Diff([]string{
		"policy/planted.cedar  " + digestOf("forbid (principal, action, resource);\n"), line(second, ""),
	}, late); diff != "" {
		t.Errorf("found at start (-want +got):\n%s", diff)
	}
	// An announcement that nothing came of lapses.
	v.must(v.announce(v.change("security.yaml", "", first, nil)))
	v.clock.advance(changelog.Patience + 1)
	v.rule("security.yaml", first)
	if got := v.changes(auditv1.Kind_KIND_CONFIG_ADOPTED); len(got) != 2 {
		t.Errorf("adopted late: %q", got)
	}
}

func TestGetPolicyAndExplain(t *testing.T) {
	v := newVault(t)
	v.rewrite("id: bearer\n", "id: bearer\n    user: alice\n    agents: [planner]\n")
	v.rule("policy/allow.cedar", startUnasked)
	v.rule("users/alice/security.yaml", "approvals: {wait_s: 120}\n")
	blocks := "domains: {block: [\"*.example\"]}\n"
	project := "projects/" + strings.TrimPrefix(canonical.DigestText([]byte(blocks)), "sha256:") + ".yaml"
	v.plant(project, blocks)
	v.rule("projects.yaml", "projects: [{path: /p/durward.yaml, clients: [bound], sha256: "+strings.TrimSuffix(path.Base(project), ".yaml")+"}]\n")
	resp, err := v.policies().GetPolicy(t.Context(), &vaultv1.GetPolicyRequest{Client: bearer})
	v.must(err)
	var files []string
	for _, f := range resp.GetFiles() {
		files = append(files, f.GetName()+" "+f.GetLayer())
	}
	if diff := cmp.Diff([]string{"clients.yaml system", "policy/allow.cedar system", "projects.yaml system", project + " project", "users/alice/security.yaml user"}, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for _, setting := range resp.GetSettings() {
		if setting.GetName() == "approvals.wait_s" && (setting.GetValue() != "120" || setting.GetLayer() != "user") {
			t.Errorf("%v", setting)
		}
	}
	if !slices.ContainsFunc(resp.GetRules(), func(r *vaultv1.PolicyRule) bool {
		return r.GetRule() == "start-runs" && r.GetFile() == "policy/allow.cedar" && r.GetLine() == 1 && r.GetLayer() == "system"
	}) {
		t.Errorf("rules %v", resp.GetRules())
	}
	// A user's setting binds the user's client: the request waits so long.
	if o := v.operation(v.ask(v.open(bearer).GetSessionId(), "a").GetOperationId()); o.GetExpiresAt().AsTime().Sub(v.clock.Now()).Seconds() != 120 {
		t.Errorf("expires %v", o.GetExpiresAt().AsTime())
	}
	for name, c := range map[string]struct {
		req  *vaultv1.ExplainCallRequest
		want string
		code callv1.Code
	}{
		"no such client":    {&vaultv1.ExplainCallRequest{Client: "nobody", Tool: "gpu_status"}, "", callv1.Code_CODE_NOT_FOUND},
		"no such agent":     {&vaultv1.ExplainCallRequest{Client: bearer, Tool: "gpu_status", Agent: "coder"}, "", callv1.Code_CODE_INVALID_ARGUMENT},
		"strange arguments": {&vaultv1.ExplainCallRequest{Client: bearer, Tool: "gpu_status", Arguments: []byte("[]")}, "", callv1.Code_CODE_INVALID_ARGUMENT},
		"blocked by a project": {
			&vaultv1.ExplainCallRequest{Client: bound, Tool: "fetch_url", Arguments: []byte(`{"url":"https://docs.example/"}`)}, "denied domain-blocked", 0,
		},
		"a project's client alone": {
			&vaultv1.ExplainCallRequest{Client: bearer, Tool: "fetch_url", Arguments: []byte(`{"url":"https://docs.example/"}`)}, "asks domain-on-no-list", 0,
		},
		"no such tool":      {&vaultv1.ExplainCallRequest{Client: bearer, Tool: "format_disk"}, "denied unknown-tool", 0},
		"reads":             {&vaultv1.ExplainCallRequest{Client: bearer, Tool: "gpu_status", Agent: "planner"}, "runs read-runs", 0},
		"a bearer's change": {&vaultv1.ExplainCallRequest{Client: bearer, Tool: "start_service", Arguments: arguments("a")}, "asks bearer-changes-ask", 0},
		"a bearer, recklessly": {
			&vaultv1.ExplainCallRequest{Client: bearer, Tool: "sleep_service", Dangerous: true}, "asks may-be-asked-for", 0,
		},
		"allowed by a file": {&vaultv1.ExplainCallRequest{Client: bound, Tool: "start_service", Arguments: arguments("a")}, "runs start-runs", 0},
		"in dangerous mode": {&vaultv1.ExplainCallRequest{Client: bound, Tool: "sleep_service", Dangerous: true}, "runs dangerous-mode-runs", 0},
		"above the ceiling": {&vaultv1.ExplainCallRequest{Client: reader, Tool: "start_service"}, "denied above-the-ceiling", 0},
		"not in that mode":  {&vaultv1.ExplainCallRequest{Client: bound, Tool: "sleep_service"}, "asks may-be-asked-for", 0},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := v.policies().ExplainCall(t.Context(), c.req)
			wantCode(t, err, c.code)
			if got := resp.GetDecision() + " " + resp.GetRule().GetRule(); c.code == 0 && got != c.want {
				t.Errorf("%s, want %s (%s)", got, c.want, resp.GetReason())
			}
			if r := resp.GetRule(); r.GetRule() == "domain-blocked" && (r.GetFile() != project || r.GetLayer() != "project") {
				t.Errorf("the rule is of %s, %s", r.GetFile(), r.GetLayer())
			}
		})
	}
	if n := len(v.server.rules().Rules()); n == 0 {
		t.Error("no rules")
	}
}

// folder is every file below a folder, with its content and mode.
func folder(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		out[name] = info.Mode().String() + " " + info.ModTime().String()
		if !d.IsDir() {
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			out[name] += " " + string(raw)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// No RPC writes the rules (CFG-1). Whatever a gateway or a sink may call is called, with a permit and with whatever fits into its
// fields; what shows or takes announcements of rules is the operators' alone; and the rules' folder is read-only to the vault's code
// by the test of its imports: afterwards every byte, mode and time in it is what it was.
func TestNoRPCWritesTheRules(t *testing.T) {
	v := newVault(t)
	v.rule("security.yaml", "tier_ceiling: WRITE\n")
	v.rule("tools.yaml", "tools:\n  stop_service: {tier: DENIED}\n")
	v.rule("policy/allow.cedar", startUnasked)
	v.rule("users/alice/security.yaml", "approvals: {wait_s: 120}\n")
	before, clients, digest := folder(t, v.security), folder(t, filepath.Dir(v.clients))["clients.yaml"], v.server.rules().Digest()
	called := 0
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				callers, _ := proto.GetExtension(method.Options(), optionsv1.E_Callers).([]optionsv1.Role)
				human := slices.Equal(callers, []optionsv1.Role{operator})
				switch name := string(service.Name()); {
				case name == "PolicyService" || name == "StandingService":
					if !human {
						t.Errorf("%s may be called by %v", method.FullName(), callers)
					}
				case file.Package() == "durward.vault.v1" && !human:
					called++
					for _, role := range callers {
						opened, id, g := v.granted(bearer, fmt.Sprintf("s%d-%d", called, role))
						ctx := withPermit(t.Context(), permitFor(optionsv1.Role_ROLE_VAULT, opened.GetPermits()))
						if err := invoke(ctx, v.as(role, "local"), service, method); status.Code(err) == codes.Unimplemented {
							t.Errorf("%s: %v", method.FullName(), err)
						}
						if slices.Contains([]protoreflect.Name{"Settle", "CheckGrant", "Tokenise", "ReleaseCredentials", "Deliver", "Resolve"}, method.Name()) {
							v.must(v.redeem(g))
						}
						// The grant is the executor's: nobody else may use it.
						err := v.invokeFilled(ctx, role, service, method, opened, id, g)
						// No credential is stored: what asks for one gets none, whoever it is. The session is no internal program's. Which sessions end
						// egress hears of all.
						if mine := (role != egress || method.Name() == "WatchSessions") && role != internal && method.Name() != "ReleaseCredentials" && method.Name() != "Resolve"; (err == nil) != mine {
							t.Errorf("%s by %v, with every field filled: %v", method.FullName(), role, err)
						}
					}
				}
			}
		}
		return true
	})
	if called < 10 {
		t.Fatalf("only %d RPCs were called", called)
	}
	v.server.Security.Reload()
	if diff := cmp.Diff(before, folder(t, v.security)); diff != "" {
		t.Errorf("the rules changed (-before +after):\n%s", diff)
	}
	if folder(t, filepath.Dir(v.clients))["clients.yaml"] != clients || v.server.rules().Digest() != digest {
		t.Error("clients.yaml or the policy changed")
	}
}

// invokeFilled calls an RPC with something in every field that takes it, and with a grant and its operation where it asks for them.
func (v *vault) invokeFilled(ctx context.Context, role optionsv1.Role, service protoreflect.ServiceDescriptor, method protoreflect.MethodDescriptor,
	opened *vaultv1.OpenSessionResponse, id string, g *callv1.SignedGrant) error {
	handle := opened.GetSessionId()
	valid := map[protoreflect.Name]proto.Message{
		"Authorise":          request(handle, "start_service", "other"),
		"WaitOperation":      &vaultv1.WaitOperationRequest{OperationId: &id},
		"GetOperation":       &vaultv1.GetOperationRequest{OperationId: &id},
		"Redeem":             &vaultv1.RedeemRequest{Grant: g},
		"Settle":             &vaultv1.SettleRequest{OperationId: id},
		"CheckGrant":         &vaultv1.CheckGrantRequest{Grant: g},
		"CheckPermit":        &vaultv1.CheckPermitRequest{Permit: permitFor(executor, opened.GetPermits()), Tool: "list_services"},
		"Deliver":            &vaultv1.DeliverRequest{Grant: g},
		"FindTools":          &vaultv1.FindToolsRequest{Words: proto.String("services")},
		"DescribeTool":       &vaultv1.DescribeToolRequest{Tool: proto.String("list_services")},
		"Resolve":            &vaultv1.ResolveRequest{Grant: g, Capabilities: []*vaultv1.Capability{{Pointer: "/service_id", Token: []byte("guess")}}},
		"ReleaseCredentials": &vaultv1.ReleaseCredentialsRequest{Grant: g, Service: "other", Names: []string{"hf"}},
		"Tokenise":           byGrant(g, "../security/security.yaml"),
	}[method.Name()]
	if method.Name() == "WithdrawOperation" {
		waiting := v.ask(handle, "another").GetOperationId()
		valid = &vaultv1.WithdrawOperationRequest{OperationId: &waiting}
	}
	return invokeWith(ctx, v.as(role, "local"), service, method, func(m protoreflect.Message) {
		fill(m, handle, 0)
		if valid == nil {
			return
		}
		raw, err := proto.Marshal(valid)
		v.must(err)
		v.must(proto.UnmarshalOptions{Merge: true}.Unmarshal(raw, m.Interface()))
	})
}

func fill(m protoreflect.Message, handle string, depth int) {
	if depth > 4 {
		return
	}
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		// A bearer client proves nothing, speaks for nobody, has one agent and there is nothing to join: these four would end the call.
		if fd.IsMap() || fd.IsList() || slices.Contains([]protoreflect.Name{"proof", "sender", "agent", "join_only"}, fd.Name()) {
			continue
		}
		switch fd.Kind() {
		case protoreflect.StringKind:
			text := "../security/security.yaml"
			switch fd.Name() {
			case "session_id", "replaces":
				text = handle
			case "credential":
				text = tokenOf(bearer)
			case "operation_id":
				text = strings.Repeat("0", 32)
			case "name":
				text = "security_config"
			case "source":
				text = "native"
			}
			m.Set(fd, protoreflect.ValueOfString(text))
		case protoreflect.BytesKind:
			m.Set(fd, protoreflect.ValueOfBytes([]byte(`{"file":"security.yaml","tier_ceiling":"DESTRUCTIVE"}`)))
		case protoreflect.EnumKind:
			m.Set(fd, protoreflect.ValueOfEnum(1))
		case protoreflect.Uint32Kind:
			m.Set(fd, protoreflect.ValueOfUint32(1))
		case protoreflect.BoolKind:
			m.Set(fd, protoreflect.ValueOfBool(true))
		case protoreflect.MessageKind:
			fill(m.Mutable(fd).Message(), handle, depth+1)
		}
	}
}
