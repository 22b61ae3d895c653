package docker

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/containerpolicy"
)

// host is what the daemon cannot do, or must not be.
type host struct{ noSwap bool }

// daemon asks what the daemon is: too old a one, and one that confines nothing by default, runs no service.
func (d *Driver) daemon(ctx context.Context) (host, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	info, err := d.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return host{}, because("info", err)
	}
	if v := d.api.ClientVersion(); versions.LessThan(v, minAPI) {
		return host{}, fmt.Errorf("%w: its API is %s, and %s is the oldest that is spoken", driver.ErrNoManager, v, minAPI)
	}
	seccomp := slices.ContainsFunc(info.Info.SecurityOptions, func(o string) bool {
		return strings.HasPrefix(o, "name=seccomp") && !strings.Contains(o, "unconfined")
	})
	if !seccomp {
		return host{}, fmt.Errorf("%w: the daemon confines no system calls by default", driver.ErrContainer)
	}
	return host{noSwap: !info.Info.SwapLimit}, nil
}

// img is an image that is on this host.
type img struct {
	id string
	// digest is the entry's, where the entry has one.
	digest string
	env    []string
	cmd    []string
	entry  []string
}

// image finds the entry's image. It is never fetched.
func (d *Driver) image(ctx context.Context, s *catalog.Service) (img, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	ref := s.Container.Image
	got, err := d.api.ImageInspect(ctx, ref)
	switch {
	case errdefs.IsNotFound(err):
		return img{}, fmt.Errorf("%w: %s", driver.ErrImageMissing, ref)
	case err != nil:
		return img{}, because("inspect image", err)
	}
	out := img{id: got.ID}
	if got.Config != nil {
		out.env, out.cmd, out.entry = got.Config.Env, got.Config.Cmd, got.Config.Entrypoint
	}
	if _, digest, named := strings.Cut(ref, "@"); named {
		out.digest = digest
		if !slices.ContainsFunc(got.RepoDigests, func(r string) bool { return strings.HasSuffix(r, "@"+digest) }) {
			return img{}, fmt.Errorf("%w: the daemon knows %s by other digests", driver.ErrImageMissing, ref)
		}
	}
	return out, nil
}

// definition is the digest of what a container made from the image consists of beyond the entry.
func (i img) definition() string {
	return canonical.DigestText([]byte("image " + i.id + " " + i.digest + "\n"))
}

// adoptedDefinition is the digest of a container that a human made: its image, and everything of its configuration. What
// changes with each start is left out, and so is the list of mounts, which the daemon gives in any order: what may be mounted
// at all is in the configuration too.
func adoptedDefinition(i img, raw []byte) string {
	var c map[string]json.RawMessage
	h := sha256.New()
	h.Write([]byte("adopted " + i.id + " " + i.digest + "\n"))
	if json.Unmarshal(raw, &c) == nil {
		for _, part := range []string{"Id", "Created", "Path", "Args", "Image", "Config", "HostConfig"} {
			h.Write([]byte(part + "="))
			h.Write(canonicalJSON(c[part]))
			h.Write([]byte("\n"))
		}
	}
	return canonical.FormatDigest(h.Sum(nil))
}

// canonicalJSON orders the keys, so that two answers that say the same have the same digest.
func canonicalJSON(raw json.RawMessage) []byte {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return raw
	}
	out, err := json.Marshal(v)
	if err != nil {
		return raw
	}
	return out
}

// Definition is the digest of the image that the entry names, or of the container that it adopts.
func (d *Driver) Definition(ctx context.Context, s *catalog.Service) (string, error) {
	if s.Container == nil {
		return "", fmt.Errorf("%w: the entry has no container", driver.ErrContainer)
	}
	i, err := d.image(ctx, s)
	if err != nil {
		return "", err
	}
	if !s.Container.Adopt {
		return i.definition(), nil
	}
	found, err := d.adopted(ctx, s)
	if err != nil {
		return "", err
	}
	return adoptedDefinition(i, found.Raw), nil
}

// name is what a container that is made here is called; last is what it is called once it was stopped.
func name(s *catalog.Service) string { return "durward-" + s.ID }
func last(s *catalog.Service) string { return name(s) + ".last" }

// isMade reports whether a container is one that the driver made for the service.
func isMade(labels map[string]string, id string) bool {
	return labels[containerpolicy.LabelMade] == "true" && labels[containerpolicy.LabelService] == id
}

// list finds every container with a service's label, or with any service's.
func (d *Driver) list(ctx context.Context, id string) ([]container.Summary, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	label := containerpolicy.LabelService
	if id != "" {
		label += "=" + id
	}
	got, err := d.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", label)})
	if err != nil {
		return nil, because("list", err)
	}
	return got.Items, nil
}

// pick finds the container that is the service: the one that was made and not retired, or the one that the entry adopts.
func pick(all []container.Summary, s *catalog.Service) (id string, found bool, err error) {
	for _, c := range all {
		made := isMade(c.Labels, s.ID)
		switch {
		case c.Labels[containerpolicy.LabelService] != s.ID, made == s.Container.Adopt, made && !slices.Contains(c.Names, "/"+name(s)):
			continue
		case found:
			return "", false, fmt.Errorf("%w: two containers have the label %s=%s", driver.ErrContainer, containerpolicy.LabelService, s.ID)
		}
		id, found = c.ID, true
	}
	return id, found, nil
}

