// Package refusals bounds what refused calls leave behind in the audit log: they cost their callers nothing, and a record each would let
// a stranger fill the log. Of each kind of refusal the first are recorded as they come, and then, once a minute, how many more there
// were. Kinds are counted by peer, so that no peer hides what another does; what a peer makes up beyond a number of kinds is counted
// together. Every process that refuses calls links it. It trusts nothing of what it counts, and loses with the process at most a
// minute's counts.
package refusals

import (
	"context"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/clock"
)

// Period is for how long refusals of a kind are counted before their number is recorded.
const Period = time.Minute

// Further is the reason in a record that counts refusals of kinds beyond the bounds.
const Further = "further refusals of other kinds"

// Kind is what refusals are counted by: whose, and what in words of ours or of a bounded length.
type Kind struct{ Peer, What string }

// Config is what a Counter needs; only Write is required.
type Config struct {
	// Write writes a record, of one refusal, or of how many more there were like the last of them. It is called with no lock held.
	Write func(ctx context.Context, r *auditv1.Record, more uint64)
	// First is how many of a kind are written as they come; 0: 1.
	First int
	// Each is how many kinds of a peer are counted apart, and All how many there are in all, those that are counted together included;
	// 0: 16 and 1,024.
	Each, All int
}

// Counter counts refusals. It is safe for concurrent use.
type Counter struct {
	cfg Config

	mu     sync.Mutex
	counts map[Kind]*count
	peers  map[string]int // kinds of each
}

// count is what there was of a kind since it was recorded last.
type count struct {
	last  *auditv1.Record
	wrote int
	more  uint64
	since time.Time
}

// New returns a Counter that has counted nothing.
func New(cfg Config) *Counter {
	for _, bound := range []struct {
		of       *int
		standard int
	}{{&cfg.First, 1}, {&cfg.Each, 16}, {&cfg.All, 1024}} {
		if *bound.of <= 0 {
			*bound.of = bound.standard
		}
	}
	return &Counter{cfg: cfg, counts: map[Kind]*count{}, peers: map[string]int{}}
}

// Add writes r, or counts it. r is the Counter's from then on.
func (c *Counter) Add(ctx context.Context, kind Kind, r *auditv1.Record) {
	c.mu.Lock()
	one := c.counts[kind]
	if one == nil && c.peers[kind.Peer] >= c.cfg.Each {
		kind.What, r = "", further(r)
		one = c.counts[kind]
	}
	if one == nil && len(c.counts) >= c.cfg.All-1 {
		kind, r = Kind{}, further(r)
		r.Body.Principal, r.Body.Session, r.Body.DecisionSource = "", "", ""
		one = c.counts[kind]
	}
	if one == nil {
		one = &count{since: time.Now()}
		c.counts[kind] = one
		c.peers[kind.Peer]++
	}
	one.last = r
	write := one.wrote < c.cfg.First
	if write {
		one.wrote++
		r = proto.CloneOf(r)
	} else {
		one.more++
	}
	c.mu.Unlock()
	if write {
		c.cfg.Write(ctx, r, 0)
	}
}

// further is the record of a refusal that is not told apart from others.
func further(r *auditv1.Record) *auditv1.Record {
	return &auditv1.Record{Kind: r.GetKind(), Status: r.GetStatus(), Time: r.GetTime(), Body: &auditv1.Body{
		Principal: r.GetBody().GetPrincipal(), DecisionSource: r.GetBody().GetDecisionSource(), Action: r.GetBody().GetAction(), Reason: Further,
	}}
}

// Flush writes what was counted for Period, or everything at the end. Call it every few seconds.
func (c *Counter) Flush(ctx context.Context, end bool) {
	var due []count
	now := time.Now()
	c.mu.Lock()
	for kind, one := range c.counts {
		if !end && now.Sub(one.since) < Period {
			continue
		}
		if one.more == 0 {
			delete(c.counts, kind)
			if c.peers[kind.Peer]--; c.peers[kind.Peer] == 0 {
				delete(c.peers, kind.Peer)
			}
			continue
		}
		due = append(due, count{last: proto.CloneOf(one.last), more: one.more})
		one.more, one.since = 0, now
	}
	c.mu.Unlock()
	for _, one := range due {
		c.cfg.Write(ctx, one.last, one.more)
	}
}

// Run flushes every ten seconds, and once more when ctx ends.
func (c *Counter) Run(ctx context.Context) {
	for going := true; going; {
		going = clock.Sleep(ctx, 10*time.Second)
		c.Flush(context.WithoutCancel(ctx), !going)
	}
}

// Len is how many kinds are counted now.
func (c *Counter) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.counts)
}

// Note says in a record how many refusals it stands for beyond those that were recorded, under that name in its details.
func Note(r *auditv1.Record, name string, more uint64) {
	if more == 0 {
		return
	}
	if r.Body.Details == nil {
		r.Body.Details = map[string]string{}
	}
	r.Body.Details[name] = strconv.FormatUint(more, 10)
}
