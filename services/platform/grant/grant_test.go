package grant

import (
	"bytes"
	"crypto/ed25519"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/platformtest/testfile"
)

//go:embed testdata
var testdata embed.FS

var update = flag.Bool("update", false, "write the golden vectors anew")

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// testKey is derived from a fixed seed, so that signatures are the same everywhere.
var testKey = Key{KID: "test-1", Private: ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32))}

type keyring map[string]ed25519.PublicKey

func (k keyring) GrantKey(kid string, _ time.Time) (ed25519.PublicKey, error) {
	if key, ok := k[kid]; ok {
		return key, nil
	}
	return nil, errors.New("unknown")
}

var keys = keyring{"test-1": testKey.Private.Public().(ed25519.PublicKey)}

func sampleGrant() *callv1.Grant {
	return &callv1.Grant{
		Version:         1,
		Id:              "00112233445566778899aabbccddeeff",
		OperationId:     "ffeeddccbbaa99887766554433221100",
		Use:             1,
		Principal:       "claude-code",
		Session:         "s-aaaaaaaaaaaaaaaa",
		Channel:         callv1.Channel_CHANNEL_CLI,
		Tool:            &callv1.ToolRef{Name: "start_service", Source: "native", DefinitionDigest: bytes.Repeat([]byte{1}, 32)},
		ArgumentsDigest: bytes.Repeat([]byte{2}, 32),
		SubjectDigest:   bytes.Repeat([]byte{3}, 32),
		Audience:        "spiffe://durward.local/executor/local",
		PolicyDigest:    bytes.Repeat([]byte{4}, 32),
		Epoch:           5,
		IssuedAt:        timestamppb.New(now),
		NotBefore:       timestamppb.New(now),
		ExpiresAt:       timestamppb.New(now.Add(60 * time.Second)),
		Statements:      []*callv1.HumanStatement{{Statement: []byte(`{"a":1}`), Signature: []byte("sig")}},
		RequestId:       "r-aaaaaaaaaaaaaaaaaaaaaaaaaa",
	}
}

func samplePermit() *callv1.Permit {
	return &callv1.Permit{
		Version:   1,
		Id:        "00112233445566778899aabbccddeeff",
		Principal: "claude-code",
		Session:   "s-aaaaaaaaaaaaaaaa",
		Channel:   callv1.Channel_CHANNEL_CLI,
		Tools:     []string{"gpu_status", "list_services", "service_info"},
		Audience:  "spiffe://durward.local/executor/local",
		Epoch:     5,
		IssuedAt:  timestamppb.New(now),
		NotBefore: timestamppb.New(now),
		ExpiresAt: timestamppb.New(now.Add(60 * time.Second)),
	}
}

// vector is one golden vector: the bytes on the wire.
type vector struct {
	KID       string `json:"kid"`
	PublicKey string `json:"public_key"`
	Payload   string `json:"payload"`
	Signature string `json:"signature"`
}

func golden(t *testing.T, file string, got vector) {
	t.Helper()
	if *update {
		b, _ := json.MarshalIndent(got, "", "  ")
		if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	b, err := testdata.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want vector
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-golden +got):\n%s", file, diff)
	}
}

func TestGoldenVectors(t *testing.T) {
	public := hex.EncodeToString(keys["test-1"])
	signed, err := Sign(testKey, sampleGrant())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/grant.golden.json", vector{signed.Kid, public, hex.EncodeToString(signed.Payload), hex.EncodeToString(signed.Signature)})
	permit, err := SignPermit(testKey, samplePermit())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/permit.golden.json", vector{permit.Kid, public, hex.EncodeToString(permit.Payload), hex.EncodeToString(permit.Signature)})

	back, err := Verify(signed, keys, now)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sampleGrant(), back, protocmp.Transform()); diff != "" {
		t.Errorf("grant after a round trip (-want +got):\n%s", diff)
	}
	backPermit, err := VerifyPermit(permit, keys, now)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(samplePermit(), backPermit, protocmp.Transform()); diff != "" {
		t.Errorf("permit after a round trip (-want +got):\n%s", diff)
	}
}

