// Package unit renders systemd units for services whose programs the catalog names, and the rule for polkit that lets the
// executor start and stop such units and nothing else. A human reviews what is rendered and installs it; nothing here writes to
// the host, and the executor never makes a unit.
//
// It runs in the operator's program and trusts the catalog's entry to be one that was checked. There are no templates: every
// value goes through the quoting of its own key, and what systemd has no way to say is refused (SEC-D3).
package unit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/pattern"
)

// Prefix is how the names of rendered units begin; Durward's own units begin otherwise.
const Prefix = "durward-service-"

// maxUnit is the longest unit file that is rendered, in bytes; systemd reads no line that is longer.
const maxUnit = 1 << 20

var (
	idPattern   = pattern.New(`\A[a-zA-Z0-9][a-zA-Z0-9_\-]{0,63}\z`)
	userPattern = pattern.New(`\A[a-z_][a-z0-9_\-]{0,31}\z`)
	keyPattern  = pattern.New(`\A[A-Za-z_][A-Za-z0-9_]{0,63}\z`)
)

// Name is the name of the unit that is rendered for a service.
func Name(id string) string { return Prefix + id + ".service" }

// Render returns a hardened unit for an entry of the process driver, which runs the entry's program as its own user. It refuses
// what cannot be said in a unit, a program that is told to listen beyond this host, and the user root.
func Render(s *catalog.Service) ([]byte, error) {
	switch {
	case !idPattern().MatchString(s.ID):
		return nil, errors.New("the service has no good id")
	case s.Driver != catalog.DriverProcess || len(s.Argv) == 0:
		return nil, fmt.Errorf("%s is of the %s driver and has no argv: only a program of the process driver becomes a unit", s.ID, s.Driver)
	case s.RunAs == "":
		return nil, fmt.Errorf("%s has no run_as: a unit runs as a user of its own", s.ID)
	case !userPattern().MatchString(s.RunAs) || reserved(s.RunAs):
		return nil, fmt.Errorf("%s cannot run as that user: a unit needs a user of its own, neither root nor one of Durward's", s.ID)
	}
	if _, err := catalog.Loopback(s.Argv, s.Environment); err != nil {
		return nil, fmt.Errorf("%s: %w", s.ID, err)
	}
	start, err := command(s.Argv)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.ID, err)
	}
	w := &writer{}
	w.comment("A unit for the service " + s.ID + " of Durward's catalogue: durward service install " + s.ID)
	w.comment("Review it, put it at /etc/systemd/system/" + Name(s.ID) + ", run systemctl daemon-reload, and give the entry")
	w.comment("driver: systemd and unit: " + Name(s.ID) + " in the place of argv, run_as, environment and working_dir.")
	w.comment("Do not enable it: Durward starts and stops it.")
	w.section("Unit")
	w.set("Description", "Durward service "+s.ID)
	w.section("Service")
	w.set("Type", "exec")
	w.set("User", s.RunAs)
	if err := w.environment(s); err != nil {
		return nil, fmt.Errorf("%s: %w", s.ID, err)
	}
	if err := w.folders(s); err != nil {
		return nil, fmt.Errorf("%s: %w", s.ID, err)
	}
	w.set("ExecStart", start)
	w.comment("No restart: a unit that comes back by itself takes GPU memory that a switch has given to another.")
	w.set("Restart", "no")
	w.seconds("TimeoutStartSec", s.StartTimeoutS)
	w.seconds("TimeoutStopSec", s.StopTimeoutS)
	w.limits(s.Limits)
	w.hardening(s)
	if w.text.Len() > maxUnit {
		return nil, fmt.Errorf("%s: the unit would be longer than systemd reads", s.ID)
	}
	return []byte(w.text.String()), nil
}

// reserved reports whether a user is root, by whatever name on this host, or one that Durward's processes run as.
func reserved(name string) bool {
	if name == "root" || name == "durward" || strings.HasPrefix(name, "durward-") {
		return true
	}
	u, err := user.Lookup(name)
	return err == nil && u.Uid == "0" // whom this host does not know it makes before it starts the unit
}

// writer writes a unit's lines.
type writer struct{ text strings.Builder }

func (w *writer) comment(text string)   { fmt.Fprintf(&w.text, "# %s\n", text) }
func (w *writer) section(name string)   { fmt.Fprintf(&w.text, "\n[%s]\n", name) }
func (w *writer) set(key, value string) { fmt.Fprintf(&w.text, "%s=%s\n", key, value) }
func (w *writer) seconds(k string, v uint32) {
	if v > 0 {
		w.set(k, fmt.Sprintf("%ds", v))
	}
}

func (w *writer) environment(s *catalog.Service) error {
	env := map[string]string{
		"LANG":           "C.UTF-8",
		"HOME":           "/var/lib/" + Prefix + s.ID,
		"XDG_CACHE_HOME": "/var/cache/" + Prefix + s.ID,
	}
	maps.Copy(env, s.Environment)
	for _, key := range slices.Sorted(maps.Keys(env)) {
		if !keyPattern().MatchString(key) {
			return errors.New("an environment variable has no good name")
		}
		if hasControl(env[key], "\t\n") {
			return fmt.Errorf("the value of %s holds a control character, which systemd refuses", key)
		}
		word, err := quote(key + "=" + env[key])
		if err != nil {
			return fmt.Errorf("environment variable %s: %w", key, err)
		}
		w.set("Environment", word)
	}
	return nil
}

