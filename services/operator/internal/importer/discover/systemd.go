package discover

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/hostprogram"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/procfs"
)

// Systemd asks a service manager what its units are.
type Systemd struct {
	// Manager is "system", or "user" for the operator's own.
	Manager string
	// Program is busctl's absolute path; "": the one in PATH. Run runs it; nil: hostprogram.Run.
	Program string
	Run     Runner
	// Proc is where the kernel tells of processes; "": /proc.
	Proc string
	// Holders are the programs that hold memory of GPUs.
	Holders []Holder
	// Prober asks what listens; nil: nobody is asked.
	Prober *Prober
}

// Passed is what was looked at and not taken, with the reason, for people.
type Passed struct{ Name, Why string }

const (
	busName     = "org.freedesktop.systemd1"
	busPath     = "/org/freedesktop/systemd1"
	serviceFace = busName + ".Service"
	// maxUnits is more than any host has; each costs one question.
	maxUnits = 4096
	askers   = 4
)

var (
	objectPattern = pattern.New(`\A` + busPath + `/unit/[A-Za-z0-9_]{1,512}\z`)
	errBus        = errors.New("busctl writes what is not understood")
)

// unitFacts is what matters of a unit.
type unitFacts struct {
	argv        []string
	environment []string
	user        string
	dynamic     bool
	pid         int
	group       string
	restart     string
	files       bool // it reads further environment from files
}

// Servers finds the loaded units whose program, or one of whose processes, is an engine that is known, and those whose processes hold
// memory of a GPU. They are in the order of their names.
func (s Systemd) Servers(ctx context.Context) ([]Server, []Passed, error) {
	if s.Run == nil {
		s.Run = hostprogram.Run
	}
	busctl := s.Program
	if busctl == "" {
		var err error
		if busctl, err = hostprogram.Find("busctl"); err != nil {
			return nil, nil, err
		}
	}
	units, err := s.list(ctx, busctl)
	if err != nil {
		return nil, nil, err
	}
	running := readProcesses(cmp.Or(s.Proc, "/proc"))
	servers, problems := make([]*Server, len(units)), make([]error, len(units))
	turn := make(chan struct{}, askers)
	var asking sync.WaitGroup
	for i, u := range units {
		asking.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			facts, err := s.ask(ctx, busctl, u.path)
			if problems[i] = err; err == nil {
				servers[i] = s.server(ctx, u, facts, running)
			}
		})
	}
	asking.Wait()
	var out []Server
	var passed []Passed
	for i, server := range servers {
		switch {
		case problems[i] != nil:
			passed = append(passed, Passed{clean.Line(units[i].name, 256), "systemd did not say what it runs"})
		case server != nil && !catalog.IsUnit(server.Subject):
			passed = append(passed, Passed{server.Name, "its name has characters that an entry does not take"})
		case server != nil && !server.Recognised && len(server.GPUs) == 0:
			passed = append(passed, Passed{server.Name, "its command " + server.indirect + ", and names an engine: what it runs is seen while it runs"})
		case server != nil:
			out = append(out, *server)
		}
	}
	return out, passed, ctx.Err()
}

type loaded struct {
	name, path string
	running    bool
}

