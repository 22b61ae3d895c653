package proof

import (
	"bytes"
	"crypto/ed25519"
	_ "embed"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
)

var (
	key    = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{9}, 32))
	public = key.Public().(ed25519.PublicKey)
)

func call() Claim {
	return Claim{Purpose: callv1.Proof_PURPOSE_CALL, Client: "claude-code", Session: "s-aaaa", Tool: "start_service",
		ArgumentsDigest: bytes.Repeat([]byte{1}, 32), Counter: 7, Time: 1795176001}
}

func open() Claim {
	return Claim{Purpose: callv1.Proof_PURPOSE_OPEN, Client: "claude-code", Counter: 1 << 60, Time: 1795176000}
}

// openFor and openSender are openings in somebody's name.
func openFor() Claim {
	c := open()
	c.Agent = "planner"
	return c
}

func openSender() Claim {
	c := open()
	c.SenderUser, c.SenderRoom = "ada", "ops"
	return c
}

func renew() Claim {
	return Claim{Purpose: callv1.Proof_PURPOSE_RENEW, Client: "claude-code", Session: "s-aaaa", Counter: 8, Time: 1795176002}
}

//go:embed testdata/golden.txt
var vectors string

func TestGoldenVectors(t *testing.T) {
	var lines []string
	for _, c := range []Claim{open(), renew(), call(), openFor(), openSender()} {
		m, err := c.message()
		if err != nil {
			t.Fatal(err)
		}
		p, err := Sign(key, c)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, strings.TrimPrefix(string(m), domain)+" "+hex.EncodeToString(p.Signature))
	}
	if got := strings.Join(lines, "\n") + "\n"; got != vectors {
		t.Errorf("got\n%swant\n%s", got, vectors)
	}
}

func TestVerifyRefuses(t *testing.T) {
	for name, c := range map[string]Claim{
		"call": call(), "open": open(), "renew": renew(), "opening for an agent": openFor(), "opening for a sender": openSender(),
	} {
		p, err := Sign(key, c)
		if err != nil {
			t.Fatal(err)
		}
		if err := Verify(public, c, p); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for what, spoil := range map[string]func(*Claim, *callv1.Proof){
			"client":  func(c *Claim, _ *callv1.Proof) { c.Client = "cursor" },
			"session": func(c *Claim, _ *callv1.Proof) { c.Session += "b" },
			"tool":    func(c *Claim, _ *callv1.Proof) { c.Tool += "b" },
			"digest":  func(c *Claim, _ *callv1.Proof) { c.ArgumentsDigest = bytes.Repeat([]byte{2}, 32) },
			"purpose": func(c *Claim, _ *callv1.Proof) { c.Purpose = c.Purpose%3 + 1 },
			"counter": func(_ *Claim, p *callv1.Proof) { p.Counter++ },
			"time":    func(_ *Claim, p *callv1.Proof) { p.Time++ },
			"no time": func(_ *Claim, p *callv1.Proof) { p.Time = 0 },
			"agent":   func(c *Claim, _ *callv1.Proof) { c.Agent += "x" },
			"sender": func(c *Claim, _ *callv1.Proof) {
				c.SenderUser, c.SenderRoom = c.SenderUser+"x", c.SenderRoom+"x"
			},
			"relabel":  func(_ *Claim, p *callv1.Proof) { p.Purpose = p.Purpose%3 + 1 },
			"bit":      func(_ *Claim, p *callv1.Proof) { p.Signature[5] ^= 1 },
			"no bytes": func(_ *Claim, p *callv1.Proof) { p.Signature = nil },
		} {
			c2, p2 := c, proto.CloneOf(p)
			spoil(&c2, p2)
			if err := Verify(public, c2, p2); err == nil {
				t.Errorf("%s with another %s verifies", name, what)
			}
		}
		if err := Verify(public, c, nil); err == nil {
			t.Error("no proof verifies")
		}
		if err := Verify(nil, c, p); err == nil {
			t.Error("no key verifies")
		}
	}
}

