package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/reference"
)

// Discloser resolves references; vaultv1.DisclosureServiceClient is one.
type Discloser interface {
	Deliver(ctx context.Context, in *vaultv1.DeliverRequest, opts ...grpc.CallOption) (*vaultv1.DeliverResponse, error)
	Resolve(ctx context.Context, in *vaultv1.ResolveRequest, opts ...grpc.CallOption) (*vaultv1.ResolveResponse, error)
}

const sayUndisclosed = "the arguments refer to personal data that this call may not have; nothing was done"

// deliver returns the request that the handler gets: the call's own, or, where its arguments refer to personal data, one with the values in
// their places. Each value must be the one that the human's statement commits to, for that place: the vault is not believed. Records and
// digests are of the call's own request, which holds references alone.
func (a *Authority) deliver(ctx context.Context, c *call) (proto.Message, error) {
	if c.signedGrant == nil {
		return c.request, nil // references are text to what no human approves call by call
	}
	raw, err := c.canonical()
	if err != nil {
		return nil, err
	}
	places, err := reference.InJSON(raw)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(places, func(p reference.Place) bool { return p.Class == reference.PII }) {
		return c.request, nil
	}
	values, err := a.resolve(ctx, c)
	if err != nil {
		return nil, undisclosed(err)
	}
	filled, err := reference.Fill(raw, func(p reference.Place) (string, error) {
		if p.Class != reference.PII {
			return p.Marshal(), nil
		}
		v, ok := values[p.Pointer+" "+p.ID.String()]
		if !ok || !c.agreed.Discloses(p.Pointer, p.ID.String(), p.Type, v.GetSalt(), v.GetValue()) {
			return "", fmt.Errorf("the value at %s is not the one that a human agreed to", p.Pointer)
		}
		return contract.Spelled(c.request, p.Pointer, v.GetValue()), nil
	})
	if err != nil {
		return nil, undisclosed(err)
	}
	request, err := c.tool.Decode(filled)
	if err != nil {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "with the values in the place of the references the arguments are not valid; nothing was done")
	}
	return request, nil
}

// resolve asks the vault for capabilities and spends them.
func (a *Authority) resolve(ctx context.Context, c *call) (map[string]*vaultv1.Disclosed, error) {
	if a.cfg.Discloser == nil || c.agreed == nil {
		return nil, errors.New("no human agreed to it, or this sink takes no references")
	}
	ctx, cancel := context.WithTimeout(ctx, vaultTimeout)
	defer cancel()
	delivered, err := a.cfg.Discloser.Deliver(ctx, &vaultv1.DeliverRequest{Grant: c.signedGrant})
	if err != nil {
		return nil, err
	}
	resolved, err := a.cfg.Discloser.Resolve(ctx, &vaultv1.ResolveRequest{Grant: c.signedGrant, Capabilities: delivered.GetCapabilities()})
	if err != nil {
		return nil, err
	}
	out := map[string]*vaultv1.Disclosed{}
	for _, v := range resolved.GetValues() {
		out[v.GetPointer()+" "+v.GetRef()] = v
	}
	return out, nil
}

// undisclosed is what the caller sees of a failure; of one that will pass it is told.
func undisclosed(err error) error {
	switch f := fault.From(err); f.Code {
	case callv1.Code_CODE_UNAVAILABLE, callv1.Code_CODE_TIMEOUT, callv1.Code_CODE_AUDIT_UNAVAILABLE, callv1.Code_CODE_HALTED, callv1.Code_CODE_EXPIRED,
		callv1.Code_CODE_RATE_LIMITED:
		return f
	default:
		return fault.New(callv1.Code_CODE_DENIED, sayUndisclosed, fault.WithCause(err))
	}
}
