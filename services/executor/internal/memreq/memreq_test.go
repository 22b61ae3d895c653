package memreq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/vram"
)

// on is what is needed of GPU 0.
func on(mib uint32) map[uint32]uint32 { return map[uint32]uint32{0: mib} }

func wantNeed(t *testing.T, what string, got Need, source string, perGPU map[uint32]uint32) {
	t.Helper()
	if got.Source != source || !cmp.Equal(got.PerGPU, perGPU) {
		t.Errorf("%s: %v, %s; want %v, %s", what, got.PerGPU, got.Source, perGPU, source)
	}
}

// estimate is what the catalog's card of a service comes to.
func (b *bench) estimate(id string, change func(*vram.Run)) vram.Estimate {
	b.Helper()
	s := b.entry(id)
	run, err := vram.RunOf(s)
	if err != nil {
		b.Fatal(err)
	}
	if change != nil {
		change(&run)
	}
	out, err := vram.Of(*s.Model.Card, run, []vram.GPU{{TotalMiB: 24564}})
	if err != nil {
		b.Fatal(err)
	}
	return out
}

func TestTruthOrder(t *testing.T) {
	t.Parallel()
	peak := func(id, state string, readings uint32, mib ...uint32) store.Peak {
		return store.Peak{Service: id, State: state, MiB: mib, Readings: readings, Last: time.Unix(50, 0), Run: time.Unix(10, 0)}
	}
	b := newBench(t)
	guessed, claims, naps := b.estimate("guessed", nil), b.estimate("claims", nil), b.estimate("naps", nil)
	fitted := b.estimate("fitted", nil).PerGPU[0]
	for name, c := range map[string]struct {
		id                     string
		peaks                  []store.Peak
		awake, loading, asleep Need
	}{
		"nothing is known":    {"unknown", nil, Need{Source: vram.Unknown, PerGPU: map[uint32]uint32{}}, Need{Source: vram.Unknown, PerGPU: map[uint32]uint32{}}, Need{Source: vram.Declared}},
		"it needs no GPU":     {"none", nil, Need{Source: vram.Declared}, Need{Source: vram.Declared}, Need{Source: vram.Declared}},
		"declared":            {"declared", nil, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(600)}},
		"declared, on two":    {"both", nil, Need{Source: vram.Declared, PerGPU: map[uint32]uint32{0: 4501, 1: 4501}}, Need{Source: vram.Declared, PerGPU: map[uint32]uint32{0: 4501, 1: 4501}}, Need{Source: vram.Declared}},
		"estimated":           {"guessed", nil, Need{Source: vram.Estimated, PerGPU: on(guessed.PerGPU[0])}, Need{Source: vram.Estimated, PerGPU: on(guessed.PerGPU[0])}, Need{Source: vram.Declared}},
		"estimated, a claim":  {"claims", nil, Need{Source: vram.Estimated, PerGPU: on(claims.PerGPU[0])}, Need{Source: vram.Estimated, PerGPU: on(claims.PerGPU[0])}, Need{Source: vram.Declared}},
		"estimated asleep":    {"naps", nil, Need{Source: vram.Declared, PerGPU: on(12800)}, Need{Source: vram.Declared, PerGPU: on(12800)}, Need{Source: vram.Estimated, PerGPU: on(naps.AsleepMiB)}},
		"measured, declared":  {"declared", []store.Peak{peak("declared", store.PeakAwake, 3, 7000)}, Need{Source: vram.Measured, PerGPU: on(7000)}, Need{Source: vram.Measured, PerGPU: on(7000)}, Need{Source: vram.Declared, PerGPU: on(600)}},
		"measured, estimated": {"guessed", []store.Peak{peak("guessed", store.PeakAwake, 3, 4100)}, Need{Source: vram.Measured, PerGPU: on(4100)}, Need{Source: vram.Measured, PerGPU: on(4100)}, Need{Source: vram.Declared}},
		"measured alone":      {"unknown", []store.Peak{peak("unknown", store.PeakAwake, 1, 300)}, Need{Source: vram.Measured, PerGPU: on(300)}, Need{Source: vram.Measured, PerGPU: on(300)}, Need{Source: vram.Declared}},
		"in its own order":    {"both", []store.Peak{peak("both", store.PeakAwake, 3, 3000, 5000)}, Need{Source: vram.Measured, PerGPU: map[uint32]uint32{1: 3000, 0: 5000}}, Need{Source: vram.Measured, PerGPU: map[uint32]uint32{1: 3000, 0: 5000}}, Need{Source: vram.Declared}},
		"not often enough":    {"declared", []store.Peak{peak("declared", store.PeakAwake, 2, 7000)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(600)}},
		"more counts at once": {"declared", []store.Peak{peak("declared", store.PeakAwake, 0, 8001)}, Need{Source: vram.Measured, PerGPU: on(8001)}, Need{Source: vram.Measured, PerGPU: on(8001)}, Need{Source: vram.Declared, PerGPU: on(600)}},
		"more on one of them": {"both", []store.Peak{peak("both", store.PeakAwake, 1, 6000, 1000)}, Need{Source: vram.Measured, PerGPU: map[uint32]uint32{1: 6000, 0: 4501}}, Need{Source: vram.Measured, PerGPU: map[uint32]uint32{1: 6000, 0: 4501}}, Need{Source: vram.Declared}},
		"ready without model": {"declared", []store.Peak{peak("declared", store.PeakAwake, 3, 1999)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(600)}},
		"loads on request":    {"ollama", []store.Peak{peak("ollama", store.PeakAwake, 3, 7000)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared}},
		"grows on request":    {"grows", []store.Peak{peak("grows", store.PeakAwake, 3, 2100)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(600)}},
		"has grown":           {"grows", []store.Peak{peak("grows", store.PeakAwake, 3, 8100)}, Need{Source: vram.Measured, PerGPU: on(8100)}, Need{Source: vram.Measured, PerGPU: on(8100)}, Need{Source: vram.Declared, PerGPU: on(600)}},
		"asleep, and nobody says what it keeps": {"dozes", nil, Need{Source: vram.Declared, PerGPU: map[uint32]uint32{0: 4000, 1: 4000}}, Need{Source: vram.Declared, PerGPU: map[uint32]uint32{0: 4000, 1: 4000}},
			Need{Source: vram.Estimated, PerGPU: map[uint32]uint32{0: vram.Residue(catalog.SleepVLLM2), 1: vram.Residue(catalog.SleepVLLM2)}}},
		"asleep, of no engine that is known": {"grows", []store.Peak{peak("grows", store.PeakAsleep, 3, 90)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(600)}},
		"squeezed in beside others":          {"fitted", []store.Peak{peak("fitted", store.PeakAwake, 3, 9000)}, Need{Source: vram.Estimated, PerGPU: on(fitted)}, Need{Source: vram.Estimated, PerGPU: on(fitted)}, Need{Source: vram.Declared}},
		"more while it loads": {"declared", []store.Peak{peak("declared", store.PeakAwake, 3, 7000), peak("declared", store.PeakLoading, 1, 9000)},
			Need{Source: vram.Measured, PerGPU: on(7000)}, Need{Source: vram.Measured, PerGPU: on(9000)}, Need{Source: vram.Declared, PerGPU: on(600)}},
		"less while it loads": {"declared", []store.Peak{peak("declared", store.PeakLoading, 1, 900)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(600)}},
		"asleep": {"declared", []store.Peak{peak("declared", store.PeakAsleep, 3, 90)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(8000)},
			Need{Source: vram.Measured, PerGPU: on(90)}},
		"asleep, more": {"declared", []store.Peak{peak("declared", store.PeakAsleep, 1, 1100)}, Need{Source: vram.Declared, PerGPU: on(8000)}, Need{Source: vram.Declared, PerGPU: on(8000)},
			Need{Source: vram.Measured, PerGPU: on(1100)}},
		"an absurd number": {"unknown", []store.Peak{peak("unknown", store.PeakAwake, 3, 1<<32-1)}, Need{Source: vram.Measured, PerGPU: on(mostMiB)}, Need{Source: vram.Measured, PerGPU: on(mostMiB)}, Need{Source: vram.Declared}},
		"other GPUs then":  {"both", []store.Peak{peak("both", store.PeakAwake, 3, 3000)}, Need{Source: vram.Declared, PerGPU: map[uint32]uint32{0: 4501, 1: 4501}}, Need{Source: vram.Declared, PerGPU: map[uint32]uint32{0: 4501, 1: 4501}}, Need{Source: vram.Declared}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := b.entry(c.id)
			digest, err := digestOf(s, b.definition)
			must(t, err)
			for _, p := range c.peaks {
				p.Digest, p.GPUs = digest, hardware(b.models, s)
				b.kept = append(b.kept, p)
			}
			book := b.book()
			book.Settle(t.Context(), b, b)
			wantNeed(t, "awake", book.Awake(s), c.awake.Source, c.awake.PerGPU)
			wantNeed(t, "loading", book.Loading(s), c.loading.Source, c.loading.PerGPU)
			wantNeed(t, "asleep", book.Asleep(s), c.asleep.Source, c.asleep.PerGPU)
			if !cmp.Equal(book.Sizes().Awake(s), book.Awake(s).PerGPU) || !cmp.Equal(book.Sizes().Loading(s), book.Loading(s).PerGPU) ||
				!cmp.Equal(book.Sizes().Asleep(s), book.Asleep(s).PerGPU) {
				t.Error("its bare sizes are other numbers")
			}
		})
	}
}

