// Package proposal is a catalog file in the making: services, models, modes, GPUs and what containers may have, put by importers
// that read what strangers wrote. It decides nothing: a human reads the file and puts it in its place.
//
// It trusts no importer. Remarks are cleaned and lose what looks like a secret, an entry that holds one is left out, counts are
// bounded, and package catalog judges every entry of it, beside the present catalog, as it will judge it there.
package proposal

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"durward.internal/services/operator/internal/draft"
	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/secret"
)

// Bounds of a proposal. The catalog's own are wider; no host has so much.
const (
	MaxServices = 256
	MaxModes    = 128
	maxLeftOut  = 512
	MaxNotes    = 32
	maxNote     = 400
	maxID       = 64
	maxModelID  = 128
	// maxAllowed is how many folders and how many keys a catalog may let containers have.
	maxAllowed = 64
)

// LeftOut is something that is not in the proposal, and why. Both texts are clean.
type LeftOut struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Fields are an entry's keys and values without its id, in the catalog's order: strings, bools, numbers, lists and mappings of them.
type Fields = yaml.MapSlice

// Present is what the catalog has already. nil means that there is none.
type Present = catalog.Catalog

// Proposal is what an import makes. The zero value is of no use; see New.
type Proposal struct {
	kind    string
	from    []string
	notes   []string
	present *Present
	gpus    []*item
	mounts  []*item
	keys    []*item
	models  []*item
	// services and modes are in the order in which they were put.
	services, modes []*item
	left            []LeftOut
	more            int
	// host are the GPUs that it has; simulated: neither has it any nor the catalog, and those that are named by uuids stand for uuids.
	host      []catalog.GPU
	simulated bool
	uuids     []string
	wanted    []string
}

// item is one entry, or a folder or key of the containers section.
type item struct {
	id     string
	fields Fields
	notes  []string
	// model and needs are of services, members of modes; needs of a folder and a key are the services that need it.
	model          string
	needs, members []string
	out            bool
	// quiet: nobody asked for it by name, so that nobody misses it.
	quiet bool
	// first and last are its lines in the text that was made last.
	first, last int
	// lines are its text, nil until it is laid out.
	lines []string
}

// New begins a proposal. kind is the word behind `catalog import`; from names what it is made from.
func New(kind string, present *Present, from ...string) *Proposal {
	p := &Proposal{kind: kind, present: present}
	for _, name := range from {
		p.from = append(p.from, clean.Line(name, 200))
	}
	return p
}

// Note says something at the top of the file.
func (p *Proposal) Note(format string, args ...any) {
	p.notes = note(p.notes, fmt.Sprintf(format, args...))
}

// note adds a remark, once.
func note(notes []string, text string) []string {
	if text = clean.Line(secret.Redact(text), maxNote); text == "" || len(notes) >= MaxNotes || slices.Contains(notes, text) {
		return notes
	}
	return append(notes, text)
}

// LeaveOut says that something is not in the proposal.
func (p *Proposal) LeaveOut(what, format string, args ...any) {
	if len(p.left) >= maxLeftOut {
		p.more++
		return
	}
	l := LeftOut{clean.Line(secret.Redact(what), 200), clean.Line(secret.Redact(fmt.Sprintf(format, args...)), maxNote)}
	if !slices.Contains(p.left, l) {
		p.left = append(p.left, l)
	}
}

// LeftOut is everything that is not in the proposal. After Settle it says too what the catalog would have refused.
func (p *Proposal) LeftOut() []LeftOut {
	out := slices.Clone(p.left)
	if p.more > 0 {
		out = append(out, LeftOut{strconv.Itoa(p.more) + " more", "too many to be listed"})
	}
	return out
}

// maxWanted bounds what a human is asked for.
const maxWanted = 16

// Want notes a variable for lack of whose value something was left out.
func (p *Proposal) Want(name string) {
	if len(p.wanted) < maxWanted && !slices.Contains(p.wanted, name) {
		p.wanted = append(p.wanted, name)
	}
}

