package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/pattern"
)

// Bounds of a catalog.
const (
	maxGPUs          = 64
	maxModels        = 1024
	maxServices      = 1024
	maxModes         = 256
	maxContainerList = 64
	maxVRAMMiB       = 1 << 24
	maxName          = 64
	maxDescription   = 300
)

var (
	// SEC-V1.
	idPattern    = pattern.New(`\A[a-zA-Z0-9][a-zA-Z0-9_\-]{0,63}\z`)
	modelPattern = pattern.New(`\A[a-zA-Z0-9][a-zA-Z0-9_\-./]{0,127}\z`)
	// As the driver writes them, of a whole GPU or of a slice of one.
	uuidPattern = pattern.New(`\A(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\z`)
)

// document is one file.
type document struct {
	file int

	Version    int        `yaml:"version"`
	GPUs       []GPU      `yaml:"gpus"`
	Models     []Model    `yaml:"models"`
	Services   []service  `yaml:"services"`
	Modes      []Mode     `yaml:"modes"`
	Containers Containers `yaml:"containers"`
	Boot       string     `yaml:"boot"`
}

type checker struct {
	opts     Options
	docs     []*document
	out      *Catalog
	problems []*problem
	// listed are the indexes of GPUs that stand under gpus, wrong or not.
	listed map[uint32]bool
	// at is where each service, by id, and each mode stands.
	at     map[string]spot
	modeAt map[string]spot
	// disabled are the entries that are left out; off are the ids of services among them.
	disabled []disabled
	off      map[string]bool
}

// What an entry can be.
const (
	kindService = "service"
	kindModel   = "model"
	kindMode    = "mode"
	kindBoot    = "boot"
)

// disabled is an entry that is left out.
type disabled struct {
	kind, id string
	problem  *problem
}

// found notes what is wrong, if anything is, and reports whether.
func (c *checker) found(p *problem) bool {
	if p != nil {
		c.problems = append(c.problems, p)
	}
	return p != nil
}

// entry notes what is wrong with one entry, if anything is, and reports whether. Where that is allowed the entry is left out, and
// every other one of that id: nobody knows which of them was meant.
func (c *checker) entry(kind, id string, p *problem) bool {
	if p == nil && c.off[kind+" "+id] {
		return true
	}
	if p == nil || !c.opts.Lenient {
		return c.found(p)
	}
	if !modelPattern().MatchString(id) {
		id = ""
	}
	if id != "" && c.off[kind+" "+id] {
		return true
	}
	c.off[kind+" "+id] = id != ""
	c.disabled = append(c.disabled, disabled{kind, id, p})
	switch kind {
	case kindService:
		delete(c.out.byID, id)
		c.out.Services = slices.DeleteFunc(c.out.Services, func(s *Service) bool { return s.ID == id })
	case kindModel:
		c.out.Models = slices.DeleteFunc(c.out.Models, func(m Model) bool { return m.ID == id })
	case kindMode:
		c.out.Modes = slices.DeleteFunc(c.out.Modes, func(m *Mode) bool { return m.ID == id })
	}
	return true
}

// check reads all of one kind before the next, since files name what stands in others.
func (c *checker) check() {
	c.listed, c.at, c.modeAt, c.off = map[uint32]bool{}, map[string]spot{}, map[string]spot{}, map[string]bool{}
	for _, d := range c.docs {
		if d.Version != 1 {
			c.found(wrong(spot{d.file, "$.version"}, "version must be 1, the only one that this program knows"))
		}
	}
	for _, d := range c.docs {
		c.containers(d)
		c.gpus(d)
		c.models(d)
	}
	for _, d := range c.docs {
		c.services(d)
	}
	if len(c.problems) > 0 {
		return // what follows would complain of what was left out
	}
	for again := true; again; {
		again = false
		for _, w := range c.dependencies() {
			c.entry(kindService, w.id, w.problem)
			again = c.opts.Lenient // what needs it is left out, too
		}
	}
	for _, d := range c.docs {
		c.modes(d)
	}
	c.boot()
}