// TestDeclaredOnWhatIsVisible: what is declared lies on the GPUs that CUDA_VISIBLE_DEVICES leaves the program, awake and asleep.
func TestDeclaredOnWhatIsVisible(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.edit(`gpus: [0, 1], vram_mib: 8000, sleep: vllm-l2,`, `gpus: [0, 1], vram_mib: 8000, sleep: vllm-l2, sleep_mib: 600,`)
	s := *b.entry("dozes")
	s.Environment = map[string]string{"CUDA_VISIBLE_DEVICES": "1"}
	book := b.book()
	wantNeed(t, "awake", book.Awake(&s), vram.Declared, map[uint32]uint32{1: 8000})
	wantNeed(t, "asleep", book.Asleep(&s), vram.Declared, map[uint32]uint32{1: 600})
	s.Environment = nil
	wantNeed(t, "awake, all visible", book.Awake(&s), vram.Declared, map[uint32]uint32{0: 4000, 1: 4000})
}

// TestOnlyItsOwnWayOfRunningCounts: another definition, entry or GPU is another configuration.
func TestOnlyItsOwnWayOfRunningCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*bench)
		want   string
	}{
		"nothing changed":                       {func(*bench) {}, vram.Measured},
		"another description":                   {func(b *bench) { b.edit("DESCRIPTION", "other words") }, vram.Measured},
		"another service's entry":               {func(b *bench) { b.edit("vram_mib: 9001", "vram_mib: 9002") }, vram.Measured},
		"another entry":                         {func(b *bench) { b.edit("vram_mib: 8000, sleep", "vram_mib: 8001, sleep") }, vram.Declared},
		"another program":                       {func(b *bench) { b.definition = "sha256:two" }, vram.Declared},
		"a program that cannot be read":         {func(b *bench) { b.definition = "" }, vram.Declared},
		"another GPU":                           {func(b *bench) { b.hardware("NVIDIA Other", 24564) }, vram.Declared},
		"a GPU that was not found yet":          {func(b *bench) { b.models = nil }, vram.Declared},
		"a GPU of that name with less on board": {func(b *bench) { b.hardware("NVIDIA One", 12288) }, vram.Declared},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			book := b.book()
			measure, flush := b.sampling(book)
			b.is("declared", running, 100, 7000)
			measure(3)
			flush()
			wantNeed(t, "before", book.Awake(b.entry("declared")), vram.Measured, on(7000))
			for kind, again := range map[string]*Tracker{"the same process": book, "after a restart": nil} {
				if again == nil {
					b.kept = b.noted()
					again = b.book()
				}
				c.change(b)
				again.Observe(t.Context(), b.entry("declared"))
				if got := again.Awake(b.entry("declared")); got.Source != c.want {
					t.Errorf("%s: %+v", kind, got)
				}
			}
		})
	}
}

