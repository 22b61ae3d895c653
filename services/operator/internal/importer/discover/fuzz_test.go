package discover

import (
	"context"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
)

// FuzzAnswer: whatever a server says of itself, nothing of it that is kept is other than it looks.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"data":[{"id":"Qwen/Qwen3-32B","owned_by":"vllm","max_model_len":32768}]}`), []byte(`{"default_generation_settings":{"n_ctx":1},"total_slots":4}`), []byte(`{"version":"0.11"}`))
	f.Add([]byte(`{"data":[{"id":"a\u202eb"},{"id":null}]}`), []byte(`{"default_generation_settings":null}`), []byte(`{"version":7}`))
	f.Fuzz(func(t *testing.T, models, props, version []byte) {
		var a Answer
		a.Answered = true
		a.models(models)
		a.props(props)
		a.version(version)
		for _, text := range append(a.Models, a.Version, a.Words()) {
			if clean.Line(text, clean.Whole) != text {
				t.Errorf("%q", text)
			}
		}
		if len(a.Models) > maxModels {
			t.Errorf("%d models", len(a.Models))
		}
	})
}

// FuzzUnits: whatever busctl says, what comes of it is clean, and no value of the environment beyond the list is in it.
func FuzzUnits(f *testing.F) {
	list := `{"data":[[["a.service","d","loaded","active","running","","/org/freedesktop/systemd1/unit/a",0,"","/"]]]}`
	f.Add(list, `{"data":[["/usr/bin/llama-server",["x","--port","$PORT","-m","/m.gguf"],false]]}`, `{"data":["PORT=8080","TOKEN=hidden-hidden"]}`)
	f.Add(list, `{"data":[["/usr/bin/vllm",["x","serve","\u202e","--host","\u001b[31m"],false]]}`, `{"data":["=","X","CUDA_VISIBLE_DEVICES=hidden-hidden://"]}`)
	f.Add(`{"data":[[[1,2,3,4,5,6,7]]]}`, `{"data":[[]]}`, `{}`)
	f.Fuzz(func(t *testing.T, list, start, environment string) {
		line := func(s string) string { return strings.ReplaceAll(s, "\n", " ") + "\n" }
		s := Systemd{Program: "/usr/bin/busctl", Proc: "/nonexistent", Run: func(_ context.Context, _ string, args ...string) ([]byte, error) {
			if args[3] == "call" {
				return []byte(list), nil
			}
			return []byte(line(start) + line(environment) + line(`{"data":"u"}`) + line(`{"data":false}`) + line(`{"data":1}`) + line(`{"data":"/x"}`) +
				line(`{"data":"no"}`) + line(`{"data":[]}`)), nil
		}}
		servers, passed, err := s.Servers(t.Context())
		if err != nil {
			return
		}
		p := proposal.New("systemd", nil, "x")
		Host{}.Units(p, servers, passed)
		for _, one := range servers {
			if !catalog.IsUnit(one.Subject) {
				t.Errorf("unit %q", one.Subject)
			}
		}
		for _, l := range p.LeftOut() {
			if clean.Line(l.What+l.Why, clean.Whole) != l.What+l.Why {
				t.Errorf("%+v", l)
			}
		}
	})
}
