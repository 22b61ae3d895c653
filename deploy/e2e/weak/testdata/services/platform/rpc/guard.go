package rpc

import (
	"fmt"
	"slices"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// This file makes the negative controls of deploy/e2e: a server without its check of callers, whose spans show what was sent, or
// that says nothing of what gRPC and TLS refuse.

// GuardCallers is the name of the guard that WeakenCallers removes.
const GuardCallers = "callers"

// GuardSpans is the name of the guard that WeakenSpans removes.
const GuardSpans = "spans"

// GuardUnseen is the name of the guard that WeakenUnseen removes.
const GuardUnseen = "unseen"

var anyCaller, anySpan, silent atomic.Bool

// WeakenCallers lets every role call every method.
func WeakenCallers() { anyCaller.Store(true) }

func roleAllowed(callers []optionsv1.Role, role optionsv1.Role) bool {
	return anyCaller.Load() || slices.Contains(callers, role)
}

// WeakenUnseen tells nobody of what gRPC and TLS refuse by themselves.
func WeakenUnseen() { silent.Store(true) }

func unseenTold() bool { return !silent.Load() }

// WeakenSpans puts whole requests into spans, and lets them out of the process.
func WeakenSpans() { anySpan.Store(true) }

// SpansWeakened reports whether WeakenSpans was called.
func SpansWeakened() bool { return anySpan.Load() }

func describe(s trace.Span, request any) {
	if SpansWeakened() && s.IsRecording() {
		s.SetAttributes(attribute.String("durward.request", fmt.Sprint(request)))
	}
}
