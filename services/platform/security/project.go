package security

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"time"

	"durward.internal/services/platform/config"
)

const maxProjects = 64

// Project is one entry of projects.yaml: a project whose file a human trusted, by its digest. The vault reads the trusted copy
// alone, projects/<sha256>.yaml, and never the project's own folder.
type Project struct {
	// Path is where the project's file is, for people.
	Path string `yaml:"path"`
	// SHA256 is the file's, 64 lower-case hex digits.
	SHA256 string `yaml:"sha256"`
	// Clients are those that it binds; none: all.
	Clients []string `yaml:"clients"`
	// By and At are who trusted it and when.
	By string    `yaml:"by"`
	At time.Time `yaml:"at"`
}

// Copy is the name of the trusted copy.
func (p Project) Copy() string { return path.Join(FolderProjects, p.SHA256+".yaml") }

type projectsFile struct {
	Projects []Project `yaml:"projects"`
}

// ParseProjects reads a projects.yaml; name stands in errors.
func ParseProjects(name string, data []byte) ([]Project, error) {
	if config.Blank(data) {
		return nil, nil
	}
	var doc projectsFile
	if err := config.Parse(name, data, &doc); err != nil {
		return nil, err
	}
	if len(doc.Projects) > maxProjects {
		return nil, fmt.Errorf("%s: more than %d projects", name, maxProjects)
	}
	seen := map[string]bool{}
	for i, p := range doc.Projects {
		bad := func(format string, args ...any) error {
			return fmt.Errorf("%s: projects[%d]: %s", name, i, fmt.Sprintf(format, args...))
		}
		switch {
		case !filepath.IsAbs(p.Path):
			return nil, bad("path must be absolute")
		case !digestPattern().MatchString(p.SHA256):
			return nil, bad("sha256 must be 64 lower-case hex digits")
		case seen[p.Path]:
			return nil, bad("the path stands here twice")
		}
		seen[p.Path] = true
		for _, c := range p.Clients {
			if CheckUser(c) != nil {
				return nil, bad("%q is no client's name", strings.ToValidUTF8(c, "?"))
			}
		}
	}
	return doc.Projects, nil
}
