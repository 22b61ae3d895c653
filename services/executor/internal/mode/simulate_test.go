package mode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/plan"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/vram"
)

// book is one whose numbers a test sets; what it does not set is declared.
type book struct {
	Declared
	awake       map[string]memreq.Need
	loading     map[string]map[uint32]uint32
	perToken    map[string]float64
	hostAsleep  map[string]uint32
	hostLoading map[string]uint32
}

func (b *book) Awake(s *catalog.Service) memreq.Need {
	if n, ok := b.awake[s.ID]; ok {
		return n
	}
	return b.Declared.Awake(s)
}

func (b *book) Loading(s *catalog.Service) memreq.Need {
	if n, ok := b.loading[s.ID]; ok {
		return memreq.Need{PerGPU: n, Source: vram.Measured}
	}
	return b.Awake(s)
}

// AwakeAt takes that much more or less for each token, in MiB, on the service's GPUs together.
func (b *book) AwakeAt(s *catalog.Service, tokens uint32) (memreq.Need, error) {
	each, ok := b.perToken[s.ID]
	if !ok {
		return memreq.Need{}, errors.New("no card")
	}
	now := b.Awake(s)
	then := memreq.Need{PerGPU: map[uint32]uint32{}, Source: vram.Estimated, Context: tokens}
	for index, mib := range now.PerGPU {
		then.PerGPU[index] = uint32(float64(mib) + (float64(tokens)-float64(now.Context))*each/float64(len(now.PerGPU)))
	}
	return then, nil
}

func (b *book) HostAsleep(s *catalog.Service) uint32  { return b.hostAsleep[s.ID] }
func (b *book) HostLoading(s *catalog.Service) uint32 { return b.hostLoading[s.ID] }

// with gives the world a book.
func (w *world) with(b *book) *world {
	w.planner.Requirements = b
	return w
}

// has makes the host's memory tell what it has to give.
func (w *world) has(mib uint32) *world {
	w.planner.Available = func() (uint32, bool) { return mib, true }
	return w
}

func words(steps []Step) []string {
	var out []string
	for _, st := range steps {
		out = append(out, plan.ActionName(st.Action)+" "+st.Service)
	}
	return out
}

// said is an alternative in words: "sleep chat; keep legacy".
func said(a Alternative) string {
	var out []string
	for _, c := range a.Changes {
		kind := strings.ToLower(strings.TrimPrefix(c.Kind.String(), "CHANGE_KIND_"))
		line := kind + " " + c.Service
		if c.To != "" {
			line += " " + c.From + ">" + c.To
		}
		out = append(out, line)
	}
	return strings.Join(out, "; ")
}

func saidAll(all []Alternative) []string {
	var out []string
	for _, a := range all {
		out = append(out, said(a))
	}
	return out
}

func (w *world) simulate(r Request) *Simulation {
	w.t.Helper()
	out, err := w.Simulate(w.t.Context(), r)
	if err != nil {
		w.t.Fatalf("simulated %+v: %v", r, err)
	}
	return out
}