// TestAnswersNeverWait: a driver, an inspector and an oracle that hang keep nobody, and what they say is taken over when it comes.
func TestAnswersNeverWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		file := filepath.Join(t.TempDir(), "model.gguf")
		must(t, os.WriteFile(file, []byte("made up"), 0o600))
		b.edit("/nowhere/model.gguf", file)
		hang := make(chan struct{})
		reader := &inspector{hang: hang, card: *b.entry("guessed").Model.Card}
		book := b.book(func(c *Config) {
			c.Inspector = reader
			c.Exact = func(context.Context, string, vram.Run) ([]uint32, error) { return []uint32{5000}, nil }
		})
		end := b.runs(t, book)
		filed := b.entry("filed")
		wantNeed(t, "unread", book.Awake(filed), vram.Unknown, map[uint32]uint32{})
		if _, ok := book.Card(filed); ok {
			t.Error("there is a card that nobody read")
		}
		if _, err := book.AwakeAt(filed, 4096); !errors.Is(err, vram.ErrNoCard) {
			t.Errorf("without a card: %v", err)
		}
		synctest.Wait()
		wantNeed(t, "under way", book.Awake(filed), vram.Unknown, map[uint32]uint32{})
		close(hang)
		synctest.Wait()
		// What llama.cpp says itself, and what the driver takes beside.
		overhead := b.estimate("guessed", nil).OverheadMiB
		wantNeed(t, "read", book.Awake(filed), vram.Estimated, on(5000+overhead))
		if card, ok := book.Card(filed); !ok || card.WeightsMiB != 4000 {
			t.Errorf("its card is %+v, %v", card, ok)
		}
		// It is looked at again when somebody asks, and not otherwise.
		time.Sleep(time.Hour)
		if n := reader.asked.Load(); n != 1 {
			t.Errorf("the inspector was asked %d times", n)
		}
		book.Awake(filed)
		book.Awake(filed)
		synctest.Wait()
		if n := reader.asked.Load(); n != 2 {
			t.Errorf("the inspector was asked %d times", n)
		}
		end()
	})
}

