package service

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// pair is a manager of two services on one GPU, of which chat depends on base.
func pair(t *testing.T) (m *Manager, chat, base *catalog.Service, p *program) {
	t.Helper()
	c, err := catalog.Parse("c.yaml", []byte(`version: 1
gpus: [{index: 0, name: S, memory_mib: 1000, simulated: true}]
services:
  - {id: base, driver: process, argv: [/usr/bin/true], port: 17998, gpus: [0], vram_mib: 100}
  - {id: chat, driver: process, argv: [/usr/bin/true], port: 17999, gpus: [0], vram_mib: 100, depends_on: [base]}
`), catalog.Options{Development: true})
	must(t, err)
	p = &program{after: driver.Running}
	m, _ = manager(t, p, &answers{}, 0)
	m.cfg.Catalog = func() *catalog.Catalog { return c }
	base, _ = c.Lookup("base")
	chat, _ = c.Lookup("chat")
	return m, chat, base, p
}

func TestAStartPassesAdmission(t *testing.T) {
	m, chat, base, p := pair(t)
	_, err := m.Start(t.Context(), chat)
	wantFault(t, err, callv1.Code_CODE_CONFLICT, "chat was not started: it depends on base, which does not run")
	no := fault.New(callv1.Code_CODE_DOES_NOT_FIT, "too big")
	asked := 0
	m.cfg.Admit = func(context.Context, *catalog.Service) error { asked++; return no }
	if _, err := m.Start(t.Context(), base); !errors.Is(err, error(no)) {
		t.Errorf("it does not fit, and yet: %v", err)
	}
	if starts, _ := p.count(); starts != 0 || m.Status(base).State != executorv1.ServiceState_SERVICE_STATE_STOPPED || len(m.Claims()) != 0 {
		t.Errorf("%d starts, %v, %v", starts, m.Status(base), m.Claims())
	}
	// What runs already is not admitted again: it would be in its own way.
	p.set(driver.Status{State: driver.Running})
	if changed, err := m.Start(t.Context(), base); changed || err != nil || asked != 1 {
		t.Errorf("running: %v, %v, asked %d times", changed, err, asked)
	}
}

// TestLeases: loads on one GPU follow each other; a switch keeps everything else out, and single changes keep a switch out.
func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, base, p := pair(t)
		release, err := m.cfg.Leases.Loading(base)
		must(t, err)
		go func() {
			time.Sleep(10 * time.Second)
			release()
		}()
		began := time.Now()
		if changed, err := m.Start(t.Context(), base); !changed || err != nil || time.Since(began) < 10*time.Second {
			t.Errorf("%v, %v after %s", changed, err, time.Since(began))
		}
		if release, err = m.cfg.Leases.Loading(base); err != nil {
			t.Fatalf("the lease was not given back: %v", err)
		}
		p.set(driver.Status{})
		began = time.Now()
		_, err = m.Start(t.Context(), base)
		wantFault(t, err, callv1.Code_CODE_CONFLICT, "nothing was done to base: another service is being started on one of its GPUs")
		if waited := time.Since(began); waited != base.StartTimeout() {
			t.Errorf("it waited %s", waited)
		}
		release()
		if release, err = m.cfg.Leases.Host(); err != nil {
			t.Fatal(err)
		}
		for name, act := range map[string]func(context.Context, *catalog.Service) (bool, error){
			"start": m.Start, "stop": m.Stop, "sleep": m.SleepService, "wake": m.WakeService,
		} {
			_, err := act(t.Context(), base)
			if f := fault.From(err); err == nil || f.Code != callv1.Code_CODE_CONFLICT || f.Message != "nothing was done to base: a switch of modes is going on" {
				t.Errorf("%s: %v", name, err)
			}
		}
		// The switch itself acts without them.
		if changed, err := m.StartLocked(t.Context(), base, Act{Confirm: willing}); !changed || err != nil {
			t.Errorf("raise: %v, %v", changed, err)
		}
		if changed, err := m.StopLocked(t.Context(), base, Act{Confirm: willing}); !changed || err != nil {
			t.Errorf("lower: %v, %v", changed, err)
		}
		release()
	})
}

func TestDependents(t *testing.T) {
	m, chat, base, p := pair(t)
	if got := m.Dependents(base); len(got) != 0 {
		t.Errorf("nothing runs: %v", got)
	}
	p.set(driver.Status{State: driver.Running})
	if got := m.Dependents(base); !cmp.Equal(got, []string{"chat"}) {
		t.Errorf("of base: %v", got)
	}
	if got := m.Dependents(chat); len(got) != 0 {
		t.Errorf("of chat: %v", got)
	}
}

func TestPhasesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSleeper(t)
		w.model.warmFor = time.Second
		var hub progress.Hub
		ctx, end := hub.Open(t.Context(), "one")
		if _, err := w.Start(ctx, w.s); err != nil {
			t.Fatal(err)
		}
		end()
		var steps []progress.Step
		if err := hub.Watch(t.Context(), "one", func(s progress.Step) error { steps = append(steps, s); return nil }); err != nil {
			t.Fatal(err)
		}
		want := []progress.Step{
			{Number: 1, Of: 3, Phase: progress.PhaseStart, Service: "chat", Ended: true},
			{Number: 2, Of: 3, Phase: progress.PhaseReady, Service: "chat", Ended: true},
			{Number: 3, Of: 3, Phase: progress.PhaseWarm, Service: "chat", Ended: true, Elapsed: time.Second},
		}
		if diff := cmp.Diff(want, steps); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		w.model.lies = true
		var phases []string
		said := func(phase string) { phases = append(phases, phase) }
		_, err := w.Sleep(t.Context(), w.s, Act{Confirm: willing, Phase: said})
		if Cause(err) != driver.CauseStillHeld || !cmp.Equal(phases, []string{progress.PhaseSleep, progress.PhaseVerify}) {
			t.Errorf("%v, %v", err, phases)
		}
		for _, want := range [][]string{{progress.PhaseStop}, nil} { // what does not run is not said to be stopping
			phases = nil
			changed, err := w.StopLocked(t.Context(), w.s, Act{Confirm: willing, Phase: said})
			if err != nil || changed != (want != nil) || !cmp.Equal(phases, want) {
				t.Errorf("%v, changed %t, %q, want %q", err, changed, phases, want)
			}
		}
	})
}