func TestASimulationWithoutAMode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		running []string
		request Request
		steps   []string
		fits    bool
		next    string
		needs   []string
	}{
		"nothing is asked": {[]string{"chat", "legacy:asleep"}, Request{}, nil, true, "", []string{"chat"}},
		"a start": {[]string{"chat"}, Request{Start: []string{"embed"}}, []string{"start embed"}, true, "start_service embed",
			[]string{"embed", "chat"}},
		"a start of what runs": {[]string{"chat"}, Request{Start: []string{"chat"}}, nil, true, "", []string{"chat"}},
		"a start of what runs without answering": {[]string{"chat:unhealthy"}, Request{Start: []string{"chat"}}, nil, true, "",
			[]string{"chat"}},
		"a start with what it depends on": {nil, Request{Start: []string{"tools"}}, []string{"start code", "start tools"}, true,
			"start_service code", []string{"code", "tools"}},
		"a start of what sleeps": {[]string{"chat:asleep"}, Request{Start: []string{"chat"}}, []string{"wake chat"}, true,
			"wake_service chat", []string{"chat"}},
		"a start without room": {[]string{"chat"}, Request{Start: []string{"code"}}, []string{"start code"}, false, "",
			[]string{"code", "chat"}},
		"a stop": {[]string{"chat", "legacy"}, Request{Stop: []string{"chat"}}, []string{"stop chat"}, true, "stop_service chat",
			[]string{"legacy"}},
		"a stop of what sleeps":     {[]string{"chat:asleep"}, Request{Stop: []string{"chat"}}, []string{"stop chat"}, true, "stop_service chat", nil},
		"a stop of what is stopped": {nil, Request{Stop: []string{"chat"}}, nil, true, "", nil},
		"a stop of what is pinned":  {[]string{"watch"}, Request{Stop: []string{"watch"}}, []string{"stop watch"}, true, "stop_service watch", nil},
		"a stop that makes room": {[]string{"chat", "legacy"}, Request{Start: []string{"tools"}, Stop: []string{"chat"}},
			[]string{"stop chat", "start code", "start tools"}, true, "stop_service chat", []string{"code", "tools", "legacy"}},
		"a stop of what depends and of what it depends on": {[]string{"code", "tools"}, Request{Stop: []string{"code", "tools"}},
			[]string{"stop tools", "stop code"}, true, "stop_service tools", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.running...)
			got := w.simulate(c.request)
			if diff := cmp.Diff(c.steps, words(got.Steps)); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			next := ""
			if got.Next != nil {
				next = got.Next.Tool + " " + got.Next.Arguments["service_id"]
			}
			if got.Fits != c.fits || next != c.next || got.Digest != "" || (got.Reason == "") != c.fits || got.Mode != "" {
				t.Errorf("simulated: %+v, next %q", got, next)
			}
			var needs []string
			for _, n := range got.Needs {
				needs = append(needs, n.Service)
			}
			if diff := cmp.Diff(c.needs, needs); diff != "" {
				t.Errorf("needs (-want +got):\n%s", diff)
			}
			if len(w.did()) != 0 {
				t.Errorf("and yet: %v", w.did())
			}
		})
	}
}

func TestAModeWithAStartAndAStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "chat", "legacy")
	got := w.simulate(Request{Mode: "work", Start: []string{"legacy"}, Stop: []string{"embed", "chat"}})
	// What is told to stop does not merely sleep.
	if diff := cmp.Diff([]string{"stop chat", "start code", "start tools"}, words(got.Steps)); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if !got.Fits || got.Digest != "" || got.Next != nil {
		t.Errorf("what no mode is can be switched to: %+v", got)
	}
}

