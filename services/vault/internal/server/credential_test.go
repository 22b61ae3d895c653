package server

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/handover"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/keyring"
	"durward.internal/services/vault/internal/operation"
)

func (v *vault) credentials() vaultv1.CredentialServiceClient {
	return vaultv1.NewCredentialServiceClient(v.as(optionsv1.Role_ROLE_OPERATOR, "ada"))
}

func (v *vault) credential(c *statement.Credential) *statement.Statement {
	now := v.clock.Now()
	return &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindCredential, ID: grant.NewID(), Operator: platformtest.Operator,
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(time.Minute)),
		Epoch: 1, Audience: v.self.String(), Credential: c,
	}
}

var salt = bytes.Repeat([]byte{3}, statement.CommitmentKey)

func (v *vault) value(action string, version int, value string) *vaultv1.ChangeCredentialRequest {
	c := &statement.Credential{Action: action, Name: "hf", Version: version, Commitment: statement.Commitment(salt, "hf", version, []byte(value))}
	if action == statement.CredentialAdd {
		c.Delivery, c.Variable = statement.DeliveryFile, "HF_TOKEN_PATH"
	}
	return &vaultv1.ChangeCredentialRequest{Statement: v.sign(v.credential(c)), Value: []byte(value), Salt: salt}
}

func (v *vault) grantedTo(services ...string) *vaultv1.ChangeCredentialRequest {
	return &vaultv1.ChangeCredentialRequest{Statement: v.sign(v.credential(&statement.Credential{
		Action: statement.CredentialGrant, Name: "hf", CredentialGrants: statement.CredentialGrants{Sink: v.ID(executor, "local").String(), Services: services},
	}))}
}

// unattended lets a service of a sink have it for an hour, without a call too.
func (v *vault) unattended(role optionsv1.Role, service string, agents ...string) *vaultv1.ChangeCredentialRequest {
	return &vaultv1.ChangeCredentialRequest{Statement: v.sign(v.credential(&statement.Credential{
		Action: statement.CredentialGrant, Name: "hf", CredentialGrants: statement.CredentialGrants{
			Sink: v.ID(role, "local").String(), Services: []string{service}, Agents: agents, Unattended: true,
			Until: statement.FormatTime(v.clock.Now().Add(time.Hour)),
		},
	}))}
}

func (v *vault) stored(req *vaultv1.ChangeCredentialRequest) error {
	_, err := v.credentials().ChangeCredential(v.t.Context(), req)
	return err
}

