package approval

import executorv1 "durward.internal/proto/gen/durward/executor/v1"

// folded, weakened: padding lays out what it likes.
func folded(text string) string { return text }

// own, weakened: a sink is believed.
func own(_, said *executorv1.PreviewCallResponse) *executorv1.PreviewCallResponse { return said }
