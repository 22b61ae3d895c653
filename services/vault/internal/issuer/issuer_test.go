package issuer

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/vault/internal/store"
)

func TestNewRefusesKeysThatSinksDoNotTrust(t *testing.T) {
	kit := platformtest.New(t)
	now := time.Now()
	another, err := grant.GenerateKey("test")
	if err != nil {
		t.Fatal(err)
	}
	unknown := grant.Key{KID: "next", Private: kit.GrantKey.Private}
	for name, c := range map[string]struct {
		key grant.Key
		at  time.Time
	}{
		"another key of that name": {another, now},
		"unknown name":             {unknown, now},
		"not yet in force":         {kit.GrantKey, now.Add(-48 * time.Hour)},
		"not in force any more":    {kit.GrantKey, now.Add(366 * 24 * time.Hour)},
	} {
		if _, err := New(Config{Key: c.key, Keys: kit.Trust, Now: func() time.Time { return c.at }}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A vault believes its own signatures alone, and its own clock.
func TestOpenGrant(t *testing.T) {
	kit := platformtest.New(t)
	now := time.Now()
	i, err := New(Config{Key: kit.GrantKey, Keys: kit.Trust, Now: func() time.Time { return now }, User: func(client string) string { return client + "'s" }})
	if err != nil {
		t.Fatal(err)
	}
	d := make([]byte, 32)
	signed, g, err := i.Grant(&store.Operation{
		ID: grant.NewID(), Principal: "p", Session: "s", Channel: callv1.Channel_CHANNEL_CLI, ToolName: "t", ToolSource: "native",
		ToolDigest: d, ArgumentsDigest: d, PolicyDigest: d, Audience: "a", Epoch: 1,
	}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := i.OpenGrant(signed)
	if err != nil || !proto.Equal(got, g) || got.GetUser() != "p's" {
		t.Fatalf("%v, %v", got, err)
	}
	// Any byte of the payload or the signature.
	for n := range signed.Payload {
		broken := proto.CloneOf(signed)
		broken.Payload[n] ^= 0x20
		if _, err := i.OpenGrant(broken); err == nil {
			t.Errorf("payload byte %d: accepted", n)
		}
	}
	for n := range signed.Signature {
		broken := proto.CloneOf(signed)
		broken.Signature[n] ^= 1
		if _, err := i.OpenGrant(broken); err == nil {
			t.Errorf("signature byte %d: accepted", n)
		}
	}
	// A permit's signature is not a grant's.
	permit, _, err := i.Permit(Scope{Principal: "p", Session: "s", Channel: callv1.Channel_CHANNEL_CLI, Audience: "a", Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.OpenGrant(&callv1.SignedGrant{Payload: permit.Payload, Kid: permit.Kid, Signature: permit.Signature}); err == nil {
		t.Error("a permit passes as a grant")
	}
	for name, c := range map[string]struct {
		at time.Duration
		ok bool
	}{
		"before": {-time.Nanosecond, false}, "at once": {0, true}, "at the end": {grant.MaxGrantLife - time.Nanosecond, true}, "after": {grant.MaxGrantLife, false},
	} {
		at := timestamppb.New(g.GetIssuedAt().AsTime()).AsTime().Add(c.at)
		now = at
		_, err := i.OpenGrant(signed)
		if c.ok != (err == nil) || !c.ok && !errors.Is(err, ErrExpired) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A permit counts in its time alone.
func TestOpenPermit(t *testing.T) {
	kit := platformtest.New(t)
	now := time.Now()
	i, err := New(Config{Key: kit.GrantKey, Keys: kit.Trust, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	permit, until, err := i.Permit(Scope{Principal: "p", Session: "s", Channel: callv1.Channel_CHANNEL_CLI, Audience: "a", Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	from := now
	for at, want := range map[time.Time]error{from.Add(-time.Second): ErrExpired, from: nil, until.Add(-1): nil, until: ErrExpired} {
		now = at
		if _, err := i.OpenPermit(permit); !errors.Is(err, want) {
			t.Errorf("%s after its begin: %v, want %v", at.Sub(from), err, want)
		}
	}
}
