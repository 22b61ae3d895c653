// Package card runs Durward's programs on a host with a real NVIDIA card: its services take real memory, and nvidia-smi is asked for
// what is so. scripts/gpu.sh builds and runs it, with the tag hardware.
package card
