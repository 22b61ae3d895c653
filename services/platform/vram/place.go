package vram

import (
	"errors"
	"strconv"
	"strings"
)

// ErrPlace means that it is not known how the options lay the model on the service's GPUs.
var ErrPlace = errors.New("the options --device, --split-mode, --tensor-split, --main-gpu and --override-tensor name GPUs or shares that the service does not have")

// placement is on which of a service's GPUs llama.cpp lays a model.
type placement struct {
	// gpus are those in llama.cpp's order, shares what each gets of the layers, main the one of them that has what is not split.
	gpus   []placed
	shares []uint64
	main   int
	// rows: each layer's weights are divided among all. keepsAll: main keeps the whole KV cache.
	rows, keepsAll bool
}

// placed is a GPU and its place among the service's.
type placed struct {
	GPU
	index int
}

func (p placement) sum() (all uint64) {
	for _, s := range p.shares {
		all += s
	}
	return all
}

// place reads llama.cpp's options for several GPUs (common/arg.cpp; src/llama.cpp and load_tensors in src/llama-model.cpp). Without
// any, layers go by the GPUs' memory.
func (r Run) place(gpus []GPU) (placement, error) {
	var p placement
	if r.Devices == "" {
		for i, g := range gpus {
			p.gpus = append(p.gpus, placed{g, i})
		}
	}
	if r.Devices != "" && r.Devices != "none" {
		seen := make([]bool, len(gpus))
		for name := range strings.SplitSeq(r.Devices, ",") {
			digits := strings.TrimLeft(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
			i, err := strconv.ParseUint(digits, 10, 16)
			if err != nil || i >= uint64(len(gpus)) || seen[i] {
				return placement{}, ErrPlace
			}
			seen[i] = true
			p.gpus = append(p.gpus, placed{gpus[i], int(i)})
		}
	}
	switch {
	case len(p.gpus) == 0:
		return p, nil
	case r.Moved && len(p.gpus) > 1:
		return placement{}, ErrPlace
	}
	switch r.SplitMode {
	case "", "layer":
	case "none":
		if uint64(r.MainGPU) >= uint64(len(p.gpus)) {
			return placement{}, ErrPlace
		}
		p.gpus, p.shares = p.gpus[r.MainGPU:r.MainGPU+1], []uint64{1}
		return p, nil
	case "row", "tensor":
		if uint64(r.MainGPU) >= uint64(len(p.gpus)) {
			return placement{}, ErrPlace
		}
		p.main, p.rows = int(r.MainGPU), true
		// By its help main has the cache; its code lays the cache with the layers. Both are counted.
		p.keepsAll = r.SplitMode == "row"
	default:
		return placement{}, ErrPlace
	}
	given, ok := shares(r.TensorSplit, len(p.gpus))
	if !ok {
		return placement{}, ErrPlace
	}
	if p.shares = given; p.sum() == 0 {
		for i, g := range p.gpus {
			p.shares[i] = uint64(max(g.TotalMiB, 1))
		}
	}
	return p, nil
}

// shares reads proportions, "3,1" or "0.6/0.4", in millionths: of GPUs beyond them each has none, and shares of GPUs that are not
// there do not count. Without any all are 0.
func shares(text string, n int) ([]uint64, bool) {
	out := make([]uint64, n)
	if text == "" {
		return out, true
	}
	i := 0
	for one := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == '/' }) {
		f, err := strconv.ParseFloat(strings.TrimSpace(one), 64)
		if err != nil || !(f >= 0 && f <= 1e9) {
			return nil, false
		}
		if i < n {
			out[i] = uint64(f * 1e6)
		}
		i++
	}
	return out, i > 0
}

// What files beside the model are taken for. Nothing is known of them but that they are there: the house's own, and rather too much.
const (
	projectorMiB = 2048 // of models up to 32B some 0.6 to 1.4 GiB, and the buffers of its graph
	adapterMiB   = 512
	draftLeast   = 1024 // MiB; else a third of the model's weights and cache on each GPU, and buffers once more
)

// beside adds what the files beside the model are taken for: a projector is on the first GPU, or main, the others with the layers.
func (m *llama) beside(all []parts) {
	if len(m.place.gpus) == 0 {
		return
	}
	for g := range m.place.gpus {
		p := &all[g]
		if m.run.Drafts > 0 {
			p.overhead = add(p.overhead, add(max(add(p.weights, p.kv)/3, bytesOf(draftLeast)), p.compute))
		}
		p.overhead = add(p.overhead, mul(uint64(max(m.run.Adapters, 0)), bytesOf(adapterMiB)))
	}
	p := &all[m.place.main]
	p.overhead = add(p.overhead, mul(uint64(max(m.run.Projectors, 0)), bytesOf(projectorMiB)))
}
