package host

import (
	"testing"

	"durward.internal/services/platform/catalog"
)

// An option is found however the engine lets it be written.
func TestSettingLine(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		argv []string
		want string
	}{
		"apart":              {[]string{"vllm", "serve", "a/b", "--max-model-len", "8192"}, "its entry in the catalogue: --max-model-len 4096"},
		"joined":             {[]string{"vllm", "serve", "a/b", "--max-model-len=8192"}, "its entry in the catalogue: --max-model-len=4096"},
		"with an underscore": {[]string{"vllm", "serve", "a/b", "--max_model_len", "8192"}, "its entry in the catalogue: --max_model_len 4096"},
		"none":               {[]string{"vllm", "serve", "a/b"}, "its entry in the catalogue: the context length in its command line, which says none: 4096"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := settingLine(catalog.Written{Argv: test.argv}, contextOptions, "context_size", "the context length", "4096"); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}
