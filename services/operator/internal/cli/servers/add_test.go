package servers

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/downstream"
)

// TestWhatAFileAloneLetsAServerWriteIsReadFirst: its program runs before anybody saw what it may.
func TestWhatAFileAloneLetsAServerWriteIsReadFirst(t *testing.T) {
	e := downstream.Entry{Sandbox: downstream.Sandbox{Read: []string{"/r"}, Write: []string{"/file", "/named"}}}
	run, narrowed := asked(e, []string{"/named"})
	if diff := cmp.Diff(downstream.Sandbox{Read: []string{"/r", "/file"}, Write: []string{"/named"}}, run.Sandbox); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/file"}, narrowed); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/file", "/named"}, e.Sandbox.Write); diff != "" {
		t.Errorf("the entry itself: %s", diff)
	}
}
