package mode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/lease"
	"durward.internal/services/executor/internal/plan"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/fault"
)

// The planner's names: tests call their plans plan.
type (
	Request     = plan.Request
	Simulation  = plan.Simulation
	Step        = plan.Step
	Need        = plan.Need
	Change      = plan.Change
	Alternative = plan.Alternative
)

const (
	actionSleep = plan.Sleep
	actionStop  = plan.Stop
	actionStart = plan.Start
	actionWake  = plan.Wake

	changeKeep        = executorv1.ChangeKind_CHANGE_KIND_KEEP
	changeSleep       = executorv1.ChangeKind_CHANGE_KIND_SLEEP
	changeStop        = executorv1.ChangeKind_CHANGE_KIND_STOP
	changeContext     = executorv1.ChangeKind_CHANGE_KIND_CONTEXT
	changeUtilisation = executorv1.ChangeKind_CHANGE_KIND_UTILISATION
	changeGPU         = executorv1.ChangeKind_CHANGE_KIND_GPU
	changeSplit       = executorv1.ChangeKind_CHANGE_KIND_SPLIT
)

// planSubject is what a digest is made of.
type planSubject struct {
	Catalog string   `json:"catalogue"`
	Keeps   []string `json:"keeps,omitempty"`
	Mode    string   `json:"mode"`
	Steps   []struct {
		Action      string `json:"action"`
		EntrySHA256 string `json:"entry_sha256"`
		Service     string `json:"service"`
	} `json:"steps"`
}

// catalogText is a host with two GPUs of 24 GiB. tools depends on code; watch is pinned.
const catalogText = `
version: 1
gpus: [{index: 0, name: One}, {index: 1, name: Two}]
services:
  - {id: chat, driver: process, argv: [/usr/bin/true, chat], port: 17001, gpus: [0], vram_mib: 16000, sleep: vllm-l1, sleep_mib: 1000}
  - {id: embed, driver: process, argv: [/usr/bin/true, embed], port: 17002, gpus: [1], vram_mib: 4000}
  - {id: tools, driver: process, argv: [/usr/bin/true, tools], port: 17003, depends_on: [code]}
  - {id: code, driver: process, argv: [/usr/bin/true, code], port: 17004, gpus: [0], vram_mib: 20000}
  - {id: big, driver: process, argv: [/usr/bin/true, big], port: 17005, gpus: [0, 1], vram_mib: 47000}
  - {id: watch, driver: process, argv: [/usr/bin/true, watch], port: 17006, gpus: [1], vram_mib: 500, pin: true}
  - {id: legacy, driver: process, argv: [/usr/bin/true, legacy], port: 17007, gpus: [1], vram_mib: 6000}
modes:
  - {id: talk, services: [chat, embed]}
  - {id: work, services: [embed, code, tools]}
  - {id: huge, services: [big]}
  - {id: old, services: [chat, legacy]}
`

const (
	total    = 24576
	reserved = 300
	margin   = 200
)

// host is the services and the GPUs of a made-up machine. It outlives the switchers of a test.
type host struct {
	mu sync.Mutex
	// looks counts how often Last was asked: once for each plan that is not carried out.
	looks int
	c     *catalog.Catalog
	state map[string]executorv1.ServiceState
	cause map[string]string
	// fails makes an act fail: "raise chat". What it is set to says how: "before", "after" the effect, or "gone" with the
	// service ended.
	fails map[string]string
	// once fail once.
	once map[string]bool
	// lies: it says that it sleeps, and keeps its memory.
	lies map[string]bool
	// held is memory of services that ended, by service, and until when it is held.
	held map[string]time.Time
	// lag is how long a program's memory is held after its end.
	lag time.Duration
	// totals are what GPUs have, where that is not total.
	totals map[uint32]uint32
	// foreign is what strangers hold, by GPU.
	foreign map[uint32]uint32
	lost    map[uint32]bool
	// on is called at each act, before its effect, outside the lock.
	on    func(act string)
	acts  []string
	edits map[string]string
	since map[string]time.Time
	// given are the definitions that each start was bound to.
	given map[string]string
	// says is how many lines a service writes when it is started, wrote how many it wrote.
	says, wrote map[string]int
	// silent: the driver does not tell what a program uses.
	silent bool
	busy   int
	most   int
	// crash, if set, decides at each act whether the process is killed there: "raise chat", and before or after its effect.
	crash func(act string, after bool) bool
	// over says that more memory was held than there is.
	over bool
}

