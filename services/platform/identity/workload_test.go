package identity_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
)

// from opens the identity that a Workload API issues.
func from(t *testing.T, kit *platformtest.Kit, address string) (*identity.Source, error) {
	t.Helper()
	return rpc.OpenIdentity(t.Context(), config.OwnTLS{WorkloadAPI: address}, optionsv1.Role_ROLE_UNSPECIFIED, kit.Trust)
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) { // what is awaited is in two other processes
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// TestWorkloadAPI: two processes have their identities from an API whose authority no file names. It changes certificates and roots
// while they talk, and no handshake fails; what it sends that fits no process is left, and the last good certificate stays.
func TestWorkloadAPI(t *testing.T) {
	kit, first, second := platformtest.New(t), platformtest.NewCompany(t), platformtest.NewCompany(t)
	const self, peer = "spiffe://durward.local/vault/main", "spiffe://durward.local/gateway/main"
	now := time.Now().Truncate(time.Second)
	vaults, gateways := platformtest.NewWorkloadAPI(t), platformtest.NewWorkloadAPI(t)
	send := func(by *platformtest.Company, until time.Time, roots ...[]byte) {
		for id, api := range map[string]*platformtest.WorkloadAPI{self: vaults, peer: gateways} {
			chain, key := by.Issue(id, now.Add(-time.Minute), until)
			api.Send(id, chain, key, roots...)
		}
	}
	send(first, now.Add(time.Hour), first.Root())
	server, err := from(t, kit, vaults.Address())
	if err != nil || server.ID().String() != self {
		t.Fatalf("%v, %v", server, err)
	}
	client, err := from(t, kit, gateways.Address())
	must(t, err)
	old, err := client.GetX509SVID()
	must(t, err)
	if err := server.Rooted(old.Certificates); err != nil {
		t.Errorf("a peer of the authority: %v", err)
	}

	var load sync.WaitGroup
	var done atomic.Bool
	var handshakes atomic.Int64
	load.Go(func() {
		for !done.Load() {
			if _, serverErr, clientErr := handshake(t, server.ServerTLS(), client.ClientTLS(server.ID())); serverErr != nil || clientErr != nil {
				t.Errorf("handshake %d: %v, %v", handshakes.Load(), serverErr, clientErr)
			}
			handshakes.Add(1)
		}
	})
	both := [][]byte{first.Root(), second.Root()}
	for i, next := range []struct {
		by    *platformtest.Company
		roots [][]byte
	}{{first, both}, {second, both}, {second, both[1:]}} {
		until := now.Add(time.Duration(i+2) * time.Hour)
		send(next.by, until, next.roots...)
		eventually(t, "both take the new certificates up", func() bool { return ends(server).Equal(until) && ends(client).Equal(until) })
		goal := handshakes.Load() + 20
		eventually(t, "handshakes go on", func() bool { return handshakes.Load() >= goal })
	}
	done.Store(true)
	load.Wait()
	t.Logf("%d handshakes while certificates and roots changed", handshakes.Load())
	if err := server.Rooted(old.Certificates); err == nil {
		t.Error("a chain of the authority that is gone still leads to a root")
	}

	last := ends(server)
	for name, c := range map[string]struct {
		id    string
		by    *platformtest.Company
		until time.Time
		says  string
	}{
		"of no authority that it names": {self, first, now.Add(9 * time.Hour), "no root"},
		"another process's":             {peer, second, now.Add(9 * time.Hour), "this process is " + self},
		"ended":                         {self, second, now.Add(-time.Second), "ended"},
		"no identity of ours":           {"spiffe://durward.local/ns/default/sa/x", second, now.Add(9 * time.Hour), "none of the"},
	} {
		chain, key := c.by.Issue(c.id, now.Add(-time.Minute), c.until)
		vaults.Send(c.id, chain, key, second.Root())
		eventually(t, name+" is named", func() bool { err := server.Err(); return err != nil && strings.Contains(err.Error(), c.says) })
		if !ends(server).Equal(last) {
			t.Errorf("%s: it is in use", name)
		}
	}

	vaults.Stop()
	eventually(t, "the API's absence is named", func() bool {
		err := server.Err()
		return err != nil && strings.Contains(err.Error(), "does not answer")
	})
	if _, serverErr, clientErr := handshake(t, server.ServerTLS(), client.ClientTLS(server.ID())); serverErr != nil || clientErr != nil {
		t.Errorf("without the API: %v, %v", serverErr, clientErr)
	}
	send(second, now.Add(10*time.Hour), second.Root())
	vaults.Start()
	eventually(t, "it is back", func() bool { return server.Err() == nil && ends(server).Equal(now.Add(10*time.Hour)) })

	kit.Revoke(client.ID())
	if _, serverErr, _ := handshake(t, server.ServerTLS(), client.ClientTLS(server.ID())); serverErr == nil {
		t.Error("an identity that the trust folder revokes is let in, since an API still issues it")
	}
}

// TestWorkloadAPIOfARole: programs of one Unix user, whom the API knows under two names, are each the one of their kind, also after a
// renewal; there is no other to be.
func TestWorkloadAPIOfARole(t *testing.T) {
	kit, api := platformtest.New(t), platformtest.NewWorkloadAPI(t)
	issue := func(send func(string, []byte, []byte, ...[]byte), role optionsv1.Role, life time.Duration) {
		chain, key, err := kit.CA.Issue(kit.ID(role, "alice"), life)
		must(t, err)
		send(kit.ID(role, "alice").String(), chain, key)
	}
	both := func(life time.Duration) {
		issue(api.Send, optionsv1.Role_ROLE_OPERATOR, life)
		issue(api.SendFirst, optionsv1.Role_ROLE_NOTIFIER, life)
	}
	both(time.Hour)
	open := func(role optionsv1.Role) *identity.Source {
		source, err := rpc.OpenIdentity(t.Context(), config.OwnTLS{WorkloadAPI: api.Address()}, role, kit.Trust)
		if err != nil || source.ID() != kit.ID(role, "alice") {
			t.Fatalf("%s: %v, %v", role, source, err)
		}
		return source
	}
	operator, first := open(optionsv1.Role_ROLE_OPERATOR), ends(open(optionsv1.Role_ROLE_NOTIFIER))
	both(2 * time.Hour)
	eventually(t, "the operator's is renewed", func() bool { return ends(operator).After(first) })
	issue(api.Send, optionsv1.Role_ROLE_NOTIFIER, 3*time.Hour)
	eventually(t, "another's alone is named", func() bool {
		err := operator.Err()
		return err != nil && strings.Contains(err.Error(), "none of the")
	})
}

// TestWorkloadAPIOfAnother: the socket counts for nothing, only who listens there.
func TestWorkloadAPIOfAnother(t *testing.T) {
	kit, company, api := platformtest.New(t), platformtest.NewCompany(t), platformtest.NewWorkloadAPI(t)
	const self = "spiffe://durward.local/vault/main"
	chain, key := company.Issue(self, time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
	api.Send(self, chain, key, company.Root())
	if _, err := from(t, kit, api.Address()); err != nil {
		t.Fatalf("control: %v", err)
	}
	path, _, _ := strings.Cut(api.Address(), ",")
	ctx, stop := context.WithCancel(t.Context())
	var refused error
	source, err := identity.OpenWorkload(ctx, func(ctx context.Context) (conn net.Conn, err error) {
		defer stop()
		conn, err = rpc.DialContext(ctx, path+",user=64001")
		refused = err
		return conn, err
	}, optionsv1.Role_ROLE_UNSPECIFIED, kit.Trust)
	if source != nil || err == nil || refused == nil || !strings.Contains(refused.Error(), "not 64001") {
		t.Errorf("a socket on which another listens: %v, %v", err, refused)
	}
}
