package server_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/sink/unattended"
	"durward.internal/services/platform/statement"
)

// party begins a standing statement for a ticket's session.
func party(tk *ticket, kind statement.Kind) *statement.Statement {
	st := &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: kind, ID: grant.NewID(), Operator: "alice",
		IssuedAt: tk.statement.IssuedAt, NotBefore: tk.statement.NotBefore, ExpiresAt: tk.statement.ExpiresAt,
		Epoch: tk.statement.Epoch, Audience: tk.statement.Audience, Principal: tk.statement.Principal, Session: tk.statement.Session,
		Channel: tk.statement.Channel,
	}
	if kind == statement.KindDangerous {
		st.Version, st.Uses = statement.VersionConfirmed, 20
	}
	return st
}

// modeScope is a grant for a switch that names no subject, under a scope for switches to mode small by whatever plan.
func (w *world) modeScope(r *executorv1.SwitchModeRequest) *ticket {
	w.t.Helper()
	tk := w.ticketFor("switch_mode", r)
	scope := party(tk, statement.KindScope)
	scope.Tools, scope.Uses, scope.AnySubject = []statement.Tool{*tk.statement.Tool}, 3, true
	scope.Pinned = []statement.Pin{{Pointer: "/mode_id", Value: json.RawMessage(`"small"`)}}
	scope.Free = []string{"/plan_digest"}
	tk.statement, tk.grant.SubjectDigest = scope, nil
	return tk
}

// TestAScopeForAModeIsForThatMode: any plan of it, by its newest digest, and nothing beside it.
func TestAScopeForAModeIsForThatMode(t *testing.T) {
	for name, c := range map[string]struct {
		request func(w *world) *executorv1.SwitchModeRequest
		code    callv1.Code
	}{
		"another mode": {func(w *world) *executorv1.SwitchModeRequest { return switchTo("large", w.plan("large")) }, denied},
		"an argument that it does not free": {func(w *world) *executorv1.SwitchModeRequest {
			r := switchTo("small", w.plan("small"))
			r.MarginMibOverride = proto.Uint32(256)
			return r
		}, denied},
		"an older plan": {func(*world) *executorv1.SwitchModeRequest { return switchTo("small", strings.Repeat("0", 64)) }, callv1.Code_CODE_PLAN_CHANGED},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHost(t)
			r := c.request(w)
			_, err := w.gateway.SwitchMode(with(t.Context(), rpc.MetadataGrant, w.sign(w.modeScope(r))), r)
			wantCode(t, err, c.code)
			if w.driver.count() != 0 || w.vault.redemptions() != 0 {
				t.Error("it had an effect, or was spent")
			}
		})
	}
	w := newHost(t)
	r := switchTo("small", w.plan("small"))
	out, err := w.gateway.SwitchMode(with(t.Context(), rpc.MetadataGrant, w.sign(w.modeScope(r))), r)
	w.must(err)
	if out.GetOutcome() != executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED || w.log.last().GetBody().GetDetails()["statement_kind"] != "scope" {
		t.Errorf("result %v, recorded %v", out, w.log.last())
	}
}

// TestAScopeStartsNothingThatChangedSince: the catalog is edited between the scope and the call, and while the call waits.
func TestAScopeStartsNothingThatChangedSince(t *testing.T) {
	w := newWorld(t)
	tk := w.ticket("alpha")
	scope := party(tk, statement.KindScope)
	scope.Tools, scope.Uses, scope.SubjectDigests = []statement.Tool{*tk.statement.Tool}, 3, []string{tk.statement.SubjectDigest}
	scope.Pinned = []statement.Pin{{Pointer: "/service_id", Value: json.RawMessage(`"alpha"`)}}
	tk.statement, tk.grant.SubjectDigest = scope, nil
	w.write(strings.Replace(catalogText, "name: Alpha", "name: Alpha two", 1))
	w.must(w.source.Reload())
	_, err := w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(tk)), start("alpha"))
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
	if w.driver.count() != 0 || w.vault.redemptions() != 0 {
		t.Error("it had an effect, or was spent")
	}
}

// TestDangerousModeOverTheWire: a WRITE of a dangerous session runs under the statement alone and is tagged all the way.
func TestDangerousModeOverTheWire(t *testing.T) {
	w := newWorld(t)
	tk := w.ticket("alpha")
	tk.statement, tk.grant.SubjectDigest, tk.grant.Dangerous = party(tk, statement.KindDangerous), nil, true
	_, err := w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(tk)), start("alpha"))
	w.must(err)
	for _, r := range w.log.records {
		if !r.GetBody().GetDangerous() || r.GetBody().GetDetails()["statement_id"] != tk.statement.ID {
			t.Errorf("%s is recorded as %v", r.GetKind(), r.GetBody())
		}
	}
	kept, err := w.store.Lookup(t.Context(), grant.SpendKey(tk.grant))
	w.must(err)
	if !kept.Dangerous || w.driver.starts != 1 {
		t.Errorf("kept as %v, %d starts", kept, w.driver.starts)
	}
}