func TestARequestThatContradictsItself(t *testing.T) {
	t.Parallel()
	cards := &book{perToken: map[string]float64{"chat": 0.1}, awake: map[string]memreq.Need{
		"chat": {PerGPU: map[uint32]uint32{0: 16000}, Source: vram.Declared, Context: 32768},
	}}
	for name, c := range map[string]struct {
		request Request
		code    callv1.Code
		says    string
		field   string
		offers  []string
	}{
		"no such mode":    {Request{Mode: "tal"}, callv1.Code_CODE_NOT_FOUND, "no mode has that id", "mode_id", []string{"talk"}},
		"no such start":   {Request{Start: []string{"cht"}}, callv1.Code_CODE_NOT_FOUND, "no service has that id", "start", []string{"chat"}},
		"no such stop":    {Request{Stop: []string{"legasy"}}, callv1.Code_CODE_NOT_FOUND, "no service has that id", "stop", []string{"legacy"}},
		"no such context": {Request{Contexts: map[string]uint32{"cht": 1}}, callv1.Code_CODE_NOT_FOUND, "no service has that id", "context_overrides", []string{"chat"}},
		"both": {Request{Start: []string{"chat"}, Stop: []string{"chat"}}, callv1.Code_CODE_INVALID_ARGUMENT,
			"chat cannot be both started and stopped", "stop", nil},
		"a stop of what a start depends on": {Request{Start: []string{"tools"}, Stop: []string{"code"}}, callv1.Code_CODE_INVALID_ARGUMENT,
			"code cannot be stopped: tools runs and depends on it", "stop", nil},
		"a stop of what a mode depends on": {Request{Mode: "work", Stop: []string{"code"}}, callv1.Code_CODE_INVALID_ARGUMENT,
			"code cannot be stopped: tools runs and depends on it", "stop", nil},
		"a stop of what something that runs depends on": {Request{Stop: []string{"legacy"}}, callv1.Code_CODE_INVALID_ARGUMENT,
			"legacy cannot be stopped: watch runs and depends on it", "stop", nil},
		"a stop of what a pinned one depends on": {Request{Mode: "talk", Stop: []string{"legacy"}}, callv1.Code_CODE_INVALID_ARGUMENT,
			"legacy cannot be stopped: watch runs and depends on it", "stop", nil},
		"a context of what does not run": {Request{Contexts: map[string]uint32{"code": 8192}}, callv1.Code_CODE_INVALID_ARGUMENT,
			"code is not among what would run", "context_overrides", nil},
		"a context of what is stopped": {Request{Stop: []string{"chat"}, Contexts: map[string]uint32{"chat": 8192}}, callv1.Code_CODE_INVALID_ARGUMENT,
			"chat is not among what would run", "context_overrides", nil},
		"a context of what has no card": {Request{Mode: "talk", Contexts: map[string]uint32{"embed": 8192}}, callv1.Code_CODE_INVALID_ARGUMENT,
			"what embed would need with another context cannot be told", "context_overrides", nil},
		"a margin below the limit": {Request{Mode: "talk", Margin: proto.Uint32(margin - 1)}, callv1.Code_CODE_INVALID_ARGUMENT,
			"the margin cannot be lower", "margin_mib_override", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "chat", "legacy", "watch").with(cards)
			w.host.c = parse(t, strings.Replace(catalogText, "pin: true}", "pin: true, depends_on: [legacy]}", 1))
			_, err := w.Simulate(t.Context(), c.request)
			wantFault(t, err, c.code, c.says)
			if f := fault.From(err); f.Field != c.field || !slices.Equal(f.DidYouMean, c.offers) {
				t.Errorf("it names %q and offers %q", f.Field, f.DidYouMean)
			}
		})
	}
}

func TestAnotherContext(t *testing.T) {
	t.Parallel()
	b := &book{perToken: map[string]float64{"chat": 0.25}, awake: map[string]memreq.Need{
		"chat": {PerGPU: map[uint32]uint32{0: 16000}, Source: vram.Measured, Context: 16384},
	}}
	for name, c := range map[string]struct {
		running []string
		tokens  uint32
		need    uint32
		fits    bool
		steps   []string
	}{
		"more, and it fits":             {nil, 32768, 20096, true, []string{"start chat", "start embed"}},
		"more, and it does not":         {nil, 65536, 28288, false, []string{"start chat", "start embed"}},
		"less":                          {nil, 4096, 12928, true, []string{"start chat", "start embed"}},
		"one that runs is restarted":    {[]string{"chat"}, 32768, 20096, true, []string{"stop chat", "start chat", "start embed"}},
		"one that sleeps is as well":    {[]string{"chat:asleep"}, 32768, 20096, true, []string{"stop chat", "start chat", "start embed"}},
		"what it has already":           {[]string{"chat"}, 16384, 16000, true, []string{"start embed"}},
		"one that runs, and no room":    {[]string{"chat"}, 65536, 28288, false, []string{"stop chat", "start chat", "start embed"}},
		"what one that sleeps has":      {[]string{"chat:asleep"}, 16384, 16000, true, []string{"wake chat", "start embed"}},
		"beside one that holds another": {[]string{"legacy"}, 32768, 20096, true, []string{"stop legacy", "start chat", "start embed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.running...).with(b)
			got := w.simulate(Request{Mode: "talk", Contexts: map[string]uint32{"chat": c.tokens}, Alternatives: 10})
			n := got.Needs[0]
			if got.Fits != c.fits || got.Digest != "" || got.Next != nil || n.Service != "chat" || n.MiB != c.need || n.Context != c.tokens {
				t.Errorf("simulated: %+v", got)
			}
			if diff := cmp.Diff(c.steps, words(got.Steps)); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			for _, a := range got.Alternatives {
				if a.Digest != "" {
					t.Errorf("%s can be switched to, and takes another catalogue", said(a))
				}
				for _, change := range a.Changes {
					if change.Kind == changeContext && change.From != fmt.Sprint(c.tokens) {
						t.Errorf("%s does not start at the override", said(a))
					}
				}
			}
		})
	}
}

