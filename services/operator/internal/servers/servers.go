// Package servers works out what becomes of servers.yaml and servers.lock: it reads where another MCP server comes from, installs packages
// of npm, has the tools listed by egress' program, and writes entries. It changes neither file: what it returns is shown and signed by the
// commands.
//
// It runs in the operator's process, and trusts the two files and the trust folder. Whatever a server, a package or another program's
// configuration says is hostile.
package servers

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// Files is where an installation's servers stand: beside clients.yaml.
type Files struct {
	// Entries and Lock are the two files, and Packages the folder in which packages of npm are installed.
	Entries, Lock, Packages string
	// Own are folders and files that no server gets.
	Own   []string
	trust string
}

// FilesOf are those of an installation.
func FilesOf(cfg installdir.Config) Files {
	beside := cfg.ServersDir()
	return Files{
		Entries: filepath.Join(beside, downstream.File), Lock: filepath.Join(beside, downstream.LockFile), Packages: filepath.Join(beside, downstream.PackagesDir),
		Own: []string{beside, cfg.StateDir, cfg.TrustDir, cfg.SigningKey}, trust: cfg.TrustDir,
	}
}

// State is both files, and what is in force of them.
type State struct {
	Entries []downstream.Entry
	Lock    *downstream.Lock
	InForce []downstream.Pinned
	Left    []downstream.Left
}

// Read reads and verifies both. Files that are not there hold nothing.
func (f Files) Read(now time.Time) (s State, err error) {
	text, err := readIfThere(f.Entries)
	if err == nil {
		s.Entries, err = downstream.ReadFile(f.Entries, text)
	}
	if err != nil {
		return s, err
	}
	if text, err = readIfThere(f.Lock); err != nil {
		return s, err
	}
	operators, err := trust.ReadAllowedSigners(f.trust)
	if err != nil {
		return s, err
	}
	if s.Lock, err = downstream.ReadLock(text, statement.ServersSigned(operators, now)); err != nil {
		return s, fmt.Errorf("%s is not what an operator signed: %w", f.Lock, err)
	}
	s.InForce, s.Left = downstream.Join(s.Entries, s.Lock)
	return s, nil
}

func readIfThere(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// Entry is the entry of an id; false: there is none.
func (s State) Entry(id string) (downstream.Entry, bool) {
	i := slices.IndexFunc(s.Entries, func(e downstream.Entry) bool { return e.ID == id })
	if i < 0 {
		return downstream.Entry{}, false
	}
	return s.Entries[i], true
}

// Pinned is what the lock holds of an id, in force or not; false: nothing.
func (s State) Pinned(id string) (downstream.Pinned, bool) {
	i := slices.IndexFunc(s.Lock.Servers, func(p downstream.Pinned) bool { return p.Entry.ID == id })
	if i < 0 {
		return downstream.Pinned{}, false
	}
	return s.Lock.Servers[i], true
}

// Without and With are the lock's servers without one, and with one in its place. They are not signed yet.
func (s State) Without(id string) *downstream.Lock {
	return &downstream.Lock{Servers: slices.DeleteFunc(slices.Clone(s.Lock.Servers), func(p downstream.Pinned) bool { return p.Entry.ID == id })}
}

// With is sorted.
func (s State) With(p downstream.Pinned) *downstream.Lock {
	l := s.Without(p.Entry.ID)
	l.Servers = append(l.Servers, p)
	l.Sort()
	return l
}

// Counts are what a statement of kind servers names: how many tools each server has.
func Counts(l *downstream.Lock) map[string]int {
	out := map[string]int{}
	for _, p := range l.Servers {
		out[p.Entry.ID] = len(p.Tools)
	}
	return out
}

// Accept gives the tools of what was listed the tiers and roles that the entry has for them, and ties them to the entry. Names of
// tools and of their arguments in the entry that the server does not list are an error: somebody means another one.
func Accept(p *downstream.Pinned, e downstream.Entry) error {
	known := map[string]bool{}
	for i, t := range p.Tools {
		known[t.Name] = true
		p.Tools[i].Tier = cmp.Or(e.Tiers[t.Name], t.Tier, optionsv1.Tier_TIER_WRITE)
		if roles := e.Roles[t.Name]; roles != nil {
			p.Tools[i].Roles = roles
		}
		if err := argued(t, e.Roles[t.Name]); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(slices.Values(slices.Concat(e.Allow, slices.Collect(maps.Keys(e.Tiers)), slices.Collect(maps.Keys(e.Roles))))) {
		if !known[name] {
			return fmt.Errorf("it lists no tool %s that can be accepted", name)
		}
	}
	p.Entry = e
	var err error
	p.EntryDigest, err = e.Digest()
	return err
}

// argued reports a role of an argument that a tool does not have: it would hold nothing.
func argued(t downstream.Tool, roles map[string]downstream.Role) error {
	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if len(roles) > 0 {
		if err := json.Unmarshal(t.Input, &schema); err != nil {
			return fmt.Errorf("%s: its schema cannot be read", t.Name)
		}
	}
	for _, pointer := range slices.Sorted(maps.Keys(roles)) {
		if _, has := schema.Properties[pointer[1:]]; !has {
			return fmt.Errorf("%s has no argument %s, to which servers.yaml gives a role", t.Name, clean.Visible(pointer[1:]))
		}
	}
	return nil
}

// Header begins a new file of entries.
const Header = "# Other people's MCP servers (durward server). deploy/config/servers.yaml documents every field.\nservers: []\n"

// Add returns the file with an entry at its end, and the entry as the file is read.
func Add(name string, before []byte, e downstream.Entry) ([]byte, error) {
	if len(before) == 0 {
		before = []byte(Header)
	}
	after, err := edit.Append(before, "servers", item(e))
	if err != nil {
		return nil, err
	}
	entries, err := downstream.ReadFile(name, after)
	if err != nil {
		return nil, err
	}
	want, err := e.Digest()
	if err != nil {
		return nil, err
	}
	for _, got := range entries {
		if digest, err := got.Digest(); err == nil && digest == want {
			return after, nil
		}
	}
	return nil, errors.New("the entry would not be read as what it is")
}

// Remove returns the file without an entry.
func Remove(before []byte, id string) ([]byte, error) {
	return edit.Remove(before, "servers", func(item any, _ string) bool {
		m, ok := item.(map[string]any)
		return ok && m["id"] == id
	})
}

// Settle fills in what the file would say of an entry that is made here: its defaults.
func Settle(e downstream.Entry) (downstream.Entry, error) {
	entries, err := downstream.ReadFile("the entry", []byte("servers:\n  - "+strings.ReplaceAll(item(e), "\n", "\n    ")+"\n"))
	if err != nil {
		return e, errors.New(strings.TrimPrefix(strings.TrimLeft(strings.TrimPrefix(err.Error(), "the entry"), ":0123456789"), " "))
	}
	return entries[0], nil
}
