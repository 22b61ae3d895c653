package draft

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/goccy/go-yaml"

	"durward.internal/services/platform/catalog"
)

// Service is a service's entry as it is written into a catalog, in the order of its keys.
type Service struct {
	ID          string             `yaml:"id"`
	Name        string             `yaml:"name"`
	Description string             `yaml:"description"`
	Driver      string             `yaml:"driver"`
	Unit        string             `yaml:"unit"`
	Container   *catalog.Container `yaml:"container"`
	Argv        []string           `yaml:"argv"`
	Environment map[string]string  `yaml:"environment"`
	Limits      catalog.Limits     `yaml:"limits"`
	RunAs       string             `yaml:"run_as"`
	Port        uint32             `yaml:"port"`
	Health      catalog.Health     `yaml:"health"`
	OpenAI      bool               `yaml:"openai"`
	Model       string             `yaml:"model"`
	GPUs        []uint32           `yaml:"gpus"`
	VRAMMiB     uint32             `yaml:"vram_mib"`
	Sleep       string             `yaml:"sleep"`
	SleepMiB    uint32             `yaml:"sleep_mib"`
	DependsOn   []string           `yaml:"depends_on"`
	Pin         bool               `yaml:"pin"`
	Idle        catalog.Idle       `yaml:"idle"`
	Network     string             `yaml:"network"`
	// Extra are its facts about the engine, in the order in which they were put.
	Extra         yaml.MapSlice `yaml:"extra_config"`
	StartTimeoutS uint32        `yaml:"start_timeout_s"`
	StallTimeoutS uint32        `yaml:"stall_timeout_s"`
	StopTimeoutS  uint32        `yaml:"stop_timeout_s"`
}

// Of are an entry's keys and values, as the yaml tags of its struct name them and in its order. What is zero is left out.
func Of(entry any) (out yaml.MapSlice) {
	v := reflect.Indirect(reflect.ValueOf(entry))
	for i := range v.NumField() {
		field := v.Field(i)
		key := v.Type().Field(i).Tag.Get("yaml")
		empty := field.IsZero() || (field.Kind() == reflect.Slice || field.Kind() == reflect.Map) && field.Len() == 0
		if key != "-" && !empty {
			out = append(out, yaml.MapItem{Key: key, Value: plain(field)})
		}
	}
	return out
}

// plain is a value as Make takes it.
func plain(v reflect.Value) any {
	if ordered, ok := v.Interface().(yaml.MapSlice); ok {
		return ordered
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Struct:
		return Of(v.Interface())
	case reflect.Slice:
		items := make([]any, v.Len())
		for i := range items {
			items[i] = plain(v.Index(i))
		}
		return items
	case reflect.Map:
		var out yaml.MapSlice
		for _, key := range slices.SortedFunc(slices.Values(v.MapKeys()), func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) }) {
			out = append(out, yaml.MapItem{Key: key.String(), Value: plain(v.MapIndex(key))})
		}
		return out
	}
	return v.Interface()
}

// OfGPU is Of for a GPU, whose index is written where it is 0 too.
func OfGPU(g catalog.GPU) yaml.MapSlice {
	index := g.Index
	g.Index = 0
	return append(yaml.MapSlice{{Key: "index", Value: index}}, Of(g)...)
}
