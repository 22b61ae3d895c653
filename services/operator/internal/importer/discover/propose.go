package discover

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/operator/internal/draft"
	"durward.internal/services/operator/internal/importer"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/operator/internal/unit"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/containerpolicy"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/pattern"
)

// startTimeoutS is what an engine is given to load its model; a minute, the catalog's default, is too short for most.
const startTimeoutS = 900

// Host is what is known of the host beside the servers.
type Host struct {
	Present *proposal.Present // nil: there is no catalog yet
	GPUs    []GPU
	// ContainerUser is whom containers run as that run as root now, UID or UID:GID; "": 1000:1000.
	ContainerUser string
}

// Units puts what runs as units into the proposal.
func (h Host) Units(p *proposal.Proposal, servers []Server, passed []Passed) {
	m := h.begin(p, "unit ", passed)
	for i := range servers {
		s := &servers[i]
		known := slices.IndexFunc(m.present, func(in *catalog.Service) bool { return in.Unit == s.Subject })
		switch {
		case known >= 0:
			s.Refused = []string{"it is the catalogue's service " + m.present[known].ID + " already"}
		case strings.HasPrefix(s.Subject, "durward-"):
			s.Refused = []string{"it is one of Durward's own, or was written for an entry of the catalogue"}
		case unit.OfHost(s.Subject):
			s.Refused = []string{"it is the host's own, and more than a model ends with it; what runs in a user's session may be a unit of that user (durward catalog import systemd --user)"}
		}
		if e := m.entry("unit "+s.Name, strings.TrimSuffix(s.Subject, ".service"), s); e != nil {
			e.Driver, e.Unit = catalog.DriverSystemd, s.Subject
			e.rest()
		}
	}
}

// Containers puts what runs in containers into the proposal: one with the label of a service is adopted, any other is made anew.
func (h Host) Containers(p *proposal.Proposal, containers []Container, passed []Passed) {
	m := h.begin(p, "container ", passed)
	for i := range containers {
		c := &containers[i]
		what := "container " + c.Name
		if c.Service == "" {
			c.Refused = nil // another one is made of it
		} else if slices.ContainsFunc(m.present, func(in *catalog.Service) bool { return in.ID == c.Service }) {
			c.Refused = []string{"its label says " + c.Service + ", which the catalogue has already"}
		}
		e := m.entry(what, cmp.Or(c.Service, c.Subject), &c.Server)
		if e == nil {
			continue
		}
		e.Driver, e.outside = catalog.DriverDocker, func(path string) string { return importer.Outside(c.Mounts, path) }
		switch {
		case c.Service == "":
			if e.make(c, what) {
				e.rest()
			}
		case c.Service != e.ID:
			p.LeaveOut(what, "its label's value %s is no service's id, or is another's too", clean.Line(c.Service, 64))
		default:
			e.adopt(c)
			e.rest()
		}
	}
}

// moving is one import of what runs on the host.
type moving struct {
	Host
	p *proposal.Proposal
	// present are the catalog's services, taken the ids that it and the proposal have.
	present []*catalog.Service
	taken   map[string]bool
}

func (h Host) begin(p *proposal.Proposal, kind string, passed []Passed) *moving {
	m := &moving{Host: h, p: p, taken: proposal.Taken(h.Present)}
	if h.Present != nil {
		m.present = h.Present.Services
	}
	for _, one := range passed {
		p.LeaveOut(kind+one.Name, "%s", one.Why)
	}
	return m
}

// entry begins one for a server of that name; nil where it is refused.
func (m *moving) entry(what, name string, s *Server) *entry {
	id, refused := "", s.Refused
	if len(refused) == 0 {
		if id = proposal.FreeID(name, m.taken); id == "" {
			refused = []string{"no id can be made of its name"}
		}
	}
	for _, why := range refused {
		m.p.LeaveOut(what, "%s", why)
	}
	if id == "" {
		return nil
	}
	state := "which does not run"
	if s.Running {
		state = "which runs"
	}
	return &entry{moving: m, Service: draft.Service{ID: id, Port: s.Port, StartTimeoutS: startTimeoutS}, server: s, notes: []string{"The " + what + ", " + state + ". " + s.words()}}
}

// adopt puts a container that is taken over as it is.
func (e *entry) adopt(c *Container) {
	e.Container = &catalog.Container{Image: c.Image, AllowTag: !c.Digest, Adopt: true}
	if !c.Digest {
		e.note("The daemon knows no digest of its image, so it is named by its tag, which can change.")
	}
	if c.Port != 0 {
		e.Container.Port = c.Inside
	}
}

