package telemetry

import "go.opentelemetry.io/otel/attribute"

// localRequired reports whether who asks about a process must be on this machine, by Host and Origin.
func localRequired() bool { return true }

// admit returns the attributes of a span that may be shown.
func (v *vocabulary) admit(attributes []attribute.KeyValue) []attribute.KeyValue {
	return v.filter(attributes)
}