func newHost(t testing.TB, running ...string) *host {
	t.Helper()
	h := &host{
		c: parse(t, catalogText), state: map[string]executorv1.ServiceState{}, cause: map[string]string{}, fails: map[string]string{},
		once: map[string]bool{}, lies: map[string]bool{}, held: map[string]time.Time{}, foreign: map[uint32]uint32{},
		lost: map[uint32]bool{}, edits: map[string]string{}, since: map[string]time.Time{}, given: map[string]string{},
		says: map[string]int{}, wrote: map[string]int{},
	}
	for _, s := range h.c.Services {
		h.state[s.ID] = executorv1.ServiceState_SERVICE_STATE_STOPPED
	}
	for _, id := range running {
		name, state, _ := strings.Cut(id, ":")
		h.state[name] = executorv1.ServiceState_SERVICE_STATE_RUNNING
		switch state {
		case "asleep":
			h.state[name] = executorv1.ServiceState_SERVICE_STATE_SLEEPING
		case "unhealthy":
			h.state[name], h.cause[name] = executorv1.ServiceState_SERVICE_STATE_UNHEALTHY, driver.CauseUnhealthy
		case "failed":
			h.state[name], h.cause[name] = executorv1.ServiceState_SERVICE_STATE_FAILED, driver.CauseExited
		case "unknown":
			h.state[name] = executorv1.ServiceState_SERVICE_STATE_UNKNOWN
		case "starting":
			h.state[name] = executorv1.ServiceState_SERVICE_STATE_STARTING
		}
	}
	return h
}

func parse(t testing.TB, text string) *catalog.Catalog {
	t.Helper()
	c, err := catalog.Parse("catalogue.yaml", []byte(text), catalog.Options{Development: true})
	must(t, err)
	return c
}

// set returns what runs and what sleeps: "chat", "chat:asleep".
func (h *host) set() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for id, state := range h.state {
		switch state {
		case executorv1.ServiceState_SERVICE_STATE_STOPPED, executorv1.ServiceState_SERVICE_STATE_FAILED:
		case executorv1.ServiceState_SERVICE_STATE_RUNNING, executorv1.ServiceState_SERVICE_STATE_UNHEALTHY:
			out = append(out, id) // one that was restarted answers again
		case executorv1.ServiceState_SERVICE_STATE_SLEEPING:
			out = append(out, id+":asleep")
		default:
			out = append(out, id+":"+service.StateName(state))
		}
	}
	slices.Sort(out)
	return out
}

func (h *host) Status(s *catalog.Service) service.View {
	h.mu.Lock()
	defer h.mu.Unlock()
	return service.View{State: h.state[s.ID], Cause: h.cause[s.ID], Since: h.since[s.ID]}
}

// act is what every change has in common: the confirmation, what a test wants to go wrong, and the effect.
func (h *host) act(ctx context.Context, verb string, s *catalog.Service, a service.Act, effect func() (bool, error)) (bool, error) {
	name := verb + " " + s.ID
	h.mu.Lock()
	on, crash := h.on, h.crash
	h.mu.Unlock()
	if on != nil {
		on(name)
	}
	if now, _ := h.Definition(ctx, s); a.Definition != "" && a.Definition != now {
		return false, fault.New(callv1.Code_CODE_CONFLICT, s.ID+" was not started: "+driver.CauseChanged)
	}
	if err := a.Confirm(ctx, func() {
		h.mu.Lock()
		if verb == "raise" || verb == "wake" {
			h.given[s.ID] = a.Definition
			h.wrote[s.ID] += h.says[s.ID]
		}
		h.busy++
		h.most = max(h.most, h.busy)
		h.acts = append(h.acts, name)
		h.mu.Unlock()
	}); err != nil {
		return false, err
	}
	defer func() {
		h.mu.Lock()
		h.busy--
		h.mu.Unlock()
	}()
	if a.Phase != nil {
		a.Phase(progress.PhaseReady)
	}
	if crash != nil && crash(name, false) {
		runtime.Goexit()
	}
	h.mu.Lock()
	how := h.fails[name]
	if h.once[name] {
		delete(h.fails, name)
	}
	h.mu.Unlock()
	switch how {
	case "before":
		return false, failed(s, verb)
	case "panic":
		panic("a defect of " + name)
	}
	h.mu.Lock()
	changed, err := effect()
	if how == "gone" {
		h.state[s.ID], h.cause[s.ID] = executorv1.ServiceState_SERVICE_STATE_FAILED, driver.CauseOutOfVRAM
	}
	if how == "unknown" {
		h.state[s.ID] = executorv1.ServiceState_SERVICE_STATE_UNKNOWN
	}
	for _, g := range h.devices() {
		h.over = h.over || g.Used+g.Reserved > g.Total
	}
	h.mu.Unlock()
	if crash != nil && crash(name, true) {
		runtime.Goexit()
	}
	if how != "" {
		return false, failed(s, verb)
	}
	return changed, err
}

