package doctor

import (
	"context"
	"errors"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/install"
	"durward.internal/services/platform/catalog"
)

const shown = `Id=durward-vault.service
LoadState=loaded
ActiveState=active
SubState=running
FragmentPath=/usr/lib/systemd/system/durward-vault.service
UnitFileState=enabled
NeedDaemonReload=no
IPAddressDeny=::/0 0.0.0.0/0

Id=durward.target
LoadState=loaded
ActiveState=active
FragmentPath=/usr/lib/systemd/system/durward.target
UnitFileState=enabled
NeedDaemonReload=no
`

// TestUnits: each mistake is named, with what to type.
func TestUnits(t *testing.T) {
	for _, c := range []struct{ was, is, text, do string }{
		{"", "", "all 2 are as they were shipped", ""},
		{"LoadState=loaded\nActiveState=active\nSubState=running\nFragmentPath=/usr/lib/systemd/system/durward-vault", "LoadState=masked\nActiveState=inactive\nFragmentPath=/usr/lib/systemd/system/durward-vault",
			"durward-vault.service is masked", "sudo systemctl unmask durward-vault.service"},
		{"LoadState=loaded", "LoadState=not-found", "durward-vault.service cannot be loaded (not-found)", "sudo durward install --apply"},
		{"NeedDaemonReload=no", "NeedDaemonReload=yes", "has not read durward-vault.service", "sudo systemctl daemon-reload"},
		{"/usr/lib/systemd/system/durward-vault", "/etc/systemd/system/durward-vault", "stands before the package's", "sudo rm /etc/systemd/system/durward-vault.service"},
		{"UnitFileState=enabled", "UnitFileState=disabled", "does not start with the host", "sudo systemctl enable durward-vault.service"},
		{"ActiveState=active", "ActiveState=failed", "durward-vault.service has failed", "journalctl -u durward-vault.service"},
		{"ActiveState=active\nSubState=running", "ActiveState=activating\nSubState=auto-restart", "durward-vault.service ends, and systemd starts it again each second", "journalctl -u durward-vault.service"},
		{"ActiveState=active", "ActiveState=activating", "all 2 are as they were shipped", ""},
		{"ActiveState=active", "ActiveState=inactive", "durward-vault.service does not run", "sudo systemctl start durward-vault.service"},
		{"IPAddressDeny=::/0 0.0.0.0/0", "IPAddressDeny=", "has no IPAddressDeny", "systemctl cat durward-vault.service"},
	} {
		found, err := ParseUnits([]byte(strings.Replace(shown, c.was, c.is, 1)))
		must(t, err)
		got := units(t.Context(), Config{Installed: &Installed{Packaged: true, Units: found}})
		if len(got) != 1 || !strings.Contains(got[0].Text, c.text) || !strings.Contains(got[0].Do, c.do) || (c.do == "") != (got[0].Level == Good) {
			t.Errorf("%q: %+v", c.is, got)
		}
	}
	if _, err := ParseUnits(nil); err == nil {
		t.Error("nothing is taken for units")
	}
}

func TestPackaged(t *testing.T) {
	for _, c := range []struct {
		in       Installed
		text, do string
	}{
		{Installed{}, "those that were packed", ""},
		{Installed{Differ: []string{"/usr/lib/durward/vault"}}, "1 file is not what was packed (/usr/lib/durward/vault)", "sudo dpkg --install x.deb"},
		{Installed{Behind: []string{"/usr/lib/durward/vault"}}, "not in force", "sudo durward install --apply"},
		{Installed{PackageError: errors.New("no list")}, "no list", "sudo dpkg --install x.deb"},
		{Installed{Beside: "/usr/local/bin/durward"}, "two installations", "sudo /usr/bin/durward install --apply"},
	} {
		c.in.Packaged, c.in.Reinstall = true, "sudo dpkg --install x.deb"
		got := packaged(t.Context(), Config{Installed: &c.in})
		if len(got) != 1 || !strings.Contains(got[0].Text, c.text) || !strings.Contains(got[0].Do, c.do) || (c.do == "") != (got[0].Level == Good) {
			t.Errorf("%+v: %+v", c.in, got)
		}
	}
}

func TestMisplaced(t *testing.T) {
	containers := installation(t, 0)
	containers.Installed = &Installed{Containers: true}
	containers.Host = Host{Catalog: &catalog.Catalog{Services: []*catalog.Service{{ID: "chat", Driver: catalog.DriverDocker}}}, DockerSocket: "/run/docker.sock"}
	for _, check := range []func(context.Context, Config) []Finding{units, binaries, settings, docker} {
		if got := check(t.Context(), containers); got != nil { // programs, units and the engine's socket are not where people's program is
			t.Errorf("in containers: %+v", got)
		}
	}
	if got := misplaced(t.Context(), Config{Installed: &Installed{}}); len(got) != 0 {
		t.Errorf("nothing is wrong: %+v", got)
	}
	got := misplaced(t.Context(), Config{Installed: &Installed{
		MisplacedError: errors.New("ca.key is not root's alone"),
		Misplaced:      []install.Misplaced{{Path: "/etc/durward/clients.yaml", Is: "64001:0 0666", Wanted: "root:root 0644", Mend: "sudo chown root:root /etc/durward/clients.yaml"}},
	}})
	if len(got) != 2 || got[0].Level != Bad || !strings.Contains(got[0].Text, "not root's alone") || got[1].Level != Bad ||
		got[1].Text != "/etc/durward/clients.yaml is 64001:0 0666, and was installed as root:root 0644" || got[1].Do != "sudo chown root:root /etc/durward/clients.yaml" {
		t.Errorf("%+v", got)
	}
}
