package discover

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
)

// made is what is proposed of a container as the daemon describes it, and what is left out.
func made(t *testing.T, raw string) (text, left string) {
	t.Helper()
	var seen inspection
	must(t, json.Unmarshal([]byte(raw), &seen))
	c, _ := Docker{}.container(t.Context(), seen, image{}, "x", processes{})
	p := proposal.New("docker", nil, "x")
	Host{}.Containers(p, []Container{c}, nil)
	out, err := p.Settle(t.Context(), nil, catalog.Options{Development: true})
	if err != nil && !errors.Is(err, proposal.ErrNothing) {
		t.Fatal(err)
	}
	for _, l := range p.LeftOut() {
		left += l.Why + "\n"
	}
	return string(out), left
}

// TestUnsafe: what a new container of the same image would have is refused by name, or is not in its entry. The first has nothing of it.
func TestUnsafe(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		config, host, mounts, want string
		// stays: it is proposed without.
		stays bool
	}{
		{`"Cmd":["--model","a/b","--max-num-batched-tokens","8192","--tokenizer","x"]`, ``, `{"Type":"bind","Source":"/home/ai/.cache/huggingface","Destination":"/m"}`, "", true},
		{``, ``, `{"Type":"bind","Source":"/home/ai/.ssh","Destination":"/m"}`, "hidden folder .ssh", false},
		{``, ``, `{"Type":"bind","Source":"/home/ai","Destination":"/m"}`, "a user's own folder", false},
		{``, ``, `{"Type":"bind","Source":"/var/lib/durward","Destination":"/m"}`, "lies in /var/lib/durward", false},
		{``, ``, `{"Type":"bind","Source":"/var/spool/cron","Destination":"/m"}`, "lies in /var/spool", false},
		{``, ``, `{"Type":"bind","Source":"/var","Destination":"/m"}`, "holds /var/", false},
		{``, ``, `{"Type":"bind","Source":"/run/docker.sock","Destination":"/m"}`, "a daemon's socket", false},
		{``, ``, `{"Type":"bind","Source":"/","Destination":"/m"}`, "the whole host", false},
		{``, `"Privileged":true`, ``, "privileged is refused", false},
		{``, `"PidMode":"host"`, ``, "pid: host is refused", false},
		{``, `"UsernsMode":"host"`, ``, "userns: host is refused", false},
		{``, `"CapAdd":["ALL"]`, ``, "cap_add: ALL is refused", false},
		{``, `"CapAdd":["SYS_ADMIN"]`, ``, "It was given SYS_ADMIN; it gets no capability", true},
		{``, `"Devices":[{"PathOnHost":"/dev/mem"}]`, ``, "the device /dev/mem is refused", false},
		{``, `"Runtime":"runsc"`, ``, "the runtime runsc is refused", false},
		{`"Entrypoint":["bash","x.sh"]`, ``, ``, "run by a shell", false},
		{`"Cmd":["sh","-c","curl http://h | sh"]`, ``, ``, "run by a shell", false},
		{`"Cmd":["a\u202eb"]`, ``, ``, "characters that cannot be shown", false},
		{`"Cmd":["--x","{\"password\":\"hunter2\"}"]`, ``, ``, "looks like a secret", false},
		{`"Cmd":["-mu","https://h/x?sig=hunter2"]`, ``, ``, "looks like a secret", false},
		{`"Cmd":["--api-key","a","hunter2"]`, ``, ``, "--api-key was left out: it holds a secret", true},
		{``, `"IpcMode":"host"`, ``, "shm_mib: 8192", true},
		{``, `"NetworkMode":"host"`, ``, "It had the network of the host", true},
		{``, `"SecurityOpt":["seccomp=unconfined"]`, ``, "security_opt seccomp=unconfined was left out", true},
		{``, ``, `{"Type":"volume","Name":"v","Source":"/var/lib/docker/volumes/v/_data","Destination":"/data"}`, "a mount is a folder of the host", true},
	} {
		text, left := made(t, `{"Name":"/c","Config":{"Labels":null,"Image":"x:1",`+orElse(tc.config, `"Cmd":null`)+`},"HostConfig":{`+tc.host+`},"Mounts":[`+tc.mounts+`]}`)
		if (left == "") != tc.stays || !strings.Contains(text+left, tc.want) || strings.Contains(text+left, "hunter2") || strings.Contains(text, "seccomp=unconfined\"") {
			t.Errorf("%s %s %s: left out %q\n%s", tc.config, tc.host, tc.mounts, left, text)
		}
	}
}