// alternatives are of chat (16000 of 24576, keeps 1000 in its sleep) and what else runs.
func TestAlternatives(t *testing.T) {
	t.Parallel()
	contexts := &book{perToken: map[string]float64{"code": 0.25}, awake: map[string]memreq.Need{
		"code": {PerGPU: map[uint32]uint32{0: 20000}, Source: vram.Declared, Context: 65536},
	}}
	for name, c := range map[string]struct {
		running []string
		request Request
		bend    func(*world)
		want    []string
	}{
		"the plan ends what is in nobody's way": {[]string{"legacy"}, Request{Mode: "talk"}, nil, []string{"keep legacy"}},
		"the plan's own way is no alternative":  {[]string{"chat"}, Request{Mode: "work"}, nil, []string{"gpu code 0>1; keep chat", "stop chat"}},
		"only what is in the way goes": {[]string{"chat", "legacy"}, Request{Mode: "work"}, nil,
			[]string{"sleep chat; keep legacy", "stop chat; keep legacy", "stop legacy; gpu code 0>1; keep chat"}},
		"a smaller context": {[]string{"chat", "legacy"}, Request{Mode: "work"}, func(w *world) { w.with(contexts) },
			[]string{"sleep chat; keep legacy", "context code 65536>16384; keep chat; keep legacy", "stop chat; keep legacy",
				"stop legacy; gpu code 0>1; keep chat"}},
		"none fits":                              {nil, Request{Mode: "huge"}, func(w *world) { w.host.foreign[0] = 9000 }, nil},
		"a pinned service stays":                 {[]string{"watch"}, Request{Mode: "huge"}, nil, nil},
		"without a mode, one that fits has none": {[]string{"legacy"}, Request{Start: []string{"embed"}}, nil, nil},
		"without a mode": {[]string{"chat", "legacy"}, Request{Start: []string{"code"}}, nil,
			[]string{"sleep chat", "stop chat", "stop legacy; gpu code 0>1"}},
		"without a mode, pinned": {[]string{"watch", "legacy"}, Request{Start: []string{"big"}}, nil, []string{"stop legacy"}},
		"who stays keeps what it depends on": {[]string{"tools", "code"}, Request{Mode: "talk"}, nil,
			[]string{"gpu chat 0>1; keep tools; keep code"}},
		"who goes lets go of it": {[]string{"tools", "code"}, Request{Start: []string{"big"}}, func(w *world) {
			w.host.c = parse(w.t, strings.Replace(catalogText, "vram_mib: 47000", "vram_mib: 44000", 1))
		}, []string{"stop tools; stop code"}},
		"one that sleeps goes for its rest": {[]string{"chat:asleep"}, Request{Start: []string{"big"}}, nil, []string{"stop chat"}},
		"residence": {[]string{"legacy", "chat"}, Request{Mode: "work"}, func(w *world) {
			s, _ := w.host.c.Lookup("legacy")
			s.MinResidenceS, w.host.since["legacy"] = 600, time.Now()
		}, []string{"sleep chat; keep legacy", "stop chat; keep legacy"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.running...)
			if c.bend != nil {
				c.bend(w)
			}
			c.request.Alternatives = 10
			got := w.simulate(c.request)
			if diff := cmp.Diff(c.want, saidAll(got.Alternatives)); diff != "" || got.CutOff {
				t.Errorf("alternatives (-want +got), cut off %v:\n%s", got.CutOff, diff)
			}
			for n := range 10 {
				c.request.Alternatives = n
				fewer := w.simulate(c.request)
				if diff := cmp.Diff(got.Alternatives[:min(n, len(got.Alternatives))], fewer.Alternatives); diff != "" && n > 0 || len(fewer.Alternatives) > n {
					t.Errorf("%d alternatives are others:\n%s", n, diff)
				}
			}
			if len(w.did()) != 0 {
				t.Errorf("and yet: %v", w.did())
			}
		})
	}
}