// folders gives the service two of its own, which it may write to; everything else of the host is read-only for it.
func (w *writer) folders(s *catalog.Service) error {
	w.set("StateDirectory", Prefix+s.ID)
	w.set("StateDirectoryMode", "0700")
	w.set("CacheDirectory", Prefix+s.ID)
	w.set("CacheDirectoryMode", "0700")
	folder := cmp.Or(s.WorkingDir, "/var/lib/"+Prefix+s.ID)
	// This key's value is not quoted: it is all that follows, without spaces at its end.
	if !plain(folder) || strings.HasSuffix(folder, " ") || strings.HasSuffix(folder, `\`) {
		return errors.New("the working folder has a name that a unit cannot hold")
	}
	w.set("WorkingDirectory", strings.ReplaceAll(folder, "%", "%%"))
	return nil
}

func (w *writer) limits(l catalog.Limits) {
	if l.MemoryMiB > 0 {
		w.set("MemoryMax", fmt.Sprintf("%dM", l.MemoryMiB))
		w.set("MemorySwapMax", "0")
	}
	if l.CPUPercent > 0 {
		w.set("CPUQuota", fmt.Sprintf("%d%%", l.CPUPercent))
	}
	if l.PIDs > 0 {
		w.set("TasksMax", fmt.Sprintf("%d", l.PIDs))
	}
}

// hardening is what every unit gets, systemd.exec(5). Memory that is both writable and executable stays allowed: model servers
// compile code while they run.
var hardening = [][2]string{
	{"NoNewPrivileges", "yes"},
	{"CapabilityBoundingSet", ""},
	{"AmbientCapabilities", ""},
	{"UMask", "0077"},
	{"ProtectSystem", "strict"},
	{"PrivateTmp", "yes"},
	{"ProtectProc", "invisible"},
	{"ProtectClock", "yes"},
	{"ProtectHostname", "yes"},
	{"ProtectKernelLogs", "yes"},
	{"ProtectKernelModules", "yes"},
	{"ProtectKernelTunables", "yes"},
	{"ProtectControlGroups", "yes"},
	{"RestrictNamespaces", "yes"},
	{"RestrictRealtime", "yes"},
	{"RestrictSUIDSGID", "yes"},
	{"LockPersonality", "yes"},
	{"KeyringMode", "private"},
	{"RemoveIPC", "yes"},
	{"LimitCORE", "0"},
	{"SystemCallArchitectures", "native"},
	{"SystemCallFilter", "@system-service"},
	{"SystemCallErrorNumber", "EPERM"},
	{"RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"},
}

func (w *writer) hardening(s *catalog.Service) {
	for _, h := range hardening {
		w.set(h[0], h[1])
	}
	home := "yes"
	if slices.ContainsFunc(paths(s), inHome) {
		home = "read-only" // its program or its model lies there
	}
	w.set("ProtectHome", home)
	w.set("DevicePolicy", "closed")
	if len(s.GPUs) > 0 {
		w.comment("All of the driver's devices; which of them it uses is in its environment.")
		w.set("DeviceAllow", "char-nvidia* rw")
	} else {
		w.set("PrivateDevices", "yes")
	}
	w.comment("It reaches this host alone, and only this host reaches it. Needs control groups of version 2.")
	w.set("IPAddressDeny", "any")
	w.set("IPAddressAllow", "localhost")
	if s.Port == 0 && s.Network == catalog.NetworkNone {
		w.set("PrivateNetwork", "yes")
	}
}

// paths are what of the host's files the entry names.
func paths(s *catalog.Service) []string {
	list := append([]string{s.WorkingDir}, s.Argv...)
	for _, argument := range s.Argv {
		if _, value, joined := strings.Cut(argument, "="); joined {
			list = append(list, value)
		}
	}
	for _, value := range s.Environment {
		list = append(list, value)
	}
	if s.Model != nil {
		list = append(list, s.Model.File)
	}
	return list
}

func inHome(path string) bool {
	return slices.ContainsFunc([]string{"/home", "/root", "/run/user"}, func(home string) bool {
		return path == home || strings.HasPrefix(path, home+"/")
	})
}

// plain reports whether a path is absolute, in its shortest form, valid UTF-8 and free of control characters.
func plain(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && !hasControl(path, "")
}

// command is the value of ExecStart= that runs exactly this argument vector. The prefix ":" has systemd replace no variables, so
// that "$" means itself, in the program's path as in its arguments (systemd.service(5), "Command lines").
func command(argv []string) (string, error) {
	// systemd takes no program whose name holds these; in an argument they are quoted.
	if !plain(argv[0]) || strings.ContainsAny(argv[0], `"'\`) {
		return "", errors.New("the program has a name that a unit cannot hold")
	}
	words := make([]string, len(argv))
	for i, argument := range argv {
		word, err := quote(argument)
		if err != nil {
			return "", fmt.Errorf("argument %d: %w", i, err)
		}
		words[i] = word
	}
	return ":" + strings.Join(words, " "), nil
}

// quote returns text as one word of a unit file: in double quotes, with C's escapes and "%" doubled, so that no quote, backslash,
// space, semicolon, newline or specifier in it has a meaning (systemd.syntax(7), "Quoting"; systemd.unit(5), "Specifiers").
func quote(text string) (string, error) {
	if !utf8.ValidString(text) {
		return "", errors.New("it is not UTF-8, which a unit file must be")
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == 0:
			return "", errors.New("it holds a zero byte")
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '%':
			b.WriteString("%%")
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r > 0x7f && !unicode.IsGraphic(r):
			return "", errors.New("it holds a character that a reviewer would not see")
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String(), nil
}

// hasControl reports whether text is not UTF-8 or holds a character that cannot be seen (a control, or one that turns the
// direction of what is shown) other than those.
func hasControl(text, except string) bool {
	return !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool {
		return !unicode.IsGraphic(r) && !strings.ContainsRune(except, r)
	})
}
