package mode

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
)

func wantFault(t *testing.T, err error, code callv1.Code, part string) {
	t.Helper()
	f := fault.From(err)
	if f == nil || f.Code != code || !strings.Contains(f.Message, part) {
		t.Errorf("the error is %v, want %v: …%s…", f, code, part)
	}
}

func TestWhatCannotBeSwitchedTo(t *testing.T) {
	for name, c := range map[string]struct {
		running []string
		to      string
		bend    func(*host)
		code    callv1.Code
		says    string
	}{
		"a state that nobody knows": {[]string{"legacy:unknown"}, "talk", nil, callv1.Code_CODE_CONFLICT, "nobody can tell whether legacy runs: its manager does not answer"},
		"another change":            {[]string{"chat:starting"}, "talk", nil, callv1.Code_CODE_CONFLICT, "chat is in the middle of another change"},
		"a stay": {[]string{"legacy"}, "talk", func(h *host) {
			s, _ := h.c.Lookup("legacy")
			s.MinResidenceS, h.since["legacy"] = 600, time.Now().Add(-time.Minute)
		}, callv1.Code_CODE_CONFLICT, "legacy may not be stopped yet: it stays 600 s once it runs (min_residence_s)"},
		"a program that nobody can read": {nil, "talk", func(h *host) { h.edits["embed"] = "unreadable" }, callv1.Code_CODE_CONFLICT,
			"embed cannot be started: what it runs is missing or cannot be read"},
		"no room":            {nil, "talk", func(h *host) { h.foreign[1] = 21000 }, callv1.Code_CODE_PLAN_CHANGED, ""},
		"a GPU that is lost": {nil, "talk", func(h *host) { h.lost[0] = true }, callv1.Code_CODE_PLAN_CHANGED, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.running...)
			if c.bend != nil {
				c.bend(w.host)
			}
			plan, err := w.Simulate(t.Context(), Request{Mode: c.to})
			if err != nil || plan.Digest != "" || !strings.Contains(plan.Reason, c.says) || plan.Reason == "" || plan.Blocked != (c.code == callv1.Code_CODE_CONFLICT) {
				t.Errorf("simulated: %+v, %v", plan, err)
			}
			_, err = w.to(c.to)
			wantFault(t, err, c.code, c.says)
			if len(w.did()) != 0 {
				t.Errorf("and yet: %v", w.did())
			}
		})
	}
	w := newWorld(t)
	_, err := w.Simulate(t.Context(), Request{Mode: "tal"})
	wantFault(t, err, callv1.Code_CODE_NOT_FOUND, "no mode has that id")
	if f := fault.From(err); !cmp.Equal(f.DidYouMean, []string{"talk"}) {
		t.Errorf("it offers %v", f.DidYouMean)
	}
}

// A service's stay that is over, and one of a service that belongs to the mode, are in nobody's way.
func TestAStayThatIsOver(t *testing.T) {
	w := newWorld(t, "legacy", "embed")
	for _, id := range []string{"legacy", "embed"} {
		s, _ := w.host.c.Lookup(id)
		s.MinResidenceS, w.host.since[id] = 600, time.Now().Add(-time.Hour)
	}
	w.host.since["embed"] = time.Now()
	if out := w.must("talk"); out.Outcome != committed {
		t.Errorf("result is %+v", out)
	}
}

