package service

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
)

// slowAnswers is a Checker that takes its time and counts.
type slowAnswers struct {
	took time.Duration
	mu   sync.Mutex
	n    map[uint16]int
}

func (c *slowAnswers) Check(_ context.Context, at netip.AddrPort, _ *catalog.Health) (string, error) {
	time.Sleep(c.took) // in a bubble of synctest, which takes no time
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[at.Port()]++
	return "x", nil
}

// TestEveryServiceIsChecked: of 500 services, fast or slow, the last is asked about as often as the first.
func TestEveryServiceIsChecked(t *testing.T) {
	for _, took := range []time.Duration{20 * time.Millisecond, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			const count = 500
			text := "version: 1\nservices:\n"
			for i := range count {
				text += fmt.Sprintf("- {id: s%d, driver: process, argv: [/usr/bin/true], port: %d}\n", i, 17000+i)
			}
			c, err := catalog.Parse("c.yaml", []byte(text), catalog.Options{Development: true})
			must(t, err)
			p, a := &program{status: driver.Status{State: driver.Running}}, &slowAnswers{took: took, n: map[uint16]int{}}
			m := New(Config{
				Catalog: func() *catalog.Catalog { return c }, Drivers: map[string]func() Driver{"process": Is(p)}, Health: a, Confirm: willing,
				Logger: slog.New(slog.DiscardHandler),
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			m.Run(ctx)
			least, most := a.n[17000], a.n[17000]
			for i := range count {
				n := a.n[uint16(17000+i)]
				least, most = min(least, n), max(most, n)
			}
			// Every 2 s, a tick and the check itself later.
			if want := int(time.Minute / (2*healthInterval + took)); least < want || most > 2*least {
				t.Errorf("checks that take %s: between %d and %d a minute, want %d at least", took, least, most, want)
			}
		})
	}
}

// slowLook is a driver that takes a while to say why a service ended.
type slowLook struct{ *program }

func (d slowLook) Status(*catalog.Service) driver.Status {
	time.Sleep(time.Second) // in a bubble of synctest, which takes no time
	return driver.Status{State: driver.Ended}
}

// TestSettlingIsBounded: however many ended services' logs are read, serving begins.
func TestSettlingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := "version: 1\nservices:\n"
		for i := range 500 {
			text += fmt.Sprintf("- {id: s%d, driver: process, argv: [/usr/bin/true], port: %d}\n", i, 17000+i)
		}
		c, err := catalog.Parse("c.yaml", []byte(text), catalog.Options{Development: true})
		must(t, err)
		m := New(Config{
			Catalog: func() *catalog.Catalog { return c }, Drivers: map[string]func() Driver{"process": Is(slowLook{&program{}})}, Health: &answers{},
			Confirm: willing, Logger: slog.New(slog.DiscardHandler),
		})
		began := time.Now()
		m.Settle(t.Context())
		if took := time.Since(began); took > settlePatience {
			t.Errorf("it took %s", took)
		}
		m.checks.Wait()
	})
}

// TestReleasesWait: a stop waits for another service's load on its GPU, no longer than a stop may last; a sleep takes the load's
// right; and a load waits for them.
func TestReleasesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, chat, base, p := pair(t)
		p.set(driver.Status{State: driver.Running})
		give, err := m.cfg.Leases.Loading(chat)
		must(t, err)
		began := time.Now()
		if _, err := m.Stop(t.Context(), base); err != nil || time.Since(began) != base.StopTimeout() {
			t.Errorf("beside a load: %v after %s", err, time.Since(began))
		}
		p.set(driver.Status{State: driver.Running})
		began = time.Now()
		if _, err := m.Stop(t.Context(), chat); err != nil || time.Since(began) > time.Second {
			t.Errorf("of the loader itself: %v after %s", err, time.Since(began))
		}
		give()
		if give, err = m.cfg.Leases.Releasing(base, true); err != nil {
			t.Fatal(err)
		}
		if _, err := m.cfg.Leases.Loading(chat); err == nil {
			t.Error("a load in the middle of a stop")
		}
		give()
		if give, err = m.cfg.Leases.Loading(chat); err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Second)
			give()
		}()
		began = time.Now()
		if _, err := m.SleepService(t.Context(), base); err == nil || time.Since(began) != time.Second {
			t.Errorf("a sleep: %v after %s", err, time.Since(began))
		}
	})
}
