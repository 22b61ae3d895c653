package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// record is what is remembered of a started service, in Dir/run/ID.json. It stays until the service is stopped, so that a
// program that ended by itself is told from one that was stopped. It need not survive a loss of power: neither does the
// process.
type record struct {
	ID   string `json:"id"`
	Boot string `json:"boot"`
	// PID is 0 between the decision to start and the start.
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
	// NotBefore is a start time that the program's cannot precede.
	NotBefore uint64    `json:"not_before"`
	StartedAt time.Time `json:"started_at"`
	// Output is the pipe that the program writes to, "pipe:[…]", and Keeper the process that reads it.
	Output string `json:"output"`
	Keeper kept   `json:"keeper"`
	// CGroup is the control group that it was started in, as /proc/PID/cgroup shows it; "" for none.
	CGroup string `json:"cgroup,omitempty"`
}

// kept is an identity as it is remembered.
type kept struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

func (k kept) identity() identity { return identity{pid: k.PID, start: k.Start} }

func (r *record) identity() identity { return identity{pid: r.PID, start: r.Start} }

func (d *Driver) recordFile(id string) string { return filepath.Join(d.runDir, id+".json") }

func (d *Driver) logFile(id string) string { return filepath.Join(d.logDir, id+".log") }

// load reads the records of an earlier executor. A record that does not parse is set aside, loudly: guessing at a pid
// could kill a stranger.
func (d *Driver) load() error {
	entries, err := os.ReadDir(d.runDir)
	if err != nil {
		return fmt.Errorf("process driver: %w", err)
	}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		r, err := readRecord(d.recordFile(id))
		if err != nil || r.ID != id {
			d.log.Error("a service's record is damaged and was set aside; if its program runs, it must be ended by hand", "service_id", id)
			if err := os.Rename(d.recordFile(id), d.recordFile(id)+".damaged"); err != nil {
				return fmt.Errorf("process driver: %w", err)
			}
			continue
		}
		if r.PID == 0 && r.Boot == d.boot {
			who, found := findByOutput(r.Output, r.NotBefore)
			if !found {
				d.clear(r) // a program of another user does not show its output to an executor that is not root
				d.forget(id)
				continue
			}
			r.PID, r.Start = who.pid, who.start
			if err := d.save(r); err != nil {
				return err
			}
		}
		d.records[id] = r
	}
	return nil
}

func readRecord(file string) (*record, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	r := &record{}
	if err := dec.Decode(r); err != nil {
		return nil, err
	}
	if r.PID < 0 || r.PID > 0 && r.Start == 0 || r.Boot == "" {
		return nil, errors.New("incomplete record")
	}
	return r, nil
}

// save writes a record by renaming, so that no reader sees half of one, and adopts it.
func (d *Driver) save(r *record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("process driver: %w", err)
	}
	file := d.recordFile(r.ID)
	if err := os.WriteFile(file+".new", raw, 0o600); err != nil {
		return fmt.Errorf("process driver: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("process driver: %w", err)
	}
	d.mu.Lock()
	delete(d.causes, d.records[r.ID])
	d.records[r.ID] = r
	d.mu.Unlock()
	return nil
}

func (d *Driver) forget(id string) {
	if err := os.Remove(d.recordFile(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Error("a service's record could not be removed", "service_id", id, "error", err)
	}
	d.mu.Lock()
	delete(d.causes, d.records[id])
	delete(d.records, id)
	d.mu.Unlock()
}