func TestThePlanIsWhatIsApproved(t *testing.T) {
	w := newWorld(t, "legacy")
	plan, err := w.Simulate(t.Context(), Request{Mode: "talk"})
	must(t, err)
	request := &executorv1.SwitchModeRequest{ModeId: proto.String("talk"), PlanDigest: &plan.Digest}
	subject, err := w.Subject(t.Context(), request)
	must(t, err)
	if sum := sha256.Sum256(subject.GetEntry()); hex.EncodeToString(sum[:]) != plan.Digest || subject.GetLabel() != "mode talk" {
		t.Errorf("the digest is not of %s", subject.GetEntry())
	}
	var form planSubject
	must(t, canonical.Unmarshal(subject.GetEntry(), &form))
	var did []string
	for _, st := range form.Steps {
		did = append(did, st.Action+" "+st.Service)
		if len(st.EntrySHA256) != 64 {
			t.Errorf("the entry of %s is %q", st.Service, st.EntrySHA256)
		}
	}
	if diff := cmp.Diff([]string{"stop legacy", "start chat", "start embed"}, did); diff != "" || form.Mode != "talk" || form.Catalog != w.host.c.Digest {
		t.Errorf("the subject is %s\n%s", subject.GetEntry(), diff)
	}
	looks := w.host.looks
	preview, err := w.Preview(t.Context(), request)
	must(t, err)
	if string(preview.Subject.GetEntry()) != string(subject.GetEntry()) || len(preview.Entries) != 3 || w.host.looks != looks+1 {
		t.Errorf("what is shown is of %d plans: %s, %d entries", w.host.looks-looks, preview.Subject.GetEntry(), len(preview.Entries))
	}
	want := []string{"1. stop legacy: requests in flight end with it", "2. start chat", "3. start embed",
		"if a step fails, the services from before are brought back"}
	if diff := cmp.Diff(want, preview.Lines); diff != "" {
		t.Errorf("preview:\n%s", diff)
	}

	// No measurement is in it.
	w.host.foreign[0], w.host.foreign[1] = 700, 800
	if again, err := w.Subject(t.Context(), request); err != nil || string(again.GetEntry()) != string(subject.GetEntry()) {
		t.Errorf("a GPU that is fuller makes another plan: %v", err)
	}
	for name, bend := range map[string]func(*host){
		"another program":                  func(h *host) { h.edits["chat"] = "edited" },
		"another catalogue":                func(h *host) { h.c = parse(t, strings.Replace(catalogText, "vram_mib: 4000", "vram_mib: 4001", 1)) },
		"another state":                    func(h *host) { h.state["embed"] = executorv1.ServiceState_SERVICE_STATE_RUNNING },
		"a program of one that is stopped": func(h *host) { h.edits["legacy"] = "edited" },
	} {
		w := newWorld(t, "legacy")
		bend(w.host)
		_, err := w.Subject(t.Context(), request)
		wantFault(t, err, callv1.Code_CODE_PLAN_CHANGED, "nothing was done")
		_, err = w.Switch(t.Context(), "talk", plan.Digest, nil, w.consent())
		wantFault(t, err, callv1.Code_CODE_PLAN_CHANGED, "nothing was done")
		if len(w.did()) != 0 {
			t.Errorf("%s: %v was done", name, w.did())
		}
	}
}

func TestPinnedServicesStay(t *testing.T) {
	w := newWorld(t, "watch", "legacy")
	if diff := cmp.Diff([]string{"stop legacy", "start chat", "start embed"}, w.planned("talk")); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	// What a pinned service depends on stays as well, asleep or not.
	w.host.c = parse(t, strings.Replace(catalogText, "pin: true}", "pin: true, depends_on: [legacy]}", 1))
	if diff := cmp.Diff([]string{"start chat", "start embed"}, w.planned("talk")); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	// And where it is in the way, the mode does not fit.
	if plan, err := w.Simulate(t.Context(), Request{Mode: "huge"}); err != nil || plan.Fits || plan.Digest != "" {
		t.Errorf("simulated: %+v, %v", plan, err)
	}
}

