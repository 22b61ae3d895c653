package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// object is a JSON object.
type object map[string]any

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func refuse(w http.ResponseWriter, status int, message string) {
	answer(w, status, object{"error": object{"message": message}})
}

func (e *engine) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", e.health)
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		var list []object
		for _, id := range e.models {
			list = append(list, object{"id": id, "object": "model"})
		}
		answer(w, http.StatusOK, object{"object": "list", "data": list})
	})
	mux.HandleFunc("POST /v1/completions", e.complete)
	mux.HandleFunc("POST /v1/chat/completions", e.complete)
	switch e.api {
	case "vllm":
		e.vllm(mux)
	case "llama":
		e.router(mux)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.note(r.Method + " " + r.URL.RequestURI())
		mux.ServeHTTP(w, r)
	})
}

func (e *engine) health(w http.ResponseWriter, _ *http.Request) {
	e.mu.Lock()
	ready := e.ready
	e.mu.Unlock()
	if !ready {
		answer(w, http.StatusServiceUnavailable, object{"error": object{"message": "Loading model", "code": 503}})
		return
	}
	answer(w, http.StatusOK, object{"status": "ok"})
}

// fails answers with 500 if it was told to, or crashes.
func (e *engine) fails(w http.ResponseWriter, step string) bool {
	e.at(step)
	if e.failAt == step {
		refuse(w, http.StatusInternalServerError, "failed at "+step+", as asked")
		return true
	}
	return false
}

func (e *engine) complete(w http.ResponseWriter, r *http.Request) {
	if e.fails(w, "request") {
		return
	}
	var q struct {
		Model     string `json:"model"`
		MaxTokens int    `json:"max_tokens"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&q); err != nil || !slices.Contains(e.models, q.Model) {
		refuse(w, http.StatusNotFound, "no such model")
		return
	}
	e.mu.Lock()
	held := e.api != "llama" || e.loaded[q.Model] == "loaded"
	up, text := e.ready && e.level == 0 && held, "sense"
	if !e.sane() {
		text = "!!!!"
	}
	if up {
		e.busy++
	}
	e.mu.Unlock()
	if !up {
		refuse(w, http.StatusServiceUnavailable, "it sleeps, or loads")
		return
	}
	select {
	case <-time.After(time.Duration(max(q.MaxTokens, 1)) * e.perToken):
	case <-r.Context().Done():
	}
	e.set(func() { e.busy--; e.served++ })
	answer(w, http.StatusOK, object{"object": "text_completion", "model": q.Model, "choices": []object{{"index": 0, "text": text,
		"message": object{"role": "assistant", "content": text}, "finish_reason": "length"}}})
}

// metrics shows numbers of requests under an engine's own names.
func (e *engine) metrics(running, waiting, served string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		fmt.Fprintf(w, "# TYPE %s gauge\n%s{model_name=%q} %d.0\n%s{model_name=%q} 0.0\n%s{finished_reason=\"length\",model_name=%q} %d.0\n",
			running, running, e.models[0], e.busy, waiting, e.models[0], served, e.models[0], e.served)
	}
}

// vllm adds the endpoints of VLLM_SERVER_DEV_MODE. As vLLM's do, they read query parameters and no body.
func (e *engine) vllm(mux *http.ServeMux) {
	mux.HandleFunc("GET /metrics", e.metrics("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:request_success_total"))
	mux.HandleFunc("GET /is_sleeping", func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		answer(w, http.StatusOK, object{"is_sleeping": e.level > 0})
	})
	mux.HandleFunc("POST /sleep", func(w http.ResponseWriter, r *http.Request) {
		if e.fails(w, "sleep") {
			return
		}
		level := 1
		if text := r.URL.Query().Get("level"); text != "" {
			level, _ = strconv.Atoi(text)
		}
		e.set(func() { e.sleep(level) })
		log.Printf("sleeping at level %d", level)
	})
	mux.HandleFunc("POST /wake_up", func(w http.ResponseWriter, r *http.Request) {
		if e.fails(w, "wake") {
			return
		}
		e.set(func() { e.wake(r.URL.Query()["tags"]) })
		log.Printf("woken %v", r.URL.Query()["tags"])
	})
	mux.HandleFunc("POST /collective_rpc", func(w http.ResponseWriter, r *http.Request) {
		if e.fails(w, "reload") {
			return
		}
		var call struct {
			Method string `json:"method"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&call); err != nil || call.Method != "reload_weights" {
			refuse(w, http.StatusBadRequest, "no such method")
			return
		}
		e.set(func() { e.reloaded = e.weights })
		answer(w, http.StatusOK, object{"results": []any{nil}})
	})
	mux.HandleFunc("POST /reset_prefix_cache", func(http.ResponseWriter, *http.Request) {})
}

// router adds llama-server's endpoints for many models. They answer before they are done.
func (e *engine) router(mux *http.ServeMux) {
	mux.HandleFunc("GET /metrics", e.metrics("llamacpp:requests_processing", "llamacpp:requests_deferred", "llamacpp:tokens_predicted_total"))
	mux.HandleFunc("GET /models", func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		list := []object{}
		for _, id := range e.models {
			state := cmp.Or(e.loaded[id], "unloaded")
			list = append(list, object{"id": id, "object": "model", "status": object{"value": state}})
		}
		answer(w, http.StatusOK, object{"object": "list", "data": list})
	})
	move := func(step, during, after string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if e.fails(w, step) {
				return
			}
			var q struct {
				Model string `json:"model"`
			}
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&q); err != nil || !slices.Contains(e.models, q.Model) {
				refuse(w, http.StatusBadRequest, "no such model")
				return
			}
			e.set(func() { e.loaded[q.Model] = during; e.count() })
			go func() {
				time.Sleep(e.loadTime + 50*time.Millisecond)
				e.set(func() {
					e.loaded[q.Model] = after
					if !e.lying {
						e.count()
					}
				})
				log.Printf("model %s is %s", q.Model, after)
			}()
			answer(w, http.StatusOK, object{"success": true})
		}
	}
	mux.HandleFunc("POST /models/load", move("wake", "loading", "loaded"))
	mux.HandleFunc("POST /models/unload", move("sleep", "loaded", "unloaded"))
}
