// Package health asks a process whether it is well, at its health listener. Operators' programs do, and a process of itself, from its
// container. It trusts nothing of an answer but that it came from where the address says.
package health

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/rpc"
)

// Health is the answer to GET /health.
type Health struct {
	// Status is "ok" or "unavailable".
	Status  string `json:"status"`
	Service string `json:"service"`
	Version string `json:"version"`
}

// Healthy asks a health listener, and reports whether that very process answered that it is ok. The answer is zero when
// nothing usable came back.
func Healthy(ctx context.Context, client *http.Client, address, role string) (bool, Health) {
	response, err := Ask(ctx, client, address)
	if err != nil {
		return false, Health{}
	}
	defer response.Body.Close()
	var h Health
	if err := json.NewDecoder(io.LimitReader(response.Body, 4096)).Decode(&h); err != nil {
		return false, Health{}
	}
	return h.Status == "ok" && h.Service == role, h
}

// Ask requests /health of a health listener, host:port or a Unix socket's address, within the client's timeout. The caller
// closes the response's body.
func Ask(ctx context.Context, client *http.Client, address string) (*http.Response, error) {
	return Get(ctx, client, address, "/health")
}

// Get is Ask for another of its pages.
func Get(ctx context.Context, client *http.Client, address, page string) (*http.Response, error) {
	host := address
	if config.IsUnix(address) {
		host = "localhost"
		client = &http.Client{Timeout: client.Timeout, Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return rpc.DialContext(ctx, address) }}}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+page, nil)
	if err != nil {
		return nil, err
	}
	return client.Do(request)
}

// Metrics reads what a process counts that has no labels.
func Metrics(ctx context.Context, client *http.Client, address string) (map[string]float64, error) {
	response, err := Get(ctx, client, address, "/metrics")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	values := map[string]float64{}
	lines := bufio.NewScanner(io.LimitReader(response.Body, 4<<20))
	for lines.Scan() {
		name, number, _ := strings.Cut(lines.Text(), " ")
		if value, err := strconv.ParseFloat(number, 64); err == nil {
			values[name] = value
		}
	}
	return values, lines.Err()
}