func failed(s *catalog.Service, verb string) error {
	return fault.New(callv1.Code_CODE_FAILED, s.ID+" does not "+verb+": "+driver.CauseExited)
}

func (h *host) StartLocked(ctx context.Context, s *catalog.Service, a service.Act) (bool, error) {
	return h.act(ctx, "raise", s, a, func() (bool, error) { return h.start(s) })
}

// start makes a service run, if its memory is there.
func (h *host) start(s *catalog.Service) (bool, error) {
	switch h.state[s.ID] {
	case executorv1.ServiceState_SERVICE_STATE_RUNNING, executorv1.ServiceState_SERVICE_STATE_UNHEALTHY:
		return false, nil
	}
	for _, index := range s.GPUs {
		g := h.device(index)
		if g.Free+g.ServiceMiB(s.ID) < catalog.Share(s.VRAMMiB, len(s.GPUs)) {
			h.state[s.ID], h.cause[s.ID] = executorv1.ServiceState_SERVICE_STATE_FAILED, driver.CauseOutOfVRAM
			return false, fault.New(callv1.Code_CODE_FAILED, s.ID+" did not start: "+driver.CauseOutOfVRAM)
		}
	}
	h.state[s.ID], h.cause[s.ID] = executorv1.ServiceState_SERVICE_STATE_RUNNING, ""
	return true, nil
}

func (h *host) Wake(ctx context.Context, s *catalog.Service, a service.Act) (bool, error) {
	return h.act(ctx, "wake", s, a, func() (bool, error) { return h.start(s) })
}

func (h *host) StopLocked(ctx context.Context, s *catalog.Service, a service.Act) (bool, error) {
	return h.act(ctx, "lower", s, a, func() (bool, error) {
		switch h.state[s.ID] {
		case executorv1.ServiceState_SERVICE_STATE_STOPPED, executorv1.ServiceState_SERVICE_STATE_FAILED:
			return false, nil
		}
		h.state[s.ID], h.cause[s.ID] = executorv1.ServiceState_SERVICE_STATE_STOPPED, ""
		if h.lag > 0 {
			h.held[s.ID] = time.Now().Add(h.lag)
		}
		return true, nil
	})
}

func (h *host) Sleep(ctx context.Context, s *catalog.Service, a service.Act) (bool, error) {
	return h.act(ctx, "sleep", s, a, func() (bool, error) {
		switch {
		case h.state[s.ID] == executorv1.ServiceState_SERVICE_STATE_SLEEPING:
			return false, nil
		case h.state[s.ID] != executorv1.ServiceState_SERVICE_STATE_RUNNING:
			return false, fault.New(callv1.Code_CODE_CONFLICT, s.ID+" does not run")
		case h.lies[s.ID]:
			h.state[s.ID], h.cause[s.ID] = executorv1.ServiceState_SERVICE_STATE_UNHEALTHY, driver.CauseStillHeld
			return false, fault.New(callv1.Code_CODE_FAILED, s.ID+" did not go to sleep: "+driver.CauseStillHeld)
		}
		h.state[s.ID] = executorv1.ServiceState_SERVICE_STATE_SLEEPING
		return true, nil
	})
}