func (c *checker) gpus(d *document) {
	root := spot{d.file, "$.gpus"}
	if len(c.out.GPUs)+len(d.GPUs) > maxGPUs {
		c.found(wrong(root, "more than %d GPUs", maxGPUs))
		return
	}
	for i, g := range d.GPUs {
		g.Name = clean.Line(g.Name, maxName)
		c.listed[g.Index] = true
		if !c.found(c.gpu(root.in("[%d]", i), g)) {
			c.out.GPUs = append(c.out.GPUs, g)
		}
	}
}

func (c *checker) gpu(at spot, g GPU) *problem {
	switch {
	case g.Index >= maxGPUs:
		return wrong(at.in(".index"), "a GPU's index is below %d", maxGPUs)
	case slices.ContainsFunc(c.out.GPUs, func(o GPU) bool { return o.Index == g.Index }):
		return wrong(at.in(".index"), "GPU %d is defined twice", g.Index)
	case g.Simulated && g.UUID != "":
		return wrong(at.in(".uuid"), "a simulated GPU has no uuid")
	case g.Simulated && (g.MemoryMiB == 0 || g.MemoryMiB > maxVRAMMiB):
		return wrong(at.in(".memory_mib"), "memory_mib must be 1 to %d", maxVRAMMiB)
	case g.Simulated && g.Name == "":
		return wrong(at, "a simulated GPU needs a name")
	case !g.Simulated && g.MemoryMiB != 0:
		return wrong(at.in(".memory_mib"), "a real GPU's memory is measured, not declared; one that is made up says simulated: true")
	case g.UUID != "" && !uuidPattern().MatchString(g.UUID):
		return wrong(at.in(".uuid"), "a uuid is as nvidia-smi -L shows it: GPU-… or MIG-…, in small letters")
	case g.UUID != "" && slices.ContainsFunc(c.out.GPUs, func(o GPU) bool { return o.UUID == g.UUID }):
		return wrong(at.in(".uuid"), "the GPU with this uuid is defined twice")
	case slices.ContainsFunc(c.out.GPUs, func(o GPU) bool { return o.Simulated != g.Simulated }):
		return wrong(at, "a host's GPUs are all simulated or all real")
	}
	return nil
}

func (c *checker) models(d *document) {
	root := spot{d.file, "$.models"}
	if len(c.out.Models)+len(d.Models) > maxModels {
		c.found(wrong(root, "more than %d models", maxModels))
		return
	}
	for i, m := range d.Models {
		if !c.entry(kindModel, m.ID, c.model(root.in("[%d]", i), &m)) {
			c.out.Models = append(c.out.Models, m)
		}
	}
}

func (c *checker) model(at spot, m *Model) *problem {
	switch {
	case !modelPattern().MatchString(m.ID) || hasDotDot(m.ID):
		return wrong(at.in(".id"), "a model id is up to 128 letters, digits, _ - . / and holds no .. segment")
	case slices.ContainsFunc(c.out.Models, func(o Model) bool { return o.ID == m.ID }):
		return wrong(at.in(".id"), "model %q is defined twice", m.ID)
	case m.File != "" && !plainPath(m.File):
		return wrong(at.in(".file"), "file must be an absolute path in its shortest form")
	}
	m.ServedName = cmp.Or(m.ServedName, m.ID)
	if m.ServedName = clean.Line(m.ServedName, 128); m.ServedName == "" {
		return wrong(at.in(".served_name"), "served_name holds nothing that can be shown")
	}
	m.Source = clean.Line(m.Source, 256)
	return card(at.in(".card"), m.Card)
}

// card checks what a human says of a model. The check itself is package model's, for cards that were read from files as well.
func card(at spot, c *model.Card) *problem {
	if c == nil {
		return nil
	}
	if p, ok := errors.AsType[*model.Problem](c.Check()); ok {
		return wrong(at.in(".%s", p.Key), "%s", p.What)
	}
	return nil
}