func TestACredentialIsChangedByAStatementAlone(t *testing.T) {
	v := newVault(t)
	wantCode(t, v.stored(v.grantedTo("chat")), callv1.Code_CODE_NOT_FOUND)
	swapped := v.value(statement.CredentialAdd, 1, "secret")
	swapped.Value = []byte("another")
	wantCode(t, v.stored(swapped), callv1.Code_CODE_INVALID_ARGUMENT)
	for name, spoil := range map[string]func(*statement.Statement){
		"another vault": func(s *statement.Statement) { s.Audience = v.ID(optionsv1.Role_ROLE_VAULT, "other").String() },
		"another epoch": func(s *statement.Statement) { s.Epoch = 2 },
		"expired": func(s *statement.Statement) {
			s.IssuedAt, s.NotBefore, s.ExpiresAt = "2020-01-01T00:00:00Z", "2020-01-01T00:00:00Z", "2020-01-01T00:05:00Z"
		},
		"another's name": func(s *statement.Statement) { s.Operator = "eve" },
		"no sink": func(s *statement.Statement) {
			s.Credential = &statement.Credential{Action: statement.CredentialGrant, Name: "hf", CredentialGrants: statement.CredentialGrants{Sink: "spiffe://other/executor/x", Services: []string{"chat"}}}
		},
		"another kind": func(s *statement.Statement) { s.Kind, s.Credential = statement.KindResume, nil },
	} {
		req := v.value(statement.CredentialAdd, 1, "secret")
		st, err := statement.Parse(req.GetStatement().GetStatement())
		v.must(err)
		spoil(st)
		req.Statement = v.sign(st)
		t.Run(name, func(t *testing.T) { wantCode(t, v.stored(req), callv1.Code_CODE_DENIED) })
	}
	add := v.value(statement.CredentialAdd, 1, "secret")
	again := proto.CloneOf(add)
	v.must(v.stored(add))
	wantCode(t, v.stored(again), callv1.Code_CODE_CONFLICT)
	taken := v.stored(v.value(statement.CredentialAdd, 1, "secret"))
	wantCode(t, taken, callv1.Code_CODE_CONFLICT)
	if !strings.Contains(fault.From(taken).Message, "durward credential rotate hf") {
		t.Errorf("a name that is taken: %v", taken)
	}
	wantCode(t, v.stored(v.value(statement.CredentialRotate, 3, "x")), callv1.Code_CODE_CONFLICT)
	v.must(v.stored(v.value(statement.CredentialRotate, 2, "second")))

	grants := v.grantedTo("chat")
	v.must(v.stored(grants))
	_, err := v.credentials().RevokeCredential(t.Context(), &vaultv1.RevokeCredentialRequest{Name: "hf"})
	v.must(err)
	recorded := len(v.audit.of(auditv1.Kind_KIND_CREDENTIAL_CHANGED))
	wantCode(t, v.stored(grants), callv1.Code_CODE_CONFLICT) // what was revoked is not brought back by the statement that was used
	if changed := v.audit.of(auditv1.Kind_KIND_CREDENTIAL_CHANGED); len(changed) != recorded {
		t.Errorf("a replay was recorded as a change: %v", changed[recorded:])
	}

	_, err = v.credentials().RemoveCredential(t.Context(), &vaultv1.RemoveCredentialRequest{Name: "hf", Version: 2})
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
	_, err = v.credentials().RemoveCredential(t.Context(), &vaultv1.RemoveCredentialRequest{Name: "hf", Version: 1})
	v.must(err)
	list, err := v.credentials().ListCredentials(t.Context(), &vaultv1.ListCredentialsRequest{})
	v.must(err)
	if one := list.GetCredentials()[0]; len(one.GetVersions()) != 1 || len(one.GetServices()) != 0 || list.GetSealed() {
		t.Errorf("%v", list)
	}
	for _, r := range v.audit.of(auditv1.Kind_KIND_CREDENTIAL_CHANGED) {
		if raw, _ := proto.Marshal(r); bytes.Contains(raw, []byte("secret")) || bytes.Contains(raw, []byte("second")) || bytes.Contains(raw, salt) {
			t.Errorf("a record holds a value or its salt: %v", r)
		}
	}
	v.audit.set(func(f *fakeAudit) { f.down = true })
	wantCode(t, v.stored(v.value(statement.CredentialRotate, 3, "x")), callv1.Code_CODE_AUDIT_UNAVAILABLE)
}

// Of two changes at once the one that holds is recorded; a change that was recorded and does not hold is followed by its refusal.
func TestAChangeThatDoesNotHoldIsNotRecordedAsOne(t *testing.T) {
	v := newVault(t)
	v.must(v.stored(v.value(statement.CredentialAdd, 1, "secret")))
	gate, entered, ended := make(chan struct{}), make(chan struct{}, 2), make(chan error, 2)
	v.audit.set(func(f *fakeAudit) { f.gate, f.entered = gate, entered })
	for _, value := range []string{"one", "another"} {
		req := v.value(statement.CredentialRotate, 2, value)
		go func() { ended <- v.stored(req) }()
	}
	<-entered
	time.Sleep(50 * time.Millisecond) // nothing tells that the other one waits
	close(gate)
	won, lost := <-ended, <-ended
	if won != nil {
		won, lost = lost, won
	}
	v.must(won)
	wantCode(t, lost, callv1.Code_CODE_CONFLICT)
	if n := len(v.audit.of(auditv1.Kind_KIND_CREDENTIAL_CHANGED)); n != 2 {
		t.Errorf("the log has %d changes, want the first value and one of two", n)
	}
	gate, third := make(chan struct{}), v.value(statement.CredentialRotate, 3, "third")
	v.audit.set(func(f *fakeAudit) { f.gate = gate })
	go func() { ended <- v.stored(third) }()
	<-entered
	_, err := v.credentials().RemoveCredential(t.Context(), &vaultv1.RemoveCredentialRequest{Name: "hf"})
	v.must(err)
	close(gate)
	wantCode(t, <-ended, callv1.Code_CODE_NOT_FOUND)
	denied := v.audit.of(auditv1.Kind_KIND_DENIED)
	if n := len(denied); n == 0 || denied[n-1].GetBody().GetAction() != "credential-refused" || denied[n-1].GetBody().GetDetails()["names"] != "hf" {
		t.Errorf("refusals: %v", denied)
	}
}

