package identity_test

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/trust"
)

func TestParseRefuses(t *testing.T) {
	for _, s := range []string{
		"", "spiffe://", "spiffe://durward.local", "spiffe://durward.local/vault", "spiffe://durward.local/vault/",
		"spiffe://durward.local//main", "spiffe:///vault/main", "spiffe://durward.local/vault/main/x", "spiffe://durward.local/vault/main/",
		"http://durward.local/vault/main", "SPIFFE://durward.local/vault/main", "spiffe://Durward.local/vault/main",
		"spiffe://durward.local:80/vault/main", "spiffe://u@durward.local/vault/main", "spiffe://durward.local/vault/main?x=1",
		"spiffe://durward.local/vault/main#x", "spiffe://durward.local/Vault/main", "spiffe://durward.local/root/main",
		"spiffe://durward.local/unspecified/main", "spiffe://durward.local/ROLE_VAULT/main", "spiffe://durward.local/vault/..",
		"spiffe://durward.local/vault/.", "spiffe://durward.local/vault/-x", "spiffe://durward.local/vault/a b", "spiffe://durward.local/vault/a%20b",
		"spiffe://durward.local/vault/main\n", " spiffe://durward.local/vault/main", "spiffe://durward.local/vault/mäin",
		"spiffe://durward.local/vault/" + strings.Repeat("a", 64), "spiffe://" + strings.Repeat("a", 256) + "/vault/main",
	} {
		if id, err := identity.Parse(s); !errors.Is(err, identity.ErrInvalid) || !id.IsZero() {
			t.Errorf("Parse(%q) = %v, %v", s, id, err)
		}
	}
}

// The list of revoked identities takes exactly what is an identity: an entry in another spelling would revoke nobody.
func TestRevokedListTakesIdentitiesAlone(t *testing.T) {
	kit := platformtest.New(t)
	read := func(entry string) error {
		kit.WriteTrust(trust.FileRevoked, []byte("revoked: ["+strconv.Quote(entry)+"]\n"))
		_, err := trust.Read(kit.TrustDir)
		return err
	}
	for role := range optionsv1.Role_name {
		for _, s := range []string{
			"spiffe://durward.local/" + identity.RoleName(optionsv1.Role(role)) + "/main", "spiffe://x.y/operator/Alice", "spiffe://durward.local/vault/-x",
			"spiffe://durward.local/egress/" + strings.Repeat("a", 63), "spiffe://durward.local/vault/" + strings.Repeat("a", 64),
			"spiffe://" + strings.Repeat("a", 256) + "/vault/main", "spiffe://durward.local/vault/..", "spiffe://durward.local/Vault/main",
		} {
			_, want := identity.Parse(s)
			if err := read(s); (err == nil) != (want == nil) {
				t.Errorf("%q: Parse says %v, the list %v", s, want, err)
			}
		}
	}
}

func TestParse(t *testing.T) {
	for _, s := range []string{
		"spiffe://durward.local/gateway/main", "spiffe://d/vault/a", "spiffe://example.org/executor/gpu-01.rack_2", "spiffe://x.y/operator/Alice",
		"spiffe://durward.local/egress/" + strings.Repeat("a", 63), "spiffe://durward.local/audit/0",
	} {
		id, err := identity.Parse(s)
		if err != nil || id.String() != s {
			t.Errorf("Parse(%q) = %v, %v", s, id, err)
		}
		if same, err := identity.New(id.TrustDomain(), id.Role(), id.Instance()); err != nil || same != id {
			t.Errorf("New of %q's parts = %v, %v", s, same, err)
		}
		for audience, mine := range map[string]bool{s: true, identity.Everyone(id.TrustDomain()): true, s + "2": false, "": false, "spiffe://elsewhere.example": false} {
			if id.AddressedBy(audience) != mine {
				t.Errorf("%s is addressed by %q: %t", s, audience, !mine)
			}
		}
	}
}

func TestZero(t *testing.T) {
	var nobody identity.ID
	if !nobody.IsZero() || nobody.String() != "" || nobody.Role() != optionsv1.Role_ROLE_UNSPECIFIED {
		t.Errorf("the zero ID is %q", nobody)
	}
	if _, err := identity.New("durward.local", optionsv1.Role_ROLE_UNSPECIFIED, "main"); err == nil {
		t.Error("an identity without a role")
	}
	if _, err := identity.New("durward.local", 99, "main"); err == nil {
		t.Error("an identity with a role that is not known")
	}
}

func TestRoles(t *testing.T) {
	for number := range optionsv1.Role_name {
		role := optionsv1.Role(number)
		name := identity.RoleName(role)
		if got, err := identity.ParseRole(name); role != optionsv1.Role_ROLE_UNSPECIFIED && (err != nil || got != role) {
			t.Errorf("ParseRole(%q) = %v, %v", name, got, err)
		}
	}
}

func TestJSON(t *testing.T) {
	id, err := identity.New("durward.local", optionsv1.Role_ROLE_AUDIT, "main")
	must(t, err)
	if b, err := json.Marshal(id); err != nil || string(b) != `"spiffe://durward.local/audit/main"` {
		t.Errorf("%s, %v", b, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "spiffe://durward.local/vault/main", "spiffe://durward.local/operator/a.b-c_D", "spiffe://d/egress/..", "spiffe://d/vault/%61"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := identity.Parse(s)
		if err == nil && id.String() != s {
			t.Fatalf("Parse(%q).String() = %q", s, id)
		}
		if err != nil && !id.IsZero() {
			t.Fatalf("Parse(%q) fails and returns %q", s, id)
		}
	})
}
