package containerpolicy

import (
	"slices"
	"strings"

	"durward.internal/services/platform/pattern"
)

// CDIPrefix names NVIDIA's GPUs in the Container Device Interface.
const CDIPrefix = "nvidia.com/gpu="

// gpuUUID is how a GPU, or a part of one, is named for good; an index would be another GPU's after a reboot.
var gpuUUID = pattern.New(`\A(GPU|MIG)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\z`)

// IsUUID reports whether s names one GPU for good.
func IsUUID(s string) bool { return gpuUUID().MatchString(s) }

// deviceRequest is how GPUs are asked for.
type deviceRequest struct {
	Driver       string
	Count        int
	DeviceIDs    []string
	Capabilities [][]string
	Options      map[string]string
}

// deviceRequests: the entry's GPUs, one by one and by name. "All", a number of them, and another vendor's driver are not asked
// for, and devices proper and device rules have no rule at all.
func deviceRequests(k *check) string {
	for _, d := range k.Host.DeviceRequests {
		if d.Count != 0 || len(d.Options) > 0 || len(d.DeviceIDs) == 0 {
			return "GPUs are named one by one"
		}
		prefix := ""
		switch d.Driver {
		case "cdi":
			prefix = CDIPrefix
			if len(d.Capabilities) > 0 {
				return "a CDI device has no capabilities"
			}
		case "nvidia":
			if wrong := gpuCapabilities(d.Capabilities); wrong != "" {
				return wrong
			}
		default:
			return "the driver must be cdi or nvidia"
		}
		for _, id := range d.DeviceIDs {
			uuid, found := strings.CutPrefix(id, prefix)
			if !found || !IsUUID(uuid) || !slices.Contains(k.GPUs, uuid) {
				return safe(id) + " is not one of the entry's GPUs by UUID"
			}
		}
	}
	return ""
}

// gpuCapabilities are what of the driver is put into the container: computing and its tools, no display, no graphics.
func gpuCapabilities(groups [][]string) string {
	if len(groups) != 1 || !slices.Contains(groups[0], "gpu") {
		return "must ask for a gpu"
	}
	for _, c := range groups[0] {
		if c != "gpu" && c != "compute" && c != "utility" {
			return safe(c) + " is not for computing"
		}
	}
	return ""
}

// asksDriver reports whether NVIDIA's hook is told which GPUs to put in, so that what the environment says does not count.
func (k *check) asksDriver() bool {
	return slices.ContainsFunc(k.Host.DeviceRequests, func(d deviceRequest) bool { return d.Driver == "nvidia" })
}
