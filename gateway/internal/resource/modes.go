package resource

import (
	"context"
	"fmt"
	"strings"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/contract"
)

// ids are the ids of everything of a kind that the catalog of the host has.
func (b *Reader) ids(ctx context.Context, c Client, kind Kind) (ids []string, err error) {
	switch kind {
	case Service:
		got, _, err := b.list(ctx, c)
		for _, s := range got.GetServices() {
			ids = append(ids, s.GetServiceId())
		}
		return ids, err
	case Mode:
		got, _, err := readTool[*executorv1.ListModesResponse](ctx, b, c, toolModes, &executorv1.ListModesRequest{})
		for _, m := range got.GetModes() {
			ids = append(ids, m.GetModeId())
		}
		return ids, err
	case Model:
		got, _, err := readTool[*executorv1.ListModelsResponse](ctx, b, c, toolModels, &executorv1.ListModelsRequest{})
		for _, m := range got.GetModels() {
			ids = append(ids, m.GetModelId())
		}
		return ids, err
	default:
		return nil, nil
	}
}

func (b *Reader) modes(ctx context.Context, c Client) (page, error) {
	return pageOf(ctx, b, c, toolModes, &executorv1.ListModesRequest{}, func(d *document, got *executorv1.ListModesResponse) {
		d.title("Modes")
		if len(got.GetModes()) == 0 {
			d.line("The catalogue of this host holds no mode.")
			return
		}
		current := "The host was switched to no mode."
		if got.GetCurrent() != "" {
			current = "The host was switched last to " + cell(got.GetCurrent()) + "."
		}
		d.line(current)
		rows := [][]string{{"mode_id", "runs", "services, in order", "VRAM MiB", "name"}}
		for _, m := range got.GetModes() {
			rows = append(rows, []string{
				m.GetModeId(), yes(m.GetRunning()), strings.Join(m.GetServices(), ", "), fmt.Sprint(m.GetVramMib()), m.GetName(),
			})
		}
		d.table(rows)
		d.line("VRAM is declared, not measured. Details of one: " + Scheme + prefixModes + "{mode_id}")
	})
}

func (b *Reader) mode(ctx context.Context, c Client, id string) (page, error) {
	return pageOf(ctx, b, c, toolMode, &executorv1.ModeInfoRequest{ModeId: &id}, func(d *document, got *executorv1.ModeInfoResponse) {
		d.title("Mode " + got.GetModeId())
		rows := [][]string{{"", ""}, {"current", yes(got.GetCurrent())}}
		for _, row := range [][]string{
			{"name", got.GetName()}, {"description", got.GetDescription()}, {"drifted", strings.Join(got.GetDrifted(), ", ")},
		} {
			if row[1] != "" {
				rows = append(rows, row)
			}
		}
		d.table(rows)
		rows = [][]string{{"service_id, in order", "state", "model", "VRAM MiB"}}
		for _, s := range got.GetServices() {
			rows = append(rows, []string{s.GetServiceId(), contract.WordOf(s.GetState()), s.GetModel(), fmt.Sprint(s.GetVramMib())})
		}
		d.table(rows)
		if len(got.GetDrifted()) > 0 {
			d.line("Selecting the mode again, with simulate_mode and switch_mode, starts what drifted.")
		}
	})
}

func (b *Reader) models(ctx context.Context, c Client) (page, error) {
	return pageOf(ctx, b, c, toolModels, &executorv1.ListModelsRequest{}, func(d *document, got *executorv1.ListModelsResponse) {
		d.title("Models")
		if len(got.GetModels()) == 0 {
			d.line("The catalogue of this host holds no model.")
			return
		}
		rows := [][]string{{"model_id", "answers now", "name in requests", "services"}}
		for _, m := range got.GetModels() {
			rows = append(rows, []string{m.GetModelId(), yes(m.GetAvailable()), m.GetServedName(), strings.Join(m.GetServices(), ", ")})
		}
		d.table(rows)
		d.line("Details of one: " + Scheme + prefixModels + "{model_id}")
	})
}

func (b *Reader) model(ctx context.Context, c Client, id string) (page, error) {
	return pageOf(ctx, b, c, toolModel, &executorv1.ModelInfoRequest{ModelId: &id}, func(d *document, got *executorv1.ModelInfoResponse) {
		d.title("Model " + got.GetModelId())
		rows := [][]string{{"", ""}, {"name in requests", got.GetServedName()}}
		if got.GetSource() != "" {
			rows = append(rows, []string{"source", got.GetSource()})
		}
		d.table(rows)
		rows = [][]string{{"service_id", "state", "base_url"}}
		for _, s := range got.GetServices() {
			rows = append(rows, []string{s.GetServiceId(), contract.WordOf(s.GetState()), s.GetBaseUrl()})
		}
		d.table(rows)
	})
}
