package discover

import (
	"context"
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/hostprogram"
	"durward.internal/services/platform/pattern"
)

// GPU is one that nvidia-smi lists. Sizes are MiB.
type GPU struct {
	Index             uint32
	UUID, Name        string
	TotalMiB, FreeMiB uint32
}

// Holder is a program that holds memory of a GPU.
type Holder struct {
	UUID string
	PID  int
	// MiB is 0 where the driver does not say.
	MiB uint32
}

var uuidPattern = pattern.New(`\A(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z`)

const smiFormat = "--format=csv,noheader,nounits"

// GPUs lists the host's GPUs and the programs on them. A host without nvidia-smi has none, which is no error.
func GPUs(ctx context.Context, run Runner) ([]GPU, []Holder, error) {
	smi, err := hostprogram.Find("nvidia-smi")
	if err != nil {
		return nil, nil, nil //nolint:nilerr // no GPU that could be asked for
	}
	return gpus(ctx, run, smi)
}

func gpus(ctx context.Context, run Runner, smi string) ([]GPU, []Holder, error) {
	raw, err := run(ctx, smi, "--query-gpu=index,uuid,name,memory.total,memory.free", smiFormat)
	if err != nil {
		return nil, nil, err
	}
	rows, err := table(raw, 5)
	if err != nil {
		return nil, nil, err
	}
	var out []GPU
	for _, row := range rows {
		index, err := strconv.ParseUint(row[0], 10, 6)
		if err != nil || !uuidPattern().MatchString(row[1]) {
			return nil, nil, errSMI
		}
		out = append(out, GPU{Index: uint32(index), UUID: row[1], Name: clean.Line(row[2], 64), TotalMiB: number(row[3]), FreeMiB: number(row[4])})
	}
	if raw, err = run(ctx, smi, "--query-compute-apps=gpu_uuid,pid,used_memory", smiFormat); err != nil {
		return out, nil, err
	}
	if rows, err = table(raw, 3); err != nil {
		return out, nil, err
	}
	var holders []Holder
	for _, row := range rows {
		pid, err := strconv.Atoi(row[1])
		if err != nil || pid < 1 || !uuidPattern().MatchString(row[0]) {
			continue // "[Not Found]": the program ended meanwhile
		}
		holders = append(holders, Holder{UUID: row[0], PID: pid, MiB: number(row[2])})
	}
	return out, holders, nil
}

var errSMI = fmt.Errorf("nvidia-smi writes what is not understood")

// table reads comma-separated lines of so many cells.
func table(raw []byte, cells int) ([][]string, error) {
	r := csv.NewReader(strings.NewReader(string(raw)))
	r.FieldsPerRecord, r.TrimLeadingSpace, r.LazyQuotes = cells, true, true
	rows, err := r.ReadAll()
	if err != nil {
		return nil, errSMI
	}
	for _, row := range rows {
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
	}
	return rows, nil
}

// number is a cell's MiB, or 0 where it holds a word such as [N/A].
func number(cell string) uint32 {
	n, err := strconv.ParseUint(cell, 10, 24)
	if err != nil {
		return 0
	}
	return uint32(n)
}
