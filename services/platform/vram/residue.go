package vram

import "durward.internal/services/platform/catalogue"

// Residue is what stays on each GPU of a service that sleeps in that way, in MiB, whatever its model is; 0 for a way that is not known.
func Residue(sleep string) uint32 {
	switch sleep {
	case catalogue.SleepVLLM1, catalogue.SleepVLLM2:
		return residueMiB
	case catalogue.SleepLlamaRouter:
		return contextMiB
	}
	return 0
}
