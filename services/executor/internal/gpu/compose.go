package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
)

// errSilent is why there is no reading when the driver keeps its caller waiting.
var errSilent = errors.New("the GPU driver gives no answer")

// maxName bounds names of GPUs and of programs.
const maxName = 64

// compose puts together what the catalog names, what was measured and what services claim.
func (m *Monitor) compose(known *catalog.Catalog, raw reading) Host {
	h := m.place(known, raw)
	// What services claim may depend on what their GPUs are, so it is asked for once that is known.
	claims := m.claims()
	m.mu.Lock()
	defer m.mu.Unlock()
	owners := map[int]string{}
	for i := range h.GPUs {
		d := &h.GPUs[i]
		d.LastXID, d.HardwareXID = m.xids[d.UUID], m.hardware[d.UUID]
		for _, c := range claims {
			if mib, declared, ok := c.share(d.Index); ok {
				d.Claims = append(d.Claims, Share{Service: c.Service, MiB: mib, Declared: declared})
				if d.Simulated {
					d.Used += mib
					d.Processes = append(d.Processes, Process{PID: c.PID, MiB: mib, Service: c.Service})
				}
			}
		}
		if d.Simulated {
			d.Free = d.Total - min(d.Used, d.Total)
			continue
		}
		d.Processes = m.attributed(d.Processes, claims, owners)
		d.Foreign = foreign(d)
	}
	m.owners = owners
	return h
}

// place gives every GPU its index, and notes what they are. What services make of them is missing yet.
func (m *Monitor) place(known *catalog.Catalog, raw reading) Host {
	h := Host{Source: SourceNone}
	measured := m.measures(known)
	if measured {
		h.Source = m.cfg.Source.Name()
	}
	if raw.err != nil {
		h.Problem = ProblemDriver
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := map[uint32]bool{}
	named := map[string]bool{}
	for _, g := range known.GPUs {
		taken[g.Index] = true
		d := Device{Index: g.Index, UUID: g.UUID, Name: g.Name}
		switch {
		case g.Simulated:
			d = simulated(g)
		case !measured || raw.err != nil:
			d.UUID = m.uuid(g, known.GPUs)
			d.Problem = ProblemDriver
			h.Problem = ProblemDriver
		default:
			d = m.found(g, known.GPUs, raw.devices)
		}
		named[d.UUID] = true
		h.GPUs = append(h.GPUs, d)
	}
	if !measured && len(known.GPUs) > 0 && h.Problem == "" {
		h.Source = SourceSimulated
	}
	for _, d := range m.unnamed(raw, named) {
		d.Index = free(taken, d.Index)
		h.GPUs = append(h.GPUs, d)
	}
	m.recognise(h, raw.devices)
	return h
}

// recognise notes what the GPUs are, by the catalog's index. One that does not answer is what it was. The monitor is locked.
func (m *Monitor) recognise(h Host, devices []Device) {
	before := m.Models()
	now := make(map[uint32]Model, len(h.GPUs))
	for _, d := range h.GPUs {
		one := Model{UUID: d.UUID, Total: d.Total, Simulated: d.Simulated}
		switch {
		case d.Simulated:
		case d.Problem != "":
			was, ok := before.Find(d.Index)
			if !ok || was.Simulated || was.UUID != d.UUID {
				continue
			}
			one = was
		default:
			if i := slices.IndexFunc(devices, func(r Device) bool { return r.UUID == d.UUID && (d.UUID != "" || r.Index == d.Index) }); i >= 0 {
				one.Name = clean.Name(devices[i].Name, maxName)
			}
		}
		now[d.Index] = one
	}
	if before == nil || !maps.Equal(before.byIndex, now) {
		m.models.Store(NewModels(now))
	}
}

// uuid is that of the GPU that the catalog names, as far as that is known: of one that it names by index alone, which was first found there.
func (m *Monitor) uuid(g catalog.GPU, gpus []catalog.GPU) string {
	if bound := m.bound[g.Index]; g.UUID == "" && !m.anothers(bound, g, gpus) {
		return bound
	}
	return g.UUID
}

// anothers reports whether a GPU is the one that another entry of the catalog names: two entries are never one GPU, whose memory would be
// given away twice.
func (m *Monitor) anothers(uuid string, g catalog.GPU, gpus []catalog.GPU) bool {
	return uuid != "" && slices.ContainsFunc(gpus, func(o catalog.GPU) bool { return o.Index != g.Index && cmp.Or(o.UUID, m.bound[o.Index]) == uuid })
}

// found is the measured GPU that the catalog names, one of gpus.
func (m *Monitor) found(g catalog.GPU, gpus []catalog.GPU, devices []Device) Device {
	uuid := m.uuid(g, gpus)
	i := slices.IndexFunc(devices, func(d Device) bool {
		if uuid != "" {
			return d.UUID == uuid
		}
		return d.Index == g.Index && !m.anothers(d.UUID, g, gpus)
	})
	if i < 0 {
		d := Device{Index: g.Index, UUID: uuid, Name: g.Name, Problem: ProblemAbsent}
		if _, once := m.seen[uuid]; once {
			d.Problem = ProblemLost
		} else if strings.HasPrefix(uuid, "MIG-") {
			d.Problem = ProblemSlice // neither source lists them
		} else if uuid == "" && slices.ContainsFunc(devices, func(d Device) bool { return d.Index == g.Index }) {
			d.Problem = ProblemTaken
		}
		return d
	}
	d := devices[i]
	if g.UUID == "" && d.UUID != "" {
		m.bound[g.Index] = d.UUID
	}
	d.Index, d.Name = g.Index, cmp.Or(g.Name, clean.Name(d.Name, maxName))
	return d
}

// unnamed are the GPUs that the catalog does not name; where the driver does not answer, those that were measured once.
func (m *Monitor) unnamed(raw reading, named map[string]bool) []Device {
	devices := raw.devices
	if raw.err != nil {
		devices = nil
		for _, d := range m.seen {
			d.Problem = ProblemDriver
			devices = append(devices, d)
		}
		slices.SortFunc(devices, func(a, b Device) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID)) })
	}
	var out []Device
	for _, d := range devices {
		if !named[d.UUID] {
			d.Name = clean.Name(d.Name, maxName)
			out = append(out, d)
		}
	}
	return out
}

// free takes the index if nobody has it, and otherwise the lowest that nobody has.
func free(taken map[uint32]bool, index uint32) uint32 {
	if taken[index] {
		for index = 0; taken[index]; {
			index++
		}
	}
	taken[index] = true
	return index
}

// simulated is a GPU of the catalog alone: what services claim is what they use. They can claim more than there is.
func simulated(g catalog.GPU) Device {
	return Device{Index: g.Index, UUID: fmt.Sprintf("simulated-%d", g.Index), Name: g.Name, Simulated: true, Total: g.MemoryMiB}
}

// foreign is what programs use that are no service of this host. Where the driver does not say what one of them uses, it is
// what is used and not known to be a service's.
func foreign(d *Device) uint32 {
	var services, strangers uint32
	silent := false
	for _, p := range d.Processes {
		switch {
		case p.Service != "":
			services += p.MiB
		case p.MiB == 0:
			silent = true
		default:
			strangers += p.MiB
		}
	}
	if silent {
		return d.Used - min(services, d.Used)
	}
	return min(strangers, d.Used)
}
