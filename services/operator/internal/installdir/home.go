// Package installdir is the folder of a Durward installation that one person runs: where everything lies, how it is made, and
// how its files are changed without ever being half written.
//
// It runs in the operator's process, which owns the folder. It trusts the folder's owner: a folder that another user owns or may
// write, itself or one on the way to it, is neither made, locked nor read.
package installdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"durward.internal/services/platform/durable"
	"durward.internal/services/platform/procfs"
)

// Roles in the order in which they start; they stop in reverse.
var roles = []string{"audit", "vault", "executor", "gateway"}

// Roles returns the processes' names in the order in which they start.
func Roles() []string { return append([]string(nil), roles...) }

// Processes that a human adds: the relay between audit and witnesses, and egress, which reaches other hosts for agents.
const (
	roleRelay  = "relay"
	roleEgress = "egress"
)

// Added returns the names of processes that a human added to an installation, and of internal programs ("tools/NAME"): those that have a
// folder for their certificate below tls, which is all that it takes for them to get one.
func Added(tls string) []string {
	var added []string
	for _, role := range []string{roleRelay, roleEgress} {
		if info, err := os.Stat(filepath.Join(tls, role)); err == nil && info.IsDir() {
			added = append(added, role)
		}
	}
	tools, err := os.ReadDir(filepath.Join(tls, toolsDir))
	if err != nil {
		return added // there is none
	}
	for _, entry := range tools {
		added = append(added, toolsDir+"/"+entry.Name())
	}
	return added
}

// Home names the files under one folder. The zero value is not usable; see At.
type Home struct{ Dir string }

// At returns the home in dir. It creates nothing.
func At(dir string) (Home, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Home{}, fmt.Errorf("home folder: %w", err)
	}
	return Home{Dir: abs}, nil
}

// Find returns the home that commands mean: the one in dir, which is a flag's; else in $DURWARD_HOME; else in ~/.durward where that
// is there; else in durward below $XDG_DATA_HOME, where that is set; else in ~/.durward. It creates nothing.
func Find(dir string, getenv func(string) string) (Home, error) {
	if dir != "" {
		return At(dir)
	}
	if dir = getenv("DURWARD_HOME"); dir != "" {
		if !filepath.IsAbs(dir) {
			return Home{}, fmt.Errorf("DURWARD_HOME is %q: it must be an absolute path", dir)
		}
		return At(dir)
	}
	user := getenv("HOME")
	data := getenv("XDG_DATA_HOME")
	if !filepath.IsAbs(data) { // the specification has a relative one ignored
		data = ""
	}
	switch {
	case user == "" && data == "":
		return Home{}, errors.New("no home folder is known for this user: give --home")
	case user == "":
		return At(filepath.Join(data, "durward"))
	}
	usual := Home{Dir: filepath.Join(user, ".durward")}
	if _, err := os.Lstat(usual.Dir); data == "" || err == nil {
		return At(usual.Dir)
	}
	return At(filepath.Join(data, "durward"))
}

func (h Home) path(parts ...string) string {
	return filepath.Join(append([]string{h.Dir}, parts...)...)
}

// Config is the configuration file of a process, or "clients", "catalog", "operator".
func (h Home) Config(name string) string { return h.path("config", name+".yaml") }

// Security is the folder of the security configuration, or a file in it.
func (h Home) Security(parts ...string) string {
	return h.path(append([]string{"config", "security"}, parts...)...)
}

// Trust is the folder of trust roots, or a file in it.
func (h Home) Trust(parts ...string) string { return h.path(append([]string{"trust"}, parts...)...) }

// PKI is the folder of the built-in certificate authority, or a file in it.
func (h Home) PKI(parts ...string) string { return h.path(append([]string{"pki"}, parts...)...) }

// Key is a file in keys/.
func (h Home) Key(name string) string { return h.path("keys", name) }

// TLS is the certificate or key file of a role.
func (h Home) TLS(role, file string) string { return h.path("tls", role, file) }

// State is the state folder of a role, or a file in it.
func (h Home) State(role string, parts ...string) string {
	return h.path(append([]string{"state", role}, parts...)...)
}

// Log is the log file of a role.
func (h Home) Log(role string) string { return h.path("logs", role+".log") }

// Client is the folder with a client's token and key, or a file in it.
func (h Home) Client(name string, parts ...string) string {
	return h.path(append([]string{"clients", name}, parts...)...)
}

func (h Home) run(name string) string { return h.path("run", name) }

