package discover

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/containerpolicy"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/secret"
)

// unsafe says what a container without a label has that the executor's own containers never have: whoever has it reaches the host, or
// the container would be another one without it.
func (seen inspection) unsafe(base image) (out []string) {
	say := func(bad bool, field, why string) {
		if bad {
			out = append(out, field+": "+why)
		}
	}
	h := seen.HostConfig
	own := func(field string, harmless ...string) {
		mode := part[string](h, field)
		say(!slices.Contains(append(harmless, ""), mode), field, clean.Line(mode, 64)+" is not the container's own")
	}
	say(part[bool](h, "Privileged"), "Privileged", "privileged containers are the host")
	own("PidMode", "private")
	own("IpcMode", "private", "none", "shareable")
	own("UTSMode")
	own("UsernsMode")
	// CgroupnsMode is the host's by default where control groups are of version 1, without anybody's having asked for it.
	runtime := part[string](h, "Runtime")
	say(!slices.Contains([]string{"", "runc", "nvidia", "io.containerd.runc.v2"}, runtime), "Runtime", clean.Line(runtime, 64)+" is another one than an entry's container would have")
	network := part[string](h, "NetworkMode")
	say(network == "host" || strings.HasPrefix(network, "container:"), "NetworkMode", clean.Line(network, 64)+" is not the container's own")
	for _, c := range part[[]string](h, "CapAdd") {
		say(c != "NET_BIND_SERVICE" && c != "CAP_NET_BIND_SERVICE", "CapAdd", "capability "+clean.Line(c, 64))
	}
	say(!empty(h["Devices"]), "Devices", "devices of the host; GPUs are asked for by gpus")
	say(!empty(h["DeviceCgroupRules"]), "DeviceCgroupRules", "devices of the host")
	for _, o := range part[[]string](h, "SecurityOpt") {
		say(strings.HasSuffix(o, "unconfined") || strings.HasSuffix(o, "disable"), "SecurityOpt", clean.Line(o, 64)+" loosens the container")
	}
	say(!empty(h["VolumesFrom"]), "VolumesFrom", "mounts of another container")
	for _, m := range seen.Mounts {
		place := clean.Line(m.Source, 128)
		switch {
		case m.Type == "tmpfs":
		case m.Type != "bind":
			say(true, "Mounts", "a volume at "+clean.Line(m.Destination, 128)+": an entry mounts folders of the host")
		case strings.HasSuffix(m.Source, ".sock"):
			say(true, "Mounts", place+" is a socket: whoever speaks to a daemon of the host is its root")
		case !containerpolicy.Plain(m.Source) || m.Source == "/":
			say(true, "Mounts", place+" is the whole host, or no plain path")
		case catalog.Unmountable(m.Source) != "":
			say(true, "Mounts", place+" "+catalog.Unmountable(m.Source))
		default:
			wrong := containerpolicy.Target(m.Destination)
			say(wrong != "", "Mounts", wrong)
		}
	}
	hidden := func(text string) bool { return !proposal.Shown(text) }
	say(slices.ContainsFunc(part[[]string](seen.Config, "Cmd"), hidden), "Cmd", "its command line has characters that do not show")
	say(slices.ContainsFunc(seen.Mounts, func(m mountPoint) bool { return hidden(m.Source + m.Destination) }), "Mounts", "a path has characters that do not show")
	entrypoint := part[[]string](seen.Config, "Entrypoint")
	say(!slices.Equal(entrypoint, base.Config.Entrypoint), "Entrypoint", "it replaces its image's, which an entry cannot")
	if command := part[[]string](seen.Config, "Cmd"); len(command) > 0 && !slices.Equal(command, base.Config.Cmd) {
		indirect := enginecmd.Indirect(command)
		say(indirect != "", "Cmd", "its command "+clean.Line(clean.Visible(indirect), 128)+", which an entry would do too")
	}
	say(secret.InArguments(part[[]string](seen.Config, "Cmd")), "Cmd", "its command line holds a secret, which an entry would show: let the program read it from a file")
	return out
}

func empty(raw json.RawMessage) bool { return raw == nil || canonical.Empty(raw) }