// inspector reads the same card of every file.
type inspector struct {
	hang  chan struct{}
	card  model.Card
	err   error
	asked atomic.Int32
}

func (i *inspector) Card(ctx context.Context, _ string) (model.Card, error) {
	i.asked.Add(1)
	select {
	case <-i.hang:
	case <-ctx.Done():
		return model.Card{}, ctx.Err()
	}
	return i.card, i.err
}

// TestAFileThatCannotBeReadIsLeftAlone until it changes, or a while has passed.
func TestAFileThatCannotBeReadIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		file := filepath.Join(t.TempDir(), "model.gguf")
		b.edit("/nowhere/model.gguf", file)
		reader := &inspector{hang: make(chan struct{}), err: errors.New("it is no model")}
		close(reader.hang)
		book := b.book(func(c *Config) { c.Inspector = reader })
		look := func(want int32) {
			t.Helper()
			time.Sleep(2 * stale)
			book.renew(t.Context(), b.entry("filed"))
			if n := reader.asked.Load(); n != want {
				t.Errorf("it was asked %d times, want %d", n, want)
			}
		}
		look(0) // there is no file
		must(t, os.WriteFile(file, []byte("broken"), 0o600))
		look(1)
		look(1)
		time.Sleep(again)
		look(2)
		must(t, os.WriteFile(file, []byte("something else"), 0o600))
		look(3)
		wantNeed(t, "a broken file", book.Awake(b.entry("filed")), vram.Unknown, map[uint32]uint32{})
		reader.err, reader.card = nil, *b.entry("guessed").Model.Card
		must(t, os.WriteFile(file, []byte("a good one at last"), 0o600))
		look(4)
		wantNeed(t, "a good file", book.Awake(b.entry("filed")), vram.Estimated, on(b.estimate("guessed", nil).PerGPU[0]))
	})
}

// TestEveryFileOfACatalogueIsRemembered: of as many models as it may name, each is read once.
func TestEveryFileOfACatalogueIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		reader := &inspector{hang: make(chan struct{}), card: *b.entry("guessed").Model.Card}
		close(reader.hang)
		folder := t.TempDir()
		models, services := "models:\n", "services:\n"
		const many = 1024
		for n := range many {
			file := fmt.Sprintf("%s/%d.gguf", folder, n)
			must(t, os.WriteFile(file, nil, 0o600))
			models += fmt.Sprintf("  - {id: m%d, served_name: m, file: %s}\n", n, file)
			services += fmt.Sprintf("  - {id: s%d, driver: systemd, unit: s%d.service, gpus: [0], model: m%d, extra_config: {engine: llama.cpp}}\n", n, n, n)
		}
		c, err := catalog.Parse("catalogue.yaml", []byte("version: 1\ngpus: [{index: 0, uuid: GPU-11111111-0000-0000-0000-000000000000}]\n"+models+services), catalog.Options{Development: true})
		must(t, err)
		b.catalog = c
		book := b.book(func(c *Config) { c.Inspector = reader })
		end := b.runs(t, book)
		synctest.Wait()
		unknown := 0
		for _, s := range c.Services {
			if _, ok := book.Card(s); !ok {
				unknown++
			}
		}
		if n := reader.asked.Load(); unknown > 0 || n != many {
			t.Errorf("of %d services nothing is known; %d files were read", unknown, n)
		}
		end()
	})
}

