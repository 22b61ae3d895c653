package containerpolicy

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/containerpolicy/containertest"
)

func TestRules(t *testing.T) {
	t.Parallel()
	cases := containertest.Adopt(t)
	rules := Rules{
		Mounts: cases.Rules.Mounts, Environment: cases.Rules.Environment, ImageEnvironment: cases.Image.Config.Env, GPUs: cases.Rules.GPUs,
		Port: cases.Rules.Port, HostPort: cases.Rules.HostPort,
	}
	byName := rules
	byName.NamesOnly = true
	good := 0
	for _, tc := range cases.Cases {
		raw, err := json.Marshal(containertest.Merge(cases.Base, tc.Patch))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []Rules{rules, byName} {
			if wrong := r.Refusals(raw); (len(wrong) == 0) != tc.Good {
				t.Errorf("%s, names only %v: good %v, found %q", tc.Name, r.NamesOnly, tc.Good, wrong)
			}
		}
		if tc.Good {
			good++
		}
	}
	if good == 0 || good == len(cases.Cases) {
		t.Errorf("%d of %d cases are good: both kinds must be there", good, len(cases.Cases))
	}
	for _, nothing := range []string{"", "{}", "null", "[]", `{"Config":{}}`, `{"Config":{},"HostConfig":null}`} {
		if rules.Check([]byte(nothing)) == nil {
			t.Errorf("%s is no container", nothing)
		}
	}
}

// What is refused is named, and never with more than a line.
func TestRulesSay(t *testing.T) {
	t.Parallel()
	all := (&Rules{}).Refusals([]byte(`{"Config":{"Evil\u202e\u001b[31m":1},"HostConfig":{"Privileged":true,"Binds":["/\u001b]0;x\u0007` + strings.Repeat("y", 5000) + `:/a"]}}`))
	text := strings.Join(all, "\n")
	for _, want := range []string{"HostConfig.Privileged: privileged containers are the host", "Config.Evil: no rule allows it"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, all)
		}
	}
	if strings.ContainsAny(text, "\x1b\u202e") {
		t.Errorf("it is not clean: %q", text)
	}
	for _, one := range all {
		if len(one) > 400 {
			t.Errorf("%d bytes: %.80q", len(one), one)
		}
	}
}

