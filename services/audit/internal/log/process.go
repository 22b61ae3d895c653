package log

import (
	"maps"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/reserve"
)

// processInterval is how often a full disk's reserve takes it from one writer that a process starts, and that one stops.
const processInterval = time.Minute

// process is what a record says of its writer's process.
type process struct {
	writer string
	kind   auditv1.Kind
}

// entitled reports whether a record of that writer may be written out of the reserve at that time. taken is when such records of
// processes were written so before; the record is added to it if it is one of them.
func entitled(writer string, record *auditv1.Record, at time.Time, taken map[process]time.Time) bool {
	if reserve.Entitled(record) {
		return true
	}
	kind := record.GetKind()
	if kind != auditv1.Kind_KIND_STARTED && kind != auditv1.Kind_KIND_STOPPED {
		return false
	}
	// The gateway meets the agents: whoever took it over could say that it starts until no room is left for a halt.
	id, err := identity.Parse(writer)
	if err != nil || id.Role() == optionsv1.Role_ROLE_GATEWAY {
		return false
	}
	key := process{writer, kind}
	if last, ok := taken[key]; ok && at.Sub(last) < processInterval {
		return false
	}
	maps.DeleteFunc(taken, func(_ process, last time.Time) bool { return at.Sub(last) >= processInterval })
	taken[key] = at
	return true
}
