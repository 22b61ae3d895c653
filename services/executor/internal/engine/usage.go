package engine

import (
	"bytes"
	"context"
	"math"
	"net/http"
	"strconv"
	"time"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clock"
)

// maxMetrics bounds what is read of an engine's metrics; vLLM's are some hundred kB.
const maxMetrics = 4 << 20

// Usage is what an engine tells of its work.
type Usage struct {
	// Told: it tells at all. Then Requests is how many are running or waiting.
	Told     bool
	Requests uint64
	// Served moves whenever a request was served.
	Served float64
}

// What engines call their numbers of requests.
var (
	requestNames = [][]byte{
		[]byte("vllm:num_requests_running"), []byte("vllm:num_requests_waiting"),
		[]byte("llamacpp:requests_processing"), []byte("llamacpp:requests_deferred"),
		[]byte("sglang:num_running_reqs"), []byte("sglang:num_queue_reqs"),
	}
	servedNames = [][]byte{
		[]byte("vllm:request_success_total"),
		[]byte("llamacpp:tokens_predicted_total"), []byte("llamacpp:prompt_tokens_total"),
		[]byte("sglang:num_requests_total"),
	}
)

// Usage asks for the engine's metrics. One that has none under a name that is known here does not tell; that is no error, and
// neither is one that does not answer.
func (c *Client) Usage(ctx context.Context, s *catalog.Service) Usage {
	if s.Port == 0 {
		return Usage{}
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	text, err := c.ask(ctx, http.MethodGet, at(s, "/metrics", nil), nil, maxMetrics)
	if err != nil {
		return Usage{}
	}
	return parseUsage(text)
}

// Drain waits, at most for the patience, until an engine that tells of its requests has none. It reports whether it had none in
// the end, or never told.
func (c *Client) Drain(ctx context.Context, s *catalog.Service, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if u := c.Usage(ctx, s); !u.Told || u.Requests == 0 {
			return ctx.Err() == nil
		}
		if !clock.Sleep(ctx, pollInterval) {
			return false
		}
	}
}

// parseUsage reads Prometheus text. It knows the names above and passes over everything else, however malformed.
func parseUsage(text []byte) Usage {
	var u Usage
	var requests float64
	for line := range bytes.Lines(text) {
		if value, ok := sample(line, requestNames); ok {
			u.Told = true
			requests += value
		} else if value, ok := sample(line, servedNames); ok {
			u.Served += value
		}
	}
	if requests > 0 {
		u.Requests = uint64(min(math.Ceil(requests), 1<<32))
	}
	return u
}

// sample reads the value of a line "NAME{LABELS} VALUE [TIME]" of one of the names. Negative and unreal values do not count.
func sample(line []byte, names [][]byte) (float64, bool) {
	for _, name := range names {
		rest, ok := bytes.CutPrefix(line, name)
		if !ok || len(rest) == 0 {
			continue
		}
		switch rest[0] {
		case '{':
			// A label's value may hold a brace; the value follows the last one.
			end := bytes.LastIndexByte(rest, '}')
			if end < 0 {
				return 0, false
			}
			rest = rest[end+1:]
		case ' ', '\t':
		default:
			continue // a longer name
		}
		fields := bytes.Fields(rest)
		if len(fields) == 0 || len(fields) > 2 {
			return 0, false
		}
		value, err := strconv.ParseFloat(string(fields[0]), 64)
		if err != nil || math.IsNaN(value) || math.IsInf(value, 0) || value < 0 {
			return 0, false
		}
		return value, true
	}
	return 0, false
}
