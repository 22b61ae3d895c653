package capacity

import "durward.internal/services/executor/internal/gpu"

// Spare is what the GPU has for those who come, in MiB, as Check reckons it before anything is given back and without a margin;
// negative where more is promised than there is. ok is false for a GPU that cannot be measured or is not there.
func Spare(h gpu.Host, index uint32) (mib int64, ok bool) {
	g, found := h.Find(index)
	if !found || g.Problem != "" {
		return 0, false
	}
	return int64(g.Free) - promised(g) - owed(g), true
}
