package approval

import (
	"encoding/hex"
	"errors"
	"fmt"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
)

// ErrEntries means that the executor did not show, behind a plan's digests, what the plan's steps would act on.
var ErrEntries = errors.New(
	"the executor does not show what the plan's steps would run: the entries are not those of the plan")

// Step is one step of a plan that a call names, with what the executor shows of it.
type Step struct {
	// Action is "sleep", "stop", "start" or "wake".
	Action string
	// Service is the entry, read.
	Service *catalog.Service
	// Entry is its RFC 8785 JSON with the digest of what it runs: the bytes whose digest the plan holds.
	Entry []byte
}

// Runs reports whether something runs by the step that did not before. What is not known to end something does.
func (s Step) Runs() bool { return s.Action != "stop" && s.Action != "sleep" }

// Line says what the step runs, read from the entry itself.
func (s Step) Line() string {
	return clean.Visible(s.Action) + " " + clean.Visible(s.Service.ID) + ": " + s.Service.Describe(nil)
}

// Steps returns the steps of the plan that the call names, each with its entry, and nil where it names no plan. The plan has
// the entries' digests alone: they are reckoned here, from what is shown, so that who signs the plan signs the entries.
// Errors are ErrTarget and ErrEntries.
func (c Call) Steps(preview *executorv1.PreviewCallResponse) ([]Step, error) {
	if c.planDigest() == "" {
		return nil, nil
	}
	var plan struct {
		Catalog string `json:"catalogue"`
		// Keeps are services that an alternative leaves alone; the preview's lines say so.
		Keeps []string `json:"keeps,omitempty"`
		Mode  string   `json:"mode"`
		Steps []struct {
			Action      string `json:"action"`
			EntrySHA256 string `json:"entry_sha256"`
			Service     string `json:"service"`
		} `json:"steps"`
	}
	if err := canonical.Unmarshal(preview.GetSubject().GetEntry(), &plan); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTarget, err)
	}
	if len(preview.GetEntries()) != len(plan.Steps) {
		return nil, ErrEntries
	}
	out := make([]Step, 0, len(plan.Steps))
	for i, st := range plan.Steps {
		entry := preview.GetEntries()[i].GetEntry()
		if digest := canonical.Digest(entry); hex.EncodeToString(digest[:]) != st.EntrySHA256 {
			return nil, ErrEntries
		}
		s, err := catalog.ReadSubject(entry)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrEntries, err)
		}
		if s.ID != st.Service {
			return nil, ErrEntries
		}
		out = append(out, Step{Action: st.Action, Service: s, Entry: entry})
	}
	return out, nil
}

// StepLines are the lines of the steps by which something runs.
func StepLines(steps []Step) []string {
	var lines []string
	for _, s := range steps {
		if s.Runs() {
			lines = append(lines, s.Line())
		}
	}
	return lines
}