func (*host) Pins(context.Context, *catalog.Service) []string { return nil }

func (h *host) Definition(_ context.Context, s *catalog.Service) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.edits[s.ID] == "unreadable" {
		return "", errors.New("it cannot be read")
	}
	return "sha256:" + s.ID + h.edits[s.ID], nil
}

// Logs has what the service wrote when it was started before, and then what it wrote since.
func (h *host) Logs(_ context.Context, s *catalog.Service, cursor string, lines int) (driver.Page, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := []string{s.ID + " wrote this when it ran before"}
	for i := range h.wrote[s.ID] {
		out = append(out, fmt.Sprintf("%s says %d", s.ID, i))
	}
	page := driver.Page{Lines: out[max(len(out)-lines, 0):], Cursor: strconv.Itoa(len(out))}
	if cursor != "" {
		from, err := strconv.Atoi(cursor)
		if err != nil {
			return driver.Page{}, err
		}
		to := min(from+lines, len(out))
		page = driver.Page{Lines: out[from:to], Cursor: strconv.Itoa(to), More: to < len(out)}
	}
	return page, nil
}

func (h *host) Read(context.Context) gpu.Host { return h.Last() }

func (h *host) Last() gpu.Host {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looks++
	return gpu.Host{Source: gpu.SourceNVML, GPUs: h.devices()}
}

func (h *host) devices() []gpu.Device {
	var out []gpu.Device
	for index := range uint32(max(len(h.c.GPUs), 2)) {
		out = append(out, h.device(index))
	}
	return out
}

func (h *host) device(index uint32) gpu.Device {
	d := gpu.Device{Index: index, UUID: fmt.Sprintf("GPU-%d", index), Total: cmp.Or(h.totals[index], total), Reserved: reserved}
	if h.lost[index] {
		d.Problem = gpu.ProblemLost
		d.Total, d.Reserved = 0, 0
		return d
	}
	for i, s := range h.c.Services {
		if !slices.Contains(s.GPUs, index) {
			continue
		}
		mib := catalog.Share(s.VRAMMiB, len(s.GPUs))
		claims := true
		switch h.state[s.ID] {
		case executorv1.ServiceState_SERVICE_STATE_STOPPED, executorv1.ServiceState_SERVICE_STATE_FAILED:
			if time.Now().After(h.held[s.ID]) {
				continue
			}
			claims = false
		case executorv1.ServiceState_SERVICE_STATE_SLEEPING:
			mib = catalog.Share(s.SleepMiB, len(s.GPUs))
		}
		d.Used += mib
		if h.silent {
			mib = 0
		}
		d.Processes = append(d.Processes, gpu.Process{PID: 100 + i, MiB: mib, Service: s.ID})
		if claims {
			share := catalog.Share(s.VRAMMiB, len(s.GPUs))
			if h.state[s.ID] == executorv1.ServiceState_SERVICE_STATE_SLEEPING {
				share = catalog.Share(s.SleepMiB, len(s.GPUs))
			}
			d.Claims = append(d.Claims, gpu.Share{Service: s.ID, MiB: share})
		}
	}
	if f := h.foreign[index]; f > 0 {
		d.Used, d.Foreign = d.Used+f, f
		d.Processes = append(d.Processes, gpu.Process{PID: 9000 + int(index), MiB: f, Name: "game"})
	}
	d.Free = d.Total - d.Reserved - min(d.Used, d.Total-d.Reserved)
	return d
}

// world is a host with its executor, which can be killed and started again.
type world struct {
	t       testing.TB
	host    *host
	dir     string
	store   *store.Store
	journal *journal
	leases  *lease.Leases
	hub     *progress.Hub
	halted  bool
	mu      sync.Mutex
	rules   []string
	// operation is the id of calls, if set.
	operation string
	// boot is the host's, "boot-1" unless set.
	boot string
	// silence is what recording a rule returns.
	silence error
	*Switcher
}

func newWorld(t testing.TB, running ...string) *world {
	t.Helper()
	w := &world{t: t, host: newHost(t, running...), dir: memory(t), hub: &progress.Hub{}}
	w.store = openStore(t, w.dir)
	w.journal = &journal{Journal: w.store}
	w.restart()
	return w
}

