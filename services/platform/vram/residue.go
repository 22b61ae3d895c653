package vram

import "durward.internal/services/platform/catalog"

// Residue is what stays on each GPU of a service that sleeps in that way, in MiB, whatever its model is; 0 for a way that is not known.
func Residue(sleep string) uint32 {
	switch sleep {
	case catalog.SleepVLLM1, catalog.SleepVLLM2:
		return residueMiB
	case catalog.SleepLlamaRouter:
		return contextMiB
	}
	return 0
}
