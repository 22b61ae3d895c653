package store

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// testCredentials: what is put in is read back, a statement works once, and what is taken away is gone.
func testCredentials(t *testing.T, s *Store) {
	ctx, when := t.Context(), time.Unix(1_800_000_000, 5).UTC()
	used := func(n byte) UsedStatement {
		return UsedStatement{Digest: []byte{n}, Kind: "credential", Operator: "ada", UsedAt: when}
	}
	c := &Credential{Name: "hf", Delivery: "file", Variable: "HF"}
	first := CredentialVersion{Name: "hf", Version: 1, Value: []byte{0, 1, 0xff}, AddedBy: "ada", AddedAt: when}
	second := CredentialVersion{Name: "hf", Version: 2, Value: []byte{2}, AddedBy: "ada", AddedAt: when}
	services := CredentialGrant{Name: "hf", Sink: "executor", Services: []string{"a", "b"}, Unattended: true, EndsAt: when.Add(time.Hour)}
	origins := CredentialGrant{Name: "hf", Sink: "egress", Origins: []string{"https://a"}, Place: "Authorization", Scheme: "Bearer", Agents: []string{"x/y"}}
	must(t, s.PutCredential(ctx, &Credential{Name: "other"}, CredentialVersion{Name: "other", Version: 1, Value: []byte{1}}, used(9))) // in nobody's way
	if err := s.GrantCredential(ctx, services, used(1)); !errors.Is(err, ErrState) {
		t.Errorf("granted before it is there: %v", err)
	}
	if err := s.PutCredential(ctx, c, second, used(1)); !errors.Is(err, ErrState) {
		t.Errorf("its second value first: %v", err)
	}
	must(t, s.PutCredential(ctx, c, first, used(1)))
	if err := s.PutCredential(ctx, c, second, used(1)); !errors.Is(err, ErrStatementUsed) {
		t.Errorf("by the same statement: %v", err)
	}
	if err := s.PutCredential(ctx, c, first, used(2)); !errors.Is(err, ErrState) {
		t.Errorf("twice: %v", err)
	}
	must(t, s.PutCredential(ctx, c, second, used(2)))
	must(t, s.GrantCredential(ctx, services, used(3)))
	must(t, s.GrantCredential(ctx, origins, used(4)))
	must(t, s.UseCredentials(ctx, []CredentialUse{{Name: "hf", Service: "a", Version: 2, OperationID: "o", UsedAt: when}}))
	use := CredentialUse{Name: "hf", Service: "a", Version: 2, OperationID: "p", UsedAt: when}
	must(t, s.UseCredentials(ctx, []CredentialUse{use}))
	want := *c
	want.ChangedAt, want.Versions, want.Grants, want.Uses = when, []CredentialVersion{second, first}, []CredentialGrant{origins, services}, []CredentialUse{use}
	look := func(what string) {
		t.Helper()
		got, err := s.Credential(ctx, "hf")
		must(t, err)
		if diff := cmp.Diff(&want, got, emptyAsNil); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	look("granted to two sinks")
	services.Services, services.Unattended = []string{"b"}, false
	must(t, s.RevokeCredential(ctx, "hf", []CredentialGrant{services}, when))
	want.Grants = []CredentialGrant{origins, services}
	look("revoked from a")
	services.Services, origins.Origins = nil, nil
	must(t, s.RevokeCredential(ctx, "hf", []CredentialGrant{services, origins}, when))
	want.Grants = nil
	look("revoked from all")
	must(t, s.RemoveCredential(ctx, "hf", 1))
	want.Versions = want.Versions[:1]
	look("without its first value")

	// New data keys come with every value, or not at all.
	if _, err := s.Keyring(ctx); !errors.Is(err, ErrNotFound) {
		t.Errorf("a keyring before the first: %v", err)
	}
	ring := Keyring{Wrapped: []byte{7}, Salt: []byte{1}, ChangedAt: when}
	if err := s.SetKeyring(ctx, ring, []CredentialVersion{first}); !errors.Is(err, ErrState) {
		t.Errorf("with a value that is gone: %v", err)
	}
	second.Value = []byte{9}
	must(t, s.SetKeyring(ctx, ring, []CredentialVersion{second}))
	kept, err := s.Keyring(ctx)
	must(t, err)
	if diff := cmp.Diff(&ring, kept, emptyAsNil); diff != "" {
		t.Error(diff)
	}
	want.Versions[0].Value = []byte{9}
	look("under new keys")
	must(t, s.RemoveCredential(ctx, "hf", 0))
	if _, err := s.Credential(ctx, "hf"); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed: %v", err)
	}
	must(t, s.PutCredential(ctx, c, first, used(5)))
	if got, err := s.Credential(ctx, "hf"); err != nil || len(got.Grants)+len(got.Uses) != 0 {
		t.Errorf("what was removed left something behind: %+v, %v", got, err)
	}
}

// emptyAsNil: a list of nothing is read as an empty one or as none.
var emptyAsNil = cmp.FilterValues(func(x, y []string) bool { return len(x) == 0 && len(y) == 0 }, cmp.Ignore())
