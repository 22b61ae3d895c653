package security

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/filewatch"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/security/trusted"
)

// Bounds of what is read.
const (
	maxFile  = 256 << 10
	maxAlso  = 1 << 20
	maxFiles = 256
	maxUsers = 64
)

// Names of files and folders.
const (
	FileSettings   = "security.yaml"
	FileTools      = "tools.yaml"
	FileProjects   = trusted.File
	FileDomains    = destination.File
	FolderPolicy   = "policy"
	FolderUsers    = "users"
	FolderProjects = trusted.Folder
)

var (
	userPattern  = pattern.New(`^[a-z0-9][a-z0-9_-]{0,63}$`)
	cedarPattern = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}\.cedar$`)
	copyPattern  = pattern.New(`^[0-9a-f]{64}\.yaml$`)
)

// CheckUser reports why a name cannot be a user's.
func CheckUser(name string) error {
	if !userPattern().MatchString(name) {
		return errors.New("a user's name is a-z, 0-9, _ and -, at most 64, beginning with a letter or digit")
	}
	return nil
}

// found is one file that is there.
type found struct {
	name, layer string
	path        string
	limit       int64
}

// listing is what there is to read. A name in problems that ends with a slash is a folder that could not be listed: what is
// known of the files in it stays.
type listing struct {
	files    []found
	problems map[string]string
	stamps   filewatch.Stamps
}

// list looks at the folder and reads no file.
func (o *Options) list() listing {
	l := listing{problems: map[string]string{}, stamps: filewatch.Stamps{}}
	if o.Dir != "" {
		o.listRoot(&l)
	}
	if len(l.files) > maxFiles {
		l.problems["/"] = fmt.Sprintf("there are more than %d files", maxFiles)
		l.files = nil
	}
	for _, name := range slices.Sorted(maps.Keys(o.Also)) {
		l.add(found{name, LayerSystem, o.Also[name], maxAlso})
	}
	return l
}

func (l *listing) add(f found) {
	l.stamps[f.name] = filewatch.StampOf(f.path)
	l.files = append(l.files, f)
}

// folder lists one folder of the configuration, and calls entry for what may be its own: no hidden file and no editor's copy. Every
// folder was seen where it lies, or has to be there: one that cannot be looked into, whatever the cause, is no folder without rules.
func (o *Options) folder(l *listing, name string, entry func(e fs.DirEntry)) {
	path := filepath.Join(o.Dir, name)
	l.stamps[name+"/"] = filewatch.StampOf(path)
	entries, err := ownership.Names(path, maxFiles, o.Foreign)
	if err != nil {
		l.problems[name+"/"] = reason(err)
		return
	}
	for _, e := range entries {
		if n := e.Name(); !strings.HasPrefix(n, ".") && !strings.HasSuffix(n, "~") {
			entry(e)
		}
	}
}

func (o *Options) listRoot(l *listing) {
	l.stamps.Above(o.Dir)
	known := []string{FileSettings, FileTools, FileProjects, FileDomains, FolderPolicy, FolderUsers, FolderProjects}
	o.folder(l, "", func(e fs.DirEntry) {
		switch n := e.Name(); n {
		case FileSettings, FileTools, FileProjects, FileDomains:
			l.add(found{n, LayerSystem, filepath.Join(o.Dir, n), maxFile})
		case FolderPolicy:
			o.listPolicy(l, n, LayerSystem)
		case FolderUsers:
			o.listUsers(l)
		case FolderProjects:
			o.folder(l, n, func(e fs.DirEntry) {
				if !copyPattern().MatchString(e.Name()) {
					l.stray(n, e, nil)
					return
				}
				l.add(found{n + "/" + e.Name(), trusted.Layer, filepath.Join(o.Dir, n, e.Name()), maxFile})
			})
		default:
			l.stray("", e, known)
		}
	})
}

func (o *Options) listPolicy(l *listing, name, layer string) {
	o.folder(l, name, func(e fs.DirEntry) {
		if !cedarPattern().MatchString(e.Name()) {
			l.stray(name, e, nil)
			return
		}
		l.add(found{name + "/" + e.Name(), layer, filepath.Join(o.Dir, name, e.Name()), maxFile})
	})
}

func (o *Options) listUsers(l *listing) {
	users := 0
	o.folder(l, FolderUsers, func(e fs.DirEntry) {
		name := FolderUsers + "/" + e.Name()
		if CheckUser(e.Name()) != nil {
			l.problems[name] = "it is no folder of a user's that durward knows"
			return
		}
		if users++; users > maxUsers {
			// Whose folder it is that is one too many depends on the names of others: what binds this user goes on binding.
			l.problems[name+"/"] = fmt.Sprintf("there are more than %d users", maxUsers)
			return
		}
		o.folder(l, name, func(e fs.DirEntry) {
			switch n := e.Name(); n {
			case FileSettings, FileTools, FileDomains:
				l.add(found{name + "/" + n, LayerUser, filepath.Join(o.Dir, name, n), maxFile})
			case FolderPolicy:
				o.listPolicy(l, name+"/"+n, LayerUser)
			default:
				l.stray(name, e, []string{FileSettings, FileTools, FileDomains, FolderPolicy})
			}
		})
	})
}

// stray notes what looks like a rule and is none: a rule whose file has the wrong name must not pass for one that binds.
// Other files, notes for instance, may lie there.
func (l *listing) stray(folder string, e fs.DirEntry, known []string) {
	n := e.Name()
	ext := filepath.Ext(n)
	if !e.IsDir() && ext != ".yaml" && ext != ".yml" && ext != ".cedar" {
		return
	}
	text := "durward reads no file of that name here" + config.DidYouMean(n, known)
	if folder != "" {
		n = folder + "/" + n
	}
	l.problems[n] = text
}

// reason puts an error from reading into words without a path.
func reason(err error) string {
	var known *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "it is not there"
	case errors.Is(err, fs.ErrPermission):
		return "this process may not read it"
	case errors.As(err, &known):
		return known.Err.Error()
	}
	return err.Error()
}

// layerOf is the layer of a name that is not there any more.
func layerOf(name string) string {
	switch {
	case strings.HasPrefix(name, FolderUsers+"/"):
		return LayerUser
	case strings.HasPrefix(name, FolderProjects+"/"):
		return trusted.Layer
	}
	return LayerSystem
}

// userOf is whose file it is, of the user's layer.
func userOf(name string) string {
	user, _, _ := strings.Cut(strings.TrimPrefix(name, FolderUsers+"/"), "/")
	return user
}