// make puts an entry for another container of the same image, which the executor makes, and reports whether there can be one.
func (e *entry) make(c *Container, what string) bool {
	made, notes, ok := importer.Contain(e.p, importer.Given{ContainerUser: e.ContainerUser}, e.ID, what, c.compose)
	if !ok {
		return false
	}
	e.note("It has no label %s, so it cannot be adopted: this entry makes another container of its image. Stop and remove the old one first.", containerpolicy.LabelService)
	e.notes = append(e.notes, notes...)
	e.note("Its root folder is read-only: /tmp is a tmpfs, other folders that it writes to need one too.")
	if len(c.dropped) > 0 {
		e.note("Settings that an entry has no place for were left out: %s.", strings.Join(c.dropped, ", "))
	}
	e.Container, e.Environment, e.Limits = made.Container, made.Environment, made.Limits
	c.Withheld = nil // those that are, are named one by one
	e.asked = made.GPUs
	return true
}

// words say how a server was recognised.
func (s *Server) words() string {
	text := "Its command line is not a known engine's"
	if s.Recognised {
		text = "Its command line is " + s.Command.Engine + "'s"
	}
	switch {
	case s.Answer.Answered:
		text += "; " + s.Answer.Words()
	case s.Elsewhere != "":
		text += "; it listens on " + s.Elsewhere + " and not on 127.0.0.1, so it was not asked"
	case s.Running && s.Port != 0:
		text += "; it did not answer on 127.0.0.1:" + number32(s.Port)
	}
	return text + "."
}

// entry is one service's entry in the making.
type entry struct {
	*moving
	draft.Service
	server *Server
	// outside is where a path that it sees lies on the host; nil: it is the same.
	outside func(path string) string
	notes   []string
	// filed: the model's files are known.
	filed bool
	// asked are the GPUs that a container asks for.
	asked []uint32
}

func (e *entry) note(format string, args ...any) {
	e.notes = append(e.notes, fmt.Sprintf(format, args...))
}

// engine is what runs there, by its answers first.
func (e *entry) engine() string {
	if e.server.Answer.Engine != "" {
		return e.server.Answer.Engine
	}
	if e.server.Recognised {
		return e.server.Command.Engine
	}
	return ""
}

// rest puts what all kinds of entries have, and the entry into the proposal.
func (e *entry) rest() {
	s := e.server
	engine := e.engine()
	served := e.modelOf(engine)
	if s.Port != 0 {
		if engine == enginecmd.Ollama {
			e.Health.Path = "/api/version"
		}
		// One token can be asked for where it is known which model answers; of a router or Ollama that would load one.
		e.OpenAI = served && (engine == enginecmd.VLLM || engine == enginecmd.SGLang || engine == enginecmd.LlamaCPP)
		if host := s.Command.Host; host != "" && host != "127.0.0.1" && host != "localhost" && host != "::1" {
			e.note("It listens on %s, which other hosts may reach: tell it --host 127.0.0.1.", clean.Line(host, 64))
		}
	} else {
		e.note("Its port is not known: without port and health nobody can say whether it answers.")
	}
	if e.GPUs = e.gpus(); len(e.GPUs) > 0 {
		e.memory(engine)
	}
	e.sleep(engine)
	e.Extra = e.extra(engine)
	if len(s.Withheld) > 0 {
		names := make([]string, 0, len(s.Withheld))
		for _, name := range s.Withheld[:min(len(s.Withheld), 16)] {
			names = append(names, clean.Line(name, 64))
		}
		e.note("Its environment sets more, of which no value was copied: %s.", strings.Join(names, ", "))
	}
	for _, remark := range s.Remarks {
		e.note("%s.", strings.ToUpper(remark[:1])+remark[1:])
	}
	id, model := e.ID, e.Model
	e.ID, e.Model = "", "" // the proposal has them
	e.p.Service(id, draft.Of(e.Service), model, nil, e.notes...)
}

// memory declares what a server holds, where that is what it needs: a declaration counts for more than an estimate.
func (e *entry) memory(engine string) {
	s := e.server
	why := ""
	switch {
	case s.MiB == 0:
		e.note("What it needs of its GPUs' memory is not known: declare vram_mib, or let it be measured.")
		return
	case engine == enginecmd.Ollama || s.Command.Router:
		why = "it loads models as they are asked for"
	case engine != "" && !s.Answer.Healthy:
		why = "it did not say that it is well, and may have been loading"
	case s.Command.SleepMode && uint64(s.MiB) < e.half():
		why = "it may have been asleep"
	case e.filed:
		why = "what its model needs can be estimated from its files"
	}
	if why != "" {
		e.note("It held %d MiB when it was looked at, which is not declared: %s.", s.MiB, why)
		return
	}
	e.VRAMMiB = s.MiB
	e.note("vram_mib is what it held when it was looked at.")
}

// half is half of what vLLM takes of its GPUs, by its own default where its command line does not say.
func (e *entry) half() uint64 {
	share, err := strconv.ParseFloat(e.server.Command.Utilisation, 64)
	if err != nil || share <= 0 || share > 1 {
		share = 0.9
	}
	total := uint32(0)
	for _, g := range e.Host.GPUs {
		if total == 0 || g.TotalMiB < total {
			total = g.TotalMiB
		}
	}
	return uint64(float64(total) * share * float64(len(e.GPUs)) / 2)
}

