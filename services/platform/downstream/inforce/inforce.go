// Package inforce keeps what a human accepted of other people's MCP servers in force in one process: it reads servers.yaml and servers.lock
// itself, verifies the signature by the operators' keys that this process trusts, and pins the tools in package contract. No RPC changes
// anything of it.
//
// A servers.yaml that is broken leaves what was in force of it. A lock that no operator of today signed pins nothing.
package inforce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/filewatch"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// maxFile is the most that servers.yaml holds.
const maxFile = 256 << 10

// Config says what to read.
type Config struct {
	// Folder is where both files lie, beside the process's own; where none is there, no server is in force.
	Folder string
	// TrustDir is the process's trust folder, where the operators' keys are.
	TrustDir string
	// Foreign could not have written any; nil: not checked.
	Foreign *ownership.Foreign
	// Unconfined: servers without a sandbox are in force, as in development, and in processes that start none.
	Unconfined bool
	// Compiler compiles the tools' schemas: validator.Compile wherever anything is decided or done.
	Compiler downstream.Compiler
	// OnChange is called with what is in force, at first and whenever that is something else; nil: nobody is told.
	OnChange func([]downstream.Pinned)
	// Log records what changes; nil: it is not recorded.
	Log interface {
		Spool(ctx context.Context, record *auditv1.Record) error
	}
	Logger *slog.Logger
}

// Servers are those in force. It is safe for concurrent use.
type Servers struct {
	cfg   Config
	watch *filewatch.Watcher
	state atomic.Pointer[state]
}

type state struct {
	servers  []downstream.Pinned
	problems []string
	// entries are those of the last servers.yaml that was good.
	entries []downstream.Entry
	digest  string
	// newest is when the newest list was signed that this process knows.
	newest string
	// older says that the list is an older one than that; "" where it is not.
	older string
}

// Open reads the files for the first time. What is wrong with them is a problem to be told, and none to end the process for.
func Open(ctx context.Context, cfg Config) *Servers {
	s := &Servers{cfg: cfg}
	s.state.Store(&state{})
	s.watch = filewatch.New(func() filewatch.Stamps {
		return filewatch.Paths(filepath.Join(cfg.Folder, downstream.File), filepath.Join(cfg.Folder, downstream.LockFile), filepath.Join(cfg.TrustDir, trust.FileAllowedSigners))()
	}, func() error { return s.read(ctx, false) })
	if err := s.read(ctx, true); err != nil {
		cfg.Logger.Error("servers are not in force", "error", err)
	}
	return s
}

// Watch takes over what changes until ctx ends.
func (s *Servers) Watch(ctx context.Context) { s.watch.Run(ctx) }

// Current are the servers in force, sorted by id. The slice is shared.
func (s *Servers) Current() []downstream.Pinned { return s.state.Load().servers }

// Lookup finds one of them.
func (s *Servers) Lookup(id string) (*downstream.Pinned, bool) {
	current := s.Current()
	i := slices.IndexFunc(current, func(p downstream.Pinned) bool { return p.Entry.ID == id })
	if i < 0 {
		return nil, false
	}
	return &current[i], true
}

// Problems are why something that the files hold is not in force, and what else is wrong with them, a sentence each.
func (s *Servers) Problems() []string { return s.state.Load().problems }

// read reads all, pins what is good, and says what changed. An error says that it has to be tried again.
func (s *Servers) read(ctx context.Context, first bool) error {
	before := s.state.Load()
	now := &state{entries: before.entries, newest: before.newest}
	text, err := s.file(downstream.File, maxFile)
	if errors.Is(err, ownership.ErrUnsteady) {
		return err
	}
	if err == nil {
		var entries []downstream.Entry
		if entries, err = downstream.ReadFile(downstream.File, text); err == nil {
			now.entries = entries
		}
	}
	if err != nil {
		now.problems = append(now.problems, clean.Line(err.Error(), 500))
	}
	lock, err := s.lock()
	if errors.Is(err, ownership.ErrUnsteady) {
		return err
	}
	if err != nil {
		now.problems = append(now.problems, downstream.LockFile+": "+clean.Line(err.Error(), 500))
	}
	if lock != nil && lock.Signed != nil {
		signed, err := statement.Parse(lock.Signed.GetStatement())
		if err != nil {
			return err // it was verified: it cannot be
		}
		if signed.IssuedAt < now.newest {
			now.older = fmt.Sprintf("OLDER: signed at %s, and the one before at %s: was it put back?", signed.IssuedAt, now.newest)
			now.problems = append(now.problems, downstream.LockFile+": "+now.older)
		}
		now.newest = max(now.newest, signed.IssuedAt)
	}
	joined, left := downstream.Join(now.entries, lock)
	for _, l := range left {
		now.problems = append(now.problems, l.ID+": "+l.Why)
	}
	var definitions []contract.Definition
	for _, p := range joined {
		tools, err := s.definitions(&p)
		if err != nil {
			now.problems = append(now.problems, p.Entry.ID+": "+clean.Line(err.Error(), 500))
			continue
		}
		now.servers, definitions = append(now.servers, p), append(definitions, tools...)
	}
	if err := contract.Pin(definitions); err != nil {
		return err // the names are ids and were checked: it cannot be
	}
	now.digest = digest(definitions)
	s.state.Store(now)
	if s.cfg.OnChange != nil && (first || before.digest != now.digest || !slices.EqualFunc(before.servers, now.servers, same)) {
		s.cfg.OnChange(now.servers)
	}
	s.tell(ctx, before, now, first)
	return nil
}

