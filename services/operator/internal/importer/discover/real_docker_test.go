//go:build real

package discover

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/containerpolicy"
	"durward.internal/services/platform/platformtest/testfile"
)

// asking speaks to the daemon as whoever makes containers does.
type asking struct {
	t      *testing.T
	client *http.Client
}

func (a asking) post(path string, body []byte, into any) {
	a.t.Helper()
	request, err := http.NewRequestWithContext(a.t.Context(), http.MethodPost, "http://docker"+path, bytes.NewReader(body))
	must(a.t, err)
	request.Header.Set("Content-Type", "application/json")
	if strings.HasPrefix(path, "/images/") {
		request.Header.Set("Content-Type", "application/x-tar")
	}
	response, err := a.client.Do(request)
	must(a.t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode >= 300 {
		a.t.Fatalf("POST %s: %s %v\n%s", path, response.Status, err, raw)
	}
	if into != nil {
		if err := json.Unmarshal(raw, into); err != nil {
			a.t.Fatalf("POST %s: %v\n%s", path, err, raw)
		}
	}
}

// What a real daemon says of containers is read as the tests without one believe: one that is made as the rules want it is adopted, one
// that is made as people make them is named with all that is wrong with it.
func TestRealContainers(t *testing.T) {
	socket := os.Getenv("DURWARD_DOCKER_SOCKET")
	if socket == "" {
		t.Skip("Docker is another script's")
	}
	a := asking{t, &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	program := testfile.Read(t, "/proc/self/exe")
	must(t, w.WriteHeader(&tar.Header{Name: "llama-server", Mode: 0o755, Size: int64(len(program))}))
	if _, err := w.Write(program); err != nil {
		t.Fatal(err)
	}
	must(t, w.Close())
	a.post("/images/create?fromSrc=-&repo=local/llama&tag=v1", layer.Bytes(), nil)
	type m = map[string]any
	create := func(name string, config, host m) {
		body := m{"Image": "local/llama:v1", "Cmd": []string{"/llama-server", "-m", "/models/a.gguf", "--alias", "tiny", "--port", "9491"}, "ExposedPorts": m{"9491/tcp": m{}}}
		for key, v := range config {
			body[key] = v
		}
		body["HostConfig"] = host
		raw, err := json.Marshal(body)
		must(t, err)
		var made struct{ ID string }
		a.post("/containers/create?name="+name, raw, &made)
		t.Cleanup(func() {
			request, err := http.NewRequest(http.MethodDelete, "http://docker/containers/"+made.ID+"?force=1", nil)
			if err == nil {
				if response, err := a.client.Do(request); err == nil {
					_ = response.Body.Close()
				}
			}
		})
		if privileged, _ := host["Privileged"].(bool); !privileged { // not every host that runs this test can give that
			a.post("/containers/"+made.ID+"/start", nil, nil)
		}
	}
	bindings := func(address, port string) m { return m{"9491/tcp": []m{{"HostIp": address, "HostPort": port}}} }
	create("careful", m{"User": "1000:1000", "Labels": m{"durward.service": "careful"}}, m{
		"PortBindings": bindings("127.0.0.1", "9491"), "ReadonlyRootfs": true, "CapDrop": []string{"ALL"}, "SecurityOpt": []string{"no-new-privileges"},
		"CgroupnsMode": "private", "IpcMode": "private", "NetworkMode": "bridge", "PidsLimit": 100,
		"LogConfig": m{"Type": "json-file", "Config": m{"max-size": "1m", "max-file": "2"}}, "RestartPolicy": m{"Name": "no"},
	})
	create("careless", m{"Labels": m{"durward.service": "careless"}}, m{"PortBindings": bindings("0.0.0.0", "9492"), "RestartPolicy": m{"Name": "always"}, "Privileged": true})
	create("usual", nil, m{"PortBindings": bindings("", "9493"), "RestartPolicy": m{"Name": "unless-stopped"}})

	all, passed, err := Docker{Socket: socket, Prober: NewProber()}.Containers(t.Context(), containerpolicy.Rules{})
	must(t, err)
	seen := map[string]Container{}
	for _, c := range all {
		seen[c.Subject] = c
	}
	if c := seen["careful"]; len(c.Refused) > 0 || c.Port != 9491 || c.Inside != 9491 || c.Service != "careful" || !c.Running || !c.Recognised || c.Command.ServedName != "tiny" {
		t.Errorf("careful: refused %q, passed %v, %+v", c.Refused, passed, c)
	}
	wrong := strings.Join(seen["careless"].Refused, "\n")
	for _, want := range []string{
		"Config.User", "HostConfig.CapDrop", "HostConfig.LogConfig", "HostConfig.PidsLimit", "HostConfig.PortBindings", "HostConfig.Privileged", "HostConfig.ReadonlyRootfs",
		"HostConfig.RestartPolicy", "HostConfig.SecurityOpt",
	} {
		if !strings.Contains(wrong, want+": ") {
			t.Errorf("careless: %s is not named in\n%s", want, wrong)
		}
	}
	if c := seen["usual"]; c.published == "127.0.0.1" || c.Port != 9493 || len(c.Refused) == 0 {
		t.Errorf("usual: %+v", c)
	}
	p := proposal.New("docker", nil, "this host")
	Host{}.Containers(p, all, passed)
	if got := strings.Join(p.Services(), " "); got != "careful usual" {
		t.Errorf("proposed: %q, left out: %+v", got, p.LeftOut())
	}
}