// TestACatalogThatWouldOrphanIsRefused: what runs must stay what it is, and of a driver that there is.
func TestACatalogThatWouldOrphanIsRefused(t *testing.T) {
	parse := func(text string) *catalog.Catalog {
		t.Helper()
		c, err := catalog.Parse("c.yaml", []byte("version: 1\nservices:\n"+text), catalog.Options{Development: true})
		must(t, err)
		return c
	}
	const instance = "  - {id: chat, driver: systemd, unit: %s.service, port: 17999}\n"
	as := func(name string) string { return strings.Replace(instance, "%s", name, 1) }
	for name, c := range map[string]struct {
		next  string
		state driver.State
		says  string
	}{
		"gone while it runs":         {"  - {id: other, driver: \"null\"}\n", driver.Running, "cannot be removed; stop it first"},
		"gone while it is unknown":   {"  - {id: other, driver: \"null\"}\n", driver.Unknown, "may run, since its manager (systemd or Docker) does not answer, and cannot be removed; see to its manager, or restart the executor"},
		"another unit":               {as("b"), driver.Running, "cannot become another"},
		"another driver":             {"  - {id: chat, driver: \"null\"}\n", driver.Running, "cannot become another"},
		"a driver that there is not": {as("a") + "  - {id: box, driver: docker, container: {image: \"a@sha256:" + strings.Repeat("0", 64) + "\", user: \"1000\"}}\n", driver.Stopped, "does not give it"},
		"gone":                       {"  - {id: other, driver: \"null\"}\n", driver.Stopped, ""},
		"the same":                   {as("a"), driver.Running, ""},
		"another unit, stopped":      {as("b"), driver.Stopped, ""},
	} {
		p := &program{status: driver.Status{State: c.state}}
		m, _ := manager(t, p, &answers{}, 0)
		now := parse(as("a"))
		m.cfg.Catalog = func() *catalog.Catalog { return now }
		m.cfg.Drivers = map[string]func() Driver{"systemd": Is(p), "null": Is(p)}
		if err := m.Accept(parse(c.next)); (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatCannotBeReadCannotBeStarted(t *testing.T) {
	p := &program{definitionErr: driver.ErrUnitMissing}
	m, s := manager(t, p, &answers{}, 0)
	for name, refused := range map[string]bool{
		"start_service": true, "wake_service": true, "stop_service": false, "sleep_service": false, "service_info": false,
	} {
		tool, ok := contract.Lookup(name)
		if !ok {
			t.Fatalf("no tool %s", name)
		}
		subject, err := m.Subject(t.Context(), tool, &executorv1.StartServiceRequest{ServiceId: &s.ID})
		switch {
		case refused != (err != nil):
			t.Errorf("%s: %v", name, err)
		case refused:
			wantFault(t, err, callv1.Code_CODE_FAILED, "chat cannot be started: what it runs is missing or cannot be read")
		case !strings.Contains(string(subject.GetEntry()), `"definition_sha256":"unreadable"`):
			t.Errorf("%s: %s", name, subject.GetEntry())
		}
		if tool.Tier == optionsv1.Tier_TIER_READ && err != nil {
			t.Errorf("a read is refused: %v", err)
		}
	}
	if _, err := m.Logs(t.Context(), s, "", 1); err != nil {
		t.Error(err)
	}
}

// TestADriverThatThereIsNot does nothing and says why.
func TestADriverThatThereIsNot(t *testing.T) {
	m, s := manager(t, &program{}, &answers{}, 0)
	m.cfg.Drivers = nil
	if v := m.Status(s); v.State != executorv1.ServiceState_SERVICE_STATE_STOPPED || v.Cause != driver.CauseNoManager {
		t.Errorf("%+v", v)
	}
	_, err := m.Start(t.Context(), s)
	wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not start: its manager (systemd or Docker) does not answer")
	_, err = m.Stop(t.Context(), s)
	wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not stop: its manager (systemd or Docker) does not answer")
	if _, err := m.Definition(t.Context(), s); !errors.Is(err, driver.ErrNoManager) {
		t.Error(err)
	}
	_, err = m.Logs(t.Context(), s, "", 1)
	wantFault(t, err, callv1.Code_CODE_FAILED, "the log of chat cannot be read")
}

// TestClaims: what runs or may run claims what it declares; what does not, nothing.
func TestClaims(t *testing.T) {
	for state, holds := range map[driver.State]bool{
		driver.Stopped: false, driver.Ended: false, driver.Running: true, driver.Starting: true, driver.Stopping: true, driver.Unknown: true,
	} {
		m, _, _, p := pair(t)
		p.set(driver.Status{State: state, CGroup: "/x", PID: 7})
		claims := m.Claims()
		if (len(claims) == 2) != holds || holds && (claims[0].CGroup != "/x" || claims[0].PID != 7 || claims[0].MiB != 100) {
			t.Errorf("%v: %+v", state, claims)
		}
	}
}

// sized says what each service takes of GPU 0.
type sized struct{ awake, loading, asleep uint32 }

func (z sized) Awake(*catalog.Service) map[uint32]uint32   { return map[uint32]uint32{0: z.awake} }
func (z sized) Loading(*catalog.Service) map[uint32]uint32 { return map[uint32]uint32{0: z.loading} }
func (z sized) Asleep(*catalog.Service) map[uint32]uint32 {
	if z.asleep == 0 {
		return nil
	}
	return map[uint32]uint32{0: z.asleep}
}

// TestClaimsGoByWhatIsKnown, and by what is declared only where nobody knows better.
func TestClaimsGoByWhatIsKnown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		given func(*sleeper)
		sizes capacity.Sizes
		want  map[uint32]uint32
	}{
		"nobody knows":          {func(*sleeper) {}, nil, nil},
		"it runs":               {func(*sleeper) {}, sized{700, 900, 50}, map[uint32]uint32{0: 700}},
		"it starts":             {func(w *sleeper) { w.program.set(driver.Status{State: driver.Starting}) }, sized{700, 900, 50}, map[uint32]uint32{0: 900}},
		"it starts with little": {func(w *sleeper) { w.program.set(driver.Status{State: driver.Starting}) }, sized{700, 600, 50}, map[uint32]uint32{0: 700}},
		"it is being stopped":   {func(w *sleeper) { w.program.set(driver.Status{State: driver.Stopping}) }, sized{700, 900, 50}, map[uint32]uint32{0: 700}},
		"it sleeps":             {func(w *sleeper) { w.instance(w.s.ID).asleep = true }, sized{700, 900, 50}, map[uint32]uint32{0: 50}},
		"it sleeps on nothing":  {func(w *sleeper) { w.instance(w.s.ID).asleep = true }, sized{700, 900, 0}, map[uint32]uint32{}},
	} {
		w := newSleeper(t).up()
		w.cfg.Sizes = c.sizes
		c.given(w)
		if got := w.Claims(); len(got) != 1 || !maps.Equal(got[0].On, c.want) || (got[0].On == nil) != (c.want == nil) {
			t.Errorf("%s: it claims %+v", name, got)
		}
	}
}

// TestOneServiceAPortAtATime: services may share a port; whichever holds it keeps the other from being started.
func TestOneServiceAPortAtATime(t *testing.T) {
	m, chat, base, p := pair(t)
	chat.Port, chat.DependsOn = base.Port, nil
	p.set(driver.Status{State: driver.Running})
	_, err := m.Start(t.Context(), base)
	must(t, err)
	wantFault(t, m.Admissible(t.Context(), chat), callv1.Code_CODE_CONFLICT, "chat was not started: its port, 17998, is that of base, which is not stopped")
}
