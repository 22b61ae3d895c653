package platformtest

import "os"

// Full reports whether tests that take samples by default go through everything: whether DURWARD_FULL is set.
func Full() bool { return os.Getenv("DURWARD_FULL") != "" }