func (c *checker) services(d *document) {
	root := spot{d.file, "$.services"}
	if len(c.out.Services)+len(d.Services) > maxServices {
		c.found(wrong(root, "more than %d services", maxServices))
		return
	}
	for i := range d.Services {
		at := root.in("[%d]", i)
		s, p := c.service(at, &d.Services[i])
		if p == nil && c.out.byID[s.ID] != nil {
			p = wrong(at.in(".id"), "service %q is defined twice", s.ID)
		}
		if c.entry(kindService, d.Services[i].ID, p) {
			continue
		}
		c.at[s.ID] = at
		c.out.byID[s.ID] = s
		c.out.Services = append(c.out.Services, s)
	}
}

// dependencies checks what services need of each other.
func (c *checker) dependencies() (wrongs []dependent) {
	for _, s := range c.out.Services {
		for i, id := range s.DependsOn {
			at := c.at[s.ID].in(".depends_on[%d]", i)
			switch _, known := c.out.byID[id]; {
			case id == s.ID:
				wrongs = append(wrongs, dependent{s.ID, wrong(at, "a service cannot depend on itself")})
			case !known:
				wrongs = append(wrongs, dependent{s.ID, wrong(at, "%s", c.unknown(id))})
			case slices.Contains(s.DependsOn[:i], id):
				wrongs = append(wrongs, dependent{s.ID, wrong(at, "service %q is named twice", id)})
			}
		}
	}
	if len(wrongs) > 0 {
		return wrongs
	}
	done := map[string]bool{}
	for _, s := range c.out.Services {
		if cycle := c.cycle(s, nil, done); cycle != nil {
			return []dependent{{s.ID, wrong(c.at[s.ID].in(".depends_on"), "services depend on each other in a circle: %s", strings.Join(cycle, " → "))}}
		}
	}
	for _, s := range c.out.Services {
		if other := c.needed(s, s.SharesPort, map[string]bool{}); other != nil {
			wrongs = append(wrongs, dependent{s.ID,
				wrong(c.at[s.ID].in(".port"), "port %d is that of service %q, which it depends on: the two run together", s.Port, other.ID)})
		}
	}
	return wrongs
}

// dependent is a service that needs others in a way that is wrong.
type dependent struct {
	id      string
	problem *problem
}

// unknown says why there is no service of that id.
func (c *checker) unknown(id string) string {
	if c.off[kindService+" "+id] {
		return fmt.Sprintf("service %q is disabled, since its own entry is wrong", id)
	}
	return fmt.Sprintf("service %q is not defined under services%s", id, config.DidYouMean(id, c.out.ids()))
}

// needed finds a service that is so among those that s depends on, and those that they depend on. seen were looked at.
func (c *checker) needed(s *Service, is func(*Service) bool, seen map[string]bool) *Service {
	for _, id := range s.DependsOn {
		if other := c.out.byID[id]; is(other) {
			return other
		} else if !seen[id] {
			seen[id] = true
			if found := c.needed(other, is, seen); found != nil {
				return found
			}
		}
	}
	return nil
}

// cycle follows depends_on from s and returns the first circle that it meets. path is how it came there.
func (c *checker) cycle(s *Service, path []string, done map[string]bool) []string {
	if i := slices.Index(path, s.ID); i >= 0 {
		return append(slices.Clone(path[i:]), s.ID)
	}
	if done[s.ID] {
		return nil
	}
	path = append(path, s.ID)
	for _, id := range s.DependsOn {
		if found := c.cycle(c.out.byID[id], path, done); found != nil {
			return found
		}
	}
	done[s.ID] = true
	return nil
}

