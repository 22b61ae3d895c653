package plan

import (
	"fmt"
	"slices"

	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
)

// movements are the services that a plan moves, by what becomes of them.
type movements struct {
	h      gpu.Host
	z      *Sizes
	margin uint32
	// available is what the host's memory has to give, in MiB; tells: that is known.
	available uint32
	tells     bool
	views     map[*catalog.Service]service.View
	members   []*catalog.Service
	// waking, starting and restarting are members: asleep, not running, and running without answering. reloading sleep, and are
	// started anew for a simulation's sake.
	waking, starting, restarting, reloading []*catalog.Service
	// sleeping are put to sleep, asleep are left so, stopping are stopped; ending sleep now, and are stopped for their memory.
	sleeping, asleep, stopping, ending []*catalog.Service
	// requestedStops are stopped because the request says so.
	requestedStops []leaving
}

// leaving is a service that is stopped, and what it was.
type leaving struct {
	*catalog.Service
	before string
}

// incoming are the members that take memory, in the order in which they do.
func (f *movements) incoming() []*catalog.Service {
	var out []*catalog.Service
	for _, one := range f.members {
		if slices.Contains(f.waking, one) || slices.Contains(f.starting, one) || slices.Contains(f.restarting, one) ||
			slices.Contains(f.reloading, one) {
			out = append(out, one)
		}
	}
	return out
}

// leaves are those that give all their memory back.
func (f *movements) leaves() []*catalog.Service {
	out := append(slices.Clone(f.stopping), f.ending...)
	for _, one := range f.requestedStops {
		out = append(out, one.Service)
	}
	return out
}

func (f *movements) short() *capacity.Short {
	released := capacity.Released(f.z, f.h, f.leaves(), f.sleeping)
	return capacity.Fits(f.z, f.h, f.incoming(), released, f.margin)
}

// host is what the plan takes of the host's memory, in MiB: what goes to sleep keeps there, and the largest that is loaded. Services
// are loaded one at a time. What nobody knows counts nothing.
func (f *movements) host() (sleepers, loader uint64) {
	for _, one := range f.sleeping {
		sleepers += uint64(f.z.requirements.HostAsleep(one))
	}
	for _, list := range [][]*catalog.Service{f.starting, f.restarting, f.reloading} {
		for _, one := range list {
			loader = max(loader, uint64(f.z.requirements.HostLoading(one)))
		}
	}
	return sleepers, loader
}

// lacking is why the host's memory is too small; "" if it is not, or does not say.
func (f *movements) lacking() string {
	sleepers, loader := f.host()
	if !f.tells || sleepers+loader <= uint64(f.available) {
		return ""
	}
	return fmt.Sprintf("the host has %d MiB of memory available, and what sleeps and loads needs %d MiB of it", f.available, sleepers+loader)
}

// settle decides which services that can sleep are stopped instead, because the mode does not fit beside what they keep, or the
// host has no memory for them. It returns where the mode does not fit even so, and then no sleeper is stopped for it.
func (f *movements) settle() (*capacity.Short, string) {
	sleeping, asleep, stopping := slices.Clone(f.sleeping), slices.Clone(f.asleep), slices.Clone(f.stopping)
	undo := func() { f.sleeping, f.asleep, f.stopping, f.ending = sleeping, asleep, stopping, nil }
	for {
		short := f.short()
		if short == nil {
			break
		}
		if short.Problem != "" || !f.stopOne(short.GPU) {
			undo()
			return short, ""
		}
	}
	for {
		lack := f.lacking()
		if lack == "" {
			f.relent(len(stopping))
			return nil, ""
		}
		if !f.stopHeaviest() {
			undo()
			return nil, lack
		}
	}
}

// relent lets those sleep that were made to stop, in stopping behind the first so many and in ending, and need not: what was stopped
// after them, for another GPU or for the host's memory, gave room enough.
func (f *movements) relent(first int) {
	if len(f.stopping)-first+len(f.ending) < 2 {
		return
	}
	try := func(from, to *[]*catalog.Service, one *catalog.Service) {
		before, after := *from, *to
		*from = slices.DeleteFunc(slices.Clone(before), func(other *catalog.Service) bool { return other == one })
		if *to = append(slices.Clip(after), one); f.short() != nil || f.lacking() != "" {
			*from, *to = before, after
		}
	}
	for _, one := range slices.Clone(f.ending) {
		try(&f.ending, &f.asleep, one)
	}
	for _, one := range slices.Clone(f.stopping[first:]) {
		try(&f.stopping, &f.sleeping, one)
	}
}

