package containerpolicy

import (
	"encoding/json"
	"fmt"
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

// Each rule's edges, with the entry's bounds where a rule has some.
func TestEdges(t *testing.T) {
	t.Parallel()
	cases := containertest.Adopt(t)
	const one = "GPU-11111111-2222-3333-4444-555555555555"
	profile := func(s string) string {
		return `{"HostConfig":{"SecurityOpt":["no-new-privileges",` + string(must(json.Marshal("seccomp="+s))) + `]}}`
	}
	gpu := func(d string) string { return `{"HostConfig":{"DeviceRequests":[` + d + `]}}` }
	env := func(pairs string) string { return `{"Config":{"Env":[` + pairs + `]}}` }
	mounted := func(m string) string { return `{"HostConfig":{"Mounts":[` + m + `]}}` }
	ulimit := func(name string, hard, soft int) string {
		return fmt.Sprintf(`{"HostConfig":{"Ulimits":[{"Name":%q,"Hard":%d,"Soft":%d}]}}`, name, hard, soft)
	}
	for _, tc := range []struct {
		name  string
		rules func(r *Rules)
		patch string
		good  bool
	}{
		{name: "a number of GPUs beside their names", patch: gpu(`{"Driver":"nvidia","Count":1,"DeviceIDs":["` + one + `"],"Capabilities":[["gpu"]]}`)},
		{name: "a GPU without a name", patch: gpu(`{"Driver":"nvidia","Capabilities":[["gpu"]]}`)},
		{name: "capabilities of CDI", patch: `{"Config":{"Env":["NVIDIA_VISIBLE_DEVICES=void"]},"HostConfig":{"DeviceRequests":[
			{"Driver":"cdi","DeviceIDs":["nvidia.com/gpu=` + one + `"],"Capabilities":[["gpu"]]}]}}`},
		{name: "an index that the entry names", rules: func(r *Rules) { r.GPUs = []string{"0"} }, patch: gpu(`{"Driver":"nvidia","DeviceIDs":["0"],"Capabilities":[["gpu"]]}`)},
		{name: "capabilities without a GPU", patch: gpu(`{"Driver":"nvidia","DeviceIDs":["` + one + `"],"Capabilities":[["compute"]]}`)},
		{name: "a strange key that the entry names", rules: func(r *Rules) { r.Environment = []string{"A-B"} }, patch: env(`"A-B=1"`)},
		{name: "a value with a NUL", patch: env(`"HOME=a\u0000b"`)},
		{name: "GPUs by an environment that is not the image's", rules: func(r *Rules) { r.ImageEnvironment = nil }, patch: env(`"NVIDIA_VISIBLE_DEVICES=all"`)},
		{name: "NVIDIA's word that is not the image's", patch: env(`"NVIDIA_PRODUCT_NAME=x"`)},
		{name: "no GPU by its other name", patch: env(`"NVIDIA_VISIBLE_DEVICES=none"`), good: true},
		{name: "NVIDIA's version by the image", rules: func(r *Rules) { r.ImageEnvironment = []string{"NVIDIA_CUDA_VERSION=12"} }, patch: env(`"NVIDIA_CUDA_VERSION=12"`), good: true},
		{name: "every capability dropped, in full", patch: `{"HostConfig":{"CapDrop":["CAP_ALL"]}}`, good: true},
		{name: "no shared memory", patch: `{"HostConfig":{"IpcMode":"none"}}`, good: true},
		{name: "the default isolation", patch: `{"HostConfig":{"Isolation":"default"}}`, good: true},
		{name: "another isolation", patch: `{"HostConfig":{"Isolation":"hyperv"}}`},
		{name: "negative shared memory", patch: `{"HostConfig":{"ShmSize":-1}}`},
		{name: "a negative reservation", patch: `{"HostConfig":{"MemoryReservation":-1}}`},
		{name: "a negative period", patch: `{"HostConfig":{"CpuPeriod":-1}}`},
		{name: "a negative quota", patch: `{"HostConfig":{"CpuQuota":-1}}`},
		{name: "processors by number", patch: `{"HostConfig":{"CpusetCpus":"0-3,7"}}`, good: true},
		{name: "processors by another word", patch: `{"HostConfig":{"CpusetCpus":"all"}}`},
		{name: "as many processes as an adopted one may have", patch: `{"HostConfig":{"PidsLimit":1048576}}`, good: true},
		{name: "one process more", patch: `{"HostConfig":{"PidsLimit":1048577}}`},
		{name: "a small quota beside many processors", rules: func(r *Rules) { r.NanoCPUs = 1e9 }, patch: `{"HostConfig":{"NanoCpus":2000000000,"CpuQuota":50000}}`},
		{name: "a quota of a long period", rules: func(r *Rules) { r.NanoCPUs = 1e9 }, patch: `{"HostConfig":{"CpuQuota":200000,"CpuPeriod":400000}}`, good: true},
		{name: "a quota that overflows to a small one", rules: func(r *Rules) { r.NanoCPUs = 1e9 }, patch: `{"HostConfig":{"CpuQuota":288230376151721744}}`},
		{name: "swap where the kernel bounds none", rules: func(r *Rules) { r.NoSwapAccounting = true }, patch: `{"HostConfig":{"Memory":1073741824,"MemorySwap":-1}}`, good: true},
		{name: "much swap where the kernel bounds none", rules: func(r *Rules) { r.NoSwapAccounting = true }, patch: `{"HostConfig":{"Memory":1073741824,"MemorySwap":5368709120}}`},
		{name: "swap without memory", patch: `{"HostConfig":{"Memory":0,"MemorySwap":1}}`},
		{name: "swap below the memory", patch: `{"HostConfig":{"Memory":1073741824,"MemorySwap":1}}`},
		{name: "another user than the entry's", rules: func(r *Rules) { r.User = "1001:1001" }},
		{name: "the entry's user", rules: func(r *Rules) { r.User = "1000:1000" }, good: true},
		{name: "port 0 where the entry has none", rules: func(r *Rules) { r.Port = 0 },
			patch: `{"HostConfig":{"PortBindings":{"8000/tcp":null,"0/tcp":[{"HostIp":"127.0.0.1","HostPort":"8001"}]}},"NetworkSettings":{"Ports":null}}`},
		{name: "no log file", patch: `{"HostConfig":{"LogConfig":{"Config":{"max-file":"0"}}}}`},
		{name: "a size that overflows", patch: `{"HostConfig":{"LogConfig":{"Config":{"max-size":"9999999999g"}}}}`},
		{name: "a large log in two files", patch: `{"HostConfig":{"LogConfig":{"Config":{"max-size":"1g"}}}}`, good: true},
		{name: "a large log in the five files of a local one", patch: `{"HostConfig":{"LogConfig":{"Type":"local","Config":{"max-size":"1g","max-file":null}}}}`},
		{name: "an empty ulimit", patch: `{"HostConfig":{"Ulimits":[null]}}`},
		{name: "core files", patch: ulimit("core", 1, 0)},
		{name: "core files later", patch: ulimit("core", 0, 1)},
		{name: "no files of another kind", patch: ulimit("fsize", 0, 0)},
		{name: "open files", patch: ulimit("nofile", 1024, 1024), good: true},
		{name: "many open files", patch: ulimit("nofile", 1<<21, 1)},
		{name: "endless open files", patch: ulimit("nofile", -1, -1)},
		{name: "endless open files, at first", patch: ulimit("nofile", 1024, -1)},
		{name: "more open files at first", patch: ulimit("nofile", 1024, 2048)},
		{name: "as many of another kind", patch: ulimit("memlock", 1024, 1024)},
		{name: "memory as a mount", patch: mounted(`{"Type":"tmpfs","Target":"/x","TmpfsOptions":{"SizeBytes":1}}`), good: true},
		{name: "memory as a mount with options", patch: mounted(`{"Type":"tmpfs","Target":"/x","TmpfsOptions":{"Options":[["dev"]]}}`)},
		{name: "memory with a source", patch: mounted(`{"Type":"tmpfs","Source":"/srv","Target":"/x"}`)},
		{name: "memory with a folder's options", patch: mounted(`{"Type":"tmpfs","Target":"/x","BindOptions":{}}`)},
		{name: "a folder with options of memory", patch: mounted(`{"Type":"bind","Source":"/srv","Target":"/x","TmpfsOptions":{}}`)},
		{name: "another consistency", patch: mounted(`{"Type":"bind","Source":"/srv","Target":"/x","Consistency":"cached"}`)},
		{name: "the default consistency", patch: mounted(`{"Type":"bind","Source":"/srv","Target":"/x","Consistency":"default"}`), good: true},
		{name: "a folder with a volume's options", patch: mounted(`{"Type":"bind","Source":"/srv","Target":"/x","VolumeOptions":{}}`)},
		{name: "a folder with an image's options", patch: mounted(`{"Type":"bind","Source":"/srv","Target":"/x","ImageOptions":{}}`)},
		{name: "a folder with a cluster's options", patch: mounted(`{"Type":"bind","Source":"/srv","Target":"/x","ClusterOptions":{}}`)},
		{name: "calls for a capability that none has", good: true,
			patch: profile(`{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["mount"],"action":"SCMP_ACT_ALLOW","includes":{"caps":["CAP_NET_BIND_SERVICE","CAP_SYS_ADMIN"]}}]}`)},
		{name: "calls for the capability that may be added",
			patch: profile(`{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["mount"],"action":"SCMP_ACT_ALLOW","includes":{"caps":["CAP_NET_BIND_SERVICE"]}}]}`)},
		{name: "calls that are refused by name", good: true,
			patch: profile(`{"defaultAction":"SCMP_ACT_KILL_PROCESS","syscalls":[{"names":["mount"],"action":"SCMP_ACT_ERRNO"}]}`)},
		{name: "a new process of any kind", patch: profile(`{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["clone3"],"action":"SCMP_ACT_ALLOW"}]}`)},
		{name: "the clock by its newer name", patch: profile(`{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["clock_settime64"],"action":"SCMP_ACT_LOG"}]}`)},
		{name: "no profile", patch: profile(`{"defaultAction":"SCMP_ACT_ERRNO"`)},
		{name: "a profile beyond its bound", patch: profile(`{"defaultAction":"SCMP_ACT_ERRNO"}` + strings.Repeat(" ", maxProfile))},
	} {
		// By name alone: the rules on what is really mounted are others.
		rules := &Rules{Mounts: cases.Rules.Mounts, Environment: cases.Rules.Environment, ImageEnvironment: cases.Image.Config.Env, GPUs: cases.Rules.GPUs,
			Port: cases.Rules.Port, HostPort: cases.Rules.HostPort, NamesOnly: true}
		if tc.rules != nil {
			tc.rules(rules)
		}
		patch := any(map[string]any{})
		if tc.patch != "" {
			must(0, json.Unmarshal([]byte(tc.patch), &patch))
		}
		if found := rules.Refusals(must(json.Marshal(containertest.Merge(cases.Base, patch)))); (len(found) == 0) != tc.good {
			t.Errorf("%s: good %v, found %q", tc.name, tc.good, found)
		}
	}
}

// must is for what cannot fail in a test's own words.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
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
