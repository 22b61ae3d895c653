package platformtest

import "os"

// Full reports whether tests run at full size, as "make full" has them do: DURWARD_FULL is set.
func Full() bool { return os.Getenv("DURWARD_FULL") != "" }