func TestACredentialIsReleasedWithinAGrantedStart(t *testing.T) {
	v := newVault(t)
	v.must(v.stored(v.value(statement.CredentialAdd, 1, "secret")))
	v.must(v.stored(v.grantedTo("chat")))
	key, err := handover.NewKey()
	v.must(err)
	release := func(g *callv1.SignedGrant, service string, names ...string) (*vaultv1.ReleaseCredentialsResponse, error) {
		return vaultv1.NewReleaseServiceClient(v.as(executor, "local")).ReleaseCredentials(t.Context(), &vaultv1.ReleaseCredentialsRequest{
			Grant: g, Service: service, Names: names, PublicKey: key.Public(),
		})
	}
	refused := func(g *callv1.SignedGrant, service string, code callv1.Code, names ...string) {
		t.Helper()
		if answer, err := release(g, service, names...); err == nil {
			t.Fatalf("it was released: %v", answer)
		} else {
			wantCode(t, err, code)
		}
	}
	_, id, g := v.granted(bearer, "chat")
	refused(g, "chat", callv1.Code_CODE_DENIED, "hf") // not redeemed
	v.must(v.redeem(g))
	refused(g, "other", callv1.Code_CODE_DENIED, "hf") // the call starts another service
	refused(g, "chat", callv1.Code_CODE_NOT_FOUND, "none")
	refused(g, "chat", callv1.Code_CODE_NOT_FOUND, "hf", "none")
	forged := proto.CloneOf(g)
	forged.Payload[len(forged.Payload)-1] ^= 1
	refused(forged, "chat", callv1.Code_CODE_DENIED, "hf")
	if got, err := vaultv1.NewReleaseServiceClient(v.as(gateway, "main")).ReleaseCredentials(t.Context(), &vaultv1.ReleaseCredentialsRequest{
		Grant: g, Service: "chat", Names: []string{"hf"}, PublicKey: key.Public(),
	}); err == nil {
		t.Fatalf("the gateway got %v", got)
	}
	if uses := v.audit.of(auditv1.Kind_KIND_CREDENTIAL_USED); len(uses) != 0 {
		t.Fatalf("%d uses before the first", len(uses))
	}
	answer, err := release(g, "chat", "hf")
	v.must(err)
	values, err := key.Open(answer.GetSealed(), "chat")
	v.must(err)
	if len(values) != 1 || string(values[0].Value) != "secret" || !values[0].File || values[0].Variable != "HF_TOKEN_PATH" {
		t.Errorf("%+v", values)
	}
	uses := v.audit.of(auditv1.Kind_KIND_CREDENTIAL_USED)
	if len(uses) != 1 || uses[0].GetOperationId() != id || uses[0].GetBody().GetDetails()["name"] != "hf" || uses[0].GetBody().GetDetails()["domain"] != "service" {
		t.Errorf("%v", uses)
	}

	// Revoked: the answer names who got it, and the call that still runs gets it no more.
	revoked, err := v.credentials().RevokeCredential(t.Context(), &vaultv1.RevokeCredentialRequest{Name: "hf", Service: "chat"})
	v.must(err)
	if held := revoked.GetHeld(); len(held) != 1 || held[0].GetService() != "chat" || held[0].GetOperationId() != id {
		t.Errorf("%v", held)
	}
	refused(g, "chat", callv1.Code_CODE_NOT_FOUND, "hf")
	v.must(v.stored(v.grantedTo("chat")))

	// Unrecorded, not released.
	v.audit.set(func(f *fakeAudit) { f.down = true })
	refused(g, "chat", callv1.Code_CODE_AUDIT_UNAVAILABLE, "hf")
	v.audit.set(func(f *fakeAudit) { f.down = false })

	// A call that ends the service starts nothing, and another sink did not redeem this one.
	stops := v.open(bearer)
	asked, err := v.authority().Authorise(t.Context(), request(stops.GetSessionId(), "stop_service", "chat"))
	v.must(err)
	v.approve(asked.GetOperationId())
	stop, err := v.wait(stops, asked.GetOperationId(), time.Second)
	v.must(err)
	v.must(v.redeem(stop.GetGrant()))
	refused(stop.GetGrant(), "chat", callv1.Code_CODE_DENIED, "hf")
	if got, err := vaultv1.NewReleaseServiceClient(v.as(executor, "other")).ReleaseCredentials(t.Context(), &vaultv1.ReleaseCredentialsRequest{
		Grant: g, Service: "chat", Names: []string{"hf"}, PublicKey: key.Public(),
	}); err == nil {
		t.Errorf("another sink got %v", got)
	}

	// Over, and halted.
	_, err = v.sink().Settle(t.Context(), &vaultv1.SettleRequest{OperationId: id, Use: 1, Ok: true})
	v.must(err)
	refused(g, "chat", callv1.Code_CODE_DENIED, "hf")
	_, _, next := v.granted(other, "chat")
	v.must(v.redeem(next))
	_, err = v.control().Halt(t.Context(), &vaultv1.HaltRequest{})
	v.must(err)
	refused(next, "chat", callv1.Code_CODE_HALTED, "hf")
	if n := len(v.audit.of(auditv1.Kind_KIND_CREDENTIAL_USED)); n != 1 {
		t.Errorf("%d uses are recorded", n)
	}
}

