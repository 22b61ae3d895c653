package downstream

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"durward.internal/services/platform/clean"
)

// Bounds of an installed package with all that it needs.
const (
	maxTreeFiles = 100_000
	maxTreeBytes = 2 << 30
)

// Folder is the name of the folder in which an installed package lies, in the folder of all packages: below it stand node_modules and the
// lock that it was installed from.
func (p Package) Folder() string { return strings.ReplaceAll(p.Name, "/", "+") + "@" + p.Version }

// Main is the file that node is started with, relative to the package's folder. Where the entry names none it is the only one that the
// package declares in that folder.
func (p Package) Main(folder string) (string, error) {
	home := path.Join("node_modules", p.Name)
	if p.Bin != "" {
		return path.Join(home, p.Bin), nil
	}
	bins, err := p.Bins(folder)
	if err != nil {
		return "", err
	}
	if len(bins) != 1 {
		return "", fmt.Errorf("the package has %d programs: npm.bin says which one is started", len(bins))
	}
	return path.Join(home, slices.Collect(maps.Values(bins))[0]), nil
}

// Bins are the programs that the package declares, by name, relative to the package.
func (p Package) Bins(folder string) (map[string]string, error) {
	raw, err := readBounded(filepath.Join(folder, "node_modules", filepath.FromSlash(p.Name), "package.json"))
	if err != nil {
		return nil, errors.New("the package is not installed, or says nothing of itself")
	}
	var said struct {
		Bin json.RawMessage `json:"bin"`
	}
	if err := json.Unmarshal(raw, &said); err != nil {
		return nil, errors.New("the package says nothing of itself that can be read")
	}
	bins, one := map[string]string{}, ""
	if json.Unmarshal(said.Bin, &one) == nil && one != "" {
		bins[path.Base(p.Name)] = one
	} else if len(said.Bin) > 0 && json.Unmarshal(said.Bin, &bins) != nil {
		return nil, errors.New("the package's programs cannot be read")
	}
	for name, file := range bins {
		if bins[name] = path.Clean(file); !filepath.IsLocal(file) {
			return nil, fmt.Errorf("the package's program %s lies outside it", clean.Line(name, 64))
		}
	}
	return bins, nil
}

func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 1<<20))
}

// TreeDigest is SHA-256 of a folder and all that is in it: names, kinds, who may execute, contents, and where links point. Links lead to
// nowhere outside; anything but files, folders and links is refused.
func TreeDigest(folder string) (digest [32]byte, err error) {
	sum := sha256.New()
	add := func(parts ...string) {
		for _, part := range parts {
			sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
			sum.Write([]byte(part))
		}
	}
	files, bytes := 0, int64(0)
	err = filepath.WalkDir(folder, func(at string, d fs.DirEntry, err error) error { // in the order of names
		if err != nil {
			return err
		}
		name, err := filepath.Rel(folder, at)
		if err != nil {
			return err
		}
		if files++; files > maxTreeFiles {
			return fmt.Errorf("it holds more than %d files", maxTreeFiles)
		}
		switch {
		case d.IsDir():
			add("folder", name)
			return nil
		case d.Type() == fs.ModeSymlink:
			to, err := os.Readlink(at)
			if err == nil && !filepath.IsLocal(filepath.Join(filepath.Dir(name), to)) || filepath.IsAbs(to) {
				err = fmt.Errorf("%s leads out of it", clean.Line(name, 200))
			}
			add("link", name, to)
			return err
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is no file", clean.Line(name, 200))
		}
		inner, size, executable, err := fileDigest(at)
		if bytes += size; err == nil && bytes > maxTreeBytes {
			err = fmt.Errorf("it holds more than %d MiB", maxTreeBytes>>20)
		}
		add("file", name, fmt.Sprint(executable), string(inner[:]))
		return err
	})
	return [32]byte(sum.Sum(nil)), err
}

// FileDigest is SHA-256 of a program's bytes.
func FileDigest(name string) ([32]byte, error) {
	digest, _, _, err := fileDigest(name)
	return digest, err
}

func fileDigest(name string) (digest [32]byte, size int64, executable bool, err error) {
	f, err := os.Open(name)
	if err != nil {
		return digest, 0, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no file")
	}
	if err != nil {
		return digest, 0, false, err
	}
	sum := sha256.New()
	size, err = io.Copy(sum, io.LimitReader(f, maxTreeBytes+1))
	return [32]byte(sum.Sum(nil)), size, info.Mode().Perm()&0o111 != 0, err
}
