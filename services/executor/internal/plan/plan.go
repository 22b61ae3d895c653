// Package plan computes what a switch to a mode would do now: which services go, come, or stay, in which order, whether that fits,
// how long it takes, and which other ways there are. It changes nothing: package mode carries plans out.
//
// It trusts the catalog, the service manager and the GPUs' measurements.
package plan

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"math"
	"sync"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
)

// Services is what a plan needs of the service manager.
type Services interface {
	Status(s *catalog.Service) service.View
	Definition(ctx context.Context, s *catalog.Service) (string, error)
	// Pins say of each file that a service is given whether it is held.
	Pins(ctx context.Context, s *catalog.Service) []string
}

// Config is what a Planner is made of. All of it is required.
type Config struct {
	// Catalog returns the newest good one.
	Catalog      func() *catalog.Catalog
	Services     Services
	Requirements Requirements
	// Margin is what stays free on each GPU in a call with that override, in MiB; nil: one without. It may refuse.
	Margin func(override *uint32) (uint32, error)
	// Took returns how long the newest n steps of that kind took that went well.
	Took func(ctx context.Context, action executorv1.PlanAction, service string, n int) ([]time.Duration, error)
	// Now is the wall clock.
	Now func() time.Time
	// Available is what the host's memory has to give, in MiB, and whether it tells.
	Available func() (uint32, bool)
	Logger    *slog.Logger
}

// Planner makes plans. It is safe for concurrent use.
type Planner struct {
	Config

	mu sync.Mutex
	// seen is since when each running service was seen to run as it does, by a clock that nobody sets.
	seen   map[string]sighting
	sealed seals
}

// sighting is when a service that says that it runs since then was first seen to.
type sighting struct{ since, first time.Time }

// New returns a Planner.
func New(c Config) *Planner { return &Planner{Config: c, seen: map[string]sighting{}} }

// The actions of a plan.
const (
	Sleep = executorv1.PlanAction_PLAN_ACTION_SLEEP
	Stop  = executorv1.PlanAction_PLAN_ACTION_STOP
	Start = executorv1.PlanAction_PLAN_ACTION_START
	Wake  = executorv1.PlanAction_PLAN_ACTION_WAKE
)

// ActionName is the word for an action, as plans have it: "sleep", "stop", "start", "wake".
func ActionName(a executorv1.PlanAction) string {
	switch a {
	case Sleep:
		return "sleep"
	case Stop:
		return "stop"
	case Start:
		return "start"
	case Wake:
		return "wake"
	default:
		return "nothing"
	}
}

// What a service was before a switch.
const (
	WasStopped  = "stopped"
	WasSleeping = "sleeping"
	WasRunning  = "running"
)

// SealedStep is one step of a plan.
type SealedStep struct {
	Action  executorv1.PlanAction
	Service *catalog.Service
	// Entry is the digest, in hex, of the service's entry with what it runs; "" where the plan has none.
	Entry string
	// Before is what the service was.
	Before string
}

func (p SealedStep) releases() bool { return p.Action == Sleep || p.Action == Stop }

// Plan is what a switch to a mode would do now, or what a simulation asks for.
type Plan struct {
	catalog   *catalog.Catalog
	request   Request
	target    *target
	movements movements
	Steps     []SealedStep
	// Margin is what stays free on each GPU, in MiB.
	Margin uint32
	// kept are the services that nothing but a human's word moves: those to run, and those that are pinned, with what they depend on.
	kept map[*catalog.Service]bool
	// reason is why this cannot be done now, whatever memory there is; "" if it can. stays is why what would have to go may not go
	// yet; another way that keeps it may do.
	reason, stays string
	// short is where it does not fit, lack why not beside what is short on no GPU; nil and "" if it does.
	short *capacity.Short
	lack  string
	// hopeless: what is asked for does not start however much room there is.
	hopeless bool
	// unbound: it takes a change of the catalog, so nobody can switch to it.
	unbound bool
	// keeps are services that an alternative keeps and the plan itself would not. Nobody else has any.
	keeps   []*catalog.Service
	subject []byte
	// Digest names the plan, in hex; "" for one that cannot be switched to.
	Digest string
	// entries are the digests that were reckoned for it and its alternatives.
	entries map[*catalog.Service]string
}

// binds reports whether it can be switched to by its digest.
func (p *Plan) binds() bool { return p.request.plain() && !p.unbound }

// Why is why this cannot be done now, whatever memory there is.
func (p *Plan) Why() string {
	if p.reason != "" {
		return p.reason
	}
	return p.stays
}

// Unfit is why it does not fit: one plain sentence; "" if it does.
func (p *Plan) Unfit() string {
	if p.short != nil {
		return p.short.Sentence()
	}
	return p.lack
}

// planSubject is what a human approves, in its RFC 8785 form. It holds no measurement: what is free now is checked again when
// the switch begins, and a GPU that became fuller or emptier makes no other plan.
type planSubject struct {
	Catalog string `json:"catalogue"`
	// Keeps are ids of services that are left alone though the mode does not name them. A plan that is no alternative has none.
	Keeps []string      `json:"keeps,omitempty"`
	Mode  string        `json:"mode"`
	Steps []subjectStep `json:"steps"`
}

