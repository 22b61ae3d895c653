package mode

import (
	"encoding/hex"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
)

// Whoever approves sees, behind every digest of the plan, the entry with what it runs.
func TestTheEntriesBehindAPlan(t *testing.T) {
	w := newWorld(t, "legacy")
	w.host.edits["legacy"] = "unreadable" // what cannot be read can be stopped
	plan, err := w.Simulate(t.Context(), Request{Mode: "talk"})
	must(t, err)
	request := &executorv1.SwitchModeRequest{ModeId: proto.String("talk"), PlanDigest: &plan.Digest}
	subject, err := w.Subject(t.Context(), request)
	must(t, err)
	var form planSubject
	must(t, canonical.Unmarshal(subject.GetEntry(), &form))
	preview, err := w.Preview(t.Context(), request)
	must(t, err)
	entries := preview.Entries
	if len(entries) != len(form.Steps) || len(entries) != 3 {
		t.Fatalf("%d entries for %d steps", len(entries), len(form.Steps))
	}
	for i, st := range form.Steps {
		digest := canonical.Digest(entries[i].GetEntry())
		if hex.EncodeToString(digest[:]) != st.EntrySHA256 || entries[i].GetLabel() != "service "+st.Service {
			t.Errorf("step %d, %s %s: the entry %q is %s", i, st.Action, st.Service, entries[i].GetLabel(), entries[i].GetEntry())
		}
		s, err := catalog.ReadSubject(entries[i].GetEntry())
		if err != nil || s.ID != st.Service {
			t.Errorf("step %d: %+v, %v", i, s, err)
		}
	}
	if text := string(entries[0].GetEntry()); !strings.Contains(text, `"definition_sha256":"unreadable"`) {
		t.Errorf("what is stopped: %s", text)
	}

	other := strings.Repeat("0", 64)
	_, err = w.Preview(t.Context(), &executorv1.SwitchModeRequest{ModeId: proto.String("talk"), PlanDigest: &other})
	if planRequired() {
		wantFault(t, err, callv1.Code_CODE_PLAN_CHANGED, "nothing was done")
	}
	w.host.edits["chat"] = "edited"
	_, err = w.Preview(t.Context(), request)
	if planRequired() {
		wantFault(t, err, callv1.Code_CODE_PLAN_CHANGED, "nothing was done")
	}
}
