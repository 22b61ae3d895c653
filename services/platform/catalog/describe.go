package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
)

// ReadSubject reads what Subject made, strictly: every key is one of an entry's, and the bytes are their own RFC 8785 form.
func ReadSubject(raw []byte) (*Service, error) {
	var form struct {
		*Service
		Definition string `json:"definition_sha256,omitempty"`
	}
	form.Service = &Service{}
	if err := canonical.Unmarshal(raw, &form); err != nil {
		return nil, err
	}
	return form.Service, nil
}

// Describe says in one line what the service runs, for whoever approves it: what, as whom, its port, its GPUs, its memory.
// What is hostile in it is shown, not dropped. gpus are the catalog's, whose simulated ones are called so, or nil where
// they are not known.
func (s *Service) Describe(gpus []GPU) string {
	var parts []string
	switch {
	case s.Driver == DriverNull:
		return "null driver, does nothing"
	case s.Unit != "":
		parts = append(parts, "unit "+clean.Visible(s.Unit))
	case s.Container != nil:
		what := "container of " + clean.Visible(s.Container.Image)
		if s.Container.Adopt {
			what = "the container labelled durward.service=" + clean.Visible(s.ID) + ", of " + clean.Visible(s.Container.Image)
		}
		if s.Container.User != "" {
			what += " as user " + clean.Visible(s.Container.User)
		}
		parts = append(parts, what)
		if len(s.Container.Command) > 0 {
			parts = append(parts, "command "+words(s.Container.Command))
		}
		for _, m := range s.Container.Mounts {
			how := "read-only"
			if m.Writable {
				how = "WRITABLE"
			}
			parts = append(parts, fmt.Sprintf("mounts %s at %s %s", clean.Visible(m.Source), clean.Visible(m.Target), how))
		}
	}
	if len(s.Argv) > 0 {
		as := s.RunAs
		as = cmp.Or(as, "the executor's own user")
		parts = append(parts, words(s.Argv)+" as "+clean.Visible(as))
	}
	if s.Port != 0 {
		parts = append(parts, fmt.Sprintf("port %d", s.Port))
	}
	for _, index := range s.GPUs {
		label := ""
		if slices.ContainsFunc(gpus, func(g GPU) bool { return g.Index == index && g.Simulated }) {
			label = " (simulated)"
		}
		parts = append(parts, fmt.Sprintf("GPU %d%s", index, label))
	}
	if s.VRAMMiB > 0 {
		parts = append(parts, fmt.Sprintf("%d MiB declared", s.VRAMMiB))
	}
	return strings.Join(parts, ", ")
}

// words is an argument vector as one would type it.
func words(argv []string) string {
	out := make([]string, len(argv))
	for i, a := range argv {
		out[i] = clean.Visible(a)
		if strings.ContainsAny(a, " \t\"'") || a == "" {
			out[i] = fmt.Sprintf("%q", a)
		}
	}
	return strings.Join(out, " ")
}