func TestVerifyRefusesWhatWasNotSigned(t *testing.T) {
	signed, err := Sign(testKey, sampleGrant())
	if err != nil {
		t.Fatal(err)
	}
	// Every single bit of payload and signature counts.
	for name, field := range map[string]func(*callv1.SignedGrant) []byte{
		"payload":   func(s *callv1.SignedGrant) []byte { return s.Payload },
		"signature": func(s *callv1.SignedGrant) []byte { return s.Signature },
	} {
		for bit := range 8 * len(field(signed)) {
			forged := proto.CloneOf(signed)
			field(forged)[bit/8] ^= 1 << (bit % 8)
			if _, err := Verify(forged, keys, now); err == nil {
				t.Fatalf("%s with bit %d flipped verifies", name, bit)
			}
		}
	}
	other := proto.CloneOf(signed)
	other.Kid = "test-2"
	if _, err := Verify(other, keys, now); err == nil {
		t.Error("an unknown kid verifies")
	}
	if _, err := Verify(nil, keys, now); err == nil {
		t.Error("nothing verifies")
	}
	// A permit's signature is not a grant's, whatever the payload.
	permit, _ := SignPermit(testKey, samplePermit())
	if _, err := Verify(&callv1.SignedGrant{Payload: permit.Payload, Kid: permit.Kid, Signature: permit.Signature}, keys, now); !errors.Is(err, ErrSignature) {
		t.Errorf("a permit taken for a grant: %v, want ErrSignature", err)
	}
}

// resign signs any payload with the real key, as a hostile vault could.
func resign(payload []byte) *callv1.SignedGrant {
	return &callv1.SignedGrant{Payload: payload, Kid: testKey.KID, Signature: ed25519.Sign(testKey.Private, append([]byte(grantDomain), payload...))}
}

func TestVerifyRefusesUnknownFieldsAndVersions(t *testing.T) {
	payload, _ := proto.Marshal(sampleGrant())
	extra := protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 1)
	if _, err := Verify(resign(append(bytes.Clone(payload), extra...)), keys, now); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown field: %v", err)
	}
	nested := sampleGrant()
	nested.Tool.ProtoReflect().SetUnknown(extra)
	payload, _ = proto.Marshal(nested)
	if _, err := Verify(resign(payload), keys, now); !errors.Is(err, ErrUnknown) {
		t.Errorf("nested unknown field: %v", err)
	}
	inStatement := sampleGrant()
	inStatement.Statements[0].ProtoReflect().SetUnknown(extra)
	payload, _ = proto.Marshal(inStatement)
	if _, err := Verify(resign(payload), keys, now); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown field in a statement: %v", err)
	}
	future := sampleGrant()
	future.Version = 2
	payload, _ = proto.Marshal(future)
	if _, err := Verify(resign(payload), keys, now); !errors.Is(err, ErrVersion) {
		t.Errorf("unknown version: %v", err)
	}
}