func (c *checker) modes(d *document) {
	root := spot{d.file, "$.modes"}
	if len(c.out.Modes)+len(d.Modes) > maxModes {
		c.found(wrong(root, "more than %d modes", maxModes))
		return
	}
	for i := range d.Modes {
		m, at := d.Modes[i], root.in("[%d]", i)
		left := c.entry(kindMode, m.ID, c.mode(at, &m))
		c.modeAt[m.ID] = at
		if left {
			continue
		}
		c.out.Modes = append(c.out.Modes, &m)
	}
}

func (c *checker) mode(at spot, m *Mode) *problem {
	_, taken := c.modeAt[m.ID]
	switch {
	case !idPattern().MatchString(m.ID):
		return wrong(at.in(".id"), "a mode id is up to 64 letters, digits, _ and -, and begins with a letter or digit")
	case taken:
		return wrong(at.in(".id"), "mode %q is defined twice", m.ID)
	case m.ID == BootNone || m.ID == BootLast:
		return wrong(at.in(".id"), "%q has a meaning of its own under boot", m.ID)
	case len(m.Services) == 0:
		return wrong(at, "a mode needs services")
	}
	if m.Name = clean.Line(m.Name, maxName); m.Name == "" {
		m.Name = m.ID
	}
	m.Description = clean.Line(m.Description, maxDescription)
	for i, id := range m.Services {
		here := at.in(".services[%d]", i)
		s, known := c.out.byID[id]
		switch {
		case !known:
			return wrong(here, "%s", c.unknown(id))
		case slices.Contains(m.Services[:i], id):
			return wrong(here, "service %q is named twice", id)
		}
		for _, before := range m.Services[:i] {
			if other := c.out.byID[before]; other.SharesPort(s) {
				return wrong(here, "port %d is service %q's too: services of one mode run together, each at a port of its own", s.Port, before)
			}
		}
		for _, needed := range s.DependsOn {
			if !slices.Contains(m.Services[:i], needed) {
				return wrong(here, "%s depends on %s, which must stand before it in the mode", id, needed)
			}
		}
	}
	return nil
}

func (c *checker) boot() {
	said := spot{file: -1}
	for _, d := range c.docs {
		if d.Boot == "" {
			continue
		}
		at := spot{d.file, "$.boot"}
		if said.file >= 0 {
			c.entry(kindBoot, "", wrong(at, "boot stands in two files"))
			c.out.Boot = BootNone
			return
		}
		said = at
		c.out.Boot = d.Boot
	}
	if said.file < 0 || c.out.Boot == BootNone || c.out.Boot == BootLast {
		return
	}
	if _, known := c.out.Mode(c.out.Boot); !known {
		c.entry(kindBoot, "", wrong(said, `boot must be "none", "last" or the id of a mode; mode %q is not defined`, c.out.Boot))
		c.out.Boot = BootNone
	}
}

func (c *checker) containers(d *document) {
	root := spot{d.file, "$.containers"}
	for i, folder := range d.Containers.Mounts {
		at := root.in(".mounts[%d]", i)
		switch {
		case !plainPath(folder) || folder == "/":
			c.found(wrong(at, "a folder that containers may mount from is an absolute path in its shortest form, and not /"))
		case Unmountable(folder) != "":
			c.found(wrong(at, "no container may mount anything from there: it %s", Unmountable(folder)))
		default:
			c.out.Containers.Mounts = append(c.out.Containers.Mounts, folder)
		}
	}
	for i, key := range d.Containers.Environment {
		at := root.in(".environment[%d]", i)
		if !c.found(environmentKey(at, key)) {
			c.out.Containers.Environment = append(c.out.Containers.Environment, key)
		}
	}
	if n := len(c.out.Containers.Mounts) + len(c.out.Containers.Environment); n > maxContainerList {
		c.found(wrong(root, "more than %d entries", maxContainerList))
	}
}

// plainPath reports whether a path is absolute, in its shortest form and can be shown.
func plainPath(p string) bool {
	return filepath.IsAbs(p) && filepath.Clean(p) == p && !hasControl(p) && len(p) <= maxArgument
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
