package host

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
)

// Options of engines that say what an alternative would change. Sources: llama.cpp tools/server/README.md, docs.vllm.ai/en/latest/cli/serve,
// docs.sglang.ai/advanced_features/server_arguments.html.
var (
	contextOptions     = []string{"-c", "--ctx-size", "--max-model-len", "--context-length"}
	utilisationOptions = []string{"--gpu-memory-utilization", "--mem-fraction-static"}
)

// changeKey tells changes apart.
func changeKey(c *executorv1.Change) string {
	return c.GetKind().String() + " " + c.GetServiceId() + " " + c.GetTo()
}

// catalogLines says for the changes that only a human can make what to write where: "catalogue.yaml:14: gpus: [1]". The file is this
// installation's; where it cannot be read, or is another host's, only what to write is said.
func (a *app) catalogLines(alternatives []*executorv1.Alternative) map[string]string {
	out := map[string]string{}
	entries := map[string]catalog.Written{}
	path, looked := "", false
	for _, alternative := range alternatives {
		for _, change := range alternative.GetChanges() {
			if change.GetKind() < executorv1.ChangeKind_CHANGE_KIND_CONTEXT {
				continue
			}
			if !looked {
				path, _, _ = (cli.CatalogPlace{}).Resolve(a.App, false)
				looked = true
			}
			id := change.GetServiceId()
			if _, known := entries[id]; !known {
				entries[id], _ = catalog.Find(path, id)
			}
			out[changeKey(change)] = clean.Line(lineToChange(entries[id], change), 300)
		}
	}
	return out
}

// lineToChange says where a change goes. An entry without a file is one that was not found.
func lineToChange(w catalog.Written, change *executorv1.Change) string {
	to := change.GetTo()
	switch change.GetKind() {
	case executorv1.ChangeKind_CHANGE_KIND_CONTEXT:
		return settingLine(w, contextOptions, "context_size", "the context length", to)
	case executorv1.ChangeKind_CHANGE_KIND_UTILISATION:
		return settingLine(w, utilisationOptions, "gpu_memory_utilization", "the share of the GPU", to)
	case executorv1.ChangeKind_CHANGE_KIND_GPU:
		return at(w, "gpus") + "gpus: [" + to + "]"
	case executorv1.ChangeKind_CHANGE_KIND_SPLIT:
		numbers := strings.FieldsFunc(to, func(r rune) bool { return r == ',' || r == ' ' })
		return at(w, "gpus") + "gpus: [" + strings.Join(numbers, ", ") + fmt.Sprintf("], and its engine's tensor parallel size to %d", len(numbers))
	default:
		return ""
	}
}

// settingLine finds the option in the entry's command line, or else the key in its extra_config.
func settingLine(w catalog.Written, options []string, key, what, to string) string {
	for _, line := range []struct {
		key   string
		words []string
	}{{"argv", w.Argv}, {"container.command", w.Command}} {
		// The last one counts, for every engine.
		for i, word := range slices.Backward(line.words) {
			name, _, joined := strings.Cut(word, "=")
			switch {
			case !slices.Contains(options, strings.ReplaceAll(name, "_", "-")): // the engines take either
			case joined:
				return at(w, fmt.Sprintf("%s[%d]", line.key, i)) + name + "=" + to
			case i+1 < len(line.words):
				return at(w, fmt.Sprintf("%s[%d]", line.key, i+1)) + name + " " + to
			}
		}
	}
	if _, said := w.At("extra_config." + key); said {
		return at(w, "extra_config."+key) + key + ": " + to
	}
	if w.Unit != "" {
		return at(w, "unit") + what + " in the command line of " + w.Unit + ": " + to
	}
	return at(w, "argv", "container.command") + what + " in its command line, which says none: " + to
}

// at is the place of the first of the keys that the entry has, or else of the entry.
func at(w catalog.Written, keys ...string) string {
	if w.File == "" {
		return "its entry in the catalogue: "
	}
	line := w.Line
	for _, key := range keys {
		if found, ok := w.At(key); ok {
			line = found
			break
		}
	}
	return fmt.Sprintf("%s:%d: ", filepath.Base(w.File), line)
}
