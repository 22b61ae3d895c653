package statement

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestCredentialStatements(t *testing.T) {
	t.Parallel()
	digest := Commitment([]byte("key"), "hf", 1, []byte("value"))
	add := Credential{Action: CredentialAdd, Name: "hf", Version: 1, Commitment: digest, Delivery: DeliveryFile, Variable: "HF_TOKEN_PATH"}
	rotate := Credential{Action: CredentialRotate, Name: "hf", Version: 2, Commitment: digest}
	grant := Credential{Action: CredentialGrant, Name: "hf", CredentialGrants: CredentialGrants{Sink: "spiffe://d/executor/local", Services: []string{"a", "b"}}}
	origin := Credential{Action: CredentialGrant, Name: "hf", CredentialGrants: CredentialGrants{
		Sink: "spiffe://d/egress/local", Origins: []string{"https://api.example.com"}, Place: "Authorization", Scheme: "Bearer", Agents: []string{"claude", "codex/Writer.2"},
	}}
	with := func(c Credential, change func(*Credential)) *Credential { change(&c); return &c }
	try := func(c *Credential) error {
		now := time.Now()
		s := &Statement{
			Type: Type, Version: Version, Kind: KindCredential, ID: strings.Repeat("a", 32), Operator: "ada", IssuedAt: FormatTime(now),
			NotBefore: FormatTime(now), ExpiresAt: FormatTime(now.Add(time.Minute)), Epoch: 1, Audience: "spiffe://d/vault/local", Credential: c,
		}
		raw, err := s.Marshal()
		if err != nil {
			return err
		}
		_, err = Parse(raw)
		return err
	}
	for name, c := range map[string]*Credential{
		"none":                    nil,
		"no action":               with(add, func(c *Credential) { c.Action = "" }),
		"a name with a path":      with(add, func(c *Credential) { c.Name = "../hf" }),
		"added as version 2":      with(add, func(c *Credential) { c.Version = 2 }),
		"a version without end":   with(rotate, func(c *Credential) { c.Version = 1 << 31 }),
		"rotated without a value": with(rotate, func(c *Credential) { c.Commitment = "" }),
		"rotated and granted":     with(rotate, func(c *Credential) { c.Sink, c.Services = grant.Sink, grant.Services }),
		"rotated to a variable":   with(rotate, func(c *Credential) { c.Variable = "X" }),
		"rotated to a delivery":   with(rotate, func(c *Credential) { c.Delivery = DeliveryFile }),
		"another action":          with(rotate, func(c *Credential) { c.Action = "forget" }),
		"another action's grant":  with(grant, func(c *Credential) { c.Action = "forget" }),
		"granted as a version":    with(grant, func(c *Credential) { c.Version = 1 }),
		"granted with commitment": with(grant, func(c *Credential) { c.Commitment = digest }),
		"granted with a variable": with(grant, func(c *Credential) { c.Variable = "X" }),
		"a scheme for services":   with(grant, func(c *Credential) { c.Scheme = "Bearer" }),
		"a scheme in a body":      with(origin, func(c *Credential) { c.Place = "/token" }),
		"too many services": with(grant, func(c *Credential) {
			c.Services = nil
			for i := range maxServices + 1 {
				c.Services = append(c.Services, fmt.Sprintf("s%06d", i))
			}
		}),
		"added without commitment": with(add, func(c *Credential) { c.Commitment = "" }),
		"the value for commitment": with(add, func(c *Credential) { c.Commitment = "value" }),
		"added and granted":        with(add, func(c *Credential) { c.Sink, c.Services = grant.Sink, grant.Services }),
		"another way":              with(add, func(c *Credential) { c.Delivery = "argument" }),
		"the loader's variable":    with(add, func(c *Credential) { c.Variable = "LD_PRELOAD" }),
		"the path":                 with(add, func(c *Credential) { c.Variable = "PATH" }),
		"two variables":            with(add, func(c *Credential) { c.Variable = "A=1\nB" }),
		"rotated to version 1":     with(rotate, func(c *Credential) { c.Version = 1 }),
		"rotated to another way":   with(rotate, func(c *Credential) { c.Delivery, c.Variable = DeliveryFile, "X" }),
		"granted to nobody":        with(grant, func(c *Credential) { c.Services = nil }),
		"granted by nobody":        with(grant, func(c *Credential) { c.Sink = "" }),
		"granted to all":           with(grant, func(c *Credential) { c.Services = []string{"*"} }),
		"granted twice":            with(grant, func(c *Credential) { c.Services = []string{"a", "a"} }),
		"granted out of order":     with(grant, func(c *Credential) { c.Services = []string{"b", "a"} }),
		"an origin with a path":    with(origin, func(c *Credential) { c.Origins = []string{"https://api.example.com/v1"} }),
		"an origin by http":        with(origin, func(c *Credential) { c.Origins = []string{"http://api.example.com"} }),
		"every origin":             with(origin, func(c *Credential) { c.Origins = []string{"https://*"} }),
		"its own port":             with(origin, func(c *Credential) { c.Origins = []string{"https://api.example.com:443"} }),
		"a user in the origin":     with(origin, func(c *Credential) { c.Origins = []string{"https://u@api.example.com"} }),
		"origins and services":     with(origin, func(c *Credential) { c.Services = []string{"a"} }),
		"an origin to anybody":     with(origin, func(c *Credential) { c.Agents = nil }),
		"an origin unattended":     with(origin, func(c *Credential) { c.Unattended = true }),
		"no header":                with(origin, func(c *Credential) { c.Place = "" }),
		"a URL":                    with(origin, func(c *Credential) { c.Place, c.Scheme = "?key", "" }),
		"the host as header":       with(origin, func(c *Credential) { c.Place = "Host" }),
		"two headers":              with(origin, func(c *Credential) { c.Place = "A: b\r\nC" }),
		"a scheme with a value":    with(origin, func(c *Credential) { c.Scheme = "Bearer x" }),
		"a header for services":    with(grant, func(c *Credential) { c.Place = "Authorization" }),
		"an end that is none":      with(grant, func(c *Credential) { c.Until = "tomorrow" }),
		"every agent":              with(grant, func(c *Credential) { c.Agents = []string{"*"} }),
		"a client in capitals":     with(grant, func(c *Credential) { c.Agents = []string{"Codex"} }),
		"an agent without a name":  with(grant, func(c *Credential) { c.Agents = []string{"codex/"} }),
		"an agent with a path":     with(grant, func(c *Credential) { c.Agents = []string{"codex/../claude"} }),
		"added for an hour":        with(add, func(c *Credential) { c.Until = "2030-01-01T00:00:00Z" }),
		"granted with a value":     with(grant, func(c *Credential) { c.Version, c.Commitment = 1, digest }),
	} {
		if err := try(c); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	environment, member := *with(add, func(c *Credential) { c.Delivery = DeliveryEnvironment }), *with(origin, func(c *Credential) { c.Place, c.Scheme = "/auth/token", "" })
	for _, c := range []Credential{add, environment, rotate, grant, origin, member} {
		if err := try(&c); err != nil {
			t.Errorf("%s: %v", c.Action, err)
		}
	}
}

func TestCommitment(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range []string{
		Commitment([]byte("k"), "a", 1, []byte("v")), Commitment([]byte("l"), "a", 1, []byte("v")), Commitment([]byte("k"), "b", 1, []byte("v")),
		Commitment([]byte("k"), "a", 2, []byte("v")), Commitment([]byte("k"), "a", 1, []byte("w")), Commitment([]byte("k"), "av", 1, nil),
	} {
		if seen[c] {
			t.Error("two are alike")
		}
		seen[c] = true
	}
}

func TestOrigin(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"", "api.example.com", "ftp://a", "http://a", "https://", "https:///x", "https://u:p@a", "https:a", "https://a:", "https://a b", "https://ä.example",
		"https://a%2fb", "http://127.0.0.1.example.com", "http://2130706433", "http://[::1", "javascript://a",
	} {
		if origin, err := Origin(raw); err == nil {
			t.Errorf("%q has the origin %q", raw, origin)
		}
	}
	for raw, want := range map[string]string{
		"https://API.example.com/v1?x=1#y": "https://api.example.com", "https://a:443/": "https://a", "https://a:8443": "https://a:8443",
		"http://127.0.0.1:80": "http://127.0.0.1", "http://[::1]:8080/x": "http://[::1]:8080",
	} {
		if origin, err := Origin(raw); err != nil || origin != want {
			t.Errorf("%q: %q, %v", raw, origin, err)
		}
	}
}
