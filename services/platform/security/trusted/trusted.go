// Package trusted reads which projects' files a human trusted, and the copies of them. Every process that obeys a project's file links
// it. A copy counts by its digest alone; the project's own folder is never read.
package trusted

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"time"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/pattern"
)

const maxProjects = 64

// File is the list of projects, and Folder is where the copies are: both in the folder of the security configuration. Layer is the name of
// the layer that they are.
const (
	File   = "projects.yaml"
	Folder = "projects"
	Layer  = "project"
)

var (
	clientPattern = pattern.New(`^[a-z0-9][a-z0-9_-]{0,63}$`)
	digestPattern = pattern.New(`^[0-9a-f]{64}$`)
)

// Project is one entry of projects.yaml: a project whose file a human trusted, by its digest.
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

// Copy is the name of the trusted copy, projects/<sha256>.yaml.
func (p Project) Copy() string { return path.Join(Folder, p.SHA256+".yaml") }

// Check reports whether a text is what a human trusted.
func (p Project) Check(text []byte) error {
	if canonical.DigestText(text) != "sha256:"+p.SHA256 {
		return errors.New("it is not what a human trusted: its digest is another")
	}
	return nil
}

// Parse reads a projects.yaml; name stands in errors.
func Parse(name string, data []byte) ([]Project, error) {
	if config.Blank(data) {
		return nil, nil
	}
	var doc struct {
		Projects []Project `yaml:"projects"`
	}
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
			if !clientPattern().MatchString(c) {
				return nil, bad("%q is no client's name", strings.ToValidUTF8(c, "?"))
			}
		}
	}
	return doc.Projects, nil
}