// Wanted are the variables that a human could give a value, in the order in which they were met.
func (p *Proposal) Wanted() []string { return slices.Clone(p.wanted) }

// Models, Services and Modes are the ids of what is in the proposal.
func (p *Proposal) Models() []string   { return ids(p.models) }
func (p *Proposal) Services() []string { return ids(p.services) }
func (p *Proposal) Modes() []string    { return ids(p.modes) }

func ids(items []*item) []string {
	out := []string{}
	for _, it := range kept(items) {
		out = append(out, it.id)
	}
	return out
}

// kept are the items that are in the proposal.
func kept(items []*item) []*item {
	return slices.DeleteFunc(slices.Clone(items), func(it *item) bool { return it.out })
}

func find(items []*item, id string) *item {
	for _, it := range items {
		if it.id == id && !it.out {
			return it
		}
	}
	return nil
}

// Model puts a model. One that the catalog or the proposal has already under this id stays as it is there, if it is the same; one of
// another file or another source gets -2, -3 behind its id: what a model takes is read from its file, and would be another's. The id
// that services name it by is returned, "" where there is none.
func (p *Proposal) Model(id string, fields Fields, notes ...string) string {
	base, same := ModelID(id), false
	id = numbered(base, maxModelID, func(id string) bool {
		file, source, taken := p.modelAt(id)
		same = taken && sameModel(file, source, textOf(fields, "file"), textOf(fields, "source"))
		return same || !taken
	})
	if same || id == "" {
		return id
	}
	if id != base {
		notes = append(slices.Clip(notes), "The id "+base+" is another model's: its file or source is another one, or is not known.")
	}
	p.models = append(p.models, &item{id: id, fields: fields, notes: tidy(notes)})
	return id
}

// modelAt is what is known of where a model lies.
func (p *Proposal) modelAt(id string) (file, source string, found bool) {
	if p.present != nil {
		if m, known := p.present.Model(id); known {
			return m.File, m.Source, true
		}
	}
	if it := find(p.models, id); it != nil {
		return textOf(it.fields, "file"), textOf(it.fields, "source"), true
	}
	return "", "", false
}

// sameModel reports whether two models are one: both files are one, or neither has a file and both are from one source.
func sameModel(file, source, otherFile, otherSource string) bool {
	if file != "" || otherFile != "" {
		return file == otherFile
	}
	return source == otherSource
}

func textOf(fields Fields, key string) string {
	for _, f := range fields {
		if text, ok := f.Value.(string); ok && f.Key == key {
			return text
		}
	}
	return ""
}

// Service puts a service, unless the catalog has one with this id or there are too many; then it says so and returns false.
// model is the id of its model or "", needs are services that must run first.
func (p *Proposal) Service(id string, fields Fields, model string, needs []string, notes ...string) bool {
	why := ""
	switch {
	case p.present != nil && has(p.present.Lookup(id)):
		why = "the catalogue has a service with this id already"
	case find(p.services, id) != nil:
		why = "two of them have this id"
	case len(p.services) >= MaxServices:
		why = fmt.Sprintf("more than %d services", MaxServices)
	}
	if why != "" {
		p.LeaveOut("service "+id, "%s", why)
		if m := find(p.models, model); m != nil && !slices.ContainsFunc(p.services, func(s *item) bool { return s.model == model }) {
			m.out = true // it was put for this service
		}
		return false
	}
	p.services = append(p.services, &item{id: id, fields: fields, model: model, needs: needs, notes: tidy(notes)})
	return true
}

// Mode puts a mode, services in the order in which they start. Services that are nowhere are left out of it when it is settled.
func (p *Proposal) Mode(id string, fields Fields, services []string, notes ...string) bool {
	switch {
	case p.present != nil && has(p.present.Mode(id)):
		p.LeaveOut("mode "+id, "the catalogue has a mode with this id already")
		return false
	case find(p.modes, id) != nil:
		p.LeaveOut("mode "+id, "two of them have this id")
		return false
	case len(p.modes) >= MaxModes:
		p.LeaveOut("mode "+id, "more than %d modes", MaxModes)
		return false
	}
	p.modes = append(p.modes, &item{id: id, fields: fields, members: services, notes: tidy(notes)})
	return true
}