// TestWhatIsRestartedKeepsWhatItNeeds: a what-if of a service that runs takes nothing away that it depends on.
func TestWhatIsRestartedKeepsWhatItNeeds(t *testing.T) {
	t.Parallel()
	for _, depends := range []bool{false, true} {
		w := newWorld(t, "chat", "legacy").with(&book{perToken: map[string]float64{"legacy": 0.5}, awake: map[string]memreq.Need{
			"legacy": {PerGPU: map[uint32]uint32{1: 6000}, Source: vram.Declared, Context: 4096},
		}})
		w.host.foreign[1] = 5000
		if depends {
			w.host.c = parse(t, strings.Replace(catalogText, "vram_mib: 6000}", "vram_mib: 6000, depends_on: [chat]}", 1))
		}
		got := w.simulate(Request{Contexts: map[string]uint32{"legacy": 36864}, Alternatives: 10})
		all := saidAll(got.Alternatives)
		if got.Fits || slices.Contains(all, "sleep chat; gpu legacy 1>0") == depends || !slices.Contains(all, "context legacy 36864>18432") {
			t.Errorf("depends %v: %v, %q", depends, got.Fits, all)
		}
	}
}

// TestAlternativesAreCarriedOut: what an alternative promises is what a switch with its digest does, and nothing is kept or ended that
// it does not say.
func TestAlternativesAreCarriedOut(t *testing.T) {
	t.Parallel()
	for _, trip := range trips {
		t.Run(trip.name, func(t *testing.T) {
			t.Parallel()
			all := newWorld(t, trip.running...).simulate(Request{Mode: trip.to, Alternatives: 10}).Alternatives
			for i, a := range all {
				if a.Digest == "" {
					continue
				}
				w := newWorld(t, trip.running...)
				before := w.host.set()
				again := w.simulate(Request{Mode: trip.to, Alternatives: 10}).Alternatives
				if again[i].Digest != a.Digest {
					t.Fatalf("%s has another digest each time", said(a))
				}
				out, err := w.Switch(t.Context(), trip.to, a.Digest, nil, w.consent())
				if err != nil || out.Outcome != committed {
					t.Fatalf("%s: %+v, %v", said(a), out, err)
				}
				m, _ := w.host.c.Mode(trip.to)
				after := map[string]bool{}
				for _, one := range plan.Members(w.host.c, m) {
					after[one.ID] = true
				}
				for _, id := range before {
					name, _, _ := strings.Cut(id, ":")
					if after[name] {
						continue
					}
					switch {
					case slices.ContainsFunc(a.Changes, func(c Change) bool { return c.Service == name && c.Kind == changeStop }):
					case slices.ContainsFunc(a.Changes, func(c Change) bool { return c.Service == name && c.Kind == changeSleep }):
						after[name+":asleep"] = true
					default:
						after[id] = true
					}
				}
				if diff := cmp.Diff(keys(after), w.host.set()); diff != "" || w.Current() != trip.to {
					t.Errorf("%s: the host has (-want +got), in mode %q:\n%s", said(a), w.Current(), diff)
				}
				w.sound(said(a), before, keys(after))
			}
		})
	}
}

