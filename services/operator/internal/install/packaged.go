package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"durward.internal/services/platform/clean"
)

// Folders of Debian's package, which carries programs, units, users, folders, manual pages and completion files. Where it is installed, an
// installation lays out what belongs to the host alone, and takes away what an earlier one without the package had laid out of the rest.
const (
	// PackagePrograms is the folder of the programs of the package.
	PackagePrograms = "/usr/lib/durward"
	packageUnits    = "/usr/lib/systemd/system"
)

// Reinstall is how the package is made whole.
const Reinstall = "sudo dpkg --install durward_VERSION_ARCH.deb"

// packageFolders are where the package has what an installation without it lays into folders of the host's own.
var packageFolders = map[string]string{unitsDir: packageUnits, "/etc/sysusers.d": "/usr/lib/sysusers.d", "/etc/tmpfiles.d": "/usr/lib/tmpfiles.d"}

// Packaged reports whether the package is installed below a root.
func Packaged(root string) bool {
	info, err := os.Stat(filepath.Join(root, PackagePrograms, "durward"))
	return err == nil && info.Mode().IsRegular()
}

// ProgramIn is where the durward command is installed below a root.
func ProgramIn(root string) string {
	if Packaged(root) {
		return PackagePrograms + "/durward"
	}
	return Program
}

// checkPackage refuses a second installation beside the package's.
func (p *Plan) checkPackage() error {
	p.packaged = Packaged(p.opts.Root)
	if p.packaged && filepath.Clean(p.opts.Programs) != p.on(PackagePrograms) {
		return errors.New("the programs of this host are the package durward's: install another version of the package, or take it away first: sudo apt remove durward")
	}
	return nil
}

// packageFile is a step for a file of the package's, which was changed where it is not what it was at the last run.
func (p *Plan) packageFile(path string) error {
	data, err := os.ReadFile(p.on(path))
	if err != nil {
		return fmt.Errorf("the package durward is not whole (%s): %w", Reinstall, err)
	}
	s := Step{Verb: Same, What: path, restart: true}
	if was := p.record.Files[path]; was != digest(data) {
		s.Verb, s.Note = Change, "the package has another version"
		if was == "" {
			s.Verb, s.Note = Make, "it is the package's"
		}
		s.do = func(context.Context) (string, error) { return "", nil } // dpkg did it
	}
	p.record.Files[path] = digest(data)
	p.add(s)
	return nil
}

// inPackage takes away the file of an installation without the package in whose place is one of the package's. One that a human has
// edited stays, unless it starts a program that is to go.
func (p *Plan) inPackage(file string) error {
	info, err := os.Lstat(p.on(file))
	if err != nil || !info.Mode().IsRegular() {
		delete(p.record.Files, file)
		return nil //nolint:nilerr // it is not there, or masked
	}
	text, err := os.ReadFile(p.on(file))
	if err != nil {
		return err
	}
	if !p.ours(file, digest(text)) && strings.Contains(string(text), programs+"/") {
		return fmt.Errorf("%s was edited, and stands before the package's: lay your changes down (sudo systemctl edit %s), remove the file, and run the command again", file, path.Base(file))
	}
	p.unwanted(file)
	return nil
}

// supersede takes away the programs and documents of an installation without the package.
func (p *Plan) supersede() {
	var gone []string
	for _, name := range slices.Concat(p.programNames(), []string{"auditwitness", "auditrelay", "egress", "durward-launcher"}) {
		gone = append(gone, programs+"/"+name)
	}
	if target, err := os.Readlink(p.on(command)); err == nil && target == commandTarget {
		gone = append(gone, command)
	}
	folders := map[string]bool{}
	for file := range p.opts.Documents {
		gone, folders[filepath.Dir(file)] = append(gone, file), true
	}
	for folder := range folders {
		entries, err := os.ReadDir(p.on(folder))
		for _, entry := range entries {
			if err == nil && entry.Type().IsRegular() && strings.HasPrefix(entry.Name(), "durward-") {
				gone = append(gone, filepath.Join(folder, entry.Name()))
			}
		}
	}
	gone = slices.DeleteFunc(gone, func(file string) bool {
		_, err := os.Lstat(p.on(file))
		return err != nil
	})
	if len(gone) == 0 {
		return
	}
	p.add(Step{Verb: Remove, What: fmt.Sprintf("%s below /usr/local", clean.Count(len(gone), "program, manual page or completion file", "programs, manual pages and completion files")), Note: "the package has them", do: func(context.Context) (string, error) {
		for _, file := range gone {
			if err := os.Remove(p.on(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
		_ = os.Remove(p.on(programs)) // unless something else is in it
		return "", nil
	}})
}

// Behind names files of the package that have changed since the last run: the package has another version than the one in force.
func (r Record) Behind(root string) (behind []string) {
	for file, want := range r.Files {
		if !strings.HasPrefix(file, PackagePrograms+"/") && !strings.HasPrefix(file, packageUnits+"/") {
			continue
		}
		if got, err := fileDigest(filepath.Join(root, file)); err != nil || got != want {
			behind = append(behind, file)
		}
	}
	slices.Sort(behind)
	return behind
}

// Units are those that an installation enables.
func (s Settings) Units() []string {
	units := append([]string{"durward.target", "durward-renew.timer", gatewaySocket}, services()...)
	for _, a := range s.wanted() {
		units = append(units, a.unit())
	}
	if s.Firewall {
		units = append(units, firewallUnit)
	}
	return units
}