// TestACredentialStaysWhereItsUseEndsWhileItIsRecorded: a use is recorded before, and what a human ends meanwhile has ended; the log says so.
func TestACredentialStaysWhereItsUseEndsWhileItIsRecorded(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(v *vault) error
		code callv1.Code
	}{
		"the client is gone": {func(v *vault) error { v.revoke(bearer); return nil }, callv1.Code_CODE_DENIED},
		"it is removed": {func(v *vault) error {
			_, err := v.credentials().RemoveCredential(t.Context(), &vaultv1.RemoveCredentialRequest{Name: "hf"})
			return err
		}, callv1.Code_CODE_NOT_FOUND},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVault(t)
			v.must(v.stored(v.value(statement.CredentialAdd, 1, "secret")))
			v.must(v.stored(v.grantedTo("chat")))
			key, err := handover.NewKey()
			v.must(err)
			_, _, g := v.granted(bearer, "chat")
			v.must(v.redeem(g))
			gate, entered, ended := make(chan struct{}), make(chan struct{}, 1), make(chan error, 1)
			v.audit.set(func(f *fakeAudit) { f.gate, f.entered = gate, entered })
			go func() {
				_, err := vaultv1.NewReleaseServiceClient(v.as(executor, "local")).ReleaseCredentials(t.Context(), &vaultv1.ReleaseCredentialsRequest{
					Grant: g, Service: "chat", Names: []string{"hf"}, PublicKey: key.Public(),
				})
				ended <- err
			}()
			select {
			case <-entered:
			case err := <-ended:
				t.Fatalf("no use was recorded: %v", err)
			}
			v.must(c.end(v))
			close(gate)
			wantCode(t, <-ended, c.code)
			denied := v.audit.of(auditv1.Kind_KIND_DENIED)
			if n := len(denied); n == 0 || denied[n-1].GetBody().GetAction() != "credential-refused" || denied[n-1].GetBody().GetDetails()["names"] != "hf" {
				t.Errorf("refusals: %v", denied)
			}
		})
	}
}

// TestOfTwoCredentialsTheFirstIsNotRecordedAsGivenAlone: they are given together or not at all, and where the second use could not be recorded
// the log says so of both.
func TestOfTwoCredentialsTheFirstIsNotRecordedAsGivenAlone(t *testing.T) {
	v := newVault(t)
	v.must(v.stored(v.value(statement.CredentialAdd, 1, "secret")))
	v.must(v.stored(v.grantedTo("chat")))
	for _, c := range []*statement.Credential{
		{
			Action: statement.CredentialAdd, Name: "gh", Version: 1, Delivery: statement.DeliveryFile, Variable: "GH_TOKEN_PATH",
			Commitment: statement.Commitment(salt, "gh", 1, []byte("other")),
		},
		{Action: statement.CredentialGrant, Name: "gh", CredentialGrants: statement.CredentialGrants{Sink: v.ID(executor, "local").String(), Services: []string{"chat"}}},
	} {
		req := &vaultv1.ChangeCredentialRequest{Statement: v.sign(v.credential(c))}
		if c.Commitment != "" {
			req.Value, req.Salt = []byte("other"), salt
		}
		v.must(v.stored(req))
	}
	key, err := handover.NewKey()
	v.must(err)
	_, _, g := v.granted(bearer, "chat")
	v.must(v.redeem(g))
	gate, entered, ended := make(chan struct{}), make(chan struct{}, 1), make(chan error, 1)
	v.audit.set(func(f *fakeAudit) { f.gate, f.entered = gate, entered })
	go func() {
		_, err := vaultv1.NewReleaseServiceClient(v.as(executor, "local")).ReleaseCredentials(t.Context(), &vaultv1.ReleaseCredentialsRequest{
			Grant: g, Service: "chat", Names: []string{"hf", "gh"}, PublicKey: key.Public(),
		})
		ended <- err
	}()
	<-entered
	v.audit.set(func(f *fakeAudit) { f.gate, f.down = nil, true })
	close(gate)
	wantCode(t, <-ended, callv1.Code_CODE_AUDIT_UNAVAILABLE)
	if n := len(v.audit.of(auditv1.Kind_KIND_CREDENTIAL_USED)); n != 1 {
		t.Fatalf("%d uses are recorded", n)
	}
	denied := v.audit.of(auditv1.Kind_KIND_DENIED)
	if n := len(denied); n == 0 || denied[n-1].GetBody().GetAction() != "credential-refused" || denied[n-1].GetBody().GetDetails()["names"] != "hf gh" {
		t.Errorf("refusals: %v", denied)
	}
}