type subjectStep struct {
	Action      string `json:"action"`
	EntrySHA256 string `json:"entry_sha256"`
	Service     string `json:"service"`
}

// Plan makes the plan for a request from what is seen now. An error is a fault: the request is not possible, or its margin is too
// low. Only what can be switched to has a digest.
func (pl *Planner) Plan(ctx context.Context, r Request, h gpu.Host) (*Plan, error) {
	margin, err := pl.Margin(r.Margin)
	if err != nil {
		return nil, err
	}
	c := pl.Catalog()
	views := make(map[*catalog.Service]service.View, len(c.Services))
	for _, one := range c.Services {
		views[one] = pl.Services.Status(one)
	}
	p := &Plan{catalog: c, request: r, Margin: margin, entries: map[*catalog.Service]string{}}
	if p.target, err = resolve(c, r, views); err != nil {
		return nil, err
	}
	pl.Requirements.Await(ctx, p.target.members...)
	z := NewSizes(pl.Requirements)
	changed, cannot, err := p.target.override(c, r, z)
	if err != nil {
		return nil, err
	}
	p.movements = movements{margin: margin, h: h, z: z}
	p.movements.available, p.movements.tells = pl.Available()
	pl.classify(c, p, views, changed)
	p.short, p.lack = p.movements.settle()
	if cannot == "" {
		cannot = p.movements.unable()
	}
	if cannot != "" && p.short == nil {
		p.lack, p.hopeless = cannot, true
	}
	return p, pl.finish(ctx, p)
}

// finish puts the steps in order and, where the plan can be switched to, seals them.
func (pl *Planner) finish(ctx context.Context, p *Plan) error {
	p.Steps = p.movements.steps(p.catalog)
	for i := range p.Steps {
		if err := pl.seal(ctx, p, &p.Steps[i]); err != nil {
			return err
		}
	}
	if !p.binds() {
		return nil
	}
	subject := planSubject{Catalog: p.catalog.Digest, Mode: p.target.mode.ID, Steps: make([]subjectStep, 0, len(p.Steps))}
	for _, one := range p.keeps {
		subject.Keeps = append(subject.Keeps, one.ID)
	}
	for _, st := range p.Steps {
		subject.Steps = append(subject.Steps, subjectStep{ActionName(st.Action), st.Entry, st.Service.ID})
	}
	var err error
	if p.subject, err = canonical.Marshal(subject); err != nil {
		return err
	}
	sum := sha256.Sum256(p.subject)
	p.Digest = hex.EncodeToString(sum[:])
	return nil
}

// seal notes the digest of a step's entry. A program that cannot be read can be stopped, and not started.
func (pl *Planner) seal(ctx context.Context, p *Plan, st *SealedStep) error {
	if entry, known := p.entries[st.Service]; known {
		st.Entry = entry
		return nil
	}
	if p.unbound {
		return nil
	}
	definition, err := pl.Services.Definition(ctx, st.Service)
	if err != nil {
		pl.Logger.WarnContext(ctx, "what a service runs has no digest", "service_id", st.Service.ID, "error", err)
		if !st.releases() && p.reason == "" {
			p.reason = st.Service.ID + " cannot be started: what it runs is missing or cannot be read"
		}
		definition = catalog.Unreadable
	}
	if !p.binds() {
		return nil
	}
	if st.Entry, err = pl.sealed.digest(p.catalog, st.Service, definition); err != nil {
		return err
	}
	p.entries[st.Service] = st.Entry
	return nil
}

// seals are digests of one catalog's entries, which nobody changes, each with the definition that it was reckoned with: a plan
// that ends a hundred services needs as many.
type seals struct {
	mu    sync.Mutex
	of    *catalog.Catalog
	known map[*catalog.Service]sealedEntry
}

type sealedEntry struct{ definition, digest string }

