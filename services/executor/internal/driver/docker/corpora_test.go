package docker

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/containerpolicy"
	"durward.internal/services/platform/platformtest/input"
)

// corpora is the folder that CORPORA names, and a part of it.
func corpora(t *testing.T, part ...string) string {
	t.Helper()
	dir := input.Corpora(t)
	if dir == "" {
		t.Skip("CORPORA names no folder: Kubernetes' and Docker's own examples are not looked at")
	}
	return filepath.Join(append([]string{dir}, part...)...)
}

// TestTheDockerProfile: Docker's own profile, which is what containers get that name none, passes as what it is, and none passes that
// allows a call which Docker's keeps for capabilities.
func TestTheDockerProfile(t *testing.T) {
	raw, err := os.ReadFile(corpora(t, "moby__profiles", "seccomp", "default.json"))
	must(t, err)
	c := plainest()
	c.Host.SecurityOpt = append(c.Host.SecurityOpt, "seccomp="+string(raw))
	if err := c.check(&containerpolicy.Rules{}); err != nil {
		t.Errorf("Docker's own profile does not pass: %v", err)
	}
	var profile struct {
		Syscalls []struct {
			Names    []string
			Action   string
			Includes struct{ Caps []string }
		}
	}
	must(t, json.Unmarshal(raw, &profile))
	capable := map[string]bool{} // by whether a capability is always asked for
	for _, call := range profile.Syscalls {
		for _, name := range call.Names {
			if call.Action == "SCMP_ACT_ALLOW" {
				before, known := capable[name]
				capable[name] = len(call.Includes.Caps) > 0 && (before || !known)
			}
		}
	}
	for name, kept := range capable {
		c := plainest()
		c.Host.SecurityOpt = append(c.Host.SecurityOpt, `seccomp={"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["`+name+`"],"action":"SCMP_ACT_ALLOW"}]}`)
		if err := c.check(&containerpolicy.Rules{}); (err != nil) != kept {
			t.Errorf("a profile that allows %s, which Docker's keeps for capabilities, %v: %v", name, kept, err)
		}
	}
}

// pod is everything that the examples of Pod Security say. A field that is not here fails the test that reads them.
type pod struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Name        string            `yaml:"name"`
		Annotations map[string]string `yaml:"annotations"`
	} `yaml:"metadata"`
	Spec struct {
		Containers     []podContainer `yaml:"containers"`
		InitContainers []podContainer `yaml:"initContainers"`
		HostIPC        bool           `yaml:"hostIPC"`
		HostNetwork    bool           `yaml:"hostNetwork"`
		HostPID        bool           `yaml:"hostPID"`
		HostUsers      *bool          `yaml:"hostUsers"`
		OS             struct {
			Name string `yaml:"name"`
		} `yaml:"os"`
		SecurityContext podSecurity      `yaml:"securityContext"`
		Volumes         []map[string]any `yaml:"volumes"`
	} `yaml:"spec"`
}

type podContainer struct {
	Image          string    `yaml:"image"`
	Name           string    `yaml:"name"`
	LivenessProbe  *podProbe `yaml:"livenessProbe"`
	ReadinessProbe *podProbe `yaml:"readinessProbe"`
	Lifecycle      *struct {
		PostStart *podProbe `yaml:"postStart"`
	} `yaml:"lifecycle"`
	Ports []struct {
		ContainerPort uint16 `yaml:"containerPort"`
		HostPort      uint16 `yaml:"hostPort"`
	} `yaml:"ports"`
	RestartPolicy   string      `yaml:"restartPolicy"`
	SecurityContext podSecurity `yaml:"securityContext"`
}

type podProbe struct {
	HTTPGet, TCPSocket *struct {
		Host string `yaml:"host"`
		Port uint16 `yaml:"port"`
	}
}

