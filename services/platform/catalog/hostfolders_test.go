package catalog

import (
	"strings"
	"testing"
)

func TestUnmountable(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/":                         "the whole host",
		"/etc":                      "/etc",
		"/etc/ssl":                  "/etc",
		"/var":                      "holds /var/",
		"/var/lib":                  "holds /var/lib/",
		"/var/lib/containerd/x":     "/var/lib/containerd",
		"/var/lib/kubelet":          "/var/lib/kubelet",
		"/var/lib/systemd/linger":   "/var/lib/systemd",
		"/var/lib/durward/executor": "/var/lib/durward",
		"/var/spool/cron":           "/var/spool",
		"/usr/share/models":         "/usr",
		"/home":                     "a user's own folder",
		"/home/ai":                  "a user's own folder",
		"/var/home/ai":              "a user's own folder",
		"/root/models":              "/root",
		"/home/ai/.ssh":             "the hidden folder .ssh",
		"/home/ai/.ssh/id_ed25519":  "the hidden folder .ssh",
		"/srv/models/.git/hooks":    "the hidden folder .git",
		"/home/ai/.cache":           "the hidden folder .cache",
		"/home/ai/.cache/x/.ssh":    "the hidden folder .ssh",
		"/home/ai/.cachex/y":        "the hidden folder .cachex",
		"/tmp":                      "everybody's",
		"/home/ai/.ollama":          "the hidden folder .ollama, where programs keep keys and settings; .ollama/models may be mounted",
		"/home/ai/.ollama/modelsx":  "the hidden folder .ollama",
		"/srv/.a\u202eb":            `the hidden folder .a\u{202E}b`,
	} {
		if got := Unmountable(path); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	for _, path := range []string{
		"/srv", "/srv/models", "/opt/models", "/mnt/disk", "/home/ai/models", "/home/ai/.cache/huggingface", "/home/ai/.ollama/models", "/home/ai/.ollama/models/blobs",
		"/etcetera", "/tmp/x", "/var/lib/models", "/var/lib/dockers", "/srv/a.b", "/srv/a..b",
	} {
		if got := Unmountable(path); got != "" {
			t.Errorf("%s: %q", path, got)
		}
	}
}

// TestMountsAreJudgedTwice: what a human allows is no wider than what containers may ever have, nor is what an entry then takes of it.
func TestMountsAreJudgedTwice(t *testing.T) {
	t.Parallel()
	catalog := func(folder, source string) error {
		text := "version: 1\ncontainers: {mounts: [" + folder + "]}\nservices:\n  - id: a\n    driver: docker\n    container:\n      image: x\n      allow_tag: true\n" +
			"      user: \"1000\"\n      mounts: [{source: " + source + ", target: /m}]\n"
		_, err := Parse("x.yaml", []byte(text), Options{Development: true})
		return err
	}
	if err := catalog("/srv/ai", "/srv/ai/models"); err != nil {
		t.Fatalf("the control is refused: %v", err)
	}
	for _, folder := range []string{"/home/ai/.ssh", "/var/lib/containerd", "/var/lib/kubelet", "/var/spool/cron", "/var/lib/durward", "/home/ai", "/var"} {
		if err := catalog(folder, folder+"/x"); err == nil || !strings.Contains(err.Error(), "x.yaml:2:") || !strings.Contains(err.Error(), "no container may mount anything from there") {
			t.Errorf("%s: %v", folder, err)
		}
	}
	if err := catalog("/srv/ai", "/srv/ai/.ssh"); err == nil || !strings.Contains(err.Error(), "x.yaml:10:") || !strings.Contains(err.Error(), "hidden folder .ssh") {
		t.Errorf("a hidden folder below: %v", err)
	}
}
