package httpfront

import (
	"crypto/sha256"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"durward.internal/gateway/internal/relay"
)

// A stateless session ends when nobody used it for as long as it may be idle, and not before: a request that is under way is
// use, however long it takes.
func TestIdleSessionsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = time.Minute
		var ended atomic.Int32
		table := newTable(4, idle, func(*entry) { ended.Add(1) })
		token := sha256.Sum256([]byte("token"))
		k := statelessKey(token, "", relay.Caller{})
		if _, admitted := table.add(&entry{token: token, relay: new(relay.Session)}, k, nil); !admitted {
			t.Fatal("not admitted")
		}
		use := func(long time.Duration) {
			e := table.acquire(k, token)
			if e == nil {
				t.Fatal("the session is gone")
			}
			time.Sleep(long)
			table.release(e)
		}
		for range 3 {
			time.Sleep(idle - time.Second)
			use(0)
		}
		use(10 * idle)
		time.Sleep(idle - time.Second)
		synctest.Wait()
		if n := ended.Load(); n != 0 {
			t.Errorf("%d ended early", n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := ended.Load(); n != 1 || table.acquire(k, token) != nil {
			t.Errorf("%d ended", n)
		}
	})
}

// Sessions are found by token and instance together, a principal at its cap loses the idle one that was used first, and a
// table that is closed takes no more.
func TestStatelessTable(t *testing.T) {
	table := newTable(2, time.Minute, func(*entry) {})
	mine, theirs := sha256.Sum256([]byte("mine")), sha256.Sum256([]byte("theirs"))
	add := func(token [sha256.Size]byte, instance string) (*entry, bool) {
		return table.add(&entry{token: token, relay: new(relay.Session)}, statelessKey(token, instance, relay.Caller{}), nil)
	}
	if _, admitted := add(mine, "a"); !admitted {
		t.Fatal("not admitted")
	}
	for name, found := range map[string]*entry{
		"another token":        table.acquire(statelessKey(theirs, "a", relay.Caller{}), theirs),
		"another's key":        table.acquire(statelessKey(mine, "a", relay.Caller{}), theirs),
		"another instance":     table.acquire(statelessKey(mine, "", relay.Caller{}), mine),
		"as a session's id":    table.acquire(key{Stateful, statelessKey(mine, "a", relay.Caller{}).id}, mine),
		"instance in the hash": table.acquire(key{Stateless, string(mine[:31]) + "a"}, mine),
	} {
		if found != nil {
			t.Errorf("%s finds it", name)
		}
	}
	if _, admitted := add(mine, "a"); admitted {
		t.Error("two sessions of one instance")
	}
	first := table.acquire(statelessKey(mine, "a", relay.Caller{}), mine)
	add(mine, "b")
	if evicted, admitted := add(mine, "c"); evicted == nil || evicted.key != statelessKey(mine, "b", relay.Caller{}) || !admitted {
		t.Errorf("evicted %+v, %t", evicted, admitted)
	}
	table.acquire(statelessKey(mine, "c", relay.Caller{}), mine)
	if evicted, admitted := add(mine, "d"); evicted != nil || admitted {
		t.Error("a busy session made room")
	}
	table.release(first)
	if all := table.close(); len(all) != 2 {
		t.Errorf("%d were left", len(all))
	}
	if _, admitted := add(mine, "e"); admitted {
		t.Error("a closed table admits")
	}
}
