package unit

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"durward.internal/services/platform/catalog"
)

// Action is what systemd asks polkit for when somebody starts or stops a unit. It names the unit and the verb since systemd 226.
const Action = "org.freedesktop.systemd1.manage-units"

// verbs are the executor's: nothing that makes, changes or enables a unit.
var verbs = []string{"start", "stop", "kill", "reset-failed"}

// The host's own units and Durward's: no catalog gives the executor a say over them. Some are told by how they begin.
var (
	hostPrefixes = []string{"systemd-", "durward-", "user@", "getty@", "serial-getty@"}
	hostUnits    = []string{
		"dbus", "dbus-broker", "polkit", "polkitd", "ssh", "sshd", "docker", "containerd", "auditd", "firewalld", "nftables", "iptables", "ip6tables",
		"ufw", "apparmor", "NetworkManager", "networking", "rescue", "emergency", "debug-shell", "cron", "crond", "sssd", "fail2ban",
	}
)

// OfHost reports whether a unit is the host's own or Durward's. Units that were rendered for services are neither.
func OfHost(unit string) bool {
	if strings.HasPrefix(unit, Prefix) {
		return false
	}
	name, _, _ := strings.Cut(strings.TrimSuffix(unit, ".service"), "@")
	return slices.Contains(hostUnits, name) || slices.ContainsFunc(hostPrefixes, func(p string) bool { return strings.HasPrefix(unit, p) })
}

// ErrNoUnits says that a catalog names no unit.
var ErrNoUnits = errors.New("the catalogue has no service of the systemd driver")

// Polkit returns a rule, for /etc/polkit-1/rules.d, that lets user start and stop the catalog's units and nothing else.
func Polkit(c *catalog.Catalog, user string) ([]byte, error) {
	if !userPattern().MatchString(user) || user == "root" {
		return nil, errors.New("the rule needs the user that the executor runs as")
	}
	var units []string
	for _, s := range c.Services {
		switch {
		case s.Driver != catalog.DriverSystemd:
			continue
		case !catalog.IsUnit(s.Unit):
			return nil, fmt.Errorf("%s names no unit that can be started", s.ID)
		case OfHost(s.Unit):
			return nil, fmt.Errorf("%s names %s, which no service may be", s.ID, s.Unit)
		}
		units = append(units, s.Unit)
	}
	if len(units) == 0 {
		return nil, ErrNoUnits
	}
	slices.Sort(units)
	var b strings.Builder
	b.WriteString("// Lets Durward's executor start and stop the units of its catalogue, and no other, in no other way.\n")
	b.WriteString("// Made by durward service install --polkit. Make it again when the catalogue's units change.\n")
	b.WriteString("polkit.addRule(function (action, subject) {\n  \"use strict\";\n")
	fmt.Fprintf(&b, "  var units = %s;\n", list(slices.Compact(units)))
	fmt.Fprintf(&b, "  var verbs = %s;\n", list(verbs))
	fmt.Fprintf(&b, "  if (action.id === %q && subject.user === %q &&\n", Action, user)
	b.WriteString("      units.indexOf(action.lookup(\"unit\")) !== -1 && verbs.indexOf(action.lookup(\"verb\")) !== -1) {\n")
	b.WriteString("    return polkit.Result.YES;\n  }\n  return polkit.Result.NOT_HANDLED;\n});\n")
	return []byte(b.String()), nil
}

// list is a JavaScript list of words that hold nothing to escape.
func list(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		text, err := json.Marshal(word)
		if err != nil {
			return "[]" // a string always has a JSON form
		}
		quoted[i] = "    " + string(text)
	}
	return "[\n" + strings.Join(quoted, ",\n") + "\n  ]"
}