// TestTheDigestOfAnAlternative: it is as good as a plan's, for that mode, at that moment, and for nothing else.
func TestTheDigestOfAnAlternative(t *testing.T) {
	t.Parallel()
	running := []string{"chat", "legacy"}
	find := func(w *world, mode string) Alternative {
		w.t.Helper()
		for _, a := range w.simulate(Request{Mode: mode, Alternatives: 10}).Alternatives {
			if said(a) == "sleep chat; keep legacy" {
				return a
			}
		}
		w.t.Fatal("chat cannot sleep alone")
		return Alternative{}
	}
	w := newWorld(t, running...)
	a := find(w, "work")
	plan := w.simulate(Request{Mode: "work"})
	if len(a.Digest) != 64 || a.Digest == plan.Digest {
		t.Fatalf("its digest is %q", a.Digest)
	}
	request := &executorv1.SwitchModeRequest{ModeId: proto.String("work"), PlanDigest: &a.Digest}
	subject, err := w.Subject(t.Context(), request)
	must(t, err)
	var form planSubject
	must(t, canonical.Unmarshal(subject.GetEntry(), &form))
	if !slices.Equal(form.Keeps, []string{"legacy"}) || len(form.Steps) != 4 || form.Steps[0].Action != "sleep" {
		t.Errorf("the subject is %s", subject.GetEntry())
	}
	preview, err := w.Preview(t.Context(), request)
	must(t, err)
	if !slices.Contains(preview.Lines, "left as it is though the mode does not name it: legacy") ||
		preview.Lines[0] != "1. sleep chat: requests in flight end with it" || len(preview.Entries) != 4 {
		t.Errorf("preview: %+v", preview)
	}

	for name, c := range map[string]struct {
		to   string
		bend func(*world)
		code callv1.Code
		says string
	}{
		"another mode's":              {"talk", nil, callv1.Code_CODE_PLAN_CHANGED, "nothing was done"},
		"there is no room for it now": {"work", func(w *world) { w.host.foreign[1] = 16000 }, callv1.Code_CODE_PLAN_CHANGED, "nothing was done"},
		"what it keeps has stopped": {"work", func(w *world) {
			w.host.state["legacy"] = executorv1.ServiceState_SERVICE_STATE_STOPPED
		}, callv1.Code_CODE_PLAN_CHANGED, "nothing was done"},
		"what it keeps sleeps nowhere else": {"work", func(w *world) {
			w.host.state["watch"] = executorv1.ServiceState_SERVICE_STATE_RUNNING
			w.host.c = parse(w.t, strings.Replace(catalogText, ", pin: true", "", 1))
		}, callv1.Code_CODE_PLAN_CHANGED, "nothing was done"},
		"what would sleep is pinned by now": {"work", func(w *world) {
			w.host.c = parse(w.t, strings.Replace(catalogText, "sleep_mib: 1000}", "sleep_mib: 1000, pin: true}", 1))
		}, callv1.Code_CODE_PLAN_CHANGED, "nothing was done"},
		"what would sleep may not go yet": {"work", func(w *world) {
			s, _ := w.host.c.Lookup("chat")
			s.MinResidenceS, w.host.since["chat"] = 600, time.Now()
		}, callv1.Code_CODE_CONFLICT, "chat may not be stopped yet"},
		"another program": {"work", func(w *world) { w.host.edits["code"] = "edited" }, callv1.Code_CODE_PLAN_CHANGED, "nothing was done"},
		"something else runs by now": {"work", func(w *world) {
			w.host.state["embed"] = executorv1.ServiceState_SERVICE_STATE_RUNNING
		}, callv1.Code_CODE_PLAN_CHANGED, "nothing was done"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, running...)
			if got := find(w, "work").Digest; got != a.Digest {
				t.Fatalf("the digest is %s before anything changed", got)
			}
			if c.bend != nil {
				c.bend(w)
			}
			_, err := w.Subject(t.Context(), &executorv1.SwitchModeRequest{ModeId: &c.to, PlanDigest: &a.Digest})
			wantFault(t, err, c.code, c.says)
			_, err = w.Switch(t.Context(), c.to, a.Digest, nil, w.consent())
			wantFault(t, err, c.code, c.says)
			if len(w.did()) != 0 {
				t.Errorf("and yet: %v", w.did())
			}
		})
	}
	// The approval of the plan is none of the alternative, and the other way round: who asks for one gets that one.
	out, err := newWorldSwitched(t, running, "work", plan.Digest)
	if err != nil || !slices.Contains(words(out.Done), "stop legacy") {
		t.Errorf("the plan's digest did %v, %v", out, err)
	}
	out, err = newWorldSwitched(t, running, "work", a.Digest)
	if err != nil || slices.Contains(words(out.Done), "stop legacy") {
		t.Errorf("the alternative's digest did %v, %v", out, err)
	}
}