func TestIncompleteIsRefusedOnBothSides(t *testing.T) {
	for name, spoil := range map[string]func(*callv1.Grant){
		"no id":                 func(g *callv1.Grant) { g.Id = "" },
		"upper-case id":         func(g *callv1.Grant) { g.Id = "00112233445566778899AABBCCDDEEFF" },
		"short operation":       func(g *callv1.Grant) { g.OperationId = "ff" },
		"use 0":                 func(g *callv1.Grant) { g.Use = 0 },
		"no principal":          func(g *callv1.Grant) { g.Principal = "" },
		"no session":            func(g *callv1.Grant) { g.Session = "" },
		"no channel":            func(g *callv1.Grant) { g.Channel = 0 },
		"no tool":               func(g *callv1.Grant) { g.Tool = nil },
		"a tool without a name": func(g *callv1.Grant) { g.Tool.Name = "" },
		"a tool of no source":   func(g *callv1.Grant) { g.Tool.Source = "" },
		"short tool digest":     func(g *callv1.Grant) { g.Tool.DefinitionDigest = []byte{1} },
		"no arguments digest":   func(g *callv1.Grant) { g.ArgumentsDigest = nil },
		"short subject digest":  func(g *callv1.Grant) { g.SubjectDigest = []byte{1} },
		"no policy digest":      func(g *callv1.Grant) { g.PolicyDigest = nil },
		"no audience":           func(g *callv1.Grant) { g.Audience = "" },
		"epoch 0":               func(g *callv1.Grant) { g.Epoch = 0 },
		"epoch beyond the last": func(g *callv1.Grant) { g.Epoch = 1<<53 - 1 },
		"no expiry":             func(g *callv1.Grant) { g.ExpiresAt = nil },
		"no time of issue":      func(g *callv1.Grant) { g.IssuedAt = &timestamppb.Timestamp{Seconds: now.Unix(), Nanos: -1} },
		"a time that is none":   func(g *callv1.Grant) { g.NotBefore = &timestamppb.Timestamp{Seconds: now.Unix(), Nanos: -1} },
		"an end that is none":   func(g *callv1.Grant) { g.ExpiresAt = &timestamppb.Timestamp{Seconds: now.Unix() + 1, Nanos: -1} },
		"ends before its issue": func(g *callv1.Grant) {
			g.NotBefore, g.ExpiresAt = timestamppb.New(now.Add(-2*time.Second)), timestamppb.New(now.Add(-time.Second))
		},
		"61 s":                   func(g *callv1.Grant) { g.ExpiresAt = timestamppb.New(now.Add(61 * time.Second)) },
		"ends before it begins":  func(g *callv1.Grant) { g.NotBefore = timestamppb.New(now.Add(2 * time.Minute)) },
		"endless request id":     func(g *callv1.Grant) { g.RequestId = strings.Repeat("r", 65) },
		"empty statement":        func(g *callv1.Grant) { g.Statements[0].Statement = nil },
		"statement, no evidence": func(g *callv1.Grant) { g.Statements[0].Signature = nil },
	} {
		t.Run(name, func(t *testing.T) {
			g := sampleGrant()
			spoil(g)
			if _, err := Sign(testKey, g); err == nil {
				t.Error("Sign accepts it")
			}
			payload, _ := proto.Marshal(g)
			if _, err := Verify(resign(payload), keys, now); !errors.Is(err, ErrIncomplete) {
				t.Errorf("Verify says %v", err)
			}
		})
	}
	for name, spoil := range map[string]func(*callv1.Permit){
		"no id":                 func(p *callv1.Permit) { p.Id = "" },
		"no principal":          func(p *callv1.Permit) { p.Principal = "" },
		"no session":            func(p *callv1.Permit) { p.Session = "" },
		"no channel":            func(p *callv1.Permit) { p.Channel = 0 },
		"no audience":           func(p *callv1.Permit) { p.Audience = "" },
		"a tool without a name": func(p *callv1.Permit) { p.Tools = []string{"", "a"} },
		"unsorted tools":        func(p *callv1.Permit) { p.Tools = []string{"b", "a"} },
		"a tool twice":          func(p *callv1.Permit) { p.Tools = []string{"a", "a"} },
		"61 s":                  func(p *callv1.Permit) { p.ExpiresAt = timestamppb.New(now.Add(61 * time.Second)) },
	} {
		p := samplePermit()
		spoil(p)
		if _, err := SignPermit(testKey, p); err == nil {
			t.Errorf("a permit is signed: %s", name)
		}
		payload, err := proto.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		signed := &callv1.SignedPermit{Payload: payload, Kid: testKey.KID, Signature: ed25519.Sign(testKey.Private, append([]byte(permitDomain), payload...))}
		if _, err := VerifyPermit(signed, keys, now); !errors.Is(err, ErrIncomplete) {
			t.Errorf("a permit verifies: %s: %v", name, err)
		}
	}
	p := samplePermit()
	p.Version++
	if _, err := SignPermit(testKey, p); !errors.Is(err, ErrVersion) {
		t.Errorf("a permit of another version: %v", err)
	}
	for name, key := range map[string]Key{"no name": {Private: testKey.Private}, "no key": {KID: testKey.KID}, "half a key": {KID: testKey.KID, Private: testKey.Private[:32]}} {
		if _, err := Sign(key, sampleGrant()); err == nil {
			t.Errorf("a key with %s signs", name)
		}
	}
	for epoch, ok := range map[uint64]bool{0: false, 1: true, MaxEpoch: true, MaxEpoch + 1: false, 1 << 63: false} {
		p, g := samplePermit(), sampleGrant()
		p.Epoch, g.Epoch = epoch, epoch
		if _, err := SignPermit(testKey, p); (err == nil) != ok {
			t.Errorf("a permit of epoch %d: %v", epoch, err)
		}
		if _, err := Sign(testKey, g); (err == nil) != ok {
			t.Errorf("a grant of epoch %d: %v", epoch, err)
		}
	}
}

func TestKeyFile(t *testing.T) {
	path := t.TempDir() + "/grant.key"
	testfile.Write(t, path, testKey.Format())
	back, err := LoadKey(path)
	if err != nil || back.KID != testKey.KID || !back.Private.Equal(testKey.Private) {
		t.Fatalf("LoadKey = %v, %v", back.KID, err)
	}
	for _, content := range []string{"", "durward-grant-key-v1 kid", "durward-grant-key-v1 kid AAAA", "kid " + string(testKey.Format()[21:])} {
		testfile.Write(t, path, content)
		if _, err := LoadKey(path); err == nil {
			t.Errorf("LoadKey of %q = nil error", content)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	signed, _ := Sign(testKey, sampleGrant())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Verify(signed, keys, now); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzVerify(f *testing.F) {
	payload, _ := proto.Marshal(sampleGrant())
	f.Add(payload)
	f.Add([]byte{8, 1})
	f.Fuzz(func(t *testing.T, payload []byte) {
		g, err := Verify(resign(payload), keys, now)
		if err != nil {
			return
		}
		if HasUnknown(g) || g.GetVersion() != Version || g.GetAudience() == "" {
			t.Fatalf("accepted %v", g)
		}
	})
}
