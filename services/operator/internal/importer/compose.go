package importer

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"durward.internal/services/operator/internal/importer/boundedyaml"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/clean"
)

// maxComposeFiles bounds how many files one import reads.
const maxComposeFiles = 32

// Compose reads Compose files, each by itself, and takes the services that ask for GPUs. What single services get wrong is left
// out by name; an error is for a file as a whole. Source: the Compose Specification (compose-spec/compose-spec).
func Compose(ctx context.Context, p *proposal.Proposal, files []string, given Given) error {
	if len(files) > maxComposeFiles {
		return fmt.Errorf("more than %d files", maxComposeFiles)
	}
	b := newBuilder(p, given)
	modes := map[string]bool{}
	for _, file := range files {
		root, base, err := boundedyaml.Read(file)
		if err != nil {
			return err
		}
		if err := composeFile(ctx, b, modes, filepath.Base(file), base, root); err != nil {
			return err
		}
	}
	return nil
}

// composeFile takes one file, whose relative folders are below base.
func composeFile(ctx context.Context, b *builder, modes map[string]bool, file, base string, root *boundedyaml.Value) error {
	c := &compose{builder: b, base: base, file: clean.Line(clean.Visible(file), 100), root: root, modeIDs: modes, profiles: map[string][]string{}, here: map[string]string{}}
	return c.services(ctx)
}

type compose struct {
	*builder
	base, file string
	root       *boundedyaml.Value
	modeIDs    map[string]bool
	// profiles has the ids of services by profile; always are those without one.
	profiles map[string][]string
	order    []string
	always   []string
	// here are the ids of the file's services by name that ask for GPUs.
	here map[string]string
}

// composeOut are keys of a file that are left out, and why.
var composeOut = map[string]string{
	"include": "other files are not followed: name them on the command line", "secrets": "they are not copied", "configs": "they are not copied",
}

func (c *compose) services(ctx context.Context) error {
	services := c.root.Get("services")
	if services.Kind != boundedyaml.Mapping {
		return fmt.Errorf("%s has no services: it is no Compose file", clean.Visible(c.file))
	}
	if len(services.Keys) > maxEntries {
		return fmt.Errorf("%s has more than %d services", clean.Visible(c.file), maxEntries)
	}
	for _, key := range unknown(c.root, strings.Fields("services version name volumes networks")) {
		c.LeaveOut(key+" of "+c.file, "%s", cmp.Or(composeOut[key], "this key is not known"))
	}
	ids := map[string]string{}
	for _, name := range services.Keys {
		v := services.Get(name)
		ids[name] = c.freeID(name)
		if v.Over(composeBounds) == "" && (&box{builder: c.builder, v: v}).wants() {
			c.here[name] = ids[name]
		}
	}
	for _, name := range services.Keys {
		c.service(name, ids[name], services.Get(name))
		if err := cmp.Or(ctx.Err(), c.spent()); err != nil {
			return err
		}
	}
	c.modes()
	return nil
}

// freeID is a service's id, and the same as its name even where another file has a service of that name: one of the two is then left
// out by name.
func (c *compose) freeID(name string) string {
	if id := proposal.ID(name); id == name {
		c.ids[id] = true
		return id
	}
	return proposal.FreeID(name, c.ids)
}

func (c *compose) service(name, id string, v *boundedyaml.Value) {
	shown := clean.Line(clean.Visible(name), 64)
	s := &program{base: c.base, what: "service " + shown, from: "From the service " + shown + " of " + c.file + "."}
	why := ""
	_, wanted := c.here[name]
	switch {
	case v.Kind != boundedyaml.Mapping:
		why = "it is no mapping"
	case v.Over(composeBounds) != "":
		why = v.Over(composeBounds)
	case id == "":
		why = "no id can be made of its name"
	case v.Get("extends").IsSet():
		why = "it extends another service, which is not followed: write out what it has"
	case !wanted:
		why = "it asks for no GPU"
	case !c.more():
		why = fmt.Sprintf("more than %d services", proposal.MaxServices)
	}
	if why != "" {
		c.LeaveOut(s.what, "%s", why)
	} else {
		s.note("%s", s.from)
		s.DependsOn = c.needs(s, v)
		c.container(id, &box{program: s, v: v})
	}
	if wanted {
		c.sort(id, (&box{builder: c.builder}).texts(v.Get("profiles")))
	}
}

// needs takes over dependencies between services that are GPU services both.
func (c *compose) needs(s *program, v *boundedyaml.Value) (out []string) {
	for _, name := range append(v.Get("depends_on").Strings(), v.Get("depends_on").Keys...) {
		if id := c.here[name]; id != "" {
			out = append(out, id)
		} else {
			s.note("It depends on %s, which asks for no GPU and is not in the proposal: see that it runs.", clean.Line(clean.Visible(name), 64))
		}
	}
	return out
}

// sort notes in which profiles a service is.
func (c *compose) sort(id string, profiles []string) {
	if len(profiles) == 0 {
		c.always = append(c.always, id)
	}
	for _, name := range profiles {
		if _, known := c.profiles[name]; !known {
			c.order = append(c.order, name)
		}
		c.profiles[name] = append(c.profiles[name], id)
	}
}

// modes makes a mode of each profile, with the services that are in none: Compose starts those with every profile.
func (c *compose) modes() {
	if len(c.always) > 0 {
		name := c.put(c.root.Get("name").Str())
		if proposal.ID(name) == "" {
			name = filepath.Base(c.base)
		}
		if id := proposal.FreeID(name, c.modeIDs); id != "" {
			c.Candidate(id, nil, c.always, "The services of "+c.file+" that are in no profile: docker compose up starts them.")
		}
	}
	for _, name := range c.order {
		if id := proposal.FreeID(name, c.modeIDs); id != "" {
			c.Mode(id, nil, append(slices.Clone(c.always), c.profiles[name]...), "The profile "+clean.Line(clean.Visible(name), 64)+" of "+c.file+".")
		}
	}
}
