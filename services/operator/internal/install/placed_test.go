package install_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"durward.internal/services/operator/internal/install"
)

// TestExamine: whatever the installer made and then has another mode, or another owner, is named with the command that mends it, or
// makes the installer refuse by name; each alone. What is the host's, or an operator's own, is not looked at.
func TestExamine(t *testing.T) {
	m := newImage(t)
	for _, program := range []string{"auditrelay", "egress", "durward-launcher"} {
		m.must(os.WriteFile(filepath.Join(m.programs, program), []byte("program "+program), 0o755))
	}
	settings := install.Settings{Relay: true, Egress: true, Firewall: true}
	settings.Port = install.DefaultPort
	before := m.tree()
	m.apply(settings)
	now := func() time.Time { return m.now }
	examine := func() ([]install.Misplaced, error) { return install.Examine(m.root, now) }
	if found, err := examine(); err != nil || len(found) > 0 {
		t.Fatalf("control: %+v, %v", found, err)
	}
	named, refused := 0, 0
	for path := range m.tree() {
		place := "/" + strings.TrimPrefix(strings.TrimPrefix(path, m.root), "/")
		info, err := os.Lstat(path)
		m.must(err)
		if _, was := before[path]; was || info.Mode()&fs.ModeSymlink != 0 || !ours(place) {
			continue
		}
		spoil := map[string]func() error{"mode": func() error { return os.Chmod(path, info.Mode().Perm()|0o022) }}
		if os.Geteuid() == 0 {
			spoil["owner"] = func() error { return os.Lchown(path, 64002, 64002) }
		}
		for what, do := range spoil {
			m.must(do())
			found, err := examine()
			switch {
			case err != nil && strings.Contains(err.Error(), filepath.Base(place)):
				refused++
			case err == nil && len(found) == 1 && found[0].Path == place &&
				strings.Contains(found[0].Mend, fmt.Sprintf(" && sudo chmod %04o %s", info.Mode().Perm(), place)) && strings.HasPrefix(found[0].Mend, "sudo chown "):
				named++
			default:
				t.Errorf("%s of another %s: %+v, %v", place, what, found, err)
			}
			m.must(os.Lchown(path, os.Getuid(), os.Getgid()))
			m.must(os.Chmod(path, info.Mode().Perm()))
		}
	}
	if found, err := examine(); err != nil || len(found) > 0 {
		t.Errorf("after all were mended: %+v, %v", found, err)
	}
	if named < 40 {
		t.Errorf("only %d were named, %d refused: the test looks at little", named, refused)
	}
	t.Logf("%d named, %d refused by name", named, refused)
}

// ours reports whether a path is one that the installer looks after, and neither systemd's, a home folder's, nor a process's own.
func ours(place string) bool {
	for _, folder := range []string{"/home/", "/root/", "/run/", "/var/lib/durward/"} {
		if strings.HasPrefix(place+"/", folder) {
			return false
		}
	}
	return strings.Contains(place, "durward") && !strings.Contains(place, ".wants/")
}

// A side of before that names other addresses than the processes have now is told of, and only then: durward status would call them down.
func TestSideOfOtherAddresses(t *testing.T) {
	m := newImage(t)
	settings := install.Settings{}
	m.apply(settings)
	text := "trust_dir: /etc/durward/trust\nmcp_url: http://127.0.0.1:7430/mcp\nhealth:\n"
	for _, role := range []string{"gateway", "vault", "executor", "audit"} {
		text += "  " + role + ": unix:/run/durward/" + role + "/health.sock,user=durward-" + role + "\n"
	}
	m.write("home/alice/.durward/config/operator.yaml", text)
	note := func() (out string) {
		for _, s := range m.plan(settings).Steps {
			if s.Verb == install.Keep && s.What == "/home/alice/.durward/config/operator.yaml" {
				out = s.Note
			}
		}
		return out
	}
	if got := note(); got != "" {
		t.Errorf("control: %q", got)
	}
	settings.HealthOnLoopback = true
	if got := note(); !strings.HasSuffix(got, ": gateway: 127.0.0.1:7440, vault: 127.0.0.1:7441, executor: 127.0.0.1:7442, audit: 127.0.0.1:7443") {
		t.Errorf("alice is told %q", got)
	}
}
