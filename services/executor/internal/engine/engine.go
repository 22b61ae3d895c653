// Package engine speaks to model servers what the catalog says of them: how they go to sleep and wake, how many requests they
// are busy with, and one token that warms them up. vLLM and llama-server in router mode sleep; whatever speaks OpenAI's API is
// warmed up; whoever shows Prometheus metrics under a name that is known here tells of its requests.
//
// It runs in the executor and reaches loopback alone. It sends fixed methods to fixed paths and nothing that an agent wrote. It
// believes no engine: that one says it sleeps frees no memory, and the service package measures (vLLM issues 32714, 47654).
//
// Sources: vLLM's vllm/entrypoints/serve/sleep/api_router.py and docs/features/sleep_mode.md (the level and everything else are
// query parameters; a JSON body is ignored, so that every such sleep is level 1); llama.cpp's tools/server/README.md.
package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"durward.internal/services/executor/internal/health"
	"durward.internal/services/platform/catalog"
)

const (
	// maxAnswer is how much of an engine's answer is read; metrics have a bound of their own.
	maxAnswer = 1 << 20
	// askTimeout bounds what an engine answers from memory.
	askTimeout = 5 * time.Second
	// pollInterval is the pace at which a change is waited for.
	pollInterval = 100 * time.Millisecond
)

// Reasons why an engine did not do what it was asked to; for our own log.
var (
	ErrCannotSleep = errors.New("the catalogue says no way for this service to sleep")
	ErrStatus      = errors.New("the engine's answer is not a success")
	ErrAnswer      = errors.New("the engine's answer is not one that its API has")
	ErrState       = errors.New("the engine says that it did it and its state says otherwise")
	ErrLoad        = errors.New("the engine could not load a model")
	// ErrRefused is a request that no waiting makes better: 4xx.
	ErrRefused = errors.New("the engine does not take that request")
)

// Client asks engines. It is safe for concurrent use.
type Client struct{ http *http.Client }

// New returns a Client.
func New() *Client {
	transport := health.Transport()
	transport.DisableKeepAlives = true
	return &Client{&http.Client{Transport: transport, CheckRedirect: health.NoRedirect}}
}

// Sleeps reports whether the entry says how the service sleeps.
func Sleeps(s *catalog.Service) bool { return s.Sleep != "" && s.Sleep != catalog.SleepNone }

// Sleep asks the engine to free its GPU memory and returns when it says that it did, with the models that Wake is to load again
// where the engine has many. An engine that sleeps already is left alone. How long it may take is ctx's affair.
func (c *Client) Sleep(ctx context.Context, s *catalog.Service) (models []string, err error) {
	switch s.Sleep {
	case catalog.SleepVLLM1:
		return nil, c.vllmSleep(ctx, s, "1")
	case catalog.SleepVLLM2:
		return nil, c.vllmSleep(ctx, s, "2")
	case catalog.SleepLlamaRouter:
		return c.unload(ctx, s)
	default:
		return nil, ErrCannotSleep
	}
}

// Wake asks the engine to take its memory again and returns when it says that it answers. models are what Sleep returned; without
// any, a llama-server loads the entry's own model.
func (c *Client) Wake(ctx context.Context, s *catalog.Service, models []string) error {
	switch s.Sleep {
	case catalog.SleepVLLM1, catalog.SleepVLLM2:
		return c.vllmWake(ctx, s)
	case catalog.SleepLlamaRouter:
		return c.load(ctx, s, models)
	default:
		return ErrCannotSleep
	}
}

// Asleep reports whether the engine says that it sleeps.
func (c *Client) Asleep(ctx context.Context, s *catalog.Service) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	switch s.Sleep {
	case catalog.SleepVLLM1, catalog.SleepVLLM2:
		return c.vllmAsleep(ctx, s)
	case catalog.SleepLlamaRouter:
		return c.unloaded(ctx, s)
	default:
		return false, nil
	}
}

// Warm asks for one token, or for one vector of a model that only embeds, so that no user's request is the first. ErrRefused: the
// service does not serve the model under that API; other errors may pass.
func (c *Client) Warm(ctx context.Context, s *catalog.Service) error {
	model, err := json.Marshal(s.ServedModel())
	if err != nil {
		return err
	}
	const one = `"max_tokens":1,"temperature":0,"stream":false`
	for _, request := range []struct{ path, rest string }{
		// Text completion needs no chat template; some servers have the chat alone.
		{"/completions", `"prompt":"1",` + one},
		{"/chat/completions", `"messages":[{"role":"user","content":"1"}],` + one},
		{"/embeddings", `"input":"1"`},
	} {
		err = c.post(ctx, s.BaseURL+request.path, fmt.Appendf(nil, `{"model":%s,%s}`, model, request.rest))
		if !errors.Is(err, ErrRefused) {
			return err
		}
	}
	return err
}

// at is an address of the engine itself, beside its API for clients.
func at(s *catalog.Service, path string, query url.Values) string {
	u := url.URL{Scheme: "http", Host: s.Address().String(), Path: path, RawQuery: query.Encode()}
	return u.String()
}

// post sends a JSON body, or none, and wants a success.
func (c *Client) post(ctx context.Context, to string, body []byte) error {
	_, err := c.ask(ctx, http.MethodPost, to, body, maxAnswer)
	return err
}

// ask sends one request and returns the answer's body, at most limit bytes, if it is a success.
func (c *Client) ask(ctx context.Context, method, to string, body []byte, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	req.Header.Set("User-Agent", "durward-executor")
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	switch {
	case res.StatusCode >= 400 && res.StatusCode < 500 && res.StatusCode != http.StatusTooManyRequests:
		return nil, fmt.Errorf("%w: %s %s: %w %d", ErrRefused, method, req.URL.Path, ErrStatus, res.StatusCode)
	case res.StatusCode < 200 || res.StatusCode > 299:
		return nil, fmt.Errorf("%s %s: %w: %d", method, req.URL.Path, ErrStatus, res.StatusCode)
	case err != nil:
		return nil, fmt.Errorf("engine: %w", err)
	case int64(len(answer)) > limit:
		return nil, fmt.Errorf("%s %s: %w: it is too long", method, req.URL.Path, ErrAnswer)
	}
	return answer, nil
}

// decode reads an answer that must be JSON of the shape.
func decode(answer []byte, into any) error {
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	return nil
}
