package subscription

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"durward.internal/gateway/internal/relay"
	"durward.internal/gateway/internal/resource"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
)

// changes is a Watcher whose changes a test makes.
type changes struct {
	mu         sync.Mutex
	services   map[*relay.Session]func(string)
	operations map[string]func(vaultv1.OperationState)
}

func (c *changes) WatchServices(ctx context.Context, s *relay.Session, tell func(string)) {
	c.mu.Lock()
	if c.services[s] != nil {
		panic("a second watch of one session")
	}
	c.services[s] = tell
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.services, s)
}

func (c *changes) WatchOperation(ctx context.Context, _ *relay.Session, id string, _ vaultv1.OperationState, tell func(vaultv1.OperationState)) {
	c.mu.Lock()
	c.operations[id] = tell
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.operations, id)
}

// vault lets a relay open sessions.
type vault struct{ grpc.ClientConnInterface }

func (vault) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	if m, ok := reply.(*vaultv1.OpenSessionResponse); ok {
		proto.Merge(m, &vaultv1.OpenSessionResponse{Principal: "agent"})
	}
	return nil
}

type world struct {
	t     *testing.T
	relay *relay.Relay
	table *Table
	*changes
}

func newWorld(t *testing.T) *world {
	t.Helper()
	r, err := relay.New(relay.Config{Vault: vault{}, Waits: vault{}, Executor: vault{}, Logger: platformtest.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, relay: r, changes: &changes{services: map[*relay.Session]func(string){}, operations: map[string]func(vaultv1.OperationState){}}}
	if w.table, err = New(w.changes); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) session() *relay.Session {
	w.t.Helper()
	s, err := w.relay.Open(w.t.Context(), relay.Caller{Credential: "token"})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// ear hears what one listener is told.
type ear struct {
	*Listener
	mu   sync.Mutex
	told []string
	// slow is how long each telling takes.
	slow time.Duration
}

func (w *world) listen(s *relay.Session, principal string) *ear {
	e := &ear{}
	e.Listener = w.table.Listen(s, principal, func(uri string) {
		time.Sleep(e.slow) // in a bubble of synctest, which takes no time
		e.mu.Lock()
		defer e.mu.Unlock()
		e.told = append(e.told, uri)
	})
	return e
}

func (w *world) add(e *ear, uris ...string) {
	w.t.Helper()
	for _, raw := range uris {
		u, err := resource.Parse(raw)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := e.Add(u, vaultv1.OperationState_OPERATION_STATE_PENDING); err != nil {
			w.t.Fatalf("%s: %v", raw, err)
		}
	}
	synctest.Wait()
}

func (e *ear) heard() []string {
	time.Sleep(time.Second) // in a bubble of synctest, which takes no time
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	out := e.told
	e.told = nil
	slices.Sort(out)
	return out
}

func (w *world) change(s *relay.Session, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if tell := w.services[s]; tell != nil {
		tell(id)
	}
}

const operationID = "0123456789abcdef0123456789abcdef"

func TestListenersHearOfWhatTheyAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		one, two := w.session(), w.session()
		a, b, c := w.listen(one, "agent"), w.listen(one, "agent"), w.listen(two, "agent")
		w.add(a, "durward://services", "durward://services?format=json", "durward://gpu", "durward://services/chat", "durward://services/embed", "durward://operations/"+operationID)
		w.add(b, "durward://services/chat", "durward://services/chat")
		w.add(c, "durward://services")
		if subscriptions, watches := w.table.Count(), len(w.table.watches); subscriptions != 8 || watches != 3 || len(w.services) != 2 {
			t.Errorf("%d subscriptions, %d watches", subscriptions, watches)
		}
		for range 100 {
			w.change(one, "chat")
		}
		if diff := cmp.Diff([]string{"durward://gpu", "durward://services", "durward://services/chat", "durward://services?format=json"}, a.heard()); diff != "" {
			t.Errorf("a heard (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"durward://services/chat"}, b.heard()); diff != "" {
			t.Errorf("b heard (-want +got):\n%s", diff)
		}
		// Another session is told by its own watch alone.
		if got := c.heard(); len(got) != 0 {
			t.Errorf("c heard %v", got)
		}
		w.operations[operationID](vaultv1.OperationState_OPERATION_STATE_APPROVED)
		if diff := cmp.Diff([]string{"durward://operations/" + operationID}, a.heard()); diff != "" || len(b.heard()) != 0 {
			t.Errorf("of an operation (-want +got):\n%s", diff)
		}

		// What is ended is ended: for one listener, and with the last one the watch.
		chat := resource.URI{Kind: resource.Service, ID: "chat"}
		a.Remove(chat)
		a.Remove(chat)
		w.change(one, "chat")
		if got := a.heard(); len(got) != 3 || len(b.heard()) != 1 {
			t.Errorf("a heard %v", got)
		}
		a.Remove(resource.URI{Kind: resource.Operation, ID: operationID})
		synctest.Wait()
		if len(w.operations) != 0 {
			t.Error("nobody asks for the operation, and it is watched")
		}
		a.Close()
		a.Close()
		w.change(one, "chat")
		if got := a.heard(); len(got) != 0 || len(b.heard()) != 1 {
			t.Errorf("after its end a heard %v", got)
		}
		if err := a.Add(chat, 0); !fault.Is(err, callv1.Code_CODE_UNAUTHENTICATED) {
			t.Errorf("subscribed after the end: %v", err)
		}
		w.relay.Close(t.Context(), one)
		w.relay.Close(t.Context(), two)
		synctest.Wait()
		if subscriptions, watches := w.table.Count(), len(w.table.watches); subscriptions != 0 || watches != 0 || len(w.services) != 0 {
			t.Errorf("after the sessions' end %d subscriptions, %d watches", subscriptions, watches)
		}
	})
}