// TestAServerIsGrantedACredentialForEveryClient: egress asks for it without a call, so that a statement that names clients would bind nobody.
func TestAServerIsGrantedACredentialForEveryClient(t *testing.T) {
	v := newVault(t)
	v.restart(func(c *Config, _ *operation.Config) { c.Sinks = append(c.Sinks, v.ID(egress, "local")) })
	v.must(v.stored(v.value(statement.CredentialAdd, 1, "secret")))
	wantCode(t, v.stored(v.unattended(egress, "github", "claude")), callv1.Code_CODE_DENIED)
	v.must(v.stored(v.unattended(egress, "github")))
	v.must(v.stored(v.unattended(executor, "chat", "claude")))
}

// TestACredentialIsReleasedUnattendedWhereAHumanSaidSo: without a call, recorded, and never while the host is halted.
func TestACredentialIsReleasedUnattendedWhereAHumanSaidSo(t *testing.T) {
	v := newVault(t)
	v.must(v.stored(v.value(statement.CredentialAdd, 1, "secret")))
	v.must(v.stored(v.grantedTo("chat")))
	key, err := handover.NewKey()
	v.must(err)
	release := func() ([]byte, error) {
		answer, err := vaultv1.NewReleaseServiceClient(v.as(executor, "local")).ReleaseCredentials(t.Context(), &vaultv1.ReleaseCredentialsRequest{
			Service: "chat", Names: []string{"hf"}, PublicKey: key.Public(),
		})
		return answer.GetSealed(), err
	}
	_, err = release()
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	v.must(v.stored(v.unattended(executor, "chat")))
	sealed, err := release()
	v.must(err)
	if values, err := key.Open(sealed, "chat"); err != nil || string(values[0].Value) != "secret" {
		t.Errorf("%+v, %v", values, err)
	}
	uses := v.audit.of(auditv1.Kind_KIND_CREDENTIAL_USED)
	if len(uses) != 1 || uses[0].GetBody().GetDetails()["unattended"] != "yes" || uses[0].GetOperationId() != "" {
		t.Errorf("%v", uses)
	}
	v.audit.set(func(f *fakeAudit) { f.down = true })
	_, err = release()
	wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE)
	v.audit.set(func(f *fakeAudit) { f.down = false })
	v.clock.advance(time.Hour)
	_, err = release()
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	v.clock.advance(-time.Hour)
	_, err = v.control().Halt(t.Context(), &vaultv1.HaltRequest{})
	v.must(err)
	_, err = release()
	wantCode(t, err, callv1.Code_CODE_HALTED)
}

// TestACredentialGoesIntoNoHeaderButByReference: a call that runs and does not refer to it gets nothing, and the executor gets no header.
func TestACredentialGoesIntoNoHeaderButByReference(t *testing.T) {
	v := newVault(t)
	v.must(v.stored(v.value(statement.CredentialAdd, 1, "secret")))
	v.must(v.stored(v.grantedTo("chat")))
	_, _, g := v.granted(bearer, "chat")
	v.must(v.redeem(g))
	key, err := handover.NewKey()
	v.must(err)
	req := &vaultv1.ReleaseForRequestRequest{Grant: g, Name: "hf", Origin: "https://a.example", Place: "Authorization", PublicKey: key.Public()}
	for _, role := range []optionsv1.Role{executor, gateway, optionsv1.Role_ROLE_OPERATOR, optionsv1.Role_ROLE_EGRESS} {
		answer, err := vaultv1.NewReleaseServiceClient(v.as(role, "local")).ReleaseForRequest(t.Context(), req)
		if err == nil {
			t.Fatalf("%v got %v", role, answer)
		}
		wantCode(t, err, callv1.Code_CODE_DENIED)
	}
	if n := len(v.audit.of(auditv1.Kind_KIND_CREDENTIAL_USED)); n != 0 {
		t.Errorf("%d uses are recorded", n)
	}
}

