// Package limit says how much one client may ask of the gateway: token buckets for each principal and kind of request, how
// many requests it has under way, which credentials the vault has accepted, and a gate for all others. It runs in the
// untrusted edge and holds no credential, only hashes. It trusts the names of principals, which are the vault's.
//
// Buckets are independent: a client that lists too often can still wait for its operation, and no client spends what is
// another's. Everything kept here is bounded, and dropped when it is idle. What is dropped is as good as new: a bucket goes
// only when it is full again, so that leaving and coming back gains nothing.
package limit

import (
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Kind is a kind of request with a bucket of its own.
type Kind int

// The kinds; Config says what each is.
const (
	Messages Kind = iota
	Tools
	Reads
	Resources
	Lists
	kinds
)

// String returns the kind's name as the settings have it.
func (k Kind) String() string {
	return [kinds]string{"messages", "tools", "reads", "resources", "lists"}[k]
}

// of returns the bucket of a kind.
func (r Rates) of(k Kind) Rate {
	return [kinds]Rate{Messages: r.Messages, Tools: r.Tools, Reads: r.Reads, Resources: r.Resources, Lists: r.Lists}[k]
}

// sweepEvery is how often entries that are as good as new are dropped.
const sweepEvery = time.Minute

// busy is what a principal is told when it has too much under way, or there are too many principals.
const busy = time.Second

// Limiter holds the buckets of all principals. It is safe for concurrent use, starts no goroutine and never blocks.
type Limiter struct {
	conf Config

	mu          sync.Mutex
	byPrincipal map[string]*entry
	swept       time.Time
}

// entry is one principal's. A bucket that is nil is full.
type entry struct {
	buckets [kinds]*rate.Limiter
	taken   [slots]int
}

// New returns a Limiter with nothing in it. It validates conf.
func New(conf Config) (*Limiter, error) {
	if err := conf.Validate(); err != nil {
		return nil, err
	}
	return &Limiter{
		conf:        conf,
		byPrincipal: map[string]*entry{},
		swept:       time.Now(),
	}, nil
}

// Config returns the limits that are in force, defaults filled in.
func (l *Limiter) Config() Config { return l.conf }

// Take takes one token of a principal's bucket. If there is none it takes nothing and returns after how long there is one;
// 0 means that the request may go on.
func (l *Limiter) Take(principal string, k Kind) (retry time.Duration) {
	return l.TakeN(principal, k, 1)
}

// TakeN takes n tokens of a principal's bucket, or as many as it holds when it is full, if that is less. If there are not so
// many it takes none and returns after how long there are.
func (l *Limiter) TakeN(principal string, k Kind, n int) (retry time.Duration) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(principal, now)
	if e == nil {
		return busy
	}
	bucket := e.buckets[k]
	if bucket == nil {
		r := l.conf.Of(principal).of(k)
		bucket = rate.NewLimiter(rate.Limit(r.PerS), r.Burst)
		e.buckets[k] = bucket
	}
	n = min(n, bucket.Burst())
	if bucket.AllowN(now, n) {
		return 0
	}
	missing := float64(n) - bucket.TokensAt(now)
	return max(time.Duration(missing/float64(bucket.Limit())*float64(time.Second)), time.Millisecond)
}

// Slot is something of which a principal has a few at a time.
type Slot int

// The slots.
const (
	// Requests are HTTP requests under way: Config.RequestsPerPrincipal.
	Requests Slot = iota
	// LargeMessages are messages in memory that are not small: two.
	LargeMessages
	// Calls are tool calls under way: Config.CallsPerPrincipal.
	Calls
	slots
)

const maxLargeMessages = 2

// Enter takes one of a principal's slots and reports whether there was one; if so, Leave must follow.
func (l *Limiter) Enter(principal string, s Slot) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(principal, time.Now())
	if e == nil || e.taken[s] >= [slots]int{Requests: l.conf.RequestsPerPrincipal, LargeMessages: maxLargeMessages, Calls: l.conf.CallsPerPrincipal}[s] {
		return false
	}
	e.taken[s]++
	return true
}

// Leave gives back what Enter took.
func (l *Limiter) Leave(principal string, s Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.byPrincipal[principal]; e != nil {
		e.taken[s]--
	}
}

// entry returns a principal's entry, or nil if there is no room for one. The caller holds the mutex.
func (l *Limiter) entry(principal string, now time.Time) *entry {
	if now.Sub(l.swept) >= sweepEvery {
		l.sweep(now)
	}
	e := l.byPrincipal[principal]
	if e != nil {
		return e
	}
	if len(l.byPrincipal) >= l.conf.Principals {
		if now.Sub(l.swept) >= busy { // not at every request of a crowd
			l.sweep(now)
		}
		if len(l.byPrincipal) >= l.conf.Principals {
			return nil
		}
	}
	e = new(entry)
	l.byPrincipal[principal] = e
	return e
}

// sweep drops the entries that are as good as new.
func (l *Limiter) sweep(now time.Time) {
	l.swept = now
	maps.DeleteFunc(l.byPrincipal, func(_ string, e *entry) bool { return e.fresh(now) })
}

// fresh reports whether an entry is no different from a new one.
func (e *entry) fresh(now time.Time) bool {
	if e.taken != [slots]int{} {
		return false
	}
	return !slices.ContainsFunc(e.buckets[:], func(b *rate.Limiter) bool { return b != nil && b.TokensAt(now) < float64(b.Burst()) })
}
