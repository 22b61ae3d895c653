package docker

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"durward.internal/services/executor/internal/driver"
)

// TestAnAdoptedContainerThatWasStopped: however it ends when it is told to, it did not end by itself; the next time it may.
func TestAnAdoptedContainerThatWasStopped(t *testing.T) {
	const id = "abcdefabcdef0"
	var finished atomic.Int64 // 0: it runs
	socket := filepath.Join(t.TempDir(), "d.sock")
	speaking(t, socket, "1.41", func(w http.ResponseWriter, r *http.Request) {
		state, text := `{"Status":"running","Running":true,"StartedAt":"2126-11-22T10:00:00Z"}`, "Up 1 second"
		if at := finished.Load(); at != 0 {
			state = fmt.Sprintf(`{"Status":"exited","ExitCode":137,"StartedAt":"2126-11-22T10:00:00Z","FinishedAt":"2126-11-22T10:00:%02dZ"}`, at)
			text = "Exited (137) 1 second ago"
		}
		switch end := r.URL.Path[strings.LastIndex(r.URL.Path, "/containers/"):]; end {
		case "/containers/json":
			fmt.Fprintf(w, `[{"Id":%q,"Names":["/vllm"],"State":"","Status":%q,"Labels":{"durward.service":"chat"}}]`, id, text)
		case "/containers/" + id + "/json":
			fmt.Fprintf(w, `{"Id":%q,"State":%s,"Config":{"Labels":{"durward.service":"chat"}}}`, id, state)
		case "/containers/" + id + "/stop":
			finished.Store(1)
			w.WriteHeader(http.StatusNoContent)
		default:
			http.NotFound(w, r)
		}
	})
	d, s := open(t, socket), entryOf("")
	s.Container.Adopt = true
	seen := func(what string, state driver.State, cause string) {
		t.Helper()
		d.refresh(t.Context(), s.ID)
		if got := d.Status(s); got.State != state || got.Cause != cause {
			t.Errorf("%s: %+v", what, got)
		}
	}
	stop := func(ran bool) {
		t.Helper()
		if changed, err := d.Stop(t.Context(), s); changed != ran || err != nil {
			t.Errorf("Stop = %v, %v", changed, err)
		}
	}
	seen("it runs", driver.Running, "")
	stop(true)
	seen("it was stopped", driver.Stopped, "")
	finished.Store(2)
	seen("it ended by itself", driver.Ended, driver.CauseExited)
	stop(false)
	seen("it was stopped after its end", driver.Stopped, "")
}