// memory is a folder that is quick to write to: what a process leaves there is there for the next one, and no test cuts the power.
func memory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "durward-mode-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// emptyStore is the files of a store that was opened once: its schema is made and sealed.
var emptyStore = sync.OnceValues(func() (map[string][]byte, error) {
	dir, err := os.MkdirTemp("", "durward-mode-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s, err := store.Open(context.Background(), dir)
	if err != nil {
		return nil, err
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, name := range []string{store.File, database.KeyFile} {
		if files[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	return files, nil
})

func openStore(t testing.TB, dir string) *store.Store {
	t.Helper()
	files, err := emptyStore()
	must(t, err)
	if _, err := os.Lstat(filepath.Join(dir, store.File)); errors.Is(err, os.ErrNotExist) {
		for name, content := range files {
			must(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
		}
	}
	s, err := store.Open(context.Background(), dir)
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// restart is a new executor on the same host and the same disk. Nothing of the old one is left but that.
func (w *world) restart() {
	if w.Switcher != nil {
		w.Stop()
	}
	w.leases = &lease.Leases{}
	w.Switcher = New(Config{
		Catalog: func() *catalog.Catalog {
			w.host.mu.Lock()
			defer w.host.mu.Unlock()
			return w.host.c
		},
		Services: w.host, GPUs: w.host, Requirements: Declared{}, Leases: w.leases, Journal: w.journal, Margin: margin, Hub: w.hub, Proceed: w.proceed,
		Rule: func(_ context.Context, what string, s *catalog.Service, stage service.Stage, err error) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.silence != nil {
				return w.silence
			}
			if stage == service.Outcome {
				what = "after " + what
			}
			w.rules = append(w.rules, fmt.Sprintf("%s %s %v", what, s.ID, err))
			return nil
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	w.patience, w.interval, w.leasePatience, w.unseenPatience = 20*time.Millisecond, time.Millisecond, 20*time.Millisecond, 5*time.Millisecond
	w.bootPatience = 20 * time.Millisecond
	w.bootID = func() (string, error) { return cmp.Or(w.boot, "boot-1"), nil }
	w.planner.Available = func() (uint32, bool) { return 0, false }
}

func (w *world) proceed(begin func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.halted {
		return fault.New(callv1.Code_CODE_HALTED, "halted")
	}
	begin()
	return nil
}

func (w *world) halt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.halted = true
}

// consent is a human's.
func (w *world) consent() Consent {
	later := func(_ context.Context, begin func()) error { return w.proceed(begin) }
	return Consent{First: later, Later: later, Operation: cmp.Or(w.operation, "0123456789abcdef0123456789abcdef")}
}

// to simulates and switches.
func (w *world) to(id string) (*Result, error) {
	w.t.Helper()
	plan, err := w.Simulate(context.Background(), Request{Mode: id})
	must(w.t, err)
	digest := plan.Digest
	if digest == "" {
		digest = strings.Repeat("0", 64)
	}
	return w.Switch(context.Background(), id, digest, nil, w.consent())
}

// must is to for a switch that is begun.
func (w *world) must(id string) *Result {
	w.t.Helper()
	out, err := w.to(id)
	if err != nil {
		w.t.Fatalf("switch to %s: %v (%v)", id, err, fault.From(err).Cause)
	}
	return out
}

// journal is the real one, whose writes a test can make fail, or kill the process around.
type journal struct {
	Journal
	mu     sync.Mutex
	writes int
	// killBefore and killAfter are the numbers of writes; 0: none. failAt makes one fail.
	killBefore, killAfter, failAt int
	// full: every write fails from failAt on. torn: the one that fails is on disk all the same.
	full, torn bool
}

func (j *journal) write(f func() error) error {
	j.mu.Lock()
	j.writes++
	n := j.writes
	before, after, fails := j.killBefore == n, j.killAfter == n, j.failAt == n || j.full && n > j.failAt
	torn := j.torn
	j.mu.Unlock()
	if before {
		runtime.Goexit()
	}
	if fails {
		if torn {
			return errors.Join(errors.New("the disk is full"), f())
		}
		return errors.New("the disk is full")
	}
	err := f()
	if after {
		runtime.Goexit()
	}
	return err
}

func (j *journal) reset(before, after, fails int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.writes, j.killBefore, j.killAfter, j.failAt = 0, before, after, fails
}

func (j *journal) BeginSwitch(ctx context.Context, w *store.Switch) (id int64, err error) {
	err = j.write(func() error {
		id, err = j.Journal.BeginSwitch(ctx, w)
		return err
	})
	return id, err
}

func (j *journal) NoteSteps(ctx context.Context, id int64, ended, next *store.Step) error {
	return j.write(func() error { return j.Journal.NoteSteps(ctx, id, ended, next) })
}

func (j *journal) EndSwitch(ctx context.Context, id int64, last *store.Step, at time.Time, e *store.Ending) error {
	return j.write(func() error { return j.Journal.EndSwitch(ctx, id, last, at, e) })
}

// survives runs f, which may be killed, and reports whether it was. Who is killed recovers from nothing.
func survives(f func()) (dead bool) {
	ended := make(chan struct{})
	dead = true
	go func() {
		defer close(ended)
		f()
		dead = false
	}()
	<-ended
	return dead
}

// Recover is what an executor does with an interrupted switch, without serving meanwhile.
func (w *world) Recover(ctx context.Context) error {
	found, err := w.Interrupted(ctx)
	if err != nil || found == nil {
		return err
	}
	if !found.Undo(ctx) {
		return errors.New("it has not ended")
	}
	return nil
}

// sound checks what must hold after a switch, whatever went wrong: the host is in the old set, in the new one, or the switch says
// that it is in neither and names what is missing; nothing is left open in the journal; and no GPU was overfull at any time.
func (w *world) sound(what string, before, after []string) {
	w.t.Helper()
	ctx := context.Background()
	if open, err := w.store.OpenSwitch(ctx); err != nil || open != nil {
		w.t.Errorf("%s: the journal holds an open switch: %v, %v", what, open, err)
	}
	known, err := w.History(ctx, 1)
	must(w.t, err)
	now := w.host.set()
	w.host.mu.Lock()
	over, busy := w.host.over, w.host.most
	w.host.mu.Unlock()
	if over {
		w.t.Errorf("%s: a GPU held more than it has", what)
	}
	if busy > 1 {
		w.t.Errorf("%s: %d changes at once", what, busy)
	}
	if len(known) == 0 {
		if !slices.Equal(now, before) {
			w.t.Errorf("%s: no switch was begun, and %v became %v", what, before, now)
		}
		return
	}
	last := known[0]
	switch last.Outcome {
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED:
		// One that would not sleep is stopped instead.
		if !slices.Equal(now, after) && !slices.Equal(now, slices.DeleteFunc(slices.Clone(after), sleeper)) {
			w.t.Errorf("%s: committed, and the host has %v, want %v", what, now, after)
		}
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK:
		if !slices.Equal(now, before) {
			w.t.Errorf("%s: rolled back, and the host has %v, want %v", what, now, before)
		}
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED:
		// What is missing of the old set is named, and nothing of the new set is there that was not before.
		for _, id := range now {
			if name, _, _ := strings.Cut(id, ":"); !slices.Contains(before, id) && !slices.Contains(before, name) {
				w.t.Errorf("%s: degraded, and %s is there, which was not before", what, id)
			}
		}
		for _, id := range before {
			name, _, _ := strings.Cut(id, ":")
			if slices.Contains(now, id) == slices.Contains(last.NotRunning, name) {
				w.t.Errorf("%s: degraded, not running %v, and the host has %v of %v", what, last.NotRunning, now, before)
			}
		}
		if len(last.NotRunning) == 0 {
			w.t.Errorf("%s: degraded, and nothing is missing", what)
		}
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN:
		if last.Cause == "" {
			w.t.Errorf("%s: needs a human for no reason", what)
		}
	default:
		w.t.Errorf("%s: the switch has no outcome", what)
	}
	if last.Outcome != executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED && last.Cause == "" {
		w.t.Errorf("%s: %s without a cause", what, OutcomeName(last.Outcome))
	}
}

func sleeper(id string) bool { return strings.HasSuffix(id, ":asleep") }

// keys are a map's, sorted.
func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
