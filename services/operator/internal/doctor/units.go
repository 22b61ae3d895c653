package doctor

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"durward.internal/services/operator/internal/install"
	"durward.internal/services/platform/clean"
)

// Installed is an installation of durward install, as it is found.
type Installed struct {
	// Containers: the processes run in containers, each with its program, and nothing of systemd's is there.
	Containers bool
	// Packaged: programs and units are the package's. Differ are its files that are not what was packed; Behind are those that have changed
	// since the installation was laid out. PackageError says that its list cannot be read.
	Packaged       bool
	Differ, Behind []string
	PackageError   error
	// Reinstall is the command that makes the package whole.
	Reinstall string
	// Misplaced have another owner or mode than they were installed with; MisplacedError says why they cannot be looked at. Root alone looks.
	Misplaced      []install.Misplaced
	MisplacedError error
	// Beside is a program of an installation without the package that stands before the package's; empty: there is none.
	Beside string
	Units  []Unit
	// UnitsError says that systemd could not be asked.
	UnitsError error
}

// Unit is what systemd says of one of ours.
type Unit struct {
	Name string
	// Load, Active, Sub, File, Fragment and Deny are LoadState, ActiveState, SubState, UnitFileState, FragmentPath and IPAddressDeny.
	Load, Active, Sub, File, Fragment, Deny string
	// Stale: its file has changed since systemd read it.
	Stale bool
}

// ParseUnits reads what `systemctl show` prints of several units.
func ParseUnits(shown []byte) (out []Unit, err error) {
	u := Unit{}
	end := func() {
		if u.Name != "" {
			out = append(out, u)
		}
		u = Unit{}
	}
	lines := bufio.NewScanner(bytes.NewReader(shown))
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), "=")
		switch key {
		case "":
			end()
		case "Id":
			u.Name = value
		case "LoadState":
			u.Load = value
		case "ActiveState":
			u.Active = value
		case "SubState":
			u.Sub = value
		case "UnitFileState":
			u.File = value
		case "FragmentPath":
			u.Fragment = value
		case "IPAddressDeny":
			u.Deny = value
		case "NeedDaemonReload":
			u.Stale = value == "yes"
		}
	}
	end()
	if len(out) == 0 {
		err = errors.New("systemctl says nothing of the units")
	}
	return out, errors.Join(err, lines.Err())
}

// UnitProperties are what ParseUnits reads.
const UnitProperties = "Id,LoadState,ActiveState,SubState,UnitFileState,FragmentPath,IPAddressDeny,NeedDaemonReload"

// packaged: the package is whole and in force, and the only installation.
func packaged(_ context.Context, cfg Config) []Finding {
	in := cfg.Installed
	if in == nil || !in.Packaged {
		return nil
	}
	few := func(files []string) string { return clean.Line(strings.Join(files[:min(len(files), 3)], ", "), 300) }
	var out []Finding
	switch {
	case in.PackageError != nil:
		out = append(out, Finding{Bad, "package", "the list of what was packed cannot be read: " + clean.Line(in.PackageError.Error(), 200), in.Reinstall})
	case len(in.Differ) > 0:
		out = append(out, Finding{Bad, "package", fmt.Sprintf("%s not what was packed (%s)", clean.Count(len(in.Differ), "file is", "files are"), few(in.Differ)), in.Reinstall})
	case len(in.Behind) > 0:
		out = append(out, Finding{Bad, "package", fmt.Sprintf("the version that was installed last is not in force (%s)", few(in.Behind)), "sudo dpkg --configure durward; sudo durward install --apply"})
	}
	if in.Beside != "" {
		out = append(out, Finding{Bad, "package", "there are two installations: " + in.Beside + " stands before the package's", "sudo /usr/bin/durward install --apply"})
	}
	if len(out) == 0 {
		out = append(out, good("package", "its files are those that were packed (durward version --verify: by whom)"))
	}
	return out
}

// misplaced: every file and folder has the owner and mode with which it was installed.
func misplaced(_ context.Context, cfg Config) (out []Finding) {
	in := cfg.Installed
	if in == nil {
		return nil
	}
	if in.MisplacedError != nil {
		out = append(out, Finding{Bad, "files", clean.Line(in.MisplacedError.Error(), 500), "sudo durward install --dry-run"})
	}
	for _, m := range in.Misplaced {
		out = append(out, Finding{Bad, "files", fmt.Sprintf("%s is %s, and was installed as %s", clean.Line(m.Path, 300), m.Is, m.Wanted), m.Mend})
	}
	return out
}

// units: each is the one that was shipped, starts with the host, runs, and lets nobody elsewhere in.
func units(_ context.Context, cfg Config) []Finding {
	in := cfg.Installed
	if in == nil || in.Containers {
		return nil
	}
	if in.UnitsError != nil {
		return []Finding{{Warning, "units", "systemd cannot be asked: " + clean.Line(in.UnitsError.Error(), 200), "Look yourself: systemctl status 'durward*'"}}
	}
	var out []Finding
	bad := func(u Unit, text, do string) { out = append(out, Finding{Bad, "units", u.Name + " " + text, do}) }
	for _, u := range in.Units {
		switch {
		case u.Load == "masked" || u.File == "masked" || u.File == "masked-runtime":
			bad(u, "is masked", "sudo systemctl unmask "+u.Name+" && sudo systemctl start "+u.Name)
		case u.Load != "loaded":
			bad(u, "cannot be loaded ("+clean.Line(u.Load, 40)+")", "systemd-analyze verify "+u.Name+"; sudo durward install --apply")
		case u.Stale:
			out = append(out, Finding{Bad, "units", "systemd has not read " + u.Name + " since it changed", "sudo systemctl daemon-reload"})
		case in.Packaged && strings.HasPrefix(u.Fragment, "/etc/"):
			out = append(out, Finding{Bad, "units", u.Fragment + " stands before the package's, and is not upgraded",
				"Lay changes down with sudo systemctl edit " + u.Name + ", then: sudo rm " + u.Fragment + " && sudo systemctl daemon-reload"})
		case slices.Contains([]string{"disabled", "linked", "bad"}, u.File):
			bad(u, "does not start with the host", "sudo systemctl enable "+u.Name)
		case u.Active == "failed":
			bad(u, "has failed", "journalctl -u "+u.Name+" -n 50; sudo systemctl reset-failed "+u.Name+" && sudo systemctl start "+u.Name)
		case strings.HasPrefix(u.Sub, "auto-restart"):
			bad(u, "ends, and systemd starts it again each second", "journalctl -u "+u.Name+" -n 50")
		case u.Active != "active" && u.Active != "activating" && u.Active != "reloading":
			bad(u, "does not run", "sudo systemctl start "+u.Name)
		case u.Deny == "" && deniesAddresses(u.Name):
			bad(u, "has no IPAddressDeny: a port that it opens by mistake can be reached from elsewhere", "See which drop-in takes it away: systemctl cat "+u.Name)
		}
	}
	if len(out) == 0 {
		out = append(out, good("units", "all %d are as they were shipped, run, and start with the host", len(in.Units)))
	}
	return out
}

// deniesAddresses reports whether a unit is shipped with IPAddressDeny.
func deniesAddresses(unit string) bool {
	return slices.Contains([]string{"durward-gateway.socket", "durward-audit.service", "durward-vault.service", "durward-executor.service", "durward-gateway.service",
		"durward-egress.service", "durward-launcher.service", "durward-auditwitness.service"}, unit)
}
