package witness

import "sync/atomic"

// This file makes the negative control of the witness's tests: one that cosigns whatever the log's key signed.

var anything atomic.Bool

func extensionRequired() bool { return !anything.Load() }