// TestNamesAreUnderTheSignature: who carries an opening neither drops the name in it, nor puts another there, nor moves one name to
// another member's place.
func TestNamesAreUnderTheSignature(t *testing.T) {
	for name, spoil := range map[string]func(*Claim){
		"the agent dropped":      func(c *Claim) { c.Agent = "" },
		"another agent":          func(c *Claim) { c.Agent = "lead" },
		"the sender dropped":     func(c *Claim) { c.SenderUser, c.SenderRoom = "", "" },
		"another user":           func(c *Claim) { c.SenderUser = "bob" },
		"another room":           func(c *Claim) { c.SenderRoom = "all" },
		"user and room swapped":  func(c *Claim) { c.SenderUser, c.SenderRoom = c.SenderRoom, c.SenderUser },
		"agent and user swapped": func(c *Claim) { c.Agent, c.SenderUser = c.SenderUser, c.Agent },
		"half a sender":          func(c *Claim) { c.SenderRoom = "" },
	} {
		c := openSender()
		c.Agent = "intern"
		p, err := Sign(key, c)
		if err != nil {
			t.Fatal(err)
		}
		if err := Verify(public, c, p); err != nil {
			t.Fatal(err)
		}
		spoil(&c)
		if err := Verify(public, c, p); err == nil {
			t.Errorf("an opening with %s verifies", name)
		}
	}
	p, err := Sign(key, open())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Claim{"an agent": openFor(), "a sender": openSender()} {
		if err := Verify(public, c, p); err == nil {
			t.Errorf("an opening for nobody in particular verifies with %s added", name)
		}
	}
}

func TestSignRefusesIncompleteClaims(t *testing.T) {
	for name, c := range map[string]Claim{
		"empty":                   {},
		"call without session":    {Purpose: callv1.Proof_PURPOSE_CALL, Client: "c", Tool: "t", ArgumentsDigest: make([]byte, 32), Time: 1},
		"call without digest":     {Purpose: callv1.Proof_PURPOSE_CALL, Client: "c", Session: "s", Tool: "t", Time: 1},
		"call without time":       {Purpose: callv1.Proof_PURPOSE_CALL, Client: "c", Session: "s", Tool: "t", ArgumentsDigest: make([]byte, 32)},
		"renewal with a tool":     {Purpose: callv1.Proof_PURPOSE_RENEW, Client: "c", Session: "s", Tool: "t", Time: 1},
		"renewal without time":    {Purpose: callv1.Proof_PURPOSE_RENEW, Client: "c", Session: "s"},
		"opening with a session":  {Purpose: callv1.Proof_PURPOSE_OPEN, Client: "c", Session: "s", Time: 1},
		"opening without time":    {Purpose: callv1.Proof_PURPOSE_OPEN, Client: "c"},
		"opening for half a user": {Purpose: callv1.Proof_PURPOSE_OPEN, Client: "c", Time: 1, SenderUser: "ada"},
		"opening for half a room": {Purpose: callv1.Proof_PURPOSE_OPEN, Client: "c", Time: 1, SenderRoom: "ops"},
		"renewal with an agent":   {Purpose: callv1.Proof_PURPOSE_RENEW, Client: "c", Session: "s", Time: 1, Agent: "planner"},
		"renewal with a sender":   {Purpose: callv1.Proof_PURPOSE_RENEW, Client: "c", Session: "s", Time: 1, SenderUser: "ada", SenderRoom: "ops"},
		"call with an agent": {Purpose: callv1.Proof_PURPOSE_CALL, Client: "c", Session: "s", Tool: "t", ArgumentsDigest: make([]byte, 32), Time: 1,
			Agent: "planner"},
		"opening before 1970": {Purpose: callv1.Proof_PURPOSE_OPEN, Client: "c", Time: -1},
	} {
		if _, err := Sign(key, c); err == nil {
			t.Errorf("%s is signed", name)
		}
	}
}

// TestWindowAgainstASet compares the window with the obvious set, for counters in any order.
func TestWindowAgainstASet(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var w Window
	seen := map[uint64]bool{}
	newest := uint64(0)
	for i := range 200_000 {
		c := uint64(1)
		switch rng.IntN(3) {
		case 0:
			c = newest + uint64(rng.IntN(3000))
		case 1:
			c = max(1, newest-min(newest, uint64(rng.IntN(1100))))
		case 2:
			c = newest + 1
		}
		want := c != 0 && !seen[c] && (c > newest || newest-c < windowSize)
		if got := w.Accept(c); got != want {
			t.Fatalf("step %d: Accept(%d) = %v, want %v (newest %d)", i, c, got, want, newest)
		}
		if want {
			seen[c] = true
			newest = max(newest, c)
		}
	}
}
