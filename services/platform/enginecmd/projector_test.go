package enginecmd

import "testing"

// TestProjectors: one that a repository may have counts, unless it is not loaded, or not on a GPU.
func TestProjectors(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]int{
		"-m x.gguf":                           0,
		"-m x.gguf --mmproj p.gguf":           1,
		"-hf a/b":                             1,
		"-hf a/b --mmproj p.gguf":             1,
		"-m x.gguf -hf a/b":                   0,
		"-hf a/b -m x.gguf":                   0,
		"-hf a/b -hff x.gguf":                 0,
		"-hf a/b --no-mmproj":                 0,
		"-hf a/b --no-mmproj-offload":         0,
		"-m x.gguf --mmproj p --no-mmproj":    0,
		"-hf a/b --no-mmproj --mmproj-auto":   1,
		"--vision-gemma-4b-default":           1,
		"-m x.gguf --vision-gemma-4b-default": 0,
		"--gpt-oss-20b-default":               0,
	} {
		if c, _ := Read(words("llama-server "+line), nil); c.GPUProjectors() != want {
			t.Errorf("%s: %d, want %d", line, c.GPUProjectors(), want)
		}
	}
	for variable, want := range map[string]int{"LLAMA_ARG_NO_MMPROJ": 0, "LLAMA_ARG_NO_MMPROJ_OFFLOAD": 0, "LLAMA_ARG_ALIAS": 1} {
		if c, _ := Read(words("llama-server -hf a/b"), map[string]string{variable: "1"}); c.GPUProjectors() != want {
			t.Errorf("%s: %d, want %d", variable, c.GPUProjectors(), want)
		}
	}
	if c, _ := Read(words("llama-server -hf a/b"), map[string]string{"LLAMA_ARG_MMPROJ_AUTO": "0"}); c.GPUProjectors() != 0 {
		t.Errorf("off by a variable: %d", c.GPUProjectors())
	}
}