// Candidate is Mode for one that the files do not name themselves: where none of its services is in the proposal, nothing is said.
func (p *Proposal) Candidate(id string, fields Fields, services []string, notes ...string) bool {
	ok := p.Mode(id, fields, services, notes...)
	if ok {
		p.modes[len(p.modes)-1].quiet = true
	}
	return ok
}

func has[T any](_ T, ok bool) bool { return ok }

func tidy(notes []string) []string {
	var out []string
	for _, n := range notes {
		out = note(out, n)
	}
	return out
}

// Host says which GPUs the host has, for a catalog that knows none. Where it has none either, the proposal's are simulated, and it says so.
func (p *Proposal) Host(gpus []catalog.GPU) {
	p.host, p.simulated = gpus, !p.declared() && len(gpus) == 0
}

// declared reports whether the catalog has GPUs.
func (p *Proposal) declared() bool { return p.present != nil && len(p.present.GPUs) > 0 }

// hostGPUs are the GPUs that the catalog has, or else the host.
func (p *Proposal) hostGPUs() []catalog.GPU {
	if p.declared() {
		return p.present.GPUs
	}
	return p.host
}

// simulatedMiB is what a GPU has that stands for one of which nothing is known.
const simulatedMiB = 24576

// GPU makes sure that a GPU is in the catalog or in the proposal, and reports whether it can be named.
func (p *Proposal) GPU(index uint32) bool {
	known := p.hostGPUs()
	i := slices.IndexFunc(known, func(g catalog.GPU) bool { return g.Index == index })
	id := strconv.FormatUint(uint64(index), 10)
	g := catalog.GPU{Index: index}
	switch {
	case index >= 64:
		return false
	case i >= 0 && p.declared(), find(p.gpus, id) != nil:
		return true
	case i >= 0:
		g = known[i]
	case len(p.host) > 0 && !p.declared(), len(known) > 0 && known[0].Simulated:
		return false
	case p.simulated:
		p.Note("No GPU of this host could be asked (nvidia-smi), so the GPUs are simulated, with %d MiB each: where it is to run, write the uuid of each in their place "+
			"(nvidia-smi -L).", simulatedMiB)
		g.Name, g.MemoryMiB, g.Simulated = "stands for GPU "+id, simulatedMiB, true
	}
	p.gpus = append(p.gpus, &item{id: id, fields: draft.OfGPU(g)})
	slices.SortFunc(p.gpus, func(a, b *item) int { return cmp.Or(cmp.Compare(len(a.id), len(b.id)), cmp.Compare(a.id, b.id)) })
	return true
}

// HostGPUs are the indexes of all GPUs that are known, or the first alone where none is.
func (p *Proposal) HostGPUs() (indexes []uint32, known bool) {
	for _, g := range p.hostGPUs() {
		indexes = append(indexes, g.Index)
	}
	if len(indexes) == 0 {
		return []uint32{0}, p.simulated
	}
	slices.Sort(indexes)
	return indexes, true
}

// GPUsNamed are the indexes of GPUs that a list names, as CUDA_VISIBLE_DEVICES does, by index or uuid, and the names that are of none.
func (p *Proposal) GPUsNamed(list string) (indexes []uint32, unknown []string) {
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		index, err := strconv.ParseUint(name, 10, 6)
		at, ok := p.gpuByUUID(name)
		switch {
		case name == "":
		case err == nil:
			indexes = append(indexes, uint32(index))
		case ok:
			indexes = append(indexes, at)
		default:
			unknown = append(unknown, name)
		}
		if len(indexes)+len(unknown) > 64 {
			break
		}
	}
	return indexes, unknown
}