func TestAnotherContextLength(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	book := b.book()
	s := b.entry("guessed")
	now, then := b.estimate("guessed", nil), b.estimate("guessed", func(r *vram.Run) { r.Context = 65536 })
	if now.PerGPU[0] >= then.PerGPU[0] || book.Awake(s).Context != 8192 {
		t.Fatalf("the estimates are %v and %v, for %d tokens", now.PerGPU, then.PerGPU, book.Awake(s).Context)
	}
	got, err := book.AwakeAt(s, 65536)
	if err != nil || got.Context != 65536 {
		t.Fatalf("%+v, %v", got, err)
	}
	wantNeed(t, "estimated", got, vram.Estimated, on(then.PerGPU[0]))

	// What was measured stands; the estimates say only what changes.
	measure, _ := b.sampling(book)
	b.is("guessed", running, 100, 4300)
	measure(3)
	got, err = book.AwakeAt(s, 65536)
	must(t, err)
	wantNeed(t, "measured", got, vram.Estimated, on(4300+then.PerGPU[0]-now.PerGPU[0]))
	less := b.estimate("guessed", func(r *vram.Run) { r.Context = 4096 })
	if got, err = book.AwakeAt(s, 4096); err != nil {
		t.Fatal(err)
	}
	wantNeed(t, "less, of what is below its estimate", got, vram.Estimated, on(4300))
	b.is("guessed", running, 100, 9000)
	measure(1)
	if got, err = book.AwakeAt(s, 4096); err != nil {
		t.Fatal(err)
	}
	wantNeed(t, "less", got, vram.Estimated, on(9000+less.PerGPU[0]-now.PerGPU[0]))

	// A claim of a share of the GPU stays, and holds so many tokens.
	claim, err := book.AwakeAt(b.entry("claims"), 65536)
	if err != nil || claim.KVTokens == 0 || claim.KVTokens != book.Awake(b.entry("claims")).KVTokens {
		t.Errorf("%+v, %v", claim, err)
	}
	wantNeed(t, "a claim", claim, vram.Estimated, book.Awake(b.entry("claims")).PerGPU)

	for id, want := range map[string]error{"declared": vram.ErrNoCard, "unknown": vram.ErrNoCard, "none": errNoGPU} {
		if _, err := book.AwakeAt(b.entry(id), 4096); !errors.Is(err, want) {
			t.Errorf("%s: %v", id, err)
		}
	}
	b.models = nil
	if _, err := book.AwakeAt(b.entry("claims"), 4096); !errors.Is(err, vram.ErrNoTotal) {
		t.Errorf("a share of GPUs that nobody found yet: %v", err)
	}
	if got, err := book.AwakeAt(s, 4096); err != nil || got.MiB() != less.PerGPU[0] {
		t.Errorf("on GPUs that nobody found yet: %+v, %v", got, err)
	}
}

// TestWhatIsTakenBeforeAServiceIsReady: only there a measurement says that less is needed than is declared.
func TestWhatIsTakenBeforeAServiceIsReady(t *testing.T) {
	t.Parallel()
	const extra = ", extra_config: {engine: llama.cpp%s}}"
	for name, c := range map[string]struct {
		entry string
		want  bool
	}{
		"vLLM":                          {", extra_config: {engine: vllm}}", true},
		"SGLang":                        {", extra_config: {engine: sglang}}", true},
		"SGLang, by its command":        {"ARGV python3, -m, sglang.launch_server, --model-path, /m]}", true},
		"llama.cpp that fits itself in": {fmt.Sprintf(extra, ""), false},
		"by its layers alone":           {fmt.Sprintf(extra, `, context_size: "8192"`), false},
		"by its context alone":          {fmt.Sprintf(extra, `, gpu_layers: "99"`), false},
		"with nothing left to fit":      {fmt.Sprintf(extra, `, context_size: "8192", gpu_layers: "99"`), true},
		"llama.cpp that does not":       {fmt.Sprintf(extra, `, fit: "off"`), true},
		"by its command":                {"ARGV /usr/bin/llama-server, -m, /m.gguf, --fit, \"off\"]}", true},
		"a router":                      {"ARGV /usr/bin/llama-server, --models-dir, /m, --fit, \"off\"]}", false},
		"a router that sleeps":          {", sleep: llama-router, port: 9009" + fmt.Sprintf(extra, `, fit: "off"`), false},
		"Ollama":                        {", extra_config: {engine: ollama}}", false},
		"an engine that nobody says":    {"}", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			head := "- {id: one, driver: systemd, unit: one.service, gpus: [0], vram_mib: 8000"
			if argv, is := strings.CutPrefix(c.entry, "ARGV "); is {
				head, c.entry = "- {id: one, driver: process, argv: [", argv[:len(argv)-1]+", port: 9009, gpus: [0], vram_mib: 8000}"
			}
			b := newBench(t)
			b.edit("- {id: both,", head+c.entry+"\n  - {id: both,")
			book := b.book()
			measure, _ := b.sampling(book)
			s := b.entry("one")
			b.is("one", running, 100, 2100)
			measure(1 + counts + int(s.StartTimeout()/apart))
			want, source := uint32(8000), vram.Declared
			if c.want {
				want, source = 2100, vram.Measured
			}
			wantNeed(t, "idle", book.Awake(s), source, on(want))
			b.is("one", running, 100, 8500)
			measure(1)
			wantNeed(t, "at work", book.Awake(s), vram.Measured, on(8500))
		})
	}
}

