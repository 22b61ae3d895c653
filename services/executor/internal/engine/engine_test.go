package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/catalog"
)

// fake is an engine that writes down what it is asked.
type fake struct {
	mu    sync.Mutex
	calls []string
	// asleep is vLLM's state; stubborn keeps it as it is, whatever is asked.
	asleep, stubborn bool
	// models are a router's, by id; lag is how many looks a change of them takes.
	models map[string]string
	next   map[string]string
	lag    int
	// fails are paths that answer with a status.
	fails   map[string]int
	metrics string
	// later, where there are any, are the metrics from the next look on.
	later string
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	line := r.Method + " " + r.URL.RequestURI()
	if len(body) > 0 {
		line += " " + string(body)
	}
	if r.Method == http.MethodPost {
		f.calls = append(f.calls, line)
	}
	if status := f.fails[r.URL.Path]; status != 0 {
		http.Error(w, "no", status)
		return
	}
	var named struct{ Model string }
	if len(body) > 0 {
		if err := json.Unmarshal(body, &named); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	switch r.URL.Path {
	case "/is_sleeping":
		fmt.Fprintf(w, `{"is_sleeping":%t}`, f.asleep)
	case "/sleep":
		f.asleep = !f.stubborn
	case "/wake_up":
		f.asleep = f.stubborn || r.URL.Query().Get("tags") == "weights"
	case "/collective_rpc", "/reset_prefix_cache", "/v1/completions", "/v1/chat/completions", "/v1/embeddings":
	case "/metrics":
		_, _ = io.WriteString(w, f.metrics)
		if f.later != "" {
			f.metrics = f.later
		}
	case "/models":
		if f.lag--; f.lag < 0 {
			maps.Copy(f.models, f.next)
			f.next = nil
		}
		var list []map[string]any
		for id, state := range f.models {
			value, failed := strings.CutSuffix(state, " failed")
			list = append(list, map[string]any{"id": id, "status": map[string]any{"value": value, "failed": failed}})
		}
		// The client refuses a reply that is cut short.
		_ = json.NewEncoder(w).Encode(map[string]any{"data": list})
	case "/models/unload", "/models/load":
		if f.next == nil {
			f.next = map[string]string{}
		}
		f.next[named.Model] = "unloaded"
		if r.URL.Path == "/models/load" {
			f.models[named.Model], f.next[named.Model] = "loading", "loaded"
		}
	default:
		http.NotFound(w, r)
	}
}

func serve(t *testing.T, f http.Handler, sleep string) *catalog.Service {
	t.Helper()
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	at, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	return &catalog.Service{
		ID: "chat", Port: uint32(netip.MustParseAddrPort(at.Host).Port()), Sleep: sleep, BaseURL: srv.URL + "/v1",
		Model: &catalog.Model{ID: "org/one", ServedName: "one"},
	}
}

// TestGpumodD7TheLevelIsTheEntrys: and a query parameter, since vLLM reads no body.
func TestGpumodD7TheLevelIsTheEntrys(t *testing.T) {
	for sleep, want := range map[string]string{
		catalog.SleepVLLM1: "POST /sleep?level=1&mode=wait",
		catalog.SleepVLLM2: "POST /sleep?level=2&mode=wait",
	} {
		f := &fake{}
		if _, err := New().Sleep(t.Context(), serve(t, f, sleep)); err != nil {
			t.Errorf("%s: %v", sleep, err)
		}
		if diff := cmp.Diff([]string{want}, f.calls); diff != "" {
			t.Errorf("%s (-want +got):\n%s", sleep, diff)
		}
	}
}

// TestGpumodD8LevelTwoWakesInOrder: without the second call the engine answers nonsense, without the last from a cache of before.
func TestGpumodD8LevelTwoWakesInOrder(t *testing.T) {
	for sleep, want := range map[string][]string{
		catalog.SleepVLLM1: {"POST /wake_up"},
		catalog.SleepVLLM2: {
			"POST /wake_up?tags=weights", `POST /collective_rpc {"method":"reload_weights"}`,
			"POST /wake_up?tags=kv_cache", "POST /reset_prefix_cache",
		},
	} {
		f := &fake{asleep: true}
		if err := New().Wake(t.Context(), serve(t, f, sleep), nil); err != nil {
			t.Errorf("%s: %v", sleep, err)
		}
		if diff := cmp.Diff(want, f.calls); diff != "" {
			t.Errorf("%s (-want +got):\n%s", sleep, diff)
		}
	}
}

// TestGpumodD9AnAnswerIsRead: no status, no state and no silence passes for a success, and nothing is cut off after ten seconds.
func TestGpumodD9AnAnswerIsRead(t *testing.T) {
	for name, c := range map[string]struct {
		fake *fake
		want error
	}{
		"500 to sleep":        {&fake{fails: map[string]int{"/sleep": 500}}, ErrStatus},
		"404 to sleep":        {&fake{fails: map[string]int{"/sleep": 404}}, ErrRefused},
		"a redirect":          {&fake{fails: map[string]int{"/sleep": 307}}, ErrStatus},
		"no state":            {&fake{fails: map[string]int{"/is_sleeping": 500}}, ErrStatus},
		"a state that lies":   {&fake{stubborn: true}, ErrState},
		"500 to wake":         {&fake{asleep: true, fails: map[string]int{"/wake_up": 500}}, ErrStatus},
		"500 to reload":       {&fake{asleep: true, fails: map[string]int{"/collective_rpc": 500}}, ErrStatus},
		"500 to reset":        {&fake{asleep: true, fails: map[string]int{"/reset_prefix_cache": 500}}, ErrStatus},
		"awake it is not yet": {&fake{asleep: true, stubborn: true}, ErrState},
	} {
		s := serve(t, c.fake, catalog.SleepVLLM2)
		var err error
		if c.fake.asleep {
			err = New().Wake(t.Context(), s, nil)
		} else {
			_, err = New().Sleep(t.Context(), s)
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if New().http.Timeout != 0 {
		t.Error("the client ends calls by itself")
	}
	hangs := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := New().Sleep(ctx, serve(t, hangs, catalog.SleepVLLM1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an engine that does not answer: %v", err)
	}
}

func TestOneThatSleepsIsLeftAlone(t *testing.T) {
	f := &fake{asleep: true}
	if _, err := New().Sleep(t.Context(), serve(t, f, catalog.SleepVLLM1)); err != nil || len(f.calls) != 0 {
		t.Errorf("%v, %v", err, f.calls)
	}
	for body, want := range map[string]error{`{}`: ErrAnswer, `[]`: ErrAnswer, `not JSON`: ErrAnswer, strings.Repeat(" ", maxAnswer+1): ErrAnswer} {
		odd := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
		if _, err := New().Asleep(t.Context(), serve(t, odd, catalog.SleepVLLM1)); !errors.Is(err, want) {
			t.Errorf("%.10q: %v", body, err)
		}
	}
}

// TestGpumodD14EveryModelOfARouter: each that is loaded is unloaded, each is loaded again, and done is when the router says so.
func TestGpumodD14EveryModelOfARouter(t *testing.T) {
	f := &fake{models: map[string]string{"one": "loaded", "two": "unloaded", "three": "loading", "four": "sleeping", "five": "downloading"}, lag: 3}
	s := serve(t, f, catalog.SleepLlamaRouter)
	models, err := New().Sleep(t.Context(), s)
	slices.Sort(models)
	if diff := cmp.Diff([]string{"four", "one", "three"}, models); diff != "" || err != nil {
		t.Errorf("unloaded %v, %v", diff, err)
	}
	if asleep, err := New().Asleep(t.Context(), s); !asleep || err != nil {
		t.Errorf("asleep: %v, %v; %v", asleep, err, f.models)
	}
	f.calls, f.lag = nil, 3
	if err := New().Wake(t.Context(), s, models); err != nil {
		t.Error(err)
	}
	for id, want := range map[string]string{"one": "loaded", "three": "loaded", "four": "loaded", "two": "unloaded"} {
		if f.models[id] != want {
			t.Errorf("%s is %s when the wake is done", id, f.models[id])
		}
	}
	// It returned when the router was done, not when it answered.
	if f.lag >= 0 {
		t.Error("it did not look again")
	}
	f = &fake{models: map[string]string{"one": "unloaded"}}
	if err := New().Wake(t.Context(), serve(t, f, catalog.SleepLlamaRouter), nil); err != nil || f.models["one"] != "loaded" {
		t.Errorf("without a memory of models: %v, %v", err, f.models)
	}
	for name, c := range map[string]struct {
		fake *fake
		want error
	}{
		"no such model": {&fake{models: map[string]string{"two": "unloaded"}}, ErrLoad},
		"500":           {&fake{models: map[string]string{"one": "unloaded"}, fails: map[string]int{"/models/load": 500}}, ErrStatus},
		"no router":     {&fake{fails: map[string]int{"/models": 404}}, ErrRefused},
		"no status":     {&fake{models: map[string]string{"one": ""}}, ErrAnswer},
		"no models":     {&fake{}, ErrAnswer},
	} {
		if err := New().Wake(t.Context(), serve(t, c.fake, catalog.SleepLlamaRouter), nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAModelThatCannotBeLoaded(t *testing.T) {
	crash := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"data":[{"id":"one","status":{"value":"unloaded","failed":true,"exit_code":1}}]}`)
		}
	})
	if err := New().Wake(t.Context(), serve(t, crash, catalog.SleepLlamaRouter), nil); !errors.Is(err, ErrLoad) {
		t.Error(err)
	}
}

func TestWhatDoesNotSleep(t *testing.T) {
	f := &fake{}
	s := serve(t, f, catalog.SleepNone)
	if _, err := New().Sleep(t.Context(), s); !errors.Is(err, ErrCannotSleep) {
		t.Error(err)
	}
	if err := New().Wake(t.Context(), s, nil); !errors.Is(err, ErrCannotSleep) {
		t.Error(err)
	}
	if asleep, err := New().Asleep(t.Context(), s); asleep || err != nil || Sleeps(s) || len(f.calls) > 0 {
		t.Errorf("%v, %v, %v", asleep, err, f.calls)
	}
}

func TestWarm(t *testing.T) {
	for name, c := range map[string]struct {
		fails map[string]int
		calls int
		want  error
	}{
		"completions":   {nil, 1, nil},
		"chat alone":    {map[string]int{"/v1/completions": 404}, 2, nil},
		"embeddings":    {map[string]int{"/v1/completions": 404, "/v1/chat/completions": 400}, 3, nil},
		"none":          {map[string]int{"/v1/completions": 404, "/v1/chat/completions": 400, "/v1/embeddings": 404}, 3, ErrRefused},
		"still loading": {map[string]int{"/v1/completions": 503}, 1, ErrStatus},
		"busy":          {map[string]int{"/v1/completions": 429}, 1, ErrStatus},
	} {
		f := &fake{fails: c.fails}
		if err := New().Warm(t.Context(), serve(t, f, "")); !errors.Is(err, c.want) || len(f.calls) != c.calls {
			t.Errorf("%s: %v, %v", name, err, f.calls)
		}
		for _, call := range f.calls {
			if !strings.Contains(call, `"model":"one"`) || !strings.Contains(call, `"max_tokens":1,`) && !strings.Contains(call, "/embeddings ") {
				t.Errorf("%s: %s", name, call)
			}
		}
	}
}

func TestDrain(t *testing.T) {
	f := &fake{metrics: "vllm:num_requests_running 1\n"}
	s := serve(t, f, catalog.SleepVLLM1)
	if New().Drain(t.Context(), s, 20*time.Millisecond) {
		t.Error("a busy engine is drained")
	}
	f.later = "vllm:num_requests_running 0\n"
	if !New().Drain(t.Context(), s, 10*time.Second) {
		t.Error("an idle engine is not")
	}
	f.fails = map[string]int{"/metrics": 404}
	if u := New().Usage(t.Context(), s); u != (Usage{}) || !New().Drain(t.Context(), s, time.Second) {
		t.Errorf("one without metrics: %v", u)
	}
}

const vllmMetrics = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b \" c"} 2.0
vllm:num_requests_running{engine="1",model_name="x"} 1.0
vllm:num_requests_waiting{engine="0",model_name="x"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="x"} 100.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="x"} 10.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="x"} 2.0 1700000000
`

func TestParseUsage(t *testing.T) {
	for text, want := range map[string]Usage{
		"":          {},
		"up 1\n":    {},
		vllmMetrics: {Told: true, Requests: 7, Served: 12},
		"llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\nllamacpp:tokens_predicted_total 5\n": {Told: true, Requests: 3, Served: 5},
		"sglang:num_running_reqs{tp=\"0\"} 0.0\n":                                                           {Told: true},
		"vllm:num_requests_running NaN\nvllm:num_requests_running -3\n":                                     {},
		"vllm:num_requests_running{\nvllm:num_requests_running\n":                                           {},
		"vllm:num_requests_running 1 2 3\nvllm:num_requests_running{a=\"}\n":                                {},
		"vllm:num_requests_running 1e300\n":                                                                 {Told: true, Requests: 1 << 32},
	} {
		if got := parseUsage([]byte(text)); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func FuzzParseUsage(f *testing.F) {
	f.Add([]byte(vllmMetrics))
	f.Add([]byte("llamacpp:requests_processing 1\n"))
	f.Add([]byte("vllm:num_requests_running{a=\"}\"} +Inf\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		u := parseUsage(text)
		if !u.Told && u.Requests > 0 || u.Requests > 1<<32 || u.Served < 0 {
			t.Errorf("%+v", u)
		}
	})
}