// gpuByUUID is the index of the GPU that is known by a uuid. One that is simulated stands for each of which nothing is known.
func (p *Proposal) gpuByUUID(uuid string) (uint32, bool) {
	for _, g := range slices.Concat(p.hostGPUs(), p.host) { // the catalog may have the index alone
		if uuid != "" && strings.EqualFold(g.UUID, uuid) {
			return g.Index, true
		}
	}
	if !p.simulated || !strings.HasPrefix(uuid, "GPU-") {
		return 0, false
	}
	if !slices.Contains(p.uuids, uuid) {
		p.uuids = append(p.uuids, uuid)
	}
	return uint32(slices.Index(p.uuids, uuid)), true
}

// Mount proposes a folder from which containers may mount. services are those that need it: it goes when the last of them goes.
func (p *Proposal) Mount(folder string, services ...string) {
	if p.present != nil && slices.ContainsFunc(p.present.Containers.Mounts, func(yes string) bool { return folder == yes || strings.HasPrefix(folder, yes+"/") }) {
		return
	}
	p.Note("What stands under containers.mounts is open to every container of the catalogue: name the narrowest folders, and see which entries may write to theirs (writable).")
	p.mounts = needed(p.mounts, folder, services)
}

// Key proposes an environment key that containers may be given, as Mount does a folder.
func (p *Proposal) Key(key string, services ...string) {
	if p.KeyAllowed(key) {
		return
	}
	p.keys = needed(p.keys, key, services)
}

// KeyAllowed reports whether the catalog lets containers have the environment key already.
func (p *Proposal) KeyAllowed(key string) bool {
	return p.present != nil && slices.Contains(p.present.Containers.Environment, key)
}

func needed(items []*item, id string, services []string) []*item {
	it := find(items, id)
	if it == nil {
		if len(items) >= maxAllowed {
			return items // the catalog then refuses what would need it
		}
		it = &item{id: id}
		items = append(items, it)
	}
	it.needs = append(it.needs, services...)
	return items
}

// PortKnown reports whether a service of the catalog has the port.
func (p *Proposal) PortKnown(port uint32) bool {
	return p.present != nil && slices.ContainsFunc(p.present.Services, func(s *catalog.Service) bool { return s.Port == port })
}

// Shown reports whether a text is what it looks like: no controls, no reordering, nothing invisible.
func Shown(text string) bool { return clean.Visible(text) == text }

// lay lays an item out. An error is why it cannot be in the proposal.
func (it *item) lay(s section) error {
	if s.under != "" {
		it.lines = []string{edit.Text(it.id)}
	}
	if it.lines != nil {
		return nil
	}
	fields := slices.Clone(it.fields)
	put := func(key string, value any, is bool) {
		if is {
			fields = append(fields, yaml.MapItem{Key: key, Value: value})
		}
	}
	if s.name != draft.GPUs {
		fields = append(Fields{{Key: "id", Value: it.id}}, fields...)
	}
	put("model", it.model, it.model != "")
	put("depends_on", it.needs, len(it.needs) > 0)
	put("services", it.members, s.name == draft.Modes)
	if holdsSecret(fields) || secret.Suspect(it.model) {
		return errors.New("one of its values looks like a secret, which is not copied")
	}
	made, err := draft.Make(fields)
	if err != nil {
		return errors.New("it cannot be written as an entry")
	}
	it.lines = made.Lines()
	return nil
}

// holdsSecret is the last look at an entry, whoever made it.
func holdsSecret(v any) bool {
	switch v := v.(type) {
	case string:
		return secret.Suspect(v)
	case []string:
		return slices.ContainsFunc(v, secret.Suspect)
	case []any:
		return slices.ContainsFunc(v, holdsSecret)
	case Fields:
		return slices.ContainsFunc(v, func(f yaml.MapItem) bool { return holdsSecret(f.Value) })
	}
	return false
}