func TestShift(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ known, now, then, want uint32 }{
		"nothing changes":                {9000, 20000, 20000, 9000},
		"more":                           {9000, 20000, 21000, 10000},
		"more of nothing":                {0, 0, 500, 500},
		"less":                           {20000, 20000, 15000, 15000},
		"less, known above the estimate": {22000, 20000, 15000, 17000},
		"less, known below the estimate": {18000, 20000, 15000, 15000},
		"less, known far below":          {9000, 21000, 12500, 9000},
		"less, known below what is estimated then": {9000, 21000, 11000, 9000},
		"less than what is known":                  {9000, 21000, 5000, 5000},
		"more than any GPU has":                    {mostMiB, 0, 1<<32 - 1, mostMiB},
	} {
		if got := Shift(c.known, c.now, c.then); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	// Whatever is known and estimated, less never comes to less than both what is known and what is estimated then.
	random := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		known, now, then := random.Uint32N(50_000), random.Uint32N(50_000), random.Uint32N(50_000)
		got := Shift(known, now, then)
		if got < min(known, then) || then <= now && got > known || then >= now && got != known+then-now {
			t.Fatalf("Shift(%d, %d, %d) = %d", known, now, then, got)
		}
	}
}

// TestAShorterContextIsNotForNothing: of one that was measured far below its estimate.
func TestAShorterContextIsNotForNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.edit(`model: tiny, extra_config: {engine: llama.cpp, context_size: "8192", fit: "off"}`,
		`model: tiny, vram_mib: 6000, extra_config: {engine: llama.cpp, context_size: "131072", gpu_layers: "99"}`)
	book := b.book()
	s := b.entry("guessed")
	now := b.estimate("guessed", nil)
	if now.PerGPU[0] < 20000 {
		t.Fatalf("the estimate is %v", now.PerGPU)
	}
	measure, _ := b.sampling(book)
	check := func(base uint32) {
		t.Helper()
		for tokens := uint32(65536); tokens >= 4096; tokens /= 2 {
			then := b.estimate("guessed", func(r *vram.Run) { r.Context = tokens })
			got, err := book.AwakeAt(s, tokens)
			if err != nil || got.MiB() < min(base, then.PerGPU[0]) || got.MiB() > base {
				t.Errorf("%d tokens: %+v, %v; %d now, and estimated %v then", tokens, got, err, base, then.PerGPU)
			}
		}
	}
	check(6000)
	b.is("guessed", running, 100, 9000)
	measure(3)
	check(9000)
}

// TestWhatDoesNotStart by the estimate, unless a human declares what it needs or it was seen to run.
func TestWhatDoesNotStart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	book := b.book()
	at := func(id string) Need {
		t.Helper()
		n, err := book.AwakeAt(b.entry(id), 4096)
		must(t, err)
		return n
	}
	for id, want := range map[string]bool{"narrow": true, "claims": false, "naps": false, "guessed": false, "fitted": false, "declared": false} {
		if got := book.Awake(b.entry(id)); got.NoStart != want {
			t.Errorf("%s: %+v", id, got)
		}
	}
	if !at("narrow").NoStart || at("claims").NoStart {
		t.Errorf("with another context: %+v, %+v", at("narrow"), at("claims"))
	}
	measure, _ := b.sampling(book)
	b.is("narrow", running, 100, 3500)
	measure(int(b.entry("narrow").StartTimeout()/apart) + counts)
	if book.Awake(b.entry("narrow")).NoStart || at("narrow").NoStart {
		t.Errorf("it was seen to run: %+v, %+v", book.Awake(b.entry("narrow")), at("narrow"))
	}

	declared := newBench(t)
	declared.edit("unit: narrow.service, gpus: [0]", "unit: narrow.service, gpus: [0], vram_mib: 4000")
	if got := declared.book().Awake(declared.entry("narrow")); got.NoStart {
		t.Errorf("declared: %+v", got)
	}
	// One that is larger than the GPU is short of memory, and that is what is said.
	large := newBench(t)
	large.hardware("NVIDIA Small", 3000)
	if got := large.book().Awake(large.entry("guessed")); got.NoStart || got.MiB() < 3000 {
		t.Errorf("larger than the GPU: %+v", got)
	}
}

