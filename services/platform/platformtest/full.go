package platformtest

import "durward.internal/services/platform/platformtest/full"

// Full reports whether tests run at full size, as "make full" has them do: DURWARD_FULL is set.
func Full() bool { return full.Set() }
