package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clock"
)

// maxModels bounds how many models of one router are looked at.
const maxModels = 1024

// model is one model of a llama-server in router mode, as GET /models shows it.
type model struct {
	ID     string `json:"id"`
	Status struct {
		// Value is unloaded, loading, loaded, sleeping or downloading.
		Value  string `json:"value"`
		Failed bool   `json:"failed"`
	} `json:"status"`
}

// holds reports whether the model has a process that holds memory, or will.
func (m model) holds() bool {
	switch m.Status.Value {
	case "loading", "loaded", "sleeping":
		return true
	}
	return false
}

func (c *Client) models(ctx context.Context, s *catalog.Service) ([]model, error) {
	answer, err := c.ask(ctx, http.MethodGet, at(s, "/models", nil), nil, maxAnswer)
	if err != nil {
		return nil, err
	}
	var list struct {
		Data []model `json:"data"`
	}
	if err := decode(answer, &list); err != nil {
		return nil, err
	}
	if list.Data == nil || len(list.Data) > maxModels {
		return nil, fmt.Errorf("%w: a list of models is missing or too long", ErrAnswer)
	}
	for _, m := range list.Data {
		if m.ID == "" || m.Status.Value == "" {
			return nil, fmt.Errorf("%w: a model without id or status; is it a router?", ErrAnswer)
		}
	}
	return list.Data, nil
}

// unloaded reports whether no model holds memory.
func (c *Client) unloaded(ctx context.Context, s *catalog.Service) (bool, error) {
	models, err := c.models(ctx, s)
	return err == nil && !slices.ContainsFunc(models, model.holds), err
}

// unload unloads every model that holds memory, and waits until none does: the router answers before it is done.
func (c *Client) unload(ctx context.Context, s *catalog.Service) ([]string, error) {
	models, err := c.models(ctx, s)
	if err != nil {
		return nil, err
	}
	var unloading []string
	for _, m := range models {
		if !m.holds() {
			continue
		}
		if err := c.post(ctx, at(s, "/models/unload", nil), named(m.ID)); err != nil {
			return nil, err
		}
		unloading = append(unloading, m.ID)
	}
	return unloading, c.until(ctx, s, func(m model) (bool, error) { return !m.holds(), nil })
}

// load loads the models and waits until each is loaded.
func (c *Client) load(ctx context.Context, s *catalog.Service, wanted []string) error {
	if len(wanted) == 0 && s.ServedModel() != "" {
		wanted = []string{s.ServedModel()}
	}
	models, err := c.models(ctx, s)
	if err != nil {
		return err
	}
	for _, id := range wanted {
		i := slices.IndexFunc(models, func(m model) bool { return m.ID == id })
		if i < 0 {
			return fmt.Errorf("%w: it has none of that name", ErrLoad)
		}
		if models[i].holds() {
			continue // loaded, or on its way; a second request for it would be refused
		}
		if err := c.post(ctx, at(s, "/models/load", nil), named(id)); err != nil {
			return err
		}
	}
	return c.until(ctx, s, func(m model) (bool, error) {
		switch {
		case !slices.Contains(wanted, m.ID), m.Status.Value == "loaded", m.Status.Value == "sleeping":
			return true, nil // one that sleeps wakes with its first request
		case m.Status.Failed && m.Status.Value == "unloaded":
			return false, ErrLoad
		}
		return false, nil
	})
}

// until waits until every model of the router is as it should be.
func (c *Client) until(ctx context.Context, s *catalog.Service, good func(model) (bool, error)) error {
	for {
		models, err := c.models(ctx, s)
		if err != nil {
			return err
		}
		all := true
		for _, m := range models {
			ok, err := good(m)
			if err != nil {
				return err
			}
			all = all && ok
		}
		if all {
			return nil
		}
		if !clock.Sleep(ctx, pollInterval) {
			return fmt.Errorf("%w: %w", ErrState, ctx.Err())
		}
	}
}

// named is the body that names a model.
func named(id string) []byte {
	body, err := json.Marshal(struct {
		Model string `json:"model"`
	}{id})
	if err != nil {
		return nil // a string always has a JSON form
	}
	return body
}