// D10: what sleep saves and what is used were constants.
func TestGpumodD10MeasuredNumbersAreUsed(t *testing.T) {
	w := newWorld(t, "chat", "legacy")
	w.host.foreign[1] = 1234
	plan, err := w.Simulate(t.Context(), Request{Mode: "work"})
	must(t, err)
	zero, one := plan.GPUs[0], plan.GPUs[1]
	if !zero.Measured || zero.Now != 16000 || zero.After != 1000+20000 || zero.Total != total || zero.Free != total-reserved-21000 {
		t.Errorf("GPU 0: %+v", zero)
	}
	if one.Now != 6000+1234 || one.After != 4000+1234 || one.Foreign != 1234 {
		t.Errorf("GPU 1: %+v", one)
	}
	// A sleeper that keeps more than it declares counts with what it keeps.
	w = newWorld(t, "chat:asleep")
	w.host.c.Services[0].SleepMiB = 5000
	if plan, err := w.Simulate(t.Context(), Request{Mode: "work"}); err != nil || plan.Steps[0].Action != actionStop || plan.GPUs[0].Now != 5000 {
		t.Errorf("it stays asleep where there is no room for it: %+v, %v", plan, err)
	}
	// How long a step takes is what it took.
	w = newWorld(t)
	for i := range 12 {
		id, err := w.store.BeginSwitch(t.Context(), switchOf(i))
		must(t, err)
		endSwitch(t, w.store, id, actionStart, "chat", time.Duration(100-i)*time.Second)
	}
	// The newest ten, from 98 s down to 89 s, newer ones counting more.
	if got := w.planner.Expected(context.Background(), actionStart, "chat"); got < 90*time.Second || got > 94*time.Second {
		t.Errorf("expected is %v", got)
	}
	if got := w.planner.Expected(context.Background(), actionStop, "chat"); got != 0 {
		t.Errorf("what was never done is expected to take %v", got)
	}
}

func TestASilentDriver(t *testing.T) {
	w := newWorld(t, "chat", "legacy")
	w.host.silent = true
	if out := w.must("work"); out.Outcome != committed {
		t.Errorf("result is %+v", out)
	}
	if _, err := w.to("huge"); err != nil {
		t.Error(err)
	}
}

func TestALostGPUIsAReason(t *testing.T) {
	w := newWorld(t)
	w.host.lost[1] = true
	plan, err := w.Simulate(t.Context(), Request{Mode: "talk"})
	if err != nil || plan.Fits || plan.Blocked || plan.Reason != "it does not fit: GPU 1 cannot be measured: "+gpu.ProblemLost {
		t.Errorf("simulated: %+v, %v", plan, err)
	}
}

// TestServicesThatShareAPort: a switch stops whatever has a member's port, though it could sleep; what stays keeps the mode away.
func TestServicesThatShareAPort(t *testing.T) {
	share := func(w *world, one, other string) *catalog.Service {
		a, _ := w.host.c.Lookup(one)
		b, _ := w.host.c.Lookup(other)
		a.Port = b.Port
		return a
	}
	for _, state := range []string{"chat", "chat:sleeping"} {
		w := newWorld(t, state)
		share(w, "chat", "code")
		if out := w.must("work"); out.Outcome != committed || !slices.Contains(w.did(), "lower chat") {
			t.Errorf("%s: %v, %v", state, out, w.did())
		}
	}
	w := newWorld(t, "watch")
	share(w, "watch", "embed")
	_, err := w.to("talk")
	wantFault(t, err, callv1.Code_CODE_CONFLICT, "embed and watch cannot run together: both have port 17002")

	w = newWorld(t, "legacy")
	share(w, "legacy", "embed").MinResidenceS = 600
	w.host.since["legacy"] = time.Now()
	_, err = w.to("talk")
	wantFault(t, err, callv1.Code_CODE_CONFLICT, "legacy may not be stopped yet")

	w = newWorld(t, "chat")
	share(w, "legacy", "chat")
	plan, err := w.Simulate(t.Context(), Request{Start: []string{"legacy"}})
	if err != nil || !strings.Contains(plan.Reason, "legacy and chat cannot run together: both have port 17001") {
		t.Errorf("%+v, %v", plan, err)
	}
}
