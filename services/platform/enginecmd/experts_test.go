package enginecmd

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHostExperts(t *testing.T) {
	t.Parallel()
	all := FirstLayers(AllExperts)
	but := func(n uint32) (s LayerSet) {
		for i, word := range FirstLayers(n) {
			s[i] = all[i] &^ word
		}
		return s
	}
	some := func(layers ...uint64) (s LayerSet) {
		for _, layer := range layers {
			s[layer/64] |= 1 << (layer % 64)
		}
		return s
	}
	for name, c := range map[string]struct {
		line string
		want LayerSet
	}{
		"nothing":                          {"", LayerSet{}},
		"so many":                          {"--n-cpu-moe 12", FirstLayers(12)},
		"all":                              {"-cmoe", all},
		"all by a pattern":                 {"-ot output=CUDA0,.ffn_.*_exps.=CPU", all},
		"the first ten":                    {`--override-tensor blk\.[0-9]\.ffn_(up|down|gate)_exps=CPU`, FirstLayers(10)},
		"layers in the middle":             {`-ot blk\.(2|3)\..*exps=CPU`, some(2, 3)},
		"two options":                      {`-ot blk\.2\..*exps=CPU -ot blk\.70\..*exps=CPU`, some(2, 70)},
		"the first pattern counts":         {`-ot blk\.(0|1|2)\.ffn_.*_exps=CUDA0,exps=CPU`, but(3)},
		"also before an option":            {`-ot blk\.0\.=CUDA0 --cpu-moe`, but(1)},
		"a part of each layer":             {"-ot .ffn_(up|down)_exps.=CPU", LayerSet{}},
		"parts that make layers":           {"-ot ffn_up_exps=CPU,ffn_(down|gate)_exps=CPU", all},
		"to another GPU":                   {"-ot exps=CUDA1", LayerSet{}},
		"a pattern of another language":    {`-ot blk\.(?!0).*exps=CUDA1,exps=CPU`, LayerSet{}},
		"one that keeps with the host":     {`-ot blk\.(?!0).*exps=CPU`, LayerSet{}},
		"no patterns":                      {"-ot (=CPU -ot exps", LayerSet{}},
		"a pattern that is too long":       {"-ot exps|" + strings.Repeat("x", 256) + "=CPU", LayerSet{}},
		"more patterns than anybody reads": {"-ot " + strings.Repeat("exps=CPU,", 64) + "exps=CPU", LayerSet{}},
	} {
		cmd, _ := Read(strings.Fields("llama-server -m x "+c.line), nil)
		if diff := cmp.Diff(c.want.Layers(), cmd.HostExperts().Layers()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	for line, want := range map[string]bool{
		"-ot exps=CPU": false, "-ot blk=CUDA_Host": false, "-ot blk=RPC[10.0.0.1:50052]": false, "": false, "-ot exps=CPU -ot 1.=CUDA1": true, "-ot x=Vulkan0": true,
	} {
		if cmd, _ := Read(strings.Fields("llama-server -m x "+line), nil); cmd.Moves() != want {
			t.Errorf("%s: %v", line, !want)
		}
	}
	for _, c := range []struct {
		set            LayerSet
		from, to, want uint64
	}{{all, 3, 300, 297}, {FirstLayers(12), 3, 300, 9}, {some(2, 70), 3, 300, 1}, {all, 5, 5, 0}, {all, 9, 5, 0}, {all, 200, 300, 100}} {
		if got := c.set.Count(c.from, c.to); got != c.want {
			t.Errorf("%v: %d of %d to %d", c.set, got, c.from, c.to)
		}
	}
}

// TestGPUsOfAHost: of what is spread over hosts each has its part.
func TestGPUsOfAHost(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]uint64{
		"": 1, "-tp 2": 2, "-tp 2 -pp 2 -dp 3": 12, "-tp 8 -pp 2 --nnodes 2": 8, "-dp 4 -dpl 2 -tp 2": 4, "-dp 4 --data-parallel-rank 1": 1, "-dp 4 -dpl 4": 4,
		"-tp 2 -pcp 2": 4, "--prefill-context-parallel-size=2 -dp 2": 4, "-tp 4 --decode-context-parallel-size 4": 4,
		"-tp 4294967295 -pp 4294967295 -dp 4294967295 --nnodes 4294967295": 1,
	} {
		if c, _ := Read(strings.Fields("vllm serve a/b "+line), nil); c.GPUs() != want {
			t.Errorf("%s: %d, want %d", line, c.GPUs(), want)
		}
	}
}