// TestTheFirstStartWaitsForTheModelsFile, for one that takes too long only a while, and not for what was read before.
func TestTheFirstStartWaitsForTheModelsFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		file := filepath.Join(t.TempDir(), "model.gguf")
		must(t, os.WriteFile(file, []byte("made up"), 0o600))
		b.edit("/nowhere/model.gguf", file)
		card := *b.entry("guessed").Model.Card
		card.WeightsMiB = 40000
		reader := &leisurely{inspector: inspector{hang: make(chan struct{}), card: card}, takes: 3 * time.Second}
		close(reader.hang)
		book := b.book(func(c *Config) { c.Inspector = reader })
		s := b.entry("filed")
		took := func(look func()) time.Duration {
			began := time.Now()
			look()
			return time.Since(began)
		}
		look := func() { book.Observe(t.Context(), s) }
		// Nobody reads yet. Settling waits for no file: whoever reads it begins later.
		if d := took(look); d != lookPatience {
			t.Errorf("without a reader it waited %s", d)
		}
		if d := took(func() { book.Settle(t.Context(), b, b) }); d != 0 {
			t.Errorf("settling took %s", d)
		}
		end := b.runs(t, book)
		if d := took(look); d != 3*time.Second {
			t.Errorf("it waited %s", d)
		}
		if err := capacity.Admit(book.Sizes(), b.Read(t.Context()), s, 512); err == nil {
			t.Errorf("it is admitted: %+v", book.Awake(s))
		}
		if d := took(look); d != 0 || reader.asked.Load() != 1 {
			t.Errorf("again it waited %s, and the file was read %d times", d, reader.asked.Load())
		}
		end()

		// One that nobody asked for is read as well, when Run begins.
		again := b.book(func(c *Config) { c.Inspector = reader })
		end = b.runs(t, again)
		time.Sleep(4 * time.Second)
		wantNeed(t, "unasked", again.Awake(s), vram.Estimated, book.Awake(s).PerGPU)
		end()
	})
}

// leisurely is an inspector that takes its time.
type leisurely struct {
	inspector
	takes time.Duration
}

func (i *leisurely) Card(ctx context.Context, path string) (model.Card, error) {
	time.Sleep(i.takes) // in a bubble of synctest, which takes no time
	return i.inspector.Card(ctx, path)
}

func TestTheHostsMemory(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	book := b.book()
	// vLLM's first level copies what it gives up, and weights alone where those are known.
	if got := book.HostAsleep(b.entry("declared")); got != 7400 {
		t.Errorf("declared: %d", got)
	}
	if got, want := book.HostAsleep(b.entry("naps")), 2*b.estimate("naps", nil).HostMiB; got != want || want == 0 {
		t.Errorf("estimated: %d, want %d", got, want)
	}
	for name, c := range map[string]struct{ gives, weights, want uint32 }{
		"nobody knows":                {20000, 0, 20000},
		"twice the weights":           {20000, 6000, 12000},
		"never more than it gives up": {20000, 16000, 20000},
		"a slip in a card":            {20000, 6, 5000},
		"an absurd card":              {20000, 1<<32 - 1, 20000},
		"it gives up nothing":         {0, 6000, 0},
	} {
		if got := inHost(c.gives, c.weights); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if got := book.HostAsleep(b.entry("guessed")); got != 0 {
		t.Errorf("one that does not sleep: %d", got)
	}
	if got, want := book.HostLoading(b.entry("guessed")), b.estimate("guessed", nil).LoadHostMiB; got != want {
		t.Errorf("loading: %d, want %d", got, want)
	}
}

// TestAWhatIfIsNobodysMeasurement: an entry that is not the catalog's own is judged by what it says.
func TestAWhatIfIsNobodysMeasurement(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	book := b.book()
	measure, _ := b.sampling(book)
	b.is("declared", running, 100, 7000)
	measure(3)
	same, moved := *b.entry("declared"), *b.entry("declared")
	moved.GPUs = []uint32{1}
	wantNeed(t, "the same", book.Awake(&same), vram.Measured, on(7000))
	wantNeed(t, "on another GPU", book.Awake(&moved), vram.Declared, map[uint32]uint32{1: 8000})
	wantNeed(t, "its own", book.Awake(b.entry("declared")), vram.Measured, on(7000))
}

func TestWhatLlamaCPPSaysItself(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fit  string
		says []uint32
		err  error
		// whole: its own number, at most, with what the driver takes; 0: the estimate.
		whole uint32
	}{
		"as many GPUs":     {"off", []uint32{6000}, nil, 6000},
		"more GPUs":        {"off", []uint32{3000, 3000}, nil, 0},
		"it fails":         {"off", nil, errors.New("no"), 0},
		"it does not fit":  {"on", []uint32{90000}, nil, 24564 - 1024},
		"an absurd number": {"off", []uint32{1<<32 - 1}, nil, mostMiB},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			file := filepath.Join(t.TempDir(), "model.gguf")
			must(t, os.WriteFile(file, nil, 0o600))
			b.edit(`/nowhere/model.gguf}`, file+`, card: {architecture: llama, weights_mib: 4000, layers: [{count: 32, kind: full, kv_heads: 8, key_dim: 128, value_dim: 128}]}}`)
			s := *b.entry("filed")
			s.ExtraConfig = map[string]string{"engine": "llama.cpp", "context_size": "8192", "fit": c.fit}
			asked := 0
			book := b.book(func(cfg *Config) {
				cfg.Exact = func(_ context.Context, path string, run vram.Run) ([]uint32, error) {
					asked++
					if path != file || run.Fit || run.Context != 8192 {
						t.Errorf("asked for %s, %+v", path, run)
					}
					return c.says, c.err
				}
			})
			before := book.Awake(&s)
			for range 3 { // within moments of each other
				book.renew(t.Context(), &s)
			}
			want := before.PerGPU
			if c.whole > 0 {
				run, _ := vram.RunOf(&s)
				e, err := vram.Of(*s.Model.Card, run, []vram.GPU{{TotalMiB: 24564}})
				must(t, err)
				want = on(min(c.whole+e.OverheadMiB, mostMiB))
				if c.fit == "on" {
					want = on(c.whole)
				}
			}
			wantNeed(t, "awake", book.Awake(&s), vram.Estimated, want)
			if asked != 1 {
				t.Errorf("it was asked %d times", asked)
			}
		})
	}
}