// find looks at the container that is the service now.
func (d *Driver) find(ctx context.Context, s *catalog.Service) (got client.ContainerInspectResult, found bool, err error) {
	if s.Container == nil {
		return got, false, nil
	}
	all, err := d.list(ctx, s.ID)
	if err != nil {
		return got, false, err
	}
	id, found, err := pick(all, s)
	if err != nil || !found {
		return got, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	got, err = d.api.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return got, false, nil
	case err != nil:
		return got, false, because("inspect", err)
	}
	return got, true, nil
}

// adopted finds the container that an entry adopts.
func (d *Driver) adopted(ctx context.Context, s *catalog.Service) (client.ContainerInspectResult, error) {
	got, found, err := d.find(ctx, s)
	if err == nil && !found {
		err = fmt.Errorf("%w: no container has the label %s=%s", driver.ErrContainer, containerpolicy.LabelService, s.ID)
	}
	return got, err
}

// clear takes away what earlier starts left: the container that ended, and the one that was stopped. One that runs is left,
// and so is a stranger with our name.
func (d *Driver) clear(ctx context.Context, s *catalog.Service) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for _, called := range []string{name(s), last(s)} {
		got, err := d.api.ContainerInspect(ctx, called, client.ContainerInspectOptions{})
		switch {
		case errdefs.IsNotFound(err):
			continue
		case err != nil:
			return because("inspect", err)
		case got.Container.Config == nil || !isMade(got.Container.Config.Labels, s.ID):
			return fmt.Errorf("%w: another container has the name %s", driver.ErrContainer, called)
		case alive(got.Container.State):
			return fmt.Errorf("%w: it runs already", driver.ErrNotStarted)
		}
		_, err = d.api.ContainerRemove(ctx, got.Container.ID, client.ContainerRemoveOptions{RemoveVolumes: true})
		if err != nil && !errdefs.IsNotFound(err) {
			return because("remove", err)
		}
	}
	return nil
}

// retire gives a container that was stopped another name, by which it is known after a restart of the executor that its end
// was asked for. Its log stays.
func (d *Driver) retire(ctx context.Context, s *catalog.Service, c container.InspectResponse) error {
	if c.Config == nil || !isMade(c.Config.Labels, s.ID) {
		return nil
	}
	old, err := d.api.ContainerInspect(ctx, last(s), client.ContainerInspectOptions{})
	if err == nil && old.Container.ID != c.ID && old.Container.Config != nil && isMade(old.Container.Config.Labels, s.ID) {
		_, err := d.api.ContainerRemove(ctx, old.Container.ID, client.ContainerRemoveOptions{RemoveVolumes: true})
		if err != nil && !errdefs.IsNotFound(err) {
			return because("remove", err)
		}
	}
	_, err = d.api.ContainerRename(ctx, c.ID, client.ContainerRenameOptions{NewName: last(s)})
	return err
}

// rules are what the service's container may be.
func (d *Driver) rules(s *catalog.Service, h host, i img) (*containerpolicy.Rules, error) {
	c := d.cfg.Catalog()
	gpus, err := d.uuids(c, s)
	if err != nil {
		return nil, err
	}
	return &containerpolicy.Rules{
		Mounts: c.Containers.Mounts, Environment: c.Containers.Environment, ImageEnvironment: i.env,
		Refused: append([]string{d.cfg.Socket}, d.cfg.Refused...),
		Port:    s.Container.Port, HostPort: s.Port, GPUs: gpus, User: s.Container.User,
		MemoryBytes: int64(s.Limits.MemoryMiB) * mib, NanoCPUs: int64(s.Limits.CPUPercent) * 10_000_000, PIDs: int64(s.Limits.PIDs),
		NoSwapAccounting: h.noSwap,
	}, nil
}

// uuids are those of the entry's real GPUs. An index alone is not enough: after a reboot it may be another GPU's.
func (d *Driver) uuids(c *catalog.Catalog, s *catalog.Service) ([]string, error) {
	var out []string
	for _, index := range s.GPUs {
		i := slices.IndexFunc(c.GPUs, func(g catalog.GPU) bool { return g.Index == index })
		if i < 0 {
			return nil, fmt.Errorf("%w: GPU %d is not in the catalogue any more", driver.ErrNotStarted, index)
		}
		if c.GPUs[i].Simulated {
			continue
		}
		uuid, ok := c.GPUs[i].UUID, true
		if uuid == "" && d.cfg.UUID != nil {
			uuid, ok = d.cfg.UUID(index)
		}
		if !ok || !containerpolicy.IsUUID(uuid) {
			return nil, fmt.Errorf("%w: GPU %d has no UUID that is known", driver.ErrNotStarted, index)
		}
		out = append(out, uuid)
	}
	return out, nil
}

// unreachable reports whether the daemon did not answer at all.
func unreachable(err error) bool {
	_, network := errors.AsType[*net.OpError](err)
	return network || client.IsErrConnectionFailed(err) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, context.DeadlineExceeded)
}

// because puts the daemon's error under one of the driver package's.
func because(what string, err error) error {
	text := strings.ToLower(err.Error())
	kind := driver.ErrNotStarted
	switch {
	case unreachable(err):
		kind = driver.ErrNoManager
	case strings.Contains(text, "address already in use"), strings.Contains(text, "port is already allocated"):
		kind = driver.ErrPortInUse
	case what == "create" && errdefs.IsNotFound(err):
		kind = driver.ErrImageMissing
	case strings.Contains(text, "executable file not found"),
		strings.Contains(text, "exec: ") && strings.Contains(text, "no such file"):
		kind = driver.ErrProgramMissing
	case errdefs.IsPermissionDenied(err):
		kind = driver.ErrNotPermitted
	}
	return fmt.Errorf("%w: %s: %w", kind, what, err)
}
