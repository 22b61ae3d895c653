//go:build real

package install_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// credential gives a unit what the vault keeps under a key that systemd hands it, encrypted for this host: by the executor as it is
// shipped, and with a value that is in no file.
func (h *installed) credential() {
	h.must(os.WriteFile("/run/upper", bytes.Repeat([]byte{7}, 32), 0o600))
	h.root("systemd-creds", "setup")
	h.root("systemd-creds", "encrypt", "--with-key=host", "--name=durward-credentials", "/run/upper", "/etc/durward/durward-credentials.cred")
	h.must(os.Remove("/run/upper"))
	h.must(os.MkdirAll("/etc/systemd/system/durward-vault.service.d", 0o755))
	h.must(os.WriteFile("/etc/systemd/system/durward-vault.service.d/credentials.conf",
		[]byte("[Service]\nLoadCredentialEncrypted=durward-credentials:/etc/durward/durward-credentials.cred\n"), 0o644))
	settings, err := os.ReadFile("/etc/durward/vault.yaml")
	h.must(err)
	h.must(os.WriteFile("/etc/durward/vault.yaml", append(settings, "\ncredentials: {key: systemd}\n"...), 0o644)) // its mode stays
	pipe := "/run/given"
	h.must(unix.Mkfifo(pipe, 0o622))
	h.must(os.Chmod(pipe, 0o622))
	h.must(os.WriteFile("/etc/systemd/system/demo-unit.service", []byte(strings.Replace(demoUnit, "ExecStart=",
		"LoadCredential=hf-token:/var/lib/durward/executor/credentials/demo-unit\nExecStartPre=/bin/sh -c 'cat %d/hf-token >"+pipe+"'\nExecStart=", 1)), 0o644))
	catalogue, err := os.ReadFile("/etc/durward/catalogue.yaml")
	h.must(err)
	h.must(os.WriteFile("/etc/durward/catalogue.yaml", bytes.Replace(catalogue, []byte("unit: demo-unit.service\n"),
		[]byte("unit: demo-unit.service\n    credentials: [hf-token]\n"), 1), 0o644))
	h.root("systemctl", "daemon-reload")
	h.root("systemctl", "stop", "demo-unit")
	h.root("systemctl", "restart", "durward-vault", "durward-executor") // which reads the catalogue when it starts, not within a second

	value := fmt.Sprintf("canary-%x", os.Getpid()*7919)
	agent := []string{"SSH_AUTH_SOCK=/home/alice/.ssh/agent"}
	add := "printf %s " + value + " | durward credential add hf-token --path-variable HF_TOKEN_PATH --stdin --yes"
	h.eventually("a credential is stored", func() error {
		if out, code := h.as("alice", agent, "sh", "-c", add); code != 0 {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
	if out, code := h.as("alice", agent, "durward", "credential", "list", "--json"); code != 0 || !strings.Contains(out, `"key_source": "systemd"`) {
		h.Errorf("list: %d, %s", code, out)
	}
	if out, code := h.as("alice", agent, "durward", "credential", "grant", "hf-token", "demo-unit", "--yes"); code != 0 {
		h.Fatalf("grant: %d, %s", code, out)
	}
	given := make(chan string, 1)
	go func() {
		raw, err := os.ReadFile(pipe)
		given <- fmt.Sprint(string(raw), err)
	}()
	h.startApproved("demo-unit")
	if got := <-given; got != value+"<nil>" {
		h.Errorf("the unit's program read %q", got)
	}
	for _, place := range []string{"/var/lib/durward", "/etc/durward", "/var/lib/systemd", "/run/durward", "/run/log/journal"} {
		if out, err := exec.Command("grep", "-rlsF", "--devices=skip", value, place).CombinedOutput(); len(out) > 0 {
			h.Errorf("the value is in %s (%v)", out, err)
		}
	}
	if _, err := os.Stat(filepath.Join("/var/lib/durward/vault", "credentials.key")); err == nil {
		h.Error("the vault made a key of its own")
	}
	if out, code := h.as("durward-vault", nil, "cat", "/proc/"+h.pid("vault")+"/environ"); code == 0 {
		h.Errorf("another process of the vault's user looks into it: %s", out)
	}
}
