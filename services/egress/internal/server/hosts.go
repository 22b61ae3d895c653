package server

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"

	"durward.internal/services/platform/destination"
)

// mostHosts bounds what is remembered; when they are so many, all are forgotten.
const mostHosts = 10_000

// Hosts are those that have answered, whoever asked: the card of a request to any other marks it as new. They are a remark and decide nothing,
// so that their file is bare lines: a host whose line is lost is new again. They are safe for concurrent use.
type Hosts struct {
	mu    sync.Mutex
	names map[string]bool
	// file has a line for each; nil: there is none.
	file *os.File
}

// OpenHosts reads the file, or makes it. The caller closes it.
func OpenHosts(path string) (*Hosts, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600) // #nosec G304 -- egress' own
	if err != nil {
		return nil, err
	}
	h := &Hosts{names: map[string]bool{}, file: file}
	raw, err := io.ReadAll(io.LimitReader(file, mostHosts*256))
	if err == nil {
		raw = raw[:bytes.LastIndexByte(raw, '\n')+1]
		err = file.Truncate(int64(len(raw))) // a line that power cut short
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	for line := range strings.Lines(string(raw)) {
		if host := strings.TrimSuffix(line, "\n"); len(h.names) < mostHosts {
			if name, err := destination.ParseHost(host); err == nil && name == host {
				h.names[name] = true
			}
		}
	}
	return h, nil
}

// Close closes the file.
func (h *Hosts) Close() error { return h.file.Close() }

func (h *Hosts) has(host string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.names[host]
}

func (h *Hosts) add(host string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.names[host] {
		return
	}
	if len(h.names) >= mostHosts {
		clear(h.names)
		if h.file != nil {
			_ = h.file.Truncate(0) // what stays there is remembered longer
		}
	}
	h.names[host] = true
	if h.file != nil {
		_, _ = h.file.WriteString(host + "\n") // on a full disk it is new again after a restart
	}
}