// TestLlamaCPPIsNotAskedWhileAServiceStarts: it opens every GPU.
func TestLlamaCPPIsNotAskedWhileAServiceStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		file := filepath.Join(t.TempDir(), "model.gguf")
		must(t, os.WriteFile(file, nil, 0o600))
		b.edit("/nowhere/model.gguf", file)
		b.is("declared", starting, 0, 100)
		var asked atomic.Int32
		reader := &inspector{hang: make(chan struct{}), card: *b.entry("guessed").Model.Card}
		close(reader.hang)
		book := b.book(func(c *Config) {
			c.Inspector = reader
			c.Exact = func(context.Context, string, vram.Run) ([]uint32, error) {
				asked.Add(1)
				return []uint32{5000}, nil
			}
		})
		end := b.runs(t, book)
		look := func() Need {
			time.Sleep(2 * stale)
			book.Awake(b.entry("filed"))
			synctest.Wait()
			return book.Awake(b.entry("filed"))
		}
		if got := look(); asked.Load() != 0 || got.MiB() != b.estimate("guessed", nil).PerGPU[0] {
			t.Errorf("while one starts it was asked %d times: %+v", asked.Load(), got)
		}
		b.is("declared", running, 100, 7000)
		if got := look(); asked.Load() != 1 || got.MiB() != 5000+b.estimate("guessed", nil).OverheadMiB {
			t.Errorf("then it was asked %d times: %+v", asked.Load(), got)
		}
		end()
	})
}

// TestManyAskWhileItIsMeasured is for the race detector.
func TestManyAskWhileItIsMeasured(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	book := b.book()
	measure, _ := b.sampling(book)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				for _, s := range b.All() {
					if n := book.Awake(s); n.Source == vram.Measured && n.MiB() < 5000 {
						t.Errorf("%+v", n)
					}
					book.Sizes().Loading(s)
					book.Card(s)
				}
			}
		})
	}
	for i := range uint32(50) {
		b.is("declared", running, 100, 5000+rand.Uint32N(4000))
		measure(1)
		if i%10 == 0 {
			b.edit("DESCRIPTION", fmt.Sprintf("words %d", i))
		}
	}
	all.Wait()
}

// BenchmarkAwake is what a plan asks of the book for each of a thousand services.
func BenchmarkAwake(b *testing.B) {
	text := entries
	for i := range 1000 {
		text += fmt.Sprintf("  - {id: s%d, driver: systemd, unit: s%[1]d.service, gpus: [0], vram_mib: 64}\n", i)
	}
	c, err := catalog.Parse("catalogue.yaml", []byte(text), catalog.Options{Development: true})
	if err != nil {
		b.Fatal(err)
	}
	bench := &bench{catalog: c}
	bench.hardware("NVIDIA One", 24564)
	book, err := New(b.Context(), Config{Catalog: bench.current, GPUs: bench, Definition: bench.define})
	if err != nil {
		b.Fatal(err)
	}
	sizes := book.Sizes()
	for b.Loop() {
		for _, s := range c.Services {
			if sizes.Awake(s) == nil && len(s.GPUs) > 0 {
				b.Fatal(s.ID)
			}
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