// TestEnvironmentIsNamed: of what a unit or container is given, values of a few keys alone are kept, and of those no secrets.
func TestEnvironmentIsNamed(t *testing.T) {
	t.Parallel()
	values, withheld := environment([]string{
		"OLLAMA_HOST=127.0.0.1:1", "OLLAMA_KEEP_ALIVE=token=hunter2", "LLAMA_ARG_MODEL=https://h/x?sig=hunter2", "PGPASSWORD=hunter2", "LLAMA_ARG_HOST=sk-abcdef123456",
	})
	if len(values) != 1 || values["OLLAMA_HOST"] == "" || len(withheld) != 4 {
		t.Errorf("%q, withheld %q", values, withheld)
	}
}

// FuzzInspection: no answer of a daemon makes the rules panic, and what is privileged is never let through.
func FuzzInspection(f *testing.F) {
	f.Add([]byte(`{"Config":{"User":"1000"},"HostConfig":{"Privileged":true}}`))
	f.Add([]byte(`{"Config":{"Env":[1]},"HostConfig":{"Mounts":[null],"PortBindings":[],"Ulimits":[null]},"NetworkSettings":{"Ports":{"x":null}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var seen inspection
		if json.Unmarshal(raw, &seen) != nil {
			return
		}
		c, _ := Docker{}.container(t.Context(), seen, image{}, "x", processes{})
		p := proposal.New("docker", nil, "x")
		Host{}.Containers(p, []Container{c}, nil)
		if part[bool](seen.HostConfig, "Privileged") && c.Service == "" && len(p.Services()) > 0 {
			t.Errorf("%s is let through", raw)
		}
		_ = c.words()
	})
}

// TestAsked: the GPUs that a container asks for, in each way that there is, are those of its entry.
func TestAsked(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		`"DeviceRequests":[{"Driver":"","Count":-1,"Capabilities":[["gpu"]]}]`:                                 "gpus: [0, 1]\n",
		`"DeviceRequests":[{"Driver":"nvidia","Count":1}]`:                                                     "gpus: [0]\n",
		`"DeviceRequests":[{"Driver":"nvidia","DeviceIDs":["1"],"Capabilities":[["gpu"]]}]`:                    "gpus: [1]\n",
		`"DeviceRequests":[{"Driver":"nvidia","DeviceIDs":["` + second + `"]}]`:                                "gpus: [1]\n",
		`"DeviceRequests":[{"Driver":"cdi","DeviceIDs":["nvidia.com/gpu=0"]}]`:                                 "gpu_access: cdi",
		`"DeviceRequests":[{"Driver":"amd","Count":-1,"Capabilities":[["amd"]]}]`:                              "",
		`"Runtime":"nvidia"},"Config":{"Image":"x:1","Env":["NVIDIA_VISIBLE_DEVICES=1"]},"State":{"x":false`:   "gpus: [1]\n",
		`"Runtime":"nvidia"},"Config":{"Image":"x:1","Env":["NVIDIA_VISIBLE_DEVICES=void"]},"State":{"x":true`: "",
	} {
		var seen inspection
		must(t, json.Unmarshal([]byte(`{"Name":"/c","Config":{"Image":"x:1"},"HostConfig":{`+host+`}}`), &seen))
		c, taken := Docker{}.container(t.Context(), seen, image{}, "x", processes{})
		p := proposal.New("docker", present(t), "x")
		Host{Present: present(t), GPUs: hostGPUs}.Containers(p, []Container{c}, nil)
		out, err := p.Settle(t.Context(), []catalog.File{{Name: "present.yaml", Data: []byte(presentCatalog)}}, catalog.Options{Development: true})
		if taken != (want != "") || taken && (err != nil || !strings.Contains(string(out), want)) {
			t.Errorf("%s: taken %v, %v %v\n%s", host, taken, err, p.LeftOut(), out)
		}
	}
}
