package install

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/platformtest/input"
)

// TestShippedUnits compares what is installed with what deploy/systemd shows.
func TestShippedUnits(t *testing.T) {
	shown := map[string]string{"executor-process.conf": "durward-executor.service.d/", "executor-docker.conf": "durward-executor.service.d/"}
	entries, err := files.ReadDir("files/systemd")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		want, err := files.ReadFile("files/systemd/" + entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("../../../../deploy/systemd", shown[entry.Name()], entry.Name())
		input.Outside(t)
		if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
			t.Errorf("files/systemd/%s and %s differ: copy the one over the other (%v)", entry.Name(), path, err)
		}
	}
}

// TestServicesOfTheProcessDriver inherit what the executor's unit forbids, and so its drop-in lets through what a model server needs.
func TestServicesOfTheProcessDriver(t *testing.T) {
	dropIn, err := files.ReadFile("files/systemd/executor-process.conf")
	if err != nil {
		t.Fatal(err)
	}
	for need, line := range map[string]string{
		"temporary files":         "ProtectSystem=full",
		"its network interfaces":  "RestrictAddressFamilies=AF_NETLINK",
		"memory for its own code": "MemoryDenyWriteExecute=no",
		"devices":                 "DevicePolicy=auto\nDeviceAllow=\nProtectClock=no",
	} {
		if !strings.Contains(string(dropIn), "\n"+line+"\n") {
			t.Errorf("a service has not %s: executor-process.conf lacks %s", need, line)
		}
	}
}

// hardening is what every process's unit has, whatever else it needs.
var hardening = []string{
	"NoNewPrivileges=yes", "CapabilityBoundingSet=", "AmbientCapabilities=", "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes", "ProtectClock=yes",
	"ProtectControlGroups=yes", "ProtectHostname=yes", "ProtectKernelLogs=yes", "ProtectKernelModules=yes", "ProtectKernelTunables=yes", "KeyringMode=private",
	"LockPersonality=yes", "MemoryDenyWriteExecute=yes", "RestrictNamespaces=yes", "RestrictRealtime=yes", "RestrictSUIDSGID=yes", "SystemCallArchitectures=native",
	"SystemCallFilter=@system-service", "SystemCallFilter=~@privileged @resources", "IPAddressDeny=any", "UMask=0077", "LimitCORE=0", "SupplementaryGroups=durward",
}

// TestUnitsAreTriedForGood: a unit that systemd gives up stays down when what ended it is well again, and the gateway's gives its port to whoever
// asks first.
func TestUnitsAreTriedForGood(t *testing.T) {
	units, err := fs.Glob(files, "files/systemd/durward-*.service")
	if err != nil || len(units) == 0 {
		t.Fatal(units, err)
	}
	for _, unit := range units {
		text, err := files.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nRestart=") && !strings.Contains(string(text), "\nStartLimitIntervalSec=0\n") {
			t.Errorf("systemd gives %s up", unit)
		}
	}
}

func TestUnitsAreHardened(t *testing.T) {
	for _, role := range installdir.Roles() {
		raw, err := files.ReadFile("files/systemd/durward-" + role + ".service")
		if err != nil {
			t.Fatal(err)
		}
		lines := map[string]bool{}
		for line := range strings.Lines(string(raw)) {
			lines[strings.TrimSpace(line)] = true
		}
		for _, want := range append(hardening, "User="+User(role), "Group="+User(role), "ReadWritePaths="+runDir+"/"+role) {
			// The executor reads the journal too.
			if !lines[want] && !lines[want+" systemd-journal"] {
				t.Errorf("durward-%s.service has not %s", role, want)
			}
		}
	}
	for role, key := range map[string]string{"vault": "grant.key", "audit": "log.key"} {
		unit, err := files.ReadFile("files/systemd/durward-" + role + ".service")
		if err != nil {
			t.Fatal(err)
		}
		c, err := values{Settings: Settings{Port: DefaultPort}}.render(role)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(unit), "LoadCredential="+key+":"+keysDir+"/"+key+"\n") ||
			!strings.Contains(string(c), ": /run/credentials/durward-"+role+".service/"+key+"\n") {
			t.Errorf("%s is not handed its key, or does not look where it is handed", role)
		}
	}
}