func newWorldSwitched(t *testing.T, running []string, to, digest string) (*Result, error) {
	t.Helper()
	w := newWorld(t, running...)
	return w.Switch(t.Context(), to, digest, nil, w.consent())
}

// TestAnAlternativeWaitsForNobodysResidence: where the plan would end a service too early, one that keeps it can be switched to.
func TestAnAlternativeWaitsForNobodysResidence(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "legacy")
	s, _ := w.host.c.Lookup("legacy")
	s.MinResidenceS, w.host.since["legacy"] = 600, time.Now()
	got := w.simulate(Request{Mode: "talk", Alternatives: 3})
	if got.Digest != "" || !strings.Contains(got.Reason, "min_residence_s") || !slices.Equal(saidAll(got.Alternatives), []string{"keep legacy"}) {
		t.Fatalf("simulated: %+v", got)
	}
	out, err := w.Switch(t.Context(), "talk", got.Alternatives[0].Digest, nil, w.consent())
	if err != nil || out.Outcome != committed || !slices.Equal(w.host.set(), []string{"chat", "embed", "legacy"}) {
		t.Errorf("switched: %+v, %v; the host has %v", out, err, w.host.set())
	}
}

// TestThePlainPlansSubject: what a human approved before there were alternatives is what is approved now.
func TestThePlainPlansSubject(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "legacy")
	got := w.simulate(Request{Mode: "talk"})
	subject, err := w.Subject(t.Context(), &executorv1.SwitchModeRequest{ModeId: proto.String("talk"), PlanDigest: &got.Digest})
	must(t, err)
	var steps []string
	for _, st := range []struct{ action, id string }{{"stop", "legacy"}, {"start", "chat"}, {"start", "embed"}} {
		s, _ := w.host.c.Lookup(st.id)
		entry, err := plan.EntryDigest(s, "sha256:"+st.id)
		must(t, err)
		steps = append(steps, fmt.Sprintf(`{"action":%q,"entry_sha256":%q,"service":%q}`, st.action, entry, st.id))
	}
	want := fmt.Sprintf(`{"catalogue":%q,"mode":"talk","steps":[%s]}`, w.host.c.Digest, strings.Join(steps, ","))
	if diff := cmp.Diff(want, string(subject.GetEntry())); diff != "" {
		t.Errorf("subject (-want +got):\n%s", diff)
	}
}

func TestTheHostsMemory(t *testing.T) {
	t.Parallel()
	b := &book{hostAsleep: map[string]uint32{"chat": 15000}, hostLoading: map[string]uint32{"code": 4000, "embed": 3000}}
	for name, c := range map[string]struct {
		available  uint32
		steps      []string
		host       uint32
		says       string
		alternates []string
	}{
		"enough":                {19000, []string{"sleep chat", "start embed", "start code", "start tools"}, 19000, "", []string{"gpu code 0>1; keep chat", "stop chat"}},
		"too little to sleep":   {18999, []string{"stop chat", "start embed", "start code", "start tools"}, 4000, "", []string{"gpu code 0>1; keep chat"}},
		"too little to load":    {3999, []string{"sleep chat", "start embed", "start code", "start tools"}, 19000, "it does not fit: the host has 3999 MiB of memory available, and what sleeps and loads needs 4000 MiB of it", nil},
		"nothing that it tells": {0, []string{"sleep chat", "start embed", "start code", "start tools"}, 19000, "", []string{"gpu code 0>1; keep chat", "stop chat"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "chat").with(b)
			if c.available > 0 {
				w.has(c.available)
			}
			got := w.simulate(Request{Mode: "work", Alternatives: 10})
			if diff := cmp.Diff(c.steps, words(got.Steps)); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if got.Reason != c.says || got.Fits != (c.says == "") || got.HostMiB != c.host || got.HostAvailable != c.available {
				t.Errorf("simulated: %+v", got)
			}
			if diff := cmp.Diff(c.alternates, saidAll(got.Alternatives)); diff != "" {
				t.Errorf("alternatives (-want +got):\n%s", diff)
			}
			if c.says != "" {
				_, err := w.to("work")
				wantFault(t, err, callv1.Code_CODE_PLAN_CHANGED, "nothing was done")
				// Nor with the digest that nobody was given.
				p, err := w.planner.Plan(t.Context(), Request{Mode: "work"}, w.host.Last())
				must(t, err)
				_, err = w.Switch(t.Context(), "work", p.Digest, nil, w.consent())
				wantFault(t, err, callv1.Code_CODE_DOES_NOT_FIT, "the host has 3999 MiB")
				if len(w.did()) != 0 {
					t.Errorf("and yet: %v", w.did())
				}
			}
		})
	}
}