func (s *Servers) file(name string, most int64) ([]byte, error) {
	text, err := ownership.ReadFile(filepath.Join(s.cfg.Folder, name), most, s.cfg.Foreign)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return text, err
}

func (s *Servers) lock() (*downstream.Lock, error) {
	text, err := s.file(downstream.LockFile, downstream.MaxLock)
	if err != nil || len(text) == 0 {
		return nil, err
	}
	operators, err := trust.ReadAllowedSigners(s.cfg.TrustDir)
	if err != nil {
		return nil, err
	}
	return downstream.ReadLock(text, statement.ServersSigned(operators, time.Now()))
}

// definitions are a server's tools as the contract takes them.
func (s *Servers) definitions(p *downstream.Pinned) ([]contract.Definition, error) {
	e := p.Entry
	if e.Sandbox.None && !s.cfg.Unconfined {
		return nil, errors.New("sandbox: none is for development alone")
	}
	var out []contract.Definition
	for _, t := range p.Tools {
		schema, err := downstream.Compile(t.Input, s.cfg.Compiler)
		if err != nil {
			return nil, fmt.Errorf("the tool %s: %w", t.Name, err)
		}
		d := contract.Definition{
			Foreign: contract.Foreign{Server: e.ID, Name: t.Name, Program: p.ProgramDigest, Reach: e.Reach(), Check: func(arguments []byte) error {
				return check(schema, arguments)
			}},
			Title: t.Title, Description: t.Description, Tier: t.Tier, Digest: t.Digest(e.ID),
			Shell: e.URL == "" && !e.Remote,
		}
		if err := json.Unmarshal(t.Input, &d.Input); err != nil {
			return nil, fmt.Errorf("the tool %s: its schema is no object", t.Name)
		}
		for pointer, role := range t.Roles {
			if role == downstream.RoleURL {
				if d.URL != "" {
					return nil, fmt.Errorf("the tool %s: two arguments are URLs", t.Name)
				}
				d.URL = pointer[1:]
			}
		}
		out = append(out, d)
	}
	return out, nil
}

// check holds arguments to a pinned schema; what costs too much is refused like what does not fit.
func check(schema *downstream.Schema, arguments []byte) error {
	err := schema.Validate(context.Background(), arguments)
	if err == nil {
		return nil
	}
	return errors.New("the arguments do not fit the tool's schema: " + clean.Line(err.Error(), 300))
}

func digest(definitions []contract.Definition) string {
	var all []byte
	for _, d := range definitions {
		all = append(append(append(all, d.Server...), d.Name...), d.Digest[:]...)
		all = append(all, d.Program[:]...)
	}
	return canonical.DigestText(all)
}

// same reports whether two servers are the same but for their tools.
func same(a, b downstream.Pinned) bool {
	return a.Entry.ID == b.Entry.ID && a.EntryDigest == b.EntryDigest && a.ProgramDigest == b.ProgramDigest
}

// tell says what changed, in the log and to whoever reads the process's own.
func (s *Servers) tell(ctx context.Context, before, now *state, first bool) {
	if !slices.Equal(before.problems, now.problems) {
		for _, problem := range now.problems {
			s.cfg.Logger.Warn("servers: " + problem)
		}
	}
	if before.digest == now.digest || first && len(now.servers) == 0 {
		return
	}
	tools := 0
	for _, p := range now.servers {
		tools += len(p.Tools)
	}
	what := fmt.Sprintf("%s: in force: %s with %s", downstream.LockFile, clean.Count(len(now.servers), "server"), clean.Count(tools, "tool"))
	if now.older != "" {
		what += ". " + now.older
	}
	s.cfg.Logger.Warn(what)
	if first || s.cfg.Log == nil {
		return
	}
	err := s.cfg.Log.Spool(ctx, &auditv1.Record{Kind: auditv1.Kind_KIND_CONFIG_FOUND, Time: timestamppb.Now(), Status: auditv1.Status_STATUS_OK, Body: &auditv1.Body{
		Summary: what, Details: map[string]string{"file": downstream.LockFile, "before": before.digest, "after": now.digest},
	}})
	if err != nil {
		s.cfg.Logger.Error("a change of the servers could not be recorded", "error", fault.From(err))
	}
}
