package catalog

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFind(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": "version: 1\nservices:\n  - {id: one, driver: systemd, unit: one.service}\n",
		"b.yaml": "# a comment\nversion: 1\nservices:\n\n  - id: two\n    argv: [x, -c,\n      \"7\"]\n    gpus: [0]\n" +
			"  - id: three\n    container:\n      command:\n        - a\n        - b\n    extra_config: {context_size: 1}\n",
		"broken.yaml": "services: [\n",
	} {
		must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	for id, want := range map[string]struct {
		file string
		line int
		at   map[string]int // 0: it does not say that
	}{
		"one":   {"a.yaml", 3, map[string]int{"unit": 3, "gpus": 0, "argv[0]": 0}},
		"two":   {"b.yaml", 5, map[string]int{"argv[1]": 6, "argv[2]": 7, "gpus": 8, "argv[3]": 0, "extra_config.context_size": 0, "a b[": 0}},
		"three": {"b.yaml", 9, map[string]int{"container.command[1]": 13, "extra_config.context_size": 14, "container.image": 0}},
	} {
		w, ok := Find(folder, id)
		if !ok || filepath.Base(w.File) != want.file || w.Line != want.line {
			t.Errorf("%s: %t, %s:%d, want %s:%d", id, ok, w.File, w.Line, want.file, want.line)
		}
		for key, line := range want.at {
			if got, ok := w.At(key); got != line || ok != (line > 0) {
				t.Errorf("%s: %s at %d, %t, want %d", id, key, got, ok, line)
			}
		}
	}
	for _, path := range []string{folder, filepath.Join(folder, "broken.yaml"), filepath.Join(folder, "none"), ""} {
		if w, ok := Find(path, "four"); ok || w.File != "" {
			t.Errorf("%s: %+v", path, w)
		}
	}
	if _, ok := (Written{}).At("gpus"); ok {
		t.Error("an entry that was not found says something")
	}
}
