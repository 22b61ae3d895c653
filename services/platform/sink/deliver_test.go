package sink

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/reference"
	"durward.internal/services/platform/statement"
)

// discloser is a vault that discloses what it is told to.
type discloser struct {
	values  []*vaultv1.Disclosed
	deliver error
	asked   int
}

func (d *discloser) Deliver(context.Context, *vaultv1.DeliverRequest, ...grpc.CallOption) (*vaultv1.DeliverResponse, error) {
	d.asked++
	out := &vaultv1.DeliverResponse{}
	for _, v := range d.values {
		out.Capabilities = append(out.Capabilities, &vaultv1.Capability{Pointer: v.GetPointer(), Token: []byte{1}})
	}
	return out, d.deliver
}

func (d *discloser) Resolve(_ context.Context, in *vaultv1.ResolveRequest, _ ...grpc.CallOption) (*vaultv1.ResolveResponse, error) {
	if len(in.GetCapabilities()) != len(d.values) {
		return nil, errors.New("other capabilities")
	}
	return &vaultv1.ResolveResponse{Values: d.values}, nil
}

// The sink gets the value that a human agreed to, and no other, whatever the vault says; what is kept and recorded has the reference.
func TestDeliver(t *testing.T) {
	const value, pointer, kind = "alpha-of-maria", "/service_id", "LABEL"
	ref := reference.Reference{Class: reference.PII, Type: kind, ID: reference.NewID()}
	id, salt := ref.ID.String(), []byte(strings.Repeat("s", 32))
	good := &vaultv1.Disclosed{Pointer: pointer, Ref: id, Type: kind, Value: value, Salt: salt}
	agreed := []statement.Disclosure{{Pointer: pointer, Ref: id, Type: kind, Hint: "a•••", Commitment: statement.DisclosureCommitment(salt, pointer, id, kind, value)}}
	changed := func(change func(*vaultv1.Disclosed)) []*vaultv1.Disclosed {
		d := proto.CloneOf(good)
		change(d)
		return []*vaultv1.Disclosed{d}
	}
	for name, c := range map[string]struct {
		values  []*vaultv1.Disclosed
		agreed  []statement.Disclosure
		none    bool // no statement
		without bool // no discloser
		refused error
		code    callv1.Code // none: it is delivered
	}{
		"another recipient": {values: changed(func(d *vaultv1.Disclosed) { d.Value = "mallory" }), agreed: agreed, code: callv1.Code_CODE_DENIED},
		"another salt":      {values: changed(func(d *vaultv1.Disclosed) { d.Salt = []byte("x") }), agreed: agreed, code: callv1.Code_CODE_DENIED},
		"another argument":  {values: changed(func(d *vaultv1.Disclosed) { d.Pointer = "/other" }), agreed: agreed, code: callv1.Code_CODE_DENIED},
		"another reference": {values: changed(func(d *vaultv1.Disclosed) { d.Ref = reference.NewID().String() }), agreed: agreed, code: callv1.Code_CODE_DENIED},
		"nothing":           {agreed: agreed, code: callv1.Code_CODE_DENIED},
		"not agreed to":     {values: []*vaultv1.Disclosed{good}, code: callv1.Code_CODE_DENIED},
		"no human":          {values: []*vaultv1.Disclosed{good}, none: true, code: callv1.Code_CODE_DENIED},
		"no way to it":      {values: []*vaultv1.Disclosed{good}, agreed: agreed, without: true, code: callv1.Code_CODE_DENIED},
		"the vault refuses": {
			values: []*vaultv1.Disclosed{good}, agreed: agreed, refused: fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "no"), code: callv1.Code_CODE_DENIED,
		},
		"the vault is away": {
			values: []*vaultv1.Disclosed{good}, agreed: agreed, refused: fault.New(callv1.Code_CODE_UNAVAILABLE, "gone"), code: callv1.Code_CODE_UNAVAILABLE,
		},
		"what is no service": {
			values: changed(func(d *vaultv1.Disclosed) { d.Value = "../x" }),
			agreed: []statement.Disclosure{{Pointer: pointer, Ref: id, Type: kind, Commitment: statement.DisclosureCommitment(salt, pointer, id, kind, "../x")}},
			code:   callv1.Code_CODE_INVALID_ARGUMENT,
		},
		"its value": {values: []*vaultv1.Disclosed{good}, agreed: agreed},
	} {
		t.Run(name, func(t *testing.T) {
			d := &discloser{values: c.values, deliver: c.refused}
			a, store, log := newAuthority(t, platformtest.New(t), func(cfg *Config) {
				if !c.without {
					cfg.Discloser = d
				}
			})
			call := spent(t, store)
			call.request, call.signedGrant = &executorv1.StartServiceRequest{ServiceId: proto.String(ref.Marshal())}, &callv1.SignedGrant{Kid: "k"}
			if !c.none {
				call.agreed = &statement.Verified{Statement: &statement.Statement{Disclosures: c.agreed}}
			}
			got := ""
			answer := a.act(t.Context(), call, func(ctx context.Context, request any) (any, error) {
				got = request.(*executorv1.StartServiceRequest).GetServiceId()
				return &executorv1.StartServiceResponse{Changed: true}, Confirm(ctx, func() {})
			})
			a.Wait(t.Context())
			if c.code != 0 {
				if !fault.Is(answer.err, c.code) || got != "" || store.entries[call.key].State != StateNotActed {
					t.Errorf("the handler got %q, the caller %v", got, answer.err)
				}
			} else if answer.err != nil || got != value {
				t.Errorf("the handler got %q, the caller %v", got, answer.err)
			}
			for _, r := range log.records {
				if strings.Contains(r.String(), value) {
					t.Errorf("recorded as %v", r)
				}
			}
			if call.request.(*executorv1.StartServiceRequest).GetServiceId() != ref.Marshal() {
				t.Error("the call's own arguments changed")
			}
		})
	}
	// Arguments without references ask nobody.
	d := &discloser{}
	a, store, _ := newAuthority(t, platformtest.New(t), func(cfg *Config) { cfg.Discloser = d })
	call := spent(t, store)
	call.signedGrant = &callv1.SignedGrant{Kid: "k"}
	answer := a.act(t.Context(), call, func(ctx context.Context, _ any) (any, error) {
		return &executorv1.StartServiceResponse{}, Confirm(ctx, func() {})
	})
	if answer.err != nil || d.asked != 0 {
		t.Errorf("%v; the vault was asked %d times", answer.err, d.asked)
	}
}
