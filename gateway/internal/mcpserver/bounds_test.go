package mcpserver

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/relay"
)

func TestNewRefuses(t *testing.T) {
	good := Config{Relay: &relay.Relay{}, Refusals: &refusal.Recorder{}, Logger: slog.New(slog.DiscardHandler), Hold: time.Second, SessionTimeout: time.Minute}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"no relay":                 func(c *Config) { c.Relay = nil },
		"no refusals":              func(c *Config) { c.Refusals = nil },
		"no logger":                func(c *Config) { c.Logger = nil },
		"no hold":                  func(c *Config) { c.Hold = 0 },
		"no end of idle sessions":  func(c *Config) { c.SessionTimeout = 0 },
		"longer than clients wait": func(c *Config) { c.Hold = LongestHold + 1 },
	} {
		conf := good
		change(&conf)
		if _, err := New(conf); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// No call is held for longer than clients wait, whatever it waits for.
func TestBounds(t *testing.T) {
	began := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for hold, want := range map[time.Duration][3]time.Duration{
		time.Second:      {time.Second, 11 * time.Second, time.Second},
		40 * time.Second: {40 * time.Second, 45 * time.Second, 2 * time.Second},
		LongestHold:      {45 * time.Second, 45 * time.Second, 2 * time.Second},
	} {
		s := &Server{conf: Config{Hold: hold}}
		held, asTask := s.held(began), s.heldAsTask(began)
		got := [3]time.Duration{held.decided.Sub(began), held.done.Sub(began), asTask.done.Sub(began)}
		if diff := cmp.Diff(want, got); diff != "" || asTask.decided != asTask.done {
			t.Errorf("with a hold of %v (-want +got):\n%s", hold, diff)
		}
	}
}
