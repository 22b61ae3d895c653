// Package policy says what a container on this host may be (SEC-D7..D10): one strict function over a container's
// configuration, used on what is sent to the daemon and on what the daemon says that it made, adopted containers included.
//
// It denies by default. Every field of the daemon's structures that has no rule here must be empty, whether the structures
// know the field or a newer daemon sent it; so a new way out of a container is closed until somebody has looked at it. What
// must be on (no-new-privileges, dropped capabilities, a read-only root) is demanded in so many words, because a daemon's
// defaults are whatever its configuration says.
//
// The package trusts the catalog's rules and the file system as it is at the moment of the check. It changes nothing.
package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"

	"durward.internal/services/platform/canonical"
)

// Rules are the bounds of one service's container: what a human allows on this host, and what the catalog's entry says. The
// zero value allows no mount, no port, no GPU and no environment key beyond the built-in ones.
type Rules struct {
	// Mounts are the folders of the host that mounts may lie in.
	Mounts []string
	// Refused are folders and files of the host that no mount may touch, beyond the built-in ones: the runtime's socket, our
	// own files.
	Refused []string
	// Environment are keys that may be set, beyond the built-in ones. LD_* and NVIDIA_* stay refused.
	Environment []string
	// ImageEnvironment are the KEY=VALUE pairs that the image itself sets: who approved the image approved them.
	ImageEnvironment []string
	// Port, the container's own, may be published as HostPort on 127.0.0.1. 0: none may.
	Port, HostPort uint32
	// GPUs are the UUIDs of the GPUs that may be asked for.
	GPUs []string
	// MemoryBytes, NanoCPUs and PIDs are the limits that must be set at least as tightly; 0 demands none.
	MemoryBytes, NanoCPUs, PIDs int64
	// User is whom the container must run as; "": anybody but root.
	User string
	// NoSwapAccounting: the kernel cannot bound swap, so the daemon drops that part of a memory limit.
	NoSwapAccounting bool
}

// Container is what is judged.
type Container struct {
	Config *container.Config
	Host   *container.HostConfig
	// Networks are what it is attached to, by name; nil before the daemon has made it.
	Networks map[string]*network.EndpointSettings
	// Published, Mounts, AppArmor and Raw are what the daemon reports beyond that: the ports that are open, the mounts, the
	// profile, and the whole answer. They are nil for what is sent.
	Published network.PortMap
	Mounts    []container.MountPoint
	AppArmor  string
	Raw       json.RawMessage
}

// Inspected is a container as the daemon describes it.
func Inspected(c container.InspectResponse, raw json.RawMessage) Container {
	out := Container{Config: c.Config, Host: c.HostConfig, Mounts: c.Mounts, AppArmor: c.AppArmorProfile, Raw: raw}
	if c.NetworkSettings != nil {
		out.Networks, out.Published = c.NetworkSettings.Networks, c.NetworkSettings.Ports
	}
	return out
}

// Check returns an error that joins everything by which the container is wider than the rules, or nil. Its text is for a
// human's log: it holds paths.
func (r *Rules) Check(c Container) error {
	if c.Config == nil || c.Host == nil {
		return errors.New("the container has no configuration")
	}
	k := &check{Rules: r, Container: c}
	k.judge("Config", c.Config, configRules)
	k.judge("HostConfig", c.Host, hostRules)
	k.reported()
	k.unknown()
	return errors.Join(k.found...)
}

// check is one judgement under way.
type check struct {
	*Rules
	Container
	found []error
}

// rule says what is wrong with one field, or "".
type rule func(k *check) string

func (k *check) report(field, format string, args ...any) {
	k.found = append(k.found, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
}

// judge applies the rules of a structure's fields, and refuses every field that has none and says something.
func (k *check) judge(name string, structure any, rules map[string]rule) {
	for _, f := range fields(reflect.ValueOf(structure).Elem()) {
		judge, known := rules[f.name]
		switch {
		case !known && !empty(f.value):
			k.report(name+"."+f.name, "no rule allows it")
		case known && judge != nil:
			if wrong := judge(k); wrong != "" {
				k.report(name+"."+f.name, "%s", wrong)
			}
		}
	}
}

type field struct {
	name  string // the daemon's name for it
	value reflect.Value
}

// fields are a structure's fields with those of the structures that it embeds.
func fields(v reflect.Value) []field {
	var out []field
	for i := range v.NumField() {
		t := v.Type().Field(i)
		if t.Anonymous {
			out = append(out, fields(v.Field(i))...)
			continue
		}
		name, _, _ := strings.Cut(t.Tag.Get("json"), ",")
		if name == "" {
			name = t.Name
		}
		out = append(out, field{name, v.Field(i)})
	}
	return out
}

// empty reports whether a field says nothing: zero, or holding nothing but what is.
func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	case reflect.Pointer, reflect.Interface:
		return v.IsNil()
	case reflect.Array:
		for i := range v.Len() {
			if !empty(v.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Struct:
		for i := range v.NumField() {
			if !empty(v.Field(i)) {
				return false
			}
		}
		return true
	default:
		return v.IsZero()
	}
}

// unknown refuses what the daemon says in words that the structures here do not have.
func (k *check) unknown() {
	if k.Raw == nil {
		return
	}
	var whole struct {
		Config, HostConfig map[string]json.RawMessage
	}
	if err := json.Unmarshal(k.Raw, &whole); err != nil || whole.Config == nil || whole.HostConfig == nil {
		k.report("the daemon's answer", "cannot be read")
		return
	}
	for _, part := range []struct {
		name  string
		said  map[string]json.RawMessage
		known any
	}{{"Config", whole.Config, k.Config}, {"HostConfig", whole.HostConfig, k.Host}} {
		known := fields(reflect.ValueOf(part.known).Elem())
		for key, value := range part.said {
			if !slices.ContainsFunc(known, func(f field) bool { return strings.EqualFold(f.name, key) }) && !canonical.Empty(value) {
				k.report(part.name+"."+safe(key), "nobody here knows what it means")
			}
		}
	}
}

// safe keeps what a stranger named from filling the log.
func safe(s string) string {
	const most = 128
	if len(s) > most {
		s = s[:most]
	}
	return fmt.Sprintf("%q", s)
}
