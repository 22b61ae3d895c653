package mode

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
)

// tight is a world where mode talk fits with 300 MiB to spare, and not with the 512 that the configuration wants.
func tight(t *testing.T, least *uint32) *world {
	t.Helper()
	w := newWorld(t)
	w.host.foreign[1] = total - reserved - 4000 - 300
	w.cfg.Margin, w.cfg.LeastMargin = 512, least
	return w
}

// TestNoCallGoesBelowTheHumansMargin: an override is for what a human allows, and without a word of a human's for nothing.
func TestNoCallGoesBelowTheHumansMargin(t *testing.T) {
	for name, c := range map[string]struct {
		least    *uint32
		override uint32
		says     string
	}{
		"no limit is set":        {nil, 511, "cannot be lower than 512 MiB"},
		"none at all":            {nil, 0, "cannot be lower than 512 MiB"},
		"below the limit":        {proto.Uint32(300), 299, "cannot be lower than 300 MiB"},
		"a limit above all":      {proto.Uint32(9999), 511, "cannot be lower than 512 MiB"},
		"nothing, below a limit": {proto.Uint32(1), 0, "cannot be lower than 1 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			w := tight(t, c.least)
			_, err := w.Simulate(t.Context(), Request{Mode: "talk", Margin: &c.override})
			wantFault(t, err, callv1.Code_CODE_INVALID_ARGUMENT, c.says)
			request := &executorv1.SwitchModeRequest{ModeId: proto.String("talk"), PlanDigest: proto.String(strings.Repeat("0", 64)), MarginMibOverride: &c.override}
			_, err = w.Subject(t.Context(), request)
			wantFault(t, err, callv1.Code_CODE_INVALID_ARGUMENT, c.says)
			_, err = w.Switch(t.Context(), "talk", request.GetPlanDigest(), &c.override, w.consent())
			wantFault(t, err, callv1.Code_CODE_INVALID_ARGUMENT, c.says)
			if len(w.did()) != 0 {
				t.Errorf("and yet: %v", w.did())
			}
		})
	}
}

// TestTheMarginOfACall: simulation, preview and switch go by the same one; the next call goes by the human's again.
func TestTheMarginOfACall(t *testing.T) {
	w := tight(t, proto.Uint32(256))
	without, err := w.Simulate(t.Context(), Request{Mode: "talk"})
	if err != nil || without.Fits {
		t.Fatalf("simulated without: %+v, %v", without, err)
	}
	with, err := w.Simulate(t.Context(), Request{Mode: "talk", Margin: proto.Uint32(256)})
	if err != nil || !with.Fits || with.Digest == "" {
		t.Fatalf("simulated with: %+v, %v", with, err)
	}
	request := &executorv1.SwitchModeRequest{ModeId: proto.String("talk"), PlanDigest: &with.Digest, MarginMibOverride: proto.Uint32(256)}
	preview, err := w.Preview(t.Context(), request)
	if err != nil || !strings.Contains(strings.Join(preview.Lines, "\n"), "256 MiB stay free on each GPU, by the call's own wish; the host's setting is 512 MiB") {
		t.Errorf("preview: %+v, %v", preview, err)
	}
	if _, err := w.Switch(t.Context(), "talk", with.Digest, nil, w.consent()); err == nil {
		t.Error("what was simulated with an override was switched to without")
	}
	out, err := w.Switch(t.Context(), "talk", with.Digest, proto.Uint32(256), w.consent())
	if err != nil || out.Outcome != committed {
		t.Fatalf("switched: %+v, %v", out, err)
	}
	if w.cfg.Margin != 512 {
		t.Error("the host's own margin has changed")
	}
	more, err := tight(t, nil).Simulate(t.Context(), Request{Mode: "talk", Margin: proto.Uint32(4096)})
	if err != nil || more.Fits {
		t.Errorf("a wider margin: %+v, %v", more, err)
	}
}

// TestWhatFittedBeforeIsBroughtBack: a mode that runs by a call's margin is brought back by it when a switch away from it fails.
func TestWhatFittedBeforeIsBroughtBack(t *testing.T) {
	w := tight(t, proto.Uint32(256))
	w.host.c = parse(t, strings.Replace(catalogText, "gpus: [1], vram_mib: 6000}", "gpus: [0], vram_mib: 100}", 1)+"  - {id: small, services: [legacy]}\n")
	with, err := w.Simulate(t.Context(), Request{Mode: "talk", Margin: proto.Uint32(256)})
	must(t, err)
	if out, err := w.Switch(t.Context(), "talk", with.Digest, proto.Uint32(256), w.consent()); err != nil || out.Outcome != committed {
		t.Fatalf("switched: %+v, %v", out, err)
	}
	w.host.fails["raise legacy"] = "before"
	out, err := w.to("small")
	if err != nil || out.Outcome != executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK || len(out.NotRunning) != 0 {
		t.Errorf("undone: %+v, %v", out, err)
	}
}

// TestAnAlternativeOfANarrowerMargin is for a call with that margin alone.
func TestAnAlternativeOfANarrowerMargin(t *testing.T) {
	t.Parallel()
	setup := func() *world {
		w := newWorld(t, "chat", "watch")
		w.host.foreign[1] = total - reserved - 4000 - 500 - 300 // beside watch, embed fits with 300 MiB to spare
		w.cfg.Margin, w.cfg.LeastMargin = 512, proto.Uint32(256)
		w.host.c = parse(t, strings.Replace(catalogText, "pin: true", "pin: false", 1))
		return w
	}
	w := setup()
	got, err := w.Simulate(t.Context(), Request{Mode: "talk", Margin: proto.Uint32(256), Alternatives: 10})
	if err != nil || len(got.Alternatives) == 0 || said(got.Alternatives[0]) != "keep watch" || got.Next != nil {
		t.Fatalf("simulated: %+v, %v", got, err)
	}
	digest := got.Alternatives[0].Digest
	_, err = w.Switch(t.Context(), "talk", digest, nil, w.consent())
	wantFault(t, err, callv1.Code_CODE_PLAN_CHANGED, "nothing was done")
	if len(w.did()) != 0 {
		t.Errorf("and yet: %v", w.did())
	}
	out, err := w.Switch(t.Context(), "talk", digest, proto.Uint32(256), w.consent())
	if err != nil || out.Outcome != committed {
		t.Errorf("switched: %+v, %v", out, err)
	}
}