func (k *seals) digest(c *catalog.Catalog, one *catalog.Service, definition string) (string, error) {
	k.mu.Lock()
	if k.of != c {
		k.of, k.known = c, map[*catalog.Service]sealedEntry{}
	}
	entry, ok := k.known[one]
	k.mu.Unlock()
	if ok && entry.definition == definition {
		return entry.digest, nil
	}
	digest, err := EntryDigest(one, definition)
	if err != nil {
		return "", err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.of == c {
		k.known[one] = sealedEntry{definition, digest}
	}
	return digest, nil
}

func EntryDigest(s *catalog.Service, definition string) (string, error) {
	entry, err := s.Subject(definition)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(entry)
	return hex.EncodeToString(sum[:]), nil
}

// stays reports whether a service that runs is within the time that a switch leaves it alone.
func (pl *Planner) stays(one *catalog.Service, v service.View) bool {
	return !v.Since.IsZero() && time.Duration(one.MinResidenceS)*time.Second > pl.ran(one.ID, v.Since)
}

// ran is how long a service runs: as its manager dates that, or as long as it was seen to. A wall clock that was set back makes
// nobody wait for it.
func (pl *Planner) ran(id string, since time.Time) time.Duration {
	now := pl.Now()
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if known, ok := pl.seen[id]; !ok || !known.since.Equal(since) {
		pl.seen[id] = sighting{since, now}
	}
	return max(now.Sub(since), now.Sub(pl.seen[id].first))
}

// unsettled is why nothing can be planned with a service that is neither here nor there.
func unsettled(s *catalog.Service, v service.View) string {
	if v.State == executorv1.ServiceState_SERVICE_STATE_UNKNOWN {
		return "nobody can tell whether " + s.ID + " runs: its manager does not answer"
	}
	return s.ID + " is in the middle of another change"
}

// Members are a mode's services, each after those that it depends on, otherwise in the mode's order.
func Members(c *catalog.Catalog, m *catalog.Mode) []*catalog.Service {
	return supported(c, c.Members(m))
}

// supported returns the services and all that they depend on, each after what it depends on.
func supported(c *catalog.Catalog, listed []*catalog.Service) []*catalog.Service {
	var out []*catalog.Service
	seen := map[string]bool{}
	var visit func(one *catalog.Service)
	visit = func(one *catalog.Service) {
		if seen[one.ID] {
			return
		}
		seen[one.ID] = true
		for _, id := range one.DependsOn {
			if other, ok := c.Lookup(id); ok {
				visit(other)
			}
		}
		out = append(out, one)
	}
	for _, one := range listed {
		visit(one)
	}
	return out
}

// kept are the services that a switch leaves alone: those that are to run, and those that run and are pinned, with what they
// depend on.
func kept(
	c *catalog.Catalog, members []*catalog.Service, views map[*catalog.Service]service.View,
) map[*catalog.Service]bool {
	var pinned []*catalog.Service
	for _, one := range c.Services {
		if one.Pin && views[one].Holds() {
			pinned = append(pinned, one)
		}
	}
	out := map[*catalog.Service]bool{}
	for _, one := range append(supported(c, pinned), members...) {
		out[one] = true
	}
	return out
}

// Available is how much memory the host can give to programs without pushing others out, in MiB, and whether it tells.
func Available() (uint32, bool) {
	mib, err := service.HostAvailable()
	return uint32(min(mib, math.MaxUint32)), err == nil
}

// Subject is what a call that carries the plan out acts on. The SHA-256 of its entry is the digest.
func (p *Plan) Subject() *callv1.Subject {
	return &callv1.Subject{Label: "mode " + p.Mode(), Entry: p.subject}
}

// Mode is the id of the mode that is planned; only for a plan of one.
func (p *Plan) Mode() string { return p.target.mode.ID }

// Members are the ids of the services that run when it is done.
func (p *Plan) Members() []string {
	var out []string
	for _, one := range p.target.members {
		out = append(out, one.ID)
	}
	return out
}

// Named returns the alternative that has the digest, and where none has it, the plan for the request, whatever its digest.
func (pl *Planner) Named(ctx context.Context, r Request, digest string, h gpu.Host) (*Plan, error) {
	p, err := pl.Plan(ctx, r, h)
	if err != nil || p.Digest == digest {
		return p, err
	}
	found, _, err := pl.alternatives(ctx, p)
	if err != nil {
		return nil, err
	}
	for _, other := range found {
		if other.Digest != "" && other.Digest == digest {
			return other.Plan, nil
		}
	}
	return p, nil
}

// What a change costs whoever works with the host, so that alternatives can be put in order. The numbers are made up, and only
// their order is meant; the finest grain is how long it takes to have the service back, in seconds of this host's own history, so
// that of two services alike the one that is back sooner goes. An alternative costs what its changes cost together.
//
//	keep            0      nothing changes
//	sleep       1 000      it is back in seconds, and nothing is loaded from the disk; its requests in flight end
//	utilisation 2 000      fewer requests at a time fit; takes a human and a restart; 50 more for each 0.05
//	context     4 000      long requests are refused; takes a human and a restart; 500 more for each further halving, up to seven
//	GPU         8 000      nobody notices but who looks; takes a human, and is wrong where the GPUs are told apart on purpose
//	sleeper    12 000      what sleeps is stopped: nobody's requests end, but it is no longer back in seconds
//	stop       16 000      it is gone until it was loaded again
//	split      64 000      the engine runs in another way, and is as quick as the GPUs' link
//
// So up to a dozen sleepers are preferred to one service that is stopped. Seconds count up to a quarter of an hour, which keeps
// every kind below the next.
const (
	costSleep       = 1_000
	costUtilisation = 2_000
	costContext     = 4_000
	costGPU         = 8_000
	costSleeper     = 12_000
	costStop        = 16_000
	costSplit       = 64_000

	costEachStep    = 50
	costEachHalving = 500
	maxHalvings     = 7
	maxCostSeconds  = 900
)

// grain is how long something takes to be back, as a cost.
func grain(back time.Duration) int64 { return min(int64(seconds(back)), maxCostSeconds) }

// halving is what the n-th halving of a context costs more than the first.
func halving(n int64) int64 { return min(n-1, maxHalvings) * costEachHalving }