func TestWhereTheNumbersComeFrom(t *testing.T) {
	t.Parallel()
	known := func(source string) memreq.Need {
		return memreq.Need{PerGPU: map[uint32]uint32{0: 16000}, Source: source, Context: 8192, KVTokens: 9000}
	}
	for name, c := range map[string]struct {
		running []string
		chat    memreq.Need
		request Request
		zero    string
		one     string
	}{
		"what runs is measured":     {[]string{"chat"}, known(vram.Estimated), Request{}, vram.Measured, vram.Measured},
		"what comes was measured":   {nil, known(vram.Measured), Request{Mode: "talk"}, vram.Measured, vram.Declared},
		"what comes is declared":    {nil, known(vram.Declared), Request{Mode: "talk"}, vram.Declared, vram.Declared},
		"what comes is estimated":   {nil, known(vram.Estimated), Request{Mode: "talk"}, vram.Estimated, vram.Declared},
		"what comes is unknown":     {nil, memreq.Need{Source: vram.Unknown}, Request{Mode: "talk"}, vram.Unknown, vram.Declared},
		"what sleeps keeps is said": {[]string{"chat"}, known(vram.Measured), Request{Mode: "work"}, vram.Declared, vram.Declared},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.running...).with(&book{awake: map[string]memreq.Need{"chat": c.chat}})
			got := w.simulate(c.request)
			if got.GPUs[0].Source != c.zero || got.GPUs[1].Source != c.one {
				t.Errorf("the sources are %q and %q", got.GPUs[0].Source, got.GPUs[1].Source)
			}
			for _, n := range got.Needs {
				if n.Service == "chat" {
					want := Need{Service: "chat", MiB: c.chat.MiB(), Source: c.chat.Source, Context: c.chat.Context, KVTokens: c.chat.KVTokens}
					if diff := cmp.Diff(want, n); diff != "" {
						t.Errorf("need (-want +got):\n%s", diff)
					}
				}
			}
		})
	}
}

// TestALoadThatTakesMoreThanTheModel: what is needed for a moment has to be there as well.
func TestALoadThatTakesMoreThanTheModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "legacy").with(&book{loading: map[string]map[uint32]uint32{"embed": {1: total - reserved - margin}}})
	got := w.simulate(Request{Mode: "talk", Alternatives: 10})
	if !got.Fits || got.GPUs[1].After != 4000 {
		t.Errorf("simulated: %+v", got)
	}
	if alternatives := saidAll(got.Alternatives); slices.Contains(alternatives, "keep legacy") {
		t.Errorf("alternatives are %q", alternatives)
	}
}

func TestWhatTookHowLongIsAskedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "chat")
	counting := &counted{Journal: w.store}
	w.cfg.Journal = &history{Journal: counting, took: map[pastStep][]time.Duration{}}
	w.planner.Took = w.cfg.Journal.Took
	for range 3 {
		w.simulate(Request{Mode: "work", Alternatives: 3})
	}
	once := counting.asked
	if once == 0 {
		t.Fatal("nobody asked")
	}
	for range 3 {
		w.simulate(Request{Mode: "work", Alternatives: 3})
	}
	if counting.asked != once {
		t.Errorf("it was asked %d times more", counting.asked-once)
	}
	w.must("work")
	if w.planner.Expected(t.Context(), actionStart, "code"); counting.asked == once {
		t.Error("nobody asks after a switch either")
	}
}

type counted struct {
	Journal
	asked int
}

func (c *counted) Took(ctx context.Context, action executorv1.PlanAction, id string, n int) ([]time.Duration, error) {
	c.asked++
	return c.Journal.Took(ctx, action, id, n)
}
