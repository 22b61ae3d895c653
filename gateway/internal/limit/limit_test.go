package limit

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func newLimiter(t *testing.T, conf Config) *Limiter {
	t.Helper()
	l, err := New(conf)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestSettingsOutOfBoundsAreRefused(t *testing.T) {
	for want, conf := range map[string]Config{
		"limits.tools.per_s: must be 0.1 to 100000":        {Rates: Rates{Tools: Rate{PerS: -1}}},
		"limits.reads.per_s: must be 0.1 to 100000":        {Rates: Rates{Reads: Rate{PerS: math.NaN()}}},
		"limits.lists.per_s: must be 0.1 to 100000":        {Rates: Rates{Lists: Rate{PerS: math.Inf(1)}}},
		"limits.resources.burst: must be 1 to 100000":      {Rates: Rates{Resources: Rate{Burst: -1}}},
		"limits.messages.burst: must be 1 to 100000":       {Rates: Rates{Messages: Rate{Burst: 100001}}},
		"limits.clients.ada.reads.per_s: must be 0.1 to":   {Clients: map[string]Rates{"ada": {Reads: Rate{PerS: 1e9}}}},
		"limits.strangers.per_s: must be 0.1 to 100000":    {Strangers: Rate{PerS: 0.01}},
		"limits.strangers_at_once: must be 1 to 64":        {StrangersAtOnce: 65},
		"limits.principals: must be 16 to 65536":           {Principals: 15},
		"limits.requests_per_principal: must be 1 to 4096": {RequestsPerPrincipal: -1},
		"limits.connections: must be 16 to 65536":          {Connections: 1},
		"limits.connections_per_principal: must be 1 to":   {ConnectionsPerPrincipal: 1 << 17},
		"limits.connections_of_strangers: must be 1 to":    {ConnectionsOfStrangers: -5},
		"limits.refusal_delay_ms: must be 1 to 2000":       {RefusalDelayMS: 2001},
	} {
		if _, err := New(conf); err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "\n") != 0 {
			t.Errorf("%+v: %v, want %q alone", conf, err, want)
		}
	}
}

func TestDefaults(t *testing.T) {
	ten := Rate{PerS: 10, Burst: 20}
	want := Config{
		Rates:     Rates{Tools: ten, Reads: ten, Resources: ten, Lists: ten, Messages: Rate{PerS: 50, Burst: 100}},
		Clients:   map[string]Rates{},
		Strangers: ten, StrangersAtOnce: 4,
		Principals: 4096, RequestsPerPrincipal: 64, CallsPerPrincipal: 32, Connections: 1024, ConnectionsPerPrincipal: 64, ConnectionsOfStrangers: 256,
		RefusalDelayMS: 200,
	}
	if diff := cmp.Diff(want, newLimiter(t, Config{}).Config()); diff != "" {
		t.Error(diff)
	}
}

// A principal gets its burst and then its rate, for each kind by itself, and no other principal notices (SEC-R2, SEC-R3).
func TestBucketsAreIndependent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Config{})
		for kind, burst := range map[Kind]int{Tools: 20, Reads: 20, Resources: 20, Lists: 20, Messages: 100} {
			for i := range burst {
				if retry := l.Take("ada", kind); retry != 0 {
					t.Fatalf("%v: request %d has to wait %v", kind, i, retry)
				}
			}
			per := time.Second / time.Duration(l.conf.Rates.of(kind).PerS)
			if retry := l.Take("ada", kind); retry <= 0 || retry > per {
				t.Errorf("%v: after its burst the wait is %v", kind, retry)
			}
			if retry := l.Take("grace", kind); retry != 0 {
				t.Errorf("%v: another principal waits %v", kind, retry)
			}
		}
		for kind := range kinds {
			if l.Take("ada", kind) == 0 {
				t.Errorf("%v: the other kinds gave it a token", kind)
			}
		}
		began := time.Now()
		passed := 0
		for time.Since(began) < 10*time.Second {
			if l.Take("ada", Reads) == 0 {
				passed++
			}
			time.Sleep(10 * time.Millisecond)
		}
		if passed < 99 || passed > 101 {
			t.Errorf("%d passed in ten seconds, want 100", passed)
		}
	})
}