// TestCredentialsStayAcrossARestart, with new data keys.
func TestCredentialsStayAcrossARestart(t *testing.T) {
	v := newVault(t)
	v.must(v.stored(v.value(statement.CredentialAdd, 1, "secret")))
	v.must(v.stored(v.grantedTo("a", "b")))
	n, err := v.credentials().RotateKeys(t.Context(), &vaultv1.RotateKeysRequest{})
	v.must(err)
	v.restart()
	list, err := v.credentials().ListCredentials(t.Context(), &vaultv1.ListCredentialsRequest{})
	v.must(err)
	if one := list.GetCredentials()[0]; n.GetValues() != 1 || list.GetSealed() || !slices.Equal(one.GetServices(), []string{"a", "b"}) {
		t.Errorf("%v, %v", n, list)
	}
	v.must(v.stored(v.value(statement.CredentialRotate, 2, "second")))
}

// TestASealedVaultPassesNoTextOn: what was released before a start is not known until the key is there. Meanwhile no sink's text is called
// looked through; an agent's own is.
func TestASealedVaultPassesNoTextOn(t *testing.T) {
	v := newVault(t)
	const value = "a value that a service was given"
	v.must(v.stored(v.value(statement.CredentialAdd, 1, value)))
	v.must(v.stored(v.unattended(executor, "chat")))
	looked := func() (string, error) {
		answer, err := v.tokenise(byPermit(permitFor(executor, v.open(bearer).GetPermits()), "it printed "+value))
		return strings.Join(answer.GetTexts(), ""), err
	}
	sealed := filepath.Join(v.Dir, "away")
	restart := func() {
		v.must(os.Rename(filepath.Join(v.Dir, keyring.File), sealed))
		v.restart()
	}
	unseal := func() { v.must(os.Rename(sealed, filepath.Join(v.Dir, keyring.File))) }
	restart()
	if got, err := looked(); err != nil || !strings.Contains(got, value) {
		t.Fatalf("nothing was released: %q, %v", got, err)
	}
	unseal()
	key, err := handover.NewKey()
	v.must(err)
	_, err = vaultv1.NewReleaseServiceClient(v.as(executor, "local")).ReleaseCredentials(t.Context(), &vaultv1.ReleaseCredentialsRequest{
		Service: "chat", Names: []string{"hf"}, PublicKey: key.Public(),
	})
	v.must(err)
	restart()
	got, err := looked()
	wantCode(t, err, callv1.Code_CODE_SEALED)
	if _, err := v.tokenize(v.open(bearer), "mine"); err != nil || got != "" {
		t.Errorf("its own text: %v; a sink's: %q", err, got)
	}
	unseal()
	if got, err := looked(); err != nil || strings.Contains(got, value) || !strings.Contains(got, "[[SECRET:CREDENTIAL:") {
		t.Errorf("unsealed: %q, %v", got, err)
	}
}

// TestArgumentsThatHoldACredentialAreRefused, with the reference to use instead: nobody is asked to sign them, and no record holds them.
func TestArgumentsThatHoldACredentialAreRefused(t *testing.T) {
	v := newVault(t)
	stored, other := "ghp_"+strings.Repeat("A1b2", 9), "ghp_"+strings.Repeat("C3d4", 9) // #nosec G101 -- of no account
	v.must(v.stored(v.value(statement.CredentialAdd, 1, stored)))
	for value, want := range map[string]string{stored: `{"$credential":"hf"}`, other: `{"$credential":"NAME"}`} {
		opened := v.open(bearer)
		_, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "start_service", value))
		wantCode(t, err, callv1.Code_CODE_INVALID_ARGUMENT)
		if f := fault.From(err); f == nil || !strings.Contains(f.Message, want) || strings.Contains(f.Message, value) {
			t.Errorf("it is told: %v", err)
		}
	}
	for _, r := range v.audit.records {
		if raw, err := proto.Marshal(r); err != nil || bytes.Contains(raw, []byte(stored)) || bytes.Contains(raw, []byte(other)) {
			t.Errorf("a record holds one: %v, %v", r, err)
		}
	}
}
