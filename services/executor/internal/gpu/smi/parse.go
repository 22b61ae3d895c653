package smi

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"durward.internal/services/executor/internal/gpu"
)

// What nvidia-smi is asked. The name comes last: it alone could hold a comma.
const (
	format       = "--format=csv,noheader,nounits"
	measurements = "utilization.gpu,temperature.gpu,power.draw,ecc.errors.uncorrected.volatile.total,name"
	fields       = "index,uuid,memory.total,memory.used,memory.free,memory.reserved," + measurements
	fieldsBefore = "index,uuid,memory.total,memory.used,memory.free," + measurements

	programFields = "gpu_uuid,pid,used_memory"

	separator  = ", "
	maxDevices = 64
	maxPID     = 1 << 22
)

// parseDevices reads one GPU a line.
func parseDevices(raw []byte, reserved bool) ([]gpu.Device, error) {
	n := strings.Count(fieldsBefore, ",") + 1
	if reserved {
		n++
	}
	var out []gpu.Device
	seen := map[string]bool{}
	for line := range lines(raw) {
		row := strings.SplitN(line, separator, n)
		if len(row) != n || len(out) == maxDevices {
			return nil, fmt.Errorf("%w: a line for a GPU", errOutput)
		}
		d, err := parseDevice(row, reserved)
		if err != nil {
			return nil, err
		}
		if seen[d.UUID] {
			return nil, fmt.Errorf("%w: one GPU twice", errOutput)
		}
		seen[d.UUID] = true
		out = append(out, d)
	}
	return out, nil
}

func parseDevice(row []string, reserved bool) (gpu.Device, error) {
	index, err := strconv.ParseUint(row[0], 10, 16)
	if err != nil {
		return gpu.Device{}, fmt.Errorf("%w: a GPU's index", errOutput)
	}
	if !uuid(row[1]) {
		return gpu.Device{}, fmt.Errorf("%w: a GPU's UUID", errOutput)
	}
	d := gpu.Device{Index: uint32(index), UUID: row[1], Name: row[len(row)-1]}
	rest := row[2 : len(row)-1]
	var sizes [4]*uint32
	for i := range 3 {
		sizes[i] = number(rest[i])
	}
	rest = rest[3:]
	if reserved {
		sizes[3], rest = number(rest[0]), rest[1:]
	}
	// A GPU that fell off the bus has an error in every column.
	if sizes[0] == nil || sizes[1] == nil || sizes[2] == nil {
		return gpu.Device{Index: d.Index, UUID: d.UUID, Problem: gpu.ProblemLost}, nil
	}
	d.Total, d.Used, d.Free = *sizes[0], *sizes[1], *sizes[2]
	if sizes[3] != nil {
		d.Reserved = *sizes[3]
	}
	d.Utilisation, d.Temperature, d.Power, d.ECC = number(rest[0]), number(rest[1]), number(rest[2]), number(rest[3])
	return d, nil
}

// parsePrograms reads one program on one GPU a line.
func parsePrograms(raw []byte) (map[string][]gpu.Process, error) {
	out := map[string][]gpu.Process{}
	for line := range lines(raw) {
		row := strings.Split(line, separator)
		if len(row) != 3 || !uuid(row[0]) {
			return nil, fmt.Errorf("%w: a line for a program", errOutput)
		}
		pid, err := strconv.ParseUint(row[1], 10, 32)
		if err != nil || pid == 0 || pid > maxPID {
			return nil, fmt.Errorf("%w: a program's pid", errOutput)
		}
		p := gpu.Process{PID: int(pid)}
		if mib := number(row[2]); mib != nil {
			p.MiB = *mib
		}
		out[row[0]] = append(out[row[0]], p)
	}
	return out, nil
}

// lines are the lines that say something.
func lines(raw []byte) func(func(string) bool) {
	return func(yield func(string) bool) {
		for line := range strings.Lines(string(raw)) {
			if line = strings.TrimSpace(line); line != "" && !yield(line) {
				return
			}
		}
	}
}

// number is a whole number, or the whole part of one with decimals; nil for everything else, such as "[N/A]".
func number(text string) *uint32 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || v < 0 || v > math.MaxUint32 {
		return nil
	}
	n := uint32(v)
	return &n
}

// uuid reports whether the text looks like a GPU's: "GPU-", hexadecimal digits and hyphens.
func uuid(text string) bool {
	rest, ok := strings.CutPrefix(text, "GPU-")
	if !ok || rest == "" || len(rest) > 60 || !utf8.ValidString(rest) {
		return false
	}
	return strings.Trim(rest, "0123456789abcdefABCDEF-") == ""
}