// adopt puts a container that is taken over as it is.
func (e *entry) adopt(c *Container) {
	e.put("driver", catalog.DriverDocker)
	container := append(e.image(c), yaml.MapItem{Key: "adopt", Value: true})
	if c.Port != 0 && c.Inside != 0 {
		container = append(container, yaml.MapItem{Key: "port", Value: c.Inside})
	}
	e.put("container", container)
}

func (e *entry) image(c *Container) yaml.MapSlice {
	out := yaml.MapSlice{{Key: "image", Value: c.Image}}
	if !c.Digest {
		out = append(out, yaml.MapItem{Key: "allow_tag", Value: true})
		e.note("The daemon knows no digest of its image, so it is named by its tag, which can change.")
	}
	return out
}

// make puts an entry for another container of the same image, which the executor makes.
func (e *entry) make(c *Container) {
	e.note("It has no label %s, so it cannot be adopted: this entry makes another container of its image. Stop and remove the old one first.", containerpolicy.LabelService)
	e.put("driver", catalog.DriverDocker)
	if c.Wide {
		e.note("Its port was published for other hosts too; an entry's is published on 127.0.0.1.")
	}
	container := e.image(c)
	user := c.User
	if !containerpolicy.IsUser(user) {
		was := "root"
		if user != "" {
			was = clean.Line(user, 64)
		}
		if user = e.host.ContainerUser; user == "" {
			user = "1000:1000"
		}
		e.note("It runs as %s; an entry's container runs as a number that is not 0. See that %s may read its folders.", was, user)
	}
	container = append(container, yaml.MapItem{Key: "user", Value: user})
	if c.Port != 0 && c.Inside != 0 {
		container = append(container, yaml.MapItem{Key: "port", Value: c.Inside})
	}
	if len(c.Arguments) > 0 {
		container = append(container, yaml.MapItem{Key: "command", Value: words(c.Arguments)})
	}
	var mounts []any
	for _, m := range c.Mounts {
		one := yaml.MapSlice{{Key: "source", Value: m.Source}, {Key: "target", Value: m.Target}}
		if m.Writable {
			one = append(one, yaml.MapItem{Key: "writable", Value: true})
			e.note("%s is writable as it was.", clean.Line(m.Source, 128))
		}
		mounts = append(mounts, one)
		e.p.Mount(m.Source, e.id)
	}
	if len(mounts) > 0 {
		container = append(container, yaml.MapItem{Key: "mounts", Value: mounts})
	}
	container = append(container, yaml.MapItem{Key: "tmpfs", Value: words(c.Tmpfs)})
	e.note("Its root folder is read-only: /tmp is a tmpfs, other folders that it writes to need one too.")
	if c.ShmMiB > 0 {
		container = append(container, yaml.MapItem{Key: "shm_mib", Value: c.ShmMiB})
	}
	e.put("container", container)
	if limits := c.limits.fields(); len(limits) > 0 {
		e.put("limits", limits)
	}
	if len(c.Dropped) > 0 {
		e.note("Settings that an entry has no place for were left out: %s.", strings.Join(c.Dropped, ", "))
	}
	e.environment(c)
	if c.AllGPUs && len(c.GPUs) == 0 {
		for _, g := range e.host.GPUs {
			c.GPUs = append(c.GPUs, g.UUID)
		}
	}
	for _, id := range c.Asked {
		for _, g := range e.host.GPUs {
			if (id == g.UUID || id == number32(g.Index)) && !slices.Contains(c.GPUs, g.UUID) {
				c.GPUs = append(c.GPUs, g.UUID)
			}
		}
	}
}

// words makes a list that can be laid out over lines.
func words(list []string) []any {
	out := make([]any, len(list))
	for i, w := range list {
		out[i] = w
	}
	return out
}

// environment copies the variables that an entry may hold, and names the others.
func (e *entry) environment(c *Container) {
	var out yaml.MapSlice
	var withheld []string
	pairs := slices.Clone(c.Pairs)
	slices.Sort(pairs)
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		allowed := containerpolicy.PlainKey(key) || e.host.Present != nil && slices.Contains(e.host.Present.Containers.Environment, key)
		if allowed && !secret.Name(key) && !secret.Suspect(value) && proposal.Shown(value) && len(value) <= 512 {
			out = append(out, yaml.MapItem{Key: key, Value: value})
		} else {
			withheld = append(withheld, key)
		}
	}
	if len(out) > 0 {
		e.put("environment", out)
	}
	c.Withheld = withheld
}
