package platformtest

import "durward.internal/services/platform/platformtest/full"

// Full reports whether tests go through everything instead of a sample.
func Full() bool { return full.Set() }