// stopHeaviest makes that service stop which would take the most of the host's memory in its sleep, and reports whether there is
// one.
func (f *movements) stopHeaviest() bool {
	var most uint32
	var chosen *catalog.Service
	for _, one := range f.sleeping {
		if mib := f.z.requirements.HostAsleep(one); mib > most {
			most, chosen = mib, one
		}
	}
	if chosen == nil {
		return false
	}
	f.sleeping = slices.DeleteFunc(f.sleeping, func(one *catalog.Service) bool { return one == chosen })
	f.stopping = append(f.stopping, chosen)
	return true
}

// stopOne makes that service stop which would keep the most of the GPU in its sleep, and reports whether there is one.
func (f *movements) stopOne(index uint32) bool {
	var most uint32
	var chosen *catalog.Service
	sleeps := false
	look := func(list []*catalog.Service, now bool) {
		for _, one := range list {
			residue := f.z.Asleep(one)[index]
			if now {
				residue = max(residue, capacity.Held(f.h, one)[index])
			}
			if residue > most {
				most, chosen, sleeps = residue, one, now
			}
		}
	}
	look(f.sleeping, false)
	look(f.asleep, true)
	if chosen == nil {
		return false
	}
	is := func(one *catalog.Service) bool { return one == chosen }
	if sleeps {
		f.asleep, f.ending = slices.DeleteFunc(f.asleep, is), append(f.ending, chosen)
	} else {
		f.sleeping, f.stopping = slices.DeleteFunc(f.sleeping, is), append(f.stopping, chosen)
	}
	return true
}

// steps puts everything in order: sleeps, then stops, each before what it depends on, and then the members' wakes and starts.
func (f *movements) steps(c *catalog.Catalog) []SealedStep {
	var out []SealedStep
	stops := map[*catalog.Service]string{}
	for _, one := range append(slices.Clone(f.stopping), f.restarting...) {
		stops[one] = WasRunning
	}
	for _, one := range append(slices.Clone(f.ending), f.reloading...) {
		stops[one] = WasSleeping
	}
	for _, one := range f.requestedStops {
		stops[one.Service] = one.before
	}
	sleeps := map[*catalog.Service]bool{}
	for _, one := range f.sleeping {
		sleeps[one] = true
	}
	var order []*catalog.Service
	if len(stops)+len(sleeps) > 0 {
		order = supported(c, c.Services)
		slices.Reverse(order)
	}
	for _, one := range order {
		if sleeps[one] {
			out = append(out, SealedStep{Action: Sleep, Service: one, Before: WasRunning})
		}
	}
	for _, one := range order {
		if before, ok := stops[one]; ok {
			out = append(out, SealedStep{Action: Stop, Service: one, Before: before})
		}
	}
	for _, one := range f.incoming() {
		st := SealedStep{Action: Start, Service: one, Before: WasStopped}
		switch {
		case slices.Contains(f.waking, one):
			st.Action, st.Before = Wake, WasSleeping
		case slices.Contains(f.restarting, one):
			st.Before = WasRunning
		case slices.Contains(f.reloading, one):
			st.Before = WasSleeping
		}
		out = append(out, st)
	}
	return out
}

// unable is why one of the services that are started would not start, however much is free, by what is estimated of its entry as it
// is; "" if all would. What only wakes has started before.
func (f *movements) unable() string {
	for _, one := range slices.Concat(f.starting, f.restarting, f.reloading) {
		if n := f.z.running(one); n.NoStart {
			why := "its engine does not get what its model needs"
			if n.KVTokens > 0 && n.KVTokens < uint64(n.Context) {
				why = fmt.Sprintf("its KV cache has room for %d tokens, and its context is %d", n.KVTokens, n.Context)
			}
			return one.ID + " would not start as its entry has it: by the estimate " + why
		}
	}
	return ""
}
