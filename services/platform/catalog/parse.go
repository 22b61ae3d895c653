package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/security/ownership"
)

// Bounds of what is read. They keep a slip of the pen from becoming a host that nobody can use.
const (
	maxFileBytes = 1 << 20
	maxFiles     = 64
)

// Options say on which host a catalog is read.
type Options struct {
	// ProgramsDir is where a program named without a slash is looked for first, before PATH. May be empty.
	ProgramsDir string
	// Development allows services without run_as, which then run as the executor's own user.
	Development bool
	// UID is the executor's own user id.
	UID int
	// Foreign is the Unix user, the gateway's, who may neither own nor write the catalog; nil: nobody is looked at.
	Foreign *ownership.Foreign
	// Users finds a user by name; nil means the host's own users.
	Users func(name string) (*user.User, error)
	// Lenient leaves out a service, model or mode that is wrong, and what needs it, and lists it; without, each is an error. A wrong
	// version, GPU or list of folders is an error in any case: it says something of every service.
	Lenient bool
	// Drivers are those that services may use; nil: any.
	Drivers []string
	// InContainer says why a driver that needs the host itself is none of them.
	InContainer bool
}

// File is one file of a catalog; Name stands for it in errors.
type File struct {
	Name string
	Data []byte
}

// Problem is one thing that is wrong, and where.
type Problem = config.Error

// Problems is everything that is wrong with a catalog, in the order of its files and lines.
type Problems []Problem

// Error is a line for each problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Load reads and checks a catalog: a file, or every .yaml file of a folder in the order of their names. Its errors say file,
// line and column, and what is wrong, for a human; they do not leave the process otherwise.
func Load(path string, opts Options) (*Catalog, error) {
	if err := opts.Foreign.Refuse(path); err != nil {
		return nil, fmt.Errorf("catalogue: %w", err)
	}
	files, err := Read(path)
	if err != nil {
		return nil, fmt.Errorf("catalogue: %w", err)
	}
	return ParseFiles(files, opts)
}

// ErrEmpty is Read's for a folder.
var ErrEmpty = errors.New("no .yaml file is in this folder")

// Read reads a catalog's files and checks nothing.
func Read(path string) ([]File, error) {
	names, err := list(path)
	if err != nil {
		return nil, err
	}
	files := make([]File, 0, len(names))
	for _, name := range names {
		data, err := config.Read(name)
		if err != nil {
			return nil, err
		}
		files = append(files, File{Name: name, Data: data})
	}
	return files, nil
}

// list returns the file itself, or the .yaml files of a folder in the order of their names.
func list(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		// Hidden files are editors' copies.
		if filepath.Ext(e.Name()) == ".yaml" && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, filepath.Join(path, e.Name()))
		}
	}
	switch {
	case len(names) == 0:
		return nil, fmt.Errorf("%s: %w", path, ErrEmpty)
	case len(names) > maxFiles:
		return nil, fmt.Errorf("%s: more than %d files", path, maxFiles)
	}
	return names, nil
}

// Parse checks the bytes of a catalog of one file; name stands for the file in errors.
func Parse(name string, raw []byte, opts Options) (*Catalog, error) {
	return ParseFiles([]File{{Name: name, Data: raw}}, opts)
}

// ParseFiles checks a catalog. What is no YAML of the right shape is told alone; of what can be read, everything that is wrong
// is told, as Problems.
func ParseFiles(files []File, opts Options) (*Catalog, error) {
	if opts.Users == nil {
		opts.Users = user.Lookup
	}
	docs := make([]*document, len(files))
	for i, f := range files {
		if len(f.Data) > maxFileBytes {
			return nil, fmt.Errorf("%s: larger than 1 MB", f.Name)
		}
		docs[i] = &document{file: i}
		if err := config.Parse(f.Name, f.Data, docs[i]); err != nil {
			return nil, err
		}
	}
	c := checker{opts: opts, docs: docs, out: &Catalog{Boot: BootNone, byID: map[string]*Service{}}}
	c.check()
	if len(c.problems) > 0 {
		return nil, place(files, c.problems)
	}
	for _, d := range c.disabled {
		c.out.Disabled = append(c.out.Disabled, Disabled{Kind: d.kind, ID: d.id, Problem: place(files, []*problem{d.problem})[0]})
	}
	c.out.Digest = digest(files)
	return c.out, nil
}

// digest is over the bytes of a single file, and over the names and digests of several.
func digest(files []File) string {
	if len(files) == 1 {
		return canonical.DigestText(files[0].Data)
	}
	var all strings.Builder
	for _, f := range files {
		fmt.Fprintf(&all, "%s  %s\n", canonical.DigestText(f.Data), filepath.Base(f.Name))
	}
	return canonical.DigestText([]byte(all.String()))
}

// spot is a place in one of the files, as a YAML path.
type spot struct {
	file int
	path string
}

// in is the place of a key or element below.
func (s spot) in(format string, args ...any) spot {
	return spot{s.file, s.path + fmt.Sprintf(format, args...)}
}

// problem is what is wrong, and where.
type problem struct {
	at   spot
	what string
}

func wrong(at spot, format string, args ...any) *problem {
	return &problem{at: at, what: fmt.Sprintf(format, args...)}
}

// place finds the lines of problems.
func place(files []File, problems []*problem) Problems {
	out := make(Problems, 0, len(problems))
	order := map[string]int{}
	for i, f := range files {
		order[f.Name] = i
	}
	trees := map[int]*ast.File{}
	for _, p := range problems {
		f := files[p.at.file]
		tree, known := trees[p.at.file]
		if !known {
			tree = parsed(f.Data)
			trees[p.at.file] = tree
		}
		line, column := position(tree, p.at.path)
		out = append(out, Problem{File: f.Name, Line: line, Column: column, What: p.what})
	}
	slices.SortStableFunc(out, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(order[a.File], order[b.File]), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return out
}

// AsProblems returns the problems that an error of this package tells of, or nil.
func AsProblems(err error) Problems {
	if p, ok := errors.AsType[Problems](err); ok {
		return p
	}
	return nil
}

// parsed is a file's tree, or nil.
func parsed(raw []byte) *ast.File {
	file, err := parser.ParseBytes(raw, 0)
	if err != nil {
		return nil
	}
	return file
}

// position finds the line and column of a YAML path such as $.services[1].port. A path that is not in the document (a
// missing key) gives the place of the nearest parent that is.
func position(file *ast.File, path string) (line, column int) {
	for file != nil && path != "$" && path != "" {
		if p, err := yaml.PathString(path); err == nil {
			if node, err := p.FilterFile(file); err == nil && node != nil && node.GetToken() != nil {
				at := node.GetToken().Position
				return at.Line, at.Column
			}
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 1, 1
}