func number32(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// repository is a model's name on a hub.
var repository = pattern.New(`\A[A-Za-z0-9][A-Za-z0-9._\-]{0,95}/[A-Za-z0-9][A-Za-z0-9._\-]{0,95}\z`)

// modelOf puts the model that it serves, if it is one, and reports whether it did.
func (e *entry) modelOf(engine string) bool {
	s := e.server
	var served string
	switch {
	case engine == enginecmd.Ollama || s.Command.Router || len(s.Answer.Models) > 1:
		if n := len(s.Answer.Models); n > 0 {
			e.note("It serves %d models by name (%s); an entry names one, or none.", n, strings.Join(s.Answer.Models[:min(n, 6)], ", "))
		}
		return false
	case len(s.Answer.Models) == 1:
		served = s.Answer.Models[0]
	case s.Command.ServedName != "":
		served = clean.Line(s.Command.ServedName, maxModelName)
	default:
		served = clean.Line(s.Command.Model, maxModelName)
	}
	name := served
	var m catalog.Model
	path := e.file(s.Command.Model)
	if containerpolicy.Plain(served) {
		if engine == enginecmd.LlamaCPP {
			// It serves one model, whatever requests call it; a path of the host is nothing for agents to see.
			served = filepath.Base(served)
		} else {
			e.note("Requests name its model by its path, which agents see: --served-model-name gives it another name.")
		}
	}
	switch {
	case repository().MatchString(s.Command.Model):
		name = s.Command.Model
		m.Source = "hf:" + s.Command.Model
	case path != "":
		// A server that was told no name answers to its file's path, or to the file's name.
		name = strings.TrimSuffix(filepath.Base(path), ".gguf")
		m.File, e.filed = path, true
	}
	if served == "" || name == "" {
		return false
	}
	m.ServedName = served
	e.Model = e.p.Model(name, draft.Of(m), "Served by "+s.Name+".")
	return e.Model != ""
}

// file is where a model's file lies on the host, "" where that is not known.
func (e *entry) file(path string) string {
	switch {
	case !containerpolicy.Plain(path) || path == "/" || !proposal.Shown(path):
		return ""
	case e.outside == nil:
		return path
	}
	return e.outside(path)
}

// gpus are the indexes that the entry names: of those whose memory it holds and that it asks for, or else of those that it was told to
// use. What asks for all of them and holds memory of some uses those.
func (e *entry) gpus() []uint32 {
	indexes, unknown := e.p.GPUsNamed(strings.Join(e.server.GPUs, ","))
	if all, _ := e.p.HostGPUs(); len(indexes) == 0 || len(e.asked) < len(all) {
		indexes = append(indexes, e.asked...)
	}
	if told, ok := e.server.Environment["CUDA_VISIBLE_DEVICES"]; ok && len(indexes)+len(unknown) == 0 {
		indexes, _ = e.p.GPUsNamed(told)
	}
	if len(indexes)+len(unknown) == 0 && len(e.Host.GPUs) == 1 && e.engine() != "" {
		indexes = []uint32{e.Host.GPUs[0].Index}
	}
	for _, uuid := range unknown {
		e.note("The catalogue does not know its GPU %s.", uuid)
	}
	slices.Sort(indexes)
	indexes = slices.DeleteFunc(slices.Compact(indexes), func(index uint32) bool { return !e.p.GPU(index) })
	if len(indexes) == 0 && e.engine() != "" {
		e.note("Which GPUs it uses is not known: add gpus.")
	}
	return indexes
}

// sleep puts how it sleeps, which an entry can say only with its memory.
func (e *entry) sleep(engine string) {
	c := e.server.Command
	kind := ""
	switch {
	case engine == enginecmd.VLLM && c.SleepMode && e.server.Environment["VLLM_SERVER_DEV_MODE"] == "1":
		kind = catalog.SleepVLLM1
	case engine == enginecmd.VLLM && c.SleepMode:
		e.note("It could sleep, and does not take the request: vLLM wants VLLM_SERVER_DEV_MODE=1 in its environment for that.")
	case engine == enginecmd.LlamaCPP && c.Router:
		kind = catalog.SleepLlamaRouter
	}
	switch {
	case kind == "" || e.server.Port == 0:
	case e.VRAMMiB > 0:
		e.Sleep = kind
	default:
		e.note("It can sleep (sleep: %s), once gpus and vram_mib are there.", kind)
	}
}

func (e *entry) extra(engine string) proposal.Fields {
	if engine == "" {
		return nil
	}
	s, c := e.server, e.server.Command
	values := map[string]string{
		"engine": engine, "engine_version": s.Answer.Version, "context_size": number32(cmp.Or(c.Context, s.Answer.Context)), "parallel": number32(c.Parallel),
		"tensor_parallel": number32(c.TensorParallel), "kv_cache_dtype": strings.TrimPrefix(c.CacheK, "auto"),
	}
	if engine == enginecmd.VLLM {
		values["gpu_memory_utilization"] = c.Utilisation
	}
	return importer.Extra(values)
}