// list lists the services that are loaded.
func (s Systemd) list(ctx context.Context, busctl string) ([]loaded, error) {
	raw, err := s.bus(ctx, busctl, "call", busName, busPath, busName+".Manager", "ListUnitsByPatterns", "asas", "0", "1", "*.service")
	if err != nil {
		return nil, fmt.Errorf("systemd cannot be asked over D-Bus: %w", err)
	}
	var answer struct {
		Data [][][]any `json:"data"`
	}
	if json.Unmarshal(raw, &answer) != nil || len(answer.Data) != 1 {
		return nil, errBus
	}
	var out []loaded
	for _, row := range answer.Data[0] {
		// Name, description, load state, active state, sub state, what it follows, object path, job.
		if len(row) < 7 {
			return nil, errBus
		}
		name, _ := row[0].(string)
		load, _ := row[2].(string)
		active, _ := row[3].(string)
		path, _ := row[6].(string)
		if load != "loaded" || !objectPattern().MatchString(path) || strings.HasPrefix(name, "systemd-") {
			continue
		}
		out = append(out, loaded{name, path, active == "active" || active == "reloading" || active == "activating"})
	}
	if len(out) > maxUnits {
		return nil, fmt.Errorf("systemd has more than %d services", maxUnits)
	}
	slices.SortFunc(out, func(a, b loaded) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// bus runs busctl with a fixed question.
func (s Systemd) bus(ctx context.Context, busctl string, args ...string) ([]byte, error) {
	manager := "--system"
	if s.Manager == "user" {
		manager = "--user"
	}
	return s.Run(ctx, busctl, append([]string{manager, "--json=short", "--no-pager"}, args...)...)
}

// ask asks for a unit's properties, in the order in which they are read below.
func (s Systemd) ask(ctx context.Context, busctl, path string) (unitFacts, error) {
	var f unitFacts
	raw, err := s.bus(ctx, busctl, "get-property", busName, path, serviceFace,
		"ExecStart", "Environment", "User", "DynamicUser", "MainPID", "ControlGroup", "Restart", "EnvironmentFiles")
	if err != nil {
		return f, err
	}
	var start, files [][]any
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	into := []any{&start, &f.environment, &f.user, &f.dynamic, &f.pid, &f.group, &f.restart, &files}
	if len(lines) != len(into) {
		return f, errBus
	}
	for i, line := range lines {
		if json.Unmarshal(line, &struct {
			Data any `json:"data"`
		}{into[i]}) != nil {
			return f, errBus
		}
	}
	f.files = len(files) > 0
	// Path, argument vector, and how it went. A oneshot may have several, and the last of them is no server either.
	if len(start) != 1 || len(start[0]) < 2 {
		return f, nil
	}
	program, _ := start[0][0].(string)
	argv, _ := start[0][1].([]any)
	f.argv = []string{program}
	for i, a := range argv {
		if text, ok := a.(string); ok && i > 0 {
			f.argv = append(f.argv, text)
		}
	}
	return f, nil
}

// server is the unit as a server, nil if it is none.
func (s Systemd) server(ctx context.Context, u loaded, f unitFacts, running processes) *Server {
	out := &Server{Name: clean.Line(u.name, 256), Subject: u.name, Running: u.running}
	out.Environment, out.Withheld = environment(f.environment)
	expanded, open := expand(f.argv, out.Environment)
	out.Command, out.Recognised = enginecmd.Read(expanded, out.Environment)
	group := running.in(f.group)
	if i := slices.Index(group, f.pid); i > 0 {
		// The unit's own process first: an engine may start others of its kind, on ports of their own.
		group = slices.Insert(slices.Delete(group, i, i+1), 0, f.pid)
	}
	// What runs says more than the unit's file: systemd has filled in variables, and a script has become an engine.
	for _, pid := range group {
		if command, ok := enginecmd.Read(procfs.CommandLine(running.root, pid), out.Environment); ok {
			out.Command, out.Recognised, open = command, true, false
			break
		}
	}
	out.hold(s.Holders, group)
	if !out.Recognised && len(out.GPUs) == 0 {
		if len(f.argv) > 0 && names(f.argv) {
			out.indirect = enginecmd.Indirect(f.argv)
		}
		if out.indirect == "" {
			return nil
		}
		return out
	}
	out.Port = portOf(out.Command, out.Recognised)
	if out.Running {
		out.ask(ctx, s.Prober, out.Command.Host)
	}
	if !f.dynamic && (f.user == "" || f.user == "root" || f.user == "0") && s.Manager != "user" {
		out.Remarks = append(out.Remarks, "it runs as root, and outside development no such unit is started: give it User= or DynamicUser=")
	}
	if f.restart != "" && f.restart != "no" {
		out.Remarks = append(out.Remarks, "systemd starts it again by itself (Restart="+clean.Line(f.restart, 32)+"): it can take back GPU memory in the middle of a switch")
	}
	if open {
		out.Remarks = append(out.Remarks, "its command line has variables that are filled in when it starts; what they say is not known here")
	}
	if f.files {
		out.Remarks = append(out.Remarks, "it reads further environment from files, which were not read")
	}
	return out
}

// names reports whether an engine's program is named anywhere in a command line.
func names(argv []string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(strings.Join(argv, " "), func(r rune) bool { return strings.ContainsRune(" /;&|'\"()", r) }), func(word string) bool {
		return slices.Contains([]string{"vllm", "vllm.entrypoints.openai.api_server", "sglang", "sglang.launch_server", "llama-server", "ollama"}, word)
	})
}

// hold notes the GPUs whose memory the processes hold.
func (s *Server) hold(holders []Holder, pids []int) {
	var total uint64
	for _, h := range holders {
		if !slices.Contains(pids, h.PID) {
			continue
		}
		if !slices.Contains(s.GPUs, h.UUID) {
			s.GPUs = append(s.GPUs, h.UUID)
		}
		total += uint64(h.MiB)
	}
	slices.Sort(s.GPUs)
	s.MiB = uint32(min(total, 1<<24))
}

// variable is what systemd replaces in a command line.
var variable = pattern.New(`\$(\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*)`)

// expand fills in the variables whose values may be shown. open: others are left.
func expand(argv []string, values map[string]string) (out []string, open bool) {
	for _, a := range argv {
		a = variable().ReplaceAllStringFunc(a, func(v string) string {
			if value, ok := values[strings.Trim(v, "${}")]; ok {
				return value
			}
			open = true
			return v
		})
		out = append(out, a)
	}
	return out, open
}

func portOf(c enginecmd.Command, recognised bool) uint32 {
	if !recognised || c.Port != 0 {
		return c.Port
	}
	return enginecmd.ListensAs(c.Engine).Default
}

// processes is which control group each of the host's programs is in.
type processes struct {
	root  string
	group map[int]string
}

func readProcesses(root string) processes {
	p := processes{root, map[int]string{}}
	for pid, text := range procfs.Processes(root, "cgroup") {
		if group := procfs.Group(text); group != "" {
			p.group[pid] = group
		}
	}
	return p
}

// in lists the processes of a control group and of those below it, the oldest number first.
func (p processes) in(group string) (out []int) {
	for pid, at := range p.group {
		if group != "" && group != "/" && (at == group || strings.HasPrefix(at, group+"/")) {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out
}