// UnmarshalYAML is here because the two kinds are written in Kubernetes' way.
func (p *podProbe) UnmarshalYAML(raw []byte) error {
	type target = struct {
		Host string `yaml:"host"`
		Port uint16 `yaml:"port"`
	}
	var in struct {
		HTTPGet   *target `yaml:"httpGet"`
		TCPSocket *target `yaml:"tcpSocket"`
	}
	if err := yaml.UnmarshalWithOptions(raw, &in, yaml.DisallowUnknownField()); err != nil {
		return err
	}
	p.HTTPGet, p.TCPSocket = in.HTTPGet, in.TCPSocket
	return nil
}

type podProfile struct {
	Type             string `yaml:"type"`
	LocalhostProfile string `yaml:"localhostProfile"`
}

// podSecurity is a pod's and a container's security context; each of the two uses a part of it.
type podSecurity struct {
	AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
	Privileged               bool  `yaml:"privileged"`
	Capabilities             *struct {
		Add  []string `yaml:"add"`
		Drop []string `yaml:"drop"`
	} `yaml:"capabilities"`
	ProcMount      string      `yaml:"procMount"`
	RunAsNonRoot   *bool       `yaml:"runAsNonRoot"`
	RunAsUser      *int64      `yaml:"runAsUser"`
	SeccompProfile *podProfile `yaml:"seccompProfile"`
	SELinuxOptions *struct {
		Type  string `yaml:"type"`
		Level string `yaml:"level"`
		User  string `yaml:"user"`
		Role  string `yaml:"role"`
	} `yaml:"seLinuxOptions"`
	Sysctls []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	} `yaml:"sysctls"`
	WindowsOptions *struct {
		HostProcess bool `yaml:"hostProcess"`
	} `yaml:"windowsOptions"`
}

// levels of Pod Security.
const (
	baseline   = "baseline"
	restricted = "restricted"
)

// elsewhere are examples that say something which a container of Docker on Linux cannot say.
var elsewhere = map[string]string{
	"restricted/pass/base_windows": "a pod of Windows says nothing, because none of the fields means anything there; there are no such containers here",
}

// stricter are examples that the baseline level passes and that are refused here on purpose, each with the example of the
// restricted level that says the same and fails there: this package has one level, the narrower.
var stricter = map[string]string{
	"capabilities_baseline0": "capabilities_restricted3",
	"procmount1":             "procmount_restricted0",
}

// TestPodSecurity translates every example of Kubernetes' Pod Security Standards, field by field: those that fail must be
// refused, those that pass accepted.
//
// What an example does not say is what the level makes of silence. The baseline level lets it pass, so silence there is what a
// container is given here. At the restricted level silence about the fields that the level demands is the very failure, so it
// is what Kubernetes does then: everything kept, root, no seccomp profile.
func TestPodSecurity(t *testing.T) {
	dir := corpora(t, "kubernetes__pod-security-admission", "test", "testdata")
	counted := map[string]int{}
	for _, level := range []string{baseline, restricted} {
		for _, verdict := range []string{"fail", "pass"} {
			files, err := filepath.Glob(filepath.Join(dir, level, "v1.37", verdict, "*.yaml"))
			if err != nil || len(files) == 0 {
				t.Fatalf("no examples of %s %s: %v", level, verdict, err)
			}
			for _, file := range files {
				name := strings.TrimSuffix(filepath.Base(file), ".yaml")
				if _, no := elsewhere[level+"/"+verdict+"/"+name]; no {
					continue
				}
				counted[level+" "+verdict]++
				raw, err := os.ReadFile(file)
				must(t, err)
				var p pod
				if err := yaml.UnmarshalWithOptions(raw, &p, yaml.DisallowUnknownField()); err != nil {
					t.Errorf("%s: it says what nobody translates: %v", file, err)
					continue
				}
				err = judgePod(t, level, &p)
				same, narrower := stricter[name]
				switch want := verdict == "pass"; {
				case narrower && level == baseline && want:
					if _, missing := os.Stat(filepath.Join(dir, restricted, "v1.37", "fail", same+".yaml")); missing != nil || err == nil {
						t.Errorf("%s: %v; and the restricted level has it as %s: %v", name, err, same, missing)
					}
				case (err == nil) != want:
					t.Errorf("%s/%s/%s: %v", level, verdict, name, err)
				}
			}
		}
	}
	t.Logf("examples: %v", counted)
}

