package listchange

import (
	"maps"
	"testing"
	"testing/synctest"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/platform/clock"
)

// Everybody is told of a change, and one alone when it is to be told again; nobody after its removal.
func TestTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clients Clients
		var moved, again, never clock.Signal
		said := make(chan string, 100)
		listen := func(name string, again *clock.Signal) func() {
			return clients.Add(Client{
				Wants: mcp.NotificationSubscriptions{ToolsListChanged: true}, Again: again.Wait,
				Send: func(method string, _ mcp.Request) { said <- name + " " + method },
			})
		}
		one, other := listen("one", &again), listen("other", &never)
		defer other()
		go clients.Run(t.Context(), moved.Wait)
		synctest.Wait()
		told := func(when string, want map[string]int) {
			t.Helper()
			clock.Sleep(t.Context(), 2*gather)
			synctest.Wait()
			got := map[string]int{}
			for len(said) > 0 {
				got[<-said]++
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s: %v were told, want %v", when, got, want)
			}
		}
		const change = " notifications/tools/list_changed"
		moved.Raise()
		synctest.Wait() // the first is known, and nobody has been told of it
		moved.Raise()
		told("a change, and one right after it", map[string]int{"one" + change: 1, "other" + change: 1})
		again.Raise()
		told("one again", map[string]int{"one" + change: 1})
		one()
		again.Raise()
		moved.Raise()
		told("one is gone", map[string]int{"other" + change: 1})
		late := listen("late", &again)
		again.Raise()
		told("again, right after it began to listen", map[string]int{"late" + change: 1})
		late()
	})
}
