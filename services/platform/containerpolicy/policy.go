// Package containerpolicy says what a container on this host may be (SEC-D7..D10): one strict function over a container's
// configuration as Docker's JSON says it. The executor judges what it sends to the daemon and what the daemon says that it made, adopted
// containers included; the operator's importer judges what could be adopted. It links no Docker client, so both may link it.
//
// It denies by default. Every field that has no rule here must be empty, so a new way out of a container is closed until
// somebody has looked at it. What must be on (no-new-privileges, dropped capabilities, a read-only root) is demanded in so many
// words, because a daemon's defaults are whatever its configuration says.
//
// The package trusts the catalog's rules and the file system as it is at the moment of the check. It changes nothing.
package containerpolicy

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
)

// Labels of containers.
const (
	// LabelService is the id of the service that a container is. A human who makes a container to be adopted sets it.
	LabelService = "durward.service"
	// LabelMade marks what the executor made.
	LabelMade = "durward.made"
)

// Rules are the bounds of one service's container: what a human allows on this host, and what the catalog's entry says. The
// zero value allows no mount, no port, no GPU and no environment key beyond the built-in ones.
type Rules struct {
	// Mounts are the folders of the host that mounts may lie in.
	Mounts []string
	// Given are files of the executor's own that are mounted one by one, and read-only, at places of the container's: the file by the place.
	Given map[string]string
	// Refused are folders and files of the host that no mount may touch, beyond the built-in ones: the runtime's socket, our
	// own files.
	Refused []string
	// NamesOnly judges mounts by their names and symbolic links alone. It is for who cannot see what the executor sees, and
	// proposes what the executor judges again: sockets in a folder, the mount table, who may rename the folder.
	NamesOnly bool
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

// Check returns an error that joins everything by which the container is wider than the rules, or nil. Its text holds paths.
func (r *Rules) Check(raw []byte) error {
	var found []error
	for _, wrong := range r.Refusals(raw) {
		found = append(found, errors.New(wrong))
	}
	return errors.Join(found...)
}

// Refusals lists everything by which the container is wider than the rules, each as FIELD: REASON. raw is the daemon's answer
// about a container, or {"Config":…,"HostConfig":…} of one that is to be made.
func (r *Rules) Refusals(raw []byte) []string {
	k := &check{Rules: r}
	// Names in another case than Docker's are taken for its own, as its own client takes them.
	if err := json.Unmarshal(raw, &k.container, json.MatchCaseInsensitiveNames(true)); err != nil {
		return []string{"the daemon's answer: cannot be read"}
	}
	if k.Config == nil || k.Host == nil {
		return []string{"it has no configuration"}
	}
	k.judge("Config", configRules, configFree, k.Config.Others)
	k.judge("HostConfig", hostRules, hostFree, k.Host.Others)
	slices.Sort(k.found)
	k.reported()
	return k.found
}

// check is one judgement under way.
type check struct {
	*Rules
	container
	found []string
}

// rule says what is wrong with one field, or "".
type rule func(k *check) string

func (k *check) report(field, wrong string) {
	if wrong = fmt.Sprintf("%s: %s", field, wrong); !slices.Contains(k.found, wrong) {
		k.found = append(k.found, wrong)
	}
}

// judge applies the rules of a structure's fields, and refuses every other field that is not free and says something.
func (k *check) judge(name string, rules map[string]rule, free []string, others map[string]jsontext.Value) {
	for field, judge := range rules {
		if wrong := judge(k); wrong != "" {
			k.report(name+"."+field, wrong)
		}
	}
	for field, value := range others {
		if !slices.Contains(free, field) && !canonical.Empty(value) {
			k.report(name+"."+clean.Line(field, 64), noRule)
		}
	}
}

const noRule = "no rule allows it"

// safe keeps what a stranger named from filling a log, and from commanding a terminal.
func safe(s string) string { return clean.Line(s, 128) }

func unless(good bool, wrong string) string {
	if good {
		return ""
	}
	return wrong
}