// judgePod returns why one of a pod's containers is refused.
func judgePod(t *testing.T, level string, p *pod) error {
	t.Helper()
	allowed := folder(t, temp(t), "volumes")
	for _, c := range append(slices.Clone(p.Spec.Containers), p.Spec.InitContainers...) {
		out, rules, err := translate(level, p, c, allowed)
		if err == nil {
			err = out.check(rules)
		}
		if err == nil {
			err = probed(c)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return nil
}

// translate makes of one container of a pod what Docker would be sent.
func translate(level string, p *pod, in podContainer, allowed string) (described, *containerpolicy.Rules, error) {
	out := plainest()
	rules := &containerpolicy.Rules{Mounts: []string{allowed}}
	h := out.Host
	ps, cs := p.Spec.SecurityContext, in.SecurityContext
	strict := level == restricted

	// Namespaces.
	if p.Spec.HostNetwork {
		h.NetworkMode = "host"
	}
	if p.Spec.HostPID {
		h.PidMode = "host"
	}
	if p.Spec.HostIPC {
		h.IpcMode = "host"
	}
	if p.Spec.HostUsers != nil && *p.Spec.HostUsers {
		h.UsernsMode = "host"
	}
	if p.Spec.OS.Name == "windows" {
		return out, rules, fmt.Errorf("containers of Windows cannot be translated")
	}
	for _, w := range []podSecurity{ps, cs} {
		if w.WindowsOptions != nil && w.WindowsOptions.HostProcess {
			h.Isolation = container.IsolationProcess
		}
	}

	// Privileges.
	h.Privileged = cs.Privileged
	switch escalates := cs.AllowPrivilegeEscalation; {
	case escalates != nil && *escalates, escalates == nil && strict:
		h.SecurityOpt = nil
	}
	if strict {
		h.CapDrop = nil
	}
	if cs.Capabilities != nil {
		h.CapAdd = cs.Capabilities.Add
		if len(cs.Capabilities.Drop) > 0 || strict {
			h.CapDrop = cs.Capabilities.Drop
		}
	}
	if cs.ProcMount == "Unmasked" {
		h.MaskedPaths, h.ReadonlyPaths = []string{}, []string{}
	}

	// The user: the container's word before the pod's. runAsNonRoot makes sure that the image's user is not root.
	nonRoot, uid := ps.RunAsNonRoot, ps.RunAsUser
	if cs.RunAsNonRoot != nil {
		nonRoot = cs.RunAsNonRoot
	}
	if cs.RunAsUser != nil {
		uid = cs.RunAsUser
	}
	switch {
	case uid != nil:
		out.Config.User = strconv.FormatInt(*uid, 10)
	case nonRoot != nil && *nonRoot:
		out.Config.User = "65532"
	case strict, nonRoot != nil:
		out.Config.User = ""
	}

	// Confinement: profiles of seccomp, AppArmor and SELinux.
	profile := ps.SeccompProfile
	if cs.SeccompProfile != nil {
		profile = cs.SeccompProfile
	}
	switch {
	case profile == nil && strict, profile != nil && profile.Type == "Unconfined":
		h.SecurityOpt = append(h.SecurityOpt, "seccomp=unconfined")
	case profile != nil && profile.Type == "Localhost":
		// What is in the node's file is not in the example; Docker is sent the profile itself.
		h.SecurityOpt = append(h.SecurityOpt, `seccomp={"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW"}]}`)
	}
	for key, value := range p.Metadata.Annotations {
		if key == "container.apparmor.security.beta.kubernetes.io/"+in.Name {
			h.SecurityOpt = append(h.SecurityOpt, "apparmor="+strings.TrimPrefix(value, "localhost/"))
		}
	}
	for _, s := range []podSecurity{ps, cs} {
		if o := s.SELinuxOptions; o != nil {
			for key, value := range map[string]string{"type": o.Type, "level": o.Level, "user": o.User, "role": o.Role} {
				if value != "" {
					h.SecurityOpt = append(h.SecurityOpt, "label="+key+":"+value)
				}
			}
		}
	}
	for _, s := range ps.Sysctls {
		if h.Sysctls == nil {
			h.Sysctls = map[string]string{}
		}
		h.Sysctls[s.Name] = s.Value
	}
	if in.RestartPolicy == "Always" {
		h.RestartPolicy.Name = container.RestartPolicyAlways
	}

	// Ports. A host port without an address is every address.
	for _, port := range in.Ports {
		inside, _ := network.PortFrom(port.ContainerPort, network.TCP)
		if out.Config.ExposedPorts == nil {
			out.Config.ExposedPorts, h.PortBindings = network.PortSet{}, network.PortMap{}
		}
		out.Config.ExposedPorts[inside] = struct{}{}
		if port.HostPort != 0 {
			rules.Port, rules.HostPort = uint32(port.ContainerPort), uint32(port.HostPort)
			h.PortBindings[inside] = []network.PortBinding{{HostIP: netip.Addr{}, HostPort: strconv.Itoa(int(port.HostPort))}}
		}
	}
	return out, rules, volumes(p, h, allowed)
}

// volumes: folders that the kubelet fills, and claims, are folders of the host that a human allows; every other kind is a
// volume with a driver.
func volumes(p *pod, h *container.HostConfig, allowed string) error {
	for _, v := range p.Spec.Volumes {
		name, ok := v["name"].(string)
		if !ok {
			return fmt.Errorf("a volume without a name")
		}
		target := "/volumes/" + name
		kind := "emptyDir"
		for key := range v {
			if key != "name" {
				kind = key
			}
		}
		m := mount.Mount{Type: mount.TypeBind, Source: allowed, Target: target, ReadOnly: true}
		switch kind {
		case "emptyDir":
			m = mount.Mount{Type: mount.TypeTmpfs, Target: target}
		case "configMap", "secret", "downwardAPI", "projected":
		case "persistentVolumeClaim":
			m.ReadOnly = false
		case "hostPath":
			m.Source = fmt.Sprint(v[kind].(map[string]any)["path"])
		default:
			m = mount.Mount{Type: mount.TypeVolume, Target: target, VolumeOptions: &mount.VolumeOptions{DriverConfig: &mount.Driver{Name: kind}}}
		}
		h.Mounts = append(h.Mounts, m)
	}
	return nil
}

// probed puts a container's probes where they are said here, into an entry of the catalog. The executor asks 127.0.0.1 and
// nothing else, so the catalog has no word for a host; and what runs after a start is no word of it either.
func probed(in podContainer) error {
	health, lifecycle := "", ""
	for _, probe := range []*podProbe{in.LivenessProbe, in.ReadinessProbe} {
		if probe == nil {
			continue
		}
		health = ", port: 8080, health: {path: /"
		at := probe.HTTPGet
		if at == nil {
			at = probe.TCPSocket
		}
		if at.Host != "" {
			health += ", host: " + strconv.Quote(at.Host)
		}
		health += "}"
	}
	port := ""
	if health != "" {
		port = ", port: 8080"
	}
	if in.Lifecycle != nil && in.Lifecycle.PostStart != nil {
		lifecycle = ", lifecycle: {post_start: {host: " + strconv.Quote(in.Lifecycle.PostStart.HTTPGet.Host) + "}}"
	}
	text := fmt.Sprintf("version: 1\nservices:\n- {id: pod, driver: docker, container: {image: %s@sha256:%s, user: '1000'%s%s}%s}\n",
		in.Image, strings.Repeat("a", 64), port, lifecycle, health)
	_, err := catalog.Parse("pod.yaml", []byte(text), catalog.Options{Development: true})
	return err
}