// Who subscribes to an operation that changed after it was judged is told so, though the watch that is there told of that
// before; who saw the newest state is not.
func TestListenerThatJoinsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.session()
		first, late, newest := w.listen(s, "agent"), w.listen(s, "agent"), w.listen(s, "agent")
		operation := resource.URI{Kind: resource.Operation, ID: operationID}
		w.add(first, operation.String())
		w.operations[operationID](vaultv1.OperationState_OPERATION_STATE_APPROVED)
		first.heard()
		w.add(late, operation.String()) // found pending
		if err := newest.Add(operation, vaultv1.OperationState_OPERATION_STATE_APPROVED); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{operation.String()}, late.heard()); diff != "" {
			t.Errorf("the late one heard (-want +got):\n%s", diff)
		}
		if got := append(first.heard(), newest.heard()...); len(got) != 0 {
			t.Errorf("the others heard %v", got)
		}
		w.relay.Close(t.Context(), s)
		synctest.Wait()
	})
}

// A client that is slow to read is told of what changed meanwhile once, and keeps nobody waiting.
func TestASlowListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.session()
		slow, quick := w.listen(s, "agent"), w.listen(s, "agent")
		slow.slow = 10 * time.Second
		w.add(slow, "durward://services")
		w.add(quick, "durward://services")
		for range 20 {
			w.change(s, "chat")
			time.Sleep(time.Second)
		}
		if got := quick.heard(); len(got) != 20 {
			t.Errorf("the quick one heard %d times", len(got))
		}
		time.Sleep(time.Minute)
		if got := slow.heard(); len(got) < 2 || len(got) > 4 {
			t.Errorf("the slow one heard %d times", len(got))
		}
		slow.Close()
		quick.Close()
		synctest.Wait()
	})
}

func TestSubscriptionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		one, two := w.session(), w.session()
		a, b, other := w.listen(one, "agent"), w.listen(two, "agent"), w.listen(two, "other")
		for i := range MaxURIs {
			w.add([]*ear{a, b}[i%2], fmt.Sprintf("durward://services/s%d", i))
		}
		last := resource.URI{Kind: resource.Services}
		if err := a.Add(last, 0); !fault.Is(err, callv1.Code_CODE_RATE_LIMITED) {
			t.Errorf("one too many: %v", err)
		}
		w.add(a, "durward://services/s0") // is there
		w.add(other, "durward://services")
		b.Close()
		w.add(a, "durward://services")
		a.Close()
		other.Close()
		synctest.Wait()
		if subscriptions, watches := w.table.Count(), len(w.table.watches); subscriptions != 0 || watches != 0 || len(w.table.counts) != 0 {
			t.Errorf("%d subscriptions, %d watches are left", subscriptions, watches)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(nil); err == nil {
		t.Error("a table without a watcher")
	}
}
