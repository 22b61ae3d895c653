package process

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"durward.internal/services/platform/catalog"
)

// openLog opens the service's log for appending, which is what lets it be emptied while the program writes.
func (d *Driver) openLog(s *catalog.Service) (*os.File, error) {
	file := d.logFile(s.ID)
	d.logs.Lock()
	err := boundLog(file, s.LogMaxBytes)
	d.logs.Unlock()
	if err != nil {
		return nil, fmt.Errorf("process driver: %w", err)
	}
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("process driver: %w", err)
	}
	return out, nil
}

// boundLogs looks at every started service's log once a second.
func (d *Driver) boundLogs() {
	defer d.stopped.Done()
	tick := time.NewTicker(logInterval)
	defer tick.Stop()
	for {
		select {
		case <-d.stop:
			return
		case <-tick.C:
		}
		d.mu.Lock()
		limits := make(map[string]int64, len(d.records))
		for _, r := range d.records {
			limits[r.Log] = r.LogMaxBytes
		}
		d.mu.Unlock()
		for file, limit := range limits {
			d.logs.Lock()
			err := boundLog(file, limit)
			d.logs.Unlock()
			if err != nil {
				d.log.Error("a service's log could not be bounded", "error", err)
			}
		}
	}
}

// boundLog copies a log that is longer than limit to FILE.1, its last limit bytes or a few more, and empties it. What the
// program writes between the copy and the emptying is lost.
func boundLog(file string, limit int64) error {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Size() <= limit {
		return nil
	}
	base, err := readBase(file)
	if err != nil {
		return err
	}
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	old, err := os.OpenFile(file+".1", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	end, err := copyTail(old, in, info.Size(), limit)
	if cerr := old.Close(); err == nil {
		err = cerr
	}
	// The base comes first: killed in between, an executor finds lines twice, rather than none.
	if err == nil {
		err = writeBase(file, base+end)
	}
	if err != nil {
		return err
	}
	return os.Truncate(file, 0)
}

// copyTail copies the last limit bytes of a log with the size, and what the program writes in the meantime, up to as much
// again. It returns where it ended.
func copyTail(to io.Writer, in *os.File, size, limit int64) (int64, error) {
	at := size - limit
	for end := at + 2*limit; ; {
		n, err := io.Copy(to, io.NewSectionReader(in, at, end-at))
		at += n
		if n == 0 || err != nil || at >= end {
			return at, err
		}
	}
}
