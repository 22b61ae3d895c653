package doctor

import (
	"errors"
	"os"
	"testing"

	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/trust"
)

// What the trust folder does not hold counts for nothing, however good it is by itself.
func TestTrust(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*testing.T, *Config)
		look   string
	}{
		{"a key that nobody let in", func(t *testing.T, c *Config) {
			_, public, err := signingkey.Generate("another", nil)
			if err := errors.Join(err, os.WriteFile(c.Home.Key("another.pub"), public, 0o600)); err != nil {
				t.Fatal(err)
			}
			c.Operator.SigningKey = c.Home.Key("another.pub")
		}, "signing key"},
		{"a key with a passphrase that nobody let in", func(t *testing.T, c *Config) {
			private, _, err := signingkey.Generate("another", []byte("a passphrase"))
			if err := errors.Join(err, os.WriteFile(c.Operator.SigningKey, private, 0o600)); err != nil {
				t.Fatal(err)
			}
		}, "signing key"},
		{"another operator's key", func(_ *testing.T, c *Config) { c.Operator.Operator = "bob" }, "signing key"},
		{"a grant key that ends", func(t *testing.T, c *Config) { grantKeyEnds(t, c, 10) }, "grant key"},
		{"a grant key that has ended", func(t *testing.T, c *Config) { grantKeyEnds(t, c, -1) }, "grant key"},
		{"no log keys", func(t *testing.T, c *Config) {
			if err := os.Remove(c.Home.Trust(trust.FileLogKeys)); err != nil {
				t.Fatal(err)
			}
		}, "trust"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := installation(t, 0)
			c.change(t, &cfg)
			if got := level(t, Examine(t.Context(), cfg), c.look); got.Level != Bad || got.Do == "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// grantKeyEnds makes the vault's signing key end in some days.
func grantKeyEnds(t *testing.T, c *Config, days int) {
	t.Helper()
	signers, err := trust.ReadGrantSigners(c.Operator.TrustDir)
	if err != nil {
		t.Fatal(err)
	}
	signers[0].NotAfter = c.Now().AddDate(0, 0, days)
	if err := os.WriteFile(c.Home.Trust(trust.FileGrantSigners), trust.FormatGrantSigners(signers), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestGrantKeyDue(t *testing.T) {
	cfg := installation(t, 0)
	if got := level(t, Examine(t.Context(), cfg), "grant key"); got.Level != Good {
		t.Errorf("a new one: %+v", got)
	}
	grantKeyEnds(t, &cfg, 60)
	if got := level(t, Examine(t.Context(), cfg), "grant key"); got.Level != Warning || got.Do == "" {
		t.Errorf("%+v", got)
	}
}
