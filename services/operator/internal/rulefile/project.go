package rulefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/security/trusted"
)

// ErrUntrusted means that a project's file is not trusted.
var ErrUntrusted = errors.New("the file is not trusted")

// ProjectsError is why projects.yaml is not good.
type ProjectsError struct{ error }

// Projects are the projects' files that are trusted now. The error is a *ProjectsError where the file has to be corrected.
func Projects(cfg installdir.Config) ([]trusted.Project, error) {
	raw, err := os.ReadFile(filepath.Join(cfg.SecurityDir, trusted.File))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s cannot be read", trusted.File)
	}
	list, err := trusted.Parse(trusted.File, raw)
	if err != nil {
		return nil, &ProjectsError{err}
	}
	return list, nil
}

// Trust puts the copy of a project's file there before the entry that names it, and takes away the copy of what was trusted of the
// path before.
func Trust(cfg installdir.Config, entry trusted.Project, text []byte) ([]*signedchange.Plan, error) {
	known, err := Projects(cfg)
	if err != nil {
		return nil, err
	}
	plans, err := signedchange.PrepareOne(filepath.Join(cfg.SecurityDir, entry.Copy()), entry.Copy(), func([]byte) ([]byte, error) { return text, nil })
	if err != nil {
		return nil, err
	}
	named, err := projectsFile(cfg, func(before []byte) ([]byte, error) {
		if slices.ContainsFunc(known, func(p trusted.Project) bool {
			return p.Path == entry.Path && p.SHA256 == entry.SHA256 && slices.Equal(p.Clients, entry.Clients)
		}) {
			return before, nil
		}
		after, err := edit.Remove(before, "projects", ofProject(entry.Path))
		if errors.Is(err, edit.ErrUnknown) {
			after, err = before, nil
		}
		if err != nil {
			return nil, err
		}
		return edit.Append(after, "projects", projectItem(entry))
	})
	if err != nil {
		return nil, err
	}
	dropped, err := dropCopies(cfg, known, entry.Path, entry.SHA256)
	return slices.Concat(plans, named, dropped), err
}

// Untrust takes a project's entry out, and its copy away. ErrUntrusted: it has none.
func Untrust(cfg installdir.Config, path string) ([]*signedchange.Plan, error) {
	known, err := Projects(cfg)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(known, func(p trusted.Project) bool { return p.Path == path }) {
		return nil, ErrUntrusted
	}
	plans, err := projectsFile(cfg, func(before []byte) ([]byte, error) { return edit.Remove(before, "projects", ofProject(path)) })
	if err != nil {
		return nil, err
	}
	dropped, err := dropCopies(cfg, known, path, "")
	return append(plans, dropped...), err
}

func projectsFile(cfg installdir.Config, edited func([]byte) ([]byte, error)) ([]*signedchange.Plan, error) {
	return signedchange.PrepareOne(filepath.Join(cfg.SecurityDir, trusted.File), trusted.File, edited)
}

// projectItem is an entry of projects.yaml.
func projectItem(p trusted.Project) string {
	var b strings.Builder
	fmt.Fprintf(&b, "path: %s\nsha256: %q\n", edit.Text(p.Path), p.SHA256)
	if len(p.Clients) > 0 {
		fmt.Fprintf(&b, "clients: %s\n", edit.Texts(p.Clients))
	}
	fmt.Fprintf(&b, "by: %s\nat: %q\n", edit.Text(p.By), p.At.Format(time.RFC3339))
	return b.String()
}

func ofProject(path string) func(any, string) bool {
	return func(item any, _ string) bool {
		m, ok := item.(map[string]any)
		return ok && m["path"] == path
	}
}

// dropCopies takes away copies that were trusted for a path and that nothing names any more.
func dropCopies(cfg installdir.Config, known []trusted.Project, path, kept string) ([]*signedchange.Plan, error) {
	var plans []*signedchange.Plan
	for _, p := range known {
		if p.Path != path || p.SHA256 == kept {
			continue
		}
		if slices.ContainsFunc(known, func(other trusted.Project) bool { return other.Path != path && other.SHA256 == p.SHA256 }) {
			continue
		}
		gone, err := signedchange.Prepare(filepath.Join(cfg.SecurityDir, p.Copy()), p.Copy(), func([]byte) ([]byte, error) { return nil, nil })
		if err != nil {
			return nil, err
		}
		plans = append(plans, gone)
	}
	return plans, nil
}
