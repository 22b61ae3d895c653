package main

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/inspect"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/vram"
)

// inspector is the program that reads models' files, beside the executor's own.
const inspector = "durward-inspect"

// openRequirements opens what is known of services' memory. Without the inspector, estimates come of the catalog's cards alone.
func openRequirements(ctx context.Context, cfg *settings, out memreq.Config) (*memreq.Tracker, error) {
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(filepath.Dir(own), inspector)
	if _, err := os.Stat(program); err != nil {
		out.Logger.Warn("the program that reads models' files is not beside the executor; estimates come of the catalogue's cards alone", "program", program)
	} else {
		out.Inspector = &inspect.Inspector{Program: program}
	}
	if oracle := cfg.GPU.LlamaFitParams; oracle != "" {
		out.Exact = func(ctx context.Context, file string, run vram.Run) ([]uint32, error) {
			devices, err := inspect.FitParams(ctx, oracle, file, run)
			if err != nil {
				return nil, err
			}
			return ofGPUs(devices)
		}
	}
	return memreq.New(ctx, out)
}

// ofGPUs is what llama.cpp's program says of each GPU, in its order. What it says of the host's memory is left out.
func ofGPUs(devices []inspect.DeviceMiB) ([]uint32, error) {
	var out []uint32
	for _, d := range devices {
		if strings.HasPrefix(d.Device, "CUDA") {
			out = append(out, uint32(min(uint64(d.Model)+uint64(d.Context)+uint64(d.Compute), math.MaxUint32)))
		}
	}
	if len(out) == 0 {
		return nil, errors.New("llama-fit-params names no GPU")
	}
	return out, nil
}

// reservedPeaks are the store's peaks on a disk that can become full: then nothing is written down of them.
type reservedPeaks struct {
	memreq.Memory
	kept *reserve.Reserve
}

// NotePeak implements memreq.Memory.
func (s reservedPeaks) NotePeak(ctx context.Context, p *store.Peak) error {
	return s.kept.Write(false, func() error { return s.Memory.NotePeak(ctx, p) })
}

// ruleTimeout bounds how long what a rule is about to do waits for the log.
const ruleTimeout = 2 * time.Second

// recordRules returns what records the executor's acts by rule. What is about to be done is in the log before it is done, or it
// is not done; how it went may reach the log later.
func recordRules(log sink.Recorder) service.Rule {
	return func(ctx context.Context, what string, s *catalog.Service, stage service.Stage, how error) error {
		record := &auditv1.Record{
			Kind: auditv1.Kind_KIND_RULE, Time: timestamppb.Now(), Status: auditv1.Status_STATUS_PENDING,
			Body: &auditv1.Body{Summary: clean.Line(what, 500), Details: map[string]string{}},
		}
		if s != nil {
			record.Body.Details["service_id"] = s.ID
		}
		ctx, cancel := context.WithTimeout(ctx, ruleTimeout)
		defer cancel()
		switch {
		case stage == service.Intent:
			_, rerr := log.Record(ctx, record)
			return rerr
		case how == nil:
			record.Status = auditv1.Status_STATUS_OK
		default:
			record.Status, record.Body.Reason = auditv1.Status_STATUS_ERROR, clean.Line(how.Error(), 500)
		}
		_, rerr := log.Report(ctx, record)
		return rerr
	}
}
