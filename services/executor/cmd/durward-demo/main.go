// Command durward-demo stands in for a model server, so that Durward can be tried on a machine without a model: it speaks a
// little of the OpenAI API on loopback and answers every question with the same sentence, which says that it is a demo.
//
// It trusts nobody and needs nothing: no key, no file, no network.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"durward.internal/services/platform/clock"
)

// Reply is every answer's text.
const Reply = "This is Durward's demo service: no model runs here, and this sentence is all it can say."

// maxRequest bounds a request's body, in bytes.
const maxRequest = 1 << 20

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	flags := flag.NewFlagSet("durward-demo", flag.ContinueOnError)
	port := flags.Uint("port", 7450, "port on 127.0.0.1")
	model := flags.String("model", "demo-1b", "`name` of the model that is claimed to be served")
	touch := flags.String("touch", "", "append a line to this `file` at the start, so that starts can be counted")
	delay := flags.Duration("delay", 0, "wait so long before listening, as a real model server loads")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, log, *port, *model, *touch, *delay); err != nil {
		log.Error("demo service failed", "error", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, log *slog.Logger, port uint, model, touch string, delay time.Duration) error {
	if touch != "" {
		if err := note(touch); err != nil {
			return err
		}
	}
	if !clock.Sleep(ctx, delay) {
		return nil
	}
	srv := &http.Server{
		Addr:              net.JoinHostPort("127.0.0.1", strconv.FormatUint(uint64(port), 10)),
		Handler:           handler(model),
		ReadHeaderTimeout: 5 * time.Second,
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.ListenAndServe() }()
	log.Info("demo service", "address", srv.Addr, "model", model)
	select {
	case err := <-failed:
		return fmt.Errorf("listen: %w", err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := srv.Shutdown(last); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// note appends one line with our pid, and when we began by the kernel's clock.
func note(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "started %d %d\n", os.Getpid(), began())
	return errors.Join(err, f.Close())
}

// began is when this process began, in ticks since the machine's boot (proc_pid_stat(5)), 0 where nobody says.
func began() int64 {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	ticks, _ := strconv.ParseInt(fields[19], 10, 64)
	return ticks
}

// object is a JSON object of the API.
type object map[string]any

func handler(model string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, object{"status": "ok", "demo": true})
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, object{"object": "list", "data": []object{{"id": model, "object": "model", "owned_by": "durward-demo"}}})
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			Model string `json:"model"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&request); err != nil {
			http.Error(w, `{"error":{"message":"not a JSON request"}}`, http.StatusBadRequest)
			return
		}
		answer(w, object{
			"id": "demo", "object": "chat.completion", "created": time.Now().Unix(), "model": model,
			"choices": []object{{"index": 0, "finish_reason": "stop", "message": object{"role": "assistant", "content": Reply}}},
			"usage":   object{"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
		})
	})
	mux.HandleFunc("POST /v1/embeddings", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, object{
			"object": "list", "model": model,
			"data":  []object{{"object": "embedding", "index": 0, "embedding": []float64{0, 0, 0, 1}}},
			"usage": object{"prompt_tokens": 0, "total_tokens": 0},
		})
	})
	return mux
}

func answer(w http.ResponseWriter, v object) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Durward-Demo", "true")
	_ = json.NewEncoder(w).Encode(v) // the client is gone
}