// folders are those that Init makes.
func (h Home) folders() []string {
	folders := []string{h.Dir}
	for _, name := range []string{"config", "trust", "pki", "keys", "logs", "run", "clients"} {
		folders = append(folders, h.path(name))
	}
	folders = append(folders, h.Security(), h.Security("policy"))
	for _, role := range append(Roles(), "operator") {
		folders = append(folders, h.TLS(role, ""), h.State(role))
	}
	return folders
}

// check refuses a home in which another user could put files.
func (h Home) check() error {
	err := own(append(h.folders(), h.Config("operator"))...)
	if _, system := errors.AsType[syscall.Errno](err); system {
		return h.unusable(err)
	}
	return err
}

// ErrUnusable means that this user may not use the home's folder, or that none can be made there.
var ErrUnusable = errors.New("cannot be used")

func (h Home) unusable(err error) error {
	return fmt.Errorf("the folder %s %w: %w", h.Dir, ErrUnusable, err)
}

// Exists reports whether the home was made. One that this user may not look into counts, since its name is taken.
func (h Home) Exists() bool {
	_, err := os.Stat(h.Config("operator"))
	return err == nil || errors.Is(err, fs.ErrPermission)
}

// Runs reports whether it is the processes' home too: that of an operator of an installed host has this program's configuration alone.
func (h Home) Runs() bool {
	_, err := os.Stat(h.Config("audit"))
	return err == nil
}

// WriteFile replaces a file, or makes it, durably and as this process's user.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	if err := durable.ReplaceAs(durable.Own(perm), path, data, nil); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// CreateFile writes a file that must not be there yet.
func CreateFile(path string, data []byte, perm fs.FileMode) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("write %s: %w", path, fs.ErrExist)
	}
	return WriteFile(path, data, perm)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ErrLocked means that another process holds the lock.
var ErrLocked = errors.New("locked by another process")

// Lock takes an exclusive lock named name in run/ without waiting. It ends with release, or with the process.
func (h Home) Lock(name string) (release func() error, err error) {
	return h.lock(name, syscall.LOCK_NB)
}

// await is Lock, and waits while another process holds it: for what takes a moment.
func (h Home) await(name string) (release func() error, err error) { return h.lock(name, 0) }

func (h Home) lock(name string, how int) (release func() error, err error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(h.run(""), 0o700); err != nil {
		return nil, h.unusable(err)
	}
	f, err := os.OpenFile(h.run(name+".lock"), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, h.unusable(err)
	}
	err = syscall.EINTR
	for errors.Is(err, syscall.EINTR) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|how)
	}
	if err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("lock: %w", err)
	}
	// A program that is being started holds a copy of the file for a moment; closing ours alone would leave the lock with it.
	return func() error { return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close()) }, nil
}

// Process names a running process so that a number used again by another is not taken for it.
type Process struct {
	PID int `json:"pid"`
	// StartTime is field 22 of /proc/PID/stat: clock ticks since boot.
	StartTime uint64 `json:"start_time"`
	// Development says how it was started.
	Development bool `json:"development"`
}

// Self describes this process.
func Self(development bool) (Process, error) {
	start, err := startTime(os.Getpid())
	return Process{PID: os.Getpid(), StartTime: start, Development: development}, err
}

// Alive reports whether the process still runs.
func (p Process) Alive() bool {
	start, err := startTime(p.PID)
	return err == nil && start == p.StartTime
}

// startTime reads when a process started. A zombie counts as gone.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("process %d: %w", pid, err)
	}
	fields := procfs.Stat(b)
	if len(fields) < 20 || fields[0] == "Z" {
		return 0, fmt.Errorf("process %d: %w", pid, fs.ErrNotExist)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// WriteProcess records the running `durward up`.
func (h Home) WriteProcess(p Process) error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("write process file: %w", err)
	}
	return WriteFile(h.run("up.json"), append(b, '\n'), 0o600)
}

// RunningProcess returns the running `durward up` of this home, and whether there is one.
func (h Home) RunningProcess() (Process, bool) {
	b, err := os.ReadFile(h.run("up.json"))
	if err != nil {
		return Process{}, false
	}
	var p Process
	if json.Unmarshal(b, &p) != nil || p.PID <= 1 || !p.Alive() {
		return Process{}, false
	}
	return p, true
}

// RemoveProcess forgets the running `durward up`.
func (h Home) RemoveProcess() error { return ignoreMissing(os.Remove(h.run("up.json"))) }
