package catalog

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/sizing"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/inspect"
	"durward.internal/services/platform/vram"
)

// estimated is what a service of the catalog takes by its card, on GPUs whose memory is known here, and the run that it was
// reckoned for.
func (a *app) estimated(ctx context.Context, c *catalog.Catalog, s *catalog.Service) (vram.Estimate, vram.Run, []sizing.GPU, error) {
	wanted := output.Each(s.GPUs, func(g uint32) uint { return uint(g) })
	if s.Model == nil || s.Model.Card == nil || len(wanted) == 0 {
		return vram.Estimate{}, vram.Run{}, nil, vram.ErrNoCard
	}
	gpus, err := a.serviceGPUs(ctx, &fromModel{gpus: wanted}, c)
	if err != nil {
		return vram.Estimate{}, vram.Run{}, nil, err
	}
	run, err := vram.RunOf(s)
	if err != nil {
		return vram.Estimate{}, run, nil, err
	}
	on := output.Each(gpus, func(g sizing.GPU) vram.GPU { return vram.GPU{TotalMiB: g.TotalMiB} })
	estimate, err := vram.Of(*s.Model.Card, run, on)
	return estimate, run, gpus, err
}

// estimateJSON is what --json says of memory, in MiB.
type estimateJSON struct {
	Source  string            `json:"source"`
	Context uint32            `json:"context"`
	PerGPU  map[string]uint32 `json:"per_gpu_mib"`
	Parts   map[string]uint32 `json:"parts_mib"`
	Fits    *bool             `json:"fits"`
	Exact   []ExactJSON       `json:"llama_fit_params,omitempty"`
}

type ExactJSON struct {
	Device  string `json:"device"`
	Model   uint32 `json:"model_mib"`
	Context uint32 `json:"context_mib"`
	Compute uint32 `json:"compute_mib"`
}

// showEstimate says what the service will take, part by part with the source, and returns the same for --json.
func (a *app) showEstimate(ctx context.Context, m *fromModel, c *catalog.Catalog, s *catalog.Service, file string) (*estimateJSON, error) {
	estimate, run, gpus, err := a.estimated(ctx, c, s)
	out := a.Display()
	if err != nil {
		out.Printf("%s what it takes cannot be estimated: %s\n", out.Yellow("!"), clean.Line(err.Error(), 300))
		return nil, nil
	}
	source := "estimated from the model's card"
	result := &estimateJSON{
		Source: vram.Estimated, Context: estimate.Context, PerGPU: map[string]uint32{},
		Parts: map[string]uint32{
			"weights": estimate.WeightsMiB, "kv_cache": estimate.KVMiB, "compute": estimate.ComputeMiB, "overhead": estimate.OverheadMiB,
			"claim": estimate.ClaimMiB, "host_while_loading": estimate.LoadHostMiB,
		},
	}
	tokens := uint64(estimate.Context)
	if estimate.ClaimMiB > 0 {
		tokens = estimate.KVTokens // it takes what the claim leaves
	}
	rows := [][]string{
		{"weights", cli.Mebibytes(estimate.WeightsMiB), source},
		{"KV cache", cli.Mebibytes(estimate.KVMiB), fmt.Sprintf("%s: room for %d tokens, %s", source, tokens, cmp.Or(run.CacheK, "f16"))},
		{"computation", cli.Mebibytes(estimate.ComputeMiB), source},
		{"driver and engine", cli.Mebibytes(estimate.OverheadMiB), "estimated: what the driver and such engines take besides"},
	}
	if estimate.ClaimMiB > 0 {
		rows = append(rows, []string{"claim", cli.Mebibytes(estimate.ClaimMiB), fmt.Sprintf("%s takes %.2f of each GPU whatever the model needs", run.Engine, run.Utilisation)})
	}
	out.Table([]string{"PART", "MEMORY", "SOURCE"}, rows)
	fits, sized := true, true
	for i, g := range gpus {
		need := estimate.PerGPU[i]
		result.PerGPU[strconv.FormatUint(uint64(g.Index), 10)] = need
		sized = sized && g.TotalMiB > 0
		fits = fits && uint64(need)+sizing.MarginMiB <= uint64(g.TotalMiB)
		of := "of a GPU whose memory is not known here"
		if g.TotalMiB > 0 {
			of = "of " + cli.Mebibytes(g.TotalMiB)
		}
		out.Printf("GPU %d: %s %s\n", g.Index, cli.Mebibytes(need), of)
	}
	if sized {
		fits = fits && estimate.Starts
		result.Fits = &fits
		if !fits {
			out.Printf("%s %s\n", out.Red("✗"), "it does not fit: a smaller context (--context), more GPUs (--gpus), or a smaller quantisation")
		}
	}
	if !m.exact {
		return result, nil
	}
	return result, a.showExact(ctx, m, run, file, result)
}

// showExact asks llama.cpp itself.
func (a *app) showExact(ctx context.Context, m *fromModel, run vram.Run, file string, result *estimateJSON) error {
	if run.Engine != enginecmd.LlamaCPP {
		return cli.Usage("", "--exact is for GGUF files: %s is llama.cpp's", oracle)
	}
	program := m.fitParams
	if program == "" {
		f, _, err := a.ExecutorFile()
		if err == nil {
			program = f.GPU.LlamaFitParams
		}
	}
	if program == "" {
		program, _ = exec.LookPath(oracle)
	}
	if program == "" {
		return cli.Failed("Name it: --llama-fit-params PATH", "%s is not in PATH", oracle)
	}
	program, err := filepath.Abs(program)
	if err != nil {
		return err
	}
	devices, err := inspect.FitParams(ctx, program, file, run)
	if err != nil {
		return cli.Failed("Leave --exact out to go by the estimate.", "%s: %s", clean.Visible(program), clean.Line(err.Error(), 300))
	}
	var rows [][]string
	for _, d := range devices {
		result.Exact = append(result.Exact, ExactJSON(d))
		rows = append(rows, []string{d.Device, cli.Mebibytes(d.Model), cli.Mebibytes(d.Context), cli.Mebibytes(d.Compute)})
	}
	out := a.Display()
	out.Printf("%s says, without the driver's own:\n", oracle)
	out.Table([]string{"DEVICE", "WEIGHTS", "KV CACHE", "COMPUTATION"}, rows)
	return nil
}
