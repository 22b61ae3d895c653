package service

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/telemetry/span"
)

// start is the driver's Start with its span: what touches the host.
func start(ctx context.Context, d Driver, s *catalog.Service, definition string) error {
	ctx, traced := span.Start(ctx, span.DriverStart, trace.SpanKindInternal)
	err := d.Start(ctx, s, definition)
	span.End(traced, err)
	return err
}

// stop is the driver's Stop with its span.
func stop(ctx context.Context, d Driver, s *catalog.Service) (bool, error) {
	ctx, traced := span.Start(ctx, span.DriverStop, trace.SpanKindInternal)
	changed, err := d.Stop(ctx, s)
	span.End(traced, err)
	return changed, err
}