func TestMountTable(t *testing.T) {
	table, err := parseMounts(strings.NewReader(strings.Join([]string{
		"1 0 8:1 / / rw - ext4 /dev/sda1 rw",
		"2 1 0:5 / /proc rw - proc proc rw",
		"3 1 8:2 / /srv rw - ext4 /dev/sdb1 rw",
		"4 3 8:1 /etc/ssl /srv/models/certificates rw - ext4 /dev/sda1 rw",
		`5 3 8:2 /a\040b /srv/with\040space rw - ext4 /dev/sdb1 rw`,
		"6 1 8:2 /hidden /srv rw - ext4 /dev/sdb1 rw",
	}, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]place{
		"/etc/ssl":                       {"8:1", "/etc/ssl"},
		"/srv/models/certificates/x.pem": {"8:1", "/etc/ssl/x.pem"},
		"/srv/with space/c":              {"8:2", "/a b/c"},
		"/srv/models":                    {"8:2", "/hidden/models"}, // mounted over
		"/srvfoo":                        {"8:1", "/srvfoo"},
	} {
		if got, ok := table.locate(path); !ok || got != want {
			t.Errorf("%s is at %v, want %v", path, got, want)
		}
	}
	if !table.overlap("/srv/models/certificates", "/etc") {
		t.Error("a bind mount of a part of /etc is not seen as one")
	}
	if table.overlap("/srv/models", "/etc") {
		t.Error("a folder beside is taken for a part of /etc")
	}
	if _, err := parseMounts(strings.NewReader("1 2 3")); err == nil {
		t.Error("a short line passes")
	}
}

func FuzzMountTable(f *testing.F) {
	f.Add(`5 3 8:2 /a\040b /srv/with\040space rw - ext4 /dev/sdb1 rw`, "/srv/with space/x")
	f.Add("1 0 8:1 / / rw - ext4 /dev/sda1 rw", "/etc")
	f.Fuzz(func(t *testing.T, text, path string) {
		table, err := parseMounts(strings.NewReader(text))
		if err != nil || !Plain(path) {
			return
		}
		if !table.overlap(path, path) || !table.overlap(filepath.Join(path, "x"), path) {
			t.Errorf("%q is not within itself", path)
		}
	})
}

func FuzzSource(f *testing.F) {
	for _, seed := range []string{"/", "/etc", "/tmp/../etc", "/var/run/docker.sock", "/proc/self/root/etc", "//etc", "/tmp\x00/x", "/dev/null"} {
		f.Add(seed)
	}
	allowed, err := filepath.EvalSymlinks(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, source string) {
		k := &check{Rules: &Rules{Mounts: []string{allowed}}, container: container{Config: &config{User: "1000:1000"}}}
		if k.source(source, true) == "" && !catalog.Within(source, allowed) {
			t.Errorf("%q is mounted", source)
		}
		if k.source(allowed+"/"+source, true) == "" && !catalog.Within(filepath.Clean(allowed+"/"+source), allowed) {
			t.Errorf("%q below the allowed folder is mounted", source)
		}
	})
}

func FuzzConfines(f *testing.F) {
	f.Add(`{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["mount"],"action":"SCMP_ACT_ALLOW"}]}`)
	f.Add(`{"defaultAction":"SCMP_ACT_ALLOW"}`)
	f.Fuzz(func(t *testing.T, text string) {
		if confines(text) && !strings.Contains(text, "SCMP_ACT_") {
			t.Errorf("%q confines", text)
		}
	})
}

// TestWordsOfANewerDaemon: what has no rule must say nothing, in whatever case its name is.
func TestWordsOfANewerDaemon(t *testing.T) {
	t.Parallel()
	cases := containertest.Adopt(t)
	rules := &Rules{Mounts: cases.Rules.Mounts, ImageEnvironment: cases.Image.Config.Env, GPUs: cases.Rules.GPUs, Port: cases.Rules.Port, HostPort: cases.Rules.HostPort}
	for said, pass := range map[string]bool{
		`{"HostConfig":{"Escape":true}}`:                false,
		`{"Config":{"Escape":"x"}}`:                     false,
		`{"HostConfig":{"Escape":{"a":[{"b":1}]}}}`:     false,
		`{"HostConfig":{"Escape":1}}`:                   false,
		`{"HostConfig":{"Annotations":{"":""}}}`:        false,
		`{"HostConfig":{"StorageOpt":{"":""}}}`:         false,
		`{"HostConfig":{"Umask":0}}`:                    false,
		`{"HostConfig":{"privileged":true}}`:            false,
		`{"HostConfig":{"UTSMODE":"host"}}`:             false,
		`{"HostConfig":{"Mounts":[{"TYPE":"volume"}]}}`: false,
		`{}`: true,
		`{"HostConfig":{"Annotations":{},"StorageOpt":null,"Umask":null}}`:                             true,
		`{"Config":{"User":"7"},"HostConfig":{"KernelMemory":0,"Later":null,"Other":{"a":[],"b":""}}}`: true,
	} {
		var patch any
		if err := json.Unmarshal([]byte(said), &patch); err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(containertest.Merge(cases.Base, patch))
		if err != nil {
			t.Fatal(err)
		}
		if err := rules.Check(raw); (err == nil) != pass {
			t.Errorf("%s: %v", said, err)
		}
	}
}

// FuzzRefusals: no answer of a daemon makes the rules panic, and what is privileged is never let through.
func FuzzRefusals(f *testing.F) {
	f.Add([]byte(`{"Config":{"User":"1000"},"HostConfig":{"Privileged":true}}`))
	f.Add([]byte(`{"Config":{"Env":[1]},"HostConfig":{"Mounts":[null],"PortBindings":[],"Ulimits":[null]},"NetworkSettings":{"Ports":{"x":null}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var seen struct{ HostConfig struct{ Privileged bool } }
		if (&Rules{Mounts: []string{"/srv"}}).Check(raw) == nil && (json.Unmarshal(raw, &seen) != nil || seen.HostConfig.Privileged) {
			t.Errorf("%s is let through", raw)
		}
	})
}
