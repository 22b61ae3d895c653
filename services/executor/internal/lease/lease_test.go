package lease

import (
	"errors"
	"sync"
	"testing"

	"durward.internal/services/platform/catalog"
)

func on(gpus ...uint32) *catalog.Service { return &catalog.Service{GPUs: gpus} }

func TestLeases(t *testing.T) {
	l := &Leases{}
	host, err := l.Host()
	if err != nil {
		t.Fatal(err)
	}
	for name, take := range map[string]func() (func(), error){
		"another switch": l.Host, "a release": func() (func(), error) { return l.Releasing(on(0), false) }, "a load": func() (func(), error) { return l.Loading(on(0)) },
		"a load without GPUs": func() (func(), error) { return l.Loading(on()) },
	} {
		if _, err := take(); !errors.Is(err, ErrSwitching) {
			t.Errorf("%s in a switch: %v", name, err)
		}
	}
	changed := l.Changed()
	host()
	host() // again it does nothing
	select {
	case <-changed:
	default:
		t.Error("nobody is told that the host was given back")
	}

	zero, err := l.Loading(on(0, 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Loading(on(1)); !errors.Is(err, ErrBusy) {
		t.Errorf("a second load on a GPU: %v", err)
	}
	two, err := l.Loading(on(2))
	if err != nil {
		t.Errorf("a load on another GPU: %v", err)
	}
	stop, err := l.Releasing(on(0), false)
	if err != nil {
		t.Errorf("a release while something loads: %v", err)
	}
	for _, give := range []func(){zero, two, stop} {
		if _, err := l.Host(); !errors.Is(err, ErrBusy) {
			t.Errorf("a switch in the middle of single changes: %v", err)
		}
		give()
		give()
	}
	if host, err = l.Host(); err != nil {
		t.Errorf("a switch afterwards: %v", err)
	}
	host()
}

// Many at once: never a switch beside anything else.
func TestLeasesUnderLoad(t *testing.T) {
	l := &Leases{}
	var mu sync.Mutex
	switches, others := 0, 0
	enter := func(switching bool, by int) {
		mu.Lock()
		defer mu.Unlock()
		if switching {
			switches += by
		} else {
			others += by
		}
		if switches > 1 || switches == 1 && others > 0 {
			t.Errorf("%d switches and %d others at once", switches, others)
		}
	}
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for range 500 {
				take := func() (func(), error) { return l.Releasing(on(uint32(i)), i%2 == 0) }
				switch i % 4 {
				case 0:
					take = l.Host
				case 1:
					take = func() (func(), error) { return l.Loading(on(uint32(i))) }
				}
				if give, err := take(); err == nil {
					enter(i%4 == 0, 1)
					enter(i%4 == 0, -1)
					give()
				}
			}
		})
	}
	all.Wait()
}