// TestDangerousModeEndsForWhoWaits: a start that waits for its GPU while a human ends dangerous mode does not begin.
func TestDangerousModeEndsForWhoWaits(t *testing.T) {
	for name, revoked := range map[string]bool{"revoked": true, "in force": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			// Longer than a client waits by itself.
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			go w.authority.Run(ctx)
			alpha, ok := w.source.Current().Lookup("alpha")
			if !ok {
				t.Fatal("no service alpha")
			}
			release, err := w.leases.Loading(alpha)
			w.must(err)
			// By then a busy machine has asked once too, and will ask again.
			defer time.AfterFunc(6*time.Second, func() {
				w.vault.set(func(v *vault) { v.revoked = revoked })
				release()
			}).Stop()
			tk := w.ticket("alpha")
			tk.statement, tk.grant.SubjectDigest, tk.grant.Dangerous = party(tk, statement.KindDangerous), nil, true
			_, err = w.gateway.StartService(with(ctx, rpc.MetadataGrant, w.sign(tk)), start("alpha"))
			if !revoked {
				w.must(err)
				return
			}
			wantCode(t, err, callv1.Code_CODE_EXPIRED)
			if w.driver.count() != 0 {
				t.Error("it was started")
			}
			// The vault hears that nothing was done.
			for late := time.After(30 * time.Second); ; {
				select {
				case operation := <-w.vault.told:
					if operation != tk.grant.GetOperationId() {
						continue
					}
				case <-late:
					t.Fatal("the vault was told nothing")
				}
				w.vault.set(func(v *vault) {
					if v.settled[tk.grant.GetOperationId()] {
						t.Error("the vault was told that it was done")
					}
				})
				return
			}
		})
	}
}

// TestAnOverrideComesBack: what an argument set for its call is in the reply and in the record, and below the human's limit nothing
// is done.
func TestAnOverrideComesBack(t *testing.T) {
	w := newHost(t)
	permit, err := grant.SignPermit(w.kit.GrantKey, w.permit("simulate_mode"))
	w.must(err)
	ctx := with(t.Context(), rpc.MetadataPermit, permit)
	_, err = w.gateway.SimulateMode(ctx, &executorv1.SimulateModeRequest{ModeId: proto.String("small"), MarginMibOverride: proto.Uint32(127)})
	if f := wantCode(t, err, callv1.Code_CODE_INVALID_ARGUMENT); f.Field != "margin_mib_override" || !strings.Contains(f.Message, "128 MiB") {
		t.Errorf("refused with %q, field %q", f.Message, f.Field)
	}
	r := switchTo("small", strings.Repeat("0", 64))
	r.MarginMibOverride = proto.Uint32(0)
	_, err = w.gateway.SwitchMode(with(t.Context(), rpc.MetadataGrant, w.sign(w.ticketFor("switch_mode", r))), r)
	wantCode(t, err, callv1.Code_CODE_INVALID_ARGUMENT)
	if w.vault.redemptions() != 0 {
		t.Error("an approval was spent on a margin that nobody allows")
	}

	var trailer metadata.MD
	simulated, err := w.gateway.SimulateMode(ctx, &executorv1.SimulateModeRequest{ModeId: proto.String("small"), MarginMibOverride: proto.Uint32(128)}, grpc.Trailer(&trailer))
	w.must(err)
	told := func(what string) {
		t.Helper()
		o := outcome(t, trailer)
		if diff := cmp.Diff([]string{"margin_mib=128"}, o.GetOverrides()); diff != "" || !strings.Contains(strings.Join(o.GetWarnings(), "\n"), "margin_mib=128") {
			t.Errorf("%s: overrides (-want +got):\n%s\nwarnings %q", what, diff, o.GetWarnings())
		}
		if got := w.log.last().GetBody().GetDetails()["overrides"]; got != "margin_mib=128" {
			t.Errorf("%s: the record says %q", what, got)
		}
	}
	told("simulated")
	r = switchTo("small", simulated.GetPlanDigest())
	r.MarginMibOverride = proto.Uint32(128)
	signed := w.sign(w.switchTicket(r))
	for _, what := range []string{"switched", "replayed"} {
		_, err = w.gateway.SwitchMode(with(t.Context(), rpc.MetadataGrant, signed), r, grpc.Trailer(&trailer))
		w.must(err)
		told(what)
	}
	_, err = w.gateway.SimulateMode(ctx, &executorv1.SimulateModeRequest{ModeId: proto.String("small")}, grpc.Trailer(&trailer))
	w.must(err)
	if o := outcome(t, trailer); len(o.GetOverrides()) != 0 {
		t.Errorf("the next call goes by the last one's override: %v", o)
	}
}

// TestAListedSwitchRunsUnattended: what `durward policy allow` writes lets that client switch to these modes, and nobody else to any.
func TestAListedSwitchRunsUnattended(t *testing.T) {
	entries, err := unattended.Parse([]any{map[string]any{
		"tool": "switch_mode", "clients": []any{"claude"}, "arguments": map[string]any{"mode_id": []any{"small"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *sink.Config) { c.Unattended = entries })
	w.write(withModes)
	w.must(w.source.Reload())
	unattended := func(mode, principal string) error {
		r := switchTo(mode, w.plan(mode))
		tk := w.ticketFor("switch_mode", r)
		tk.statement, tk.grant.SubjectDigest, tk.grant.Principal = nil, nil, principal
		_, err := w.gateway.SwitchMode(with(t.Context(), rpc.MetadataGrant, w.sign(tk)), r)
		return err
	}
	wantCode(t, unattended("large", "claude"), denied)
	wantCode(t, unattended("small", "cursor"), denied)
	if w.driver.count() != 0 {
		t.Error("a refused switch had an effect")
	}
	w.must(unattended("small", "claude"))
}
