package history

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/installdir"
)

// leftSuffix ends the files of records that were left for the command that has the log next.
const leftSuffix = ".left"

// ErrBusy is returned where another command has the log for too long.
var ErrBusy = errors.New("another durward command is busy with the audit log; try again")

// Leave keeps a record for the command that has the log next, where another has it now.
func Leave(stateDir string, now time.Time, kind auditv1.Kind, requestID string, body *auditv1.Body) error {
	path := filepath.Join(stateDir, unsentFile+"-"+now.UTC().Format("20060102T150405.000000000Z-")+rand.Text()+leftSuffix)
	return writeUnsent(path, []*auditv1.Record{newRecord(now, kind, requestID, body)})
}

// unsent reads what waits for audit. What other commands left is taken along first: if this one is ended between the two, it is written twice, which
// is better than not at all.
func (l *Log) unsent() ([]*auditv1.Record, error) {
	path := filepath.Join(l.cfg.StateDir, unsentFile)
	waiting, err := readUnsent(path)
	if err != nil {
		return nil, err
	}
	left, err := fs.Glob(os.DirFS(l.cfg.StateDir), unsentFile+"-*"+leftSuffix) // in the order of their times
	if err != nil || len(left) == 0 {
		return waiting, err
	}
	for i, name := range left {
		left[i] = filepath.Join(l.cfg.StateDir, name)
		records, err := readUnsent(left[i])
		if err != nil {
			return nil, err
		}
		waiting = append(waiting, records...)
	}
	// However many they are: who refused them here would never send them.
	if err := writeUnsent(path, waiting); err != nil {
		return nil, err
	}
	for _, file := range left {
		if err := os.Remove(file); err != nil {
			return nil, fmt.Errorf("records that wait for audit: %w", err)
		}
	}
	return waiting, nil
}

func readUnsent(path string) ([]*auditv1.Record, error) {
	b, err := os.ReadFile(path) // #nosec G304 -- in the state folder
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("records that wait for audit: %w", err)
	}
	var list auditv1.AppendRequest
	if err := proto.Unmarshal(b, &list); err != nil {
		return nil, errors.New("the records that wait for audit cannot be read")
	}
	return list.GetRecords(), nil
}

func (l *Log) keepUnsent(records []*auditv1.Record) error {
	path := filepath.Join(l.cfg.StateDir, unsentFile)
	if len(records) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("records that wait for audit: %w", err)
		}
		return nil
	}
	if len(records) > maxUnsent {
		return errors.New("too many changes wait to be recorded: start Durward first")
	}
	return writeUnsent(path, records)
}

func writeUnsent(path string, records []*auditv1.Record) error {
	b, err := proto.Marshal(&auditv1.AppendRequest{Records: records})
	if err != nil {
		return fmt.Errorf("records that wait for audit: %w", err)
	}
	return asOwner(filepath.Dir(path), func() error { return installdir.WriteFile(path, b, 0o600) })
}