// A client may have buckets of its own; what they leave out is as for all.
func TestClientsOwnRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Config{Rates: Rates{Lists: Rate{Burst: 5}}, Clients: map[string]Rates{"ada": {Reads: Rate{PerS: 40, Burst: 80}}}})
		for principal, want := range map[string]map[Kind]int{"ada": {Reads: 80, Tools: 20, Lists: 5}, "grace": {Reads: 20, Tools: 20, Lists: 5}} {
			for kind, burst := range want {
				passed := 0
				for l.Take(principal, kind) == 0 {
					passed++
				}
				if passed != burst {
					t.Errorf("%s, %v: %d passed at once, want %d", principal, kind, passed, burst)
				}
			}
		}
		if retry := l.Take("ada", Reads); retry > 25*time.Millisecond {
			t.Errorf("ada waits %v for the next read", retry)
		}
	})
}

// What Take says about the time to wait is true.
func TestRetryIsWhenItSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Config{Rates: Rates{Tools: Rate{PerS: 0.5, Burst: 1}}})
		if l.Take("ada", Tools) != 0 {
			t.Fatal("the first must pass")
		}
		retry := l.Take("ada", Tools)
		if retry < 1900*time.Millisecond || retry > 2*time.Second {
			t.Fatalf("retry after %v, want 2 s", retry)
		}
		time.Sleep(retry - 10*time.Millisecond)
		if l.Take("ada", Tools) == 0 {
			t.Error("it passed before the time")
		}
		time.Sleep(11 * time.Millisecond)
		if retry := l.Take("ada", Tools); retry != 0 {
			t.Errorf("at the time it waits %v", retry)
		}
	})
}

func TestRequestsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Config{RequestsPerPrincipal: 2, CallsPerPrincipal: 3})
		entered := func(s Slot) (n int) {
			for range 5 {
				if l.Enter("ada", s) {
					n++
				}
			}
			return n
		}
		if n := entered(Requests); n != 2 {
			t.Errorf("%d requests may be under way, want 2", n)
		}
		if n := entered(LargeMessages); n != 2 {
			t.Errorf("%d large messages may be in memory beside them, want 2", n)
		}
		if n := entered(Calls); n != 3 {
			t.Errorf("%d calls may be under way beside them, want 3", n)
		}
		if !l.Enter("grace", Requests) {
			t.Error("another principal is kept out")
		}
		l.Leave("ada", Requests)
		if !l.Enter("ada", Requests) {
			t.Error("there is room again")
		}
		// What is under way is not forgotten, however long it takes.
		time.Sleep(time.Hour)
		l.Take("somebody", Reads)
		if l.Enter("ada", Requests) {
			t.Error("a stream was forgotten")
		}
	})
}

// A larger message costs more, but never more than a full bucket.
func TestTakeN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Config{})
		if l.TakeN("ada", Messages, 60) != 0 {
			t.Fatal("60 of 100")
		}
		if retry := l.TakeN("ada", Messages, 60); retry < 399*time.Millisecond || retry > 400*time.Millisecond {
			t.Errorf("60 of 40: wait %v, want 400 ms", retry)
		}
		if l.TakeN("ada", Messages, 40) != 0 {
			t.Error("what was refused was taken")
		}
		if retry := l.TakeN("ada", Messages, 1000); retry < 1999*time.Millisecond || retry > 2*time.Second {
			t.Errorf("more than the bucket holds: wait %v, want 2 s", retry)
		}
	})
}

// held returns how many principals are held.
func (l *Limiter) held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.byPrincipal)
}

// A principal that has been away is dropped, but only when its buckets are full: dropping gains nobody anything (OBS-2).
func TestIdleEntriesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Config{Rates: Rates{Lists: Rate{PerS: 0.1, Burst: 20}}})
		for i := range 1000 {
			l.Take(fmt.Sprint("p", i), Reads)
		}
		for range 20 {
			l.Take("slow", Lists)
		}
		time.Sleep(2 * time.Minute)
		if l.Take("slow", Lists) != 0 {
			t.Error("it has been given twelve more")
		}
		if n := l.held(); n != 1 {
			t.Errorf("%d principals are held, want the one whose bucket is not full", n)
		}
		for range 11 {
			l.Take("slow", Lists)
		}
		if l.Take("slow", Lists) == 0 {
			t.Error("the sweep filled its bucket")
		}
	})
}

func TestMorePrincipalsThanRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Config{Principals: 16})
		for i := range 16 {
			if l.Take(fmt.Sprint("p", i), Reads) != 0 {
				t.Fatalf("principal %d is kept out", i)
			}
		}
		for i := range 10_000 {
			if l.Take(fmt.Sprint("q", i), Reads) == 0 || l.Enter(fmt.Sprint("q", i), Requests) {
				t.Fatal("there was room for one too many")
			}
		}
		if l.Take("p0", Reads) != 0 {
			t.Error("one that was there is kept out")
		}
		time.Sleep(2 * time.Second) // their buckets are full again
		if l.Take("q", Reads) != 0 || l.held() > 16 {
			t.Errorf("no room was made, or too much: %d", l.held())
		}
	})
}

func TestLimiterUnderConcurrency(t *testing.T) {
	l := newLimiter(t, Config{Principals: 16, Rates: Rates{Reads: Rate{PerS: 0.1, Burst: 500}}})
	var mu sync.Mutex
	passed := 0
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				if l.Enter("ada", Requests) {
					l.Leave("ada", Requests)
				}
				if l.Take("ada", Reads) == 0 {
					mu.Lock()
					passed++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	if passed != 500 && passed != 501 {
		t.Errorf("%d of 1,600 passed, want 500", passed)
	}
}

func hash(s string) [sha256.Size]byte { return sha256.Sum256([]byte(s)) }

func TestKnownCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKnown(2)
		if _, ok := k.Principal(hash("a")); ok {
			t.Fatal("it knows somebody from the start")
		}
		k.Remember(hash("a"), "ada")
		time.Sleep(time.Hour)
		k.Remember(hash("b"), "bob")
		time.Sleep(time.Second)
		k.Principal(hash("a"))
		time.Sleep(time.Second)
		k.Remember(hash("c"), "cy")
		if _, ok := k.Principal(hash("b")); ok {
			t.Error("the one that was used longest ago is still there")
		}
		if p, ok := k.Principal(hash("a")); !ok || p != "ada" {
			t.Errorf("%q, %t", p, ok)
		}
		k.Forget(hash("a"))
		if _, ok := k.Principal(hash("a")); ok {
			t.Error("a revoked one is still known")
		}
		time.Sleep(rememberFor + time.Second)
		if _, ok := k.Principal(hash("c")); ok {
			t.Error("one that was idle for a day is still known")
		}
		if len(k.byHash) != 0 {
			t.Errorf("%d are kept", len(k.byHash))
		}
	})
}

func TestGateIsSlowAndNarrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := newLimiter(t, Config{StrangersAtOnce: 2, Strangers: Rate{PerS: 5, Burst: 10}}).Config()
		g := NewGate(conf)
		var mu sync.Mutex
		inside, most, passed, crowded := 0, 0, 0, 0
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				leave := func() {}
				err := g.Wait(t.Context())
				if err == nil {
					leave, err = g.Enter(t.Context())
				}
				mu.Lock()
				if err != nil {
					if !errors.Is(err, ErrCrowded) {
						t.Error(err)
					}
					crowded++
					mu.Unlock()
					return
				}
				passed++
				inside++
				most = max(most, inside)
				mu.Unlock()
				time.Sleep(10 * time.Millisecond)
				mu.Lock()
				inside--
				mu.Unlock()
				leave()
			})
		}
		all.Wait()
		if most > 2 {
			t.Errorf("%d were inside at once", most)
		}
		if passed < 14 || passed > 15 || crowded != 100-passed {
			t.Errorf("%d passed and %d were turned away, want 15 and 85", passed, crowded)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Wait(ctx); !errors.Is(err, ErrCrowded) {
			t.Errorf("one that left: %v", err)
		}
		first, err := g.Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Enter(t.Context()); !errors.Is(err, ErrCrowded) {
			t.Errorf("a third inside: %v", err)
		}
		first()
		if _, err := g.Enter(t.Context()); err != nil {
			t.Errorf("somebody left, and yet: %v", err)
		}
	})
}
