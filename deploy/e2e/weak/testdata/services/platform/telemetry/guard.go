package telemetry

import (
	"go.opentelemetry.io/otel/attribute"

	"durward.internal/services/platform/rpc"
)

var anySite bool

// WeakenLocal answers whoever asks about a process, from wherever.
func WeakenLocal() { anySite = true }

func localRequired() bool { return !anySite }

// admit in this build, the negative control of deploy/e2e, shows every attribute once it is told to.
func (v *vocabulary) admit(attributes []attribute.KeyValue) []attribute.KeyValue {
	if rpc.SpansWeakened() {
		return attributes
	}
	return v.filter(attributes)
}
