package engine

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"durward.internal/services/platform/catalog"
)

func (c *Client) vllmAsleep(ctx context.Context, s *catalog.Service) (bool, error) {
	answer, err := c.ask(ctx, http.MethodGet, at(s, "/is_sleeping", nil), nil, maxAnswer)
	if err != nil {
		return false, err
	}
	var state struct {
		Sleeping *bool `json:"is_sleeping"`
	}
	if err := decode(answer, &state); err != nil {
		return false, err
	}
	if state.Sleeping == nil {
		return false, fmt.Errorf("%w: is_sleeping is not told", ErrAnswer)
	}
	return *state.Sleeping, nil
}

// vllmSleep waits for requests in flight (mode=wait; a vLLM that does not know the parameter ends them, which is why the service
// package drains first).
func (c *Client) vllmSleep(ctx context.Context, s *catalog.Service, level string) error {
	if asleep, err := c.vllmAsleep(ctx, s); err != nil || asleep {
		return err
	}
	if err := c.post(ctx, at(s, "/sleep", url.Values{"level": {level}, "mode": {"wait"}}), nil); err != nil {
		return err
	}
	return c.vllmIs(ctx, s, true)
}

// vllmWake brings level 2 back in vLLM's own order: memory for the weights, the weights, memory for the cache, and no cached
// prefix of before. Without the second step the engine answers nonsense.
func (c *Client) vllmWake(ctx context.Context, s *catalog.Service) error {
	type call struct {
		path  string
		query url.Values
		body  []byte
	}
	calls := []call{{path: "/wake_up"}}
	if s.Sleep == catalog.SleepVLLM2 {
		calls = []call{
			{path: "/wake_up", query: url.Values{"tags": {"weights"}}},
			{path: "/collective_rpc", body: []byte(`{"method":"reload_weights"}`)},
			{path: "/wake_up", query: url.Values{"tags": {"kv_cache"}}},
			{path: "/reset_prefix_cache"},
		}
	}
	for _, one := range calls {
		if err := c.post(ctx, at(s, one.path, one.query), one.body); err != nil {
			return err
		}
	}
	return c.vllmIs(ctx, s, false)
}

// vllmIs checks what the engine says of itself after it said that it was done.
func (c *Client) vllmIs(ctx context.Context, s *catalog.Service, want bool) error {
	switch asleep, err := c.vllmAsleep(ctx, s); {
	case err != nil:
		return err
	case asleep != want:
		return fmt.Errorf("%w: is_sleeping is %t", ErrState, asleep)
	}
	return nil
}
